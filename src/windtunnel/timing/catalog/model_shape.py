"""The shape of a transformer: what has to be read, multiplied and cached for a token.

It knows layers and widths, and counts parameters; never GPUs, dtypes of a deployment or time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent vector a token.

    Attributes:
        kv_rank, q_rank: width of the latent vectors; a q_rank of 0 projects queries directly.
        nope_dim, rope_dim: width of a head's query without and with position; value_dim: of its value.
    """

    kv_rank: int
    q_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are alike.

    Attributes:
        count: how many.
        window_tokens: how far back they attend, 0 for the whole context.
        intermediate: width of the dense MLP, 0 if there is none.
        has_experts: whether routed experts (and shared ones, if the model has any) take the place of the MLP.
    """

    count: int
    window_tokens: int
    intermediate: int
    has_experts: bool


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model, as its `config.json` describes it.

    Attributes:
        name: what it was asked for as.
        hidden: width of the residual stream; vocab: rows of the embedding.
        heads, kv_heads, head_dim: attention; with `latent`, `kv_heads` means nothing.
        latent: not None for multi-head latent attention.
        layers: its layers, by kind; order does not matter.
        mlp_matrices: 3 where a gate multiplies (SwiGLU and alike), else 2.
        num_experts, experts_per_token, expert_intermediate: of a layer with routed experts.
        shared_intermediate: width of the shared experts of such a layer together, 0 for none.
        tied_embeddings: whether the LM head is the embedding.
        qk_norm: whether queries and keys are normalised.
        weight_dtype: what the checkpoint's matrices are stored as: `bf16`, `fp8` (per tensor), `fp8_block`,
            `int4`, `mxfp4` or `nvfp4`.
        only_experts_quantized: whether that holds for the routed experts alone and the rest is `bf16`.
        max_position: longest sequence the model is made for, 0 if it does not say.
    """

    name: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: LatentAttention | None
    layers: tuple[LayerGroup, ...]
    mlp_matrices: int
    num_experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int
    tied_embeddings: bool
    qk_norm: bool
    weight_dtype: str
    only_experts_quantized: bool
    max_position: int

    @property
    def num_layers(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def attention_parameters(self) -> int:
        """Parameters of the projections of one attention layer."""
        latent = self.latent
        if latent is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        query_dim = latent.nope_dim + latent.rope_dim
        query = self.hidden * self.heads * query_dim
        if latent.q_rank:
            query = self.hidden * latent.q_rank + latent.q_rank * self.heads * query_dim
        key_value = self.hidden * (latent.kv_rank + latent.rope_dim)
        key_value += latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return query + key_value + self.heads * latent.value_dim * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return self.mlp_matrices * self.hidden * self.expert_intermediate

    def dense_parameters(self, group: LayerGroup) -> int:
        """Parameters of one layer of a group that are not those of routed experts, norms left out."""
        parameters = self.attention_parameters + self.mlp_matrices * self.hidden * group.intermediate
        if group.has_experts:
            parameters += self.mlp_matrices * self.hidden * self.shared_intermediate + self.hidden * self.num_experts
        return parameters

    @property
    def num_parameters(self) -> int:
        """All parameters but norms and biases: what the name of a model usually counts."""
        total = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        for group in self.layers:
            layer = self.dense_parameters(group)
            if group.has_experts:
                layer += self.num_experts * self.expert_parameters
            total += group.count * layer
        return total
