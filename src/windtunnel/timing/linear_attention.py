"""What layers of linear attention cost: they read and write a state for each request, whatever its context.

A decode updates the state once. A prompt is scanned in blocks: inside a block tokens attend to each other, and blocks
follow one another, so that the longest chunk of a pass takes its time however idle the GPU is.
Source of the form: Gated DeltaNet, arXiv 2412.06464, section 3.3 (the chunked algorithm).
"""

from __future__ import annotations

from windtunnel.timing.deployment import Deployment
from windtunnel.timing.kernels import ACTIVATION_BYTES, MS, Kernels

SCAN_BLOCK = 64  # tokens that the chunked algorithm takes at once


class LinearAttentionPrices:
    """What the scans and updates of all linear layers cost one GPU; all zero without such layers.

    Attributes:
        decode_floor_ms: of any pass that decodes; per_decode_ms: for each of its decodes.
        prompt_floor_ms: of any pass with chunks of prompts; per_chunk_ms: for the state of each.
        per_token_ms: for each token of prompts; serial_ms: for each token of the longest chunk.
    """

    def __init__(self, deployment: Deployment, kernels: Kernels) -> None:
        self.decode_floor_ms = self.per_decode_ms = self.prompt_floor_ms = self.per_chunk_ms = 0.0
        self.per_token_ms = self.serial_ms = 0.0
        linear = deployment.model.linear
        if linear is None:
            return
        layers = deployment.model.num_linear_layers
        rates = kernels.efficiency.linear
        bandwidth = kernels.gpu.memory_bandwidth
        state_ms = 2.0 * linear.request_bytes / deployment.tp * MS / (bandwidth * rates.bandwidth)
        self.decode_floor_ms = layers * rates.floor_us / MS
        self.per_decode_ms = layers * state_ms
        self.prompt_floor_ms = layers * rates.scan_floor_us / MS
        self.per_chunk_ms = layers * state_ms
        # Written and read between the kernels of a scan, for each value head: queries, keys, values and the result, the
        # corrected keys and values of the block, and its share of the states between blocks.
        width = 2 * linear.key_dim + 2 * linear.value_dim + linear.key_dim + linear.value_dim
        numbers = linear.value_heads * (width + linear.key_dim * linear.value_dim / SCAN_BLOCK) / deployment.tp
        numbers += linear.channels / deployment.tp  # through the convolution
        self.per_token_ms = layers * 2.0 * ACTIVATION_BYTES * numbers * MS / (bandwidth * rates.scan_bandwidth)
        self.serial_ms = layers * rates.scan_token_ns / 1e6
