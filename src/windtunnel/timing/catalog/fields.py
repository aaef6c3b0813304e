"""Typed access to the fields of a `config.json`: what is missing or of another kind is one clear line."""

from __future__ import annotations

from typing import Any

from windtunnel.errors import InputError


class Fields:
    """The fields of a config, with those of a model inside a model (`text_config`) before its own."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        text = config.get("text_config")
        self.all: dict[str, Any] = {**config, **text} if isinstance(text, dict) else config
        self.name = name

    def get(self, field: str, default: object = None) -> Any:
        value = self.all.get(field)
        return default if value is None else value

    def integer(self, field: str, default: int | None = None) -> int:
        value = self.get(field, default)
        if value is None:
            raise InputError(f"{self.name}: no '{field}', which a model needs")
        if not isinstance(value, int) or isinstance(value, bool) or value < (1 if default is None else 0):
            raise InputError(f"{self.name}: '{field}' is {value!r}, expected a positive integer")
        return value

    def first_integer(self, *names: str) -> int:
        """The first of these fields that is there, 0 if none is."""
        return next((self.integer(field) for field in names if self.get(field)), 0)
