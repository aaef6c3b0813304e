"""Defaults, file and command line become one configuration, or one message for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.cli.flags import FIELD_OF_FLAG, FIELD_OF_SWITCH, FLAG_OF_FIELD, assignments
from windtunnel.config import SAMPLE_TRACE, Config, dump_config, load_config_file
from windtunnel.config.fields import FIELDS
from windtunnel.config.file import read_config_file
from windtunnel.config.load import LoadedConfig, load_config
from windtunnel.config.origins import Origins
from windtunnel.config.router import ROUTERS
from windtunnel.config.timing import TIMING_MODELS
from windtunnel.errors import InputError

RATE_FILE = "workload:\n  synthetic:\n    isl: 8\n    osl: 8\n    requests: 8\n    rate: 2\n"
ROUTER_NAMES = ", ".join(map(repr, ROUTERS))
MODELS = ", ".join(repr(name) for name in TIMING_MODELS)
TRACE_FILE = "workload:\n  path: t.jsonl\n  limit: 5\n  speedup: 2\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def load_layers(
        file: str = "",
        *traces: str,
        set: tuple[str, ...] = (),
        slo: tuple[str, ...] = (),
        sample_workers: int | None = None,
        **flags: str,
    ) -> LoadedConfig:
        Path("c.yaml").write_text(file)
        named = {f"--{name.replace('_', '-')}": text for name, text in flags.items()}
        given = assignments(traces, named, {}, slo, set)
        return load_config(read_config_file("c.yaml"), given, flags=FLAG_OF_FIELD, sample_workers=sample_workers)

    return load_layers


def message(load, *args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


def test_flags_beat_the_file_and_the_file_beats_defaults(load):
    config = load("cluster:\n  workers: 3\nengine:\n  block_size: 16\n", workers="5").config
    assert (config.cluster.workers, config.engine.block_size, config.engine.max_num_seqs) == (5, 16, 256)


def test_set_beats_the_file(load):
    assert load("engine:\n  block_size: 16\n", set=("engine.block_size=32",)).config.engine.block_size == 32


def test_every_flag_is_a_field():
    paths = [*FIELD_OF_FLAG.values(), *(path for path, _ in FIELD_OF_SWITCH.values())]
    assert [path for path in paths if path not in FIELDS] == []
    assert len(set(paths)) == len(paths)


def test_a_switch_sets_its_field():
    given = assignments([], {}, {"--stepwise": True, "--no-run-info": False}, [], [])
    config = load_config(None, given).config
    assert (config.engine.fast_forward, config.output.run_info) == (False, True)


# What a flag replaces in the file.


def test_a_trace_replaces_the_synthetic_load_of_the_file(load):
    workload = load(RATE_FILE, "a.jsonl", "b.jsonl").config.workload
    assert (workload.path, workload.synthetic) == (["a.jsonl", "b.jsonl"], None)


def test_a_synthetic_load_replaces_the_trace_of_the_file_and_its_options(load):
    workload = load(TRACE_FILE, isl="1", osl="2", requests="3", rate="4").config.workload
    assert (workload.path, workload.limit, workload.speedup) == ([], None, 2.0)  # a speedup is not only of traces
    assert workload.synthetic is not None
    assert workload.synthetic.rate == 4.0


def test_an_interval_replaces_the_rate_of_the_file(load):
    synthetic = load(RATE_FILE, interval_ms="5").config.workload.synthetic
    assert (synthetic.rate, synthetic.interval_ms) == (None, 5.0)


def test_a_concurrency_replaces_the_rate_of_the_file(load):
    workload = load(RATE_FILE, concurrency="5").config.workload
    assert (workload.concurrency, workload.synthetic.rate) == (5, None)


def test_a_rate_replaces_the_concurrency_of_the_file(load):
    file = RATE_FILE.replace("    rate: 2\n", "  concurrency: 4\n")
    workload = load(file, rate="5").config.workload
    assert (workload.concurrency, workload.synthetic.rate) == (None, 5.0)


def test_concurrency_and_speedup_replace_each_other(load):
    assert load(TRACE_FILE, concurrency="5").config.workload.speedup == 1.0
    assert load("workload:\n  path: t\n  concurrency: 5\n", speedup="2").config.workload.concurrency is None


def test_parts_of_a_synthetic_load_may_come_from_the_file(load):
    synthetic = load(RATE_FILE, isl="99").config.workload.synthetic
    assert (synthetic.isl, synthetic.osl) == (99, 8)


# The sample.


def test_without_a_load_the_sample_is_replayed_on_two_workers(load):
    loaded = load(sample_workers=2)
    assert loaded.is_sample
    assert (loaded.config.workload.path, loaded.config.cluster.workers) == ([SAMPLE_TRACE], 2)


@pytest.mark.parametrize(("file", "flags"), [("cluster: {workers: 4}", {}), ("", {"workers": "4"})])
def test_workers_that_are_given_serve_the_sample(load, file, flags):
    assert load(file, sample_workers=2, **flags).config.cluster.workers == 4


@pytest.mark.parametrize("file", [RATE_FILE, TRACE_FILE])
def test_a_load_in_the_file_is_not_replaced_by_the_sample(load, file):
    loaded = load(file, sample_workers=2)
    assert not loaded.is_sample
    assert loaded.config.cluster.workers == 1


def test_python_gets_no_sample_unasked(load):
    assert load().config.workload.path == []


# Messages that speak of the command line.


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"workers": "0"}, "--workers: found 0, expected an integer of at least 1"),
        ({"workers": "two"}, "--workers: found 'two', expected an integer of at least 1"),
        ({"workers": "1.5"}, "--workers: found 1.5, expected an integer of at least 1"),
        (
            {"workers": "1" + "0" * 13},
            "--workers: found 10000000000000, expected an integer of at least 1 and at most 1000000000000",
        ),
        ({"speedup": "0"}, "--speedup: found 0, expected a number above 0"),
        ({"speedup": "nan"}, "--speedup: found 'nan', expected a number above 0"),
        ({"speedup": ".inf"}, "--speedup: found inf, expected a number above 0"),
        ({"max_time_s": "-1"}, "--max-time-s: found -1, expected a number of at least 0"),
        ({"seed": "-1"}, "--seed: found -1, expected an integer of at least 0"),
        ({"limit": "0"}, "--limit: found 0, expected an integer of at least 1"),
        ({"engine": "sglong"}, "--engine: found 'sglong', expected 'vllm' or 'sglang' (did you mean 'sglang'?)"),
        (
            {"router": "round-robn"},
            f"--router: found 'round-robn', expected {ROUTER_NAMES} or module:attribute (did you mean 'round-robin'?)",
        ),
        ({"timing": "quick"}, f"--timing: found 'quick', expected {MODELS} or module:attribute"),
        ({"timing": "m:"}, f"--timing: found 'm:', expected {MODELS} or module:attribute"),
    ],
)
def test_a_flag_with_a_wrong_value(load, flags, expected):
    assert message(load, **flags) == expected


@pytest.mark.parametrize(
    ("traces", "flags", "expected"),
    [
        (
            ["a"],
            {"isl": "3"},
            "give either TRACE or --isl, not both: a load is read from traces, synthetic, or mixed of classes",
        ),
        (
            ["a"],
            {"rate": "3"},
            "--rate is for a generated load: a trace takes --arrival poisson:rate=3",
        ),
        (
            ["a"],
            {"speedup": "2", "concurrency": "4"},
            "--speedup has no effect with --concurrency: a closed loop ignores arrival times",
        ),
        ([], {"isl": "1"}, "--osl and --requests are missing: --isl needs them"),
        ([], {"isl": "1", "requests": "1"}, "--osl is missing: --isl needs it"),
        ([], {"turns": "2"}, "--isl, --osl and --requests are missing: --turns needs them"),
    ],
)
def test_flags_that_do_not_go_together(load, traces, flags, expected):
    assert message(load, "", *traces, **flags) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, "a synthetic load needs exactly one of --rate, --interval-ms, --arrival and --concurrency"),
        ({"rate": "1", "interval_ms": "1"}, "give either --rate or --interval-ms, not both"),
        ({"rate": "1", "concurrency": "1"}, "give either --rate or --concurrency, not both"),
        ({"interval_ms": "0", "concurrency": "1"}, "give either --interval-ms or --concurrency, not both"),
        ({"rate": "1", "turn_delay_ms": "5"}, "--turn-delay-ms has no effect unless --turns is at least 2"),
        (
            {"rate": "1", "prefix_ratio": "0.5"},
            "--prefix-ratio and --prefix-groups have an effect only together: give both above 0, or neither",
        ),
        (
            {"rate": "1", "prefix_groups": "5"},
            "--prefix-ratio and --prefix-groups have an effect only together: give both above 0, or neither",
        ),
        ({"rate": "1", "limit": "5"}, "--limit applies to trace files only, but --isl is given"),
    ],
)
def test_flags_of_a_synthetic_load_that_do_not_go_together(load, flags, expected):
    assert message(load, isl="8", osl="8", requests="8", **flags) == expected


def test_a_flag_against_the_file_names_both_places(load):
    assert message(load, RATE_FILE, limit="3") == (
        "--limit applies to trace files only, but workload.synthetic (c.yaml:2) is given"
    )


def test_tie_breaks_need_ties(load):
    assert message(load, set=("cluster.router.tie_break=random",)) == (
        "--set cluster.router.tie_break has no effect with the round-robin router, which has no ties"
    )


def test_decode_speedup_is_of_the_polynomial_model(load):
    assert message(load, timing="m:a", set=("timing.decode_speedup=2",)) == (
        "--set timing.decode_speedup applies to the polynomial model only: others price a pass as a whole"
    )


def test_an_adaptive_threshold_needs_a_threshold(load):
    assert message(load, set=("engine.long_prefill_token_threshold_adaptive=true",)) == (
        "--set engine.long_prefill_token_threshold_adaptive needs --set engine.long_prefill_token_threshold above 0"
    )


@pytest.mark.parametrize(
    ("sets", "flags", "expected"),
    [
        (("cluster.workers=3",), {"workers": "2"}, "--workers 2 and --set cluster.workers=3 contradict each other"),
        (("seed=1", "seed=2"), {}, "--set seed=1 and --set seed=2 contradict each other"),
    ],
)
def test_two_values_for_one_field(load, sets, flags, expected):
    assert message(load, set=sets, **flags) == expected


def test_the_same_value_twice_is_none_the_worse(load):
    assert load(set=("cluster.workers=2", "cluster.workers=2"), workers="2").config.cluster.workers == 2


def test_limits_given_in_two_forms_contradict_each_other(load):
    assert message(load, slo=("ttft=3",), set=("slo.ttft_ms=4",)) == (
        "--slo ttft=3 and --set slo.ttft_ms=4 contradict each other"
    )


def test_an_unknown_choice_names_the_closest(load):
    assert message(load, set=("cluster.router.tie_break=lowes",)) == (
        "--set cluster.router.tie_break: found 'lowes', expected 'lowest' or 'random' (did you mean 'lowest'?)"
    )


# Messages that speak of the file.


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("engine:\n  blok_size: 3\n", "c.yaml:2: engine.blok_size: unknown field: did you mean 'engine.block_size'?"),
        ("block_size: 3\n", "c.yaml:1: block_size: unknown field: did you mean 'engine.block_size'?"),
        ("engine:\n\n  block_size: 0\n", "c.yaml:3: engine.block_size: found 0, expected an integer of at least 1"),
        (
            "engine: {max_model_len: none}\n",
            "c.yaml:1: engine.max_model_len: found 'none', expected an integer of at least 1 or null",
        ),
        ("engine: 3\n", "c.yaml:1: engine: found 3, expected a mapping of fields"),
        ("engine: vllm\n", "c.yaml:1: engine: found 'vllm', expected a mapping of fields"),
        ("workload:\n  path: [a, 3]\n", "c.yaml:2: workload.path.1: found 3, expected text or a list of texts"),
        ("timing:\n  speedup: true\n", "c.yaml:2: timing.speedup: found true, expected a number above 0"),
        ("timing:\n  speedup: '2'\n", "c.yaml:2: timing.speedup: found '2', expected a number above 0"),
        (
            "workload:\n  synthetic:\n    isl: 1\n    rate: 1\n",
            "c.yaml:2: workload.synthetic: osl and requests are missing",
        ),
        (
            "seed: 0\nworkload:\n  path: t\n  speedup: 2\n  concurrency: 3\n",
            "c.yaml:2: workload: speedup has no effect with concurrency: a closed loop ignores arrival times",
        ),
        (
            "workload:\n  path: t\n  synthetic: {isl: 1}\n",
            "c.yaml:1: workload: give either path or synthetic, not both: a load is read from traces, synthetic, or "
            "mixed of classes",
        ),
        (
            RATE_FILE + "    interval_ms: 1\n",
            "c.yaml:2: workload.synthetic: give either rate or interval_ms, not both",
        ),
        (
            RATE_FILE.replace("    rate: 2\n", ""),
            "c.yaml:1: workload: a synthetic load needs exactly one of synthetic.rate, synthetic.interval_ms, "
            "arrival and concurrency",
        ),
    ],
)
def test_a_wrong_file_is_named_with_line_and_field(load, file, expected):
    assert message(load, file) == expected


def test_a_rule_broken_in_the_file_is_placed_there_although_flags_are_given(load):
    file = "workload:\n  path: t\n  speedup: 2\n  concurrency: 3\n"
    assert message(load, file, limit="9") == (
        "workload.speedup (c.yaml:3) has no effect with workload.concurrency (c.yaml:4): "
        "a closed loop ignores arrival times"
    )


def test_a_field_set_below_what_is_no_section_blames_the_file(load):
    assert message(load, "engine: 3\n", set=("engine.block_size=5",)) == (
        "c.yaml:1: engine: found 3, expected a mapping of fields"
    )


def test_an_error_about_a_default_names_the_field():
    assert str(Origins().error("engine.block_size", "is too small")) == "engine.block_size: is too small"


def test_everything_that_is_wrong_is_listed_in_the_order_of_the_file(load):
    assert message(load, "engine:\n  blok_size: 3\n  max_num_seqs: 0\nseed: x\n").splitlines() == [
        "c.yaml:2: engine.blok_size: unknown field: did you mean 'engine.block_size'?",
        "c.yaml:3: engine.max_num_seqs: found 0, expected an integer of at least 1",
        "c.yaml:4: seed: found 'x', expected an integer of at least 0",
    ]


# From Python, and back to text.


def test_load_config_file(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"engine": {"block_size": 16}, "seed": 3}')
    assert load_config_file(path) == Config.model_validate({"engine": {"block_size": 16}, "seed": 3})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"workload": {"synthetic": {"isl": 1, "osl": 2, "requests": 3, "interval_ms": 0}}},
        {"workload": {"path": ["1e3", "2024-01-01", "null", "a: b #c", "ünïcode"], "speedup": 1e-9}},
        {"slo": {"ttft_ms": 0.1}, "output": {"report": "123"}, "max_time_s": 0, "seed": 2**63 - 1},
    ],
    ids=["defaults", "synthetic", "odd paths", "numbers"],
)
def test_a_dumped_configuration_reads_back_equal(tmp_path, data):
    config = Config.model_validate(data)
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config_file(path) == config
    assert "null" not in dump_config(config).replace("'null'", "")


def test_a_load_that_no_memory_holds_is_refused(load):
    assert message(load, isl="8", osl="8", requests="100000000", turns="2", rate="1") == (
        "--requests times --turns is more than the 100,000,000 requests that fit in memory"
    )


def test_a_flag_without_a_value_is_an_error(load):
    assert message(load, report="") == "--report: found nothing, expected a value"


@pytest.mark.parametrize("text", ["1.5e3", "15e2", "1.5E+3"])
def test_every_notation_of_json_is_a_number(load, text):
    assert load("", max_time_s=text).config.max_time_s == 1500.0
    assert load(f'{{"max_time_s": {text}}}').config.max_time_s == 1500.0
