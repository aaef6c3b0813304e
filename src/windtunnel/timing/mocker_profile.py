"""The grid that Dynamo's mocker reads: prefill by tokens, decode by active KV tokens and mean context.

Its batch size is implied by the quotient of both axes, and it is bilinear as there, beyond its edges too. It is usually
a fitted plane rather than a measurement, and its first context is 1, where the batch is the whole cache: below its
second context it is far off, which `measured` says.
Source: the arrays of the mocker's perf_data.npz; a decode pass takes 1 ms at least, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windtunnel.errors import InputError
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.decode_curve import DecodeCurve
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.mixed_pass import mixed_pass_ms
from windtunnel.timing.prefill_line import PrefillLine
from windtunnel.timing.tabulated import FLOOR_MS

MOCKER_ARRAYS = (
    "prefill_isl",
    "prefill_ttft_ms",
    "decode_active_kv_tokens",
    "decode_context_length",
    "decode_itl",
)
DECODE_FLOOR_MS = 1.0


class MockerProfile:
    """Prices passes from such a grid.

    Args:
        arrays: prefill_isl (P,) tokens and prefill_ttft_ms (P,); decode_active_kv_tokens (K,) and
            decode_context_length (C,), both increasing; decode_itl (K, C) ms.
        source: where they came from, for errors.

    Raises:
        InputError: the arrays make no sense.
    """

    def __init__(self, arrays: Mapping[str, FloatArray], source: str) -> None:
        lengths = _axis(arrays, "prefill_isl", source)
        ttfts = arrays["prefill_ttft_ms"]
        if ttfts.shape != lengths.shape:
            raise InputError(
                f"found shape {ttfts.shape}, expected {lengths.shape}, that of prefill_isl",
                source=source,
                field="prefill_ttft_ms",
            )
        self.kv_tokens = _axis(arrays, "decode_active_kv_tokens", source)
        self.contexts = _axis(arrays, "decode_context_length", source)
        self.itl_ms = arrays["decode_itl"]
        wanted = (len(self.kv_tokens), len(self.contexts))
        if self.itl_ms.shape != wanted:
            raise InputError(
                f"found shape {self.itl_ms.shape}, expected {wanted}: active KV tokens by context lengths",
                source=source,
                field="decode_itl",
            )
        for name, values in (("prefill_ttft_ms", ttfts), ("decode_itl", self.itl_ms)):
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise InputError("expected finite ms above 0 everywhere", source=source, field=name)
        self.prefill = PrefillLine(lengths, ttfts)
        self.smallest_pass_ms = float(self.itl_ms.min())
        most = int(self.kv_tokens[-1] // self.contexts[1])
        self.measured = MeasuredRange(
            decodes=(1, max(most, 1)),
            context_tokens=(float(self.contexts[1]), float(self.contexts[-1])),
            pass_tokens=(int(lengths[0]), int(lengths[-1])),
        )
        self.notes = [
            f"{source}: a grid for the Dynamo mocker; below a mean context of {self.contexts[1]:.0f} tokens it has "
            "one line of values only, and prices there mean little"
        ]

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        """Bilinear along the line context = tokens / batch: quadratic between the lines of the grid."""
        k, c, z = self.kv_tokens, self.contexts, self.itl_ms
        starts = np.unique(np.concatenate([k[1:-1], c[1:-1] * num_decodes]))
        if len(starts):
            inside = np.concatenate([[starts[0] - 1.0], (starts[:-1] + starts[1:]) / 2.0, [starts[-1] + 1.0]])
        else:
            inside = k[:1]
        i = np.clip(np.searchsorted(k, inside, side="right") - 1, 0, len(k) - 2)
        j = np.clip(np.searchsorted(c, inside / num_decodes, side="right") - 1, 0, len(c) - 2)
        area = (k[i + 1] - k[i]) * (c[j + 1] - c[j])
        # z = constant + of_k * tokens + of_c * context + of_both * tokens * context within a cell
        of_both = (z[i, j] - z[i + 1, j] - z[i, j + 1] + z[i + 1, j + 1]) / area
        of_k = (z[i + 1, j] - z[i, j]) / (k[i + 1] - k[i]) - of_both * c[j]
        of_c = (z[i, j + 1] - z[i, j]) / (c[j + 1] - c[j]) - of_both * k[i]
        constants = z[i, j] - of_k * k[i] - of_c * c[j] - of_both * k[i] * c[j]
        return DecodeCurve(starts, constants, of_k + of_c / num_decodes, of_both / num_decodes, DECODE_FLOOR_MS)

    def price_prompts_ms(self, shape: PassShape, decode_ms: float) -> float:
        prompts_ms = max(self.prefill.price_ms(shape.chunk_starts, shape.chunk_tokens), FLOOR_MS)
        if not shape.num_decodes:
            return prompts_ms
        return mixed_pass_ms(prompts_ms, decode_ms, self.smallest_pass_ms)


def _axis(arrays: Mapping[str, FloatArray], name: str, source: str) -> FloatArray:
    axis = arrays[name]
    if axis.ndim != 1 or len(axis) < 2:
        raise InputError(f"found shape {axis.shape}, expected one axis of at least 2", source=source, field=name)
    if not (np.isfinite(axis).all() and axis[0] >= 0 and (np.diff(axis) > 0).all()):
        raise InputError("expected increasing numbers of at least 0", source=source, field=name)
    return axis
