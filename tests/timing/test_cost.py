"""What pricing costs: steps of the interpreter in a replay, which no other process on the machine disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.resources import files
from types import FrameType
from typing import Any

import pytest

from windtunnel import Config, load_workload, simulate
from windtunnel.engine import engine

SWEEP = str(files("windtunnel.validation") / "data" / "dynamo-h200-llama-3.1-8b-fp8.json")
DEPLOYED = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h200-sxm", "dtype": "fp8"}


def steps(timing: dict[str, object]) -> int:
    """Bytecodes of this package that a replay of 60 requests of the Mooncake trace takes."""
    config = Config.model_validate(
        {
            "workload": {"path": "sample:mooncake-conversation", "limit": 60},
            "cluster": {"workers": 4},
            "engine": {"num_gpu_blocks": 16_384},
            "timing": timing,
        }
    )
    workload = load_workload(config)
    count = 0

    def in_frame(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        nonlocal count
        count += event == "opcode"
        return in_frame

    def on_call(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if "windtunnel" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return in_frame

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        simulate(config, workload=workload)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.skipif(not engine.__file__.endswith(".py"), reason="a compiled engine takes no bytecodes")
def test_pricing_by_physics_or_by_tables_takes_hardly_more_than_a_polynomial() -> None:
    plain = steps({"kind": "polynomial"})
    assert steps({"kind": "roofline", **DEPLOYED}) < 1.3 * plain
    assert steps({"kind": f"profile:{SWEEP}"}) < 1.3 * plain
