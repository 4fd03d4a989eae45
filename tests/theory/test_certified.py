"""No word may move by more than is certified: against all words of short lengths, for models of every kind; and the
bound falls like 1/n. Also where numbers leave the range of floating point.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.positions import Sinusoidal
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer.parameters import needed
from jaxsens.theory.certified import averages, first_layer, layerwise
from jaxsens.theory.certified.bound import certified_bound
from jaxsens.theory.lemma5 import lemma5
from tests.refusals import refusal, refused
from tests.small_models import random_parameters, small
from tests.theory.certified_truth import drawn, scaled_model, truth, undercut


@pytest.mark.quick(6)
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_no_word_exceeds_the_bound(layers, seed):
    model, options = drawn(100 * layers + seed, layers)
    assert undercut(model, 5, **options) <= 1


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize("seed", range(8))
def test_no_word_exceeds_the_bound_of_two_plain_layers(seed):
    # The kinds that the two-layer form serves, which a free draw seldom meets.
    readout = [0, 2, "last"][seed % 3]
    model, options = drawn(seed, 2, layer_norm="none", scores="dot-product", readout=readout)
    assert undercut(model, 4 + seed % 3, **options) <= 1


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize(("layers", "scale", "norm"), [(2, 0.3, "none"), (1, 1.0, "pre"), (1, 1.0, "none")])
def test_no_word_exceeds_a_bound_that_is_nearly_reached(layers, scale, norm):
    # A bound that loses a part of its largest term is exceeded by one of these.
    for seed in range(4):
        model = scaled_model(seed, scale, scale, layers=layers, feed_forward=0, layer_norm=norm)
        assert undercut(model, 5) <= 1


def bent_model(seed):
    """Two layers whose outputs move by what the second one's hidden units do, most of which may change sign."""
    config = small(
        alphabet_size=2, heads=1, width=4, feed_forward=3, end_symbol=False, positions="sinusoidal"
    )
    parameters, rng = random_parameters(config, seed, 4), np.random.default_rng(seed)
    first, second = parameters.layers
    first = dataclasses.replace(first, query=first.query * 0.03, w2=needed(first.w2, "w2") * 0.1)
    changes = {"query": second.query * 0.01, "value": second.value * 0.3, "w2": needed(second.w2, "w2") * 100}
    second = dataclasses.replace(second, **changes, b1=rng.normal(size=3))
    return Transformer(config, parameters=dataclasses.replace(parameters, layers=(first, second)))


def spread(model, n):
    words = np.array(list(itertools.product((0, 1), repeat=n)))
    outputs = np.asarray(model(words))
    sides = (outputs[words[:, -1] == kind] for kind in (0, 1))
    return max(np.linalg.norm(one[:, None] - one[None], axis=-1).max() for one in sides)


@pytest.mark.parametrize("seed", [10, 82, 332])
def test_hidden_units_that_may_change_sign_are_counted_in_full(seed):
    model = bent_model(seed)
    found = certified_bound(model, 4, classes=1)
    assert undercut(model, 4, found) <= 1
    assert spread(model, 4) <= found.diameter


@pytest.mark.quick(1)
@pytest.mark.parametrize("layers", [1, 2])
def test_three_symbols_and_a_choice_of_them(layers):
    model = scaled_model(3, 0.3, 0.3, alphabet_size=3, layers=layers, layer_norm="none")
    assert undercut(model, 4, classes=2) <= 1
    all_three, two = certified_bound(model, 4).value, certified_bound(model, 4, [0, 2]).value
    assert np.nanmax(truth(model, 4, [0, 2])) <= two <= all_three


def test_outputs_restrict_the_norm():
    model = scaled_model(0, layers=1)
    one = certified_bound(model, 4, measure=L2(outputs=[2])).value
    assert one < certified_bound(model, 4).value
    setattr(model, "outputs", (2,))  # noqa: B010 - as compiled models designate theirs
    assert certified_bound(model, 4).value == one


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_compiled_and_host_arithmetic_agree(layers, monkeypatch):
    model = scaled_model(1, 0.3, 0.3, layers=layers)
    host = [certified_bound(model, 5, classes=classes).by_position for classes in (1, 2)]
    # With classes a multiplier is picked by comparing numbers, which rounding may tip.
    monkeypatch.setattr(averages, "ON_HOST", 0)
    monkeypatch.setattr(first_layer, "ON_HOST", 0)
    compiled = [certified_bound(model, 5, classes=classes).by_position for classes in (1, 2)]
    np.testing.assert_allclose(host[0], compiled[0], rtol=1e-8)
    np.testing.assert_allclose(host[1], compiled[1], rtol=1e-2)


def test_classes_are_a_partition_and_tighten():
    model = scaled_model(2, layers=1)
    whole, split = certified_bound(model, 6), certified_bound(model, 6, classes=6)
    assert [c[0] for c in split.classes] == [0, 1, 2, 3, 4, 5]
    assert [c[1] for c in split.classes] == [0, 1, 2, 3, 4, 6]
    assert split.value <= max(c[2] for c in split.classes)
    assert split.value <= whole.value


def test_one_position_has_nothing_to_flip():
    bound = certified_bound(scaled_model(0, layers=2), 1)
    assert bound.value == 0
    assert np.isnan(bound.by_position).all()


@pytest.mark.long
def test_huge_scores_give_the_diameter_not_nan():
    model = scaled_model(0, 1e8, layers=2, weighting="temperature-cubic")
    bound = certified_bound(model, 5)
    assert np.isfinite(bound.value)
    assert bound.value <= bound.diameter
    assert undercut(model, 5, bound) <= 1


