"""Reads beyond an array are refused, of inputs and of flips; models that do not are left alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import checkify

import jaxsens
from jaxsens import Delete, Insert, Repeat, Substitute

TWO, THREE, EIGHT = (jax.random.normal(jax.random.key(size), (size, 4)) for size in (2, 3, 8))
TOKENS = np.array([0, 1, 1, 0] * 2)
WORD = np.array([1, 2, 1, 3])
"""A word over 1, 2, 3: flips to 0 and 4 are new."""

LONG = np.tile([1, 2], 40)


class Embedding(nnx.Module):
    """A Flax model with an embedding for three ids."""

    def __init__(self, reverse: bool) -> None:
        self.embed, self.reverse = nnx.Embed(3, 4, rngs=nnx.Rngs(0)), reverse

    def __call__(self, tokens):
        return self.embed(3 - tokens if self.reverse else tokens).mean(0)


def of_a_scan(t):
    return jax.lax.scan(lambda y, i: (jax.nn.relu(y) + THREE[3 - i], None), jnp.zeros(4), t)[0]


def called_back(t):
    kind, table = jax.ShapeDtypeStruct((4,), jnp.float32), np.asarray(TWO)
    found = jax.pure_callback(lambda i: table[np.minimum(i, 1)].mean(0), kind, t, vmap_method="sequential")
    return found + TWO[t].mean(0)


def at_place(place, symbol):
    """Returns a model that cannot read one symbol, at one place of a word with 2 at position 1."""
    return lambda t: THREE[jnp.where((t[place] == symbol) & (t[1] == 2), 3, 0)] + EIGHT[t].mean(0)


BY_ID = {
    "indexing": lambda t: TWO[t].mean(0),
    "take": lambda t: jnp.take(TWO, t, axis=0).mean(0),
    "clip mode": lambda t: TWO.at[t].get(mode="clip").mean(0),
    "fill mode": lambda t: TWO.at[t].get(mode="fill", fill_value=0).mean(0),
    "slices": lambda t: jax.vmap(lambda i: jax.lax.dynamic_slice(TWO, (i, 0), (1, 4))[0])(t).mean(0),
    "loop": lambda t: jax.lax.fori_loop(0, len(t), lambda i, y: y + TWO[t[i]], jnp.zeros(4)),
    "compiled": jax.jit(lambda t: TWO[t].mean(0)),
    "counted": lambda t: jnp.zeros(2).at[t].add(1.0) @ TWO,
    "callback": called_back,
}

BY_SYMBOL = {
    "mirrored": lambda t: THREE[3 - t].mean(0),
    "product": lambda t: THREE[jnp.minimum((3 - t) * (2 - t) // 2, 3)].mean(0),
    "looked up": lambda t: THREE[jnp.array([7, 0, 1, 2])[t]].mean(0),
    "along": lambda t: jnp.take_along_axis(THREE, (3 - t)[:, None], axis=0).mean(0),
    "scan": of_a_scan,
    "checkpoint": lambda t: jax.checkpoint(lambda i: jnp.tanh(THREE[3 - i]))(t).mean(0),
    "compiled within": lambda t: jax.nn.gelu(jax.jit(lambda i: THREE[i])(3 - t)).mean(0),
    "module": Embedding(reverse=True),
    "a pair": lambda t: THREE[jnp.where((t[0] == 2) & (t[1] == 2), 3, 0)],
    "a sum": lambda t: EIGHT[t.sum()],
    "a branch": lambda t: jax.lax.cond(t[0] == 0, lambda: THREE[t.sum() - 3], lambda: THREE[0]),
}

SHORTER = {
    "fixed": lambda t: EIGHT[t][jnp.array([3])][0],
    "from the end": lambda t: EIGHT[t][jnp.array([-4])][0],
    "of the word": lambda t: EIGHT[t[jnp.array([0, 3])]].sum(0),
}

LONGER = {
    "positions": lambda t: (EIGHT[t] + THREE[jnp.arange(len(t)) - 1]).mean(0),
    "counted": lambda t: THREE[jnp.full(1, len(t) - 2)][0] + EIGHT[t].mean(0),
}


def refused(model: Any, tokens: Any = WORD, flips: Any = 4, readout: Any = None) -> str:
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.flip_sensitivity(model, tokens, flips, readout=readout)
    assert "the model takes index" in str(caught.value)
    assert "so the result would be wrong" in str(caught.value)
    return str(caught.value)


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", BY_ID.values(), ids=BY_ID)
def test_a_symbol_beyond_the_table_is_refused_with_the_size_and_the_remedy(model):
    message = refused(model, TOKENS, 10)
    assert "flips: with symbol 9 at position " in message
    assert "the model takes index 9 of axis 0, which has size 2" in message
    assert "give symbols from 0 to 1" in message
    assert len(jaxsens.flip_sensitivity(model, TOKENS, 2)) == 7


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", BY_SYMBOL.values(), ids=BY_SYMBOL)
def test_of_few_flips_every_read_beyond_an_array_is_refused(model):
    assert "flips: with symbol " in refused(model)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("model", "flips", "said"),
    [
        *((model, Delete(), "with a deletion at position 0") for model in SHORTER.values()),
        *((model, Insert([1]), "with symbol 1 at") for model in LONGER.values()),
        *((model, Repeat(2), "with symbol ") for model in LONGER.values()),
    ],
)
def test_a_length_that_flips_make_is_checked(model, flips, said):
    assert said in refused(model, flips=flips)
    assert len(jaxsens.flip_sensitivity(model, WORD, 4, readout=None)) == 12


def test_a_group_that_makes_a_bad_pair_is_refused():
    groups = Substitute([2, 3], groups=[(0, 1), (2, 3)])
    assert "with symbol 2 at position 0" in refused(BY_SYMBOL["a pair"], flips=groups)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("place", "symbol"), [(2, 0), (79, 0), (2, 7), (79, 7)])
@pytest.mark.parametrize("kind", ["substitute", "groups"])
def test_of_many_flips_the_first_and_the_last_to_the_smallest_and_the_largest_symbol_are_checked(
    place, symbol, kind
):
    pairs, every = [(k, k + 1) for k in range(2, 80, 2)], range(2, 80)
    flips = Substitute(8, positions=every) if kind == "substitute" else Substitute(8, groups=pairs)
    first = place if kind == "substitute" else place - place % 2
    # The second input is the one with 2 at position 1, the first the one that the first flips change.
    words = np.stack([LONG, LONG + 1] if place == 2 else [LONG + 1, LONG])
    assert f"with symbol {symbol} at position {first} of input {int(place == 79)}" in refused(
        at_place(place, symbol), words, flips
    )


@pytest.mark.long
def test_a_word_that_no_flip_makes_convicts_nobody():
    depth = jnp.arange(6.0)  # enough for balanced words and any flip of them, not for all brackets open

    def model(t):
        return depth[jnp.cumsum(2 * t - 1) + 2].mean()

    assert len(jaxsens.flip_sensitivity(model, [1, 0, 1, 0, 1, 0], 2, readout=None)) == 6
    special = jax.random.normal(jax.random.key(2), (5, 4))

    def first_apart(t):
        return special[t[0]] + TWO[t[1:]].mean(0)

    assert len(jaxsens.flip_sensitivity(first_apart, TOKENS, Substitute([3, 4], positions=[0]))) == 2
    assert "at position 2" in refused(first_apart, TOKENS, Substitute([3, 4], positions=[0, 2]))


@pytest.mark.parametrize(
    ("model", "tokens", "said"),
    [
        (BY_ID["indexing"], np.stack([TOKENS, TOKENS, TOKENS + 4]), "on word 2, [4, 5, 5, 4, 4, 5, 5, 4], "),
        # jnp.take gives NaN, which is not the weights' problem
        (BY_ID["take"], [0, 5, 1], "on word 0, [0, 5, 1], the model takes index 5 of axis 0"),
        (Embedding(reverse=False), [0, 3], "give symbols from 0 to 2"),
        (LONGER["positions"], np.zeros(12, int), "of length 12, the model takes index 3 of axis 0"),
        (LONGER["positions"], np.zeros(12, int), "tables are large enough"),
    ],
)
def test_an_input_that_a_model_cannot_read_is_refused(model, tokens, said):
    message = refused(model, tokens, 2)
    assert message.startswith("tokens: ")
    assert said in message


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "model",
    [
        lambda t: jnp.where(t > 0, size=1)[0] * 1.0 + TWO[t].sum(),
        lambda t: TWO[t].sum() + jnp.where(t > 0, size=1)[0] * 1.0,
        lambda t: jnp.insert(t, t[0] + 7, 1) * jnp.arange(9.0),
        lambda t: jnp.unique(t, size=1) + 1.0 * t[1:3],
        lambda t: TWO[jnp.clip(t - 1, 0, 1)].mean(0) + t[1:3].sum(),
        lambda t: jnp.roll(TWO[t % 2], t[0], axis=0).sum(0),
        lambda t: jax.nn.one_hot(t - 1, 2).mean(0),
    ],
    ids=["where", "where after", "insert", "unique", "clipped", "roll", "one-hot"],
)
def test_what_jax_drops_on_purpose_is_no_problem(model):
    assert len(jaxsens.flip_sensitivity(model, TOKENS, flips=Substitute(2, positions=[1, 2]))) == 2


def test_a_model_that_checkify_cannot_run_is_measured(monkeypatch):
    def refuses(*given: Any, **options: Any) -> Any:
        raise NotImplementedError("no rule")

    monkeypatch.setattr(checkify, "checkify", refuses)
    assert len(jaxsens.flip_sensitivity(lambda t: TWO[t].mean(0), TOKENS, 2)) == 7
