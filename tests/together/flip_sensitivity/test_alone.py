"""A model that computes something else in a batch is refused; integers are subtracted exactly; no change is told."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

import jaxsens
from jaxsens import (
    Comparison,
    Delete,
    Function,
    Insert,
    PrecisionWarning,
    Substitute,
    Transformer,
    TransformerConfig,
    UnchangedWarning,
)
from jaxsens.core.models.parts.weighting import AverageHard
from tests.refusals import refused

TABLE = np.asarray(jax.random.normal(jax.random.key(0), (3, 4)))
WORD = np.array([0, 1, 2, 1, 0, 2])
KIND = jax.ShapeDtypeStruct((4,), jnp.float32)


def of_words(t: np.ndarray) -> np.ndarray:
    """A function of words (..., n), in NumPy."""
    weights = np.linspace(1, 2, t.shape[-1], dtype=np.float32)[:, None]
    return np.tanh((TABLE[t] * weights).mean(-2))


def model_of_numpy(function: Any, method: str) -> Any:
    return lambda t: jax.pure_callback(lambda a: function(np.asarray(a)), KIND, t, vmap_method=method)


def first_row_only(t: np.ndarray) -> np.ndarray:
    found = of_words(t)
    return np.broadcast_to(found.reshape(-1, 4)[0], found.shape)


def without_the_mean(t: np.ndarray) -> np.ndarray:
    found = of_words(t)
    return found - found.reshape(-1, 4).mean(0) if t.ndim > 1 else found


def remembering() -> Any:
    """Remembers the first result for each shape of the tokens."""
    kept: dict[tuple[int, ...], np.ndarray] = {}
    return lambda t: kept.setdefault(t.shape, of_words(t))


def in_jax(t):
    return jnp.tanh((jnp.asarray(TABLE)[t] * jnp.linspace(1, 2, len(t))[:, None]).mean(0))


@custom_vmap
def with_a_wrong_rule(t):
    return in_jax(t)


@with_a_wrong_rule.def_vmap
def _averaged(size, batched, t):
    del batched
    return jnp.broadcast_to(jax.vmap(in_jax)(t).mean(0), (size, 4)), True


def wrong(name: str) -> Any:
    if name == "a rule":
        return with_a_wrong_rule
    functions = {"first row": first_row_only, "mean": without_the_mean, "remembers": remembering()}
    return model_of_numpy(functions[name], "expand_dims" if name != "mean" else "broadcast_all")


GROUPS = Substitute([0, 1, 2], groups=[(k, k + 1) for k in range(0, 20, 2)])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "tokens", "flips", "measure"),
    [
        *((name, WORD, 3, "l2") for name in ("a rule", "first row", "mean", "remembers")),
        ("first row", WORD, 3, "kl"),
        ("first row", WORD, 3, Function(lambda y: y[1])),
        ("first row", WORD, 3, Comparison(lambda y, new: (new - y)[2])),
        *(("mean", np.tile(WORD, 4), flips, "l2") for flips in (Delete(), Insert([2]), GROUPS)),
        *(("first row", np.tile(WORD, 4), flips, "l2") for flips in (Delete(), Insert([2]), GROUPS)),
    ],
)
def test_a_model_that_is_another_in_a_batch_is_refused(name: str, tokens: Any, flips: Any, measure: Any):
    with pytest.raises(jaxsens.InputError, match=r"batched form differs .*vmap_method=\"sequential\""):
        jaxsens.flip_sensitivity(wrong(name), tokens, flips, measure)


class Holder:
    """A model that reads a table by one of several names."""

    def __init__(self, kind: str) -> None:
        self.table: Any = jnp.asarray(TABLE)
        self.weights = {"layers": [self.table]}
        globals()["BOUND"] = self.table
        self.call = {
            "attribute": self.forward,
            "dictionary": lambda t: jax.vmap(lambda i: self.weights["layers"][0][i])(t).mean(0),
            "global": lambda t: of_bound(t),
        }[kind]

    def forward(self, t: Any) -> Any:
        return self.table[t].mean(0)

    def bind(self, table: Any) -> None:
        self.table = self.weights["layers"][0] = globals()["BOUND"] = table


def of_bound(t: Any) -> Any:
    return BOUND[t].mean(0)  # pyright: ignore[reportUndefinedVariable] - `Holder` binds it


@pytest.mark.parametrize("kind", ["attribute", "dictionary", "global"])
def test_a_variable_that_is_bound_to_another_array_after_compilation_is_refused(kind: str):
    holder = Holder(kind)
    result = jaxsens.flip_sensitivity(holder.call, WORD, 3)
    holder.bind(jnp.asarray(TABLE + 0.0))
    assert np.array_equal(jaxsens.flip_sensitivity(holder.call, WORD, 3).values, result.values)
    holder.bind(jnp.asarray(2 * TABLE))
    refused("model", jaxsens.flip_sensitivity, holder.call, WORD, 3)


def test_a_small_difference_of_large_numbers_is_not_taken_for_another_model():
    """What is left is rounding of the large ones, which differs between a batch and a single call."""
    weights = jax.random.normal(jax.random.key(1), (64, 64)) * 30

    def inner(t):
        return (jnp.tile(jnp.asarray(TABLE)[t], 16) @ weights).sum(0)

    model = lambda t: inner(t) - inner(t[::-1])  # noqa: E731
    with pytest.warns(PrecisionWarning, match="10 of 10 flips"):
        assert len(jaxsens.flip_sensitivity(model, WORD, 3))


def test_a_torch_module_that_looks_at_the_batch_is_refused():
    torch = pytest.importorskip("torch")

    class Centred(torch.nn.Module):
        def forward(self, ids: Any) -> Any:
            rows = torch.from_numpy(TABLE.copy())[ids].mean(1)
            return rows - rows[:1] / 2

    refused("model", jaxsens.flip_sensitivity, jaxsens.from_torch(Centred().eval()), WORD, 3)


def test_a_torch_module_in_16_bits_is_measured():
    torch = pytest.importorskip("torch")

    class Coarse(torch.nn.Module):
        """Its roundings are others in a batch."""

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.from_numpy(TABLE.copy()).to(torch.bfloat16))

        def forward(self, ids: Any) -> Any:
            return self.table[ids].mean(1) * (1.02 if len(ids) > 1 else 1.0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        assert len(jaxsens.flip_sensitivity(jaxsens.from_torch(Coarse().eval()), WORD, 3))


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (lambda t: (2**30 + t.sum())[None], [1, 2, 1, 1]),
        (lambda t: 2**30 + t.sum(), [1, 2, 1, 1]),
        (lambda t: (jnp.uint32(10) - t.sum().astype(jnp.uint32))[None], [1, 2, 1, 1]),
        (lambda t: (jnp.uint8(200) - 50 * t.sum().astype(jnp.uint8))[None], [50, 100, 50, 50]),
        (lambda t: (jnp.int16(2**15 - 1) - t.sum().astype(jnp.int16))[None], [1, 2, 1, 1]),
        (lambda t: (t[0] > 0)[None], [1, 1, 0, 0]),
        (lambda t: jnp.stack([2**30 + t[0], 5 * t[1]]).astype(jnp.int32), [1, 2, 5, 5]),
        (lambda t: jnp.where(t[0] == 2, 2**31 - 1, -(2**31))[None], [0, 2**32 - 1, 0, 0]),
    ],
    ids=["int32", "number", "uint32", "uint8", "int16", "bool", "two", "whole range"],
)
def test_integer_outputs_are_subtracted_exactly(model, wanted):
    found = jaxsens.flip_sensitivity(model, [0, 1, 0], 3, measure="l1")
    np.testing.assert_array_equal(found.norms, np.float32(wanted))


def test_decisions_of_large_integers_are_those_of_the_integers():
    model = lambda t: jnp.stack([2**30 + t[0], jnp.int32(2**30) + 1 + 0 * t[0]])  # noqa: E731
    found = jaxsens.flip_sensitivity(model, [0, 1, 0], flips=Substitute(3, positions=[0]), measure="decision")
    assert found.norms.tolist() == [1, 1]  # float32 has the same number for all of these
    one = lambda t: (2**24 + t[0])[None]  # noqa: E731
    threshold = jaxsens.Decision(threshold=2**24 + 0.5)
    found = jaxsens.flip_sensitivity(one, [0, 1], Substitute(2, positions=[0]), threshold)
    assert found.norms.tolist() == [1]


def test_functions_of_integers_that_float32_lacks_are_refused():
    large, small = (lambda t: (2**30 + t.sum())[None]), (lambda t: (1000 + t.sum())[None])
    refused("model", jaxsens.flip_sensitivity, large, [0, 1], 3, Function(lambda y: y[0]))
    found = jaxsens.flip_sensitivity(small, [0, 1, 1], 2, Function(lambda y: y[0]))
    assert found.values.tolist() == [1, -1]


NOTHING = {
    "a row of a batch": lambda t: jnp.asarray(TABLE)[t],
    "constant": lambda t: 0 * jnp.asarray(TABLE)[t].mean(0) + 1.0,
    "clipped": lambda t: jnp.asarray(TABLE)[jnp.clip(t, 5, 0)].max(0),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("model", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize("norm", ["l2", "linf", "decision", "kl"])
def test_one_warning_tells_that_nothing_changed(model: Any, norm: Any):
    with pytest.warns(UnchangedWarning, match=r"exactly 0 under every flip .*tokens\[None\]\)\[0\]") as told:
        jaxsens.flip_sensitivity(model, WORD, 3, measure=norm, readout="last")
    assert len(told) == 1
    assert told[0].filename == __file__


def test_so_one_does_if_other_outputs_change():
    with pytest.warns(UnchangedWarning):
        jaxsens.flip_sensitivity(
            lambda t: jnp.stack([1.0, t.sum()]), WORD, 3, measure=jaxsens.L2(outputs=[0])
        )


HARD = TransformerConfig(2, width=8, heads=1, layers=1, feed_forward=0, weighting=AverageHard())


@pytest.mark.parametrize(
    ("model", "measure"),
    [
        (lambda t: jnp.asarray(TABLE)[t].mean(0) + jnp.array([9.0, 0, 0, 0]), "decision"),
        (Transformer(HARD, seed=0), "l2"),
    ],
)
def test_decisions_and_hard_attention_that_do_not_change_are_no_news(model: Any, measure: Any):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = jaxsens.flip_sensitivity(model, [0, 1, 0, 1], 2, measure)
    assert measure != "decision" or found.max == 0
