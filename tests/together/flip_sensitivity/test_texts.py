"""Inputs: texts and ids of several lengths; no id wraps around, and none is rounded."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens import FlipSensitivity, Substitute
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.models.transformer.layers import layered_transformer
from tests.refusals import refusal, refused

CONFIG = jaxsens.TransformerConfig(alphabet_size=3, width=4, heads=1, layers=1, feed_forward=4)
MODEL = jaxsens.Transformer(CONFIG, seed=0)


class Speller(LayeredModel):
    """Encodes letters a, b, c."""

    def encode(self, text: str) -> list[int]:
        return ["abc".index(letter) for letter in text]

    def tokens(self, ids: Any) -> list[str]:
        return ["abc"[one] for one in ids]


SPELLER = Speller(layered_transformer(CONFIG), MODEL.parameters)
TEXTS = ["abcab", "cc", "bacca", "abb"]


def measured(tokens: Any, model: Any = SPELLER, flips: Any = 3, **options: Any) -> Any:
    return jaxsens.flip_sensitivity(model, tokens, flips, engine=options.pop("engine", "vmap"), **options)


def same(one: FlipSensitivity, other: FlipSensitivity) -> None:
    for name in ("values", "resolution", "inputs", "positions", "symbols", "tokens"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.description() == other.description()


@pytest.fixture(scope="module")
def each() -> list[FlipSensitivity]:
    return measured(TEXTS)


@pytest.mark.long
def test_a_list_of_texts_has_a_result_for_each_that_of_the_text_alone(each):
    assert [one.tokens.tolist() for one in each] == [[SPELLER.encode(text)] for text in TEXTS]
    for one, text in zip(each, TEXTS, strict=True):
        same(one, measured(text))
    assert each[0].names == {0: "a", 1: "b", 2: "c"}
    assert list(each[0].to_pandas()["token"][:2]) == ["a", "a"]


@pytest.mark.long
@pytest.mark.parametrize("texts", [["abc"], ("ab", "ca")])
def test_a_list_is_returned_also_for_one_text_and_for_equal_lengths(texts):
    found = measured(texts)
    assert isinstance(found, list)
    assert [len(one.tokens) for one in found] == [1] * len(texts)


@pytest.mark.parametrize(
    "tokens", [[[0, 1], [2, 2]], [np.array([0, 1]), np.array([2, 2])], np.zeros((2, 2), int)]
)
def test_ids_of_one_length_have_one_result(tokens):
    found = measured(tokens)
    assert isinstance(found, FlipSensitivity)
    assert len(found.tokens) == 2


@pytest.mark.parametrize(
    "tokens", [[[0, 1, 2], [2, 2]], (np.array([0, 1, 2]), [2, 2]), [[0], [1, 2], [0, 1, 2]]]
)
@pytest.mark.parametrize("model", [MODEL, SPELLER])
def test_ids_of_several_lengths_are_refused_with_the_loop_to_write(tokens, model):
    loop = r"\[flip_sensitivity\(model, one\) for one in tokens\]"
    wanted = rf"tokens = .*: ids of one length, not of (2, 3|1, 2, 3): {loop}"
    with pytest.raises(jaxsens.InputError, match=wanted):
        measured(tokens, model)


def test_texts_and_ids_that_cannot_be_measured_are_named_before_one_is():
    done: list[int] = []
    few = ["ab", "a", "abc", "b"]
    refused("tokens[1] tokens[3]", measured, few, progress=lambda now, total: done.append(now))
    assert not done
    flips = Substitute(3, positions=[3])
    refused("tokens[1].flips.positions", measured, ["abca", "ab"], flips=flips)
    refused("progress", measured, TEXTS, progress=3)
    refused("measure", measured, TEXTS, measure="l3")
    for tokens in ("abc", ["ab", "c"]):
        refused("tokens", measured, tokens, MODEL)
    refused("tokens", measured, [[0, 1], [[0], [1, 2]]])
    refused("tokens", measured, ["ab", [0, 1]])


@pytest.mark.long
def test_a_sample_is_drawn_of_each_text(each):
    found = measured(TEXTS, flips=Substitute(3, sample=3, seed=1))
    assert [len(one) for one in found] == [3, 2, 3, 3]
    assert [one.population for one in found] == [one.population for one in each]


@pytest.mark.parametrize("text", [0, 2])
def test_an_interrupted_call_keeps_what_was_measured_and_can_be_completed(each, text):
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == text + 1:
            raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        measured(TEXTS, progress=stop)
    assert len(caught.value.finished) == text
    for one, whole in zip(caught.value.finished, each, strict=False):
        same(one, whole)
    partial = caught.value.partial
    assert not partial.complete
    rest = measured(TEXTS[text], flips=partial.remaining)
    np.testing.assert_allclose(partial.joined(rest).norms, each[text].norms, rtol=1e-5)


def test_a_table_of_texts_counts_each_once(each):
    table = jaxsens.corpus_table(each, "label", ["x", "y", "x", "x"])
    means = [float(one.norms.astype(np.float64).mean()) for one in each]
    assert [(row.key, row.texts) for row in table] == [("x", 3), ("y", 1)]
    assert table[0].mean == pytest.approx(np.mean([means[0], means[2], means[3]]))
    assert table[0].error == pytest.approx(np.std([means[0], means[2], means[3]], ddof=1) / math.sqrt(3))
    assert math.isnan(table[1].error)
    largest = max(range(4), key=lambda k: each[k].max)
    row = max(table, key=lambda row: row.largest)
    assert (row.text, row.position, row.largest) == (
        largest,
        each[largest].argmax.position,
        each[largest].max,
    )
    batch = measured([SPELLER.encode(TEXTS[0]), SPELLER.encode(TEXTS[2])])
    both = jaxsens.corpus_table([batch, each[1]], "label", ["x", "x", "y"])
    assert [row.texts for row in both] == [2, 1]
    assert both[1].text == 2


@pytest.mark.parametrize("results", [None, "ab", [1], (3,), []])
def test_a_table_of_no_list_of_results_is_refused(results):
    refused("results", jaxsens.corpus_table, results)


@pytest.mark.parametrize(
    ("other", "path"),
    [
        ({"measure": "l1"}, "results[1]: measure"),
        ({"model": jaxsens.Transformer(CONFIG, seed=1), "tokens": [0, 1]}, "results[1]: model"),
        ({"flips": Substitute(3, groups=[(0, 1)])}, "results[1]"),
    ],
)
def test_a_table_of_results_that_differ_is_refused_by_name(each, other, path):
    with refusal(path):
        jaxsens.corpus_table([each[0], measured(**{"tokens": "ab", **other})])


WRAPS = 2**40 + 1
TWO_SYMBOLS = jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=4)


def summed(tokens):
    return jnp.sin(tokens * 1.0).sum()


@pytest.mark.parametrize("id_", [WRAPS, 2**31, 2**63, 2**70])
def test_ids_beyond_32_bits_are_refused_wherever_they_come_in(id_):
    model, measure, search = jaxsens.Transformer(TWO_SYMBOLS), jaxsens.flip_sensitivity, jaxsens.theory.Search
    refused("tokens", measure, summed, [0, id_], 2)
    refused("flips.symbols", measure, summed, [0, 1], [0, id_])
    refused("flips.symbols", measure, summed, [0, 1], id_)
    refused("fixed", lambda: jaxsens.theory.worst_input(summed, 4, 2, search=search(fixed={3: id_})))
    refused("start", lambda: jaxsens.theory.worst_input(summed, 2, 2, search=search(start=[0, id_])))
    for function in (measure, jaxsens.analysis.layer_changes):
        refused("tokens", function, model, [0, id_])
        refused(
            "flips.positions", lambda function=function: function(model, [0, 1], Substitute(positions=[id_]))
        )


@pytest.mark.parametrize(
    "model",
    [jaxsens.Transformer(TWO_SYMBOLS), jaxsens.training.LSTM(jaxsens.training.LSTMConfig(2, 4, 1))],
    ids=["own", "LSTM"],
)
def test_a_called_model_reads_no_id_that_wraps_into_its_alphabet(model):
    for id_ in (WRAPS, 2**32 - 2**63):
        refused("tokens", model, np.array([0, id_]))


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
    assert said in refused("tokens", jaxsens.flip_sensitivity, summed, tokens, 2)


def test_tokens_that_cannot_be_read_as_an_array_or_are_traced_are_refused():
    class OnAnotherDevice:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def __repr__(self) -> str:
            return "tensor([0, 1], device='cuda:0')"

    said = refused("tokens", jaxsens.flip_sensitivity, summed, OnAnotherDevice(), 2)
    assert "tokens = tensor([0, 1], device='cuda:0')" in said
    traced = jax.jit(lambda tokens: jaxsens.flip_sensitivity(summed, tokens, 2).max)
    assert "call this outside jit" in refused("tokens", traced, jnp.array([0, 1]))


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
