import io
import re

import pytest
from handmade import HandmadeResult, empty_result, four_outputs
from rich.console import Console

from windtunnel.config.schema import ClusterConfig, Config, OutputConfig, SloConfig
from windtunnel.record.columns import Status
from windtunnel.report.table import print_tables

NUMBER = r"\d{1,3}(?:,\d{3})*\.\d\d"


def printed(result: HandmadeResult, width: int = 140, **options) -> str:
    file = io.StringIO()
    print_tables(result, Console(file=file, width=width, **options))
    return file.getvalue()


def slow_result() -> HandmadeResult:
    """Latencies of hundreds of seconds: the widest cells to expect."""
    result = four_outputs()
    requests = result.record.requests
    for request in range(4):
        requests.arrival_ms[request] = -987_654.0
    return result


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return re.findall(NUMBER, line)


def test_wide_table_has_all_statistics_of_all_latencies():
    text = printed(four_outputs())
    assert "avg" in text
    assert row(text, "Time to First Token (ms)") == ["56.80"] * 8 + ["0.00"]
    assert row(text, "Time to Second Token (ms)") == ["7.02"] * 8 + ["0.00"]
    assert row(text, "Request Latency (ms)") == [
        "78.15", "56.80", "73.73", "89.81", "100.93", "104.63", "107.60", "108.34", "20.01",
    ]  # fmt: skip
    assert row(text, "Inter Token Latency, every gap (ms)")[:2] == ["6.57", "6.17"]
    assert row(text, "Time Per Output Token (ms) *")[:2] == ["6.72", "6.44"]
    assert row(text, "Output Tokens/s Per User")[:2] == ["148.89", "142.37"]


def test_note_ties_tpot_to_the_name_aiperf_has_for_it():
    note = '* TPOT, the mean gap of each request, is what AIPerf calls "inter token latency".'
    assert note in printed(four_outputs()).splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 140])
@pytest.mark.parametrize("result", [four_outputs(), slow_result()], ids=["fast", "slow"])
def test_no_line_is_wider_than_the_terminal(result, width):
    lines = printed(result, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line != line.rstrip()]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_columns_are_right_aligned_under_their_heading(width):
    lines = printed(slow_result(), width).splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["avg"])
    ends = [match.end() for match in re.finditer(r"\S+", lines[start])]
    assert len(ends) >= 4
    for line in lines[start + 2 : start + 8]:
        assert [match.end() for match in re.finditer(rf"{NUMBER}(?= |$)", line)] == ends


def test_narrow_table_shortens_names_and_says_which_columns_are_missing():
    text = printed(slow_result(), 80)
    assert row(text, "TTFT (ms)")[0] == "987,710.80"
    header = next(line for line in text.splitlines() if line.split()[:1] == ["avg"]).split()
    (note,) = re.findall(r"Not shown at this width: (.*?)\.", " ".join(text.split()))
    assert sorted([*header, *note.split(", ")]) == sorted(
        ["avg", "min", "p50", "p75", "p90", "p95", "p99", "max", "std"]
    )
    assert {"avg", "p50", "p99"} <= set(header)


def test_terminal_too_narrow_for_any_table_gets_two_whole_columns():
    text = printed(slow_result(), 20)
    assert row(text, "TTFT (ms)") == ["987,710.80", "987,710.80"]


def test_title_names_the_workload_and_the_deployment():
    result = four_outputs()
    assert printed(result).splitlines()[0] == "Windtunnel | handmade | vllm, 1 worker | polynomial timing"
    result.config = Config(cluster=ClusterConfig(workers=4))
    assert printed(result).splitlines()[0] == "Windtunnel | handmade | vllm, 4 workers, round-robin | polynomial timing"


def test_latency_without_samples_is_a_dash():
    text = printed(empty_result(1))
    (line,) = [line for line in text.splitlines() if line.startswith("Inter Token Latency")]
    assert line.split()[-9:] == ["-"] * 9


def test_facts_below_the_table():
    result = four_outputs()
    result.record.requests.preemptions[3] = 1234
    result.record.requests.hit_tokens[0] = 512
    result.record.requests.reused_tokens[0] = 1024
    text = printed(result)
    facts = dict(line.split("  ", 1) for line in text.split("\n\n")[1].splitlines())
    assert {name: value.strip() for name, value in facts.items()} == {
        "Requests": "4 completed",
        "Duration": "0.11 s",
        "Request throughput": "36.92 requests/s",
        "Token throughput": "18,903.47 input + 156.91 output = 19,060.38 tok/s",
        "Prefix cache hits": "25.00% of input tokens at first admission, 50.00% at best",
        "Preemptions": "1,234",
        "GPU-hours": "0.0000",
        "Simulated in": "0.25 s, 16 requests/s, 0.4 times as fast as real time",
    }


def test_terminal_states_show_only_when_they_occur():
    result = empty_result(5)
    for request, status in enumerate((Status.REJECTED, Status.REJECTED, Status.CANCELLED, Status.UNFINISHED)):
        result.record.requests.status[request] = status
    assert "0 completed, 2 rejected, 1 cancelled, 1 unfinished, 1 not arrived\n" in printed(result)


def test_goodput_shows_when_a_limit_is_set():
    result = four_outputs()
    assert "Goodput" not in printed(result)
    result.config = Config(slo=SloConfig(itl_ms=6.6))
    assert "2 requests within the SLO (50.00% of completed), 18.46 requests/s, 92.30 output tok/s" in printed(result)


def test_interrupted_simulation_says_so_first():
    result = empty_result(3)
    result.record.requests.status[0] = Status.UNFINISHED
    result.record.interrupted = "time cap"
    result.record.end_ms = 2000.0
    assert printed(result).splitlines()[0] == (
        "PARTIAL REPORT: stopped early (time cap) at 2.00 s of virtual time, with 1 unfinished and 2 not yet arrived."
    )


def test_wall_clock_stays_out_without_run_info():
    result = four_outputs()
    result.config = Config(output=OutputConfig(run_info=False))
    result.wall_time_ms = 1.0
    first = printed(result)
    result.wall_time_ms = 99.0
    assert printed(result) == first
    assert "Simulated in" not in first


def test_plain_text_when_piped_and_styled_on_a_terminal():
    assert "\x1b" not in printed(four_outputs())
    assert "\x1b[1m" in printed(four_outputs(), force_terminal=True, color_system="standard", legacy_windows=False)


def test_name_in_brackets_is_not_markup():
    result = four_outputs()
    result.workload.source = "[bold]trace[/bold].jsonl"
    assert "| [bold]trace[/bold].jsonl |" in printed(result)
