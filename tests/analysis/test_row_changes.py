"""Changes of every row, of the output and of every layer, against a double loop in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot

import jaxsens
from jaxsens.analysis import influence_matrix, layer_changes
from jaxsens.core.base import errors
from jaxsens.core.models.parts.masks import SlidingWindow
from tests import reference
from tests.refusals import refused
from tests.small_models import random_parameters, small
from tests.together.flip_sensitivity.test_texts import SPELLER

WORD = np.array([0, 2, 1, 1, 0, 3])  # 3 ends the word: it is not flipped


def model_of(**changes: Any) -> jaxsens.Transformer:
    config = small(**changes)
    return jaxsens.Transformer(config, parameters=random_parameters(config))


def by_loops(model: jaxsens.Transformer, norm: str) -> np.ndarray:
    """The norm of the change of every row of every level under each flip: one flip, level and row at a time."""
    config, parameters = model.config, jax.tree.map(lambda p: np.asarray(p, np.longdouble), model.parameters)
    before, found = reference.levels(config, parameters, WORD, np.longdouble), []
    for i in range(len(WORD) - 1):
        for s in range(config.alphabet_size):
            if WORD[i] != s:
                flipped = np.where(np.arange(len(WORD)) == i, s, WORD)
                after = reference.levels(config, parameters, flipped, np.longdouble)
                found.append(
                    [
                        [reference.norm_of(b - a, norm) for a, b in zip(old, new, strict=True)]
                        for old, new in zip(before, after, strict=True)
                    ]
                )
    return np.array(found, float)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("changes", "norm"),
    [
        ({"mask": "future", "layer_norm": "pre", "weighting": ("softmax", "average-hard")}, "linf"),
        ({"layer_norm": "post"}, "l2"),
        ({"mask": "strict-past", "weighting": ("average-hard", "leftmost-hard")}, "linf"),
        ({"weighting": "sparsemax", "readout": "mean"}, "l1"),
        ({"weighting": "temperature-log", "mask": ("past", "strict-future"), "positions": "rotary"}, "l2"),
    ],
)
def test_every_flip_level_and_row_as_the_double_loop_has_it(changes, norm):
    model, placement = model_of(**changes), jaxsens.Placement(batch_size=4)
    expected = by_loops(model, norm)
    found = layer_changes(model, WORD, measure=norm, placement=placement)
    places = [(i, s) for i in range(5) for s in range(3) if s != WORD[i]]
    assert list(zip(found.positions, found.symbols, strict=True)) == places
    np.testing.assert_allclose(found.norms, expected, rtol=1e-9, atol=1e-13)
    for flip, (i, _) in enumerate(places):
        others = np.delete(expected[flip], i, axis=1)
        np.testing.assert_allclose(found.own[flip], expected[flip][:, i], rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(found.others_mean[flip], others.mean(axis=1), rtol=1e-9, atol=1e-13)
    rows = influence_matrix(model, WORD, measure=norm, placement=placement)
    np.testing.assert_allclose(rows.norms[:, 0], expected[:, -1], rtol=1e-9, atol=1e-13)
    for statistic, over in (("mean", np.mean), ("max", np.max)):
        matrix = rows.matrix(statistic)  # pyright: ignore[reportArgumentType]
        for i in range(5):
            own = over(expected[[place[0] == i for place in places], -1], axis=0)
            np.testing.assert_allclose(matrix[i], own, rtol=1e-9, atol=1e-13)
        assert np.isnan(matrix[5]).all()
    if changes.get("mask") == "future":
        assert (rows.matrix()[:5][np.tril_indices(5, -1)] == 0).all()  # no row sees what comes after it
    assert rows.by_distance()[2] == pytest.approx(np.mean([rows.matrix()[i, i + 2] for i in range(4)]))


def test_tables_pictures_and_texts():
    found = layer_changes(model_of(), WORD, flips=jaxsens.Substitute([2], positions=[0, 3]))
    table = found.to_pandas()
    assert len(table) == found.norms.size == 2 * 3 * 6
    at = table.query("position == 3 and level == 1 and row == 4")
    assert at[["symbol", "measure"]].values.tolist() == [[2, found.norms[1, 1, 4]]]
    assert "n=6, 2 flips, 3 levels, l2" in repr(found)
    spelled = influence_matrix(SPELLER, "cabba", flips=3)
    assert spelled.names == {0: "a", 1: "b", 2: "c"}
    assert spelled.norms.shape == (10, 1, 5)
    axes = spelled.plot()
    assert [label.get_text() for label in axes.get_xticklabels()] == list("cabba")
    assert np.asarray(axes.images[0].get_array()).shape == (5, 5)
    masked = influence_matrix(SPELLER, "cabba", flips=jaxsens.Substitute(3, positions=[1]))
    assert len(masked.plot(pyplot.subplots()[1], "max").patches) == 4  # positions that were not flipped
    pyplot.close("all")


def test_a_row_that_no_flip_reaches_changes_by_exactly_0():
    # Here the batch of all flips rounds in other places than the pass on the input: by up to 1e-5 before it was masked.
    config, word = jaxsens.TransformerConfig(2, heads=4, mask=("future", SlidingWindow(3))), np.arange(33) % 2
    found = influence_matrix(jaxsens.Transformer(config, seed=0), word).matrix()
    assert (found[np.tril_indices(33, -1)] == 0).all()
    assert (found[np.triu_indices(33)] > 0).all()
    windows = layer_changes(jaxsens.Transformer(config.replace(mask=SlidingWindow(3)), seed=0), word)
    for level in range(3):  # two positions a layer
        reached = np.isin(np.arange(33) - np.arange(33)[:, None], range(2 * level + 1))
        np.testing.assert_array_equal(windows.norms[:, level] > 0, reached)


def test_a_column_is_the_flip_sensitivity_of_that_row():
    model, flips = model_of(logits=2, readout=2, layers=1), jaxsens.Substitute(positions=[0, 4])
    found = influence_matrix(model, WORD, flips, measure=jaxsens.L2(outputs=[1]))
    own = jaxsens.flip_sensitivity(model, WORD, flips, measure=jaxsens.L2(outputs=[1]), engine="vmap")
    np.testing.assert_allclose(found.norms[:, 0, 2], own.norms, rtol=1e-12)
    np.testing.assert_array_equal(found.positions, own.positions)


@pytest.mark.long
def test_functions_that_return_rows_and_flips_that_are_chosen_or_drawn():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    rows = influence_matrix(lambda tokens: jnp.cumsum(table[tokens], axis=0), [0, 1, 2, 0], flips=[0, 1])
    assert rows.matrix("max")[1, 0] == 0
    moved = float(jnp.linalg.norm(table[1] - table[0]))
    np.testing.assert_allclose(rows.matrix()[1], [0, *[moved] * 3], rtol=1e-5)
    model = model_of()
    drawn = layer_changes(model, WORD, flips=jaxsens.Substitute(sample=3, seed=1))
    assert (len(drawn), drawn.population, drawn.norms.shape) == (3, 10, (3, 3, 6))
    ended = layer_changes(model, WORD, flips=jaxsens.Substitute([0], positions=[5]))
    assert (ended.positions[0], ended.own.shape) == (5, (1, 3))
    alone = layer_changes(model_of(readout="mean"), [1])
    assert not alone.others_mean.any()
    assert alone.own.all()
    narrow = layer_changes(jaxsens.Transformer(small(dtype="float32")), WORD)
    assert narrow.dtype == str(narrow.norms.dtype) == "float32"


MODEL = jaxsens.Transformer(small())


@pytest.mark.parametrize(
    ("call", "names", "arguments"),
    [
        (influence_matrix, "measure tokens", {"tokens": [WORD, WORD], "measure": "l3"}),
        (influence_matrix, "model", {"model": lambda t: jnp.ones(2) * t.sum(), "tokens": [0, 1], "flips": [0, 1]}),
        (layer_changes, "tokens", {"tokens": [[0, 1]]}),
        (layer_changes, "tokens", {"tokens": [0.5]}),
        (layer_changes, "flips.positions", {"tokens": [0, 1], "flips": jaxsens.Substitute(positions=[2])}),
        (layer_changes, "model", {"model": len, "tokens": [0, 1]}),
        (layer_changes, "measure", {"tokens": [0, 1], "measure": jaxsens.L2(outputs=[0])}),
        (layer_changes, "flips", {"tokens": [0, 1], "flips": "delete"}),
        (
            layer_changes,
            "tokens flips.positions flips.symbols measure",
            {"tokens": [0, 9], "flips": jaxsens.Substitute([7], positions=[2]), "measure": "l3"},
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_with_every_wrong_argument(call, names, arguments):
    refused(names, call, **{"model": MODEL, **arguments})


def test_rows_that_overflow_or_do_not_fit_and_unknown_statistics_are_refused(monkeypatch):
    huge = jax.tree.map(lambda p: 1e200 * p, random_parameters(MODEL.config))
    for call in (influence_matrix, layer_changes):
        refused("model", call, jaxsens.Transformer(MODEL.config, parameters=huge), WORD)
    refused("statistic", influence_matrix(MODEL, WORD).matrix, "median")
    monkeypatch.setattr(errors, "machine_memory", lambda: 1000)
    for call in (influence_matrix, layer_changes):
        refused("tokens", call, MODEL, WORD)
