"""`windtunnel run`: its arguments, and the configuration that they make.

Each option is text here: what it means and may be is said by the schema, what happens with it by `replay`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from windtunnel.cli.flags import FIELD_OF_FLAG, FLAG_OF_FIELD, assignments
from windtunnel.cli.messages import print_line
from windtunnel.cli.output_files import print_result
from windtunnel.cli.replay import replay
from windtunnel.config.fields import FIELDS
from windtunnel.config.file import read_config_file
from windtunnel.config.load import dump_config, load_config

SAMPLE_WORKERS = 2

_TRACES = "Workload from traces"
_SYNTHETIC = "Synthetic workload"
_WORKLOAD = "Any workload"
_DEPLOYMENT = "Deployment"
_SIMULATION = "Simulation"
_OUTPUT = "Output"

Text = str | None
Texts = list[str] | None


def _option(flag: str, metavar: str, help: str, panel: str, *others: str) -> Any:
    return typer.Option(flag, *others, metavar=metavar, help=help, rich_help_panel=panel)


def _field(flag: str, metavar: str, panel: str, *others: str) -> Any:
    field = FIELDS[FIELD_OF_FLAG[flag]]
    shown = f"{field.default:g}" if isinstance(field.default, float) else field.default
    default = "" if field.default is None else f" \\[{shown}]"
    return _option(flag, metavar, f"{field.description[0].upper()}{field.description[1:]}.{default}", panel, *others)


def _switch(flag: str, help: str, panel: str) -> Any:
    return typer.Option(flag, metavar="", help=help, rich_help_panel=panel)


def run(
    traces: Annotated[Texts, typer.Argument(metavar="TRACE", help="Trace files. No load at all: a sample.")] = None,
    trace_format: Annotated[Text, _field("--format", "NAME", _TRACES)] = None,
    trace_block_size: Annotated[Text, _field("--trace-block-size", "N", _TRACES)] = None,
    speedup: Annotated[Text, _field("--speedup", "X", _WORKLOAD)] = None,
    limit: Annotated[Text, _field("--limit", "N", _TRACES)] = None,
    spread: Annotated[
        bool, _switch("--spread", "Take apart arrivals that the trace has rounded to one instant.", _TRACES)
    ] = False,
    on_bad_row: Annotated[Text, _field("--on-bad-row", "POLICY", _TRACES)] = None,
    on_hash_mismatch: Annotated[Text, _field("--on-hash-mismatch", "POLICY", _TRACES)] = None,
    on_overlong: Annotated[Text, _field("--on-overlong", "POLICY", _TRACES)] = None,
    isl: Annotated[Text, _field("--isl", "N", _SYNTHETIC)] = None,
    osl: Annotated[Text, _field("--osl", "N", _SYNTHETIC)] = None,
    requests: Annotated[Text, _field("--requests", "N", _SYNTHETIC)] = None,
    lengths: Annotated[Text, _field("--lengths", "FILE", _SYNTHETIC)] = None,
    duration_s: Annotated[Text, _field("--duration-s", "S", _SYNTHETIC)] = None,
    rate: Annotated[Text, _field("--rate", "R", _SYNTHETIC)] = None,
    burstiness: Annotated[Text, _field("--burstiness", "X", _SYNTHETIC)] = None,
    interval_ms: Annotated[Text, _field("--interval-ms", "MS", _SYNTHETIC)] = None,
    turns: Annotated[Text, _field("--turns", "N", _SYNTHETIC)] = None,
    turn_delay_ms: Annotated[Text, _field("--turn-delay-ms", "MS", _SYNTHETIC)] = None,
    accumulate: Annotated[
        bool, _switch("--accumulate", "A turn's prompt is the conversation before it, and ISL new tokens.", _SYNTHETIC)
    ] = False,
    prefix_ratio: Annotated[Text, _field("--prefix-ratio", "X", _SYNTHETIC)] = None,
    prefix_groups: Annotated[Text, _field("--prefix-groups", "N", _SYNTHETIC)] = None,
    prefix_tokens: Annotated[Text, _field("--prefix-tokens", "N", _SYNTHETIC)] = None,
    prefix_zipf: Annotated[Text, _field("--prefix-zipf", "S", _SYNTHETIC)] = None,
    arrival: Annotated[Text, _field("--arrival", "PROCESS", _WORKLOAD)] = None,
    concurrency: Annotated[Text, _field("--concurrency", "C", _WORKLOAD)] = None,
    concurrency_by: Annotated[Text, _field("--concurrency-by", "WHAT", _WORKLOAD)] = None,
    cancel_after_ms: Annotated[Text, _field("--cancel-after-ms", "MS", _WORKLOAD)] = None,
    engine: Annotated[Text, _field("--engine", "NAME", _DEPLOYMENT)] = None,
    workers: Annotated[Text, _field("--workers", "N", _DEPLOYMENT)] = None,
    dp_size: Annotated[Text, _field("--dp-size", "N", _DEPLOYMENT, "--dp")] = None,
    prefill_workers: Annotated[Text, _field("--prefill-workers", "N", _DEPLOYMENT)] = None,
    decode_workers: Annotated[Text, _field("--decode-workers", "M", _DEPLOYMENT)] = None,
    router: Annotated[Text, _field("--router", "NAME", _DEPLOYMENT)] = None,
    model: Annotated[Text, _field("--model", "NAME|DIR", _DEPLOYMENT)] = None,
    gpu: Annotated[Text, _field("--gpu", "NAME", _DEPLOYMENT)] = None,
    tp: Annotated[Text, _field("--tp", "N", _DEPLOYMENT)] = None,
    pp: Annotated[Text, _field("--pp", "N", _DEPLOYMENT)] = None,
    ep: Annotated[Text, _field("--ep", "N", _DEPLOYMENT)] = None,
    dtype: Annotated[Text, _field("--dtype", "NAME", _DEPLOYMENT)] = None,
    kv_dtype: Annotated[Text, _field("--kv-dtype", "NAME", _DEPLOYMENT)] = None,
    timing: Annotated[Text, _field("--timing", "NAME", _DEPLOYMENT)] = None,
    config: Annotated[Text, _option("--config", "FILE", "YAML or JSON; flags beat it.", _DEPLOYMENT)] = None,
    fields: Annotated[
        Texts, _option("--set", "FIELD=VALUE", "Any field: engine.block_size=16. Repeatable.", _DEPLOYMENT)
    ] = None,
    seed: Annotated[Text, _field("--seed", "N", _SIMULATION)] = None,
    max_time_s: Annotated[Text, _field("--max-time-s", "S", _SIMULATION)] = None,
    stepwise: Annotated[
        bool, _switch("--stepwise", "Compute every pass one by one: same report, slower.", _SIMULATION)
    ] = False,
    slo: Annotated[
        Texts,
        _option("--slo", "LIMITS", "Goodput limits: ttft=500ms,itl=50ms,e2e=10s; of one class: chat:ttft=1s.", _OUTPUT),
    ] = None,
    report: Annotated[Text, _field("--report", "FILE", _OUTPUT)] = None,
    requests_out: Annotated[Text, _field("--requests-out", "FILE", _OUTPUT)] = None,
    no_run_info: Annotated[bool, _switch("--no-run-info", "No wall-clock facts in the report.", _OUTPUT)] = False,
    print_config: Annotated[
        bool, _switch("--print-config", "Print the configuration, as --config reads it.", _OUTPUT)
    ] = False,
    quiet: Annotated[bool, _switch("--quiet", "Print no tables, notes or progress.", _OUTPUT)] = False,
) -> int:
    """Simulate a deployment under a load and report what it would do.

    The load is a trace (windtunnel run trace.jsonl --workers 4) or synthetic
    (windtunnel run --isl 1024 --osl 256 --requests 1000 --rate 10).
    """
    try:
        flags = {
            "--format": trace_format,
            "--trace-block-size": trace_block_size,
            "--speedup": speedup,
            "--limit": limit,
            "--on-bad-row": on_bad_row,
            "--on-hash-mismatch": on_hash_mismatch,
            "--on-overlong": on_overlong,
            "--arrival": arrival,
            "--concurrency": concurrency,
            "--concurrency-by": concurrency_by,
            "--cancel-after-ms": cancel_after_ms,
            "--isl": isl,
            "--osl": osl,
            "--requests": requests,
            "--lengths": lengths,
            "--duration-s": duration_s,
            "--rate": rate,
            "--burstiness": burstiness,
            "--interval-ms": interval_ms,
            "--turns": turns,
            "--turn-delay-ms": turn_delay_ms,
            "--prefix-ratio": prefix_ratio,
            "--prefix-groups": prefix_groups,
            "--prefix-tokens": prefix_tokens,
            "--prefix-zipf": prefix_zipf,
            "--engine": engine,
            "--workers": workers,
            "--dp-size": dp_size,
            "--prefill-workers": prefill_workers,
            "--decode-workers": decode_workers,
            "--router": router,
            "--timing": timing,
            "--model": model,
            "--gpu": gpu,
            "--tp": tp,
            "--pp": pp,
            "--ep": ep,
            "--dtype": dtype,
            "--kv-dtype": kv_dtype,
            "--seed": seed,
            "--max-time-s": max_time_s,
            "--report": report,
            "--requests-out": requests_out,
        }
        switches = {
            "--no-run-info": no_run_info,
            "--stepwise": stepwise,
            "--spread": spread,
            "--accumulate": accumulate,
        }
        given = assignments(traces or [], flags, switches, slo or [], fields or [])
        file = read_config_file(config) if config is not None else None
        loaded = load_config(file, given, flags=FLAG_OF_FIELD, sample_workers=SAMPLE_WORKERS)
        if print_config:
            print_result(dump_config(loaded.config))
            return 0
        return replay(loaded, config_file=config, quiet=quiet)
    except KeyboardInterrupt:
        print_line("interrupted")
        return 130
