"""The formats that can be written."""

from __future__ import annotations

from windtunnel.conversion.writers.agentic_mooncake import AgenticMooncakeWriter
from windtunnel.conversion.writers.azure import AzureWriter
from windtunnel.conversion.writers.bailian import BailianWriter
from windtunnel.conversion.writers.burstgpt import BurstGptWriter
from windtunnel.conversion.writers.llmservingsim import LlmServingSimWriter
from windtunnel.conversion.writers.mooncake import MooncakeWriter
from windtunnel.conversion.writers.mooncake_delta import MooncakeDeltaWriter
from windtunnel.conversion.writers.plain import PlainWriter
from windtunnel.conversion.writers.vidur import VidurWriter
from windtunnel.conversion.writers.vllm_timed_trace import VllmTimedTraceWriter
from windtunnel.conversion.writers.writer import TraceWriter
from windtunnel.errors import InputError, closest
from windtunnel.workload.traces.registry import FORMATS

_BUILTIN: tuple[TraceWriter, ...] = (
    MooncakeWriter(),
    MooncakeDeltaWriter(),
    AgenticMooncakeWriter(),
    VllmTimedTraceWriter(),
    BailianWriter(),
    AzureWriter(),
    BurstGptWriter(),
    VidurWriter(),
    LlmServingSimWriter(),
    PlainWriter(),
)

# Why a format that is read is not written.
NOT_WRITTEN = {
    "applied-compute-agentic": "its turns have no content and no arrivals",
    "dynamo": "its rows record when requests ended, which is no part of a load",
    "servegen": "its rows have no arrivals, and those with hash ids no output lengths",
    "sharegpt": "its rows are texts",
    "vllm-bench": "it is the result of a run",
    "aiperf": "its rows are texts",
    "openai-log": "its rows are answers of a server",
}

WRITERS: dict[str, TraceWriter] = {writer.name: writer for writer in _BUILTIN}


def writer_called(name: str) -> TraceWriter:
    """The writer of the format with this name or alias.

    Raises:
        InputError: there is none.
    """
    for known in FORMATS.values():
        if name == known.name or name in known.aliases:
            if known.name in WRITERS:
                return WRITERS[known.name]
            reason = NOT_WRITTEN[known.name]
            raise InputError(f"{known.name} is not written: {reason}; expected one of {', '.join(WRITERS)}")
    raise InputError(f"unknown trace format '{name}'; {closest(name, list(WRITERS))}")
