"""Every field can be set by its path, refuses what is no value for it, and describes itself."""

from __future__ import annotations

from typing import get_args

import pytest

from windtunnel.config.arrival import ArrivalConfig
from windtunnel.config.fields import FIELDS, FIELDS_WITH, ConfigField, closest_field, found_in_words, parse_value
from windtunnel.config.file import ConfigFile
from windtunnel.config.load import Assignment, load_config, parse_set
from windtunnel.config.router import READERS
from windtunnel.config.schema import POOL_ENGINES, Config, Section, WorkloadConfig
from windtunnel.errors import InputError


def is_parameter(field: ConfigField) -> bool:
    """Whether it has an effect on some kinds of its section only, or in a class: test_load_config has those."""
    section = FIELDS.get(field.path.rpartition(".")[0])
    return ".classes." in field.path or (section is not None and (section.is_union or ".arrival" in section.path))


UNMODELLED = tuple(
    f"{pool}.{what}" for pool in ("prefill_engine", "decode_engine") for what in ("offload", "speculation", "async")
)
VALUES = [
    field
    for field in FIELDS.values()
    if not field.is_section
    and not is_parameter(field)
    and not field.path.startswith(UNMODELLED)
    and "accept" not in field.path  # exactly one of three: see engine/test_speculative.py
]
SECTIONS = [field for field in FIELDS.values() if field.is_section]

# What has to stand beside a field before the schema lets it have an effect.
SYNTHETIC = {"workload": {"synthetic": {"isl": 8, "osl": 8, "requests": 8, "rate": 1.0}}}
SPLIT = ["cluster.prefill_workers=1", "cluster.decode_workers=1"]
NETWORK = ["cluster.transfer.bandwidth_gb_per_s=0.25", "cluster.transfer.kv_bytes_per_token=7"]
TIERS = {"engine": {"offload": {"kv_bytes_per_token": 8, "host": {"num_blocks": 8}, "disk": {"num_blocks": 8}}}}
SPECULATION = {"engine": {"speculation": {"method": "eagle", "num_speculative_tokens": 9, "mean_accept_length": 1.5}}}
SGLANG_SPECULATION = {
    "engine": {"kind": "sglang", "speculation": {"algorithm": "eagle", "num_steps": 9, "mean_accept_length": 1.5}}
}
BESIDE: dict[str, list[str]] = {
    "workload.synthetic.turn_delay_ms": ["workload.synthetic.turns=2"],
    "workload.synthetic.prefix_ratio": ["workload.synthetic.prefix_groups=1"],
    "workload.synthetic.prefix_groups": ["workload.synthetic.prefix_ratio=0.5"],
    "workload.synthetic.prefix_tokens": ["workload.synthetic.prefix_groups=1"],
    "workload.synthetic.prefix_zipf": ["workload.synthetic.prefix_groups=7", "workload.synthetic.prefix_ratio=0.5"],
    "workload.synthetic.accumulate": ["workload.synthetic.turns=2"],
    "workload.synthetic.lengths": ["workload.synthetic.isl=null", "workload.synthetic.osl=null"],
    "workload.concurrency_by": ["workload.concurrency=1"],
    "engine.long_prefill_token_threshold_adaptive": ["engine.long_prefill_token_threshold=1"],
    **{
        f"cluster.scaling.{name}": ["cluster.scaling.autoscaler=threshold", "cluster.scaling.requests_per_worker=7"]
        for name in ("autoscaler", "interval_s", "requests_per_worker", "stabilization_s", "min_workers", "max_workers")
    },
    "cluster.failures.on_crash": ["cluster.failures.faults=FILE"],
    "cluster.scaling.startup_s": ["cluster.scaling.schedule=FILE"],
    "cluster.scaling.itl_ms": ["cluster.scaling.autoscaler=slo"],
    **{f"cluster.router.{name}": [f"cluster.router.kind={readers[-1]}"] for name, readers in READERS.items()},
    "cluster.router.ttl_s": ["cluster.router.kind=kv", "cluster.router.index=approximate"],
    "cluster.router.queue_policy": ["cluster.router.kind=kv", "cluster.router.queue_threshold=1"],
    **{
        f"cluster.bypass.{name}": [
            *(*SPLIT, "cluster.router.kind=kv", "cluster.bypass.policy=isl-or-load"),
            "cluster.bypass.prefill_busy_threshold=1",
        ]
        for name in ("policy", "uncached_tokens", "uncached_share", "prefill_busy_threshold", "decode_busy_threshold")
    },
    "cluster.prefill_workers": ["cluster.decode_workers=7"],
    "cluster.decode_workers": ["cluster.prefill_workers=7"],
    **{
        f"cluster.transfer.{name}": [*SPLIT, *NETWORK]
        for name in ("latency_ms", "bandwidth_gb_per_s", "fabric_bandwidth_gb_per_s", "kv_bytes_per_token")
    },
    **{f"cluster.transfer.{name}": [*SPLIT, *NETWORK] for name in ("bytes", "shared")},
    "engine.offload.kv_bytes_per_token": ["timing.model=Qwen/Qwen3-8B", "timing.gpu=b200-sxm"],
    "engine.behaviour": ["engine.kind=sglang"],
    "engine.speculation.eagle_topk": ["engine.speculation.num_draft_tokens=10"],
    "engine.speculation.num_draft_tokens": ["engine.speculation.num_steps=6"],
    "timing.model": ["timing.gpu=b200-sxm"],
    "timing.gpu": ["timing.model=Qwen/Qwen3-8B"],
    **{
        f"timing.{name}": ["timing.model=Qwen/Qwen3-30B-A3B", "timing.gpu=b200-sxm"]
        for name in (
            *("tp", "pp", "dtype", "kv_dtype", "gpu_memory_utilization"),
            *("pass_overhead_ms", "request_overhead_ms", "decode_scale", "prefill_scale", "cuda_graph_padding"),
        )
    },
    "timing.state_dtype": ["timing.model=Qwen/Qwen3.5-35B-A3B", "timing.gpu=b200-sxm"],
    "timing.ep": ["timing.model=Qwen/Qwen3-30B-A3B", "timing.gpu=b200-sxm", "timing.tp=4"],
}
# Values of fields that do not take just any.
SPECIAL: dict[str, tuple[str, object]] = {
    "cluster.router.load_factor": ("1.5", 1.5),
    "timing.model": ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    "timing.gpu": ("b200-sxm", "b200-sxm"),
    **{f"timing.{name}": ("4", 4) for name in ("tp", "ep")},
    "timing.engine_log": ("GPU KV cache size: 10,000 tokens", "GPU KV cache size: 10,000 tokens"),
    "timing.gpu_memory_utilization": ("0.75", 0.75),
    "cluster.scaling.autoscaler": ("threshold", "threshold"),
    "engine.speculation.algorithm": ("standalone", "standalone"),
}


