"""Generated loads in the configuration: distributions, arrival processes, classes, and what goes together."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from windtunnel.config.arrival import ARRIVAL_PARAMETERS, ArrivalConfig
from windtunnel.config.distribution import Distribution
from windtunnel.config.file import ConfigFile, read_config_file
from windtunnel.config.kinds import KindSection, Parameters, parse_short_form
from windtunnel.config.load import dump_config, load_config, parse_set
from windtunnel.config.schema import Config
from windtunnel.config.slo import parse_slo
from windtunnel.errors import InputError

LOAD: dict[str, Any] = {"isl": 8, "osl": 8, "requests": 8, "rate": 1.0}
VALUES = {
    "rates": [1.0, 2.0],
    "path": "file.csv",
    "curve": "exponential",
    "evenly": True,
    "repeat": True,
    "fit_rate": True,
    "amplitude": 0.5,
    "period_s": 500.0,
}


def value_of(name: str) -> object:
    return VALUES.get(name, 2.0)


def kinds() -> list[tuple[type[KindSection], str, Parameters]]:
    return [
        *((ArrivalConfig, kind, takes) for kind, takes in ARRIVAL_PARAMETERS.items()),
        *((Distribution, kind, takes) for kind, takes in Distribution.PARAMETERS.items()),
    ]


@pytest.mark.parametrize(("section", "kind", "takes"), kinds(), ids=lambda v: v if isinstance(v, str) else "")
def test_a_kind_takes_its_parameters_and_refuses_all_others(section, kind, takes):
    for group in takes.needs:
        needed = {name: value_of(name) for name in group}
        section.model_validate({"kind": kind, **needed})
        for name in group:
            with pytest.raises(ValueError, match=f"{kind} needs .*{name}"):
                section.model_validate({"kind": kind, **{n: v for n, v in needed.items() if n != name}})
        for name in takes.may:
            assert getattr(section.model_validate({"kind": kind, **needed, name: value_of(name)}), name) is not None
        for name in set(section.model_fields) - {"kind", *takes.may, *(n for group in takes.needs for n in group)}:
            with pytest.raises(ValueError, match=f"{name} has no effect on {kind}"):
                section.model_validate({"kind": kind, **needed, name: value_of(name)})


def test_alternatives_exclude_each_other():
    with pytest.raises(ValueError, match="lognormal needs mean and std or median and sigma, not both"):
        Distribution.model_validate("lognormal:mean=5,std=1,median=5,sigma=1")
    with pytest.raises(ValueError, match="constant needs rate or interval_ms, not both"):
        ArrivalConfig.model_validate("constant:rate=1,interval_ms=5")


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ("gamma:rate=10,burstiness=0.5", {"kind": "gamma", "rate": 10, "burstiness": 0.5}),
        (" step : rates=[1, 2], step_s=1e1 ", {"kind": "step", "rates": [1, 2], "step_s": 10.0}),
        ("empirical:path=a/b.csv", {"kind": "empirical", "path": "a/b.csv"}),
        ("poisson", None),
        ("mine:Process", None),
        ("gamma:rate=", None),
        ("gamma:=5", None),
        ("gamma:rate=[1", None),
    ],
)
def test_the_short_form(text, mapping):
    assert parse_short_form(text) == mapping


def test_the_short_form_is_the_same_as_the_mapping_everywhere():
    long = {"kind": "gamma", "rate": 10.0, "burstiness": 0.5}
    synthetic = {"isl": {"kind": "normal", "mean": 100.0, "std": 10.0}, "osl": 8, "requests": 8}
    by_mapping = Config.model_validate({"workload": {"synthetic": synthetic, "arrival": long}})
    by_text = Config.model_validate(
        {
            "workload": {
                "synthetic": {**synthetic, "isl": "normal:mean=100,std=10"},
                "arrival": "gamma:rate=10,burstiness=0.5",
            }
        }
    )
    by_set = load_config(
        ConfigFile("base.yaml", {"workload": {"synthetic": {"osl": 8, "requests": 8}}}, {}),
        [
            parse_set("workload.synthetic.isl=normal:mean=100,std=10"),
            parse_set("workload.arrival={kind: gamma, rate: 10, burstiness: 0.5}"),
        ],
    ).config
    assert by_mapping == by_text == by_set
    assert Config.model_validate(yaml.safe_load(dump_config(by_text))) == by_text


def test_a_plugin_is_named_alone():
    assert ArrivalConfig.model_validate("mine:Process").kind == "mine:Process"
    with pytest.raises(ValueError, match="rate has no effect on mine:Process"):
        ArrivalConfig.model_validate({"kind": "mine:Process", "rate": 1.0})


def in_file(**workload: Any) -> ConfigFile:
    return ConfigFile("c.yaml", {"workload": workload}, {"workload": 1})


def error_of(file: ConfigFile | None = None, *sets: str) -> str:
    with pytest.raises(InputError) as caught:
        load_config(file, [parse_set(text) for text in sets])
    return str(caught.value)


def test_a_parameter_of_what_the_file_has_is_set():
    file = in_file(synthetic={**LOAD, "rate": None}, arrival="gamma:rate=10,burstiness=0.5")
    config = load_config(file, [parse_set("workload.arrival.rate=3")]).config
    assert config.workload.arrival == ArrivalConfig(kind="gamma", rate=3.0, burstiness=0.5)
    sets = [parse_set("workload.synthetic.isl.kind=geometric"), parse_set("workload.synthetic.isl.mean=30")]
    isl = load_config(in_file(synthetic=LOAD), sets).config.workload.synthetic.isl
    assert isl == Distribution(kind="geometric", mean=30.0)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            {"synthetic": {**LOAD, "isl": 0}},
            "synthetic.isl: found 0, expected an integer of at least 1 or a mapping of",
        ),
        (
            {"synthetic": {**LOAD, "isl": "x"}},
            "synthetic.isl: found 'x', expected an integer of at least 1 or a mapping",
        ),
        (
            {"synthetic": {**LOAD, "isl": "x:y"}},
            "synthetic.isl.kind: found 'x:y', expected 'uniform' or 'normal' or 'lognormal' or",
        ),
        (
            {"synthetic": {**LOAD, "isl": "normal:mean=5,std=x"}},
            "synthetic.isl.std: found 'x', expected a number of at least 1e-06 or null",
        ),
        ({"synthetic": {**LOAD, "isl": "normal:mean=5"}}, "synthetic.isl: normal needs std"),
        ({"synthetic": {**LOAD, "isl": "normal:mean=5,std=1,min=9,max=3"}}, "synthetic.isl: min is above max"),
        ({"synthetic": {**LOAD, "isl": "geometric:mean=0.5"}}, "synthetic.isl: mean of geometric is below 1"),
        ({"synthetic": {**LOAD, "turns": "empirical:path=x"}}, "synthetic: turns cannot be empirical"),
        ({"synthetic": {**LOAD, "lengths": "x.csv"}}, "give either lengths, which has both lengths, or isl, not both"),
        ({"synthetic": {**LOAD, "duration_s": 5.0}}, "give either requests or duration_s, not both"),
        ({"synthetic": {**LOAD, "accumulate": True}}, "accumulate has no effect unless turns is at least 2"),
        ({"synthetic": {**LOAD, "prefix_tokens": 5}}, "prefix_tokens has no effect unless prefix_groups is at least 1"),
        ({"synthetic": {**LOAD, "prefix_zipf": 1.0}}, "prefix_zipf has no effect unless prefix_groups is at least 2"),
        (
            {"synthetic": {**LOAD, "prefix_tokens": 5, "prefix_groups": 1, "prefix_ratio": 0.5}},
            "give either prefix_ratio or prefix_tokens, not both",
        ),
        (
            {"synthetic": {**LOAD, "rate": None, "interval_ms": 1.0, "burstiness": 2.0}},
            "burstiness has no effect without rate",
        ),
        (
            {"synthetic": {**LOAD, "rate": None, "requests": None, "interval_ms": 0.0, "duration_s": 5.0}},
            "duration_s has no end with an interval_ms of 0",
        ),
        ({"synthetic": LOAD, "arrival": "poisson:rate=1"}, "give either synthetic.rate or arrival, not both"),
        ({"synthetic": LOAD, "concurrency_by": "request"}, "concurrency_by has no effect without concurrency"),
        (
            {"synthetic": {**LOAD, "rate": None}, "concurrency": 1, "concurrency_by": "request"},
            "concurrency_by has no effect unless synthetic.turns is at least 2",
        ),
        (
            {"synthetic": {"isl": 8, "osl": 8, "duration_s": 3.0}, "concurrency": 1},
            "synthetic.duration_s has no meaning with concurrency",
        ),
        (
            {"synthetic": {"isl": 8, "osl": 8, "duration_s": 3.0}, "arrival": "poisson:rate=1,fit_rate=true"},
            "arrival.fit_rate needs a number of synthetic.requests",
        ),
        ({"synthetic": {"isl": 8, "osl": 8}, "arrival": "poisson:rate=1"}, "synthetic: requests is missing"),
        ({"path": "a", "arrival": "poisson:rate=1", "concurrency": 1}, "give either arrival or concurrency, not both"),
        ({"path": "a", "arrival": "poisson:rate=1", "spread": True}, "spread has no effect with arrival"),
        ({"path": "a", "arrival": "recorded:path=a"}, "arrival.path has no effect: it is the trace itself"),
        ({"path": "a", "arrival": "ramp:start_rate=0,end_rate=0,ramp_s=1"}, "start_rate and end_rate are both 0"),
        (
            {"path": "a", "arrival": "ramp:start_rate=0,end_rate=1,ramp_s=1,curve=exponential"},
            "curve exponential needs start_rate and end_rate above 0",
        ),
        ({"path": "a", "arrival": "step:rates=[0, 0],step_s=1"}, "rates has no rate above 0"),
        ({"path": "a", "arrival": "step:rates=5,step_s=1"}, "arrival.rates: found 5, expected a list of numbers"),
        (
            {"path": "a", "arrival": "spike:rate=1,spike_rate=2,spike_start_s=5,spike_s=5,period_s=9"},
            "spike_start_s and spike_s together are beyond period_s",
        ),
        (
            {"path": "a", "arrival": "diurnal:rate=1,amplitude=0.5,evenly=true,burstiness=2"},
            "burstiness has no effect with evenly",
        ),
        ({"path": "a", "arrival": "diurnal:rate=1,amplitude=0.5,peak_s=90000"}, "peak_s is beyond period_s"),
        ({"path": "a", "classes": {"x": LOAD}}, "give either path or classes, not both"),
        ({"classes": {"x": LOAD}, "arrival": "poisson:rate=1"}, "arrival has no effect on classes"),
        ({"classes": {"x": LOAD}, "limit": 3}, "limit applies to trace files only, but classes is given"),
        ({"classes": {"x": {**LOAD, "rate": None}}}, "a class needs exactly one of rate, interval_ms, arrival and"),
        ({"classes": {"x": {**LOAD, "concurrency": 1}}}, "classes.x: give either rate or concurrency, not both"),
        ({"classes": {"x": {**LOAD, "concurrency_by": "request"}}}, "concurrency_by has no effect without concurrency"),
        ({"classes": {"x": {**LOAD, "concurrency_by": "token"}}}, "found 'token', expected 'session' or 'request'"),
        ({"classes": {"x": {"isl": 8, "rate": 1.0}}}, "classes.x: osl and requests are missing"),
        ({"classes": {"x": {**LOAD, "slo": {}}}}, "classes.x: slo is empty, expected a limit"),
        (
            {"classes": {"x": {**LOAD, "slo": {"ttft": 5}}}},
            "classes.x.slo.ttft: unknown field: did you mean 'workload.cla",
        ),
        ({"classes": {"a b": LOAD}}, "expected a name of letters, digits, '-' and '_'"),
        (
            {"classes": {"x": {"isl": 8, "osl": 8, "requests": 8, "concurrency": 1}}, "speedup": 2.0},
            "speedup has no meaning for classes with a closed loop among them",
        ),
    ],
)
def test_what_does_not_go_together(workload, message):
    assert message in error_of(in_file(**workload))


def test_limits_that_no_class_needs():
    data = {"workload": {"classes": {"x": {**LOAD, "slo": {"e2e_ms": 5}}}}, "slo": {"e2e_ms": 9}}
    with pytest.raises(InputError, match=r"slo has no effect: every class of clients has its own"):
        load_config(ConfigFile("c.yaml", data, {}))


MIX = """\
workload:
  classes:
    chat: {isl: 8, osl: 8, requests: 8, rate: 1}
    code:
      isl: 8
      osl: uniform:min=1,mx=9
      requests: 8
      rate: 1
