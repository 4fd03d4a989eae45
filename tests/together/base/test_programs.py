"""Programs go with the function that they were made for, and there are never more than so many."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base import programs
from jaxsens.core.base.programs import compiled, kept, numerics
from jaxsens.core.models.adapters import PairApply
from tests.small_models import small
from tools import memory_growth

WORD = np.array([0, 1, 2, 1, 0, 2])
TABLE = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def executables() -> int:
    """The number of compiled programs that this process holds."""
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def a_model(k: int) -> Callable[[Any], Any]:
    return lambda tokens: (1.0 + k) * jnp.asarray(TABLE)[tokens].sum(0)


class Callable1:
    """A model that is an object of a class without equality."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, tokens: Any) -> Any:
        return (1.0 + self.k) * jnp.asarray(TABLE)[tokens].sum(0)

    def method(self, tokens: Any) -> Any:
        return self(tokens)


def measured_alone(k: int) -> tuple[Any, Any]:
    model = a_model(k)
    return model, jaxsens.flip_sensitivity(model, WORD, 3)


def measured_with_parameters(k: int) -> tuple[Any, Any]:
    def function(table: Any, tokens: Any) -> Any:
        return (1.0 + k) * table[tokens].sum(0)

    return function, jaxsens.flip_sensitivity((function, TABLE), WORD, 3)


def measured_by_scalar(k: int) -> tuple[Any, Any]:
    scalar = lambda y: (1.0 + k) * y[0]  # noqa: E731 - what users write
    return scalar, jaxsens.flip_sensitivity(
        jaxsens.Transformer(small(layers=1)), WORD, measure=jaxsens.Function(scalar)
    )


def measured_by_change(k: int) -> tuple[Any, Any]:
    change = lambda y, new: (1.0 + k) * jnp.abs(new - y)[0]  # noqa: E731 - what users write
    return change, jaxsens.flip_sensitivity(
        (lambda t, w: t[w].sum(0), TABLE), WORD, 3, measure=jaxsens.Comparison(change)
    )


def measured_object(k: int) -> tuple[Any, Any]:
    model = Callable1(k)
    return model, jaxsens.flip_sensitivity(model, WORD, 3)


def measured_method(k: int) -> tuple[Any, Any]:
    model = Callable1(k)
    return model, jaxsens.flip_sensitivity(model.method, WORD, 3)


def measured_rows(k: int) -> tuple[Any, Any]:
    model = lambda tokens: (1.0 + k) * jnp.asarray(TABLE)[tokens]  # noqa: E731 - what users write
    return model, (
        jaxsens.flip_sensitivity(model, WORD, flips=jaxsens.Delete(), readout="mean"),
        jaxsens.analysis.influence_matrix(model, WORD, flips=3),
    )


def explained(k: int) -> tuple[Any, Any]:
    model = a_model(k)
    return model, jaxsens.explain(model, flips=3, n=6)


WAYS = [
    measured_alone,
    measured_with_parameters,
    measured_by_scalar,
    measured_by_change,
    measured_object,
    measured_method,
    measured_rows,
    explained,
]


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("way", WAYS)
def test_functions_and_their_programs_go_while_results_stay(way):
    way(0)
    before, functions, results = executables(), [], []
    for k in range(1, 3):
        function, result = way(k)
        functions.append(weakref.ref(function))
        results.append(result)
        del function, result
    left = executables()
    assert [one() for one in functions] == [None] * 2
    assert left <= before
    assert len(results) == 2


def test_a_function_that_is_kept_is_compiled_once(monkeypatch):
    model = a_model(0)
    first = jaxsens.flip_sensitivity(model, WORD, 3)
    monkeypatch.setattr(jax, "jit", None)
    again = jaxsens.flip_sensitivity(model, WORD, 3)
    np.testing.assert_array_equal(again.norms, first.norms)


@pytest.mark.slow
def test_calls_with_ever_new_functions_lengths_and_models_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(programs, "LARGEST", 4)
    for kind in memory_growth.KINDS.values():
        call, counts = kind(), []
        for k in range(24):
            call(k)
            counts.append(executables())
        assert max(counts[12:]) <= max(counts[:12]), kind.__name__


