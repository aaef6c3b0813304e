"""Makes the sections of `windtunnel validate`: each replays one set of measurements and tabulates the errors."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path

from windtunnel.assembly import build_timing
from windtunnel.config.schema import Config
from windtunnel.errors import InputError
from windtunnel.timing.overhead import Overhead, WithOverhead
from windtunnel.validation.apex import read_apex, replay_apex
from windtunnel.validation.errors import Comparison, summarise
from windtunnel.validation.points import compare_points, compare_sweep, point_files
from windtunnel.validation.real_runs import (
    PEER,
    RealRun,
    compare,
    deployment_config,
    layer_timing,
    measured,
    pool_of,
    read_real_runs,
    replay,
)
from windtunnel.validation.report import Section, percent, summary_values
from windtunnel.validation.shared_prefix import MEDIAN_ITL_MS, compare_shared_prefix
from windtunnel.validation.silicon import Pricer, read_silicon, replay_row
from windtunnel.validation.silicon_pricing import aiconfigurator_pricer, blocks_of, roofline_pricer

Told = Callable[[str], None]

PRICERS: dict[str, Pricer] = {"roofline": roofline_pricer, "aiconfigurator": aiconfigurator_pricer}
METRICS = ("tpot", "ttft", "throughput")
MANY_ROWS = 20  # for a constant to mean anything


def sweep_section(kinds: list[str]) -> Section:
    """The decodes of a real H200 against models of kernels with the default overhead."""
    section = Section(
        "Decode passes of Llama-3.1-8B-FP8 on one H200 under vLLM (38 points)",
        ("priced by", "n", "mean", "median", "p90", "max", "bias"),
        notes=["The default overhead was fitted on these very points; kernels were not."],
    )
    for kind in kinds:
        timing = {"kind": kind, "model": "meta-llama/Llama-3.1-8B", "gpu": "h200-sxm", "dtype": "fp8"}
        config = Config.model_validate({"timing": timing, "engine": {"max_num_seqs": 1024}})
        summary = summarise(compare_sweep(build_timing(config), kind))
        assert summary is not None
        numbers = (summary.mean, summary.median, summary.p90, summary.largest)
        section.rows.append((kind, str(summary.count), *map(percent, numbers), percent(summary.bias, signed=True)))
        section.values.append({"priced_by": kind, **summary_values(summary)})
    return section


def shared_prefix_section(kinds: list[str]) -> Section:
    """The closed loop with shared prefixes."""
    section = Section(
        "Median ITL of Qwen3-1.7B on one H100, 128 requests in flight, 71.8 % of prompts shared",
        ("priced by", "ms", "measured", "error"),
    )
    for kind in kinds:
        (found,) = compare_shared_prefix(kind)
        error = percent(found.error, signed=True)
        section.rows.append((kind, f"{found.predicted:.2f}", f"{MEDIAN_ITL_MS:.2f}", error))
        section.values.append({"priced_by": kind, "median_itl_ms": found.predicted, "error": round(found.error, 6)})
    return section


def runs_section(directory: Path | None) -> Section:
    """Four real runs with stamps, priced by their own layer times if those are at hand, and by the roofline."""
    section = Section(
        "Real vLLM 0.19 runs of 300 requests (LLMServingSim)",
        ("run", "priced by", "KV blocks", "TTFT", "TPOT", "makespan", "peer's TTFT", "peer's TPOT"),
        notes=[
            "Layer times: no overhead, the engine scheduled asynchronously; links as in the peer's own description."
        ],
    )
    for run in read_real_runs():
        blocks = pool_of(run)
        if directory is not None:
            timing = layer_timing(run, directory)
            _add_run(section, run, "layer times", blocks, compare(run, replay(run, timing, blocks)))
            for share in (0.8, 1.2) if run.num_gpu_blocks is None else ():
                part = int(blocks * share)
                _add_run(section, run, "the same", part, compare(run, replay(run, timing, part)))
            hosted = WithOverhead(timing, Overhead())
            _add_run(section, run, "with overhead", blocks, compare(run, replay(run, hosted, blocks)))
        roofline = build_timing(deployment_config(run))
        _add_run(section, run, "roofline", blocks, compare(run, replay(run, roofline, blocks)))
    return section


def _add_run(section: Section, run: RealRun, priced_by: str, blocks: int, found: list[Comparison]) -> None:
    errors = {one.metric: one.error for one in found}
    peer = PEER[run.name] if priced_by == "layer times" else None
    told = ("", "") if peer is None else tuple(percent(value, signed=True) for value in peer)
    cells = (percent(errors[name], signed=True) for name in ("ttft", "tpot", "makespan"))
    section.rows.append((" ".join(run.name), priced_by, f"{blocks:,}", *cells, *told))
    truth = measured(run)
    section.values.append(
        {
            "run": " ".join(run.name),
            "priced_by": priced_by,
            "kv_blocks": blocks,
            **{f"{name}_error": round(error, 6) for name, error in errors.items()},
            "measured_mean_ttft_ms": round(truth.ttft_ms, 3),
            "measured_mean_tpot_ms": round(truth.tpot_ms, 3),
        }
    )


def apex_section(directory: Path, tell: Told) -> Section:
    """APEX's runs, by model, GPU and split."""
    section = Section(
        "APEX's runs of vLLM 0.6.0 on H100, open loops, priced by the roofline",
        ("group", "runs", "TPOT", "p90", "bias", "ms too few", "TTFT", "p90", "bias"),
        notes=[
            "vLLM 0.6 is not modelled: SGLang's policy without chunks, or vLLM 0.11 where it chunks, stands in.",
            "ms too few: median of the time that a token took longer than simulated.",
        ],
    )
    found: list[Comparison] = []
    borrowed = 0
    for run in read_apex(directory):
        tell(f"apex: {run.file}")
        found += replay_apex(run)
        borrowed += run.is_borrowed
    section.notes.append(f"{borrowed} runs are replayed with the requests of others of the same trace.")
    for group in (*sorted({one.group for one in found}), None):
        kept = [one for one in found if group is None or one.group == group]
        tpot, ttft = (summarise(one for one in kept if one.metric == metric) for metric in ("tpot", "ttft"))
        assert tpot is not None
        assert ttft is not None
        missing = statistics.median(one.measured - one.predicted for one in kept if one.metric == "tpot")
        name = "all" if group is None else " ".join(group)
        section.rows.append(
            (
                name,
                str(tpot.count),
                percent(tpot.median),
                percent(tpot.p90),
                percent(tpot.bias, signed=True),
                f"{missing:.1f}",
                percent(ttft.median),
                percent(ttft.p90),
                percent(ttft.bias, signed=True),
            )
        )
        section.values.append(
            {"group": name, "runs": tpot.count, "tpot": summary_values(tpot), "ttft": summary_values(ttft)}
        )
    return section


