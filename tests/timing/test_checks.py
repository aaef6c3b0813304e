"""Pass shapes add up, and a user's timing model is checked before anything is done with its prices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from windtunnel import PluginError
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.checked import CheckedTiming
from windtunnel.timing.scaled import ScaledTiming


class Returns:
    """Hands out what it is told to, whatever is asked."""

    needs_physical_context = False

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def price_pass_ms(self, shape: PassShape) -> Any:
        answer = self.answer()
        return answer[0] if isinstance(answer, (list, tuple, np.ndarray)) else answer

    def price_run_ms(self, *_: int) -> Any:
        return self.answer()


class Asks(Returns):
    def __init__(self, wanted: bool) -> None:
        super().__init__(lambda: 1.0)
        self.needs_physical_context = wanted


def fail() -> None:
    raise RuntimeError("out of data")


# --- shapes


def test_a_shape_counts_prompts_and_samples() -> None:
    shape = PassShape(2, 300)
    shape.add_decode(100)
    shape.add_chunk(0, 50, 200, sampled=False)  # a first chunk
    shape.add_chunk(150, 50, 200, sampled=True)  # a last one
    shape.add_chunk(180, 40, 200, sampled=True)  # a preempted request that had generated 20 tokens
    shape.add_chunk(200, 10, 200, sampled=False)  # nothing but generated tokens
    assert (shape.num_decodes, shape.decode_context_tokens) == (3, 400)
    assert (shape.num_sampled, shape.sampled_context_tokens) == (5, 400 + 200 + 220)
    assert (shape.chunk_starts, shape.chunk_tokens) == ([0, 150, 180, 200], [50, 50, 40, 10])
    assert shape.num_prompts == 3
    assert (shape.prompt_reached_tokens, shape.prompt_started_tokens) == (50 + 200 + 200, 0 + 150 + 180)
    assert shape.physical_context_tokens == -1


# --- checks


@pytest.mark.parametrize("price", [1e-9, 1, 2.5, np.float32(0.5), np.float64(3.0), "4.5"])
def test_a_usable_price_of_a_pass_becomes_a_float(price: object) -> None:
    checked = CheckedTiming(Returns(lambda: price), "mine").price_pass_ms(PassShape(1, 9))
    assert type(checked) is float
    assert checked == float(price)  # type: ignore[arg-type]


@pytest.mark.parametrize("price", [0.0, -1e-9, float("nan"), float("inf"), float("-inf")])
def test_an_unusable_price_of_a_pass_is_an_error(price: float) -> None:
    with pytest.raises(PluginError) as caught:
        CheckedTiming(Returns(lambda: price), "mine").price_pass_ms(PassShape(1, 9))
    assert str(caught.value) == f"timing model mine: price_pass_ms returned {price}, expected finite ms above 0"


def test_only_a_pass_that_computes_nothing_may_be_free() -> None:
    checked = CheckedTiming(Returns(lambda: 0.0), "mine")
    chunk = PassShape()
    chunk.add_chunk(0, 5, 10, sampled=False)
    assert checked.price_pass_ms(PassShape()) == 0.0
    for shape in (chunk, PassShape(1, 9)):
        with pytest.raises(PluginError, match=r"returned 0\.0, expected finite ms above 0"):
            checked.price_pass_ms(shape)


@pytest.mark.parametrize("prices", [[1.0, 0.5, 2.0], (1, "0.5", 2), np.array([1, 0.5, 2], dtype=np.float32)])
def test_usable_prices_of_a_run_become_an_array(prices: object) -> None:
    checked = CheckedTiming(Returns(lambda: prices), "mine").price_run_ms(1, 1, -1, 3)
    assert checked.dtype == np.float64
    assert checked.tolist() == [1.0, 0.5, 2.0]


@pytest.mark.parametrize("prices", [[1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [float("inf"), 1.0]])
def test_one_unusable_price_of_a_run_is_an_error(prices: list[float]) -> None:
    with pytest.raises(
        PluginError, match="timing model mine: price_run_ms returned a price that is not finite ms above 0"
    ):
        CheckedTiming(Returns(lambda: prices), "mine").price_run_ms(1, 1, -1, 2)


@pytest.mark.parametrize(
    ("prices", "shape"), [([1.0], "(1,)"), ([1.0] * 3, "(3,)"), ([[1.0], [2.0]], "(2, 1)"), (1.0, "()")]
)
def test_a_wrong_number_of_prices_is_an_error(prices: object, shape: str) -> None:
    with pytest.raises(PluginError) as caught:
        CheckedTiming(Returns(lambda: prices), "mine").price_run_ms(1, 1, -1, 2)
    assert str(caught.value) == f"timing model mine: price_run_ms returned shape {shape}, expected (2,)"


def test_an_exception_of_a_model_is_the_cause_of_the_error() -> None:
    checked = CheckedTiming(Returns(fail), "mine")
    with pytest.raises(
        PluginError, match=r"timing model mine: price_pass_ms raised RuntimeError\('out of data'\)"
    ) as one:
        checked.price_pass_ms(PassShape())
    with pytest.raises(
        PluginError, match=r"timing model mine: price_run_ms raised RuntimeError\('out of data'\)"
    ) as many:
        checked.price_run_ms(1, 1, -1, 2)
    assert isinstance(one.value.__cause__, RuntimeError)
    assert isinstance(many.value.__cause__, RuntimeError)


def test_the_prices_that_a_model_keeps_are_not_touched() -> None:
    kept = np.array([1.0, 2.0])
    CheckedTiming(Returns(lambda: kept), "mine").price_run_ms(1, 1, -1, 2)[0] = 99.0
    assert kept.tolist() == [1.0, 2.0]


# --- speed


def test_a_speedup_divides_every_price() -> None:
    scaled = ScaledTiming(CheckedTiming(Returns(lambda: [8.0, 2.0]), "mine"), 4.0)
    assert scaled.price_run_ms(1, 1, -1, 2).tolist() == [2.0, 0.5]
    assert ScaledTiming(CheckedTiming(Returns(lambda: 6.0), "mine"), 4.0).price_pass_ms(PassShape()) == 1.5


@pytest.mark.parametrize("wanted", [True, False])
def test_what_a_model_asks_for_is_passed_on(wanted: bool) -> None:
    checked = CheckedTiming(Asks(wanted), "mine")
    assert checked.needs_physical_context is wanted
    assert ScaledTiming(checked, 2.0).needs_physical_context is wanted


def test_a_model_that_says_nothing_asks_for_nothing() -> None:
    class Silent:
        def price_pass_ms(self, shape: PassShape) -> float:
            return 1.0

    assert CheckedTiming(Silent(), "mine").needs_physical_context is False  # type: ignore[arg-type]


class TwoMinds:
    """Prices a pass in a run differently from the same pass alone."""

    needs_physical_context = False

    def price_pass_ms(self, shape: PassShape) -> float:
        return 5.0

    def price_run_ms(self, num_decodes: int, context: int, physical: int, passes: int) -> FloatArray:
        return np.full(passes, 50.0)


def test_a_model_whose_two_calls_disagree_is_found_out() -> None:
    with pytest.raises(PluginError, match=r"at 50\.0 ms, price_pass_ms at 5\.0 ms: they must be the same number"):
        CheckedTiming(TwoMinds(), "mine").price_run_ms(3, 100, -1, 4)


def test_a_model_that_exits_is_an_error_and_no_success() -> None:
    class Exits(TwoMinds):
        def price_pass_ms(self, shape: PassShape) -> float:
            raise SystemExit(0)

    with pytest.raises(PluginError, match="timing model mine: price_pass_ms raised SystemExit"):
        CheckedTiming(Exits(), "mine").price_pass_ms(PassShape(1, 10))
