"""Every error that a user can cause, with the place it came from.

An `InputError` is one line that a person can act on; the command line prints it and exits with 2. Anything
else that leaves this package as an exception is a fault of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WindtunnelError(Exception):
    """Base of all errors raised on purpose."""


class InputError(WindtunnelError):
    """What a user gave cannot be used.

    Attributes:
        message: what was found and what was expected, in one line.
        source: the file, flag or configuration the value came from, if known.
        line: 1-based line of `source`, if it has lines.
        field: the field of that line or configuration.
    """

    def __init__(self, message: str, *, source: str | None = None, line: int | None = None, field: str | None = None):
        self.message = message
        self.source = source
        self.line = line
        self.field = field
        super().__init__(message)

    def __str__(self) -> str:
        place = self.source or ""
        if self.line is not None:
            place += f":{self.line}" if place else f"line {self.line}"
        parts = [part for part in (place, self.field) if part]
        return ": ".join([*parts, self.message])


class SimulationError(WindtunnelError):
    """A simulation ended before its time.

    Attributes:
        partial: the `Result` of what had been simulated, set by `simulate`.
    """

    partial: object = None


class PluginError(SimulationError):
    """A router or timing model supplied by the user raised, or returned something impossible.

    The original exception, if there was one, is `__cause__`.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.__cause__ = cause  # set here too: compiled code forgets the `from` of a raise


class StalledError(SimulationError):
    """Nothing can happen any more although requests remain: names them and what each waits for."""


def closest(name: str, valid: Iterable[str]) -> str:
    """A hint to append to an error about an unknown name: the nearest valid one, or all of them."""
    names = list(valid)
    matches = get_close_matches(name, names, n=1, cutoff=0.5)
    if matches:
        return f"did you mean '{matches[0]}'?"
    return "expected one of " + ", ".join(f"'{n}'" for n in names)