def points_section(directory: Path, tell: Told) -> Section:
    """Tables of AIConfigurator against the library's own answers."""
    metrics = ("decode", "prefill", "prefill of 4")
    section = Section(
        "Tables of AIConfigurator against what it says itself (mean / max)",
        ("what", *metrics),
        notes=["Latent attention has a table of its own and is not among the totals of prefill."],
    )
    everything: list[Comparison] = []
    for path in point_files(directory):
        tell(f"points of {path.stem}")
        try:
            found = compare_points(path)
        except InputError as error:
            section.notes.append(f"{path.stem}: {error.message}")
            continue
        everything += found
        cells = []
        values: dict[str, object] = {"what": path.stem}
        for metric in metrics:
            summary = summarise(one for one in found if one.metric == metric)
            cells.append("" if summary is None else f"{summary.mean * 100:.3f} / {summary.largest * 100:.3f} %")
            if summary is not None:
                values[metric] = summary_values(summary)
        section.rows.append((path.stem, *cells))
        section.values.append(values)
    cells = []
    for metric in metrics:
        kept = [one for one in everything if one.metric == metric and (metric == "decode" or one.group[1] == "split")]
        summary = summarise(kept)
        cells.append("" if summary is None else f"{summary.mean * 100:.3f} / {summary.largest * 100:.3f} %")
    section.rows.append(("all", *cells))
    return section


