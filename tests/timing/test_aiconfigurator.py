"""Tables of a predictor: they are its prices again, kept by content, composed to mixed passes, and distrusted.

Most tests ask a small predictor of our own with the traits of the real one; the last ones that, where it is installed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel import InputError
from windtunnel.timing import aic_library, aic_tables, aiconfigurator
from windtunnel.timing.aic_library import AicDeployment
from windtunnel.timing.aic_tables import AicTables, build_arrays, load_tables
from windtunnel.timing.aiconfigurator import aic_deployment
from windtunnel.timing.base import PassShape
from windtunnel.timing.catalog import load_gpu, load_model
from windtunnel.timing.data_guard import jump_findings, ratio_findings
from windtunnel.timing.deployment import deploy
from windtunnel.timing.tabulated import TabulatedTiming

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared"))


class Predictor:
    """Dense weights that are read once a pass, GEMMs that grow by tiles, attention by area, and a fixed cost of it."""

    fixed_ms = 1.5
    launch_ms = 0.2

    def shared(self, tokens: int) -> float:
        return max(2.0, 0.01 * -(-tokens // 8) * 8)

    def attention(self, prompts: int, new: int, prefix: int) -> float:
        alone = self.launch_ms + 1e-6 * (new + prefix) ** 2
        cached = prefix / (new + prefix)
        return alone * prompts**0.9 * (1 - cached * cached)

    def decode_ms(self, batch: int, context: int) -> float:
        return self.shared(batch) + 0.1 + 3e-5 * batch * context

    def prefill_ms(self, batch: int, new: int, prefix: int) -> float:
        return self.shared(batch * new) + self.attention(batch, new, prefix) + self.fixed_ms

    def prompt_parts_ms(self, new: int, prefix: int = 0) -> tuple[float, float]:
        return self.shared(new), self.attention(1, new, prefix) + self.fixed_ms

    def prompts_attention_ms(self, prompts: int, length: int) -> float:
        return self.attention(prompts, length, 0) + self.fixed_ms


class LatentPredictor(Predictor):
    def prompt_parts_ms(self, new: int, prefix: int = 0) -> tuple[float, float]:
        return self.prefill_ms(1, new, prefix), 0.0


def tables_of(predictor: Predictor) -> AicTables:
    return AicTables(build_arrays(predictor, 64), "predictor 1", "a model")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tables() -> AicTables:
    return tables_of(Predictor())


@pytest.fixture(scope="module")
def latent() -> AicTables:
    return tables_of(LatentPredictor())


def prompts(*chunks: tuple[int, int], num_decodes: int = 0, context: int = 0) -> PassShape:
    shape = PassShape(num_decodes, num_decodes * context)
    for start, tokens in chunks:
        shape.add_chunk(start, tokens, 10**7, sampled=False)
    return shape


# --- tables


@given(batch=st.integers(1, 64), context=st.integers(1, 100_000))
def test_decodes_cost_what_the_predictor_says(tables: AicTables, batch: int, context: int) -> None:
    price = TabulatedTiming(tables).price_pass_ms(PassShape(batch, batch * context))
    assert price == pytest.approx(Predictor().decode_ms(batch, context), rel=1e-9)


@given(new=st.integers(1, 16_000), prefix=st.integers(0, 16_000))
def test_a_prompt_costs_what_the_predictor_says(tables: AicTables, new: int, prefix: int) -> None:
    price = TabulatedTiming(tables).price_pass_ms(prompts((prefix, new)))
    assert price == pytest.approx(Predictor().prefill_ms(1, new, prefix), rel=0.015)


@given(batch=st.integers(1, 64), length=st.integers(32, 4000))
def test_equal_prompts_cost_what_the_predictor_says(tables: AicTables, batch: int, length: int) -> None:
    price = TabulatedTiming(tables).price_pass_ms(prompts(*[(0, length)] * batch))
    assert price == pytest.approx(Predictor().prefill_ms(batch, length, 0), rel=0.03)


@given(new=st.integers(1, 16_000), prefix=st.integers(0, 16_000))
def test_latent_attention_has_one_table_of_new_and_cached_tokens(latent: AicTables, new: int, prefix: int) -> None:
    assert latent.has_latent_attention
    price = TabulatedTiming(latent).price_pass_ms(prompts((prefix, new)))
    assert price == pytest.approx(Predictor().prefill_ms(1, new, prefix), rel=0.12)


def test_many_short_prompts_cost_less_than_a_long_one_with_latent_attention(latent: AicTables) -> None:
    timing = TabulatedTiming(latent)
    assert timing.price_pass_ms(prompts(*[(0, 1024)] * 4)) < 0.95 * timing.price_pass_ms(prompts((0, 4096)))


@given(
    new=st.integers(1, 8000),
    prefix=st.integers(0, 8000),
    num_decodes=st.integers(1, 64),
    context=st.integers(1, 20_000),
    is_latent=st.booleans(),
)
def test_a_mixed_pass_costs_at_least_each_part_and_at_most_both(
    tables: AicTables, latent: AicTables, new: int, prefix: int, num_decodes: int, context: int, is_latent: bool
) -> None:
    timing = TabulatedTiming(latent if is_latent else tables)
    mixed = timing.price_pass_ms(prompts((prefix, new), num_decodes=num_decodes, context=context))
    alone = timing.price_pass_ms(prompts((prefix, new)))
    decodes = timing.price_pass_ms(PassShape(num_decodes, num_decodes * context))
    assert max(alone, decodes) - 1e-9 <= mixed <= alone + decodes + 1e-9


@given(num_decodes=st.integers(1, 200), mean=st.integers(1, 300_000), passes=st.integers(1, 80))
def test_a_run_costs_what_its_passes_cost_bit_for_bit(
    tables: AicTables, num_decodes: int, mean: int, passes: int
) -> None:
    timing = TabulatedTiming(tables)
    start = num_decodes * mean
    single = [timing.price_pass_ms(PassShape(num_decodes, start + i * num_decodes)) for i in range(passes)]
    assert timing.price_run_ms(num_decodes, start, -1, passes).tolist() == single


def test_batches_beyond_the_table_go_on_as_the_last_ones_grew(tables: AicTables) -> None:
    timing = TabulatedTiming(tables)
    grown = timing.price_pass_ms(PassShape(96, 96 * 4096)) - timing.price_pass_ms(PassShape(64, 64 * 4096))
    assert grown == pytest.approx(
        timing.price_pass_ms(PassShape(64, 64 * 4096)) - timing.price_pass_ms(PassShape(32, 32 * 4096))
    )
    assert not tables.measured.holds_decodes(65, 65)


# --- the cache on disk


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[AicDeployment]:
    """What was compiled; the cache is a directory of the test."""
    asked: list[AicDeployment] = []

    def compile_predictor(deployment: AicDeployment) -> Any:
        asked.append(deployment)
        return Predictor()

    monkeypatch.setenv(aic_tables.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(aic_tables, "compile_engine", compile_predictor)
    monkeypatch.setattr(aic_tables, "library_version", lambda: "predictor 1")
    return asked


def test_a_deployment_is_tabulated_once(compiled: list[AicDeployment]) -> None:
    deployment = AicDeployment("a/model", "h100_sxm", "vllm")
    first = load_tables(deployment, aic_tables.ROWS - 9)
    second = load_tables(deployment, aic_tables.ROWS)
    assert len(compiled) == 1
    assert (first.decode_ms == second.decode_ms).all()
    shape = prompts((100, 900), num_decodes=7, context=1000)
    assert TabulatedTiming(first).price_pass_ms(shape) == TabulatedTiming(second).price_pass_ms(shape)


@pytest.mark.parametrize("change", [{"tp": 2}, {"kv": "fp8"}, {"config": '{"hidden_size": 8}'}, {"gemm": "fp8"}])
def test_another_content_is_another_table(compiled: list[AicDeployment], change: dict[str, Any]) -> None:
    load_tables(AicDeployment("a/model", "h100_sxm", "vllm"), 1)
    load_tables(AicDeployment("a/model", "h100_sxm", "vllm", **change), 1)
    assert len(compiled) == 2


def test_larger_batches_another_release_and_broken_files_are_tabulated_again(
    compiled: list[AicDeployment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deployment = AicDeployment("a/model", "h100_sxm", "vllm")
    load_tables(deployment, aic_tables.ROWS)
    load_tables(deployment, aic_tables.ROWS + 1)
    assert len(compiled) == 2
    monkeypatch.setattr(aic_tables, "library_version", lambda: "predictor 2")
    assert load_tables(deployment, 1).version == "predictor 2"
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    load_tables(deployment, 1)
    assert len(compiled) == 4


def test_tables_on_disk_serve_without_the_library(
    compiled: list[AicDeployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = AicDeployment("a/model", "h100_sxm", "vllm")
    load_tables(deployment, 1)
    monkeypatch.setattr(aic_tables, "library_version", lambda: None)
    assert load_tables(deployment, 400).version == "predictor 1"
    with pytest.raises(InputError, match=r"not installed: pip install 'windtunnel\[aiconfigurator\]'"):
        load_tables(AicDeployment("another/model", "h100_sxm", "vllm"), 1)


def test_a_cache_that_cannot_be_written_costs_time_only(
    compiled: list[AicDeployment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(aic_tables.CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    deployment = AicDeployment("a/model", "h100_sxm", "vllm")
    load_tables(deployment, 1)
    load_tables(deployment, 1)
    assert len(compiled) == 2


# --- what is asked


def asked(model: str, gpu: str = "h200", **options: Any) -> AicDeployment:
    ships = options.pop("ships_model", True)
    return aic_deployment(deploy(load_model(model), load_gpu(gpu), **options), "vllm", ships_model=ships)


def test_an_fp8_checkpoint_does_not_imply_an_fp8_cache() -> None:
    assert asked("Qwen/Qwen3-32B-FP8").kv == "bfloat16"
    assert asked("Qwen/Qwen3-32B-FP8", kv_dtype="fp8").kv == "fp8"


def test_weights_are_named_where_the_checkpoint_has_others() -> None:
    assert asked("Qwen/Qwen3-32B").gemm is None
    assert asked("Qwen/Qwen3-32B", dtype="fp8").gemm == "fp8"
    moe = asked("Qwen/Qwen3-30B-A3B", dtype="fp8_block", tp=2, ep=2, dp=2)
    assert (moe.gemm, moe.moe, moe.tp, moe.attention_dp, moe.moe_tp, moe.moe_ep) == (
        "fp8_block",
        "fp8_block",
        2,
        2,
        2,
        2,
    )


def test_a_model_the_library_does_not_ship_goes_by_the_content_of_its_config(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 16,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
    }
    names = []
    for layers in (4, 5):
        directory = tmp_path / "mine"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        names.append(asked(str(directory)))
    assert names[0].model == names[1].model == "mine"
    assert names[0].digest() != names[1].digest()
    assert json.loads(names[0].config or "")["num_hidden_layers"] == 4
    assert names[0].gemm == "bfloat16"


def test_pipeline_stages_are_refused() -> None:
    with pytest.raises(InputError, match=r"timing\.pp: aiconfigurator prices one pipeline stage only"):
        asked("Qwen/Qwen3-32B", pp=2)


# --- distrust


def grid(prices: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(prices)[:, None] * np.ones((1, 3)), np.array([1024.0, 2048.0, 4096.0])


def test_a_cliff_between_neighbouring_batches_is_a_finding() -> None:
    smooth = [5.0 + 0.02 * batch for batch in range(1, 257)]
    assert jump_findings(*grid(smooth)) == []
    assert jump_findings(*grid([float(batch) for batch in range(1, 257)])) == []
    cliff = [price * (1.43 if batch >= 65 else 1.0) for batch, price in enumerate(smooth, 1)]
    assert jump_findings(*grid(cliff)) == [
        "one more decode costs over 10 % more at batch 64 to 65 (+43%): an edge of what was measured, not a GPU"
    ]


class Times:
    needs_physical_context = False

    def __init__(self, tables: AicTables, decode: float, prompt: float) -> None:
        self.model = TabulatedTiming(tables)
        self.decode, self.prompt = decode, prompt
        self.price_run_ms = self.model.price_run_ms

    def price_pass_ms(self, shape: PassShape) -> float:
        return self.model.price_pass_ms(shape) * (self.prompt if shape.chunk_tokens else self.decode)


def test_prices_far_from_what_the_hardware_can_do_are_findings(tables: AicTables) -> None:
    reference = TabulatedTiming(tables)
    assert ratio_findings(Times(tables, 1.3, 1.5), reference, "roofline") == []
    assert ratio_findings(Times(tables, 1.8, 1.5), reference, "roofline") == [
        "100% of decode passes cost less than 0.75 or more than 1.35 times what roofline says (median 1.80 times): "
        "broken rows are known to look like this"
    ]
    assert "100% of prefill passes" in ratio_findings(Times(tables, 1.0, 0.5), reference, "roofline")[0]


# --- the library itself


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("aiconfigurator_core")
    os.environ[aic_tables.CACHE_VARIABLE] = str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (AicDeployment("a/model", "h100_sxm", "vllm"), "AIConfigurator does not know the model 'a/model': "),
        (AicDeployment("Qwen/Qwen3-8b", "h100_sxm", "vllm"), "did you mean 'Qwen/Qwen3-8B'?"),
        (AicDeployment("Qwen/Qwen3-8B", "v100", "vllm"), "no vllm measurements on 'v100': expected one of a100_sxm, "),
        (AicDeployment("Qwen/Qwen3-8B", "h100_sxm", "vlm"), "knows no engine 'vlm': did you mean 'vllm'?"),
        (
            AicDeployment("Qwen/Qwen3-8B", "h100_sxm", "vllm", tp=3),
            "has no data for Qwen/Qwen3-8B on h100_sxm with vllm",
        ),
    ],
)
def test_what_the_library_lacks_is_one_line(library: None, deployment: AicDeployment, message: str) -> None:
    with pytest.raises(InputError) as caught:
        aic_library.compile_engine(deployment)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_configuration_of_ones_own_is_priced_as_the_one_that_is_shipped(library: None) -> None:
    published = asked("Qwen/Qwen3-0.6B", "h100")
    own = asked("Qwen/Qwen3-0.6B", "h100", ships_model=False)
    assert published.config is None
    assert own.config is not None
    one, other = aic_library.compile_engine(published), aic_library.compile_engine(own)
    assert one.decode_ms(8, 1000) == other.decode_ms(8, 1000)


def test_a_model_and_a_gpu_are_enough(library: None) -> None:
    deployment = deploy(load_model("Qwen/Qwen3-0.6B"), load_gpu("h100"))
    timing = aiconfigurator.aiconfigurator_timing(deployment, "vllm", 8)
    engine = aic_library.compile_engine(aic_deployment(deployment, "vllm"))
    assert timing.price_pass_ms(PassShape(8, 8 * 4104)) == pytest.approx(engine.decode_ms(8, 4104), rel=1e-3)
    assert timing.notes == [
        f"Qwen/Qwen3-0.6B on h100_sxm (vllm, tp 1): kernels as {aic_library.library_version()} has them, "
        "KV cache dtype given by us; no host overhead in it"
    ]


def points(tag: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SHARED / "validation" / "aic_points" / f"{tag}.json").read_text())
    return document


@pytest.mark.shared
@pytest.mark.parametrize(
    "tag", ["qwen3-1.7b_h100_sxm_vllm_tp1", "llama-3.1-70b_h100_sxm_vllm_tp4", "qwen3-32b_h200_sxm_vllm_tp2"]
)
def test_tables_are_the_librarys_prices_at_its_published_points(library: None, tag: str) -> None:
    data = points(tag)
    tables = load_tables(
        AicDeployment(data["model"], data["system"], data["backend"], tp=data["parallel"]["tp_size"]), 256
    )
    timing = TabulatedTiming(tables)
    decode = [
        abs(timing.price_pass_ms(PassShape(p["batch"], p["batch"] * (p["context"] + 1))) / p["ms"] - 1)
        for p in data["decode"]
    ]
    assert max(decode) < 0.015
    assert np.mean(decode) < 0.001
    for batch, most, mean in ((1, 0.015, 0.001), (4, 0.10, 0.02)):
        errors = [
            abs(timing.price_pass_ms(prompts(*[(p["prefix"], p["new_tokens"])] * batch)) / p["ms"] - 1)
            for p in data["prefill"]
            if p["batch"] == batch
        ]
        assert max(errors) < most
        assert np.mean(errors) < mean
    assert jump_findings(tables.decode_ms, tables.contexts) == []


@pytest.mark.shared
def test_a_table_of_broken_rows_is_found_out(library: None) -> None:
    tables = load_tables(AicDeployment("Qwen/Qwen3-32B-FP8", "h200_sxm", "trtllm", kv="fp8"), 256)
    (finding,) = jump_findings(tables.decode_ms, tables.contexts)
    assert "64 to 65" in finding
    assert "128 to 129" in finding
