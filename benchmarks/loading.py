"""Measures what reading traces costs, in time and memory, and checks the claims about it.

Everything runs in turn on this machine, each in a process of its own, and the verdict is on ratios. Times are those of
the processor, which a busy machine changes less than those of the clock. What is measured is in README.md.
`python benchmarks/loading.py` takes about a quarter of an hour, most of it for `streaming`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay import TRACE, Row, say, table

LOAD = """
import json, resource, sys, time
from windtunnel.workload.traces import load_trace
started = time.process_time()
workload = load_trace(sys.argv[1])
load_s = time.process_time() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
started = time.process_time()
with open(sys.argv[1], "rb") as file:
    for line in file:
        json.loads(line)
print(json.dumps({"load_s": load_s, "json_s": time.process_time() - started, "peak_mb": peak}))
"""

RUN = """
import json, resource, sys, time
from windtunnel.assembly import simulate
from windtunnel.config import Config
from windtunnel.workload.traces import load_trace
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
engine = {"num_gpu_blocks": int(sys.argv[2]), "async_scheduling": False}
cluster = {"workers": int(sys.argv[3])}
config = Config.model_validate({"workload": {"path": [sys.argv[1]]}, "engine": engine, "cluster": cluster})
started = time.process_time()
workload = load_trace(sys.argv[1])
load_s = time.process_time() - started
started = time.process_time()
result = simulate(config, workload=workload)
run_s = time.process_time() - started
passes = sum(len(columns.end_ms) for columns in result.record.passes)
print(json.dumps({"load_s": load_s, "run_s": run_s, "peak_mb": peak(), "passes": passes}))
"""


def measured(program: str, *arguments: object) -> dict[str, Any]:
    """What a program in a process of its own prints about itself."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(process.stdout)
    return found


def write_rows(path: Path, requests: int, *, gap_ms: float, blocks: int, shuffled: bool = False) -> Path:
    """Rows of Mooncake form: Poisson arrivals, prompts that share a first block of a thousand."""
    dice = random.Random(1)
    now_ms = 0.0
    fresh = 1000
    with path.open("w") as file:
        for _ in range(requests):
            now_ms += dice.expovariate(1.0 / gap_ms)
            count = dice.randint(1, blocks)
            ids = [dice.randrange(1000), *range(fresh, fresh + count - 1)]
            fresh += count - 1
            at_ms = dice.randrange(int(requests * gap_ms)) if shuffled else int(now_ms)
            length = count * 512 - dice.randrange(448)
            file.write(
                f'{{"timestamp": {at_ms}, "input_length": {length}, "output_length": {dice.randint(1, 16)}, '
                f'"hash_ids": {ids}}}\n'
            )
    return path


def share_of_replay(scratch: Path, trace: Path, repeats: int) -> list[Row]:
    """Loading and validating the Mooncake conversation trace, beside its replay."""
    samples = [measured(RUN, trace, 16384, 4) for _ in range(repeats)]
    share = sorted(sample["load_s"] / sample["run_s"] for sample in samples)[repeats // 2]
    last = samples[-1]
    return [Row("share", "load / replay", f"{last['load_s']:.3f} s", f"{last['run_s']:.2f} s", share, most=0.25)]


def million(scratch: Path, trace: Path, repeats: int) -> list[Row]:
    """A million rows, beside json.loads of each line in the same process."""
    path = write_rows(scratch / "million.jsonl", 1_000_000, gap_ms=20.0, blocks=5)
    samples = [measured(LOAD, path) for _ in range(repeats)]
    ratio = sorted(sample["json_s"] / sample["load_s"] for sample in samples)[repeats // 2]
    last = samples[-1]
    peak_mb = max(sample["peak_mb"] for sample in samples)
    return [
        Row("million", "json.loads / load", f"{last['load_s']:.2f} s", f"{last['json_s']:.2f} s", ratio, least=1.5),
        Row("million", "peak memory in MB", f"{peak_mb:.0f} MB", "", peak_mb, most=300),
    ]


def sparse(scratch: Path, trace: Path, repeats: int) -> list[Row]:
    """Sessions of one turn, each of which has ended long before the next begins."""
    paths = [write_rows(scratch / f"{count}.jsonl", count, gap_ms=1000.0, blocks=1) for count in (100_000, 200_000)]
    samples = [[measured(RUN, path, 1024, 1) for path in paths] for _ in range(repeats)]
    a, b = (min(sample[place]["run_s"] for sample in samples) for place in (0, 1))
    return [Row("sparse", "200,000 / 100,000", f"{b:.2f} s", f"{a:.2f} s", b / a, most=2.3)]


def write_short_rows(path: Path, requests: int, *, shuffled: bool) -> Path:
    """Requests of 64 prompt and 2 output tokens, 2,000 a second."""
    dice = random.Random(1)
    now_ms = 0.0
    with path.open("w") as file:
        for number in range(requests):
            now_ms += dice.expovariate(2.0)
            at_ms = dice.randrange(requests // 2) if shuffled else int(now_ms)
            file.write(f'{{"timestamp": {at_ms}, "input_length": 64, "output_length": 2, "hash_ids": [{number}]}}\n')
    return path


def peak_of(command: list[str]) -> float:
    """Largest private memory of a command in MB, looked at five times a second; Linux only."""
    process = subprocess.Popen(command)
    peak_kb = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak_kb = max(
            peak_kb, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")), 0
        )
        time.sleep(0.2)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak_kb * 1024 / 1e6


def streaming(scratch: Path, trace: Path, repeats: int) -> list[Row]:
    """`windtunnel run` on a million rows and three, in order and out of order: memory but for what is documented."""
    rows = []
    report = scratch / "report.json"
    for name, shuffled in (("in order", False), ("out of order", True)):
        peaks = []
        for count in (1_000_000, 3_000_000):
            path = write_short_rows(scratch / "long.jsonl", count, shuffled=shuffled)
            options = ("--workers", "4", "--set", "engine.num_gpu_blocks=16384", "--quiet", "--report", str(report))
            peak_mb = peak_of([sys.executable, "-m", "windtunnel", "run", str(path), *options])
            path.unlink()
            passes = json.loads(report.read_text())["run"]["engine_passes"]
            peaks.append(peak_mb - (8 * passes + 2 * count) / 1e6)
            say(f"streaming {name}: {count:,} rows, peak {peak_mb:.0f} MB, {passes:,} passes")
        growth = peaks[1] / peaks[0]
        rows.append(Row("streaming", f"memory of 3 / 1 million rows {name}", f"{peaks[1]:.0f} MB",
                        f"{peaks[0]:.0f} MB", growth, most=1.2))  # fmt: skip
    return rows


CASES: dict[str, Callable[[Path, Path, int], list[Row]]] = {
    "share": share_of_replay,
    "million": million,
    "sparse": sparse,
    "streaming": streaming,
}


def main() -> int:
    shared = Path(os.environ.get("WINDTUNNEL_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=shared / TRACE, help="the Mooncake conversation trace")
    parser.add_argument("--only", action="append", choices=CASES, help="run this case; may be repeated")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (3); of streaming, one")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats: expected 1 or more")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="windtunnel-bench-") as scratch:
        for name in options.only or CASES:
            say(name)
            rows += CASES[name](Path(scratch), options.trace, options.repeats)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(table(rows))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
