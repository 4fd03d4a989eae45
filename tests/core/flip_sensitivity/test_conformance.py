"""Every engine against the reference in wider arithmetic, on the table of cases and on configs drawn at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens.core.engines.difference.engine import SERVED as SERVED_PARTS
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.core.models.parts.positions import Learned, Sinusoidal
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.score_positions import Rotary
from jaxsens.core.models.parts.weighting import Softmax
from tests import reference
from tests.core.flip_sensitivity.conformance import (
    CASES,
    ENGINES,
    Case,
    assert_conforms,
    engine_of,
    measured,
    sharpened,
    truth,
)
from tests.lanes import examples
from tests.small_models import WEIGHTINGS_TRIED, random_parameters, small

if np.finfo(np.longdouble).eps > 2e-19:
    pytest.skip(
        "np.longdouble is float64 here: there is nothing wider to compare with", allow_module_level=True
    )

SERVED = [
    (name, engine)
    for name, case in CASES.items()
    for engine in ENGINES
    if engine_of(engine, case.config) is not None
]
IN_FLOAT32 = (
    "weighting softmax",
    "weighting average-hard",
    "mask future",
    "layer norm after",
    "sharpened",
    "softmax-off-by-one, sharpened",
    "learned sinks, three layers",
    "sigmoid-log, sharpened",
)


# Every rule of the difference engine, between both. The other cases combine the same rules in other ways.
QUICK = (
    "windows, mean, hard",
    "sharpened, relative bias",
    "layer norm after",
    "sigmoid-log, sharpened",
    "learned sinks, three layers",
    "elementwise gates",
    "norm and outputs",
)
COVERING = (
    "weighting average-hard",
    "activation gelu",
    "additive, rotary, hard",
    "no layer, mean",
    "three layers, mixed weightings",
    "sharpened much more",
    "softmax-off-by-one, sharpened",
    "ties, past",
    "all masked, hard",
    "n = 1",
    "no end of sequence",
)


def with_marks(pairs: Sequence[tuple[str, str]], quick: Sequence[str]) -> list[Any]:
    """The cases, of which some are quick, and long what covers the rules of the engine that serves most parts.

    `test_against_reference` has forward passes of every part, `test_incremental` what that engine does differently.
    """
    tried = {
        "vmap": ((), ("weighting softmax", "sharpened")),
        "incremental": ((), IN_FLOAT32),
        "difference": (quick, COVERING),
    }

    def mark(name: str, engine: str) -> Any:
        if name in tried[engine][0]:
            return ()
        return pytest.mark.long if name in tried[engine][1] else pytest.mark.slow

    assert {*quick, *COVERING} <= set(CASES)
    return [pytest.param(*pair, marks=mark(*pair)) for pair in pairs]


@pytest.mark.parametrize(("name", "engine"), with_marks(SERVED, QUICK))
def test_every_engine_gives_the_reference(name, engine):
    assert_conforms(engine, CASES[name])


@pytest.mark.parametrize(
    ("name", "engine"), with_marks([pair for pair in SERVED if pair[0] in IN_FLOAT32], IN_FLOAT32[1:2])
)
def test_float32_too(name, engine):
    assert_conforms(engine, CASES[name], "float32")


# Configs drawn at random

TERMS = st.one_of(
    st.sampled_from(
        [
            "rotary",
            "alibi",
            "relative-bias",
            "alternating",
            "fraction",
            "index",
            "length",
            "square",
            "first",
        ]
    ),
    st.builds(Sinusoidal, base=st.sampled_from([10.0, 10000.0])),
    st.builds(Rotary, base=st.sampled_from([10.0, 10000.0])),
    st.just(Learned(max_length=8)),
)
SCHEDULES = st.builds(
    Schedule,
    coefficient=st.sampled_from([0.5, 1.0, 3.0]),
    power=st.sampled_from([-0.5, 0.0, 1.0]),
    log_power=st.sampled_from([0.0, 1.0]),
    offset=st.sampled_from([0.0, 0.0, 0.5]),
)
WEIGHTING = st.one_of(
    st.sampled_from([kind for kind in WEIGHTINGS_TRIED.values() if type(kind) in SERVED_PARTS.weightings]),
    st.builds(Softmax, SCHEDULES, by=st.sampled_from(["length", "query"])),
)


MASK = st.one_of(st.sampled_from(sorted(MASKS)), st.builds(SlidingWindow, st.integers(1, 4)))


def _distinct(terms: list[Any]) -> Any:
    kept = {type(term).__name__ if not isinstance(term, str) else term.capitalize(): term for term in terms}
    return tuple(kept.values()) or "none"


@st.composite
def cases(draw) -> Case:
    layers, n = draw(st.integers(0, 3)), draw(st.integers(1, 7))

    def of_layers(strategy: st.SearchStrategy[Any]) -> Any:
        values = draw(st.lists(strategy, min_size=max(layers, 1), max_size=max(layers, 1)))
        return tuple(values) if layers else values[0]

    weighting = of_layers(WEIGHTING)
    drawn = weighting if isinstance(weighting, tuple) else (weighting,)
    # Saturated tanhs make scores tie, in some dtypes and not in others; a hard choice between them is anybody's.
    soft = all(isinstance(kind, Softmax) for kind in drawn)
    config = small(
        alphabet_size=draw(st.integers(2, 4)),
        heads=draw(st.integers(1, 3)),
        head_width=draw(st.sampled_from([2, 4])),
        width=draw(st.integers(2, 7)),
        layers=layers,
        output_gate=draw(st.sampled_from(["none", "none", "headwise", "elementwise"])),
        feed_forward=of_layers(st.sampled_from([0, 5])),
        weighting=weighting,
        mask=of_layers(MASK),
        positions=_distinct(draw(st.lists(TERMS, max_size=2))),
        scores=draw(st.sampled_from(["dot-product", "additive"] if soft else ["dot-product"])),
        layer_norm=draw(st.sampled_from(["none", "pre", "post"])),
        activation=draw(st.sampled_from(["relu", "gelu", "silu", "tanh"])),
        readout=draw(st.one_of(st.just("last"), st.just("mean"), st.integers(0, n - 1))),
        logits=draw(st.sampled_from([None, 3])),
    )
    word = draw(st.lists(st.integers(0, config.alphabet_size), min_size=n, max_size=n))
    sharpness = draw(st.sampled_from([1.0, 1.0, 10.0, 30.0]))
    norm = draw(st.sampled_from(["l2", "l1", "linf"]))
    return Case(config, tuple(word), sharpness, draw(st.integers(0, 99)), norm)


@pytest.mark.long
@given(cases())
@settings(max_examples=examples(6))
def test_configs_drawn_at_random(case):
    for engine in ENGINES:
        if engine_of(engine, case.config) is not None:
            assert_conforms(engine, case, cancelling=True)


# Ties between computed values


def _written_ties(first: str, second: str, seed: int) -> tuple[Any, Any]:
    """A model whose second layer's keys tie only if the first layer's outputs are bitwise equal at equal symbols.

    The last coordinate holds the position. No query or key reads it; only the second layer's values do, so that it
    shows which of the tied keys was chosen.
    """
    config = small(weighting=(first, second), positions="index", feed_forward=0)
    parameters = random_parameters(config, seed)
    embedding, components = np.array(parameters.embedding), np.zeros((1, config.width))
    embedding[:, -1], components[0, -1] = 0, 0.1
    layers = []
    for k, layer in enumerate(parameters.layers):
        own = {name: np.array(getattr(layer, name)) for name in ("query", "key", "value", "output")}
        own["key"][:, -1] = own["query"][:, -1] = 0
        if k == 0:
            own["value"][:, -1] = 0
            own["output"][:, :, -1] = 0
        layers.append(dataclasses.replace(layer, **own))
    return config, dataclasses.replace(
        parameters, embedding=embedding, components=components, layers=tuple(layers)
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("engine", ["vmap", "difference"])  # the incremental engine serves no hard layer
@pytest.mark.parametrize(
    ("first", "second"),
    [("average-hard", "average-hard"), ("average-hard", "rightmost-hard"), ("leftmost-hard", "average-hard")],
)
def test_ties_between_what_an_earlier_hard_layer_wrote(first, second, engine):
    for seed in range(5):
        config, parameters = _written_ties(first, second, seed)
        word = tuple(np.random.default_rng(seed).integers(0, 3, 6).tolist())
        pairs = reference.flips(config, word)
        expected = list(reference.flip_norms(config, parameters, word, pairs=pairs).values())
        built = engine_of(engine, config)
        assert built is not None
        np.testing.assert_allclose(measured(built, parameters, word, pairs, "float64"), expected, atol=1e-9)


# Engines that refuse


# Small sensitivities


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float32", 5e-4), pytest.param("float64", 5e-8, marks=pytest.mark.long)]
)
def test_sensitivities_of_1e_minus_10_keep_their_digits(dtype, rtol):
    """Of flips between two symbols whose embeddings differ in one coordinate."""
    config = small()
    parameters = random_parameters(config)
    embedding = np.array(parameters.embedding)
    embedding[1] = embedding[0]
    embedding[:2, 0] = 0, 1e-10
    parameters = sharpened(dataclasses.replace(parameters, embedding=embedding), 1.0, "float32")
    case = Case(config, (0, 1, 1, 0, 1, 3))
    expected, _ = truth(case, parameters)
    tiny = np.array([max(case.word[p], s) < 2 for p, s in case.flips])
    engine = engine_of("difference", config.replace(dtype=dtype))
    assert engine is not None
    assert np.all((expected[tiny] > 1e-11) & (expected[tiny] < 1e-9))
    found = measured(engine, parameters, case.word, case.flips, dtype)
    np.testing.assert_allclose(found[tiny], expected[tiny], rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_float32_stays_below_1e_minus_4_at_n_4096(activation):
    n, drawn = 4096, jaxsens.Substitute(sample=256, seed=1)
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=32, heads=4, layers=2, feed_forward=64, activation=activation
    )
    narrow = jaxsens.Transformer(config, seed=0)
    wide = jaxsens.Transformer(
        config.replace(dtype="float64"), parameters=sharpened(narrow.parameters, 1.0, "float32")
    )
    word = np.append(np.random.default_rng(0).integers(0, 2, n - 1), 2)
    exact = jaxsens.flip_sensitivity(wide, word, flips=drawn, engine="difference")
    few = exact.positions[:8].tolist()
    specified = jaxsens.flip_sensitivity(wide, word, flips=jaxsens.Substitute(positions=few), engine="vmap")
    np.testing.assert_allclose(exact.norms[:8], specified.norms, rtol=1e-9)
    found = jaxsens.flip_sensitivity(narrow, word, flips=drawn, engine="difference")
    assert found.norms.dtype == np.float32
    assert np.max(np.abs(found.norms / exact.norms - 1)) < 1e-4
