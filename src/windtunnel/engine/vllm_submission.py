"""What vLLM's front end makes of a request before the scheduler sees it: cut short, or refused.

Refused is what could never be served. vLLM itself checks only the prompt against the model's length; on the
rest its scheduler would wait forever or crash.
"""

from __future__ import annotations

from windtunnel.config.schema import VllmConfig


def safe_lengths(config: VllmConfig) -> tuple[int, int]:
    """Lengths in tokens, of a prompt and of prompt and output together, up to which nothing is cut or refused."""
    total = config.kv_capacity_tokens
    longest = config.max_sequence_tokens
    if longest is None:
        return total, total
    total = min(total, longest)
    return min(total, longest - 1), total


def refusal(config: VllmConfig, prompt_tokens: int, output_tokens: int) -> str:
    """Why a request can never be served, with the smallest setting that would serve it; "" if it can."""
    if config.max_model_len is not None and prompt_tokens >= config.max_model_len:
        return (
            f"prompt of {prompt_tokens} tokens does not fit max_model_len {config.max_model_len}: "
            f"it needs at least {prompt_tokens + 1}"
        )
    if not config.enable_chunked_prefill and prompt_tokens > config.max_num_batched_tokens:
        return (
            f"prompt of {prompt_tokens} tokens does not fit a pass without chunked prefill: "
            f"it needs max_num_batched_tokens of at least {prompt_tokens}"
        )
    limit = config.max_sequence_tokens
    if limit is not None:
        output_tokens = min(output_tokens, limit - prompt_tokens)
    longest = prompt_tokens + output_tokens - 1 if output_tokens else prompt_tokens  # the last token is not computed
    blocks = -(-longest // config.block_size)
    if blocks > config.num_gpu_blocks:
        return (
            f"{prompt_tokens} prompt and {output_tokens} output tokens need {blocks} KV blocks of "
            f"{config.block_size} tokens: num_gpu_blocks is {config.num_gpu_blocks} and must be at least {blocks}"
        )
    return ""
