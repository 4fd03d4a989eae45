"""The folded form: exact where it does not decline, and what it declines is measured by whole rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import (
    Placement,
    PrecisionWarning,
    Softmax,
    Substitute,
    Transformer,
    TransformerConfig,
    flip_sensitivity,
)
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.difference import folded
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.difference.folded import FoldedEngine
from jaxsens.core.engines.difference.one_key import first_rows
from jaxsens.core.engines.engine import FlipBlock
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from jaxsens.core.models.parts.positions import Learned
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer.parameters import initialise, parameters_from_numpy
from jaxsens.core.placement import program, run
from tests.core.flip_sensitivity.conformance import sharpened
from tests.core.flip_sensitivity.formula import mesh_of
from tests.small_models import small, word
from tests.tolerances import CARRIED

BLOCK = 16
ONE_DEVICE = mesh_of(1)


def flips_of(tokens: np.ndarray, positions: Any) -> tuple[np.ndarray, np.ndarray]:
    """One flip at each position."""
    return np.asarray(positions), np.where(tokens[positions] == 0, 1, 0)


def measured(engine: Any, config: TransformerConfig, tokens: np.ndarray, positions: Any) -> np.ndarray:
    """The norms of one flip at each position, without the engine's fallback.

    In blocks of neighbouring positions: under a mask, those late in the word leave rows out.
    """
    places, symbols = (
        np.resize(array, (-(-len(array) // BLOCK), BLOCK, 1)) for array in flips_of(tokens, positions)
    )
    with numerics(config.dtype):
        parameters, prepared, *_ = program.prepared_on(
            ONE_DEVICE, engine, initialise(config, 0), tokens[None]
        )
        prepared = jax.tree.map(lambda leaf: leaf[0], prepared)
        norms = jax.jit(lambda *given: engine.shared.measured(*given)[0])
        blocks = [
            norms(parameters, prepared, FlipBlock(*block)) for block in zip(places, symbols, strict=True)
        ]
        return np.concatenate(blocks)[: len(positions)]


def completed(
    config: TransformerConfig, parameters: Any, tokens: np.ndarray, positions: Any
) -> tuple[np.ndarray, dict[str, int]]:
    """The norms of one flip at each position, and how many declined ones were measured by which fallback."""
    places, symbols = flips_of(tokens, positions)
    with numerics(config.dtype):
        values, elsewhere = run.Measuring(
            FoldedEngine(L2(), None, config),
            parameters_from_numpy(parameters, config.dtype),
            tokens[None],
            np.zeros_like(places),
            places[:, None],
            symbols[:, None],
            Placement(ONE_DEVICE),
        ).numbers()
        return values[:, 0], elsewhere


# Lengths that fill the last block of rows and that do not; readouts and masks that end the sums early.
TRIED = {
    "n is no multiple of the rows": (259, {}),
    "past, readout in the middle, sinks": (
        270,
        {"mask": "past", "readout": 100, "weighting": ("softmax-off-by-one", SinkSoftmax(logit=4.0))},
    ),
    "future, logits, alibi at a temperature, hidden units in one layer only": (
        256,
        {
            "mask": "future",
            "logits": 3,
            "positions": ("sinusoidal", "alibi"),
            "layer_positions": ("relative-bias", "none"),
            "weighting": Softmax(Schedule(coefficient=0.5)),
            "feed_forward": (20, 0),
        },
    ),
    "gates in both layers": (256, {"output_gate": "elementwise", "mask": "future"}),
    "learned sinks": (256, {"weighting": SinkSoftmax(logit=1.0, learned=True)}),
    "two-sided windows": (300, {"mask": (TwoSidedWindow(60), TwoSidedWindow(150)), "readout": 120}),
    "windows": (300, {"mask": (SlidingWindow(100), SlidingWindow(250))}),
}
ALSO_TRIED = {
    "no mask": (256, {}),
    "a gate for each head": (
        259,
        {"output_gate": "headwise", "logits": 2, "weighting": "softmax-off-by-one"},
    ),
    "future, n is no multiple of the rows": (290, {"mask": "future"}),
    "strict future, then strict past": (256, {"mask": ("strict-future", "strict-past"), "readout": 9}),
    "temperature": (256, {"weighting": ("softmax", "temperature-log"), "mask": ("none", "future")}),
}


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    "name", [*TRIED, *(pytest.param(name, marks=pytest.mark.slow) for name in ALSO_TRIED)]
)
def test_exact_where_it_does_not_decline(name):
    n, changes = {**TRIED, **ALSO_TRIED}[name]
    config = small(**{"feed_forward": 20, **changes})
    assert folded.refusal(config) is None
    tokens, positions = word(n), np.arange(n - 1)
    quick = measured(FoldedEngine(L2(), None, config), config, tokens, positions)
    exact = measured(DifferenceEngine(L2(), None, config), config, tokens, positions)
    served = ~np.isnan(quick)
    # Else the test would say nothing, and the engine would be of no use.
    assert served.mean() > 0.5
    np.testing.assert_allclose(quick[served], exact[served], rtol=CARRIED["float64"].relative, atol=1e-16)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    "changes",
    [{}, {"mask": "future", "readout": 300}, {"output_gate": "elementwise"}],
    ids=["no mask", "future", "gates"],
)
def test_all_flips_are_right_declined_ones_included(changes):
    n = folded.SHORTEST + 10
    config = small(alphabet_size=2, feed_forward=20, **changes)
    model, tokens, some = Transformer(config, seed=1), word(n, alphabet=2), list(range(0, n - 1, 17))
    found = flip_sensitivity(
        model,
        tokens,
        flips=Substitute(positions=some),
        engine="difference",
        placement=Placement(ONE_DEVICE, batch_size=4),
    )
    specified = flip_sensitivity(model, tokens, flips=Substitute(positions=some), engine="vmap")
    assert "folded" in found.engine.reason
    np.testing.assert_allclose(found.norms, specified.norms, rtol=1e-9, atol=1e-13)


@pytest.mark.long
def test_what_it_declines_is_measured_by_whole_rows():
    config = small(feed_forward=20)
    parameters = sharpened(initialise(config, 0), 1000)
    tokens, positions = word(256), list(range(0, 255, 5))
    found, declined = completed(config, parameters, tokens, positions)
    assert declined == {"whole rows": len(positions)}
    model = Transformer(config, parameters=parameters)
    with pytest.warns(PrecisionWarning, match="of 75 flips"):  # weights are 0 and 1: few flips matter
        specified = flip_sensitivity(
            model, tokens, flips=Substitute([0, 1], positions=positions), engine="vmap"
        )
    chosen = specified.symbols == np.where(tokens[specified.positions] == 0, 1, 0)
    np.testing.assert_allclose(found, specified.norms[chosen], rtol=1e-8, atol=1e-10)


def single(n: int, **changes: Any) -> tuple[TransformerConfig, Any, np.ndarray]:
    """Two layers of a head of width 1, parameters for a test to fill in, and a word of 0 that ends."""
    options: dict[str, Any] = {"head_width": 1, "feed_forward": (32, 0), "positions": Learned(n), **changes}
    config = TransformerConfig(2, width=4, heads=1, **options)
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape), initialise(config, 0))
    nothing.embedding[:, 3] = 1  # what queries read
    nothing.layers[0].b1[:] = 1  # no unit changes sign
    return config, nothing, np.append(np.zeros(n - 1, int), 2)


@pytest.mark.long
def test_a_weight_that_underflows_in_float32_and_grows_back():
    """Only position 0 sees the flip of position 1; its score in the last layer rises from `low` by `back`."""
    n, low, back = 256, -100.0, 88.0
    config, nothing, tokens = single(n, mask=("strict-past", "none"))
    nothing.embedding[1, 0] = 1  # the symbol
    nothing.learned[0, 1:3] = low, 1  # the last layer's score and value of position 0
    first, last = nothing.layers
    first.value[0, 0, 0], first.output[0, 0, 1] = back * (n - 1), 1
    last.query[0, 3, 0] = last.key[0, 1, 0] = last.value[0, 2, 0] = last.output[0, 0, 0] = 1
    found, _ = completed(config, nothing, tokens, [1])
    before, after = (np.exp(s) / (n - 1 + np.exp(s)) for s in (low, low + back))
    np.testing.assert_allclose(found, [after - before], rtol=1e-4)


def peaked(share: float, n: int) -> tuple[TransformerConfig, Any, np.ndarray]:
    """A model in which position 1 has that share of the attention of every row of the first layer, and its word."""
    config, nothing, tokens = single(n, dtype="float64")
    nothing.embedding[1, 0] = 0.01  # the symbol, which values read
    nothing.learned[1, 1] = np.log(share / (1 - share) * (n - 1))  # its score
    first, last = nothing.layers
    first.query[0, 3, 0] = first.key[0, 1, 0] = first.value[0, 0, 0] = first.output[0, 0, 2] = 1
    last.value[0, 2, 0] = last.output[0, 0, 0] = 1
    return config, nothing, tokens


@pytest.mark.long
@pytest.mark.parametrize(("share", "declined"), [(0.4, False), (0.6, True), (0.99, True)])
def test_a_flip_of_a_key_with_more_than_half_of_a_row_is_declined(share, declined):
    # The plain form divides by what the other keys keep, 1 - p: from half on it would lose digits.
    config, parameters, tokens = peaked(share, 256)
    engine = FoldedEngine(L2(), None, config)
    with numerics("float64"):
        given = parameters_from_numpy(parameters, "float64")
        prepared = jax.jit(engine.prepare)(given, tokens)
        block = FlipBlock(np.array([[1], [2]]), np.array([[1], [1]]))
        norms = np.asarray(jax.jit(engine.measured)(given, prepared, block)[0])
    np.testing.assert_array_equal(np.isnan(norms), [declined, False])


def test_no_unit_beyond_the_candidates_can_change_sign_within_a_rows_reach():
    # Thresholds are sorted in single precision. A reach rounded up would let a unit change sign unseen.
    config = small(feed_forward=40)
    parameters = initialise(config, 0)
    with numerics("float64"):
        prepared = jax.jit(FoldedEngine(L2(), None, config).prepare)(
            parameters_from_numpy(parameters, "float64"), word(200)
        )
    kept, first = prepared.prepared.traces[0], parameters.layers[0]
    columns = np.asarray(first.output, np.longdouble).reshape(-1, config.width) @ np.asarray(
        first.w1, np.longdouble
    )
    exact = np.sort(np.abs(np.asarray(kept.h, np.longdouble)) / np.sqrt((columns**2).sum(axis=0)), axis=1)
    reach = np.asarray(prepared.reach, np.longdouble)[:200]
    beyond = exact[:, folded.candidates(200, 40)]
    assert np.all(reach < beyond)
    assert np.all(reach > beyond * (1 - 1e-5))


@pytest.mark.parametrize("width", [16, 64])
def test_no_two_positions_of_a_long_input_count_as_equal(width):
    """A row whose reference key has the flipped key's embedding passes on no difference of the two."""
    model = Transformer(TransformerConfig(2, width=width), seed=0)
    embedding: Any = model.parameters.position_embedding(model.config, 16384)
    places = first_rows(jax.numpy.zeros(16384, int), embedding, False).places
    assert len(np.unique(places, axis=0)) == 16384