def test_results_are_kept_by_what_was_given_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(programs, "LARGEST", 2)
    made = []

    @kept
    def of(function: Callable[..., Any], number: int) -> tuple[int, str]:
        made.append((function.__name__, number))
        return number, function.__name__

    assert of(abs, 1) == of(abs, 1) == (1, "abs")
    assert of(a_model, 2) == (2, "a_model")
    assert len(made) == 2
    of(abs, 1)  # so that the other is the oldest
    of(max, 3)
    of(abs, 1)
    assert len(made) == 3
    of(a_model, 2)
    assert made[-1] == ("a_model", 2)


def test_an_error_is_not_kept():
    given = []

    @kept
    def failing(number: int) -> int:
        given.append(number)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            failing(1)
    assert given == [1, 1]


@dataclass(frozen=True)
class Equal:
    """A user's function that equals any other with the same number."""

    number: float

    def __call__(self, x: Any) -> Any:
        return self.number * x


def test_static_arguments_are_told_apart_as_they_compare():
    traced = []

    @compiled(static=1)
    def times(function: Any, x: Any) -> Any:
        traced.append(function)
        return function(x)

    assert times(Equal(2.0), jnp.ones(2)).tolist() == times(Equal(2.0), jnp.zeros(2) + 1).tolist() == [2, 2]
    assert len(traced) == 1
    assert times(Equal(3.0), jnp.ones(2)).tolist() == [3, 3]
    assert times(Equal(2.0), jnp.ones(3)).tolist() == [2, 2, 2]
    one: Any = lambda x: x + 1  # noqa: E731 - what users write
    other: Any = lambda x: x + 2  # noqa: E731 - what users write
    assert times(one, jnp.ones(2)).tolist() == [2, 2]
    assert times(other, jnp.ones(2)).tolist() == [3, 3]
    assert times(one, jnp.ones(2)).tolist() == [2, 2]
    assert len(traced) == 5
    with numerics("float64"):
        assert times(one, jnp.ones(2)).dtype == np.float64
    pairs = [PairApply(function, None, ()) for function in (one, one, other)]
    keys = [programs._weakly(pair, []) for pair in pairs]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.long
def test_programs_of_ever_new_lengths_are_no_more_than_the_limit(monkeypatch):
    monkeypatch.setattr(programs, "LARGEST", 2)
    double = compiled(static=1)(lambda factor, x: factor * x)
    counts = []
    for n in range(1, 9):
        double(2, np.ones(n, np.float32))
        counts.append(executables())
    assert max(counts[3:]) <= counts[2]


def test_a_program_may_call_itself_while_it_is_traced():
    @compiled(static=1)
    def power(k: int, x: Any) -> Any:
        return x if k == 0 else x * power(k - 1, x)

    assert float(power(2, jnp.float32(2))) == 8
    assert float(jax.grad(lambda x: power(1, x))(jnp.float32(3))) == 6
    assert jax.vmap(lambda x: power(1, x))(jnp.arange(3.0)).tolist() == [0, 1, 4]


def test_nothing_is_compared_as_the_interpreter_ends():
    class Key:
        def __hash__(self):
            return 0

        def __eq__(self, other):
            raise TypeError("isinstance() arg 2 must be a type")

    results: Any = programs._Results()
    results.get(Key(), [], lambda: 1)
    with pytest.raises(TypeError):
        results._forget(Key(), None, lambda: False)
    results._forget(Key(), None, lambda: True)


def test_of_several_threads_that_need_one_result_one_makes_it():
    made, start = [], threading.Barrier(4)

    @kept
    def slow(k):
        made.append(k)
        time.sleep(0.1)
        if len(made) == 1:
            raise ValueError("once")
        return object()

    def call(k):
        start.wait()
        with suppress(ValueError):
            found.append(slow(k))

    for k, expected in ((1, 3), (2, 4)):
        found: list[object] = []
        threads = [threading.Thread(target=call, args=(k,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(found), len(set(found))) == (expected, 1)
    assert made == [1, 1, 2]  # the first failed, and was made again
