"""What a pass costs that computes prompts and decodes together, when only each alone was measured.

Weights are read once, not twice: adding both prices is 12-39 % too much. What the two have in common is the price of
the smallest pass, so one of those is taken off. The result is never below either part and never above their sum.
Source: mixed steps of AIConfigurator against the sum of its separate ones.
"""

from __future__ import annotations


def mixed_pass_ms(prompts_ms: float, decode_ms: float, smallest_pass_ms: float) -> float:
    """Duration in ms of a pass whose prompts alone would take `prompts_ms` and its decodes alone `decode_ms`."""
    small = min(prompts_ms, decode_ms)
    return max(prompts_ms, decode_ms) + (small - min(smallest_pass_ms, small))
