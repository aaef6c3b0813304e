"""`windtunnel calibrate`: finds the few numbers that make a timing model agree with measurements, and writes them down.

It decides nothing about fits: it reads measurements, names the deployment they are of, and shows what came of it. What
it writes is a configuration that `windtunnel run --config` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from windtunnel.assembly import build_kernels
from windtunnel.cli.flags import FLAG_OF_FIELD, assignments
from windtunnel.cli.messages import print_line
from windtunnel.cli.output_files import STDOUT, problem_with_output, write_output
from windtunnel.config.file import read_config_file
from windtunnel.config.load import dump_section, load_config
from windtunnel.config.schema import Config
from windtunnel.errors import InputError

if TYPE_CHECKING:
    from windtunnel.calibration import Fit

# Fields of `timing` that a fit sets, by the name of its parameter.
FIELDS = ("pass_overhead_ms", "request_overhead_ms", "decode_scale", "prefill_scale")

_WIDTH = 110

Text = str | None


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help)


def calibrate_command(
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Pass logs, benchmark results, or a sweep.")],
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE", help="Configuration to write.")],
    model: Annotated[Text, _option("--model", "NAME", "Model that was measured.")] = None,
    gpu: Annotated[Text, _option("--gpu", "NAME", "GPU that it ran on.")] = None,
    tp: Annotated[Text, _option("--tp", "N", "GPUs that split every layer.")] = None,
    dtype: Annotated[Text, _option("--dtype", "NAME", "Weights, if not what the checkpoint has.")] = None,
    timing: Annotated[
        Text, _option("--timing", "NAME", "What is calibrated: roofline, aiconfigurator or profile:PATH.")
    ] = None,
    engine: Annotated[Text, _option("--engine", "NAME", "Engine that was benchmarked: vllm or sglang.")] = None,
    config: Annotated[Text, _option("--config", "FILE", "Deployment that was measured; flags beat it.")] = None,
    fields: Annotated[
        list[str] | None, _option("--set", "FIELD=VALUE", "Any field of it: engine.max_num_seqs=64. Repeatable.")
    ] = None,
) -> int:
    """Fit a timing model's overheads and efficiencies to measurements of a real deployment.

    Measurements are logs of passes (CSV or JSON lines), results of vllm bench serve, AIPerf or GuideLLM at several
    concurrencies, or a sweep of Dynamo's planner.
    """
    from windtunnel.calibration import calibrate, read_observations  # here, so that other commands need not load it
    from windtunnel.calibration.closed_loop import play_benchmark

    flags = {"--model": model, "--gpu": gpu, "--tp": tp, "--dtype": dtype, "--timing": timing, "--engine": engine}
    given = assignments([], flags, {}, [], fields or [])
    file = read_config_file(config) if config is not None else None
    loaded = load_config(file, given, flags=FLAG_OF_FIELD)
    deployed = loaded.config
    problem = problem_with_output(out, [*data, *([config] if config is not None else [])])
    if problem is not None:
        raise InputError(problem, source="-o")
    observations = read_observations(data)
    try:
        kernels, _ = build_kernels(deployed)
    except InputError as error:
        raise loaded.origins.error(error.field, error.message) if error.field and not error.source else error from None
    fit = calibrate(observations, kernels, lambda benchmark, model: play_benchmark(benchmark, model, deployed))
    for reason, count in observations.skipped.items():
        print_line(f"left out {count:,} {reason}")
    for warning in fit.warnings:
        print_line(f"warning: {warning}")
    text = calibrated_config(deployed, fit, data)
    write_output(out, lambda stream: stream.write(text.encode()))
    console = Console(stderr=out == STDOUT, width=None if _is_terminal(out) else _WIDTH)
    print_fit(fit, console)
    return 0


def calibrated_config(deployed: Config, fit: Fit, sources: Sequence[str]) -> str:
    """The configuration with the fitted numbers, as YAML with what is known of each as comments."""
    values = {name: float(f"{fit.value(name):.4g}") for name in FIELDS}
    timing = Config.model_validate(
        {**deployed.model_dump(), "timing": {**deployed.timing.model_dump(exclude_none=True), **values}}
    ).timing
    lines = [f"# windtunnel calibrate {' '.join(sources)}"]
    for parameter in fit.parameters:
        told = f"{parameter.low:.4g} to {parameter.high:.4g} with 95 %" if parameter.is_fitted else "not in the data"
        lines.append(f"#   {parameter.name}: {parameter.value:.4g} ({told})")
    lines.append(f"#   errors: {_in_words(fit)}")
    return "\n".join(lines) + "\n" + dump_section("timing", timing)


def print_fit(fit: Fit, console: Console) -> None:
    """The parameters with their intervals, and the errors."""
    table = Table(box=box.SIMPLE_HEAD, title="Calibration", title_justify="left")
    for heading in ("parameter", "value", "95 % interval", ""):
        table.add_column(heading, justify="left" if heading in ("parameter", "") else "right")
    for parameter in fit.parameters:
        interval = f"{parameter.low:.4g} to {parameter.high:.4g}" if parameter.is_fitted else ""
        table.add_row(
            parameter.name,
            f"{parameter.value:.4g}",
            interval,
            "" if parameter.is_fitted else "not in the data: as assumed",
        )
    console.print(table)
    console.print(_in_words(fit), soft_wrap=True)


def _in_words(fit: Fit) -> str:
    words = (
        f"{fit.before.median:.1%} median before, {fit.fitted.median:.1%} after (p90 {fit.fitted.p90:.1%}) "
        f"on {fit.fitted.count} numbers"
    )
    held = fit.held_out
    return words + (f"; {held.median:.1%} (p90 {held.p90:.1%}) on groups that were held out" if held else "")


def _is_terminal(out: str) -> bool:
    return Console(stderr=out == STDOUT).is_terminal
