"""What a forward pass costs, and the deployment that it runs on: the fields of `timing`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from windtunnel.config.section import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, RuleError, Section, named
from windtunnel.errors import InputError
from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.catalog.nearest import UnknownNameError
from windtunnel.timing.deployment import Deployment, deploy
from windtunnel.timing.overhead import DEFAULT_PASS_MS, DEFAULT_REQUEST_MS, Overhead

# Names that a config file may use besides `module:attribute` of an object written in Python.
TIMING_MODELS = ("polynomial", "roofline", "aiconfigurator")

NEEDS_DEPLOYMENT = ("roofline", "aiconfigurator")  # what they predict is kernels alone: overhead comes on top
CALIBRATED = ("pass_overhead_ms", "request_overhead_ms", "decode_scale", "prefill_scale")  # of those, and of profiles
DEPLOYMENT_ONLY = ("tp", "pp", "ep", "dtype", "kv_dtype", "state_dtype", "gpu_memory_utilization")

WeightDtype = Literal["bf16", "fp8", "fp8_block", "int4", "int4_g32", "mxfp4", "nvfp4"]


def _known_model(name: str) -> str:
    try:
        load_model(name)
    except UnknownNameError as error:
        raise ValueError(f"which is no model of the catalog: {error.hint}") from None
    except InputError as error:
        raise ValueError(str(error)) from None
    return name


def _known_gpu(name: str) -> str:
    try:
        return load_gpu(name).name
    except UnknownNameError as error:
        raise ValueError(f"which is no GPU of the catalog: {error.hint}") from None


class TimingConfig(Section):
    """What a forward pass costs.

    With a `model` and a `gpu`, the `roofline` prices it and the memory of the GPU sizes the KV cache.
    """

    kind: Annotated[str, named(TIMING_MODELS)] = Field(
        default="polynomial",
        description="polynomial, roofline (the default once a model is named), aiconfigurator, profile:PATH of a "
        "measured one, or module:attribute of one written in Python",
    )
    model: Annotated[str, AfterValidator(_known_model)] | None = Field(
        default=None, description="model by name, or a directory with its config.json"
    )
    gpu: Annotated[str, AfterValidator(_known_gpu)] | None = Field(default=None, description="GPU by name")
    tp: PositiveInt = Field(default=1, description="GPUs that split every layer")
    pp: PositiveInt = Field(default=1, description="pipeline stages")
    ep: PositiveInt = Field(default=1, description="groups of GPUs among which whole experts are spread")
    dtype: WeightDtype | None = Field(default=None, description="weights; unless given, what the checkpoint has")
    kv_dtype: Literal["bf16", "fp8"] | None = Field(default=None, description="KV cache; bf16 unless given")
    state_dtype: Literal["fp32", "bf16"] | None = Field(
        default=None, description="states of linear attention; what the model's config says unless given"
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, strict=True)] | None = Field(
        default=None,
        description="share of a GPU's memory that the engine plans with (mem_fraction_static in SGLang): 0.9 for "
        "vLLM, 0.88 for SGLang unless given",
    )
    engine_log: str | None = Field(
        default=None, description="log file of a real engine, or a line of it: its KV cache size is used"
    )
    pass_overhead_ms: NonNegativeFloat | None = Field(
        default=None, description=f"time of a pass besides its kernels; {DEFAULT_PASS_MS} unless given"
    )
    request_overhead_ms: NonNegativeFloat | None = Field(
        default=None, description=f"the same for each request in it; {DEFAULT_REQUEST_MS} unless given"
    )
    decode_scale: PositiveFloat = Field(
        default=1.0, description="factor on the kernels of decodes, as `windtunnel calibrate` finds it"
    )
    prefill_scale: PositiveFloat = Field(default=1.0, description="factor on the kernels that prompts add")
    cuda_graph_padding: Flag = Field(
        default=False, description="compute as many tokens as the next captured CUDA graph has; roofline only"
    )
    speedup: PositiveFloat = Field(default=1.0, description="divides the duration of every pass")
    decode_speedup: PositiveFloat = Field(default=1.0, description="divides the decode part further; polynomial only")

    @model_validator(mode="before")
    @classmethod
    def _roofline_for_a_model(cls, data: object) -> object:
        if isinstance(data, dict) and "kind" not in data and (data.get("model") or data.get("gpu")):
            return {"kind": "roofline", **data}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> TimingConfig:
        if self.decode_speedup != 1.0 and self.kind != "polynomial":
            raise RuleError("{decode_speedup} applies to the polynomial model only: others price a pass as a whole")
        if self.kind not in NEEDS_DEPLOYMENT and not self.is_profile:
            for name in CALIBRATED:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise RuleError(f"{{{name}}} has no effect on {self.kind} timing, which prices whole passes")
        if self.cuda_graph_padding and self.kind != "roofline":
            raise RuleError("{cuda_graph_padding} applies to the roofline only")
        if (self.model is None) != (self.gpu is None):
            missing, given = ("gpu", "model") if self.gpu is None else ("model", "gpu")
            raise RuleError(f"{{{given}}} needs {{{missing}}}: a deployment is a model on a GPU")
        if self.model is None:
            if self.kind in NEEDS_DEPLOYMENT:
                raise RuleError(f"{{model}} and {{gpu}} are missing: {self.kind} prices a model on a GPU")
            for name in DEPLOYMENT_ONLY:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise RuleError(f"{{{name}}} has no effect without {{model}} and {{gpu}}")
        return self

    @property
    def is_profile(self) -> bool:
        """Whether passes cost what somebody measured."""
        return self.kind.startswith("profile:")

    @property
    def overhead(self) -> Overhead | None:
        """What passes take besides kernels, for a model that prices kernels."""
        return self.overhead_on(Overhead()) if self.kind in NEEDS_DEPLOYMENT else None

    def overhead_on(self, default: Overhead) -> Overhead:
        """The overhead that is given, and `default` where none is."""
        return Overhead(
            default.pass_ms if self.pass_overhead_ms is None else self.pass_overhead_ms,
            default.request_ms if self.request_overhead_ms is None else self.request_overhead_ms,
        )

    def deployment(self, dp: int = 1) -> Deployment | None:
        """The model on its GPUs, if one is named, as one of `dp` ranks that share its experts.

        Raises:
            InputError: the parts do not go together; its `field` is the one of this section that is to blame.
        """
        if self.model is None or self.gpu is None:
            return None
        return deploy(
            load_model(self.model),
            load_gpu(self.gpu),
            tp=self.tp,
            pp=self.pp,
            dp=dp,
            ep=self.ep,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            state_dtype=self.state_dtype,
        )
