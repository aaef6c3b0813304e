"""What a command says about itself, all of it on stderr: errors, notes, the traceback of a plugin.

Standard output is for results alone, so that it can be piped.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from rich.console import Console
from rich.text import Text

from windtunnel.config.origins import InvalidConfigError

# Where frames of a traceback are not the user's.
_NOT_THEIRS = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<frozen importlib")


def print_error(error: object) -> None:
    """One line; several for a configuration that is wrong in several places."""
    for one in error.errors if isinstance(error, InvalidConfigError) else [error]:
        print(f"windtunnel: error: {one}", file=sys.stderr)


def print_line(text: str) -> None:
    """Something that a user should know although nothing failed."""
    print(f"windtunnel: {text}", file=sys.stderr)


def print_note(text: str) -> None:
    """Something that a user may want to know: dim on a terminal."""
    Console(stderr=True).print(Text(f"windtunnel: {text}", style="dim"), soft_wrap=True)


def print_plugin_traceback(error: BaseException) -> None:
    """The traceback of a user's own code, without the frames that called or imported it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace, file=sys.stderr)


def time_in_words(time_ms: float) -> str:
    """A virtual time, as coarse as a person wants to read it."""
    if time_ms < 1000.0:
        return f"{time_ms:.0f} ms"
    seconds = time_ms / 1000.0
    if seconds < 120.0:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
