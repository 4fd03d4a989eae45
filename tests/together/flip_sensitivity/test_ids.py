"""Ids come in as they are, or are refused: none wraps around, and none is rounded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxsens
from tests.refusals import refused

WRAPS = 2**40 + 1
CONFIG = jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=4)


def summed(tokens):
    return jnp.sin(tokens * 1.0).sum()


def refusal(call, *arguments, **options):
    with pytest.raises(jaxsens.InputError) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("id_", [WRAPS, 2**31, 2**63, 2**70])
def test_ids_beyond_32_bits_are_refused_wherever_they_come_in(id_):
    beyond = "ids of at most 2147483647"
    assert beyond in refusal(jaxsens.flip_sensitivity, summed, [0, id_], 2)
    assert beyond in refusal(jaxsens.flip_sensitivity, summed, [0, 1], [0, id_])
    assert "at most 2147483647" in refusal(jaxsens.flip_sensitivity, summed, [0, 1], id_)
    assert "the model reads ids 0 to 2147483647" in refusal(
        jaxsens.theory.worst_input, summed, 4, 2, search=jaxsens.theory.Search(fixed={3: id_})
    )
    assert "start = " in refusal(
        jaxsens.theory.worst_input, summed, 2, 2, search=jaxsens.theory.Search(start=[0, id_])
    )
    model = jaxsens.Transformer(CONFIG)
    assert "the model reads ids 0 to 2" in refusal(jaxsens.flip_sensitivity, model, [0, id_])
    assert "the model reads ids 0 to 2" in refusal(jaxsens.analysis.layer_changes, model, [0, id_])
    for function in (jaxsens.flip_sensitivity, jaxsens.analysis.layer_changes):
        said = refusal(lambda function=function: function(model, [0, 1], jaxsens.Substitute(positions=[id_])))
        assert "positions = " in said


@pytest.mark.parametrize(
    "model",
    [jaxsens.Transformer(CONFIG), jaxsens.training.LSTM(jaxsens.training.LSTMConfig(2, 4, 1))],
    ids=["own", "LSTM"],
)
def test_a_called_model_reads_no_id_that_wraps_into_its_alphabet(model):
    assert "the model reads ids 0 to 2" in refusal(model, np.array([0, WRAPS]))
    assert "ids of at least 0" in refusal(model, np.array([0, 2**32 - 2**63]))


@pytest.mark.parametrize("symbols", [1, [[0, 1]], [], [0.0, 1.0], [True], [-1, 0]], ids=str)
def test_symbols_that_are_none_are_refused(symbols):
    for call, tokens in (jaxsens.flip_sensitivity, [0, 1]), (jaxsens.theory.worst_input, 2):
        refused("flips.symbols", call, summed, tokens, symbols)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], "tokens = 'shape (0,)': shape (n,) or (batch, n), neither of them 0"),
        ([[]], "tokens = 'shape (1, 0)'"),
        (3, "tokens = 'shape ()'"),
        (None, "tokens = None: whole numbers of shape (n,)"),
        ({"input_ids": [[0, 1]], "attention_mask": [[1, 0]]}, "tokens = 'attention_mask with 0': no padding"),
        (pd.Series(["the", "cat"]), "ids, not text"),
        (np.array(["the", "cat"]), "ids, not text"),
        ("0110", "tokens = '0110': ids, not text, as [int(symbol) for symbol in word]"),
        (["the", "cat"], "tokens = ['the', 'cat']: ids, not text"),
        ([0.0, 1.0], "tokens = 'float64, shape (2,): 0.0, 1.0': whole numbers, the symbols' ids: tokens.astype(int)"),
        ([True, False], "tokens = 'bool, shape (2,): True, False': whole numbers"),
        (np.eye(2)[[0, 1, 1]], "tokens = 'float64, shape (3, 2): 1.0, 0.0, 0.0, 1.0, ...': one-hot rows"),
        (np.eye(3, dtype=bool)[[0, 1]], "ids, tokens.argmax(-1)"),
        (np.eye(2, dtype=int)[[[0, 1, 1]]], "tokens = 'int64, shape (1, 3, 2): 1, 0, 0, 1, ...': one-hot rows"),
        (np.zeros((0, 2)), "tokens = 'shape (0, 2)'"),
        ((k for k in range(3)), "turn an iterator or a set into a list"),
        ({0, 1}, "turn an iterator or a set into a list"),
        ([0, None, 1], "tokens = [0, None, 1]: whole numbers"),
        ([0, -1], "tokens = -1: ids of at least 0"),
    ],
)  # fmt: skip
def test_tokens_that_are_none_are_refused_with_what_would_do(tokens, said):
    assert said in refusal(jaxsens.flip_sensitivity, summed, tokens, 2)


def test_tokens_that_cannot_be_read_as_an_array_are_refused():
    class OnAnotherDevice:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def __repr__(self) -> str:
            return "tensor([0, 1], device='cuda:0')"

    assert "tokens = tensor([0, 1], device='cuda:0')" in refusal(
        jaxsens.flip_sensitivity, summed, OnAnotherDevice(), 2
    )


def test_a_traced_input_is_refused():
    said = refusal(jax.jit(lambda tokens: jaxsens.flip_sensitivity(summed, tokens, 2).max), jnp.array([0, 1]))
    assert "call this outside jit" in said


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "tokens",
    [
        (0, 1, 1),
        pd.Series([0, 1, 1]),
        pd.Series([0, 1, 1], dtype="Int64"),
        jnp.array([0, 1, 1]),
        np.array([0, 1, 1], np.uint8),
        np.array([0, 1, 1], object),
        range(2),
    ],
)
def test_whole_numbers_in_any_array_are_tokens(tokens):
    read = jaxsens.flip_sensitivity(summed, tokens, 2).tokens
    assert (read.dtype, read.tolist()) == (np.int32, [[int(token) for token in tokens]])