def silicon_section(directory: Path, kind: str, sample: int | None, seed: int, tell: Told) -> Section:
    """The silicon sample, by engine, model, GPU and precision.

    Args:
        sample: rows of each group, drawn with the seed; None for all.
    """
    rows, unusable = read_silicon(directory)
    section = Section(
        f"Silicon sample, closed loops, priced by {kind}",
        ("group", "rows", "run", "TPOT", "p90", "bias", "TTFT", "bias", "tokens/s", "p90"),
        notes=[f"not used: {count} rows with {reason}" for reason, count in unusable.items()],
    )
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.group, []).append(number)
    price = PRICERS[kind]
    found: list[Comparison] = []
    wanted = {False: 0, True: 0}
    for group, numbers in sorted(groups.items()):
        tell(f"{kind}: {' '.join(group)}")
        if sample is not None and sample < len(numbers):
            numbers = random.Random(f"{seed} {group}").sample(numbers, sample)
        failures: dict[str, int] = {}
        for number in sorted(numbers):
            row = rows[number]
            wanted[row.engine == "trtllm"] += 1
            timing = price(row)
            if isinstance(timing, str):
                failures[timing] = failures.get(timing, 0) + 1
            else:
                found += replay_row(row, timing, blocks_of(row), seed)
        for reason, count in failures.items():
            section.notes.append(f"{' '.join(group)}: {count} of {len(numbers)} not run: {reason}")
        _add_group(section, " ".join(group), len(numbers), [one for one in found if one.group == group])
    for engine in sorted({one.group[0] for one in found if not one.is_apart}):
        told = _beside_ttft([one for one in found if one.group[0] == engine and one.metric == "ttft"])
        section.notes += [f"{engine}: {told}"] if told else []
    for name, is_apart in (("vLLM and SGLang", False), ("TensorRT-LLM (vLLM's scheduler stands in)", True)):
        if wanted[is_apart]:
            _add_group(section, name, wanted[is_apart], [one for one in found if one.is_apart is is_apart])
    return section


def _beside_ttft(found: list[Comparison]) -> str:
    """What first tokens wait for besides: one constant from every other row, judged on the rest; "" for few rows."""
    if len(found) < MANY_ROWS:
        return ""
    missing = statistics.median(one.measured - one.predicted for one in found[::2])
    errors = [abs((one.predicted + missing) / one.measured - 1.0) for one in found[1::2]]
    return (
        f"first tokens come {missing:.0f} ms later than simulated (median of every other row); with that, the median "
        f"error of TTFT is {percent(statistics.median(errors))} on the rows between"
    )


def _add_group(section: Section, name: str, rows: int, found: list[Comparison]) -> None:
    by_metric = {metric: summarise(one for one in found if one.metric == metric) for metric in METRICS}
    tpot, ttft, throughput = (by_metric[metric] for metric in METRICS)
    if tpot is None or ttft is None or throughput is None:
        section.rows.append((name, str(rows), "0", *[""] * 7))
        section.values.append({"group": name, "rows": rows, "run": 0})
        return
    section.rows.append(
        (
            name,
            str(rows),
            str(tpot.count),
            percent(tpot.median),
            percent(tpot.p90),
            percent(tpot.bias, signed=True),
            percent(ttft.median),
            percent(ttft.bias, signed=True),
            percent(throughput.median),
            percent(throughput.p90),
        )
    )
    values: dict[str, object] = {"group": name, "rows": rows, "run": tpot.count}
    values.update({metric: summary_values(summary) for metric, summary in by_metric.items() if summary is not None})
    section.values.append(values)