def test_weightings_that_jump_sinks_and_wrong_arguments_are_refused_by_name():
    sinks = ("softmax-off-by-one", SinkSoftmax(learned=True))
    for weighting in ("leftmost-hard", "average-hard", "sparsemax", *sinks):
        with refusal("weighting of layer 1"):
            certified_bound(Transformer(small(weighting=("softmax", weighting))), 4)
    model, wrong = Transformer(small()), {"classes": 0, "readout_symbols": [0]}
    refused("classes flips.symbols measure n", certified_bound, model, 0, [7], "l3", **wrong)
    assert "a jaxsens Transformer" in refused("model", certified_bound, lambda tokens: tokens, 4)
    refused("readout_symbols", certified_bound, Transformer(small(readout="mean")), 4, readout_symbols=[0])
    config = small(layer_norm="post", layer_norm_epsilon=0.0)
    refused("layer_norm_epsilon", certified_bound, Transformer(config), 4)


def test_a_float32_model_is_bounded_as_its_parameters_define_it():
    config = dataclasses.replace(small(alphabet_size=2, layers=1), dtype="float32")
    model = Transformer(config, seed=1)
    wide = Transformer(config.replace(dtype="float64"), parameters=model.parameters)
    assert np.nanmax(truth(wide, 5, [0, 1])) <= certified_bound(model, 5).value


@pytest.mark.parametrize(
    "changes", [{"layers": 2, "layer_norm": "post"}, {"layers": 3, "layer_norm": "pre", "readout": "mean"}]
)
def test_where_lemma_5_is_smaller_it_is_the_bound(changes, monkeypatch):
    model = Transformer(small(width=4, heads=1, **changes), seed=0)
    known = lemma5(model, 8, measure="l1").bound
    found = certified_bound(model, 8, measure="l1", fixed={2: 1})
    assert found.value == known
    assert found.how == "Lemma 5"
    assert [value for *_, value in found.classes] == [known]
    assert np.isnan(found.by_position[2])
    assert np.nanmax(found.by_position) == known
    monkeypatch.setattr("jaxsens.theory.certified.bound._of_lemma5", lambda *_: np.inf)
    assert certified_bound(model, 8, measure="l1", fixed={2: 1}).value > known


@pytest.mark.parametrize("layers", [1, 2])
def test_where_lemma_5_is_larger_the_bound_says_what_gave_it(layers):
    model = Transformer(small(layers=layers), seed=0)
    found = certified_bound(model, 4)
    assert found.value < lemma5(model, 4).bound
    assert "Lemma 5" not in found.how


def test_what_is_certified_of_a_heads_values_and_keys_spans_those_of_real_words(monkeypatch):
    # Looser steps later would hide a radius that is too small, so it is held against the words here.
    seen, made = [], layerwise._HeadFacts

    def keeping(projections, h, into):
        seen.append((projections, h, made(projections, h, into)))
        return seen[-1][-1]

    monkeypatch.setattr(layerwise, "_HeadFacts", keeping)
    model = scaled_model(0, layers=3, layer_norm="none")
    certified_bound(model, 4)
    assert seen
    for projections, h, facts in seen:
        output = np.asarray(model.parameters.layers[projections.k].output[h], np.float64)
        for radius, vectors in (
            (facts.spread, projections.values[h].mid @ output),
            (facts.keys, projections.keys[h].mid),
        ):
            apart = vectors[projections.setting.allowed]
            widest = np.linalg.norm(apart[:, None] - apart[None], axis=-1).max()
            assert 2 * radius >= widest * (1 - 1e-12)


# A short longest period: all positions that there are have been seen at n = 100, and only the length grows.
SETTLED = {"positions": Sinusoidal(base=50.0), "readout": 0, "layer_norm": "none"}


def slope(lengths: list[int], **changes) -> float:
    values = [certified_bound(scaled_model(0, **SETTLED, **changes), n, classes=1).value for n in lengths]
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("heads", [1, 2])
def test_one_layer_falls_like_1_over_n(heads):
    assert slope([512, 1024, 2048, 4096], layers=1, heads=heads, queries=0.3) == pytest.approx(-1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "queries", "values", "lengths", "apart"),
    [(2, 0.01, 0.03, [128, 256, 512], 0.05), (3, 0.001, 0.01, [256, 512], 0.1)],
)
def test_deeper_models_fall_like_1_over_n(layers, queries, values, lengths, apart):
    # Scores and values small enough that the bound lies below the diameter at these lengths.
    found = slope(lengths, layers=layers, queries=queries, values=values)
    assert found == pytest.approx(-1, abs=apart)


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


UNUSABLE: dict[str, list[Any]] = {
    "fixed": [[1, 2], 3, {"0": 1}, {0: 1.0}],
    "flips.symbols": [[[0], [0, 1]], [[0, 1]], ["a", None], {0, 1}, [True]],
    "measure.outputs": [{"kind": "l2", "outputs": [0.5]}],
    "measure": [["l2"]],
    "classes": [1.5],
}


@pytest.mark.parametrize(("path", "value"), [(path, value) for path in UNUSABLE for value in UNUSABLE[path]])
def test_other_arguments_are_refused_by_name(path, value):
    argument, _, _ = path.partition(".")
    refused(path, certified_bound, scaled_model(0, layers=1), 4, **{argument: value})
