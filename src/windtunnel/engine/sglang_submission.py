"""What SGLang's front end accepts: output is clipped to what the pool can hold, and what cannot be served is refused.

The rules are those of SGLang 0.5.23's request validation, and, so that no accepted request waits for ever, of its
admission to an empty engine. It looks at the configuration only, never at the state of an engine.
"""

from __future__ import annotations

from windtunnel.config.sglang import SglangConfig
from windtunnel.engine.running_batch import OUTPUT_CLIP

INPUT_SLACK = 6  # tokens that SGLang keeps free behind the longest prompt it takes, and one more


def safe_length(config: SglangConfig) -> int:
    """Length in tokens, of prompt and output together, up to which nothing is ever clipped or refused."""
    return _longest(config, config.kv_capacity_tokens) - INPUT_SLACK - 2 * config.page_size - 2


def limit_output(config: SglangConfig, prompt_tokens: int, output_tokens: int) -> int:
    """Output tokens that SGLang lets a request have: it ends two tokens short of the pool or the context length."""
    return max(min(output_tokens, _longest(config, config.kv_capacity_tokens) - prompt_tokens - 2), 0)


def refusal(config: SglangConfig, prompt_tokens: int, output_tokens: int) -> str:
    """Why a request can never be served, with the smallest setting that would serve it; "" if it can."""
    context = config.context_length
    if context is not None and prompt_tokens >= context - INPUT_SLACK:
        return (
            f"prompt of {prompt_tokens} tokens does not fit context_length {context}: "
            f"it needs at least {prompt_tokens + INPUT_SLACK + 1}"
        )
    if _fits(config, config.kv_capacity_tokens, prompt_tokens, output_tokens):
        return ""
    blocks = _smallest_pool(config, prompt_tokens, output_tokens)
    return (
        f"{prompt_tokens} prompt and {output_tokens} output tokens do not fit {config.num_gpu_blocks} KV blocks of "
        f"{config.page_size} tokens: num_gpu_blocks must be at least {blocks}"
    )


def _longest(config: SglangConfig, pool_tokens: int) -> int:
    return pool_tokens if config.context_length is None else min(pool_tokens, config.context_length)


def _fits(config: SglangConfig, pool_tokens: int, prompt_tokens: int, output_tokens: int) -> bool:
    """Whether an empty engine with such a pool accepts and admits a request."""
    if prompt_tokens >= _longest(config, pool_tokens) - INPUT_SLACK:
        return False
    page = config.page_size
    output = min(output_tokens, _longest(config, pool_tokens) - prompt_tokens - 2)
    if config.ignore_eos and not config.enable_prefix_caching:  # it must be seen to complete
        spare = pool_tokens - -(-prompt_tokens // page) * page - page
        return spare > output + 1 if output else spare >= 0
    return prompt_tokens + min(output, OUTPUT_CLIP) + page < pool_tokens


def _smallest_pool(config: SglangConfig, prompt_tokens: int, output_tokens: int) -> int:
    """The fewest pages with which a request would be served."""
    low = config.num_gpu_blocks
    high = low + -(-(prompt_tokens + output_tokens + INPUT_SLACK) // config.page_size) + 3
    while high - low > 1:  # low does not do, high does, and so does everything above what does
        middle = (low + high) // 2
        if _fits(config, middle * config.page_size, prompt_tokens, output_tokens):
            high = middle
        else:
            low = middle
    return high
