"""What attention over the KV cache takes: it grows with contexts, and with pairs of a token and what it attends to.

Contexts are logical ones: a prefix that requests share is read for each of them. A layer with a sliding window reads no
more than that for a request. Sparse attention is two things: an index that is scored over the whole context, and latent
attention to as many tokens as it picks, which costs what a window of that size does. Its kernels stay in the latent
space and fill up their heads; prompts no longer than what is picked are attended to densely, as SGLang does.
"""

from __future__ import annotations

from windtunnel.timing.catalog import LayerGroup
from windtunnel.timing.deployment import Deployment
from windtunnel.timing.kernels import MS, Kernels


class AttentionPrices:
    """What attention costs one GPU of a deployment, all layers together.

    Attributes:
        decode_floor_ms: of any pass that decodes; per_decode_ms: for each of its decodes.
        per_context_ms: for each context token of a decode, in the layers that attend to everything.
        pairs_per_read: time of a decode's token with a position, over that of reading it; latent attention that is
            bound by compute has 1.
        windows: of each kind of layer with a window, its tokens and the ms for each of those that is read.
        prompt_floor_ms: of any pass with chunks of prompts.
        per_pair_ms: for each pair of a chunk's token and a position it attends to, in layers without a window.
        per_read_ms: for each context token that a chunk reads in those: a short chunk on a long prefix is not
            bound by its pairs.
        pair_windows: of each kind of layer with a window, its tokens, the ms of a pair and of a token read.
        dense_pair_ms: of a pair where a context is so short that sparse attention is dense; 0 without an index.
        index_pair_ms: of a pair that an index scores; 0 without one.
    """

    def __init__(self, deployment: Deployment, kernels: Kernels) -> None:
        model = deployment.model
        efficiency = kernels.efficiency
        gpu = kernels.gpu
        layers = model.num_attention_layers
        self.decode_floor_ms = layers * efficiency.attention_floor_us / MS
        cached_heads = 1 if model.latent is not None else deployment.kv_heads_per_gpu
        self.per_decode_ms = layers * cached_heads * efficiency.attention_head_us / MS
        prompt_us = efficiency.prefill_floor_us + (efficiency.qk_norm_us if model.qk_norm else 0.0)
        self.prompt_floor_ms = layers * prompt_us / MS
        self.dense_pair_ms = self.index_pair_ms = 0.0
        read_ms = deployment.kv_bytes_per_layer * MS / (gpu.memory_bandwidth * efficiency.attention_bandwidth)
        heads = model.heads / deployment.tp
        latent = model.latent
        decode_ms = read_ms
        if latent is None:
            pair_operations = 4.0 * heads * model.head_dim
            decode_operations = pair_operations
        else:
            # A decode stays in the latent space: each head reads (rank + rope) and accumulates rank. Many heads on
            # one GPU make that compute, not memory.
            pair_operations = 2.0 * heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
            decode_operations = 2.0 * heads * (2 * latent.kv_rank + latent.rope_dim)
            decode_ms = max(read_ms, decode_operations * MS / (gpu.flops["bf16"] * efficiency.prefill_flops))
        self.pairs_per_read = decode_operations * MS / (gpu.flops["bf16"] * efficiency.prefill_flops) / decode_ms
        pair_ms = pair_operations * MS / (gpu.flops["bf16"] * efficiency.prefill_flops)
        full = [group for group in model.layers if not group.window_tokens and not group.is_linear]
        windowed = [group for group in model.layers if group.window_tokens]
        num_full = sum(group.count for group in full)
        self.per_context_ms = num_full * decode_ms
        self.per_pair_ms = num_full * pair_ms
        self.per_read_ms = num_full * read_ms
        self.windows = [(tokens, count * decode_ms) for tokens, count in _by_window(windowed)]
        self.pair_windows = [(tokens, count * pair_ms, count * read_ms) for tokens, count in _by_window(windowed)]
        if model.index is not None:
            self._add_index(deployment, kernels, num_full)

    def _add_index(self, deployment: Deployment, kernels: Kernels, layers: int) -> None:
        """Turn what was priced as dense latent attention into an index over everything and attention to its picks."""
        model, gpu, rates = deployment.model, kernels.gpu, kernels.efficiency.sparse
        index, latent = model.index, model.latent
        assert index is not None
        assert latent is not None
        index_dtype = "fp8" if "fp8" in gpu.flops else "bf16"
        index_read_ms = deployment.index_bytes_per_layer * MS / (gpu.memory_bandwidth * rates.index_bandwidth)
        index_pair_ms = 2.0 * index.heads * index.head_dim * MS / (gpu.flops[index_dtype] * rates.index_flops)
        heads = -(-model.heads // deployment.tp // rates.heads) * rates.heads
        # An FP8 cache is multiplied as it is by Blackwell's kernels, and widened by others.
        dtype = "fp8" if deployment.kv_dtype == "fp8" and "fp4" in gpu.flops else "bf16"
        pair_ms = 2.0 * heads * (2 * latent.kv_rank + latent.rope_dim) * MS / (gpu.flops[dtype] * rates.flops)
        self.windows = [(index.top_k, self.per_context_ms)]
        self.pair_windows = [(index.top_k, layers * pair_ms, self.per_read_ms)]
        self.dense_pair_ms = self.per_pair_ms
        self.per_context_ms = layers * (index_read_ms + index_pair_ms)
        self.index_pair_ms = layers * index_pair_ms
        self.per_pair_ms = self.per_read_ms = 0.0  # chunks are priced by `windows_of_chunk_ms` alone
        self.decode_floor_ms += layers * rates.index_floor_us / MS
        self.prompt_floor_ms += layers * rates.index_floor_us / MS

    def windows_of_chunk_ms(self, start: int, tokens: int) -> float:
        """A chunk of `tokens` tokens of a prompt from position `start`, in the layers with a window or an index."""
        if self.dense_pair_ms and start + tokens <= self.pair_windows[0][0]:
            return tokens * (start + 0.5 * tokens) * self.dense_pair_ms
        total = tokens * (start + 0.5 * tokens) * self.index_pair_ms
        for window, pair_ms, read_ms in self.pair_windows:
            total += max(_pairs_within(window, start, tokens) * pair_ms, min(start + tokens, window + tokens) * read_ms)
        return total


def _by_window(groups: list[LayerGroup]) -> list[tuple[int, int]]:
    """Window and number of layers."""
    counts: dict[int, int] = {}
    for group in groups:
        counts[group.window_tokens] = counts.get(group.window_tokens, 0) + group.count
    return sorted(counts.items())


def _pairs_within(window: int, start: int, tokens: int) -> float:
    """Pairs of a chunk where no token attends further back than `window`."""
    growing = min(max(window - start, 0), tokens)  # tokens whose window is not full yet
    return growing * start + 0.5 * growing * growing + (tokens - growing) * float(window)
