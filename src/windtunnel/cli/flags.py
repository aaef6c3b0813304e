"""Which field of the configuration each flag sets.

Flags are short names for fields and nothing more: what a value may be is for the schema to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.config.fields import parse_value
from windtunnel.config.load import Assignment, parse_set
from windtunnel.config.slo import parse_slo
from windtunnel.errors import InputError

FIELD_OF_FLAG = {
    "--format": "workload.format",
    "--trace-block-size": "workload.trace_block_size",
    "--speedup": "workload.speedup",
    "--limit": "workload.limit",
    "--on-bad-row": "workload.on_bad_row",
    "--on-hash-mismatch": "workload.on_hash_mismatch",
    "--on-overlong": "workload.on_overlong",
    "--arrival": "workload.arrival",
    "--concurrency": "workload.concurrency",
    "--concurrency-by": "workload.concurrency_by",
    "--cancel-after-ms": "workload.cancel_after_ms",
    "--isl": "workload.synthetic.isl",
    "--osl": "workload.synthetic.osl",
    "--requests": "workload.synthetic.requests",
    "--lengths": "workload.synthetic.lengths",
    "--duration-s": "workload.synthetic.duration_s",
    "--rate": "workload.synthetic.rate",
    "--burstiness": "workload.synthetic.burstiness",
    "--interval-ms": "workload.synthetic.interval_ms",
    "--turns": "workload.synthetic.turns",
    "--turn-delay-ms": "workload.synthetic.turn_delay_ms",
    "--prefix-ratio": "workload.synthetic.prefix_ratio",
    "--prefix-groups": "workload.synthetic.prefix_groups",
    "--prefix-tokens": "workload.synthetic.prefix_tokens",
    "--prefix-zipf": "workload.synthetic.prefix_zipf",
    "--engine": "engine.kind",
    "--workers": "cluster.workers",
    "--dp-size": "cluster.dp_size",
    "--prefill-workers": "cluster.prefill_workers",
    "--decode-workers": "cluster.decode_workers",
    "--router": "cluster.router.kind",
    "--timing": "timing.kind",
    "--model": "timing.model",
    "--gpu": "timing.gpu",
    "--tp": "timing.tp",
    "--pp": "timing.pp",
    "--ep": "timing.ep",
    "--dtype": "timing.dtype",
    "--kv-dtype": "timing.kv_dtype",
    "--seed": "seed",
    "--max-time-s": "max_time_s",
    "--report": "output.report",
    "--requests-out": "output.requests",
}

# Flags without a value: the field, and what it becomes.
FIELD_OF_SWITCH: dict[str, tuple[str, bool]] = {
    "--no-run-info": ("output.run_info", False),
    "--spread": ("workload.spread", True),
    "--accumulate": ("workload.synthetic.accumulate", True),
    "--stepwise": ("engine.fast_forward", False),
}

FLAG_OF_FIELD = {
    "workload.path": "TRACE",
    **{path: flag for flag, path in FIELD_OF_FLAG.items()},
    **{path: flag for flag, (path, _) in FIELD_OF_SWITCH.items()},
}


def assignments(
    traces: Sequence[str],
    flags: Mapping[str, str | None],
    switches: Mapping[str, bool],
    slo: Sequence[str],
    sets: Sequence[str],
) -> list[Assignment]:
    """Everything a command line says about the configuration.

    Args:
        traces: trace files.
        flags: text given to each flag of `FIELD_OF_FLAG`; None for those not given.
        switches: whether each flag of `FIELD_OF_SWITCH` was given.
        slo: what was given to each `--slo`.
        sets: what was given to each `--set`.

    Raises:
        InputError: a flag with an empty value, or a `--slo` or `--set` that cannot be read.
    """
    given: list[Assignment] = []
    if traces:
        given.append(Assignment("workload.path", list(traces), "TRACE", f"TRACE {' '.join(traces)}"))
    for flag, text in flags.items():
        if text is not None:
            if not text.strip():
                raise InputError(f"{flag}: found nothing, expected a value")
            path = FIELD_OF_FLAG[flag]
            given.append(Assignment(path, parse_value(path, text), flag, f"{flag} {text}"))
    for flag, is_given in switches.items():
        if is_given:
            path, value = FIELD_OF_SWITCH[flag]
            given.append(Assignment(path, value, flag, flag))
    for text in slo:
        given.extend(parse_slo(text))
    given.extend(parse_set(text) for text in sets)
    return given
