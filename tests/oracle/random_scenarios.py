"""Random scenarios for vLLM's scheduler that are small and tight: almost everything contends for something.

Pools of a few blocks, budgets down to one token, shared prefixes, prompts that quote the outputs of other requests
before those exist, aborts. Profiles: `general`; `thresholds`, where capped prompts stand between decodes; `adaptive`,
where the cap of a chunk moves with the queue; `priorities`; `asynchronous`, which is any of these; `drafts`, any
of all.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from golden.vllm_format import OUTPUT_SEED, Scenario

PROFILES = ("general", "thresholds", "adaptive", "priorities", "asynchronous", "drafts")
MAX_PASSES = 1200  # what can never fit with the full-prompt check off starts again for ever


@st.composite
def scenarios(draw: st.DrawFn, profile: str) -> Scenario:
    """A scenario of one of `PROFILES`."""
    geometries = {"general": _general, "thresholds": _thresholds, "adaptive": _adaptive}
    has_drafts = profile == "drafts"
    if has_drafts:
        profile = draw(st.sampled_from(["general", "thresholds", "adaptive", "priorities", "asynchronous"]))
    is_async = profile == "asynchronous"
    if is_async:
        profile = draw(st.sampled_from(["general", "thresholds", "adaptive", "priorities"]))
    by_priority = profile == "priorities"
    if by_priority:
        profile = draw(st.sampled_from(["general", "thresholds"]))
    scenario = draw(geometries[profile]())
    if by_priority:
        scenario["policy"] = "priority"
    if has_drafts:
        drafts = scenario["num_spec_tokens"] = draw(st.integers(1, 4))
        scenario["spec_method"] = draw(st.sampled_from(["ngram", "eagle"]))
        scenario["spec_accept"] = draw(st.lists(st.integers(0, drafts), max_size=5))
        scenario["disable_lookahead_block_hashes"] = draw(st.integers(0, 3)) == 3
    if is_async:
        scenario["async_scheduling"] = True
    capacity = (scenario["num_gpu_blocks"] - 1) * scenario["block_size"]
    num_requests = draw(st.integers(2, 30))
    spread = draw(st.sampled_from([40, 100] if profile == "adaptive" else [0, 1, 3, 10, 40, 200]))
    longest = max(1, int(capacity * draw(st.sampled_from([0.2, 0.4, 0.7, 1.0]))))
    kinds = ["quote", "mixed"] if profile == "thresholds" else ["shared", "turn", "same", "mixed"]
    kind = draw(st.sampled_from(kinds))
    with_aborts = draw(st.integers(0, 3)) == 3
    requests: list[dict[str, Any]] = []
    for number in range(num_requests):
        prompt = draw(_prompt(kind, requests, num_requests, scenario["block_size"], longest))
        limit = scenario["max_model_len"] if draw(st.integers(0, 9)) == 9 else scenario["max_model_len"] - 1
        if draw(st.integers(0, 29)) < 29:  # else it may never fit
            limit = min(limit, capacity)
        prompt = _cut(prompt, max(limit, 1))
        room = capacity + 1 - sum(segment[1] for segment in prompt)  # the last token is not computed
        output = draw(st.one_of(st.integers(1, 4 * scenario["block_size"]), st.integers(1, 30)))
        if draw(st.integers(0, 5)) == 5:
            output = max(1, room)
        if draw(st.integers(0, 19)) < 19:
            output = max(1, min(output, room))
        arrival = draw(st.integers(0, spread))
        request = {"id": f"r{number}", "arrival_pass": arrival, "prompt": prompt, "output_len": output}
        if by_priority:
            request["priority"] = draw(st.integers(0, 3))
        if with_aborts and draw(st.booleans()):
            request["abort_pass"] = arrival + draw(st.integers(0, 30))
        requests.append(request)
    scenario["requests"] = requests
    return scenario


@st.composite
def _general(draw: st.DrawFn) -> Scenario:
    size = draw(st.sampled_from([4, 1, 2, 3, 5, 8, 16]))
    blocks = draw(st.integers(4, 40))
    budget = draw(st.sampled_from([16, 1, 2, 3, 4, 5, 8, 32, 64, 200]))
    capacity = size * blocks
    scenario = _geometry(size, blocks, budget, draw(st.sampled_from([4, 1, 2, 3, 6, 8, 16])))
    scenario["max_model_len"] = draw(st.sampled_from([4096, max(4, capacity), max(4, capacity // 2)]))
    if draw(st.integers(0, 5)) == 5:
        scenario["enable_prefix_caching"] = False
    if draw(st.integers(0, 8)) == 8:
        scenario["enable_chunked_prefill"] = False
        scenario["max_num_batched_tokens"] = draw(st.sampled_from([16, 8, 32, 64]))
    if draw(st.integers(0, 3)) == 3:
        scenario["long_prefill_token_threshold"] = draw(st.integers(1, budget))
        scenario["long_prefill_token_threshold_adaptive"] = draw(st.booleans())
    if draw(st.integers(0, 3)) == 3:
        scenario["watermark"] = draw(st.sampled_from([0.05, 0.1, 0.2, 0.3]))
    if draw(st.integers(0, 3)) == 3:
        scenario["scheduler_reserve_full_isl"] = False
    return scenario


@st.composite
def _thresholds(draw: st.DrawFn) -> Scenario:
    budget = draw(st.sampled_from([8, 4, 6, 12, 16]))
    size = draw(st.sampled_from([4, 1, 2, 3, 5, 8]))
    scenario = _geometry(size, draw(st.integers(4, 40)), budget, draw(st.sampled_from([4, 3, 6, 8])))
    scenario["long_prefill_token_threshold"] = draw(st.integers(1, budget // 2))
    scenario["long_prefill_token_threshold_adaptive"] = draw(st.booleans())
    scenario["scheduler_reserve_full_isl"] = draw(st.booleans())
    return scenario


@st.composite
def _adaptive(draw: st.DrawFn) -> Scenario:
    size = draw(st.sampled_from([4, 1, 2, 3, 5, 8, 16]))
    scenario = _geometry(size, draw(st.integers(4, 40)), draw(st.sampled_from([32, 64, 128])), 8)
    scenario["long_prefill_token_threshold"] = 1
    scenario["long_prefill_token_threshold_adaptive"] = True
    scenario["scheduler_reserve_full_isl"] = False
    return scenario


def _geometry(size: int, blocks: int, budget: int, seqs: int) -> Scenario:
    return {
        "block_size": size,
        "num_gpu_blocks": blocks + 1,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": 4096,
        "max_passes": MAX_PASSES,
    }


@st.composite
def _prompt(
    draw: st.DrawFn, kind: str, earlier: list[dict[str, Any]], num_requests: int, size: int, longest: int
) -> list[list[int]]:
    """Segments of a prompt.

    It is `shared` with others up to somewhere, the next `turn` of an earlier conversation, the `same` as an earlier
    one, a `quote` from the output of any request, at any offset, `alone`, or any of these for `mixed`.
    """
    number = len(earlier)
    if kind == "mixed":
        kind = draw(st.sampled_from(["shared", "turn", "same", "quote", "alone"]))
    before = earlier[draw(st.integers(0, number - 1))] if earlier and kind in ("turn", "same") else None
    if before is not None and kind == "same":
        return [list(segment) for segment in before["prompt"]]
    if before is not None:
        answer = draw(st.one_of(st.just(before["output_len"]), st.integers(1, before["output_len"])))
        prompt = [*(list(segment) for segment in before["prompt"]), [OUTPUT_SEED + earlier.index(before), answer]]
        return [*prompt, [100 + number, draw(st.integers(1, 2 * size))]] if draw(st.integers(0, 4)) else prompt
    if kind == "quote":
        quoted = draw(st.integers(0, num_requests - 1))
        head = [draw(st.integers(0, 2)), draw(st.integers(1, 3 * size))]
        return [head, [OUTPUT_SEED + quoted, draw(st.integers(1, 3 * size)), draw(st.integers(0, 2))]]
    if kind == "alone":
        return [[100 + number, draw(st.integers(1, longest))]]
    prompt = [[draw(st.integers(0, 2)), draw(st.integers(1, longest))]]
    if draw(st.booleans()):
        prompt.append([100 + draw(st.integers(0, 7)), draw(st.integers(1, 2 * size)), draw(st.integers(0, 2))])
    return prompt


def _cut(prompt: list[list[int]], limit: int) -> list[list[int]]:
    """The first `limit` tokens of a prompt."""
    kept: list[list[int]] = []
    for seed, length, *start in prompt:
        length = min(length, limit)
        if length:
            kept.append([seed, length, *start])
        limit -= length
    return kept
