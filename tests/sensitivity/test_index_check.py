"""Ids that a model cannot read are refused, and models that can read them are left alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import jaxsens
from jaxsens.sensitivity.checks import index_check
from jaxsens.sensitivity.subjects.adapters import measurable

TOKENS = np.array([0, 1, 1, 0] * 2)
TABLE = jax.random.normal(jax.random.key(0), (2, 8))
PLACES = jax.random.normal(jax.random.key(1), (8, 8))


def refused(model: Any, tokens: Any = TOKENS, flips: Any = 2) -> str:
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.flip_sensitivity(model, tokens, flips)
    return str(caught.value)


def rows_of_a_scan(tokens):
    return jax.lax.scan(lambda total, token: (total + TABLE[token], None), jnp.zeros(8), tokens)[0]


def sharded(tokens):
    mesh = jax.make_mesh((1,), ("n",), axis_types=(jax.sharding.AxisType.Auto,))
    every = PartitionSpec()
    return jax.shard_map(lambda t: TABLE[t].mean(0), mesh=mesh, in_specs=every, out_specs=every)(tokens)


def called_back(tokens):
    kind, table = jax.ShapeDtypeStruct((8,), jnp.float32), np.asarray(TABLE)
    looked_up = jax.pure_callback(
        lambda t: table[np.minimum(t, 1)].mean(0), kind, tokens, vmap_method="sequential"
    )
    return looked_up + TABLE[tokens].mean(0)


READING = {
    "indexing": lambda t: TABLE[t].mean(0),
    "take": lambda t: jnp.take(TABLE, t, axis=0).mean(0),
    "clip mode": lambda t: TABLE.at[t].get(mode="clip").mean(0),
    "one at a time": lambda t: jax.vmap(lambda i: jax.lax.dynamic_slice(TABLE, (i, 0), (1, 8))[0])(t).mean(0),
    "scan": rows_of_a_scan,
    "loop": lambda t: jax.lax.fori_loop(0, len(t), lambda i, y: y + TABLE[t[i]], jnp.zeros(8)),
    "compiled": jax.jit(lambda t: TABLE[t].mean(0)),
    "counted": lambda t: jnp.zeros(2).at[t].add(1.0) @ TABLE,
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("model", READING.values(), ids=READING)
def test_a_symbol_beyond_the_table_is_refused_with_the_size_and_the_remedy(model):
    message = refused(model, flips=10)
    assert "flips: with 9 at position 0: the model takes index 9 of axis 0, which has size 2" in message
    assert "flips=2 or flips=[...]" in message


@pytest.mark.quick(3)
@pytest.mark.parametrize("model", READING.values(), ids=READING)
def test_symbols_that_the_table_has_are_measured(model):
    assert len(jaxsens.flip_sensitivity(model, TOKENS, 2)) == 7


def test_an_input_beyond_the_table_is_refused_whichever_it_is():
    words = np.stack([TOKENS, TOKENS, TOKENS + 4])
    message = refused(READING["indexing"], words)
    assert "tokens = 4: the model takes index 4 of axis 0, which has size 2" in message
    assert "give ids from 0 to 1" in message
    assert "tokens = 5" in refused(
        READING["take"], [0, 5, 1]
    )  # NaN by jnp.take, which is not the weights' problem


def test_an_input_longer_than_a_table_of_positions_is_refused_with_the_longest():
    def model(tokens):
        return (TABLE[tokens] + PLACES[jnp.arange(len(tokens))]).mean(0)

    message = refused(model, np.zeros(12, int))
    assert "tokens of length 12: the model takes index 8 of axis 0, which has size 8" in message
    assert "inputs of length at most 8" in message


def test_only_positions_that_are_flipped_hold_the_largest_symbol():
    special = jax.random.normal(jax.random.key(2), (5, 8))

    def model(tokens):  # the first symbol is read from a table of its own
        return special[tokens[0]] + TABLE[tokens[1:]].mean(0)

    assert len(jaxsens.flip_sensitivity(model, TOKENS, flips=jaxsens.Substitute([3, 4], positions=[0]))) == 2
    assert "at position 2" in refused(model, TOKENS, jaxsens.Substitute([3, 4], positions=[0, 2]))


def test_a_word_that_no_flip_makes_convicts_nobody():
    depth = jnp.arange(6.0)

    def model(
        tokens,
    ):  # a table of depths, enough for balanced words and any flip of them, not for all brackets open
        return depth[jnp.cumsum(2 * tokens - 1) + 2].mean()

    assert len(jaxsens.flip_sensitivity(model, [1, 0, 1, 0, 1, 0], 2, readout=None)) == 6


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "model",
    [
        lambda t: jnp.where(t > 0, size=1)[0] * 1.0 + TABLE[t].sum(),
        lambda t: TABLE[t].sum() + jnp.where(t > 0, size=1)[0] * 1.0,
        lambda t: jnp.insert(t, t[0] + 7, 1) * jnp.arange(9.0),
        lambda t: jnp.unique(t, size=1) + 1.0 * t[1:3],
        lambda t: TABLE[jnp.clip(t - 1, 0, 1)].mean(0) + t[1:3].sum(),
        lambda t: jnp.roll(TABLE[t % 2], t[0], axis=0).sum(0),
    ],
    ids=["where", "where after", "insert", "unique", "clipped", "roll"],
)
def test_what_jax_drops_on_purpose_is_no_problem(model):
    assert len(jaxsens.flip_sensitivity(model, TOKENS, flips=jaxsens.Substitute(2, positions=[1, 2]))) == 2


def test_models_with_callbacks_are_checked():
    assert len(jaxsens.flip_sensitivity(called_back, TOKENS, 2)) == 7
    assert "flips: with 2" in refused(called_back, flips=3)


def test_models_that_checkify_cannot_trace_are_measured():
    weights = jnp.ones((8,))

    def remembered(tokens):
        return jax.checkpoint(lambda t: jnp.tanh(TABLE[t]) @ weights)(tokens)[:5]

    assert index_check.beyond(measurable(remembered), TOKENS) is None
    assert len(jaxsens.flip_sensitivity(remembered, TOKENS, 2)) == 7
    assert index_check.beyond(measurable(sharded), TOKENS) is None


def test_a_flax_embedding_is_checked():
    class Model(nnx.Module):
        def __init__(self):
            self.embed = nnx.Embed(2, 4, rngs=nnx.Rngs(0))

        def __call__(self, tokens):
            return self.embed(tokens).mean(0)

    assert "flips=2 or" in refused(Model(), flips=3)


def test_a_second_call_does_not_trace_the_check_again():
    traced = []

    def model(tokens):
        traced.append(len(tokens))
        return TABLE[tokens].mean(0)

    jaxsens.flip_sensitivity(model, TOKENS, 2)
    before = len(traced)
    jaxsens.flip_sensitivity(model, 1 - TOKENS, 2)
    # two calls on the input, which find what is random, and one for each of three flips, which are measured alone
    assert len(traced) == before + 5


def test_float64_models_are_checked():
    with jax.enable_x64(True):
        table = jnp.asarray(np.asarray(TABLE), jnp.float64)
        assert "flips: with 4" in refused(lambda t: table[t].mean(0), flips=5)
        assert jaxsens.flip_sensitivity(lambda t: table[t].mean(0), TOKENS, 2).dtype == "float64"


def test_the_search_for_the_worst_input_refuses_symbols_beyond_the_table():
    with pytest.raises(jaxsens.InputError, match=r"flips: with 2 inserted: .* size 2 .*flips=2"):
        jaxsens.worst_input(READING["indexing"], 4, 3, search=jaxsens.Search(exact=True))
    with pytest.raises(jaxsens.InputError, match=r"tokens = 7: .* size 2"):
        jaxsens.worst_input(READING["indexing"], 4, 2, search=jaxsens.Search(fixed={3: 7}, exact=True))
