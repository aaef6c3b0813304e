"""Fields of a vLLM engine, under vLLM's own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from windtunnel.config.offload import OffloadConfig
from windtunnel.config.section import Flag, NonNegativeInt, PositiveInt, RuleError, Section
from windtunnel.config.speculation import SpeculationConfig


def fcfs(value: object) -> object:
    return "fcfs" if value == "fifo" else value


def _release(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else value  # YAML reads an unquoted release as a number


class VllmConfig(Section):
    """vLLM v1's scheduler and prefix-caching block pool. Names and defaults are vLLM's where it has them."""

    kind: Literal["vllm"] = Field(default="vllm", description="the engine whose scheduler decides")
    num_gpu_blocks: PositiveInt = Field(
        default=16384, description="usable KV blocks: vLLM's own number minus one, for its null block"
    )
    block_size: PositiveInt = Field(default=64, description="tokens per KV block")
    max_num_seqs: PositiveInt = Field(default=256, description="requests running at once")
    max_num_batched_tokens: PositiveInt = Field(default=8192, description="token budget of a pass")
    max_model_len: PositiveInt | None = Field(
        default=None,
        description="longest sequence, prompt and output; without chunked prefill what a pass can compute again",
    )
    enable_prefix_caching: Flag = Field(default=True, description="reuse the KV blocks of earlier prompts")
    enable_chunked_prefill: Flag = Field(
        default=True, description="spread a prompt over several passes when the budget is short"
    )
    long_prefill_token_threshold: NonNegativeInt = Field(
        default=0, description="longest chunk of a prompt while other requests are queued or running; 0 is no limit"
    )
    long_prefill_token_threshold_adaptive: Flag = Field(
        default=False, description="raise that limit to an even share of the budget"
    )
    watermark: Annotated[float, Field(ge=0, lt=1, strict=True)] = Field(
        default=0.0, description="share of the blocks that admissions leave free while anything runs"
    )
    scheduler_reserve_full_isl: Flag = Field(
        default=True, description="admit a prompt only if all of it fits, not just its first chunk"
    )
    scheduling_policy: Annotated[Literal["fcfs", "priority"], BeforeValidator(fcfs)] = Field(
        default="fcfs",
        description="who is admitted first and preempted last: the earliest, or the one whose priority is largest",
    )
    async_scheduling: Flag = Field(
        default=True,
        description="schedule a pass while the one before it runs, before its output is known; false unless given with "
        "behaviour 0.11, as that was released",
    )
    behaviour: Annotated[Literal["0.33", "0.20", "0.11"], BeforeValidator(_release)] = Field(
        default="0.33", description="the vLLM release whose decisions are made"
    )
    speculation: SpeculationConfig | None = Field(default=None, description="draft tokens that the model verifies")
    offload: OffloadConfig | None = Field(default=None, description="KV tiers behind GPU memory")
    fast_forward: Flag = Field(
        default=True, description="false computes every pass one by one: the same record, slower"
    )

    @model_validator(mode="after")
    def _consistent(self) -> VllmConfig:
        if self.offload is not None and not self.enable_prefix_caching:
            raise RuleError("{offload} has no effect without {enable_prefix_caching}: it restores cached prefixes")
        if self.behaviour == "0.11" and "async_scheduling" not in self.model_fields_set:
            self.__dict__["async_scheduling"] = False
        if self.speculation is not None:
            self._check_speculation(self.speculation)
        if not self.enable_chunked_prefill and (self.max_model_len or 0) > self.max_num_batched_tokens:
            raise RuleError(
                f"{{max_num_batched_tokens}} must be at least {{max_model_len}} {self.max_model_len} without "
                "{enable_chunked_prefill}: whoever is preempted is computed again in one pass"
            )
        if self.long_prefill_token_threshold_adaptive and not self.long_prefill_token_threshold:
            raise RuleError("{long_prefill_token_threshold_adaptive} needs {long_prefill_token_threshold} above 0")
        if self.behaviour != "0.33":
            for name in ("long_prefill_token_threshold_adaptive", "watermark"):
                if getattr(self, name):
                    raise RuleError(f"{{{name}}} has no effect with {{behaviour}} {self.behaviour}: it came with 0.33")
        if self.behaviour == "0.11" and not self.scheduler_reserve_full_isl:
            raise RuleError("{scheduler_reserve_full_isl} has no effect with {behaviour} 0.11: it came with 0.20")
        return self

    def _check_speculation(self, speculation: SpeculationConfig) -> None:
        if self.offload is not None:
            raise RuleError("{offload} is not modelled with {speculation}")
        if self.behaviour == "0.11" and self.async_scheduling:
            raise RuleError("{speculation} has no effect with {async_scheduling} in {behaviour} 0.11")
        if self.behaviour != "0.33" and not speculation.lookahead_block_hashes:
            raise RuleError(
                f"{{speculation.lookahead_block_hashes}} has no effect with {{behaviour}} {self.behaviour}: "
                "it came with 0.33"
            )

    @property
    def watermark_blocks(self) -> int:
        """The watermark as vLLM counts it: a share of all blocks, its null block included."""
        return int(self.watermark * (self.num_gpu_blocks + 1))

    @property
    def tokens_per_block(self) -> int:
        return self.block_size

    @property
    def max_sequence_tokens(self) -> int | None:
        """Longest sequence; its last token is not computed."""
        if self.max_model_len is None and not self.enable_chunked_prefill:
            return self.max_num_batched_tokens + 1
        return self.max_model_len

    @property
    def max_decodes(self) -> int:
        return self.max_num_seqs

    @property
    def kv_capacity_tokens(self) -> int:
        return self.num_gpu_blocks * self.block_size
