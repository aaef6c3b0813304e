"""Fields of an SGLang engine, under SGLang's own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from windtunnel.config.offload import OffloadConfig
from windtunnel.config.section import LARGEST_INT, Flag, PositiveInt, RuleError, Section
from windtunnel.config.speculation import SglangSpeculationConfig
from windtunnel.config.vllm import fcfs

DEFAULT_CAPACITY_TOKENS = 1_048_576
SPECULATING_REQUESTS = 48  # SGLang's default of max_running_requests with speculation
UNMODELLED_POLICIES = ("dfs-weight", "random", "priority")


def _modelled(value: object) -> object:
    if value in UNMODELLED_POLICIES:
        raise ValueError(f"SGLang's {value} is not modelled: expected 'fcfs', 'lpm' or 'lof'")
    return fcfs(value)


class SglangConfig(Section):
    """SGLang's scheduler and radix cache. Names and defaults are SGLang's where it has them."""

    kind: Literal["sglang"] = Field(default="sglang", description="the engine whose scheduler decides")
    num_gpu_blocks: PositiveInt = Field(
        default=DEFAULT_CAPACITY_TOKENS, description="KV pages; unless given, as many as hold 1,048,576 tokens"
    )
    page_size: PositiveInt = Field(default=1, description="tokens per KV page")
    max_running_requests: PositiveInt = Field(default=256, description="requests running at once")
    max_prefill_tokens: PositiveInt = Field(default=16384, description="prompt tokens of a prefill pass")
    chunked_prefill_size: Annotated[int, Field(ge=-1, le=LARGEST_INT, strict=True)] = Field(
        default=8192, description="tokens of prompt chunks in a pass; -1 computes every prompt in one pass"
    )
    prefill_max_requests: PositiveInt | None = Field(default=None, description="most prompts in a prefill pass")
    context_length: PositiveInt | None = Field(default=None, description="longest sequence, prompt and output")
    schedule_policy: Annotated[Literal["fcfs", "lpm", "lof"], BeforeValidator(_modelled)] = Field(
        default="fcfs",
        description="order of the waiting queue: first come, longest prefix match, longest output first",
    )
    schedule_conservativeness: Annotated[float, Field(ge=0, le=2, strict=True, allow_inf_nan=False)] = Field(
        default=1.0, description="scales the share of their output that running requests are expected to need"
    )
    ignore_eos: Flag = Field(
        default=True, description="requests generate all the tokens they ask for, and all are reserved at admission"
    )
    enable_prefix_caching: Flag = Field(default=True, description="reuse the KV pages of earlier sequences")
    enable_mixed_chunk: Flag = Field(default=False, description="decode in the passes that compute prompts")
    eviction_policy: Literal["lru", "lfu", "fifo", "mru"] = Field(
        default="lru", description="which cached sequences go first: least recently used, and so on"
    )
    overlap_schedule: Flag = Field(
        default=True, description="form the next batch while a pass runs, before its result is known"
    )
    behaviour: Literal["0.5.23"] = Field(default="0.5.23", description="the SGLang release whose decisions are made")
    speculation: SglangSpeculationConfig | None = Field(
        default=None, description="draft tokens that the model verifies; then overlap_schedule is off"
    )
    offload: OffloadConfig | None = Field(default=None, description="KV tiers behind GPU memory")
    fast_forward: Flag = Field(
        default=True, description="false computes every pass one by one: the same record, slower"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SglangConfig:
        if "num_gpu_blocks" not in self.model_fields_set:
            # Whatever the page size, and as with the defaults of the other engine: the same GPU has the same memory.
            self.__dict__["num_gpu_blocks"] = max(DEFAULT_CAPACITY_TOKENS // self.page_size, 1)
        if self.offload is not None and not self.enable_prefix_caching:
            raise RuleError("{offload} has no effect without {enable_prefix_caching}: it restores cached prefixes")
        if self.chunked_prefill_size == 0:
            raise RuleError("{chunked_prefill_size} is 0: expected at least 1, or -1 for prompts in one pass")
        if 0 < self.chunked_prefill_size < self.page_size:
            raise RuleError("{chunked_prefill_size} must be at least {page_size}: chunks are whole pages")
        if self.speculation is not None:
            self._check_speculation()
        if self.enable_mixed_chunk and self.chunked_prefill_size < 0:
            raise RuleError("{enable_mixed_chunk} has no effect while {chunked_prefill_size} is -1")
        return self

    def _check_speculation(self) -> None:
        """SGLang without its second version of speculation: it switches overlap scheduling off, and admits fewer."""
        for name in ("offload", "enable_mixed_chunk"):
            if getattr(self, name):
                raise RuleError(f"{{{name}}} is not modelled with {{speculation}}")
        if "overlap_schedule" in self.model_fields_set and self.overlap_schedule:
            raise RuleError("{overlap_schedule} is not modelled with {speculation}: leave it out, or false")
        self.__dict__["overlap_schedule"] = False
        if "max_running_requests" not in self.model_fields_set:
            self.__dict__["max_running_requests"] = SPECULATING_REQUESTS

    @property
    def tokens_per_block(self) -> int:
        return self.page_size

    @property
    def max_sequence_tokens(self) -> int | None:
        return self.context_length

    @property
    def max_decodes(self) -> int:
        return self.max_running_requests

    @property
    def kv_capacity_tokens(self) -> int:
        return self.num_gpu_blocks * self.page_size