NEEDED = (
    "cluster.scaling.autoscaler",
    "cluster.scaling.requests_per_worker",
    "cluster.scaling.itl_ms",
    "cluster.bypass.prefill_busy_threshold",
)  # null only where they have no meaning
MINUS_ONE = {  # fields that it means something to
    f"{section}.chunked_prefill_size" for section in ("engine", *POOL_ENGINES)
}
TOGETHER = (
    *("timing.model", "timing.gpu", "cluster.prefill_workers", "cluster.decode_workers"),
    *("cluster.transfer.bandwidth_gb_per_s", "cluster.transfer.kv_bytes_per_token"),
)
SAME_IN_POOLS = ("kind", "block_size", "page_size")  # as in `engine`


def beside(field: ConfigField) -> list[Assignment]:
    """What is set together with a field."""
    section, _, name = field.path.partition(".")
    texts = BESIDE.get(f"engine.{name}" if section in POOL_ENGINES else field.path, [])
    if section in POOL_ENGINES:
        texts = [*SPLIT, *(text.replace("engine.", f"{section}.", 1) for text in texts)]
        if name in SAME_IN_POOLS:
            texts.append(f"engine.{name}={some_value(field)[0]}")
    if field.engine or name == "behaviour":
        texts = [*texts, f"engine.kind={field.engine or 'sglang'}"]
    given = [parse_set(text) for text in texts]
    return [other for other in given if other.path != field.path]