"""


def test_the_line_of_a_mistake_in_a_class(tmp_path):
    path = tmp_path / "mix.yaml"
    path.write_text(MIX)
    message = error_of(read_config_file(path))
    assert message.splitlines()[0] == (
        f"{path}:6: workload.classes.code.osl.mx: unknown field: did you mean 'workload.classes.code.osl.max'?"
    )


def test_a_class_on_the_command_line(tmp_path):
    path = tmp_path / "mix.yaml"
    path.write_text(MIX.replace("mx", "max"))
    file = read_config_file(path)
    sets = [parse_set("workload.classes.chat.rate=5"), parse_set("workload.classes.code.osl=77")]
    classes = load_config(file, [*sets, *parse_slo("chat:ttft=1s,itl=50ms")]).config.workload.classes
    assert (classes["chat"].rate, classes["code"].osl) == (5.0, 77)
    assert classes["chat"].slo is not None
    assert (classes["chat"].slo.ttft_ms, classes["chat"].slo.itl_ms) == (1000.0, 50.0)
    assert error_of(file, "workload.classes.chta.rate=5") == (
        "--set workload.classes.chta.rate: unknown class 'chta': did you mean 'chat'?"
    )
    assert "--set workload.classes.chat.rate: found 'x', expected a number above 0" in error_of(
        file, "workload.classes.chat.rate=x"
    )
    assert error_of(file, "workload.classes.chat.raet=5").endswith("did you mean 'workload.classes.chat.rate'?")


def test_a_synthetic_load_on_the_command_line_takes_the_place_of_the_classes_of_a_file(tmp_path):
    path = tmp_path / "mix.yaml"
    path.write_text(MIX.replace("mx", "max"))
    sets = [parse_set(f"workload.synthetic.{text}") for text in ("isl=1", "osl=1", "requests=1", "rate=1")]
    config = load_config(read_config_file(path), sets).config
    assert (config.workload.classes, config.workload.synthetic is None) == ({}, False)


def test_a_value_and_a_part_of_it_contradict_each_other():
    message = error_of(in_file(synthetic=LOAD), "workload.synthetic.isl=5", "workload.synthetic.isl.mean=7")
    assert message.endswith("contradict each other")
