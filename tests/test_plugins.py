"""Routers and timing models that a configuration names as `module:attribute`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from windtunnel import Config, InputError, PluginError, RoutedRequest, WorkerView, Workload, simulate
from windtunnel.assembly import build_router, build_timing
from windtunnel.cluster.router import LeastLoadedRouter, RandomRouter, RoundRobinRouter
from windtunnel.plugins import load_object
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.checked import CheckedTiming
from windtunnel.timing.polynomial import PolynomialTiming
from windtunnel.timing.scaled import ScaledTiming

BUILTIN = ("round-robin", "random", "least-loaded")


# --- what a user writes


class LastWorker:
    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        return workers[-1].number


class Constant:
    needs_physical_context = False

    def __init__(self, price_ms: float = 2.0) -> None:
        self.price_ms = price_ms

    def price_pass_ms(self, shape: PassShape) -> float:
        return self.price_ms

    def price_run_ms(
        self, num_decodes: int, context_tokens: int, physical_context_tokens: int, passes: int
    ) -> FloatArray:
        return np.full(passes, self.price_ms)


class ByCapacity(Constant):
    def __init__(self, kv_capacity_tokens: int) -> None:
        super().__init__(kv_capacity_tokens / 1000.0)


class NextDoor:
    def route(self, request: RoutedRequest, workers: Sequence[WorkerView], now_ms: float) -> int:
        return len(workers)


def make_router() -> LastWorker:
    return LastWorker()


def make_timing(*, kv_capacity_tokens: int) -> Constant:
    return ByCapacity(kv_capacity_tokens)


def fail_to_make() -> None:
    raise FileNotFoundError("profile.npz")


class NeedsMore(Constant):
    def __init__(self, path: str) -> None:
        super().__init__()


class Space:
    router = LastWorker()
    RouterClass = LastWorker


last_worker = LastWorker()
two_ms = Constant()
HERE = __name__


# --- loading


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (f"{HERE}:LastWorker", LastWorker),
        (f"{HERE}:last_worker", last_worker),
        (f"{HERE}:Space.router", Space.router),
        ("windtunnel.timing.polynomial:PolynomialTiming", PolynomialTiming),
    ],
)
def test_an_object_is_found_by_module_and_attribute(name: str, found: object) -> None:
    assert load_object(name, "cluster.router.kind", BUILTIN) is found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("round-robbin", "unknown 'round-robbin': did you mean 'round-robin'?; or module:attribute"),
        ("zzz", "unknown 'zzz': expected one of 'round-robin', 'random', 'least-loaded'; or module:attribute"),
        (":attribute", "unknown ':attribute': expected one of"),
        ("module:", "unknown 'module:': expected one of"),
        ("no_such_module:x", "'no_such_module:x': there is no module 'no_such_module' to import"),
        ("windtunnel.nothing:x", "'windtunnel.nothing:x': there is no module 'windtunnel.nothing' to import"),
        ("no.such.module:x", "'no.such.module:x': there is no module 'no' to import"),
        (f"{HERE}:LastWorkr", f"'{HERE}:LastWorkr': '{HERE}' has no 'LastWorkr'; did you mean 'LastWorker'?"),
        (
            f"{HERE}:Space.RouterClas",
            f"'{HERE}:Space.RouterClas': '{HERE}:Space' has no 'RouterClas'; did you mean 'RouterClass'?",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error_in_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_object(name, "cluster.router.kind", BUILTIN)
    assert str(caught.value).startswith("cluster.router.kind: " + message)
    assert caught.value.field == "cluster.router.kind"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_dependency", "importing 'broken_plugin' failed: No module named 'no_such_dependency'"),
        ("raise RuntimeError('no GPU')", "importing 'broken_plugin' failed: RuntimeError('no GPU')"),
        ("def route(:", "importing 'broken_plugin' failed: SyntaxError("),
    ],
)
def test_a_module_that_fails_to_import_is_the_cause_of_the_error(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError) as caught:
        load_object("broken_plugin:Router", "cluster.router.kind", BUILTIN)
    assert str(caught.value).startswith("cluster.router.kind: 'broken_plugin:Router': " + message)
    assert caught.value.__cause__ is not None


# --- routers


def router_config(kind: str, tie_break: str = "lowest") -> Config:
    return Config.model_validate({"cluster": {"workers": 3, "router": {"kind": kind, "tie_break": tie_break}}})


@pytest.mark.parametrize(
    ("kind", "type_of_router"),
    [("round-robin", RoundRobinRouter), ("random", RandomRouter), ("least-loaded", LeastLoadedRouter)],
)
def test_a_name_of_ours_makes_one_of_our_routers(kind: str, type_of_router: type) -> None:
    assert type(build_router(router_config(kind))) is type_of_router


@pytest.mark.parametrize("attribute", ["LastWorker", "last_worker", "make_router", "Space.router", "Space.RouterClass"])
def test_a_class_an_instance_or_a_factory_is_a_router(attribute: str) -> None:
    workload = Workload()
    workload.add([(0, 0, 64)], 2)
    result = simulate(router_config(f"{HERE}:{attribute}"), workload=workload)
    assert result.record.requests.worker.tolist() == [2]


@pytest.mark.parametrize("attribute", ["Constant", "two_ms", "HERE", "BUILTIN"])
def test_what_cannot_route_is_no_router(attribute: str) -> None:
    with pytest.raises(InputError) as caught:
        build_router(router_config(f"{HERE}:{attribute}"))
    assert str(caught.value) == (
        f"cluster.router.kind: '{HERE}:{attribute}' is no router: it has no method route(request, workers, now_ms)"
    )


def test_an_option_that_has_no_effect_on_a_router_of_a_user_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        build_router(router_config(f"{HERE}:LastWorker", "random"))
    assert str(caught.value) == f"cluster.router.tie_break: has no effect on the router '{HERE}:LastWorker'"


def test_an_error_of_a_router_says_the_name_it_was_found_by() -> None:
    workload = Workload()
    workload.add([(0, 0, 64)], 2)
    with pytest.raises(PluginError) as caught:
        simulate(router_config(f"{HERE}:NextDoor"), workload=workload)
    assert str(caught.value) == (
        f"router {HERE}:NextDoor returned 3 for request 0: expected a worker number from 0 to 2"
    )


# --- timing models


def timing_config(kind: str, speedup: float = 1.0) -> Config:
    return Config.model_validate(
        {"engine": {"block_size": 10, "num_gpu_blocks": 700}, "timing": {"kind": kind, "speedup": speedup}}
    )


@pytest.mark.parametrize(
    ("attribute", "price_ms"),
    [("Constant", 2.0), ("two_ms", 2.0), ("ByCapacity", 7.0), ("make_timing", 7.0)],
)
def test_a_class_an_instance_or_a_factory_is_a_timing_model(attribute: str, price_ms: float) -> None:
    model = build_timing(timing_config(f"{HERE}:{attribute}"))
    assert type(model) is CheckedTiming
    assert model.price_pass_ms(PassShape()) == price_ms
    assert model.price_run_ms(1, 1, -1, 2).tolist() == [price_ms, price_ms]


def test_a_speedup_applies_to_the_timing_model_of_a_user() -> None:
    model = build_timing(timing_config(f"{HERE}:Constant", 4.0))
    assert type(model) is ScaledTiming
    assert model.price_pass_ms(PassShape()) == 0.5


def test_a_speedup_applies_to_a_timing_model_that_is_given_as_an_object() -> None:
    workload = Workload()
    workload.add([(0, 0, 64)], 2)
    result = simulate(timing_config("polynomial", 4.0), workload=workload, timing=Constant())
    assert result.record.passes[0].end_ms.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("kind", [f"{HERE}:LastWorker", f"{HERE}:HERE", "builtins:dict"])
def test_what_cannot_price_is_no_timing_model(kind: str) -> None:
    with pytest.raises(InputError) as caught:
        build_timing(timing_config(kind))
    assert str(caught.value) == f"timing.kind: {kind!r} is no timing model: it has no method price_pass_ms"


def test_a_model_that_prices_passes_but_no_runs_is_no_timing_model() -> None:
    with pytest.raises(InputError, match="is no timing model: it has no method price_run_ms"):
        build_timing(timing_config(f"{HERE}:OnlyPasses"))


class OnlyPasses:
    def price_pass_ms(self, shape: PassShape) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [("fail_to_make", "FileNotFoundError('profile.npz')"), ("NeedsMore", "TypeError(")],
)
def test_a_factory_that_fails_is_named_with_the_cause(attribute: str, reason: str) -> None:
    for build, config in (
        (build_timing, timing_config(f"{HERE}:{attribute}")),
        (build_router, router_config(f"{HERE}:{attribute}")),
    ):
        with pytest.raises(PluginError) as caught:
            build(config)
        assert str(caught.value).startswith(f"{HERE}:{attribute}: making it raised {reason}")
        assert caught.value.__cause__ is not None