def some_value(field: ConfigField) -> tuple[str, object]:
    """A value that the field accepts, as text and as it is then."""
    if field.path in SPECIAL:
        return SPECIAL[field.path]
    if field.choices:
        last = field.choices[-1]
        return ("false", False) if last is False else (last, last)
    if field.path.endswith(".kind"):
        return "mine:thing", "mine:thing"
    if field.path == "workload.arrival":
        return "gamma:rate=2,burstiness=0.5", ArrivalConfig(kind="gamma", rate=2.0, burstiness=0.5)
    if field.is_list:
        return "a.jsonl", ["a.jsonl"]
    if field.is_text:
        return "some text", "some text"
    if field.expected == "true or false":
        return str(not field.default).lower(), not field.default
    if field.expected.startswith("an integer"):
        return "7", 7
    return "0.25", 0.25


def value_at(config: Config, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def base_file(field: ConfigField) -> ConfigFile:
    speculation = SGLANG_SPECULATION if field.engine == "sglang" else SPECULATION
    bases = {"workload.synthetic.": SYNTHETIC, "engine.offload.": TIERS, "engine.speculation.": speculation}
    return ConfigFile(
        "base.yaml", next((data for start, data in bases.items() if field.path.startswith(start)), {}), {}
    )


@pytest.mark.parametrize("field", VALUES, ids=lambda field: field.path)
def test_a_field_is_set_by_its_path(field):
    text, value = some_value(field)
    sets = [parse_set(f"{field.path}={text}"), *beside(field)]
    config = load_config(base_file(field), sets).config
    assert value_at(config, field.path) == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        pytest.param(field, text, id=f"{field.path}={text}")
        for field in VALUES
        if not (field.is_text or field.is_list)
        for text in ("nonsense", "-1", "[1]", "{a: 1}", *([] if field.nullable else [""]))
        if not (field.has_fields and text == "{a: 1}")
        if not (text == "-1" and field.path in MINUS_ONE)
    ],
)
def test_a_field_refuses_what_is_no_value_of_it(field, text):
    sets = [parse_set(f"{field.path}={text}"), *beside(field)]
    engine = next((given.value for given in sets[1:] if given.path == "engine.kind"), "vllm")
    expected = (FIELDS if field.path.endswith("engine.kind") else FIELDS_WITH[engine])[field.path].expected
    with pytest.raises(InputError, match=f"^--set {field.path}: found .*, expected {expected}"):
        load_config(base_file(field), sets)


@pytest.mark.parametrize("field", VALUES, ids=lambda field: field.path)
def test_a_field_takes_null_only_if_it_says_so(field):
    sets = [parse_set(f"{field.path}=null"), *beside(field)]
    if field.path in TOGETHER or field.path in NEEDED:  # they are given together or not at all
        sets = sets[:1]
    if field.path == "workload.synthetic.rate":
        sets.append(parse_set("workload.concurrency=1"))
    if field.path.startswith("engine.offload.") and field.path.endswith(".num_blocks"):
        sets.append(parse_set(field.path.replace("num_blocks", "size_gb=1")))
    if field.path == "workload.synthetic.prefix_tokens":
        sets = sets[:1]
    if field.path == "engine.speculation.num_steps":
        sets += [parse_set(f"engine.speculation.{text}") for text in ("algorithm=ngram", "num_draft_tokens=4")]
    if field.path in [f"workload.synthetic.{name}" for name in ("isl", "osl", "requests", "lengths")]:
        with pytest.raises(InputError, match=r"^--set .* (is|are) missing"):
            load_config(base_file(field), sets)
    elif field.nullable:
        assert value_at(load_config(base_file(field), sets).config, field.path) is None
    elif field.path.endswith(".kind") or not (field.is_text or field.is_list):
        with pytest.raises(InputError, match=f"^--set {field.path}: found "):
            load_config(base_file(field), sets)
    else:
        assert value_at(load_config(base_file(field), sets).config, field.path) in ("null", ["null"])


@pytest.mark.parametrize("field", SECTIONS, ids=lambda field: field.path)
def test_a_section_cannot_be_set(field):
    with pytest.raises(InputError, match=f"^--set {field.path}: is a section, expected one of its fields, such as"):
        parse_set(f"{field.path}={{}}")


def within(annotation: object) -> list[object]:
    """All types that an annotation is made of."""
    origin = getattr(annotation, "__origin__", None)  # of an annotated one, or of a list
    inner = [*getattr(annotation, "__args__", ()), *([origin] if origin is not None else [])]
    return [annotation, *(kind for part in inner for kind in within(part))]


