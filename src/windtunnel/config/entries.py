"""Files that are a list of entries: schedules and faults."""

from __future__ import annotations

from pathlib import Path

import yaml

from windtunnel.errors import InputError


def read_entries(path: str, example: str) -> list[object]:
    """The entries of a YAML or JSON file, at least one; what each must be is the caller's to say.

    Args:
        example: an entry, for the error.

    Raises:
        InputError: the file cannot be read, or is no such list.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise InputError("is neither YAML nor JSON", source=path) from None
    if not isinstance(data, list) or not data:
        raise InputError(f"expected a list of entries such as {example}", source=path)
    return data
