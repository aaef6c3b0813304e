"""The shape of a transformer: what has to be read, multiplied and cached for a token.

It knows layers and widths, and counts parameters; never GPUs, dtypes of a deployment or time.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a checkpoint may leave unquantised: projections before attention and after it, those of linear attention, dense
# MLPs, shared experts. The routed experts never are.
PARTS = ("attention", "output", "linear", "mlp", "shared")


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
class SparseIndex:
    """What picks the tokens that latent attention reads (DeepSeek Sparse Attention, arXiv 2512.02556, section 2.1).

    A small key of every token is cached besides its latent vector; each query scores all of them and attends to the
    best `top_k` alone.

    Attributes:
        heads, head_dim: of its queries; all heads share one key of `head_dim`.
        top_k: tokens that are attended to.
    """

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Layers that keep a state instead of a KV cache (Gated DeltaNet, arXiv 2412.06464, as in Qwen3-Next and 3.5).

    Attributes:
        key_heads, key_dim, value_heads, value_dim: of queries and keys, and of values and their gate.
        kernel: tokens that the short convolution before it sees.
        state_bytes: of one number of the state.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int
    state_bytes: int

    @property
    def channels(self) -> int:
        """Width of what the convolution mixes: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_numbers(self) -> int:
        """Numbers in the state of a request, of one layer."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def request_bytes(self) -> int:
        """Bytes that one layer keeps for a request, however long it is; the convolution's last tokens are bf16."""
        return self.state_numbers * self.state_bytes + 2 * (self.kernel - 1) * self.channels


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are alike.

    Attributes:
        count: how many.
        window_tokens: how far back they attend, 0 for the whole context.
        intermediate: width of the dense MLP, 0 if there is none.
        has_experts: whether routed experts (and shared ones, if the model has any) take the place of the MLP.
        is_linear: whether they have the model's linear attention, and no KV cache.
    """

    count: int
    window_tokens: int
    intermediate: int
    has_experts: bool
    is_linear: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model, as its `config.json` describes it.

    Attributes:
        name: what it was asked for as.
        hidden: width of the residual stream; vocab: rows of the embedding.
        heads, kv_heads, head_dim: attention; with `latent`, `kv_heads` means nothing.
        latent: not None for multi-head latent attention; index: not None if that attends to picked tokens only.
        linear: of the layers that are linear, None if there are none.
        gates_attention: whether the result of attention is gated, by a projection as wide as the queries.
        layers: its layers, by kind; order does not matter.
        mlp_matrices: 3 where a gate multiplies (SwiGLU and alike), else 2.
        num_experts, experts_per_token, expert_intermediate: of a layer with routed experts.
        shared_intermediate: width of the shared experts of such a layer together, 0 for none.
        tied_embeddings: whether the LM head is the embedding.
        qk_norm: whether queries and keys are normalised.
        weight_dtype: what the checkpoint's matrices are stored as: `bf16`, `fp8` (per tensor), `fp8_block`,
            `int4`, `int4_g32`, `mxfp4` or `nvfp4`.
        bf16_parts: which of `PARTS` are `bf16` nevertheless. The LM head always is.
        max_position: longest sequence the model is made for, 0 if it does not say.
    """

    name: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: LatentAttention | None
    index: SparseIndex | None
    linear: LinearAttention | None
    gates_attention: bool
    layers: tuple[LayerGroup, ...]
    mlp_matrices: int
    num_experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int
    tied_embeddings: bool
    qk_norm: bool
    weight_dtype: str
    bf16_parts: frozenset[str]
    max_position: int

    @property
    def num_layers(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def num_attention_layers(self) -> int:
        """Layers that have a KV cache."""
        return sum(group.count for group in self.layers if not group.is_linear)

    @property
    def num_linear_layers(self) -> int:
        return self.num_layers - self.num_attention_layers

    def parameters_of(self, group: LayerGroup) -> dict[str, int]:
        """Parameters of one layer of a group by part (`PARTS`) and of its router, without routed experts and norms."""
        parameters = self._linear_parameters() if group.is_linear else self._attention_parameters()
        mlp = self.mlp_matrices * self.hidden
        parameters["mlp"] = mlp * group.intermediate
        parameters["shared"] = mlp * self.shared_intermediate if group.has_experts else 0
        parameters["router"] = self.hidden * self.num_experts if group.has_experts else 0
        return parameters

    def _attention_parameters(self) -> dict[str, int]:
        latent = self.latent
        if latent is None:
            queries = self.heads * (2 if self.gates_attention else 1)
            inward = self.hidden * self.head_dim * (queries + 2 * self.kv_heads)
            return {"attention": inward, "output": self.hidden * self.head_dim * self.heads}
        query_dim = latent.nope_dim + latent.rope_dim
        query = self.hidden * self.heads * query_dim
        if latent.q_rank:
            query = self.hidden * latent.q_rank + latent.q_rank * self.heads * query_dim
        key_value = self.hidden * (latent.kv_rank + latent.rope_dim)
        key_value += latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        index = self.index
        if index is not None:
            key_value += (latent.q_rank or self.hidden) * index.heads * index.head_dim
            key_value += self.hidden * (index.head_dim + index.heads)
        return {"attention": query + key_value, "output": self.heads * latent.value_dim * self.hidden}

    def _linear_parameters(self) -> dict[str, int]:
        linear = self.linear
        assert linear is not None
        values = linear.value_heads * linear.value_dim
        inward = self.hidden * (linear.channels + values + 2 * linear.value_heads) + linear.kernel * linear.channels
        return {"linear": inward + values * self.hidden}

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return self.mlp_matrices * self.hidden * self.expert_intermediate

    @property
    def num_parameters(self) -> int:
        """All parameters but norms and biases: what the name of a model usually counts."""
        total = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        for group in self.layers:
            layer = sum(self.parameters_of(group).values())
            if group.has_experts:
                layer += self.num_experts * self.expert_parameters
            total += group.count * layer
        return total
