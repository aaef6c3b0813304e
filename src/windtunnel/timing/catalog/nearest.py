"""The error about a name that the catalog does not have: what it may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from windtunnel.errors import InputError

MAX_LISTED = 12  # names in a message


class UnknownNameError(InputError):
    """A name that is none of the catalog's.

    Attributes:
        hint: the nearest names, or all of them.
    """

    def __init__(self, what: str, name: str, hint: str) -> None:
        super().__init__(f"unknown {what} {name!r}: {hint}")
        self.hint = hint


def folded(name: str) -> str:
    """A name as it is compared: without case, and with one kind of separator."""
    return name.lower().replace("_", "-").replace(" ", "-")


def unknown(what: str, name: str, known: Iterable[str], remedy: str = "") -> UnknownNameError:
    """The error for a name that is none of `known`, with up to three that are like it."""
    names = list(known)
    by_last = {folded(full.rpartition("/")[2]): full for full in names}
    wanted = folded(name.rpartition("/")[2])
    matches = get_close_matches(wanted, by_last, n=3, cutoff=0.4) or [last for last in by_last if wanted in last][:3]
    if matches:
        hint = "did you mean " + " or ".join(f"'{by_last[match]}'" for match in matches) + "?"
    else:
        hint = "expected one of " + ", ".join(f"'{full}'" for full in names[:MAX_LISTED])
        hint += f" or {len(names) - MAX_LISTED} more." if len(names) > MAX_LISTED else "."
    return UnknownNameError(what, name, f"{hint}{remedy}")
