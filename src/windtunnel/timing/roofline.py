"""The price of a pass from a model, a GPU and how well kernels use it: no measurement of that model is needed.

A pass costs what its layers take for all its tokens together, one row of the LM head for each token that is sampled,
attention over the contexts of its decodes and over the chunks of its prompts, and an overhead of the engine that is not
in any kernel. Weights are read once, also in a mixed pass. With pipeline stages a pass takes the sum of its stages:
the next one does not start before it ends, which is pessimistic about throughput.
"""

from __future__ import annotations

import numpy as np

from windtunnel.timing.attention import AttentionPrices
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.deployment import COMPUTE_DTYPE, Deployment
from windtunnel.timing.efficiency import Efficiency, load_efficiency
from windtunnel.timing.kernels import Kernels
from windtunnel.timing.layers import layers_ms, lm_head_ms, sharing_experts_ms, sparse_host_ms
from windtunnel.timing.linear_attention import LinearAttentionPrices
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.overhead import NO_OVERHEAD, Overhead
from windtunnel.timing.verification import IntArray, VerifyingShape

FIRST_TABLE_TOKENS = 1024
# Batch sizes for which engines capture CUDA graphs unless told otherwise (vLLM: 1, 2, 4, then steps of 8 and 16).
GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


class RooflineTiming:
    """Prices passes of a deployment.

    `measured` is the range of the points that its errors are known for (docs/timing.md).

    Args:
        deployment: the model on its GPUs.
        overhead: time that a pass takes besides its kernels.
        cuda_graph_padding: whether passes of up to 512 tokens compute as many as the next captured graph has.
        efficiency: the factors; those of the GPU unless given.
    """

    needs_physical_context = False
    measured = MeasuredRange(decodes=(1, 256), context_tokens=(1.0, 32_768.0), pass_tokens=(1, 8192))

    def __init__(
        self,
        deployment: Deployment,
        overhead: Overhead = NO_OVERHEAD,
        *,
        cuda_graph_padding: bool = False,
        efficiency: Efficiency | None = None,
    ) -> None:
        self.deployment = deployment
        self.overhead = overhead
        self.cuda_graph_padding = cuda_graph_padding
        self.kernels = Kernels(deployment.gpu, efficiency or load_efficiency(deployment.gpu.name))
        self.attention = AttentionPrices(deployment, self.kernels)
        linear = LinearAttentionPrices(deployment, self.kernels)
        self.notes = _notes(deployment, self.kernels.efficiency)
        # What each pass asks for, within reach.
        self._windows = self.attention.windows
        self._slope_ms = self.attention.per_context_ms
        self._pair_ms = self.attention.per_pair_ms
        self._read_ms = self.attention.per_read_ms
        self._decode_floor_ms = self.attention.decode_floor_ms + linear.decode_floor_ms
        self._per_decode_ms = self.attention.per_decode_ms + linear.per_decode_ms
        self._prompt_floor_ms = self.attention.prompt_floor_ms + linear.prompt_floor_ms + overhead.pass_ms
        self._linear = linear if linear.serial_ms else None
        self._request_ms = overhead.request_ms
        self._layers_ms: list[float] = []  # of a pass by its tokens
        self._host_ms: list[float] = []  # what attention to a pass with prompts takes at least, with an index only
        self._experts_ms: list[float] = []  # by the tokens of all ranks, where they share them
        self._head_ms: list[float] = []  # of sampling by rows
        self._decode_ms: list[float] = []  # of a pass that only decodes by its decodes, contexts left out
        self._grow(FIRST_TABLE_TOKENS)

    def price_pass_ms(self, shape: PassShape) -> float:
        decodes = shape.num_decodes
        chunks = shape.chunk_tokens
        if not chunks:
            if not decodes:
                return 0.0
            if decodes >= len(self._decode_ms):
                self._grow(decodes)
            context = float(shape.decode_context_tokens)
            ms = context * self._slope_ms + self._decode_ms[decodes]
            for window, window_ms in self._windows:
                ms += min(context, float(window * decodes)) * window_ms
            return ms
        tokens = decodes + sum(chunks)
        if tokens >= len(self._layers_ms):
            self._grow(tokens)
        ms = self._layers_ms[tokens] + self._head_ms[shape.num_sampled] + self._prompt_floor_ms
        ms += self._request_ms * (decodes + len(chunks))
        if shape.group_tokens and self._experts_ms:
            ms += self._experts_in_group_ms(shape.group_tokens) - self._experts_in_group_ms(tokens * self.deployment.dp)
        pair_ms = self._pair_ms
        read_ms = self._read_ms
        for start, length in zip(shape.chunk_starts, chunks):  # noqa: B905  # of one length; a hot loop
            computing = length * (start + 0.5 * length) * pair_ms
            reading = (start + length) * read_ms
            ms += computing if computing > reading else reading
        if self._windows:
            in_windows = 0.0
            for start, length in zip(shape.chunk_starts, chunks, strict=True):
                in_windows += self.attention.windows_of_chunk_ms(start, length)
            if self._host_ms and in_windows < self._host_ms[tokens]:
                in_windows = self._host_ms[tokens]
            ms += in_windows
        linear = self._linear
        if linear is not None:
            ms += len(chunks) * linear.per_chunk_ms + (tokens - decodes) * linear.per_token_ms
            ms += max(chunks) * linear.serial_ms
        if decodes:
            context = float(shape.decode_context_tokens)
            ms += self._decode_floor_ms + decodes * self._per_decode_ms + context * self._slope_ms
            for window, window_ms in self._windows:
                ms += min(context, float(window * decodes)) * window_ms
        return ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        if num_decodes >= len(self._decode_ms):
            self._grow(num_decodes)
        # The operations of price_pass_ms in its order, so that both give the same bits.
        context = np.arange(
            context_tokens, context_tokens + (passes - 1) * num_decodes + 1, num_decodes, dtype=np.float64
        )
        if not self._windows:
            context *= self._slope_ms
            context += self._decode_ms[num_decodes]
            return context
        ms = context * self._slope_ms
        ms += self._decode_ms[num_decodes]
        for window, window_ms in self._windows:
            ms += np.minimum(context, float(window * num_decodes)) * window_ms
        return ms

    def price_verifying_pass_ms(self, shape: VerifyingShape) -> float:
        ms = self.price_pass_ms(shape)
        drafts = shape.draft_tokens
        if not drafts:
            return ms
        decodes = shape.num_decodes
        fixed_ms, factor = self._drafts_ms(decodes, drafts, sum(shape.chunk_tokens), shape.num_sampled)
        context = float(shape.decode_context_tokens)
        ms += context * (self._slope_ms * (factor - 1.0)) + fixed_ms
        if shape.group_tokens and self._experts_ms and shape.chunk_tokens:  # they are among those of the group already
            dp = self.deployment.dp
            tokens = decodes + sum(shape.chunk_tokens)
            ms -= self._experts_in_group_ms((tokens + drafts) * dp) - self._experts_in_group_ms(tokens * dp)
        for window, window_ms in self._windows:
            ms += min(context, float(window * decodes + drafts)) * (window_ms * factor)
            ms -= min(context, float(window * decodes)) * window_ms
        return ms

    def price_verifications_ms(
        self, num_decodes: int, draft_tokens: int, contexts: IntArray, physical_contexts: IntArray | None
    ) -> FloatArray:
        fixed_ms, factor = self._drafts_ms(num_decodes, draft_tokens, 0, num_decodes)
        context = contexts.astype(np.float64)
        ms: FloatArray = context * self._slope_ms
        ms += self._decode_ms[num_decodes]
        for window, window_ms in self._windows:
            ms += np.minimum(context, float(window * num_decodes)) * window_ms
        ms += context * (self._slope_ms * (factor - 1.0)) + fixed_ms
        for window, window_ms in self._windows:
            ms += np.minimum(context, float(window * num_decodes + draft_tokens)) * (window_ms * factor)
            ms -= np.minimum(context, float(window * num_decodes)) * window_ms
        return ms

    def _drafts_ms(self, decodes: int, drafts: int, prompt_tokens: int, rows: int) -> tuple[float, float]:
        """What drafts add to a pass, contexts left out; and the factor on reading those.

        A context is read once for all tokens of a request: as long as it is not their products that take the time.
        """
        tokens = decodes + prompt_tokens
        if tokens + drafts >= len(self._layers_ms):
            self._grow(tokens + drafts)
        ms = self._layers_ms[tokens + drafts] - self._layers_ms[tokens]
        ms += self._head_ms[rows + drafts] - self._head_ms[rows]
        if self._linear is not None:
            ms += drafts * self._linear.per_token_ms
        return ms, max(1.0, (decodes + drafts) / decodes * self.attention.pairs_per_read)

    def _experts_in_group_ms(self, group_tokens: int) -> float:
        """Routed experts of a pass in which all ranks together have so many tokens."""
        if group_tokens >= len(self._experts_ms):
            self._grow(group_tokens)
        return self._experts_ms[group_tokens]

    def _grow(self, tokens: int) -> None:
        """Extend the tables to passes of at least `tokens` tokens."""
        size = max(2 * len(self._layers_ms), tokens + 1)
        numbers = np.arange(size, dtype=np.float64)
        computed = numbers
        if self.cuda_graph_padding:
            sizes = np.asarray(GRAPH_SIZES, dtype=np.float64)
            padded = sizes[np.minimum(np.searchsorted(sizes, numbers), len(sizes) - 1)]
            computed = np.maximum(numbers, padded)
            computed[0] = 0.0
        layers = layers_ms(self.deployment, self.kernels, computed)
        head = lm_head_ms(self.deployment, self.kernels, numbers)
        head[0] = 0.0
        decode = layers + head + (self._decode_floor_ms + self.overhead.pass_ms)
        decode += numbers * (self.overhead.request_ms + self._per_decode_ms)
        if self.deployment.model.index is not None:
            self._host_ms = sparse_host_ms(self.deployment, self.kernels, computed).tolist()
        if self.deployment.dp > 1 and self.deployment.model.num_experts:
            self._experts_ms = sharing_experts_ms(self.deployment, self.kernels, numbers).tolist()
        self._layers_ms = layers.tolist()
        self._head_ms = head.tolist()
        self._decode_ms = decode.tolist()


def _notes(deployment: Deployment, efficiency: Efficiency) -> list[str]:
    """What makes this deployment less certain than those that errors are known for."""
    notes = []
    if not efficiency.is_fitted:
        notes.append(
            f"kernels of the {deployment.gpu.name} were not measured: its efficiencies are those of another GPU"
        )
    if deployment.model.latent is not None:
        notes.append("latent attention with experts: prompts have been priced up to a third too low")
    if deployment.pp > 1:
        notes.append("pipeline stages do not overlap here: throughput is a lower bound")
    if COMPUTE_DTYPE[deployment.weight_dtype] == "fp4":
        notes.append("fp4 arithmetic was not measured: its efficiency is a guess")
    return notes
