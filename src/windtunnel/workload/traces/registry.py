"""The registry of trace formats, and which of them a file looks like.

Decides by the beginning of a file alone, never by its name. A file that looks like several formats is an error that
names them: units and block sizes are never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.errors import InputError, closest
from windtunnel.plugins import load_object
from windtunnel.workload.traces.agentic_mooncake import AgenticMooncake
from windtunnel.workload.traces.aiperf import Aiperf
from windtunnel.workload.traces.applied_compute_agentic import AppliedComputeAgentic
from windtunnel.workload.traces.azure import Azure
from windtunnel.workload.traces.bailian import Bailian
from windtunnel.workload.traces.burstgpt import BurstGpt
from windtunnel.workload.traces.dynamo import Dynamo
from windtunnel.workload.traces.llmservingsim import LlmServingSim
from windtunnel.workload.traces.mooncake import Mooncake
from windtunnel.workload.traces.mooncake_delta import MooncakeDelta
from windtunnel.workload.traces.openai_log import OpenAiLog
from windtunnel.workload.traces.plain import Plain
from windtunnel.workload.traces.reading import TraceFormat, one_line
from windtunnel.workload.traces.rows import Head, read_head
from windtunnel.workload.traces.servegen import ServeGen
from windtunnel.workload.traces.sharegpt import ShareGpt
from windtunnel.workload.traces.vidur import Vidur
from windtunnel.workload.traces.vllm_bench import VllmBench
from windtunnel.workload.traces.vllm_timed_trace import VllmTimedTrace

_BUILTIN: tuple[TraceFormat, ...] = (
    Mooncake(),
    MooncakeDelta(),
    AgenticMooncake(),
    AppliedComputeAgentic(),
    Dynamo(),
    Azure(),
    BurstGpt(),
    Bailian(),
    ServeGen(),
    Vidur(),
    LlmServingSim(),
    ShareGpt(),
    VllmTimedTrace(),
    VllmBench(),
    Aiperf(),
    OpenAiLog(),
    Plain(),
)

FORMATS: dict[str, TraceFormat] = {known.name: known for known in _BUILTIN}


def format_called(name: str) -> TraceFormat:
    """The format with this name or alias, or the object that `module:attribute` names.

    Raises:
        InputError: there is none.
    """
    for known in FORMATS.values():
        if name == known.name or name in known.aliases:
            return known
    if ":" in name:
        found = load_object(name, "format", list(FORMATS))
        own = found() if isinstance(found, type) else found
        if not callable(getattr(own, "read", None)):
            raise InputError(f"{name!r} is no trace format: it has no method read(paths, options)", field="format")
        return own  # type: ignore[return-value]  # a user's object
    raise InputError(f"unknown trace format '{name}'; {closest(name, ['auto', *FORMATS])}", field="format")


def recognise(paths: Sequence[str], block_size: int | None = None) -> TraceFormat:
    """The one format that the beginnings of all files look like, given what a hash id is said to stand for.

    Raises:
        InputError: a file looks like none or several, or files look like different ones.
    """
    chosen: TraceFormat | None = None
    for path in paths:
        head = read_head(path, block_size)
        found = [known for known in FORMATS.values() if known.recognises(head)]
        if not found:
            start = one_line(head.first.decode(errors="replace"))
            shown = start if len(start) <= 60 else start[:57] + "..."
            unknown = f"fits no known trace format; name one with `format` if it is ({', '.join(FORMATS)})"
            raise InputError(f"{_likely_reason(head) or unknown}; found {shown}", source=path, line=head.line)
        if len(found) > 1:
            names = " and ".join(f"{known.name} ({known.row})" for known in found)
            raise InputError(f"looks like {names}: name the right one with `format`", source=path)
        if chosen is not None and found[0] is not chosen:
            message = (
                f"looks like {found[0].name}, but {paths[0]} like {chosen.name}: files read together have one format"
            )
            raise InputError(message, source=path)
        chosen = found[0]
    assert chosen is not None, "there is at least one file"
    return chosen


def _likely_reason(head: Head) -> str:
    """Why a file that fits no format may do so, "" if nothing is likely."""
    for separator, name in ((b";", "semicolons"), (b"\t", "tabs"), (b"|", "bars")):
        if not head.is_json and len(head.columns) == 1 and separator in head.first:
            return f"has columns that are separated by {name}, expected commas"
    if head.first.startswith(b"["):
        return "is one JSON list, and of none of the formats that are: expected one JSON object a line"
    return ""
