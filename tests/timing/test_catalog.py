"""GPUs and models as data: names, what a `config.json` means, and what is said about those that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.errors import InputError
from windtunnel.timing.catalog import gpu_names, load_gpu, load_model, model_names
from windtunnel.timing.catalog.hf_config import read_model_shape

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-0.6B", 0.6),
        ("Qwen/Qwen3-1.7B", 1.72),
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen3-32B", 32.8),
        ("Qwen/Qwen3-30B-A3B", 30.5),
        ("Qwen/Qwen3-235B-A22B", 235.0),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.0),
        ("meta-llama/Llama-3.1-8B", 8.03),
        ("meta-llama/Llama-3.1-70B", 70.6),
        ("meta-llama/Llama-3.1-405B", 405.9),
        ("deepseek-ai/DeepSeek-V3", 671.0),
        ("moonshotai/Kimi-K2-Instruct", 1026.0),
        ("openai/gpt-oss-120b", 116.8),
        ("openai/gpt-oss-20b", 20.9),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7),
        ("mistralai/Mixtral-8x22B-v0.1", 140.6),
        ("MiniMaxAI/MiniMax-M2.5", 229.0),
        ("Qwen/Qwen2.5-7B-Instruct", 7.61),
        ("Qwen/Qwen2.5-72B-Instruct", 72.7),
        ("Qwen/Qwen3-VL-8B-Instruct", 8.19),  # without its vision tower
        ("mistralai/Mistral-7B-v0.3", 7.25),
        ("mistralai/Mistral-Nemo-Base-2407", 12.2),
        ("mistralai/Mistral-Small-Instruct-2409", 22.2),
        ("mistralai/Mistral-Large-Instruct-2407", 122.6),
        ("meta-llama/Llama-3.2-1B", 1.24),
        ("meta-llama/Llama-3.2-3B", 3.21),
        ("Qwen/Qwen3.5-397B-A17B", 396.3),  # 397 with its vision tower
        ("Qwen/Qwen3.5-122B-A10B", 122.0),
        ("Qwen/Qwen3.5-35B-A3B", 34.8),
        ("Qwen/Qwen3.5-27B", 27.0),
        ("zai-org/GLM-5", 744.0),
        ("deepseek-ai/DeepSeek-V3.2", 671.9),  # with its index
        ("moonshotai/Kimi-K2.5", 1026.0),
    ],
)
def test_a_model_has_the_parameters_that_its_makers_publish(name: str, billions: float) -> None:
    assert load_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_model_and_gpu_of_the_catalog_can_be_read() -> None:
    assert all(load_model(name).num_layers > 0 for name in model_names())
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.source
        assert gpu.memory_source
        assert gpu.memory_bandwidth > 1e11
        assert gpu.flops["bf16"] > 1e13


def test_names_are_found_without_their_owner_and_in_any_case() -> None:
    assert load_model("llama-3.1-8b").num_layers == 32
    assert load_model("qwen3_8b").name == "Qwen/Qwen3-8B"
    assert load_gpu("H100_SXM") is load_gpu("h100")


@pytest.mark.parametrize(
    ("load", "name", "hint"),
    [
        (load_model, "qwen3-7b", "did you mean 'Qwen/Qwen3-1.7B'"),
        (load_model, "Lama-3.1-8B", "did you mean 'meta-llama/Llama-3.1-8B'"),
        (load_gpu, "h300", "did you mean 'gb300' or 'h200-sxm' or 'h100-sxm'"),
        (load_gpu, "tpu", "expected one of 'h100-sxm', "),
    ],
)
def test_an_unknown_name_gets_the_nearest(load, name, hint) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        load(name)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_is_read_as_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(tmp_path)).num_parameters == load_model("Llama-3.1-8B").num_parameters
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 64}))
    assert load_model(str(tmp_path)).num_layers == 64
    assert load_model(str(tmp_path / "config.json")).num_layers == 64
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert load_model(str(tmp_path)).weight_dtype == "fp8"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "the directory has no config.json"),
        ("{", "config.json: not JSON: "),
        ("[]", "config.json: expected a JSON object of fields"),
        ("{}", "config.json: no 'hidden_size', which a model needs"),
        (json.dumps({**LLAMA, "hidden_size": "big"}), "'hidden_size' is 'big', expected a positive integer"),
    ],
)
def test_a_directory_that_is_no_model(tmp_path: Path, content: str | None, expected: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError) as caught:
        load_model(str(tmp_path))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"index_topk": 2048}, "'index_topk' picks tokens of latent attention, but there is no 'kv_lora_rank'"),
        ({"linear_attn_config": {"a": 1}}, "'linear_attn_config' says that the model has linear attention"),
        ({"linear_num_key_heads": 16}, "no 'linear_key_head_dim', which a model needs"),
        ({"layer_types": ["linear_attention"] * 32}, "prices layers of type 'linear_attention'"),
        ({"layer_types": ["mamba"] * 32}, "prices layers of type 'mamba'"),
        ({"layer_types": ["full_attention"]}, "'layer_types' does not name each of 32 layers"),
        ({"layer_types": ["sliding_attention"] * 32}, "'sliding_window' is missing"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "prices weights quantised by 'aqlm'"),
        ({"num_attention_heads": 33}, "33 heads do not divide a 'hidden_size' of 4096"),
    ],
)
def test_a_kind_of_model_that_is_not_priced_is_never_taken_for_another(extra, expected) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        read_model_shape({**LLAMA, **extra}, "m")
    assert expected in str(caught.value)


def test_what_weights_are_stored_as() -> None:
    def stored(**quantization: object) -> tuple[str, str]:
        shape = read_model_shape({**LLAMA, "quantization_config": quantization}, "m")
        return shape.weight_dtype, " ".join(sorted(shape.bf16_parts))

    group = {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}
    assert stored(quant_method="fp8") == ("fp8", "")
    assert stored(quant_method="fp8", weight_block_size=[128, 128]) == ("fp8_block", "")
    assert stored(quant_method="modelopt", quant_algo="NVFP4") == ("nvfp4", "")
    assert stored(quant_method="awq", bits=4) == ("int4", "")
    assert stored(quant_method="mxfp4") == ("mxfp4", "attention linear mlp output shared")
    assert stored(quant_method="compressed-tensors", config_groups=group) == ("int4", "")
    ignore = ["lm_head", "re:.*self_attn.*"]
    left_alone = ("int4", "attention output")
    assert stored(quant_method="compressed-tensors", config_groups=group, ignore=ignore) == left_alone


@pytest.mark.parametrize(
    ("modules", "parts"),
    [
        (["lm_head", "model.layers.0*"], ""),
        (["model.layers.0.self_attn*"], ""),  # one layer of many is no part
        (["model.layers.0.self_attn*", "model.layers.1.self_attn*"], "attention output"),
        (["model.layers.*.self_attn.q_a_proj", "model.layers.*.self_attn.kv_b_proj"], "attention"),
        (["model.layers.*.self_attn.o_proj"], "output"),
        (["model.layers.*.self_attn.indexer*", "model.layers.*.mlp.gate"], ""),
        (["*.mlp.shared_expert.*", "model.layers.*.linear_attn*"], "linear shared"),
        (["re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], "mlp shared"),
        (["model.layers.0.self_attn.indexers_proj", "model.layers.1.self_attn.kv_a_layernorm"], ""),
    ],
)
def test_parts_that_a_checkpoint_leaves_alone(modules: list[str], parts: str) -> None:
    quantization = {"quant_algo": "NVFP4", "exclude_modules": modules}
    shape = read_model_shape({**LLAMA, "quantization_config": quantization}, "m")
    assert " ".join(sorted(shape.bf16_parts)) == parts


def windows(**extra: object) -> list[tuple[int, int]]:
    return sorted(
        (group.window_tokens, group.count)
        for group in read_model_shape({**LLAMA, "num_hidden_layers": 12, **extra}, "m").layers
    )


def test_sliding_windows() -> None:
    assert windows() == [(0, 12)]
    assert windows(sliding_window=4096) == [(4096, 12)]
    assert windows(sliding_window=4096, use_sliding_window=False) == [(0, 12)]
    assert windows(sliding_window=4096, use_sliding_window=True, max_window_layers=9) == [(0, 9), (4096, 3)]
    assert windows(sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 6) == [(0, 6), (128, 6)]
    assert windows(sliding_window=512, model_type="gemma3_text") == [(0, 2), (512, 10)]
    assert windows(sliding_window=512, model_type="gemma2") == [(0, 6), (512, 6)]


def test_which_layers_are_linear() -> None:
    linear = {
        **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 16),
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
        "linear_conv_kernel_dim": 4,
        "num_hidden_layers": 12,
    }
    kinds = ["linear_attention", "full_attention", "full_attention"] * 4
    for extra, count in (({}, 9), ({"full_attention_interval": 2}, 6), ({"layer_types": kinds}, 4)):
        shape = read_model_shape({**LLAMA, **linear, **extra}, "m")
        assert (shape.num_linear_layers, shape.num_attention_layers) == (count, 12 - count)
        assert shape.linear is not None
        assert shape.linear.state_bytes == 4
    assert load_model("Llama-3.1-8B").linear is None


def test_which_layers_have_experts() -> None:
    moe = {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 100}

    def experts(**extra: object) -> int:
        return sum(group.count for group in read_model_shape({**moe, **extra}, "m").layers if group.has_experts)

    assert experts() == 32
    assert experts(first_k_dense_replace=3) == 29
    assert experts(decoder_sparse_step=2) == 16
    assert experts(mlp_only_layers=[0, 5]) == 30
    assert read_model_shape({**moe, "n_shared_experts": 2}, "m").shared_intermediate == 200
    assert (
        read_model_shape({**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}, "m").expert_intermediate == 14336
    )
