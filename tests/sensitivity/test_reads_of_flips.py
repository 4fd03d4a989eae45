"""Reads beyond an array under any flip are refused: at a symbol in the middle, at a pair of symbols, at a length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxsens
from jaxsens.sensitivity.checks import index_check
from jaxsens.sensitivity.engines.edits import GROUPS, SUBSTITUTE, Edit, edited
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.subjects.adapters import measurable

THREE = jax.random.normal(jax.random.key(0), (3, 4))
EIGHT = jax.random.normal(jax.random.key(1), (8, 4))
WORD = np.array([1, 2, 1, 3])
"""A word over 1, 2, 3: flips to 0 and 4 are new."""


def of_a_scan(t):
    def step(total, token):
        return jax.nn.relu(total) + THREE[3 - token], None

    return jax.lax.scan(step, jnp.zeros(4), t)[0]


def of_a_branch(t):
    return jax.lax.cond(t[0] == 0, lambda: THREE[t.sum() - 3], lambda: THREE[0])


def of_a_loop(t):
    return jax.lax.fori_loop(0, len(t), lambda i, y: y + THREE[3 - t[i]], jnp.zeros(4))


def compiled_within(t):
    return jax.nn.gelu(jax.jit(lambda i: THREE[i])(3 - t)).mean(0)


def after_a_layer(t):
    return jnp.tanh(EIGHT[t] @ jnp.ones((4, 4)))[jnp.array([0])][0] + THREE[3 - t].mean(0)


class Shifted(nnx.Module):
    """A Flax model with an embedding for the ids 1 to 3."""

    def __init__(self) -> None:
        self.embed = nnx.Embed(3, 4, rngs=nnx.Rngs(0))

    def __call__(self, tokens):
        return self.embed(3 - tokens).mean(0)


AT_A_SYMBOL = {
    "mirrored": lambda t: THREE[3 - t].mean(0),
    "taken": lambda t: jnp.take(THREE, 3 - t, axis=0, mode="clip").mean(0),
    "product": lambda t: THREE[jnp.minimum((3 - t) * (2 - t) // 2, 3)].mean(0),
    "only one symbol": lambda t: THREE[jnp.where(t == 0, 3, t // 2)].mean(0),
    "below": lambda t: THREE[jnp.where(t == 0, -4, -t)].mean(0),
    "looked up": lambda t: THREE[jnp.array([7, 0, 1, 2])[t]].mean(0),
    "slice": lambda t: (
        jax.lax.dynamic_slice(EIGHT, (8 - t[1], 0), (t.shape[0] - 3, 4)).mean(0)
        + jax.lax.dynamic_slice(EIGHT, (jnp.where(t[1] == 0, 8, 0), 0), (1, 4))[0]
    ),
    "along": lambda t: jnp.take_along_axis(THREE, (3 - t)[:, None], axis=0).mean(0),
    "scan": of_a_scan,
    "loop": of_a_loop,
    "compiled within": compiled_within,
    "checkpoint": lambda t: jax.checkpoint(lambda i: jnp.tanh(THREE[3 - i]))(t).mean(0),
    "after a layer": after_a_layer,
    "module": Shifted(),
    "mapped": lambda t: jax.vmap(lambda i: THREE[3 - i])(t).mean(0),
}

AT_SEVERAL = {
    "a pair": lambda t: THREE[jnp.where((t[0] == 2) & (t[1] == 2), 3, 0)],
    "a sum": lambda t: EIGHT[t.sum()],
    "a difference": lambda t: THREE[jnp.abs(t[0] - t[3])],
    "a count": lambda t: THREE[(t == 1).sum()],
    "a branch": of_a_branch,
}

SHORTER = {
    "fixed": lambda t: EIGHT[t][jnp.array([3])][0],
    "from the end": lambda t: EIGHT[t][jnp.array([-4])][0],
    "traced": lambda t: jax.lax.dynamic_index_in_dim(EIGHT[t], 3 + 0 * t[0], keepdims=False),
    "of the word": lambda t: EIGHT[t[jnp.array([0, 3])]].sum(0),
}

LONGER = {
    "positions": lambda t: (EIGHT[t] + THREE[jnp.arange(len(t)) - 1]).mean(0),
    "counted": lambda t: THREE[jnp.full(1, len(t) - 2)][0] + EIGHT[t].mean(0),
}


def refused(model: Any, tokens: Any = WORD, **options: Any) -> str:
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.flip_sensitivity(model, tokens, readout=None, **options)
    return str(caught.value)


@pytest.mark.quick(6)
@pytest.mark.parametrize("model", AT_A_SYMBOL.values(), ids=AT_A_SYMBOL)
def test_a_read_beyond_an_array_at_the_smallest_symbol_is_refused(model):
    message = refused(model, flips=[0, 1, 2, 3])
    assert "flips: with 0 at position " in message
    assert "would be wrong" in message


@pytest.mark.quick(3)
@pytest.mark.parametrize("model", AT_A_SYMBOL.values(), ids=AT_A_SYMBOL)
def test_without_that_symbol_the_model_is_measured(model):
    assert len(jaxsens.flip_sensitivity(model, WORD, flips=[1, 2, 3], readout=None)) == 8


@pytest.mark.parametrize("model", AT_SEVERAL.values(), ids=AT_SEVERAL)
def test_a_read_beyond_an_array_at_several_symbols_together_is_refused(model):
    assert "flips: with " in refused(model, flips=[0, 1, 2, 3])


@pytest.mark.quick(2)
@pytest.mark.parametrize("model", SHORTER.values(), ids=SHORTER)
def test_a_read_beyond_a_word_that_a_deletion_shortened_is_refused(model):
    message = refused(model, flips=jaxsens.Delete())
    assert "deleting a position makes of inputs of length 4 tokens of length 3" in message
    assert len(jaxsens.flip_sensitivity(model, WORD, 4, readout=None)) == 12


@pytest.mark.quick(3)
@pytest.mark.parametrize("model", LONGER.values(), ids=LONGER)
@pytest.mark.parametrize("flips", [jaxsens.Insert([1]), jaxsens.Repeat(2)], ids=["one", "two"])
def test_a_read_beyond_an_array_at_a_longer_word_is_refused(model, flips):
    assert "makes of inputs of length 4" in refused(model, flips=flips)
    assert len(jaxsens.flip_sensitivity(model, WORD, 4, readout=None)) == 12


def test_a_group_that_makes_a_bad_pair_is_refused():
    message = refused(AT_SEVERAL["a pair"], flips=jaxsens.Substitute([2, 3], groups=[(0, 1), (2, 3)]))
    assert "flips: with" in message
    assert "the model takes index" in message


def test_the_influence_matrix_refuses_a_symbol_in_the_middle():
    with pytest.raises(jaxsens.InputError, match="flips: with 0 at position 0"):
        jaxsens.influence_matrix(lambda t: THREE[3 - t], WORD, flips=[0, 1, 2, 3])


def test_the_search_for_the_worst_input_refuses_a_symbol_in_the_middle():
    with pytest.raises(jaxsens.InputError, match="flips: with 1 inserted"):
        jaxsens.worst_input(
            lambda t: THREE[jnp.where(t == 1, 3, 0)].mean(0), 4, 3, search=jaxsens.Search(exact=True)
        )
    with pytest.raises(jaxsens.InputError, match=r"index 3 of axis 0"):
        jaxsens.worst_input(AT_SEVERAL["a pair"], 4, 3, search=jaxsens.Search(exact=True))


def test_indices_that_depend_on_little_of_the_model_are_checked_by_little_of_it():
    """`jax.nn.relu` is a call of a function, which would make the whole model needed if it was not inlined."""
    large = jnp.ones((64, 64))

    def model(t):
        return (jax.nn.relu(jnp.tile(EIGHT[t], 16) @ large) + THREE[jnp.array([0])][0, 0]).mean(0)

    check = index_check._check_of(measurable(model), 32)
    assert check is not None
    assert check.operations < 0.01 * check.model_operations


def test_where_the_check_costs_as_much_as_the_model_some_flips_are_checked_and_the_result_says_so(
    monkeypatch,
):
    monkeypatch.setattr(index_check, "_AFFORDABLE", 0.0)

    def model(t):
        scores = jnp.tanh(jnp.tile(EIGHT[t], 16) @ jnp.ones((64, 64)))
        return EIGHT[0 * jnp.argmax(scores.sum(1))] + EIGHT[t].mean(0)

    found = jaxsens.flip_sensitivity(model, np.zeros(40, int), 8)
    assert "indices depend on much of the model, and were checked for" in found.engine.reason
    message = refused(lambda t: model(t) + THREE[3 - t][0], np.ones(40, int), flips=[0, 1, 2, 3])
    assert "flips: with 0" in message  # each symbol is checked at least once


def test_edited_words_are_those_that_each_edit_says():
    words = np.array([[5, 6, 7], [1, 2, 3]])
    flips = FlipTable(np.array([0, 1]), np.array([1, 2]), np.array([9, 8]), np.array([1, 1]))
    both = np.array([0, 1])
    assert edited(words, flips, SUBSTITUTE, both).tolist() == [[5, 9, 7], [1, 2, 8]]
    assert edited(words, flips, Edit("delete", -1), both).tolist() == [[5, 7], [1, 2]]
    assert edited(words, flips, Edit("insert", 2), both).tolist() == [[5, 9, 9, 6, 7], [1, 2, 8, 8, 3]]
    with pytest.raises(jaxsens.InputError, match="no rule for the edit"):
        edited(words, flips, Edit("other"), both)  # pyright: ignore[reportArgumentType]
    assert GROUPS.longer == 0
    assert words.tolist() == [[5, 6, 7], [1, 2, 3]]
