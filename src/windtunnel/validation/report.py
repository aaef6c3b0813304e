"""What `windtunnel validate` finds, in sections of rows: for a terminal as tables, for programs as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from windtunnel.validation.errors import REALITY, ErrorSummary


@dataclass
class Section:
    """One set of measurements.

    Attributes:
        title: what was measured, and on what. columns: headings; rows: cells.
        notes: what a reader must know about it.
        values: the same rows for programs.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: list[dict[str, object]] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        return {"title": self.title, "rows": self.values, "notes": self.notes}


def percent(value: float, signed: bool = False) -> str:
    """A share as text."""
    return f"{value * 100:+.1f} %" if signed else f"{value * 100:.1f} %"


def summary_values(summary: ErrorSummary) -> dict[str, object]:
    """A summary for programs, as fractions."""
    return {
        "count": summary.count,
        "median": round(summary.median, 6),
        "p90": round(summary.p90, 6),
        "mean": round(summary.mean, 6),
        "largest": round(summary.largest, 6),
        "bias": round(summary.bias, 6),
    }


def print_sections(sections: list[Section], console: Console) -> None:
    """All of them, and what no model could be better than."""
    for section in sections:
        console.print(section.title, style="bold", highlight=False, soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD)
        for column in section.columns:
            table.add_column(column, justify="left" if column in ("what", "group", "run", "priced by") else "right")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
        for note in section.notes:
            console.print(note, soft_wrap=True, highlight=False)
        console.print()
    console.print(
        f"Two real runs of the same differ by a median of {percent(REALITY['tpot'])} in TPOT and "
        f"{percent(REALITY['ttft'])} in TTFT.",
        highlight=False,
    )
