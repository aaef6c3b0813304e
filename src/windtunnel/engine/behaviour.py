"""What changed between vLLM releases, as one record of facts a release.

It decides nothing. Each fact was read off recordings of that release's own scheduler (tests/golden): 0.33.0, 0.20.2
and 0.11.0 played the same scenarios.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """How one release decides where releases differ.

    Attributes:
        reserves_full_prompt: a prompt can be admitted only if all of it fits, not just its first chunk.
        reuses_unhashed_first: a freed block without a hash goes to the front of the free queue, else to its back.
        exempts_lone_request: `long_prefill_token_threshold` does not cap a request that is alone.
        stops_over_budget: chunking off, a head that exceeds the budget stops the admissions; else the next is tried.
        continues_after_self_preemption: with priorities, others go on after a request that preempted itself.
        restores_victims: with priorities, the budget gets back what a victim of the same pass was given, and the
            victim leaves the batch; `keeps_place` is whether the walk then goes on with the right request even if
            the victim got nothing.
        lookahead_hashes: with draft models, a block's hash covers the next token too; else a hit gives up its last
            block.
        lookahead_at_admission: with draft models, admissions take blocks for the drafts as well.
        pads_admission: with drafts, an admission with one token left is scheduled with drafts to be rejected.
        hashes_drafts: confirmed draft tokens are hashed when the output is processed; else in the next pass.
        knows_last_pass: asynchronous, a request that ends by its length is not scheduled once too often.
    """

    reserves_full_prompt: bool = True
    reuses_unhashed_first: bool = True
    exempts_lone_request: bool = True
    stops_over_budget: bool = True
    continues_after_self_preemption: bool = True
    restores_victims: bool = True
    keeps_place: bool = True
    lookahead_hashes: bool = True
    lookahead_at_admission: bool = True
    pads_admission: bool = True
    hashes_drafts: bool = True
    knows_last_pass: bool = True


BEHAVIOURS = {
    "0.33": Behaviour(),
    "0.20": Behaviour(
        reuses_unhashed_first=False,
        exempts_lone_request=False,
        continues_after_self_preemption=False,
        keeps_place=False,
        lookahead_hashes=False,
        lookahead_at_admission=False,
        pads_admission=False,
        hashes_drafts=False,
    ),
    "0.11": Behaviour(
        reserves_full_prompt=False,
        reuses_unhashed_first=False,
        exempts_lone_request=False,
        stops_over_budget=False,
        continues_after_self_preemption=False,
        restores_victims=False,
        keeps_place=False,
        lookahead_hashes=False,
        lookahead_at_admission=False,
        pads_admission=False,
        hashes_drafts=False,
        knows_last_pass=False,
    ),
}
