"""How much KV cache fits a GPU: four measured pools, the bytes of a token, and logs of engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import InputError
from windtunnel.timing.capacity import GIB, MemoryPlan, plan_memory, read_engine_log, smallest_tp_that_fits
from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.deployment import Deployment, deploy


def deployment(model: str, gpu: str, **options: object) -> Deployment:
    return deploy(load_model(model), load_gpu(gpu), **options)  # type: ignore[arg-type]


def plan(
    model: str, gpu: str, rows: int = 256, tokens: int = 8192, share: float = 0.9, **options: object
) -> MemoryPlan:
    return plan_memory(
        deployment(model, gpu, **options), share=share, max_rows=rows, max_tokens=tokens, holds_activations=True
    )


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "tokens_of_a_pass", "measured", "within"),
    [
        ("Llama-3.1-8B", "h200-sxm", "fp8", 8192, 945_029, 0.02),  # a Dynamo profile
        ("Llama-3.1-8B", "rtx-4090", "bf16", 2048, 2588 * 16, 0.02),  # LLMServingSim's log of vLLM 0.19
        ("Qwen3-1.7B", "h100-sxm", "bf16", 8192, 38_864 * 16, 0.02),  # the case of Dynamo's change 12583
    ],
)
def test_measured_pools(model: str, gpu: str, dtype: str, tokens_of_a_pass: int, measured: int, within: float) -> None:
    found = plan(model, gpu, tokens=tokens_of_a_pass, dtype=dtype).tokens
    assert found == pytest.approx(measured, rel=within)


def test_the_memory_that_vllm_logged() -> None:
    # vllm-project/vllm pull request 10511: Meta-Llama-3-8B with 8,192 tokens a pass on an 80 GiB GPU of 79.22 GiB;
    # 14.96 GiB of weights, 1.26 of activations, 0.16 of others once that was fixed (pull request 12126).
    found = plan("Llama-3.1-8B", "h100-sxm")
    assert found.weights / GIB == pytest.approx(14.96, rel=0.001)
    assert (found.activations + found.runtime) / GIB == pytest.approx(1.26 + 0.16, abs=0.1)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("Llama-3.1-8B", {}, 131_072),
        ("Llama-3.1-8B", {"kv_dtype": "fp8"}, 65_536),
        ("Llama-3.1-8B", {"dtype": "fp8"}, 131_072),  # FP8 weights do not make an FP8 cache
        ("Qwen3-0.6B", {}, 114_688),  # head_dim is 128, not hidden / heads
        ("Llama-3.1-70B", {"tp": 4}, 81_920),
        ("Llama-3.1-70B", {"tp": 8}, 40_960),
        ("Qwen3-30B-A3B", {"tp": 8}, 48 * 2 * 128 * 2),  # four KV heads on eight GPUs: each is there twice
        ("DeepSeek-V3", {"tp": 8, "ep": 8}, 70_272),  # latent, and the same on every GPU
        ("Llama-3.1-8B", {"pp": 4}, 131_072 // 4),
        ("DeepSeek-V3.2", {"tp": 8}, 70_272 + 61 * 132),  # and an FP8 key of 128 with its scale for the index
        ("Qwen3.5-397B-A17B", {"tp": 8, "dtype": "fp8"}, 15 * 2 * 256 * 2),  # 15 of 60 layers have a cache
    ],
)
def test_bytes_of_a_token(model: str, options: dict[str, object], expected: int) -> None:
    assert plan(model, "h200-sxm", **options).bytes_per_token == expected  # type: ignore[arg-type]


def test_bytes_of_a_token_on_all_gpus_together() -> None:
    assert deployment("Llama-3.1-70B", "h200-sxm", tp=4).kv_bytes_per_token == 4 * 81_920
    assert deployment("Qwen3-30B-A3B", "h200-sxm", tp=8).kv_bytes_per_token == 48 * 2 * 4 * 128 * 2
    assert deployment("DeepSeek-V3", "h200-sxm", tp=8, ep=8).kv_bytes_per_token == 70_272


def test_layers_with_a_window_keep_no_more_than_it() -> None:
    # gpt-oss-120b: 18 of 36 layers see 128 tokens, 8 KV heads of 64 in bf16
    found = plan("gpt-oss-120b", "h100-sxm", rows=100, tp=2)
    assert found.bytes_per_token == 18 * 2 * 4 * 64 * 2
    assert found.windows == 18 * 128 * 100 * 2 * 4 * 64 * 2


def test_layers_with_a_state_keep_it_for_each_request_however_long_it_is() -> None:
    # Qwen3.5-397B-A17B: 45 layers, 64 heads of 128 x 128 numbers in float32, and three tokens of the convolution's
    # 2 x 16 x 128 + 64 x 128 channels in bf16
    one = 45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2)
    found = plan("Qwen3.5-397B-A17B", "b200-sxm", rows=100, tp=8)
    assert found.states == 100 * one / 8
    assert found.as_dict()["state_bytes"] == int(found.states)
    assert plan("Qwen3.5-397B-A17B", "b200-sxm", rows=200, tp=8).tokens < found.tokens
    half = deployment("Qwen3.5-397B-A17B", "b200-sxm", tp=8, state_dtype="bf16").state_bytes_per_request
    assert half == 45 * (64 * 128 * 128 * 2 + 3 * 12_288 * 2) / 8
    with pytest.raises(InputError, match="bf16 has no effect on Qwen/Qwen3-8B, which keeps no states"):
        deployment("Qwen3-8B", "b200-sxm", state_dtype="bf16")
    with pytest.raises(InputError, match="3 GPUs cannot split"):
        deployment("Qwen3.5-397B-A17B", "b200-sxm", tp=3)


@pytest.mark.parametrize(
    ("model", "options", "gib"),
    [  # weights that AIConfigurator 0.12 counts, but for embeddings that it counts twice
        ("Qwen3-8B", {}, 15.26),
        ("Llama-3.1-8B", {}, 14.96),
        ("Llama-3.1-70B", {"tp": 4}, 32.85),
        ("Llama-3.1-70B", {"tp": 8}, 16.43),
        ("Qwen3-32B-FP8", {}, 31.96),
        ("DeepSeek-V3", {"tp": 8, "ep": 8}, 671.03e9 / 8 / (1 << 30)),  # a byte for each of its parameters
        ("gpt-oss-120b", {"tp": 2}, 60.8 / 2),  # the size of its checkpoint
        ("Kimi-K2.5", {"tp": 8}, 595.1e9 / 8 / (1 << 30)),  # its checkpoint; attention and shared experts are bf16
    ],
)
def test_weights(model: str, options: dict[str, object], gib: float) -> None:
    found = deployment(model, "h200-sxm", **options).weight_bytes / GIB
    assert found == pytest.approx(gib, rel=0.05)


def test_stages_and_groups_share_the_weights() -> None:
    whole = deployment("Qwen3-30B-A3B", "h200-sxm").weight_bytes
    router = 2.0 * 48 * 2048 * 128  # which every GPU has
    split = deployment("Qwen3-30B-A3B", "h200-sxm", tp=4).weight_bytes
    assert split == pytest.approx((whole - router) / 4 + router)
    assert deployment("Qwen3-30B-A3B", "h200-sxm", tp=4, ep=4).weight_bytes == split
    assert deployment("Qwen3-30B-A3B", "h200-sxm", dp=4, ep=4).weight_bytes < whole / 3  # attention is on each
    assert deployment("Llama-3.1-70B", "h200-sxm", pp=4).weight_bytes < whole


def test_the_smallest_tp_that_fits() -> None:
    def smallest(model: str, gpu: str, tokens: int = 128) -> int | None:
        return smallest_tp_that_fits(
            deployment(model, gpu),
            share=0.9,
            max_rows=256,
            max_tokens=8192,
            holds_activations=True,
            tokens=tokens,
        )

    assert smallest("Llama-3.1-8B", "h100-sxm") == 1
    assert smallest("Llama-3.1-70B", "h100-sxm") == 2
    assert smallest("Llama-3.1-70B", "h100-sxm", tokens=100_000) == 4
    assert smallest("Llama-3.1-405B", "rtx-4090") is None


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("INFO 12-01 kv_cache_utils.py: GPU KV cache size: 945,029 tokens", 945_029),
        ("INFO # GPU blocks: 2588, # CPU blocks: 512", 2588 * 16),
        ("max_total_num_tokens=594624, chunked_prefill_size=8192", 594_624),
        ("KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB", 367_404),
        ("(TP0) GPU KV cache size: 1,000 tokens\n(TP1) GPU KV cache size: 990 tokens", 990),
    ],
)
def test_the_log_of_an_engine(tmp_path: Path, line: str, tokens: int) -> None:
    assert read_engine_log(line, 16) == tokens
    log = tmp_path / "engine.log"
    log.write_text(f"hello\n{line}\nbye\n")
    assert read_engine_log(str(log), 16) == tokens


def test_a_log_that_does_not_tell(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("hello\n")
    with pytest.raises(InputError, match="no line tells the size of the KV cache"):
        read_engine_log(str(log), 16)
    with pytest.raises(InputError, match="No such file"):
        read_engine_log(str(tmp_path / "none.log"), 16)