def test_every_field_of_the_schema_is_known_and_described():
    def paths(section: type[Section], prefix: str) -> list[str]:
        found = []
        for name, info in section.model_fields.items():
            found.append(prefix + name)
            nested, below = [info.annotation], f"{prefix}{name}."
            if getattr(info.annotation, "__origin__", None) is dict:
                found.append(f"{below}*")
                nested, below = [info.annotation.__args__[1]], f"{below}*."
            for kind in nested:  # grows while it is read
                if isinstance(kind, type) and issubclass(kind, Section):
                    found += paths(kind, below)
                else:
                    nested += [part for part in (getattr(kind, "__origin__", None), *get_args(kind)) if part]
        return found

    assert list(FIELDS) == list(dict.fromkeys(paths(Config, "")))
    assert ".isl.max" in " ".join(FIELDS)
    assert "workload.classes.*.slo.ttft_ms" in FIELDS
    assert [field.path for field in VALUES if not field.description] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("engine.block_size", "an integer of at least 1"),
        ("engine.long_prefill_token_threshold", "an integer of at least 0"),
        ("engine.watermark", "a number of at least 0 and below 1"),
        ("workload.synthetic.prefix_ratio", "a number from 0 to 1"),
        ("workload.speedup", "a number above 0"),
        ("engine.enable_prefix_caching", "true or false"),
        ("engine.async_scheduling", "true or false"),
        ("engine.kind", "'vllm' or 'sglang'"),
        ("engine.chunked_prefill_size", "an integer of at least -1"),
        ("engine.schedule_conservativeness", "a number from 0 to 2"),
        ("cluster.router.tie_break", "'lowest' or 'random'"),
        ("workload.path", "text or a list of texts"),
        ("output.report", "text"),
        ("workload.synthetic", "a mapping of fields"),
    ],
)
def test_what_a_field_accepts_in_words(path, expected):
    assert FIELDS[path].expected == expected


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("engine.blok_size", "did you mean 'engine.block_size'?"),
        ("block_size", "did you mean 'engine.block_size'?"),
        ("blok_size", "did you mean 'engine.block_size'?"),
        ("enigne.block_size", "did you mean 'engine.block_size'?"),
        ("engine.block-size", "did you mean 'engine.block_size'?"),
        ("engine.block_size.tokens", "did you mean 'engine.block_size'?"),
        ("workload.rate", "did you mean 'workload.synthetic.rate'?"),
        ("router", "did you mean 'cluster.router'?"),
        ("slo.zzz", "expected one of 'slo.ttft_ms', 'slo.itl_ms', 'slo.e2e_ms'"),
        (
            "zzz",
            "expected one of 'workload', 'cluster', 'engine', 'prefill_engine', 'decode_engine', 'timing', 'slo', "
            "'output', 'seed', 'max_time_s'",
        ),
    ],
)
def test_the_closest_field(path, hint):
    assert closest_field(path) == hint


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("engine.block_size", "16", 16),
        ("engine.block_size", "[16", "[16"),
        ("timing.speedup", "1e-1", 0.1),
        ("engine.behaviour", "0.33", 0.33),
        ("output.report", "123", "123"),
        ("output.report", "a: b #c", "a: b #c"),
        ("output.report", "'123'", "123"),
        ("output.report", "null", None),
        ("workload.path", "2024-01.jsonl", "2024-01.jsonl"),
        ("workload.path", "[a, b]", ["a", "b"]),
        ("cluster.router.kind", "null", "null"),
    ],
)
def test_text_of_a_command_line_as_a_value(path, text, value):
    assert parse_value(path, text) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        ("a", "'a'"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
        ("x" * 99, "'" + "x" * 56 + "..."),
    ],
)
def test_values_in_error_messages(value, words):
    assert found_in_words(value) == words


def test_a_set_without_value():
    with pytest.raises(InputError) as caught:
        parse_set("engine.block_size")
    assert str(caught.value) == "--set: found 'engine.block_size', expected FIELD=VALUE such as engine.block_size=16"


def test_unquoted_releases_and_aliases_in_yaml():
    config = Config.model_validate({"engine": {"behaviour": 0.33, "scheduling_policy": "fifo"}})
    assert (config.engine.behaviour, config.engine.scheduling_policy) == ("0.33", "fcfs")


def test_one_path_may_stand_without_a_list():
    assert WorkloadConfig.model_validate({"path": "a.jsonl"}).path == ["a.jsonl"]
