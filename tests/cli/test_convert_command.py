"""`windtunnel convert`: what it writes, what it says is lost, and the mistakes of its users."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from windtunnel.cli import main
from windtunnel.workload.traces import load_trace

SAMPLE = "sample:mooncake-conversation"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2], "type": "chat"},
        {"timestamp": 100, "input_length": 512, "output_length": 3, "hash_ids": [1], "session_id": "s"},
        {
            "timestamp": 400,
            "input_length": 700,
            "output_length": 3,
            "hash_ids": [1, 3],
            "session_id": "s",
            "priority": 1,
        },
    ]
    Path("trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "trace.jsonl"


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("windtunnel: ") for line in lines)
    return [line.removeprefix("windtunnel: ") for line in lines]


def test_it_says_what_is_lost_with_counts(trace: str, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", trace, "out.csv", "--to", "vidur"]) == 0
    assert Path("out.csv").read_text().splitlines() == [
        "arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens",
        "0.0,600,3,603",
        "0.1,512,3,515",
        "0.4,700,3,703",
    ]
    assert said(capsys) == [
        "lost: 1,024 of 1,812 prompt tokens would be served by an infinite cache, and no longer are: the format has "
        "lengths only",
        "lost: 1 of 3 requests follow others, which the format cannot say: they are sent at the time that the delays "
        "before them add up to",
        "lost: 1 of 3 requests have a priority or policy class, which is not kept: the format has none",
        "lost: fields that mean nothing here, with how many of 3 rows have them: type (1)",
        "3 requests written to out.csv as vidur",
    ]


def test_the_format_of_the_input_is_the_default(trace: str, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", trace, "out.jsonl", "--limit", "2"]) == 0
    assert Path("out.jsonl").read_text().splitlines() == [
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}',
        '{"timestamp": 100, "input_length": 512, "output_length": 3, "hash_ids": [1], "session_id": "s"}',
    ]


def test_the_sample_written_as_it_is_is_the_same_bytes(tmp_path: Path):
    out = tmp_path / "out.jsonl"
    assert main(["convert", SAMPLE, str(out)]) == 0
    from windtunnel import data

    original = (Path(data.__file__).parent / "mooncake_conversation_sample.jsonl").read_bytes()
    first = json.loads(original.splitlines()[0])["timestamp"]
    assert first == 0
    assert out.read_bytes() == original


def test_gz_is_packed_the_same_way_every_time(trace: str):
    assert main(["convert", trace, "a.jsonl.gz"]) == 0
    assert main(["convert", trace, "b.jsonl.gz"]) == 0
    assert main(["convert", trace, "c.jsonl"]) == 0
    assert Path("a.jsonl.gz").read_bytes() == Path("b.jsonl.gz").read_bytes()
    assert gzip.decompress(Path("a.jsonl.gz").read_bytes()) == Path("c.jsonl").read_bytes()


def test_standard_output_has_the_rows_alone(trace: str, capfd: pytest.CaptureFixture[str]):
    assert main(["convert", trace, "-", "--to", "plain"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "arrival_ms,input,output,session",
        "0,600,3,",
        "100,512,3,s",
        "400,700,3,s",
    ]


def test_several_files_are_one_trace(trace: str, capsys: pytest.CaptureFixture[str]):
    Path("more.csv").write_text("arrival_s,input,output\n1,3,4\n2,5,6\n")
    Path("most.csv").write_text("arrival_s,input,output\n0,1,2\n")
    assert main(["convert", "more.csv", "most.csv", "out.csv", "--start", "1ms", "--duration", "1s"]) == 0
    assert said(capsys)[-1] == "1 of 3 requests written to out.csv as plain"
    assert Path("out.csv").read_text() == "arrival_ms,input,output\n999,3,4\n"


def test_rates_and_spreading(trace: str, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", SAMPLE, "out.jsonl", "--spread", "--rate", "10"]) == 0
    times = load_trace("out.jsonl").time_ms
    assert len(times) / (max(times) - min(times)) * 1000 == pytest.approx(10)
    assert len(set(times)) == len(times)
    assert "347 of 394 requests spread" in said(capsys)[0]


def test_how_to_read_the_file_is_said_where_it_has_to_be(trace: str, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", trace, "out.jsonl", "--block-size", "256"]) == 0
    assert said(capsys)[-1].endswith("as mooncake; read it with --trace-block-size 256")
    assert main(["convert", trace, "out.jsonl", "--to", "vllm-timed-trace"]) == 0
    assert said(capsys)[-1].endswith("; read it with --format vllm-timed-trace")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing", "out"], "missing: no such file"),
        (["trace.jsonl", "trace.jsonl"], "'trace.jsonl' is read by this command and would be overwritten"),
        (["trace.jsonl", "no/out"], "cannot write 'no/out': no directory 'no'"),
        (["trace.jsonl", "out", "--to", "vidor"], "--to: unknown trace format 'vidor'; did you mean 'vidur'?"),
        (
            ["trace.jsonl", "out", "--to", "sharegpt"],
            "--to: sharegpt is not written: its rows are texts; ",
        ),
        (["trace.jsonl", "out", "--start", "5"], "--start: found '5', expected a time with its unit, such as 500ms"),
        (["trace.jsonl", "out", "--start", "2h"], "nothing is left: 2 sessions arrive from 0 to 100 ms, none of them"),
        (["trace.jsonl", "out", "--sample", "1.5"], "--sample: found 1.5, expected a number above 0, at most 1"),
        (["trace.jsonl", "out", "--rate", "nan"], "--rate: found nan, expected a number above 0"),
        (["trace.jsonl", "out", "--speedup", "2", "--rate", "2"], "give either --speedup or --rate, not both"),
        (["trace.jsonl", "out", "--seed", "2"], "--seed: has no effect without --sample"),
        (["trace.jsonl", "out", "--to", "azure", "--block-size", "4"], "--block-size: has no effect on azure"),
        (["trace.jsonl", "out", "--on-bad-row", "skipp"], "--on-bad-row: found 'skipp'; did you mean 'skip'?"),
        (["trace.jsonl", "out", "--to", "mooncake-delta"], "1 of 1 later turns do not begin with the turn before"),
        (["trace.jsonl", "out", "--too", "azure"], "unknown option '--too': did you mean '--to'?"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, trace: str, capsys: pytest.CaptureFixture[str]
):
    before = Path(trace).read_bytes()
    assert main(["convert", *arguments]) == 2
    [line] = said(capsys)
    assert message in line
    assert line.startswith("error: ")
    assert [path.name for path in Path().iterdir()] == ["trace.jsonl"]
    assert Path(trace).read_bytes() == before


def test_a_trace_without_arrivals_has_no_window(trace: str, capsys: pytest.CaptureFixture[str]):
    Path("lengths.csv").write_text("input,output\n3,4\n")
    assert main(["convert", "lengths.csv", "out.csv", "--start", "1s"]) == 2
    assert "--start: has no effect: the file has no arrival times" in said(capsys)[0]
    assert main(["convert", "lengths.csv", "out.csv"]) == 0
    assert Path("out.csv").read_text() == "input,output\n3,4\n"


def test_what_cannot_be_written_leaves_an_older_file_alone(trace: str):
    Path("out").write_text("precious")
    assert main(["convert", trace, "out", "--to", "mooncake-delta"]) == 2
    assert Path("out").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "0"], "--limit: found 0, expected at least 1 row"),
        (["--trace-block-size", "0"], "--trace-block-size: found 0, expected from 1 to 1048576 tokens"),
        (["--time-unit", "s"], "--time-unit: has no effect on the trace format mooncake"),
        (["--speedup", "1e-300"], "--speedup: 1e-300 stretches the trace beyond 9007199254740992 ms, where "),
        (["--rate", "1e-300"], "--rate: 1e-300 stretches the trace beyond "),
    ],
)  # fmt: skip
def test_options_of_a_reader_are_named_by_their_flags_and_nothing_unreadable_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys
):
    row = '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n'
    (tmp_path / "t.jsonl").write_text(row + row.replace("0", "9", 1))
    assert main(["convert", str(tmp_path / "t.jsonl"), str(tmp_path / "o.jsonl"), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"windtunnel: error: {message}")
    assert not (tmp_path / "o.jsonl").exists()
