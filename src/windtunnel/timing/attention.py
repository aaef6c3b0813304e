"""What attention over the KV cache takes: it grows with contexts, and with pairs of a token and what it attends to.

Contexts are logical ones: a prefix that requests share is read for each of them. A layer with a sliding window reads no
more than that for a request.
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
        windows: of each kind of layer with a window, its tokens and the ms for each of those that is read.
        prompt_floor_ms: of any pass with chunks of prompts.
        per_pair_ms: for each pair of a chunk's token and a position it attends to, in layers without a window.
        per_read_ms: for each context token that a chunk reads in those: a short chunk on a long prefix is not
            bound by its pairs.
        pair_windows: of each kind of layer with a window, its tokens, the ms of a pair and of a token read.
    """

    def __init__(self, deployment: Deployment, kernels: Kernels) -> None:
        model = deployment.model
        efficiency = kernels.efficiency
        gpu = kernels.gpu
        self.decode_floor_ms = model.num_layers * efficiency.attention_floor_us / MS
        cached_heads = 1 if model.latent is not None else deployment.kv_heads_per_gpu
        self.per_decode_ms = model.num_layers * cached_heads * efficiency.attention_head_us / MS
        prompt_us = efficiency.prefill_floor_us + (efficiency.qk_norm_us if model.qk_norm else 0.0)
        self.prompt_floor_ms = model.num_layers * prompt_us / MS
        read_ms = deployment.kv_bytes_per_layer * MS / (gpu.memory_bandwidth * efficiency.attention_bandwidth)
        heads = model.heads / deployment.tp
        latent = model.latent
        decode_ms = read_ms
        if latent is None:
            pair_operations = 4.0 * heads * model.head_dim
        else:
            # A decode stays in the latent space: each head reads (rank + rope) and accumulates rank. Many heads on
            # one GPU make that compute, not memory.
            pair_operations = 2.0 * heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
            latent_operations = 2.0 * heads * (2 * latent.kv_rank + latent.rope_dim)
            decode_ms = max(read_ms, latent_operations * MS / (gpu.flops["bf16"] * efficiency.prefill_flops))
        pair_ms = pair_operations * MS / (gpu.flops["bf16"] * efficiency.prefill_flops)
        full = [group for group in model.layers if not group.window_tokens]
        windowed = [group for group in model.layers if group.window_tokens]
        num_full = sum(group.count for group in full)
        self.per_context_ms = num_full * decode_ms
        self.per_pair_ms = num_full * pair_ms
        self.per_read_ms = num_full * read_ms
        self.windows = [(tokens, count * decode_ms) for tokens, count in _by_window(windowed)]
        self.pair_windows = [(tokens, count * pair_ms, count * read_ms) for tokens, count in _by_window(windowed)]

    def windows_of_chunk_ms(self, start: int, tokens: int) -> float:
        """A chunk of `tokens` tokens of a prompt from position `start`, in the layers with a window."""
        total = 0.0
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
