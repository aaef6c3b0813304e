"""What all tests share."""

import os

os.environ.pop("COLUMNS", None)  # some runners set it, and tables that go to no terminal would be narrow
