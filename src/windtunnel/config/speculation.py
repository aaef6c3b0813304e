"""Fields of speculative decoding: what both engines are told of acceptance, and each under its own names of drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import Field, model_validator

from windtunnel.config.section import Flag, NonNegativeFloat, NonNegativeInt, PositiveInt, RuleError, Section

Rate = Annotated[float, Field(ge=0, le=1, strict=True)]


class AcceptanceConfig(Section, ABC):
    """How many of its drafts a request accepts, and what drafting takes."""

    acceptance_rates: list[Rate] | None = Field(
        default=None, description="chance that each draft is accepted if those before it were; one a draft"
    )
    accepted_tokens: list[NonNegativeInt] | None = Field(
        default=None, description="drafts accepted in a request's first, second, ... verification; then again"
    )
    mean_accept_length: Annotated[float, Field(ge=1, strict=True)] | None = Field(
        default=None, description="mean tokens of a verification, the model's own included; all drafts alike"
    )
    draft_ms: NonNegativeFloat = Field(
        default=0.0, description="time that drafting one token adds to a pass, for all of its requests together"
    )

    @property
    @abstractmethod
    def most_accepted(self) -> int:
        """Drafts that a verification accepts at most; they are drafted one after the other."""

    def check_acceptance(self, drafts_name: str, tokens_name: str) -> None:
        """What the field that `most_accepted` comes from calls that, and one more.

        Raises:
            RuleError: acceptance is not described in exactly one way, or for another number of drafts.
        """
        given = (self.acceptance_rates, self.accepted_tokens, self.mean_accept_length)
        if given.count(None) != 2:
            raise RuleError("give exactly one of {acceptance_rates}, {accepted_tokens} and {mean_accept_length}")
        drafts = self.most_accepted
        if self.acceptance_rates is not None and len(self.acceptance_rates) != drafts:
            raise RuleError(
                f"{{acceptance_rates}} has {len(self.acceptance_rates)} entries, "
                f"expected one for each of {drafts_name} {drafts}"
            )
        if self.accepted_tokens is not None and not self.accepted_tokens:
            raise RuleError("{accepted_tokens} is empty, expected one entry a verification")
        if self.accepted_tokens is not None and max(self.accepted_tokens) > drafts:
            raise RuleError(f"{{accepted_tokens}} has {max(self.accepted_tokens)}, more than {drafts_name} {drafts}")
        if self.mean_accept_length is not None and self.mean_accept_length > drafts + 1:
            raise RuleError(
                f"{{mean_accept_length}} is {self.mean_accept_length:g}, expected at most {tokens_name}: {drafts + 1}"
            )


class SpeculationConfig(AcceptanceConfig):
    """Draft tokens that the model verifies, and how many of them it accepts."""

    method: Literal["ngram", "eagle", "mtp"] = Field(
        description="who drafts: a look-up in the text so far, or a small model with a KV cache of its own"
    )
    num_speculative_tokens: PositiveInt = Field(description="draft tokens of a request in each pass")
    lookahead_block_hashes: Flag = Field(
        default=True, description="eagle, mtp: hash a block with its next token, so that a hit keeps its last block"
    )

    @property
    def most_accepted(self) -> int:
        return self.num_speculative_tokens

    @model_validator(mode="after")
    def _consistent(self) -> SpeculationConfig:
        self.check_acceptance("{num_speculative_tokens}", "{num_speculative_tokens} and one")
        if self.method == "ngram" and not self.lookahead_block_hashes:
            raise RuleError("{lookahead_block_hashes} has no effect with {method} ngram")
        return self


class SglangSpeculationConfig(AcceptanceConfig):
    """SGLang's speculative decoding. Names are SGLang's, without their `speculative_`."""

    algorithm: Literal["eagle", "eagle3", "nextn", "standalone", "ngram"] = Field(
        description="who drafts: a head or layer of the model, a small model, or a look-up in the text so far"
    )
    num_steps: PositiveInt | None = Field(
        default=None, description="drafts one after the other, of which all may be accepted; not with ngram"
    )
    eagle_topk: PositiveInt | None = Field(
        default=None, description="branches of each step: 1 is a chain, more is a tree; not with ngram (1)"
    )
    num_draft_tokens: PositiveInt | None = Field(
        default=None,
        description="tokens that a pass verifies of a request, the one before its drafts included; "
        "for a chain {num_steps} and one",
    )

    @property
    def most_accepted(self) -> int:
        return self.verified_tokens - 1 if self.num_steps is None else self.num_steps

    @property
    def verified_tokens(self) -> int:
        """Tokens that a pass computes of each request."""
        if self.num_draft_tokens is not None:
            return self.num_draft_tokens
        assert self.num_steps is not None  # the schema has seen to it
        return self.num_steps + 1

    def room_tokens(self, page_size: int) -> int:
        """KV slots that must be free for each request before a pass: for all it drafts, and then for all it verifies.

        Source: SGLang 0.5.x, ScheduleBatch.new_tokens_required_next_decode without overlap scheduling.
        """
        steps = self.num_steps or 1
        branches = self.eagle_topk or 1
        if page_size > 1 and branches > 1:  # each branch has pages of its own, and a copy of the last one before it
            steps += page_size
        drafted = -(-steps // page_size) * page_size * branches
        return max(drafted, -(-self.verified_tokens // page_size) * page_size)

    @model_validator(mode="after")
    def _consistent(self) -> SglangSpeculationConfig:
        if self.algorithm == "ngram":
            for name in ("num_steps", "eagle_topk"):
                if getattr(self, name) is not None:
                    raise RuleError(f"{{{name}}} has no effect with {{algorithm}} ngram: leave it out")
            if self.num_draft_tokens is None:
                raise RuleError("{num_draft_tokens} is needed with {algorithm} ngram")
        elif self.num_steps is None:
            raise RuleError(f"{{num_steps}} is needed with {{algorithm}} {self.algorithm}")
        elif self.num_draft_tokens is None:
            if self.eagle_topk is not None and self.eagle_topk > 1:
                raise RuleError("{num_draft_tokens} is needed with {eagle_topk} above 1")
        elif (self.eagle_topk or 1) == 1 and self.num_draft_tokens != self.num_steps + 1:
            raise RuleError(
                f"{{num_draft_tokens}} is {self.num_draft_tokens}, expected {{num_steps}} and one: that is a chain"
            )
        if self.num_draft_tokens is not None and self.num_draft_tokens < (self.num_steps or 1) + 1:
            raise RuleError(
                f"{{num_draft_tokens}} is {self.num_draft_tokens}, "
                f"expected at least {(self.num_steps or 1) + 1}: a token and one draft of each step"
            )
        if self.algorithm == "ngram":
            self.check_acceptance("{num_draft_tokens} less one:", "{num_draft_tokens}")
        else:
            self.check_acceptance("{num_steps}", "{num_steps} and one")
        return self
