"""Measures Windtunnel beside the compiled simulator that it is compared with, and checks the performance claims.

Both programs run in turn on this machine (A B A B ...), each in a process of its own, and the verdict is on
ratios of neighbouring runs: they survive a busy machine better than times do. The peer is `python -m
dynamo.replay` of ai-dynamo, installed into a virtual environment beside this file, never a dependency.
What is measured, and why it is a fair comparison, is in README.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PEER_VERSION = "1.4.2"
PEER_DIR = Path(__file__).resolve().parent / ".peer"
TRACE = "traces/mooncake_conversation_trace.jsonl"
TRACE_BLOCK_TOKENS = 512
POOL_TOKENS = 1_048_576  # KV cache of a worker, whatever the block size
SMALL_POOL_TOKENS = 65_536  # one that is full, and evicts, after a few hundred short requests


@dataclass
class Deployment:
    """What both programs are told to simulate."""

    engine: str = "vllm"
    workers: int = 1
    block_size: int = 64
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    pool_tokens: int = POOL_TOKENS
    router: str = "round-robin"
    pools: tuple[int, int] | None = None  # workers that prefill, and that decode, instead of `workers` that do both

    @property
    def num_gpu_blocks(self) -> int:
        return self.pool_tokens // self.block_size

    def settings(self) -> dict[str, object]:
        """Our engine, as fields of its section."""
        if self.engine == "sglang":
            return {
                "page_size": self.block_size,
                "num_gpu_blocks": self.num_gpu_blocks,
                "max_running_requests": self.max_num_seqs,
                "max_prefill_tokens": 2 * self.max_num_batched_tokens,
                "chunked_prefill_size": self.max_num_batched_tokens,
                "enable_prefix_caching": "true",
                "overlap_schedule": "true",
            }
        return {
            "block_size": self.block_size,
            "num_gpu_blocks": self.num_gpu_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "enable_prefix_caching": "true",
            "enable_chunked_prefill": "true",
            "behaviour": "0.33",
            "async_scheduling": "false",
        }

    def peer_settings(self) -> dict[str, object]:
        """The peer's, as its engine arguments."""
        own: dict[str, object] = {"engine_type": self.engine, "block_size": self.block_size}
        own |= {"num_gpu_blocks": self.num_gpu_blocks, "enable_prefix_caching": True}
        if self.engine == "sglang":
            sglang = {
                "page_size": self.block_size,
                "max_prefill_tokens": 2 * self.max_num_batched_tokens,
                "chunked_prefill_size": self.max_num_batched_tokens,
            }
            return own | {"max_num_seqs": self.max_num_seqs, "sglang": sglang}
        own |= {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens}
        return own | {"enable_chunked_prefill": True}


PEER_ROUTERS = {"round-robin": "round_robin", "kv": "kv_router"}


