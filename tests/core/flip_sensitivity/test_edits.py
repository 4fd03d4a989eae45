"""Insertions and repetitions against the definition: forward passes in NumPy of edited lists of symbols."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, Softmax, Transformer, load_result
from jaxsens.core.flips.flips import Delete, Insert, Pairs, Repeat, Substitute
from jaxsens.core.measures import Function
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import Sigmoid
from tests.core.flip_sensitivity.test_selection import CONFIG, MODEL, listed, plain
from tests.small_models import small

flip_sensitivity: Any = jaxsens.flip_sensitivity

WORD = np.array([0, 4, 2, 1, 3, 3, 5])
N = len(WORD)


def edited(word, position, symbol, copies):
    """The word with copies of a symbol before a position, in plain lists."""
    word = [int(token) for token in word]
    return word[:position] + [symbol] * copies + word[position:]


def truth(model, words, flips, copies):
    return [
        np.linalg.norm(plain(edited(words[b], p, s, copies), model) - plain(words[b], model))
        for b, p, s in flips
    ]


# Against the definition


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        Transformer(CONFIG.replace(readout="mean", mask="none", weighting=Softmax(SCHEDULES["log"])), seed=2),
        Transformer(CONFIG.replace(readout=0, mask="none", positions=("length", "fraction")), seed=3),
    ],
    ids=["last", "mean, temperature log n", "first, positions of n"],
)
@pytest.mark.parametrize(("flips", "copies"), [(Insert(), 1), (Insert([3, 0]), 1), (Repeat(2), 2)])
def test_an_edit_compares_with_the_longer_word(model, flips, copies):
    result = flip_sensitivity(model, WORD, flips=flips)
    places = range(1 if model.config.readout == 0 else 0, N)
    expected = {
        Insert(): [(0, p, s) for p in places for s in range(5)],
        Insert([3, 0]): [(0, p, s) for p in places for s in (0, 3)],
        Repeat(2): [(0, p, int(WORD[p])) for p in places if WORD[p] < 5],
    }[flips]
    assert (listed(result), result.asked.flips.copies, result.engine.name) == (expected, copies, "vmap")
    assert result.exhaustive
    np.testing.assert_allclose(result.norms, truth(model, [WORD], expected, copies), rtol=1e-9, atol=1e-15)


LONG = np.array([0, 4, 2, 1, 3, 3, 0, 1, 1, 2, 4, 0, 3, 2, 2, 1, 4, 5])
LOG = Softmax(SCHEDULES["log"])
MASKED = [
    ("future", {"layers": 2, "weighting": LOG}),
    ("past", {"readout": 0, "positions": ("length", "fraction")}),
    ("strict-future", {"weighting": Sigmoid()}),
    ("strict-past", {"readout": "mean", "weighting": LOG}),
    ("none", {"layers": 1}),
    (SlidingWindow(3), {"layers": 3}),
    (TwoSidedWindow(2), {"layers": 2}),
]
EDITS = Delete(), Repeat(2), Pairs([(3, 0), (15, 4)]), Substitute(groups=[(1, 2, 3), (7,), (15, 4)])


@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning", "ignore::jaxsens.UnchangedWarning")
@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(("mask", "options"), MASKED)
def test_rows_that_an_edit_changes_give_what_forward_passes_differ_by(mask, options):
    model = Transformer(CONFIG.replace(mask=mask, **options), seed=3)
    words = np.stack([LONG, LONG[::-1] if "readout" in options else LONG])
    for flips in EDITS:
        expected = flip_sensitivity(model, words, flips=flips, engine="vmap")
        found = flip_sensitivity(model, words, flips=flips, engine="incremental")
        assert found.engine.name == "incremental"
        np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-9, atol=1e-13, err_msg=str(flips))


def test_auto_recomputes_only_changed_rows_where_a_mask_leaves_many_as_they_are():
    config = small(width=32, layers=3, dtype="float32")
    for flips in (Delete(), Insert(), Substitute(groups=[(i, i + 1) for i in range(0, 500, 2)])):
        for mask, name in (("future", "incremental"), ("none", "vmap")):
            model = Transformer(config.replace(mask=mask), seed=0)
            assert jaxsens.explain(model, 512, flips, engine=jaxsens.Auto(calls=1000)).engine.name == name


@pytest.mark.long
def test_several_inputs_a_sample_and_a_file(tmp_path):
    words = np.stack([WORD, [1, 1, 0, 2, 4, 3, 5]])
    whole = flip_sensitivity(MODEL, words, flips=Repeat(), measure="linf")
    assert listed(whole) == [(b, p, int(words[b, p])) for b in range(2) for p in range(N - 1)]
    drawn = flip_sensitivity(MODEL, words, flips=Insert(sample=9, seed=4))
    assert (len(drawn), drawn.population, len(set(listed(drawn)))) == (9, 2 * N * 5, 9)
    np.testing.assert_allclose(drawn.norms, truth(MODEL, words, listed(drawn), 1), rtol=1e-9)
    whole.save(tmp_path / "r.parquet")
    loaded = load_result(tmp_path / "r.parquet")
    assert (loaded.asked.flips.copies, loaded.description()) == (1, whole.description())
    assert loaded.of_input(1).asked.flips.copies == 1
    assert loaded.to_pandas().equals(whole.to_pandas())


def test_reserved_symbols_are_not_inserted_and_special_ones_not_repeated():
    model = dataclasses.replace(as_model(MODEL), reserved=(0, 2), special=(0, 2))
    inserted = flip_sensitivity(model, WORD, flips=Insert())
    assert {*inserted.symbols.tolist()} == {1, 3, 4}
    assert {*inserted.positions.tolist()} == {
        *range(1, 7)
    }  # not before the special symbol that begins the word
    named = flip_sensitivity(model, WORD, flips=Insert([2], positions=[0]))
    assert listed(named) == [(0, 0, 2)]
    repeated = flip_sensitivity(model, WORD, flips=Repeat())
    assert repeated.positions.tolist() == [1, 3, 4, 5]


@pytest.mark.long
def test_models_of_others_and_their_functions():
    table = np.asarray(np.random.default_rng(0).normal(size=(6, 3)), np.float32)
    rows = lambda tokens: jnp.cumsum(jnp.asarray(table)[tokens], axis=0)  # noqa: E731
    result = flip_sensitivity(rows, WORD, flips=Insert([1, 4]), readout="last")
    np.testing.assert_allclose(
        result.norms, np.linalg.norm(table, axis=1)[result.symbols], rtol=1e-5, atol=1e-6
    )
    signed = flip_sensitivity(
        rows, WORD, flips=Repeat(2, positions=[3]), measure=Function(lambda y: y[0]), readout="last"
    )
    np.testing.assert_allclose(signed.values, [2 * table[1, 0]], rtol=1e-5)
    assert "2 copies of a token before the position" in signed.view().flipped_input


# Refusals


def bounded(tokens):
    """A model that reads four positions at most."""
    return jnp.asarray(np.arange(4.0))[jnp.arange(tokens.shape[0])] @ tokens.astype(jnp.float32)


@pytest.mark.parametrize(
    ("model", "word", "options", "named"),
    [
        *(
            (MODEL, WORD, {"engine": engine, "flips": flips}, f'engine = "{engine}"')
            for engine in ("difference", "first-order")
            for flips in (Delete(), Insert([1]), Substitute(groups=[(0, 1)]))
        ),
        (MODEL, [3], {"flips": Delete()}, "tokens = "),
        (lambda t: t * 1.0, WORD, {"readout": 3, "flips": Delete()}, "readout = 3"),
        (lambda t: t[:, None] * 1.0, WORD, {"readout": 0, "flips": Delete(positions=[0])}, "positions = 0"),
        (lambda t: t * 1.0, WORD, {"readout": 0, "flips": Insert([1], positions=[0])}, "positions = 0"),
        (lambda t: (t * 1.0).reshape(7), WORD, {"readout": None, "flips": Delete()}, "shape (6,)"),
        (MODEL, WORD, {"flips": Insert([9])}, "flips.symbols = 9"),
        (lambda t: jnp.sum(t) * 1.0, WORD, {"flips": Insert(), "readout": None}, "flips = Insert()"),
        (dataclasses.replace(as_model(MODEL), max_length=N + 1), WORD, {"flips": Repeat(2)}, "Repeat(2)"),
        (bounded, [1, 2, 0, 1], {"readout": None}, "tables are large enough"),
    ],
)
@pytest.mark.needs("first_order")
def test_what_cannot_be_measured_is_refused_by_name(model, word, options, named):
    with pytest.raises(InputError) as caught:
        flip_sensitivity(model, word, **{"flips": Insert([1]), **options})
    assert named in str(caught.value)
    assert "errors" not in str(caught.value)
    assert isinstance(caught.value, jaxsens.EngineRefusal) == ("engine" in options)
