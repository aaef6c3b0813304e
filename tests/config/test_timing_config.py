"""A deployment in the configuration: what goes together, and how it sizes the KV cache of the engine."""

from __future__ import annotations

import pytest

from windtunnel.cli.flags import FIELD_OF_FLAG, FLAG_OF_FIELD
from windtunnel.config.fields import parse_value
from windtunnel.config.load import Assignment, dump_config, load_config, parse_set
from windtunnel.config.schema import Config
from windtunnel.errors import InputError


def load(text: str) -> Config:
    """The configuration of a command line."""
    words = text.split()
    given = []
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if flag == "--set":
            given.append(parse_set(value))
        else:
            path = FIELD_OF_FLAG[flag]
            given.append(Assignment(path, parse_value(path, value), flag, f"{flag} {value}"))
    return load_config(None, given, flags=FLAG_OF_FIELD).config


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        load(text)
    return str(caught.value)


def test_a_model_on_a_gpu_sizes_the_cache() -> None:
    config = load("--model Llama-3.1-8B --gpu h200 --dtype fp8 --set engine.block_size=16")
    assert config.timing.gpu == "h200-sxm"
    assert config.engine.num_gpu_blocks == pytest.approx(945_029 / 16, rel=0.02)
    assert load("--model Llama-3.1-8B --gpu h200 --kv-dtype fp8").engine.num_gpu_blocks > 1.8 * (
        load("--model Llama-3.1-8B --gpu h200").engine.num_gpu_blocks
    )


def test_a_number_that_is_given_wins() -> None:
    assert load("--model Llama-3.1-8B --gpu h200 --set engine.num_gpu_blocks=77").engine.num_gpu_blocks == 77


def test_a_smaller_share_holds_less_and_sglang_counts_pages() -> None:
    config = load("--model Llama-3.1-8B --gpu h100 --set timing.gpu_memory_utilization=0.5")
    assert config.engine.num_gpu_blocks < load("--model Llama-3.1-8B --gpu h100").engine.num_gpu_blocks / 2
    pages = load("--model Llama-3.1-8B --gpu h100 --engine sglang").engine.num_gpu_blocks
    assert (
        load("--model Llama-3.1-8B --gpu h100 --engine sglang --set engine.page_size=16").engine.num_gpu_blocks
        == pages // 16
    )


def test_the_log_of_an_engine_sizes_it_too() -> None:
    config = load_config(None, [parse_set("timing.engine_log=GPU KV cache size: 1,600 tokens")]).config
    assert config.engine.num_gpu_blocks == 1600 // 64 - 1  # without vLLM's null block


def test_the_size_follows_a_change_and_is_kept_by_a_file() -> None:
    config = load("--model Llama-3.1-8B --gpu h100")
    before = config.engine.num_gpu_blocks
    config.timing = load("--model Llama-3.1-8B --gpu h200").timing
    assert config.engine.num_gpu_blocks > before
    assert Config.model_validate(config.model_dump()).engine.num_gpu_blocks == config.engine.num_gpu_blocks
    assert f"num_gpu_blocks: {config.engine.num_gpu_blocks}" in dump_config(config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--model Llama-3.1-8B", "--model needs --gpu: a deployment is a model on a GPU"),
        ("--gpu h100", "--gpu needs --model: a deployment is a model on a GPU"),
        ("--tp 2", "--tp has no effect without --model and --gpu"),
        ("--dtype fp8", "--dtype has no effect without --model and --gpu"),
        (
            "--model Llama-3.1-8B --gpu h100 --tp 3",
            "--tp: 3 GPUs cannot split the 32 attention heads of meta-llama/Meta-Llama-3.1-8B",
        ),
        ("--model Llama-3.1-405B --gpu h200 --tp 16", "--tp: 16 is more than the 8 GPUs of a node, which alone are"),
        ("--model Qwen3-8B --gpu h100 --ep 2", "--ep: 2 has no effect on Qwen/Qwen3-8B, which has no experts"),
        ("--model Qwen3-30B-A3B --gpu h100 --tp 2 --ep 3", "--ep: 3 groups cannot hold the experts of 2 GPUs"),
        ("--model Qwen3-8B --gpu h100 --pp 37", "--pp: 37 stages are more than the 36 layers of Qwen/Qwen3-8B"),
        (
            "--model Llama-3.1-8B --gpu a100 --dtype fp8",
            "--dtype: fp8 weights need fp8 arithmetic, which the a100-sxm does not have: expected 'bf16', 'int4', ",
        ),
        ("--model Llama-3.1-8B --gpu h100 --dtype fp9", "--dtype: found 'fp9', expected 'bf16' or 'fp8' or "),
        ("--model Llama-9 --gpu h100", "--model: found 'Llama-9', which is no model of the catalog: did you mean 'm"),
        ("--model Qwen3-8B --gpu h101", "--gpu: found 'h101', which is no GPU of the catalog: did you mean 'h100-"),
        (
            "--model Llama-3.1-70B --gpu h100",
            "--gpu: no room for a KV cache: weights take 141.1 GB and other needs 2.4 GB of 76.5 GB (90% of the "
            "h100-sxm); the smallest --tp that fits is 2",
        ),
        ("--model Llama-3.1-405B --gpu rtx-4090", "no --tp within a node fits"),
        (
            "--set timing.engine_log=max_total_num_tokens=9999 --set engine.num_gpu_blocks=3",
            "give either --set engine.num_gpu_blocks or --set timing.engine_log, not both",
        ),
        ("--set timing.engine_log=max_total_num_tokens=100", "100 tokens are less than two blocks of 64"),
        (
            "--set timing.engine_log=/no/such/file",
            "--set timing.engine_log: '/no/such/file': No such file or directory",
        ),
    ],
)
def test_what_does_not_go_together(text: str, expected: str) -> None:
    found = message(text)
    assert expected in found
    assert "\n" not in found
