"""The first-order engine at the edges: short inputs, unusual models."""

from __future__ import annotations

import dataclasses
import re
import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import EngineRefusal, FirstOrder, PrecisionWarning, UnchangedWarning
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.masks import MASKS
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.first_order.engine import FirstOrderEngine
from jaxsens.first_order.estimate import combinations
from tests.refusals import refusal, refused
from tests.small_models import WEIGHTINGS_TRIED, small


@dataclass(frozen=True)
class Grouped(jaxsens.Layered):
    """Layers with different numbers of heads, and values that are not as wide as keys."""

    layers: int = 2
    readout: Any = "last"
    alphabet_size: int | None = 7
    heads: tuple[int, ...] = (2, 4)
    key_heads: tuple[int, ...] = (2, 2)
    mask: Any = "future"
    weighting: Any = WEIGHTINGS_TRIED["softmax"]

    def attention(self, layer):
        key_heads = self.key_heads[layer]
        return jaxsens.Attention(
            self.heads[layer], key_heads=key_heads, mask=self.mask, weighting=self.weighting
        )

    def embed(self, parameters, symbol, position):
        return parameters["embedding"][symbol] + 0.1 * jnp.sin(position.astype(parameters["embedding"].dtype))

    def project(self, parameters, layer, row, position):
        own = parameters["layers"][layer]
        q, k, v = (jnp.einsum("d,dhk->hk", row, own[name]) for name in ("query", "key", "value"))
        return q, k, v

    def merge(self, parameters, layer, row, attended):
        row = row + jnp.einsum("hk,hkd->d", attended, parameters["layers"][layer]["output"])
        return row / jnp.sqrt(0.1 + jnp.mean(row**2))

    def read(self, parameters, row):
        return row @ parameters["head"]


