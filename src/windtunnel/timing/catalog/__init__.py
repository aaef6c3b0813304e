"""GPUs and models as data: datasheet numbers and the fields of `config.json`, each with its source.

Nothing here prices anything. Names that are not known are errors with the nearest ones; a model may also be any
local directory that has a `config.json`.
"""

from windtunnel.timing.catalog.gpus import GpuSpec, gpu_names, load_gpu
from windtunnel.timing.catalog.model_shape import (
    PARTS,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    ModelShape,
    SparseIndex,
)
from windtunnel.timing.catalog.models import load_model, model_config, model_names

__all__ = [
    "PARTS",
    "GpuSpec",
    "LatentAttention",
    "LayerGroup",
    "LinearAttention",
    "ModelShape",
    "SparseIndex",
    "gpu_names",
    "load_gpu",
    "load_model",
    "model_config",
    "model_names",
]
