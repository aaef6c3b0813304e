"""Two checks of other people's kernel tables, before anything is decided by them.

Tables have broken rows that nothing marks: kernels that were measured without CUDA graphs, and edges of what was
collected where one more request costs a third more. A price far from what the hardware can do, or a cliff between two
neighbouring batch sizes, is neither refused nor mended, but said.
Source of the limits: they tell the known broken FP8 tables of AIConfigurator 0.12 from its BF16 ones.
"""

from __future__ import annotations

import numpy as np

from windtunnel.timing.base import FloatArray, PassShape, TimingModel

DECODE_RATIO = (0.75, 1.35)  # of a table's price to the reference
PROMPT_RATIO = (0.7, 1.6)
TOLERATED_SHARE = 0.05  # of the points checked that may lie outside
JUMP = 1.10  # from one batch size to the next
SMALLEST_BATCH = 16  # from here on, a price in proportion to the batch grows by less than 7 % a step

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 106, 128, 192, 256)
_CONTEXTS = (256, 512, 1024, 2048, 4103, 8192, 16384, 32768)
_PROMPTS = (64, 128, 512, 1024, 2048, 4096, 8192)


def jump_findings(decode_ms: FloatArray, contexts: FloatArray, context_tokens: float = 2048.0) -> list[str]:
    """Neighbouring batch sizes whose prices are a cliff apart, in words; none if there are none.

    Args:
        decode_ms: durations by (batch size from 1, context). contexts: of the columns.
    """
    column = decode_ms[:, int(np.searchsorted(contexts, context_tokens))]
    steps = column[SMALLEST_BATCH:] / column[SMALLEST_BATCH - 1 : -1]
    cliffs = np.flatnonzero(steps > JUMP)
    if not len(cliffs):
        return []
    shown = ", ".join(f"{SMALLEST_BATCH + i} to {SMALLEST_BATCH + i + 1} (+{steps[i] - 1:.0%})" for i in cliffs[:4])
    more = f" and {len(cliffs) - 4} more" if len(cliffs) > 4 else ""
    return [f"one more decode costs over 10 % more at batch {shown}{more}: an edge of what was measured, not a GPU"]


def ratio_findings(model: TimingModel, reference: TimingModel, name: str) -> list[str]:
    """Whether a model is far from a reference on too many passes, in words; none if it is not.

    Args:
        reference: kernels only, as the model. name: what the reference is called.
    """
    findings = []
    decodes = [PassShape(batch, batch * context) for batch in _BATCHES for context in _CONTEXTS]
    prompts = []
    for tokens in _PROMPTS:
        shape = PassShape()
        shape.add_chunk(0, tokens, tokens + 1, sampled=False)
        prompts.append(shape)
    for what, shapes, (low, high) in (("decode", decodes, DECODE_RATIO), ("prefill", prompts, PROMPT_RATIO)):
        ratios = np.array([model.price_pass_ms(shape) / reference.price_pass_ms(shape) for shape in shapes])
        outside = float(np.mean((ratios < low) | (ratios > high)))
        if outside > TOLERATED_SHARE:
            findings.append(
                f"{outside:.0%} of {what} passes cost less than {low:g} or more than {high:g} times what {name} "
                f"says (median {np.median(ratios):.2f} times): broken rows are known to look like this"
            )
    return findings