def weights_of(model: Grouped, dtype: Any = np.float32) -> dict[str, Any]:
    """NumPy weights, and an array of whole numbers that the model does not use."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / shape[0] ** 0.5).astype(dtype)

    layers = [
        {
            "query": draw(8, model.heads[k], 5),
            "key": draw(8, model.key_heads[k], 5),
            "value": draw(8, model.key_heads[k], 3),
            "output": draw(model.heads[k], 3, 8),
        }
        for k in range(len(model.heads))
    ]
    return {"embedding": 2 * draw(7, 8), "head": draw(8, 4), "layers": layers, "unused": np.arange(3)}


TOKENS = np.random.default_rng(0).integers(0, 7, 24)
WEIGHTS = weights_of(Grouped())


def measured(model: jaxsens.Layered, weights: Any = WEIGHTS, **options: Any) -> tuple[Any, np.ndarray]:
    """An estimate, and the exact values of all flips in float64."""
    wide = jax.tree.map(
        lambda leaf: leaf.astype(np.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, weights
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnchangedWarning)  # some of these models see none of the flipped rows
        warnings.simplefilter(
            "ignore", PrecisionWarning
        )  # and some changes are below the rounding of float64
        exact = jaxsens.flip_sensitivity((model, wide), TOKENS, engine="vmap", **options)
    found = jaxsens.flip_sensitivity((model, weights), TOKENS, **options, engine=FirstOrder(verify=20))
    return found, exact.values


@dataclass(frozen=True)
class Sloped(Grouped):
    """Scores with a slope for each head, and weights of 0 beyond a window, given as a score of -inf."""

    def position_score(self, layer, head, query, key):
        return jnp.where(abs(query - key) < 9, -0.1 * (head + 1) * abs(query - key), -jnp.inf)


@dataclass(frozen=True)
class Bounded(Grouped):
    """Scores that are no dot products, and a constant position score."""

    def score(self, parameters, layer, head, query, key):
        return 2 * jnp.tanh(jnp.sum(query * key))

    def position_score(self, layer, head, query, key):
        return 0.5


@dataclass(frozen=True)
class Counting(Grouped):
    """A readout that depends on the length, and is a number."""

    n: int = 0

    def at_length(self, n):
        return dataclasses.replace(self, n=n)

    def read(self, parameters, row):
        return jnp.sum(row**2) * self.n


SIGMOID = WEIGHTINGS_TRIED["sigmoid by-query"]

MODELS: dict[str, Grouped] = {
    "grouped": Grouped(),
    "no layer": Grouped(layers=0),
    "row 3, of an integer type": Grouped(readout=np.int64(3), mask="none"),
    "sloped": Sloped(mask="none"),
    "bounded sigmoids": Bounded(weighting=SIGMOID),
    "counting": Counting(),
    "window": Grouped(mask=lambda query, key: (key <= query) & (query - key < 5)),
    "every other row sees nothing": Grouped(mask=lambda query, key: (key < query) & (query % 2 == 0)),
}


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("readout", ["auto", pytest.param("mean", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_small_changes_of_unusual_models_are_estimated_and_verified_flips_exact(name, readout):
    weights = weights_of(MODELS[name], np.float64)
    near = {**weights, "embedding": weights["embedding"][0] + 1e-4 * weights["embedding"]}
    result, exact = measured(MODELS[name], near, readout=readout)
    verified, size = result.exact, np.abs(exact).max()
    np.testing.assert_allclose(result.values[verified], exact[verified], rtol=1e-7, atol=1e-14)
    assert re.search("(incremental|vmap) in float64", result.engine.why)
    np.testing.assert_allclose(result.estimated.estimates, exact, atol=1e-2 * size + 1e-14)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_narrow_parameters_are_widened_for_the_estimate_and_for_verified_flips(dtype):
    weights = weights_of(Grouped(), dtype)
    result, exact = measured(Grouped(), weights)
    np.testing.assert_allclose(result.values[result.exact], exact[result.exact], rtol=1e-9, atol=1e-14)
    wide = jax.tree.map(
        lambda leaf: leaf.astype(np.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, weights
    )
    same, _ = measured(Grouped(), wide)
    np.testing.assert_allclose(result.norms, same.norms, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mask", MASKS)
def test_spans_hold_every_pair_that_a_mask_connects(mask):
    attention, n = jaxsens.Attention(1, mask=mask), 7
    seen = np.asarray(attention.sees(jnp.arange(n)[:, None], jnp.arange(n)[None, :]))
    for first, stop in ((0, 2), (3, 4), (5, 7)):
        rows = np.flatnonzero(seen[:, first:stop].any(1))
        low, high = attention.rows_that_see((first, stop), n)
        assert set(rows) <= set(range(low, high))


@dataclass(frozen=True)
class _Narrowing(Grouped):
    def merge(self, parameters, layer, row, attended):
        return row[1:]


@pytest.mark.parametrize(
    ("names", "model"),
    [
        (("keys in layer 1", "values in layer 1"), Grouped(key_heads=(2, 4))),
        (("queries in layer 0",), Grouped(heads=(4, 4))),
        (("readout",), Grouped(readout="first")),
        (("readout",), Grouped(readout=99)),
        (("layers",), Grouped(layers=-1)),
        (("alphabet_size",), Grouped(alphabet_size=0)),
        (("",), _Narrowing()),
    ],
)
def test_errors_of_a_users_model_name_what_is_wrong(names, model):
    with refusal(*names):
        jaxsens.flip_sensitivity((model, WEIGHTS), TOKENS, engine="first-order")


@pytest.mark.long
def test_a_scalar_without_a_derivative_is_refused_and_a_step_is_estimated():
    def doubled(y: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (2 * c[0], c[1] + 1), (y[0], 0))[0]

    with pytest.raises(EngineRefusal, match="this model or measure: it needs the derivative"):
        measured(Grouped(), measure=jaxsens.Function(doubled))
    result, exact = measured(Grouped(), measure=jaxsens.Function(lambda y: jnp.where(y[0] > y[1], 1.0, 0.0)))
    np.testing.assert_array_equal(result.values[result.exact], exact[result.exact])


def test_what_an_estimate_costs_is_explained_for_weights_of_numpy():
    told = jaxsens.explain((Grouped(), WEIGHTS), 64, engine="first-order")
    assert told.operations > 0


def test_few_outputs_of_many_take_no_memory_for_the_others():
    engine = FirstOrderEngine(L2(), (3, 10**6), layered_transformer(small()), "last")
    rows = combinations(FirstOrder(), engine, 2 * 10**6)
    assert rows.shape == (2, 2 * 10**6)
    assert rows.sum() == rows[0, 3] + rows[1, 10**6] == 2
    asked = FirstOrder(sketch=5)
    whole = FirstOrderEngine(L2(), None, layered_transformer(small()), "last")
    parts = [combinations(asked, whole, 20, range(k, k + 2)) for k in (0, 2, 4)]
    joined = np.concatenate(parts)
    np.testing.assert_array_equal(joined[:5], combinations(asked, whole, 20))
    assert not joined[5].any()


@pytest.mark.long
def test_a_budget_that_holds_nothing_is_refused_and_few_verified_flips_are_enough():
    refused("memory_budget", measured, Grouped(), placement=jaxsens.Placement(memory_budget=2**8))
    one = jaxsens.flip_sensitivity((Grouped(), WEIGHTS), TOKENS, engine=FirstOrder(verify=1))
    assert one.exact.sum() == 1
    assert "any of them may exceed" in repr(one)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(("mask", "readout"), [("future", 0), ("strict-future", 5)])
def test_flips_that_a_mask_hides_from_the_readout_are_0_and_do_not_warn(mask, readout):
    # Forward passes give the rounding of a subtraction there; warnings are errors in tests.
    config = jaxsens.TransformerConfig(
        alphabet_size=2, layers=3, layer_norm="pre", mask=mask, readout=readout
    )
    word = [0, 1, 1, 0] * 12 + [2]
    result = jaxsens.flip_sensitivity(jaxsens.Transformer(config, seed=0), word, engine=FirstOrder(verify=20))
    assert result.estimated is not None
    assert not result.estimated.estimates[result.positions > readout].any()
