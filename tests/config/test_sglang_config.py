"""The fields of an SGLang engine, and what is said to those who mix up the fields of two engines."""

from __future__ import annotations

import pytest

from windtunnel.config.file import read_config_file
from windtunnel.config.load import dump_config, load_config, parse_set
from windtunnel.config.schema import Config, SglangConfig, VllmConfig
from windtunnel.errors import InputError


def engine(*texts: str) -> object:
    return load_config(None, [parse_set(f"engine.{text}") for text in texts]).config.engine


def message(*texts: str) -> str:
    with pytest.raises(InputError) as caught:
        engine(*texts)
    return str(caught.value)


def test_the_kind_chooses_the_fields() -> None:
    assert isinstance(engine(), VllmConfig)
    assert isinstance(engine("kind=vllm"), VllmConfig)
    found = engine("kind=sglang", "page_size=16", "chunked_prefill_size=-1", "schedule_policy=lpm")
    assert isinstance(found, SglangConfig)
    assert (found.page_size, found.chunked_prefill_size, found.schedule_policy) == (16, -1, "lpm")


def test_defaults() -> None:
    assert SglangConfig().model_dump() == {
        "kind": "sglang",
        "num_gpu_blocks": 1_048_576,
        "page_size": 1,
        "max_running_requests": 256,
        "max_prefill_tokens": 16384,
        "chunked_prefill_size": 8192,
        "prefill_max_requests": None,
        "context_length": None,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "ignore_eos": True,
        "enable_prefix_caching": True,
        "enable_mixed_chunk": False,
        "eviction_policy": "lru",
        "overlap_schedule": True,
        "behaviour": "0.5.23",
        "speculation": None,
        "offload": None,
        "fast_forward": True,
    }


@pytest.mark.parametrize("page_size", [1, 3, 64, 10_000_000])
def test_both_engines_have_the_same_memory_unless_told_otherwise(page_size: int) -> None:
    config = SglangConfig(page_size=page_size, chunked_prefill_size=-1)
    pages = VllmConfig().kv_capacity_tokens // page_size
    assert config.num_gpu_blocks == max(pages, 1)
    assert SglangConfig(page_size=page_size, num_gpu_blocks=7, chunked_prefill_size=-1).num_gpu_blocks == 7


def test_fifo_is_another_name_for_fcfs() -> None:
    assert SglangConfig.model_validate({"schedule_policy": "fifo"}).schedule_policy == "fcfs"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["block_size=16"], "--set engine.block_size: is a field of the vllm engine, but the engine is sglang"),
        (["max_num_seqs=4"], "--set engine.max_num_seqs: is a field of the vllm engine, but the engine is sglang"),
        (["page_sise=4"], "--set engine.page_sise: unknown field: did you mean 'engine.page_size'?"),
        (["page_size=0"], "--set engine.page_size: found 0, expected an integer of at least 1"),
        (["num_gpu_blocks=-1"], "--set engine.num_gpu_blocks: found -1, expected an integer of at least 1"),
        (["max_prefill_tokens=0"], "--set engine.max_prefill_tokens: found 0, expected an integer of at least 1"),
        (["max_running_requests=0"], "--set engine.max_running_requests: found 0, expected an integer of at least 1"),
        (
            ["chunked_prefill_size=-2"],
            "--set engine.chunked_prefill_size: found -2, expected an integer of at least -1",
        ),
        (
            ["chunked_prefill_size=0"],
            "--set engine.chunked_prefill_size is 0: expected at least 1, or -1 for prompts in one pass",
        ),
        (
            ["chunked_prefill_size=8", "page_size=16"],
            "--set engine.chunked_prefill_size must be at least --set engine.page_size: chunks are whole pages",
        ),
        (
            ["chunked_prefill_size=-1", "enable_mixed_chunk=true"],
            "--set engine.enable_mixed_chunk has no effect while --set engine.chunked_prefill_size is -1",
        ),
        (
            ["schedule_policy=LPM"],
            "--set engine.schedule_policy: found 'LPM', expected 'fcfs' or 'lpm' or 'lof'",
        ),
        (
            ["schedule_policy=dfs-weight"],
            "--set engine.schedule_policy: found 'dfs-weight', SGLang's dfs-weight is not modelled: "
            "expected 'fcfs', 'lpm' or 'lof'",
        ),
        (
            ["eviction_policy=lruu"],
            "--set engine.eviction_policy: found 'lruu', expected 'lru' or 'lfu' or 'fifo' or 'mru' "
            "(did you mean 'lru'?)",
        ),
        (
            ["schedule_conservativeness=-0.1"],
            "--set engine.schedule_conservativeness: found -0.1, expected a number from 0 to 2",
        ),
        (
            ["schedule_conservativeness=5"],
            "--set engine.schedule_conservativeness: found 5, expected a number from 0 to 2",
        ),
        (["behaviour=0.33"], "--set engine.behaviour: found 0.33, expected '0.5.23'"),
    ],
)
def test_mistakes_in_an_sglang_engine(texts: list[str], expected: str) -> None:
    found = message("kind=sglang", *texts)
    assert found == expected or expected in found


@pytest.mark.parametrize("name", ["page_size=4", "schedule_policy=lpm", "overlap_schedule=false", "ignore_eos=false"])
def test_a_field_of_the_other_engine(name: str) -> None:
    path = name.partition("=")[0]
    assert message(name) == f"--set engine.{path}: is a field of the sglang engine, but the engine is vllm"


@pytest.mark.parametrize("kind", ["sglong", "3", "[vllm]", "null"])
def test_an_unknown_kind(kind: str) -> None:
    assert message(f"kind={kind}", "page_size=4").startswith("--set engine.kind: found ")
    assert "expected 'vllm' or 'sglang'" in message(f"kind={kind}")


def test_a_file_names_the_line(tmp_path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("engine:\n  kind: sglang\n  page_size: 16\n  block_size: 16\n")
    with pytest.raises(InputError) as caught:
        load_config(read_config_file(path))
    assert str(caught.value) == (
        f"{path}:4: engine.block_size: is a field of the vllm engine, but the engine is sglang"
    )


def test_what_is_printed_reads_back(tmp_path) -> None:
    config = Config.model_validate({"engine": {"kind": "sglang", "page_size": 16, "overlap_schedule": False}})
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(read_config_file(path)).config == config
