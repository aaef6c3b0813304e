"""Rows of tables with commas: cells as the readers of this package take them, and names that fit into one.

Decides only how cells are quoted, and that a name with line breaks, or with space around it, cannot be written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from windtunnel.conversion.losses import Losses


def csv_line(cells: Sequence[object]) -> str:
    """Cells as one line, quoted where they have to be."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def fitting_names(names: Sequence[str | None], losses: Losses, things: str) -> list[str | None]:
    """The names that fit into a cell; numbers for the others, so that those are still told apart."""
    taken = {name for name in names if name is not None}
    result: list[str | None] = []
    changed = 0
    for number, name in enumerate(names):
        if name is not None and (not name or name != name.strip() or "\n" in name or "\r" in name):
            changed += 1
            name = f"{things}-{number}"
            while name in taken:
                name += "-"
            taken.add(name)
        result.append(name)
    losses.note(changed, len(names), f"{things} names", "have line breaks or space around them and are replaced")
    return result
