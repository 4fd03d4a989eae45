"""Changes of every row in every layer: against plain loops, and against what Lemma 5's induction says of them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, Transformer
from jaxsens.analysis.layers import layer_changes
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.placement.placement import Placement
from tests import reference
from tests.small_models import random_parameters, small
from tests.tolerances import REFERENCE

WORD = np.array([0, 2, 1, 1, 0, 3])  # 3 is the end-of-sequence symbol


def model_of(**changes: Any) -> Transformer:
    config = small(**changes)
    return Transformer(config, parameters=random_parameters(config))


@functools.cache
def default_model() -> Transformer:
    """Softmax, no masks, no normalisation."""
    return model_of()


def by_loops(model: Transformer, word: np.ndarray, position: int, symbol: int, norm: str) -> np.ndarray:
    """The change of every row of every layer, by the reference in longdouble."""
    parameters = jax.tree.map(lambda p: np.asarray(p, np.longdouble), model.parameters)
    flipped = word.copy()
    flipped[position] = symbol
    before, after = (reference.levels(model.config, parameters, w, np.longdouble) for w in (word, flipped))
    return np.array(
        [
            [reference.norm_of(b - a, norm) for a, b in zip(rows, rows2, strict=True)]
            for rows, rows2 in zip(before, after, strict=True)
        ]
    )


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=REFERENCE.relative, atol=REFERENCE.absolute)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("changes", "norm"),
    [
        ({"layer_norm": "post"}, "l2"),
        ({"weighting": ("average-hard", "leftmost-hard"), "mask": "future"}, "linf"),
        ({"weighting": "sparsemax", "readout": "mean"}, "l1"),
        ({"weighting": "temperature-log", "mask": ("past", "strict-future"), "positions": "rotary"}, "l2"),
    ],
)
def test_every_row_of_every_layer_changes_as_in_plain_loops(changes, norm):
    model = model_of(**changes)
    result = layer_changes(model, WORD, measure=norm, keep=range(10), placement=Placement(batch_size=4))
    # Five positions hold a symbol of the alphabet, each has two others; the end-of-sequence symbol stays.
    assert list(zip(result.positions, result.symbols, strict=True)) == [
        (i, s) for i in range(5) for s in range(3) if s != WORD[i]
    ]
    assert result.changes.shape == (10, 3, 6)
    for f, (i, s) in enumerate(zip(result.positions, result.symbols, strict=True)):
        expected = by_loops(model, WORD, int(i), int(s), norm)
        others = np.delete(expected, i, axis=1)
        assert_close(result.changes[f], expected)
        assert_close(result.own[f], expected[:, i])
        assert_close(result.others_max[f], others.max(axis=1))
        assert_close(result.others_mean[f], others.mean(axis=1))


def test_the_last_layer_is_what_flip_sensitivity_measures():
    model = default_model()
    result = layer_changes(model, WORD, keep=range(10))
    measured = jaxsens.flip_sensitivity(model, WORD, engine="vmap")
    np.testing.assert_allclose(result.changes[:, -1, -1], measured.norms, rtol=1e-8, atol=1e-13)


def test_positions_symbol_and_samples_choose_flips_and_batches_change_nothing():
    model = default_model()
    everything = layer_changes(model, WORD)
    chosen = layer_changes(
        model, WORD, flips=Substitute([1], positions=[4, 1, 2]), placement=Placement(batch_size=3)
    )
    assert list(zip(chosen.positions, chosen.symbols, strict=True)) == [(1, 1), (4, 1)]
    same = [list(everything.positions).index(1) + 1, list(everything.positions).index(4)]
    np.testing.assert_allclose(chosen.own, everything.own[same], rtol=1e-12)
    drawn = layer_changes(model, WORD, flips=Substitute(sample=3, seed=1))
    assert (len(drawn), drawn.population, drawn.changes.shape) == (3, 10, (0, 3, 6))
    ended = layer_changes(model, WORD, flips=Substitute([0], positions=[5]))
    assert (ended.positions[0], ended.own.shape) == (5, (1, 3))


def test_rows_of_the_table_are_flips_and_layers_in_order():
    result = layer_changes(default_model(), WORD, flips=Substitute([2], positions=[0, 3]))
    table = result.to_pandas()
    assert table[["position", "symbol", "layer"]].values.tolist() == [
        [i, 2, k] for i in (0, 3) for k in range(3)
    ]
    for name in ("own", "others_max", "others_mean"):
        assert table[name].tolist() == getattr(result, name).ravel().tolist()
    assert table["others_max"].tolist()[0] == 0
    assert "2 flips, L=2, l2" in repr(result)


def test_one_symbol_alone_has_no_others():
    result = layer_changes(model_of(readout="mean"), [1])
    assert len(result) == 2
    assert not result.others_max.any()
    assert not result.others_mean.any()
    assert result.own.all()


def test_float32_models_are_measured_in_float32():
    config = small(dtype="float32")
    result = layer_changes(Transformer(config), WORD)
    assert result.dtype == str(result.own.dtype) == "float32"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tokens": [[0, 1]]}, ["tokens = "]),
        ({"tokens": [0.5]}, ["tokens = "]),
        ({"tokens": [[0, 1], [1]], "keep": [[0], 1]}, ["tokens = ", "keep = "]),
        ({"tokens": [0, 1, 1], "flips": {1: [1]}}, ["nothing to flip"]),
        ({"tokens": [0, 1, 1], "keep": [4]}, ["keep", "there are 4 flips"]),
        ({"tokens": [0, 1], "flips": Substitute(positions=[2])}, ["positions = 2"]),
        ({"model": len, "tokens": [0, 1]}, ["model = "]),
        ({"tokens": [0, 1], "measure": jaxsens.L2(outputs=[0])}, ["measure = L2(outputs=[0])"]),
        ({"tokens": [0, 1], "flips": "delete"}, ["flips = Delete()"]),
        (
            {"tokens": [0, 9], "flips": Substitute([7], positions=[2]), "measure": "l3", "keep": [0.5]},
            ["tokens = 9", "positions = 2", "symbols = 7", "measure = 'l3'", "keep = [0.5]"],
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_with_every_wrong_argument(arguments, named):
    with pytest.raises(InputError) as caught:
        layer_changes(**{"model": default_model(), **arguments})
    assert all(one in str(caught.value) for one in named), caught.value


def test_activations_that_overflow_are_refused():
    config = small(dtype="float64")
    huge = jax.tree.map(lambda p: 1e200 * p, random_parameters(config))
    with pytest.raises(InputError, match="not finite"):
        layer_changes(Transformer(config, parameters=huge), WORD)
