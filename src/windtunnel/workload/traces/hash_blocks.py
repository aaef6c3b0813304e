"""Block hash ids as content: id h stands for the tokens [h * block size, (h + 1) * block size) of origin 0.

Decides how many ids a prompt must have and what happens when it has others. Consecutive ids become one run; ids so
large that their offsets would not fit (real 64-bit hashes) are replaced by dense numbers, since only their equality
means anything. The last block of a prompt may be partial: it is the beginning of the block with that id.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.workload.content import Run
from windtunnel.workload.traces.reading import HASH_MISMATCH, ZERO_TOKENS, BadRowError, ReadOptions

FIRST_INTERNED_ID = 2**40  # hash ids from here on are replaced


class HashBlocks:
    """Turns the hash ids of rows into prompts."""

    def __init__(self, block_size: int, options: ReadOptions, *, exact: bool = False) -> None:
        """`exact`: more ids than a prompt has blocks are a mismatch too, as fewer always are."""
        self.block_size = block_size
        self._clips = options.on_hash_mismatch == "clip"
        self._exact = exact
        self._loading = options.loading
        self._loading.needs_exact_hashes = exact
        self._interned: dict[int, int] = {}

    def prompt(
        self,
        hash_ids: list[int] | None,
        input_tokens: int | None,
        *,
        ids: str = "hash_ids",
        length: str = "input_length",
    ) -> list[Run]:
        """The runs of a prompt; without a length it fills all its blocks. `ids` and `length` are names of fields.

        Raises:
            BadRowError: there are no ids, or not as many as the length asks for.
        """
        size = self.block_size
        if hash_ids is None:
            raise BadRowError(f"missing, expected one id for each {size} tokens of the prompt", field=ids)
        if input_tokens is None:
            input_tokens = len(hash_ids) * size
            if not hash_ids:
                message = f"found no ids and no {length}, expected at least one token"
                raise BadRowError(message, kind=ZERO_TOKENS, field=ids)
        loading = self._loading
        loading.hash_rows += 1
        loading.hash_tokens += input_tokens
        loading.hash_ids += len(hash_ids)
        num_blocks = -(-input_tokens // size)
        if num_blocks > len(hash_ids) and self._clips and hash_ids:
            loading.clipped_to_hashes += 1
            num_blocks = len(hash_ids)
            input_tokens = num_blocks * size
        elif num_blocks > len(hash_ids) or (self._exact and num_blocks < len(hash_ids) and not self._clips):
            raise BadRowError(
                f"found {len(hash_ids)} for an {length} of {input_tokens}, expected {num_blocks} at {size} tokens "
                f"each; {len(hash_ids)} allow an {length} up to {len(hash_ids) * size}",
                kind=HASH_MISMATCH,
                field=ids,
            )
        if num_blocks < len(hash_ids):
            loading.surplus_hashes += 1
            hash_ids = hash_ids[:num_blocks]
        spans = _consecutive(hash_ids)
        if any(stop > FIRST_INTERNED_ID for _, stop in spans):
            spans = _consecutive([h if h < FIRST_INTERNED_ID else self._intern(h) for h in hash_ids])
        runs = [(0, first * size, (stop - first) * size) for first, stop in spans]
        origin, start, last = runs[-1]
        runs[-1] = (origin, start, last - (num_blocks * size - input_tokens))
        return runs

    def _intern(self, hash_id: int) -> int:
        return self._interned.setdefault(hash_id, FIRST_INTERNED_ID + len(self._interned))


def _consecutive(ids: Sequence[int]) -> list[tuple[int, int]]:
    """The ids as ranges [first, stop)."""
    spans: list[tuple[int, int]] = []
    first = following = ids[0]
    for h in ids:
        if h != following:
            spans.append((first, following))
            first = h
        following = h + 1
    spans.append((first, following))
    return spans
