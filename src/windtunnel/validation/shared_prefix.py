"""The case that tells how decodes are accounted for: a closed loop whose prompts share most of their tokens.

Qwen3-1.7B on one H100, 128 requests in flight, 2,000 of 4,032 and 142 tokens in four groups that share 2,896 each. A
decode pass of 106 requests reads about 434,972 tokens of context, a third of them distinct. Priced by the distinct
ones a pass looks half as long. Measured median ITL: 22.12 ms; nothing here is tuned on it.
Source: reported with Dynamo's change that made its simulator count logical tokens.
"""

from __future__ import annotations

from windtunnel.assembly import simulate
from windtunnel.config.schema import Config
from windtunnel.report.metrics import summarize
from windtunnel.validation.errors import Comparison

MEDIAN_ITL_MS = 22.12
NUM_GPU_BLOCKS = 38_863


def shared_prefix_config(kind: str) -> Config:
    """The case, priced by a timing model of kernels with the default overhead."""
    load = {"isl": 4032, "osl": 142, "requests": 2000, "prefix_ratio": 2896 / 4032, "prefix_groups": 4}
    return Config.model_validate(
        {
            "workload": {"concurrency": 128, "synthetic": load},
            "engine": {"block_size": 16, "num_gpu_blocks": NUM_GPU_BLOCKS, "async_scheduling": False},
            "timing": {"kind": kind, "model": "Qwen/Qwen3-1.7B", "gpu": "h100-sxm"},
        }
    )


def compare_shared_prefix(kind: str) -> list[Comparison]:
    """The median ITL of the case.

    Raises:
        InputError: the model needs a library that is not installed.
    """
    config = shared_prefix_config(kind)
    result = simulate(config)
    median = float(summarize(result.workload, result.record, config.slo)["median_itl_ms"])
    return [Comparison((kind,), "itl", median, MEDIAN_ITL_MS)]
