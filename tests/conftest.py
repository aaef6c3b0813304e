"""What all tests share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

os.environ.pop("COLUMNS", None)  # some runners set it, and tables that go to no terminal would be narrow

WriteTrace = Callable[..., str]


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    """Write rows (objects as JSON, text and bytes as they are) to a file, a line each, and return its path."""

    def write(*rows: Mapping[str, Any] | str | bytes, name: str = "trace.jsonl") -> str:
        lines = [
            row if isinstance(row, bytes) else row.encode() if isinstance(row, str) else json.dumps(row).encode()
            for row in rows
        ]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return str(path)

    return write
