"""Certified bounds where numbers leave the range of floating point, and arguments of every make."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jaxsens import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.theory.certified import averages, first_layer
from jaxsens.theory.certified.bound import certified_bound
from tests.refusals import refused
from tests.small_models import small
from tests.theory.certified_truth import scaled_model, truth, undercut


def far_scores(near: float, far: float, values: float, layers: int = 1) -> Transformer:
    """Symbols 0, 1, 2 score 0, far, near and have values 0, -1, 1 times a number; a later layer passes all on."""
    width = 4
    config = TransformerConfig(
        alphabet_size=3,
        width=width,
        heads=1,
        layers=layers,
        feed_forward=0,
        positions="none",
        mask="strict-future",
        dtype="float64",
    )
    zero = np.zeros((1, width, width))
    embedding, query, key, value = np.zeros((4, width)), zero.copy(), zero.copy(), zero.copy()
    embedding[1, :2], embedding[2, :2], embedding[3, 2] = (far, -1), (near, 1), 1
    query[0, 2, 0], key[0, 0, 0], value[0, 1, 1] = np.sqrt(width), 1, values
    parameters = Transformer(config, seed=0).parameters
    parts = {"query": query, "key": key, "value": value, "output": np.eye(width)[None]}
    first = dataclasses.replace(parameters.layers[0], **parts)
    rest = [dataclasses.replace(layer, query=zero, key=zero, value=zero) for layer in parameters.layers[1:]]
    return Transformer(
        config, parameters=dataclasses.replace(parameters, embedding=embedding, layers=(first, *rest))
    )


@pytest.fixture(params=["host", "compiled"])
def arithmetic(request, monkeypatch):
    """NumPy's, and that of compiled programs."""
    if request.param == "compiled":
        monkeypatch.setattr(averages, "ON_HOST", 0)
        monkeypatch.setattr(first_layer, "ON_HOST", 0)


@pytest.mark.quick(3)
@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize(
    ("near", "far", "values", "layers"),
    [
        (-750, -800, 1.0, 1),
        (-640, -650, 1e-40, 1),
        (-670, -690, 1e-12, 1),
        (-330, -340, 1e-140, 1),
        (-750, -800, 1.0, 2),
    ],
)
def test_keys_whose_exponentials_underflow_still_count(near, far, values, layers):
    model, n = far_scores(near, far, values, layers), 6
    word = np.array([1] * (n - 1) + [3])
    flipped = np.array([1, 1, 2, 1, 1, 3])
    # The key with the larger score takes all the weight.
    moved = np.linalg.norm(np.asarray(model(flipped)) - np.asarray(model(word)))
    assert moved > 1.9 * values
    bound = certified_bound(model, n, readout_symbols=[3])
    assert bound.by_position[2] >= moved * (1 - 1e-9)


@pytest.mark.usefixtures("arithmetic")
def test_keys_that_are_not_seen_do_not_count_however_large_their_scores():
    config = small(alphabet_size=2, layers=1, positions="index", mask="future", readout=1, layer_norm="none")
    parameters = Transformer(config, seed=0).parameters
    layer = parameters.layers[0]
    far = dataclasses.replace(layer, query=np.asarray(layer.query) * 600, key=np.asarray(layer.key) * 600)
    model = Transformer(config, parameters=dataclasses.replace(parameters, layers=(far,)))
    bound = certified_bound(model, 5)
    np.testing.assert_array_equal(bound.by_position[2:], 0)
    assert undercut(model, 5) <= 1


def grown(factor: float, only: tuple[str, ...] = (), **changes: object) -> Transformer:
    """A random model whose parameters, all or those of the layers named, are multiplied by a factor."""
    model = scaled_model(3, **{"layer_norm": "none", **changes})

    def grow(path, leaf):
        chosen = not only or any(name in jax.tree_util.keystr(path) for name in only)
        return np.asarray(leaf) * (factor if chosen else 1)

    parameters = jax.tree_util.tree_map_with_path(grow, model.parameters)
    return Transformer(model.config, parameters=parameters)


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_scores_that_overflow_do_not_certify_nothing(layers, classes):
    model, moderate = (grown(factor, ("query", "key"), layers=layers) for factor in (1e160, 1e100))
    bound = certified_bound(model, 4, classes=classes)
    assert np.isnan(bound.by_position).tolist() == [False, False, False, True]
    # The limit is reached long before: weights that go to the largest score alone.
    assert bound.value >= np.nanmax(truth(moderate, 4, [0, 1])) > 0.1


@pytest.mark.quick(8)
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("readout", ["last", "mean"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("factor", [1e60, 1e120, 1e160])
def test_values_that_overflow_are_bounded_by_infinity_or_soundly(factor, layers, readout, norm):
    model = grown(factor, layers=layers, readout=readout)
    bound = certified_bound(model, 4, measure=norm)
    flippable = bound.by_position[: 4 if readout == "mean" else 3]
    assert (flippable > 0).all()
    with np.errstate(all="ignore"):
        # By the largest coordinate, for the enumeration's squares overflow.
        actual = np.nanmax(truth(model, 4, [0, 1], norm="linf")[: len(flippable)], initial=0.0)
    assert bound.value >= actual * (1 - 1e-9)
    if factor == 1e160:
        assert np.isinf(flippable).all()
        assert bound.diameter == bound.value == np.inf


def test_values_that_overflow_before_a_normalisation_are_not_laid_to_its_epsilon():
    for kind in ("pre", "post"):
        bound = certified_bound(grown(1e160, layers=1, layer_norm=kind, layer_norm_epsilon=1e-5), 4)
        assert bound.value == np.inf
        assert (bound.by_position[:3] == np.inf).all()


def test_one_symbol_has_one_class():
    bound = certified_bound(scaled_model(0, layers=1), 4, [0], classes=2)
    assert bound.value == 0
    assert [c[:2] for c in bound.classes] == [(0, 4)]


def test_numpy_integers_are_whole_numbers():
    model = scaled_model(0, layers=1)
    plain = certified_bound(model, 4, fixed={1: 0}, classes=2)
    given = certified_bound(
        model,
        np.int64(4),  # type: ignore[arg-type]
        fixed={np.int32(1): np.int64(0)},  # type: ignore[dict-item]
        classes=np.int64(2),  # type: ignore[arg-type]
    )
    np.testing.assert_array_equal(plain.by_position, given.by_position)
    assert type(given.n) is int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed": [1, 2]}, "fixed"),
        ({"fixed": 3}, "fixed"),
        ({"fixed": {"0": 1}}, "fixed"),
        ({"fixed": {0: 1.0}}, "fixed"),
        ({"flips": [[0], [0, 1]]}, "flips.symbols"),
        ({"flips": [[0, 1]]}, "flips.symbols"),
        ({"flips": ["a", None]}, "flips.symbols"),
        ({"flips": {0, 1}}, "flips.symbols"),
        ({"flips": [True]}, "flips.symbols"),
        ({"measure": {"kind": "l2", "outputs": [0.5]}}, "measure.outputs"),
        ({"classes": 1.5}, "classes"),
        ({"measure": ["l2"]}, "measure"),
    ],
)
def test_other_arguments_are_refused_by_name(options, message):
    refused(message, certified_bound, scaled_model(0, layers=1), 4, **options)
