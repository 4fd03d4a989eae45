"""Programs go with the function that they were made for, and there are never more than so many.

They compute in the setting of jaxsens, whatever JAX is set to outside.
"""

from __future__ import annotations

import ast
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base import programs
from jaxsens.core.base.programs import MATMUL_PRECISION, cached, compiled, numerics
from jaxsens.core.measures.formulas import where_finite
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


measure = jaxsens.flip_sensitivity
WAYS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "alone": (a_model, lambda model: measure(model, WORD, 3)),
    "with parameters": (
        lambda k: lambda table, tokens: (1.0 + k) * table[tokens].sum(0),
        lambda function: measure((function, TABLE), WORD, 3),
    ),
    "a function of the output": (
        lambda k: lambda y: (1.0 + k) * y[0],
        lambda f: measure(jaxsens.Transformer(small(layers=1)), WORD, measure=jaxsens.Function(f)),
    ),
    "a function of both outputs": (
        lambda k: lambda y, new: (1.0 + k) * jnp.abs(new - y)[0],
        lambda f: measure((lambda t, w: t[w].sum(0), TABLE), WORD, 3, measure=jaxsens.Comparison(f)),
    ),
    "an object": (Callable1, lambda model: measure(model, WORD, 3)),
    "a method": (Callable1, lambda model: measure(model.method, WORD, 3)),
    "rows": (
        lambda k: lambda tokens: (1.0 + k) * jnp.asarray(TABLE)[tokens],
        lambda model: (
            measure(model, WORD, flips=jaxsens.Delete(), readout="mean"),
            jaxsens.analysis.influence_matrix(model, WORD, flips=3),
        ),
    ),
    "explained": (a_model, lambda model: jaxsens.explain(model, flips=3, n=6)),
}
"""What makes a function of a number, and what is done with it."""


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("way", WAYS)
def test_functions_and_their_programs_go_while_results_stay(way):
    make, use = WAYS[way]
    use(make(0))
    before, functions, results = executables(), [], []
    for k in range(1, 3):
        function = make(k)
        results.append(use(function))
        functions.append(weakref.ref(function))
        del function
    left = executables()
    assert [one() for one in functions] == [None] * 2
    assert left <= before
    assert len(results) == 2


def test_what_was_made_of_arrays_goes_with_the_first_of_them():
    made = cached(lambda *arrays: object())
    one, other = jnp.ones(2), jnp.zeros(3)
    first, reference = made(one, other), weakref.ref(one)
    assert made(one, other) is first is not made(one, jnp.zeros(3))
    del one
    gc.collect()
    assert reference() is None
    assert made(jnp.ones(2), other) is not first


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


@pytest.mark.slow
def test_calls_with_ever_new_functions_lengths_and_models_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(programs, "LARGEST", 4)
    for kind in memory_growth.KINDS.values():
        call, counts = kind(), []
        for k in range(24):
            call(k)
            counts.append(executables())
        assert max(counts[12:]) <= max(counts[:12]), kind.__name__


def test_of_several_threads_that_need_one_result_one_makes_it():
    made, start = [], threading.Barrier(4)

    @cached
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


ROOT = Path(__file__).resolve().parents[3]
SETTINGS: Any = jax.config  # its attributes are made at run time


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_alone_says_whether_there_are_64_bit_types(dtype, outside):
    with jax.enable_x64(outside), jax.default_matmul_precision("bfloat16"):
        with numerics(dtype):
            assert jnp.zeros(1).dtype == dtype
            assert SETTINGS.jax_default_matmul_precision == MATMUL_PRECISION
        assert SETTINGS.jax_enable_x64 == outside
        assert SETTINGS.jax_default_matmul_precision == "bfloat16"


def test_a_float32_model_is_the_same_and_measures_the_same_where_jax_is_set_to_64_bit_types():
    config = jaxsens.TransformerConfig(alphabet_size=2, width=8, heads=2, layers=2, feed_forward=16)

    def measured():
        model = jaxsens.Transformer(config, seed=3)
        return jaxsens.flip_sensitivity(model, [0, 1, 1, 0, 1]).norms

    plain = measured()
    with jax.enable_x64(True):
        assert measured().dtype == plain.dtype
        np.testing.assert_array_equal(measured(), plain)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["softmax", "leftmost-hard", "LSTM", "Convolution"])
def test_every_model_computes_as_ever_where_jax_forbids_to_promote_ranks_and_dtypes(kind):
    recurrent = {
        "LSTM": (jaxsens.training.LSTM, jaxsens.training.LSTMConfig),
        "Convolution": (jaxsens.training.Convolution, jaxsens.training.ConvolutionConfig),
    }

    def measured():
        if kind in recurrent:
            network, config = recurrent[kind]
            model = network(config(2, width=4, dtype="float64"))
        else:
            model = jaxsens.Transformer(
                jaxsens.TransformerConfig(2, 4, 1, 1, feed_forward=4, weighting=kind, dtype="float64")
            )
        return np.asarray(model(np.array([0, 1, 1]))), jaxsens.flip_sensitivity(model, [0, 1, 1]).norms

    plain = measured()
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"), jax.disable_jit():
        for mine, its in zip(measured(), plain, strict=True):
            np.testing.assert_array_equal(mine, its)
        assert SETTINGS.jax_numpy_rank_promotion == "raise"
        assert SETTINGS.jax_numpy_dtype_promotion == "strict"
        assert SETTINGS.jax_disable_jit


def test_a_function_keeps_the_64_bit_types_that_its_owner_has_set():
    table = np.array([[1.0, 0.0], [1.0, 1e-12]])

    def model(tokens):
        return jnp.asarray(table)[tokens].sum(axis=0)

    with jax.enable_x64(True):
        result = jaxsens.flip_sensitivity(model, [0, 1, 0], flips=2)
    assert result.norms.dtype == np.float64
    np.testing.assert_allclose(result.norms, 1e-12, rtol=1e-3)


def test_no_generator_holds_a_setting_while_its_caller_computes():
    held = [
        f"{path.relative_to(ROOT)}, line {inner.lineno}: yields within {ast.unparse(item.context_expr)}"
        for path in sorted((ROOT / "jaxsens").rglob("*.py"))
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(statement, ast.With)
        for item in statement.items
        if any(name in ast.unparse(item.context_expr) for name in ("numerics(", "errstate(", "enable_x64("))
        for inner in ast.walk(statement)
        if isinstance(inner, (ast.Yield, ast.YieldFrom))
    ]
    assert held == []


@pytest.mark.long
@pytest.mark.skipif(os.environ.get("JAXSENS_TYPES") != "checked", reason="JAXSENS_TYPES is not 'checked'")
def test_a_wrong_shape_is_refused_where_types_are_checked():
    rows = jnp.zeros((3, 2))
    assert where_finite(rows, jnp.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(jaxtyping.TypeCheckError, match="numbers"):
        where_finite(rows, jnp.ones(2))
