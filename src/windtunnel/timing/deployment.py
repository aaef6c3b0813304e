"""A model on GPUs: which one, split how, in which number formats. What timing models are built for.

It checks that the parts go together and says how much of the model each GPU holds. It prices nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from windtunnel.errors import InputError
from windtunnel.timing.catalog import GpuSpec, LayerGroup, ModelShape

# Bytes a weight takes, its scales included: a float32 for 128 x 128 (fp8_block), half a byte and a byte for 32
# (mxfp4), a byte for 16 (nvfp4), a bf16 scale and a zero for 128 (int4), a bf16 scale for 32 (int4_g32).
WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / (128 * 128),
    "int4": 0.5 + 2.5 / 128,
    "int4_g32": 0.5 + 2.0 / 32,
    "mxfp4": 0.5 + 1.0 / 32,
    "nvfp4": 0.5 + 1.0 / 16,
}
# What the tensor cores multiply for a matrix stored so: 4-bit weights of int4 and mxfp4 are widened to bf16.
COMPUTE_DTYPE = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int4": "bf16",
    "int4_g32": "bf16",
    "mxfp4": "bf16",
}
KV_BYTES = {"bf16": 2, "fp8": 1}
STATE_BYTES = {"fp32": 4, "bf16": 2}
INDEX_SCALE_BYTES = 4  # beside a key of a sparse index, which is FP8 whatever the cache is


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine: a model on `tp * pp` GPUs, one of `dp` such that share the experts.

    Attributes:
        model, gpu: of which kind.
        tp: GPUs that split every layer; pp: stages of layers.
        dp: engines that split the experts among them and wait for each other in every layer with experts.
        ep: groups among which whole experts are spread; `tp * dp / ep` GPUs split each expert.
        weight_dtype: what matrices are stored as (`WEIGHT_BYTES`); kv_dtype: what the KV cache is (`KV_BYTES`).
    """

    model: ModelShape
    gpu: GpuSpec
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"

    @property
    def num_gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp

    @property
    def expert_split(self) -> int:
        """GPUs among which one expert is split."""
        return self.tp * self.dp // self.ep

    @property
    def kv_heads_per_gpu(self) -> int:
        """KV heads that a GPU caches; where there are fewer than GPUs, they are held several times."""
        return -(-self.model.kv_heads // self.tp)

    @property
    def stage_layers(self) -> int:
        """Layers of the largest pipeline stage."""
        return -(-self.model.num_layers // self.pp)

    def dtype_of(self, part: str) -> str:
        """What the matrices of a part (`catalog.PARTS`) are stored as; routed experts are `weight_dtype`."""
        return "bf16" if part in self.model.bf16_parts else self.weight_dtype

    def layer_weight_bytes(self, group: LayerGroup) -> float:
        """Bytes of the weights of one layer on one GPU."""
        model = self.model
        parts = model.parameters_of(group)
        router = parts.pop("router")
        weights = sum(count * WEIGHT_BYTES[self.dtype_of(part)] for part, count in parts.items()) / self.tp
        weights += router * WEIGHT_BYTES["bf16"]
        if group.has_experts:
            experts = model.num_experts * model.expert_parameters / (self.ep * self.expert_split)
            weights += experts * WEIGHT_BYTES[self.weight_dtype]
        return weights

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights on the GPU that holds most: with stages, the one with the embedding or the LM head."""
        model = self.model
        layers = sum(group.count * self.layer_weight_bytes(group) for group in model.layers)
        embedding = 2.0 * model.vocab * model.hidden / self.tp
        copies = 1 if model.tied_embeddings or self.pp > 1 else 2
        return layers * self.stage_layers / model.num_layers + copies * embedding

    @property
    def index_bytes_per_layer(self) -> int:
        """Bytes of the keys by which sparse attention picks tokens, of one layer and token, on every GPU."""
        return self.model.index.head_dim + INDEX_SCALE_BYTES if self.model.index else 0

    @property
    def kv_bytes_per_layer(self) -> int:
        """Bytes of KV cache that one layer of attention needs for a token, on one GPU, keys of an index left out."""
        latent = self.model.latent
        if latent is not None:  # one latent vector for all heads, on every GPU
            return (latent.kv_rank + latent.rope_dim) * KV_BYTES[self.kv_dtype]
        return 2 * self.kv_heads_per_gpu * self.model.head_dim * KV_BYTES[self.kv_dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache of a token, all layers and GPUs together, each part counted once."""
        model = self.model
        heads = model.latent.kv_rank + model.latent.rope_dim if model.latent else 2 * model.kv_heads * model.head_dim
        return model.num_attention_layers * (heads * KV_BYTES[self.kv_dtype] + self.index_bytes_per_layer)

    @property
    def state_bytes_per_request(self) -> float:
        """Bytes that layers of linear attention keep for a request, whatever its length, on one GPU."""
        linear = self.model.linear
        return self.model.num_linear_layers * linear.request_bytes / self.tp if linear is not None else 0.0


def deploy(
    model: ModelShape,
    gpu: GpuSpec,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    state_dtype: str | None = None,
) -> Deployment:
    """The deployment of a model, in the format of its checkpoint and with a bf16 KV cache unless told otherwise.

    An FP8 checkpoint does not imply an FP8 KV cache: engines keep that in bf16 unless they are told to. States of
    linear attention are what the model's config says (`STATE_BYTES`) unless told otherwise.

    Raises:
        InputError: the parts do not go together; its `field` is the argument that is to blame.
    """
    if model.heads % tp:
        raise InputError(f"{tp} GPUs cannot split the {model.heads} attention heads of {model.name}", field="tp")
    if tp > gpu.gpus_per_node:
        raise InputError(
            f"{tp} is more than the {gpu.gpus_per_node} GPUs of a node, which alone are priced", field="tp"
        )
    widths = {group.intermediate for group in model.layers} | {model.shared_intermediate}
    for width in sorted(widths):
        if width % tp:
            raise InputError(f"{tp} GPUs cannot split the MLP of {model.name}, {width} wide", field="tp")
    if model.linear is not None and model.linear.value_heads % tp:
        raise InputError(
            f"{tp} GPUs cannot split the {model.linear.value_heads} linear-attention heads of {model.name}", field="tp"
        )
    if state_dtype is not None:
        if model.linear is None:
            raise InputError(f"{state_dtype} has no effect on {model.name}, which keeps no states", field="state_dtype")
        model = replace(model, linear=replace(model.linear, state_bytes=STATE_BYTES[state_dtype]))
    if pp > model.num_layers:
        raise InputError(f"{pp} stages are more than the {model.num_layers} layers of {model.name}", field="pp")
    if ep > 1 and not model.num_experts:
        raise InputError(f"{ep} has no effect on {model.name}, which has no experts to share", field="ep")
    if tp * dp % ep:
        raise InputError(f"{ep} groups cannot hold the experts of {tp * dp} GPUs (tp x dp)", field="ep")
    if model.num_experts % ep:
        raise InputError(f"{ep} groups cannot split the {model.num_experts} experts of {model.name}", field="ep")
    if model.expert_intermediate % (tp * dp // ep):
        raise InputError(
            f"{tp * dp // ep} GPUs cannot split an expert of {model.name}, {model.expert_intermediate} wide", field="ep"
        )
    weight_dtype = dtype or model.weight_dtype
    compute = COMPUTE_DTYPE[weight_dtype]
    if compute not in gpu.flops:
        has = ", ".join(f"'{name}'" for name, needs in COMPUTE_DTYPE.items() if needs in gpu.flops)
        raise InputError(
            f"{weight_dtype} weights need {compute} arithmetic, which the {gpu.name} does not have: expected {has}",
            field="dtype",
        )
    return Deployment(model, gpu, tp, pp, dp, ep, weight_dtype, kv_dtype or "bf16")
