"""Fields of speculative decoding."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from windtunnel.config.section import Flag, NonNegativeFloat, NonNegativeInt, PositiveInt, RuleError, Section

Rate = Annotated[float, Field(ge=0, le=1, strict=True)]


class SpeculationConfig(Section):
    """Draft tokens that the model verifies, and how many of them it accepts."""

    method: Literal["ngram", "eagle", "mtp"] = Field(
        description="who drafts: a look-up in the text so far, or a small model with a KV cache of its own"
    )
    num_speculative_tokens: PositiveInt = Field(description="draft tokens of a request in each pass")
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
    lookahead_block_hashes: Flag = Field(
        default=True, description="eagle, mtp: hash a block with its next token, so that a hit keeps its last block"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SpeculationConfig:
        given = (self.acceptance_rates, self.accepted_tokens, self.mean_accept_length)
        if given.count(None) != 2:
            raise RuleError("give exactly one of {acceptance_rates}, {accepted_tokens} and {mean_accept_length}")
        drafts = self.num_speculative_tokens
        if self.acceptance_rates is not None and len(self.acceptance_rates) != drafts:
            raise RuleError(
                f"{{acceptance_rates}} has {len(self.acceptance_rates)} entries, "
                f"expected one for each of {{num_speculative_tokens}} {drafts}"
            )
        if self.accepted_tokens is not None and not self.accepted_tokens:
            raise RuleError("{accepted_tokens} is empty, expected one entry a verification")
        if self.accepted_tokens is not None and max(self.accepted_tokens) > drafts:
            raise RuleError(
                f"{{accepted_tokens}} has {max(self.accepted_tokens)}, more than {{num_speculative_tokens}} {drafts}"
            )
        if self.mean_accept_length is not None and self.mean_accept_length > drafts + 1:
            raise RuleError(
                f"{{mean_accept_length}} is {self.mean_accept_length:g}, "
                f"expected at most {{num_speculative_tokens}} and one: {drafts + 1}"
            )
        if self.method == "ngram" and not self.lookahead_block_hashes:
            raise RuleError("{lookahead_block_hashes} has no effect with {method} ngram")
        return self