@dataclass
class Sample:
    """One run of one program: its own simulation time, and the whole process as the operating system saw it."""

    program: str
    wall_ms: float
    process_s: float
    peak_rss_mb: float
    completed_requests: int
    output_tokens: int
    run: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One line of the result: a measured value, and the least or most it may be; neither for information."""

    case: str
    what: str
    ours: str
    other: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def target(self) -> str:
        if self.least is not None:
            return f">= {self.least:g}"
        return "" if self.most is None else f"<= {self.most:g}"

    @property
    def passed(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)


# ---------------------------------------------------------------------------------------------- the two programs


def measured(command: Sequence[str | Path], scratch: Path) -> tuple[float, float]:
    """Run `command`; its seconds and peak resident MB.

    Linux counts the memory of the parent at the fork into the child's peak, so this process must stay small:
    it never holds a trace.
    """
    log = scratch / "log"
    start = time.perf_counter()
    quiet = {
        **os.environ,
        "DYN_LOG": "error",
    }  # or the peer logs a line a request, and spends a third of its time on it
    with log.open("w") as sink:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=sink, stderr=subprocess.STDOUT, cwd=scratch, env=quiet
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(errors="replace")[-2000:]
        raise SystemExit(f"exit code {process.returncode} of: {' '.join(map(str, command))}\n{tail}")
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return seconds, kilobytes / 1024


def windtunnel(scratch: Path, load: Sequence[str | Path], deployment: Deployment, concurrency: int = 0) -> Sample:
    """Simulate `load` (trace files, or the flags of a synthetic load) with per-request records."""
    report = scratch / "windtunnel.json"
    command: list[str | Path] = [sys.executable, "-m", "windtunnel", "run", *load, "--engine", deployment.engine]
    if deployment.pools is None:
        command += ["--workers", str(deployment.workers)]
    else:
        command += ["--prefill-workers", str(deployment.pools[0]), "--decode-workers", str(deployment.pools[1])]
    command += ["--router", deployment.router, "--timing", "polynomial"]
    for name, value in deployment.settings().items():
        command += ["--set", f"engine.{name}={value}"]
    command += ["--report", report, "--requests-out", scratch / "windtunnel.jsonl"]
    if concurrency:
        command += ["--concurrency", str(concurrency)]
    seconds, rss = measured(command, scratch)
    result = json.loads(report.read_text())
    summary, run = result["summary"], result["run"]
    served = summary["completed_requests"], summary["total_output_tokens"]
    return Sample("windtunnel", run["wall_time_ms"], seconds, rss, *served, run)


def peer(scratch: Path, trace: Path, deployment: Deployment, concurrency: int = 0) -> Sample:
    """The same with the peer; its report has the wall time of its compiled part."""
    report = scratch / "peer.json"
    command: list[str | Path] = [peer_python(), "-m", "dynamo.replay", trace, "--trace-format", "mooncake"]
    command += ["--trace-block-size", str(TRACE_BLOCK_TOKENS), "--replay-mode", "offline"]
    command += ["--router-mode", PEER_ROUTERS[deployment.router]]
    settings = deployment.peer_settings()
    if deployment.pools is None:
        command += ["--num-workers", str(deployment.workers), "--extra-engine-args", json.dumps(settings)]
    else:
        for role, workers in zip(("prefill", "decode"), deployment.pools, strict=True):
            command += [f"--num-{role}-workers", str(workers)]
            command += [f"--{role}-engine-args", json.dumps(settings | {"worker_type": role})]
    command += ["--report-json", report, "--report-jsonl", scratch / "peer.jsonl"]
    if concurrency:
        command += ["--replay-concurrency", str(concurrency)]
    seconds, rss = measured(command, scratch)
    summary = json.loads(report.read_text())
    served = summary["completed_requests"], summary["total_output_tokens"]
    return Sample("peer", summary["wall_time_ms"], seconds, rss, *served)


def peer_python() -> Path:
    return PEER_DIR / "bin" / "python"


def install_peer() -> None:
    """Make the peer's environment, unless it is there with the right version (about 620 MB on disk)."""
    probe = "import importlib.metadata as m, dynamo.replay; print(m.version('ai-dynamo'))"
    if peer_python().exists():
        found = subprocess.run([peer_python(), "-c", probe], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() == PEER_VERSION:
            return
    say(f"installing ai-dynamo {PEER_VERSION} into {PEER_DIR.name}/ (once, a minute or two)")
    venv.create(PEER_DIR, clear=True, with_pip=True)
    pip = [str(peer_python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"ai-dynamo=={PEER_VERSION}"], check=True)


# -------------------------------------------------------------------------------------------------------- loads


def write_trace(path: Path, lengths: Iterable[tuple[int, int]]) -> Path:
    """A mooncake trace of prompts that share nothing; like that trace, it numbers new blocks consecutively."""
    next_id = 0
    with path.open("w") as file:
        for isl, osl in lengths:
            ids = list(range(next_id, next_id + -(-isl // TRACE_BLOCK_TOKENS)))
            next_id += len(ids)
            row = {"timestamp": 0, "input_length": isl, "output_length": osl, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return path


def varied(isl: int, osl: int, requests: int, seed: int = 1) -> Iterable[tuple[int, int]]:
    """Lengths spread evenly by 5 % around `isl` and `osl`: equal ones would march in step and flatter anybody."""
    rng = random.Random(seed)
    for _ in range(requests):
        yield isl + rng.randint(-isl // 20, isl // 20), osl + rng.randint(-osl // 20, osl // 20)


# -------------------------------------------------------------------------------------------------------- cases


@dataclass
class Bench:
    """What the cases share: the options, and every sample taken."""

    scratch: Path
    trace: Path
    repeats: int
    with_peer: bool
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def alternate(self, case: str, *programs: Callable[[], Sample], repeats: int = 0) -> list[list[Sample]]:
        """Run the programs in turn, `repeats` times; the samples of each."""
        taken: list[list[Sample]] = [[] for _ in programs]
        for i in range(repeats or self.repeats):
            for program, samples in zip(programs, taken, strict=True):
                sample = program()
                samples.append(sample)
                self.samples.setdefault(case, []).append(sample)
                say(
                    f"{case} {i + 1}/{repeats or self.repeats}: {sample.program} {sample.wall_ms:,.0f} ms, "
                    f"{sample.process_s:.1f} s in all, {sample.peak_rss_mb:,.0f} MB"
                )
        return taken

    def against_peer(
        self, case: str, trace: Path, deployment: Deployment, concurrency: int = 0
    ) -> tuple[list[Sample], list[Sample]]:
        """Windtunnel and, unless it is left out, the peer on one trace; both must have served the same tokens."""
        programs = [lambda: windtunnel(self.scratch, [trace], deployment, concurrency)]
        if not self.with_peer:
            return self.alternate(case, *programs)[0], []
        install_peer()
        programs.append(lambda: peer(self.scratch, trace, deployment, concurrency))
        ours, theirs = self.alternate(case, *programs)
        for a, b in zip(ours, theirs, strict=True):
            if (a.completed_requests, a.output_tokens) != (b.completed_requests, b.output_tokens):
                raise SystemExit(f"{case}: the programs did not do the same work: {a} and {b}")
        return ours, theirs


def against(
    case: str, what: str, ours: list[Sample], theirs: list[Sample], key: str, unit: str, least: float | None = None
) -> list[Row]:
    """How many times less Windtunnel needs: the median over neighbouring runs; nothing without the peer."""
    if not theirs:
        return []
    a, b = ([float(getattr(sample, key)) for sample in samples] for samples in (ours, theirs))
    times = statistics.median(y / x for x, y in zip(a, b, strict=True))
    a_shown, b_shown = (f"{statistics.median(values):,.1f} {unit}" for values in (a, b))
    return [Row(case, f"{what}, peer / ours", a_shown, b_shown, times, least=least)]


def growing(case: str, what: str, costly: list[Sample], base: list[Sample], most: float) -> Row:
    """The ratio of the fastest runs on two loads: whatever else the machine does only adds time."""
    a, b = (min(sample.wall_ms for sample in samples) for samples in (costly, base))
    return Row(case, what, f"{a:,.1f} ms", f"{b:,.1f} ms", a / b, most=most)


def mooncake(bench: Bench) -> list[Row]:
    """The conversation trace on four workers; most passes must be part of a decode run."""
    ours, theirs = bench.against_peer("mooncake", bench.trace, Deployment(workers=4))
    run = ours[0].run
    inside, passes = run["passes_in_decode_runs"], run["engine_passes"]
    runs = f"{run['decode_runs']:,} runs, {run['cuts']:,} cuts"
    return [
        *against("mooncake", "simulation time", ours, theirs, "wall_ms", "ms", 4),
        *against("mooncake", "peak memory", ours, theirs, "peak_rss_mb", "MB", 5),
        *against("mooncake", "whole process", ours, theirs, "process_s", "s"),
        Row("mooncake", "passes in decode runs", f"{inside:,} of {passes:,}", runs, inside / passes, least=0.95),
    ]


def sglang(bench: Bench) -> list[Row]:
    """The same on SGLang engines, overlap on: against the peer's, our own vLLM engine, and pages of one token."""
    deployment = Deployment("sglang", workers=4)
    ours, theirs = bench.against_peer("sglang", bench.trace, deployment)
    a, b, c = bench.alternate(
        "sglang",
        lambda: windtunnel(bench.scratch, [bench.trace], deployment),
        lambda: windtunnel(bench.scratch, [bench.trace], Deployment(workers=4)),
        lambda: windtunnel(bench.scratch, [bench.trace], Deployment("sglang", workers=4, block_size=1)),
    )
    return [
        *against("sglang", "simulation time", ours, theirs, "wall_ms", "ms", 3),
        *against("sglang", "peak memory", ours, theirs, "peak_rss_mb", "MB", 5),
        growing("sglang", "SGLang / vLLM", a, b, 1.5),
        growing("sglang", "page 1 / page 64", c, a, 1.3),
    ]


def kv_router(bench: Bench) -> list[Row]:
    """The conversation trace on 16 workers behind the KV router: against the peer's, round robin, and 256 workers."""
    deployment = Deployment(workers=16, router="kv")
    ours, theirs = bench.against_peer("kv-router", bench.trace, deployment)
    kv, round_robin, many = bench.alternate(
        "kv-router",
        lambda: windtunnel(bench.scratch, [bench.trace], deployment),
        lambda: windtunnel(bench.scratch, [bench.trace], Deployment(workers=16)),
        lambda: windtunnel(bench.scratch, [bench.trace], Deployment(workers=256, router="kv")),
    )
    return [
        *against("kv-router", "simulation time", ours, theirs, "wall_ms", "ms", 5),
        growing("kv-router", "KV router / round robin", kv, round_robin, 2),
        growing("kv-router", "256 / 16 workers", many, kv, 3),
    ]


def split(bench: Bench) -> list[Row]:
    """The conversation trace on two workers that prefill and six that decode."""
    ours, theirs = bench.against_peer("split", bench.trace, Deployment(pools=(2, 6)))
    return against("split", "simulation time", ours, theirs, "wall_ms", "ms", 3)


def closed_loop(bench: Bench) -> list[Row]:
    """Long outputs at concurrency 128, against the peer and against short outputs."""
    long = write_trace(bench.scratch / "osl4096.jsonl", varied(1024, 4096, 2000))
    short = write_trace(bench.scratch / "osl64.jsonl", varied(1024, 64, 2000))
    ours, theirs = bench.against_peer("closed-loop", long, Deployment(), 128)
    a, b = bench.alternate(
        "closed-loop",
        lambda: windtunnel(bench.scratch, [long], Deployment(), 128),
        lambda: windtunnel(bench.scratch, [short], Deployment(), 128),
    )
    return [
        *against("closed-loop", "OSL 4096", ours, theirs, "wall_ms", "ms", 40),
        growing("closed-loop", "OSL 4096 / OSL 64", a, b, 3),
    ]


def unique(bench: Bench) -> list[Row]:
    """Long prompts that share nothing, one at a time."""
    trace = write_trace(bench.scratch / "unique.jsonl", ((128_000, 1) for _ in range(300)))
    ours, theirs = bench.against_peer("unique", trace, Deployment(block_size=16), 1)
    return against("unique", "300 prompts of 128,000", ours, theirs, "wall_ms", "ms", 15)


def block_size(bench: Bench) -> list[Row]:
    """The same cache in blocks of one token and in blocks of 64."""
    a, b = bench.alternate(
        "block-size",
        lambda: windtunnel(bench.scratch, [bench.trace], Deployment(workers=4, block_size=1)),
        lambda: windtunnel(bench.scratch, [bench.trace], Deployment(workers=4)),
    )
    return [growing("block-size", "block 1 / block 64", a, b, 1.5)]


def short_requests(bench: Bench, requests: int) -> Sample:
    """Short requests at a fixed load that one worker can bear, most of which evict others from its cache."""
    load = ["--isl", "64", "--osl", "8", "--requests", str(requests), "--rate", "50"]
    return windtunnel(bench.scratch, load, Deployment(pool_tokens=SMALL_POOL_TOKENS))


def growth(bench: Bench) -> list[Row]:
    """Ten times the requests at the same load."""
    a, b = bench.alternate("growth", lambda: short_requests(bench, 100_000), lambda: short_requests(bench, 10_000))
    return [growing("growth", "100,000 / 10,000 requests", a, b, 11)]


def million(bench: Bench) -> list[Row]:
    """A million requests fit in memory, their records written."""
    [[sample]] = bench.alternate("million", lambda: short_requests(bench, 1_000_000), repeats=1)
    gigabytes = sample.peak_rss_mb / 1024
    return [
        Row("million", "peak memory", f"{sample.peak_rss_mb:,.0f} MB", "", gigabytes, most=4),
        Row("million", "whole process", f"{sample.process_s:.1f} s", "", sample.process_s),
    ]


CASES: dict[str, Callable[[Bench], list[Row]]] = {
    "mooncake": mooncake,
    "sglang": sglang,
    "kv-router": kv_router,
    "split": split,
    "closed-loop": closed_loop,
    "unique": unique,
    "block-size": block_size,
    "growth": growth,
    "million": million,
}


# ------------------------------------------------------------------------------------------------------- output


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    cells = [("case", "what", "windtunnel", "compared with", "value", "target", "")]
    for row in rows:
        verdict = "" if not row.target else "ok" if row.passed else "MISSED"
        cells.append((row.case, row.what, row.ours, row.other, f"{row.value:.2f}", row.target, verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def main() -> int:
    shared = Path(os.environ.get("WINDTUNNEL_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=shared / TRACE, help="the Mooncake conversation trace")
    parser.add_argument("--only", action="append", choices=CASES, help="run this case; may be repeated")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program in a case (3)")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer and what is compared with it out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and all samples there")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats: expected 1 or more")
    if not options.trace.is_file():
        parser.error(f"--trace: {options.trace} is not a file; set it, or WINDTUNNEL_SHARED")

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="windtunnel-bench-") as scratch:
        bench = Bench(Path(scratch), options.trace.resolve(), options.repeats, not options.no_peer)
        for name in options.only or CASES:
            rows += CASES[name](bench)
    engine = importlib.util.find_spec("windtunnel.engine.engine")
    compiled = engine is not None and not str(engine.origin).endswith(".py")
    machine = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "compiled": compiled,
    }
    how = "compiled" if compiled else "plain"
    print(f"Python {machine['python']}, {how}, {machine['cores']} cores, load average {os.getloadavg()[0]:.1f}")
    print(table(rows))
    if options.json:
        samples = {case: [asdict(sample) for sample in taken] for case, taken in bench.samples.items()}
        result = {"machine": machine, "rows": [asdict(row) for row in rows], "samples": samples}
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
