"""The tables on a terminal: latencies laid out as AIPerf does, then counts, throughputs and cache use.

Numbers are never broken or cut. Where the width does not hold all columns, row names get short; then columns go,
least telling first, and a line under the table names them. A statistic without samples shows as a dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from windtunnel.report.classes import summarize_classes
from windtunnel.report.deployment import deployment_lines
from windtunnel.report.document import SimulationResult, Summary, summarize_result
from windtunnel.report.metrics import TERMINAL_STATES, class_limits
from windtunnel.report.trust import trust_facts, trust_lines

if TYPE_CHECKING:
    from rich.console import Console

# Summary key, row name, and its short form.
_ROWS = (
    ("ttft_ms", "Time to First Token (ms)", "TTFT (ms)"),
    ("ttst_ms", "Time to Second Token (ms)", "TTST (ms)"),
    ("e2e_latency_ms", "Request Latency (ms)", "E2E (ms)"),
    ("itl_ms", "Inter Token Latency, every gap (ms)", "ITL (ms)"),
    ("tpot_ms", "Time Per Output Token (ms) *", "TPOT (ms) *"),
    ("output_token_throughput_per_user", "Output Tokens/s Per User", "tok/s/user"),
)
_TPOT_NOTE = '* TPOT, the mean gap of each request, is what AIPerf calls "inter token latency".'

# Summary key and heading.
_COLUMNS = (
    ("mean", "avg"),
    ("min", "min"),
    ("median", "p50"),
    ("p75", "p75"),
    ("p90", "p90"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("max", "max"),
    ("std", "std"),
)
# Of the table of classes.
_CLASS_COLUMNS = (
    ("num_requests", "requests"),
    ("completed_requests", "completed"),
    ("goodput_completed_requests", "within SLO"),
    ("goodput_request_throughput_rps", "goodput/s"),
    ("output_throughput_tok_s", "output tok/s"),
    ("median_ttft_ms", "TTFT p50"),
    ("p99_ttft_ms", "TTFT p99"),
    ("median_tpot_ms", "TPOT p50"),
    ("p99_e2e_latency_ms", "E2E p99 (ms)"),
)

_DROPPED_FIRST = ("p75", "std", "p95", "min", "p90", "max", "p50")


def print_tables(result: SimulationResult, console: Console, summary: Summary | None = None) -> None:
    """Print the report of a finished or interrupted simulation, as plain text where `console` is no terminal.

    Args:
        result: the simulation.
        console: where to; its width decides the layout.
        summary: `summarize_result` of it, if the caller has it already.
    """
    if summary is None:
        summary = summarize_result(result)

    def print_line(line: str, style: str | None = None) -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def print_text(text: str, style: str) -> None:
        for line in wrap(text, console.width, break_long_words=False, break_on_hyphens=False):
            print_line(line, style)

    if result.record.interrupted:
        print_text(_interruption(result, summary), "bold yellow")
    print_text(_title(result), "bold")
    header, *rows = latency_lines(summary, console.width)
    rule = ("-" if console.options.ascii_only else "─") * max(map(len, (header, *rows)))
    print_line(rule, "dim")
    print_line(header, "bold")
    print_line(rule, "dim")
    for row in rows:
        print_line(row)
    print_line(rule, "dim")
    print_text(_notes(header), "dim")
    print_line("")
    for line in fact_lines(result, summary, console.width):
        print_line(line)
    if result.workload.class_names:
        print_line("")
        header, *rows = class_lines(result, console.width)
        print_line(header, "bold")
        for row in rows:
            print_line(row)


def latency_lines(summary: Summary, width: int) -> list[str]:
    """A heading and one line a latency, right-aligned; at most `width` wide as long as two columns allow that."""
    statistics = _statistics(summary)
    columns = list(_COLUMNS)
    lines = _align([[name for _, name, _ in _ROWS], *statistics], columns)
    if len(lines[0]) <= width:
        return lines
    names = [short for _, _, short in _ROWS]
    for dropped in (None, *_DROPPED_FIRST):
        shown = [i for i, (_, heading) in enumerate(columns) if heading != dropped]
        columns = [columns[i] for i in shown]
        statistics = [statistics[i] for i in shown]
        lines = _align([names, *statistics], columns)
        if len(lines[0]) <= width:
            break
    return lines


def fact_lines(result: SimulationResult, summary: Summary, width: int) -> list[str]:
    """Name and value of everything that is one number, wrapped between words to `width`."""
    facts = _facts(summary)
    if result.record.requests.reasons:
        facts.insert(1, ("Why", _first_reason(result)))
    facts += deployment_lines(result.config)
    facts += trust_lines(result.record, trust_facts(result.config, result.workload, result.record))
    if result.config.output.run_info and result.wall_time_ms > 0.0:
        facts.append(("Simulated in", _speed(result, summary)))
    indent = max(len(name) for name, _ in facts) + 2
    lines: list[str] = []
    for name, value in facts:
        lines += wrap(
            value,
            width,
            initial_indent=name.ljust(indent),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def class_lines(result: SimulationResult, width: int) -> list[str]:
    """A heading and a line for each class of clients; columns go from the right where `width` does not hold them."""
    limits = class_limits(result.workload, result.config)
    classes = summarize_classes(result.workload, result.record, result.config.slo, limits)
    columns = [(key, heading) for key, heading in _CLASS_COLUMNS if all(key in one for one in classes.values())]
    cells = [
        [f"{one[key]:,}" if isinstance(one[key], int) else _number(one[key]) for one in classes.values()]
        for key, _ in columns
    ]
    lines = _align([list(classes), *cells], columns, corner="Class")
    while len(lines[0]) > width and len(cells) > 1:
        columns.pop()
        cells.pop()
        lines = _align([list(classes), *cells], columns, corner="Class")
    return lines


def _statistics(summary: Summary) -> list[list[str]]:
    """The cells, column by column."""
    return [
        [_number(summary[f"{key}_{metric}"]) if summary[f"max_{metric}"] else "-" for metric, _, _ in _ROWS]
        for key, _ in _COLUMNS
    ]


def _align(cells: Sequence[Sequence[str]], columns: Sequence[tuple[str, str]], corner: str = "") -> list[str]:
    """Lines of the table from its cells, column by column, the row names first; `corner` is the heading of those."""
    names, *statistics = cells
    padded = [[name.ljust(max(map(len, (corner, *names)))) for name in (corner, *names)]]
    for (_, heading), column in zip(columns, statistics, strict=True):
        size = max(len(heading), *map(len, column))
        padded.append([cell.rjust(size) for cell in (heading, *column)])
    return ["  ".join(line) for line in zip(*padded, strict=True)]


def _title(result: SimulationResult) -> str:
    config = result.config
    cluster = config.cluster
    workers = cluster.workers
    deployment = f"{config.engine.kind}, 1 worker"
    if cluster.is_split:
        deployment = (
            f"{config.engine.kind}, {cluster.prefill_workers} prefill + {cluster.decode_workers} decode workers, "
            f"{cluster.router.kind}"
        )
    elif workers > 1:
        deployment = f"{config.engine.kind}, {workers} workers, {config.cluster.router.kind}"
    return f"Windtunnel | {result.workload.source} | {deployment} | {config.timing.kind} timing"


def _interruption(result: SimulationResult, summary: Summary) -> str:
    return (
        f"PARTIAL REPORT: stopped early ({result.record.interrupted}) at {result.record.end_ms / 1000.0:,.2f} s of "
        f"virtual time, with {summary['unfinished_requests']:,} unfinished and "
        f"{summary['not_arrived_requests']:,} not yet arrived."
    )


def _notes(header: str) -> str:
    shown = header.split()
    missing = [heading for _, heading in _COLUMNS if heading not in shown]
    return f"{_TPOT_NOTE} Not shown at this width: {', '.join(missing)}." if missing else _TPOT_NOTE


def _facts(summary: Summary) -> list[tuple[str, str]]:
    counts = [
        f"{summary[f'{status.label}_requests']:,} {status.label.replace('_', ' ')}"
        for status in TERMINAL_STATES
        if summary[f"{status.label}_requests"] or status is TERMINAL_STATES[0]
    ]
    facts = [
        ("Requests", ", ".join(counts)),
        ("Duration", f"{_number(summary['duration_ms'] / 1000.0)} s"),
        ("Request throughput", f"{_number(summary['request_throughput_rps'])} requests/s"),
        (
            "Token throughput",
            f"{_number(summary['input_throughput_tok_s'])} input + "
            f"{_number(summary['output_throughput_tok_s'])} output = "
            f"{_number(summary['total_throughput_tok_s'])} tok/s",
        ),
        (
            "Prefix cache hits",
            f"{summary['prefix_cache_hit_ratio']:.2%} of input tokens at first admission, "
            f"{summary['prefix_cache_reused_ratio']:.2%} at best",
        ),
        ("Preemptions", f"{summary['preemptions']:,}"),
    ]
    if "goodput_completed_requests" in summary:
        good = summary["goodput_completed_requests"]
        share = good / max(summary["completed_requests"], 1)
        facts.append(
            (
                "Goodput",
                f"{good:,} requests within the SLO ({share:.2%} of completed), "
                f"{_number(summary['goodput_request_throughput_rps'])} requests/s, "
                f"{_number(summary['goodput_output_throughput_tok_s'])} output tok/s",
            )
        )
    if "offload_lookups" in summary:
        shares = [
            f"{summary[f'{tier}_hit_ratio']:.2%} from {tier.replace('_', ' ')}"
            for tier in ("host", "disk", "object_store")
            if f"{tier}_hit_ratio" in summary
        ]
        facts.append(
            (
                "KV offload",
                f"{', '.join(shares)} of the tokens that GPU memory lacked; {summary['restored_requests']:,} "
                f"requests waited for KV, {_number(summary['mean_transfer_ms'])} ms on average; "
                f"{summary['offload_fallbacks']:,} fallbacks",
            )
        )
    facts.append(("GPU-hours", f"{summary['gpu_hours']:,.4f}"))
    return facts


def _first_reason(result: SimulationResult) -> str:
    """Why the first request that was rejected, cancelled or failed was, and how many more have a reason."""
    reasons = result.record.requests.reasons
    number = min(reasons)
    more = f"; {len(reasons) - 1:,} more, in the file of requests" if len(reasons) > 1 else ""
    return f"request {result.workload.request_id(number)}: {reasons[number]}{more}"


def _speed(result: SimulationResult, summary: Summary) -> str:
    wall_ms = result.wall_time_ms
    arrived = summary["num_requests"] - summary["not_arrived_requests"]
    return (
        f"{_number(wall_ms / 1000.0)} s, {arrived / (wall_ms / 1000.0):,.0f} requests/s, "
        f"{result.record.end_ms / wall_ms:,.1f} times as fast as real time"
    )


def _number(value: float) -> str:
    return f"{value:,.2f}"
