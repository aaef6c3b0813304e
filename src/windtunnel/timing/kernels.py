"""What single kernels take on a GPU, by how much they read, multiply and send. All times are ms.

Each is a roofline with honest efficiencies: never the peaks of the datasheet, but the shares of them that kernels were
measured to reach. Numbers of rows may be arrays. Source of the form: Williams et al., "Roofline", CACM 2009.
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel.timing.base import FloatArray
from windtunnel.timing.catalog import GpuSpec
from windtunnel.timing.deployment import COMPUTE_DTYPE, WEIGHT_BYTES
from windtunnel.timing.efficiency import Efficiency, Rates

MS = 1e3  # in a second
ACTIVATION_BYTES = 2.0  # bf16 between kernels


class Kernels:
    """The kernels of one GPU."""

    def __init__(self, gpu: GpuSpec, efficiency: Efficiency) -> None:
        self.gpu = gpu
        self.efficiency = efficiency

    def gemm_ms(self, rows: FloatArray, outputs: float, inputs: float, dtype: str) -> FloatArray:
        """`rows` activations times a matrix of `inputs` x `outputs` weights stored as `dtype`."""
        weights = outputs * inputs * WEIGHT_BYTES[dtype]
        activations = rows * (outputs + inputs) * ACTIVATION_BYTES
        compute = COMPUTE_DTYPE[dtype]
        return self._roofline_ms(
            weights + activations, 2.0 * rows * outputs * inputs, compute, self.efficiency.gemm[compute]
        )

    def experts_ms(
        self, pairs: FloatArray, weight_bytes: FloatArray, parameters: float, activation_bytes: float, dtype: str
    ) -> FloatArray:
        """All experts of a layer for `pairs` of a token and an expert.

        Args:
            weight_bytes: of the distinct experts that are hit; parameters: of one expert, on this GPU.
            activation_bytes: read and written for a pair.
        """
        moved = weight_bytes + pairs * activation_bytes
        rates = self.efficiency.experts[dtype]
        return self._roofline_ms(moved, 2.0 * pairs * parameters, COMPUTE_DTYPE[dtype], rates)

    def elementwise_ms(self, moved_bytes: FloatArray, kernels: float = 1.0) -> FloatArray:
        """Norms, activations and the like, in so many kernels."""
        rate = self.gpu.memory_bandwidth * self.efficiency.elementwise_bandwidth
        return moved_bytes * (MS / rate) + kernels * self.efficiency.elementwise_floor_us / MS

    def all_reduce_ms(self, sent_bytes: FloatArray, num_gpus: int) -> FloatArray:
        """A ring all-reduce of so many bytes among GPUs of a node; nothing for one GPU."""
        if num_gpus == 1:
            return np.zeros_like(sent_bytes)
        return self._link_ms(sent_bytes * (2.0 * (num_gpus - 1) / num_gpus), num_gpus)

    def all_gather_ms(self, sent_bytes: FloatArray, num_gpus: int) -> FloatArray:
        """An all-gather, or a reduce-scatter, of so many bytes in all among GPUs of a node."""
        if num_gpus == 1:
            return np.zeros_like(sent_bytes)
        return self._link_ms(sent_bytes * ((num_gpus - 1) / num_gpus), num_gpus)

    def send_ms(self, sent_bytes: FloatArray) -> FloatArray:
        """From one GPU to another."""
        return self._link_ms(sent_bytes, 2)

    def _link_ms(self, sent_bytes: FloatArray, num_gpus: int) -> FloatArray:
        rate = self.gpu.link_bandwidth * self.efficiency.link_share(num_gpus)
        return sent_bytes * (MS / rate) + self.efficiency.latency_us * math.log2(num_gpus) / MS

    def _roofline_ms(self, moved_bytes: FloatArray, operations: FloatArray, dtype: str, rates: Rates) -> FloatArray:
        memory = moved_bytes * (MS / (self.gpu.memory_bandwidth * rates.bandwidth))
        compute = operations * (MS / (self.gpu.flops[dtype] * rates.flops))
        if rates.blend == 1.0:
            return memory + compute + rates.floor_us / MS
        blended: FloatArray = (memory**rates.blend + compute**rates.blend) ** (1.0 / rates.blend)
        return blended + rates.floor_us / MS
