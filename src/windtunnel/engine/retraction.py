"""Which running requests SGLang retracts when the next token of all of them does not fit.

Rules of SGLang 0.5.23: those with the fewest output tokens first, of equal ones that with the longest prompt; their KV
is freed without being stored. The last one that does not fit even alone is given up. Where the others go next is the
scheduler's business.
"""

from __future__ import annotations

from windtunnel.engine.kv.radix import RadixCache
from windtunnel.engine.new_token_ratio import RETRACT_STEPS, NewTokenRatio
from windtunnel.engine.running_batch import RunningBatch
from windtunnel.engine.sglang_ledger import SglangLedger
from windtunnel.engine.sglang_request import SglangRequest


def retract(
    running: RunningBatch, pool: RadixCache, ratio: NewTokenRatio, ledger: SglangLedger, now_ms: float
) -> tuple[list[SglangRequest], SglangRequest | None]:
    """Take the KV of running requests until a token of each other fits.

    Returns those that have lost it, in the order they went, and the one that was given up, if it came to that.
    """
    members = running.disband()
    staying = running.retraction_order([request for request, _ in members])
    victims: list[SglangRequest] = []
    while len(staying) > 1 and not (victims and _fits(staying, running, pool)):
        victim = staying.pop()
        ledger.lose(victim, now_ms)
        victims.append(victim)
        pool.evict_until(len(staying) * RETRACT_STEPS)
    outgrown = None
    if len(staying) == 1 and not _fits(staying, running, pool):
        outgrown = staying.pop()
        ledger.give_up(outgrown)
    generated_tokens = sum(request.output_tokens for request in staying)
    asked_tokens = sum(request.max_output_tokens for request in staying)
    ratio.note_retraction(generated_tokens, asked_tokens, len(staying))
    running.reform(staying, {request.number: tokens for request, tokens in members})
    return victims, outgrown


def _fits(requests: list[SglangRequest], running: RunningBatch, pool: RadixCache) -> bool:
    """Whether the next pass of these fits, after eviction."""
    needed = running.room_tokens(requests)
    pool.evict_until(needed)
    return needed <= pool.free_tokens
