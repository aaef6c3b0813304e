"""The facts and findings of a trace on a terminal, as plain text where it is none.

Decides the layout only. Numbers are never cut; lines are wrapped between words, bars are scaled to the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from windtunnel.inspection.facts import Lengths, TraceFacts
from windtunnel.inspection.lint import UNREAD, Finding

if TYPE_CHECKING:
    from rich.console import Console

WIDEST_BAR = 50
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def print_inspection(facts: TraceFacts, findings: Sequence[Finding], console: Console) -> None:
    """Print everything; the width of `console` decides the layout."""

    def show(line: str, style: str | None = None) -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    show(f"{facts.source} | {facts.loading.format}", "bold")
    lines = fact_lines(facts)
    indent = max(len(name) for name, _ in lines) + 2
    for name, value in lines:
        for line in wrap(value, max(console.width - indent, 20), break_long_words=False, break_on_hyphens=False):
            show(f"{name:<{indent}}{line}")
            name = ""
    for title, lengths in (("Input tokens", facts.input_tokens), ("Output tokens", facts.output_tokens)):
        show("")
        show(title, "bold")
        show(_statistics(lengths))
        for line in histogram_lines(lengths, console.width, ascii_only=console.options.ascii_only):
            show(line)
    show("")
    show("Lint" if findings else "Lint: nothing to say", "bold")
    unread = [finding for finding in findings if finding.name == UNREAD]
    for finding in findings:
        if finding.name == UNREAD:
            continue
        text = f"{finding.level}: {finding.count:,} of {finding.of:,}: {finding.name}: {finding.message}"
        for number, line in enumerate(wrap(text, console.width - 2, break_long_words=False, break_on_hyphens=False)):
            show(line if not number else f"  {line}", _STYLES[finding.level])
    if unread:
        names = ", ".join(f"{finding.message} ({finding.count:,})" for finding in unread)
        for number, line in enumerate(wrap(f"note: not read, of {unread[0].of:,} rows: {names}", console.width - 2)):
            show(line if not number else f"  {line}", _STYLES["note"])


def fact_lines(facts: TraceFacts) -> list[tuple[str, str]]:
    """Name and value of everything that is one line."""
    loading = facts.loading
    arrivals = facts.arrivals
    later = facts.requests - arrivals.count
    lines = [
        ("Rows", f"{loading.rows:,} = {loading.loaded_rows:,} loaded + {loading.skipped_rows:,} left out"),
        (
            "Requests",
            f"{facts.requests:,} = {arrivals.stated:,} with an arrival + {arrivals.count - arrivals.stated:,} without "
            f"+ {later:,} that follow others",
        ),
    ]
    if loading.block_size is not None and loading.hash_rows:
        short = loading.clipped_to_hashes
        exact = loading.hash_rows - short - loading.surplus_hashes
        lines.append(
            (
                "Hash ids",
                f"{loading.hash_rows:,} rows = {exact:,} with one for each {loading.block_size} tokens + {short:,} "
                f"with too few + {loading.surplus_hashes:,} with too many",
            )
        )
    if arrivals.span_ms > 0.0:
        lines += [
            ("Time span", f"{arrivals.span_ms / 1000.0:,.3f} s"),
            (
                "Instants",
                f"{arrivals.instants:,} distinct for {arrivals.count:,} arrivals, up to {arrivals.most_at_once:,} at "
                f"once, {arrivals.median_step_ms:,.6g} ms apart in the middle",
            ),
            ("Rate", f"{arrivals.rate_per_s:,.3f} requests/s"),
            (
                "Burstiness",
                f"{arrivals.dispersion:,.2f} variance over mean in windows of 1 s, {arrivals.gap_cv:,.2f} coefficient "
                "of variation of gaps (Poisson: 1 and 1)",
            ),
        ]
    sessions = f"{facts.sessions:,}, {facts.multi_turn_sessions:,} of them with several turns"
    if facts.multi_turn_sessions:
        sessions += f": {facts.mean_turns:,.2f} on average, up to {facts.max_turns:,}"
    lines.append(("Sessions", sessions))
    if later:
        waiting = f", {facts.waiting_requests:,} of them wait for others by name" if facts.waiting_requests else ""
        lines.append(
            ("Following", f"{later:,} requests, {facts.median_delay_ms:,.6g} ms after the end in the middle{waiting}")
        )
    if facts.accumulates:
        lines.append(("Prompts", "accumulate the turns and outputs before them"))
    sharing = facts.sharing
    unit = "tokens" if sharing.block_size == 1 else f"blocks of {sharing.block_size} tokens"
    lines += [
        (
            "Prefix sharing",
            f"{sharing.hit_ratio:.2%} of {sharing.blocks:,} {unit} would be served by an infinite cache, "
            f"{sharing.blocks - sharing.shared_blocks:,} are unique",
        ),
        ("Longest context", f"{facts.longest_context_tokens:,} tokens"),
    ]
    if facts.max_model_len is not None and facts.overlong_requests is not None:
        fitting = facts.requests - facts.overlong_requests
        lines.append(
            (
                f"Below {facts.max_model_len:,}",
                f"{facts.requests:,} prompts = {fitting:,} below + {facts.overlong_requests:,} that reach it",
            )
        )
    return lines


def histogram_lines(lengths: Lengths, width: int, *, ascii_only: bool = False) -> list[str]:
    """One line a bin: its bounds, a bar, and the number of requests in it."""
    rows = [("0", lengths.zeros)] if lengths.zeros else []
    rows += [
        (f"{first:,}" if first == last else f"{first:,}-{last:,}", count) for first, last, count in lengths.histogram
    ]
    if not rows:
        return []
    name_width = max(len(name) for name, _ in rows)
    count_width = max(len(f"{count:,}") for _, count in rows)
    most = max(count for _, count in rows)
    bar_width = max(1, min(WIDEST_BAR, width - name_width - count_width - 4))
    bar = "#" if ascii_only else "█"
    lines = []
    for name, count in rows:
        length = max(round(count / most * bar_width), count > 0)
        lines.append(f"{name:>{name_width}}  {count:>{count_width},}  {bar * length}".rstrip())
    return lines


def _statistics(lengths: Lengths) -> str:
    names = {"mean": "mean", "min": "min", "median": "p50", "p90": "p90", "p99": "p99", "max": "max"}
    return "  ".join(f"{label} {lengths.statistics[key]:,.6g}" for key, label in names.items())
