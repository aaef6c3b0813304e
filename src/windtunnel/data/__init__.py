"""Data files that ship with the package; README.md beside them says where they come from."""
