"""The influence of every position on every row, against a double loop in NumPy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot

import jaxsens
from jaxsens.core.base import errors
from jaxsens.core.models.parts.masks import SlidingWindow
from tests import reference
from tests.refusals import refusal, refused
from tests.small_models import random_parameters, small
from tests.together.flip_sensitivity.test_texts import SPELLER

TOKENS = np.array([0, 2, 1, 1, 0, 3])  # 3 ends the word: it is not flipped


def specified(config: Any, parameters: Any, tokens: Any, norm: str) -> dict[tuple[int, int, int], float]:
    """The norm of the change of row j when position i is set to s, by (i, s, j): one flip and one row at a time."""
    before, found = reference.activations(config, parameters, tokens), {}
    for i in range(len(tokens)):
        for s in range(config.alphabet_size):
            if tokens[i] in (s, config.alphabet_size):
                continue
            flipped = [int(token) for token in tokens]
            flipped[i] = s
            after = reference.activations(config, parameters, flipped)
            for j in range(len(tokens)):
                found[i, s, j] = reference.norm_of(after[j] - before[j], norm)
    return found


@pytest.fixture(scope="module", params=["none", "future", "strict-past"])
def masked(request):
    config = small(mask=request.param, layer_norm="pre", weighting=("softmax", "average-hard"))
    parameters = random_parameters(config)
    return config, parameters, jaxsens.Transformer(config, parameters=parameters)


def test_every_flip_and_row_as_the_double_loop_has_it(masked):
    config, parameters, model = masked
    found = jaxsens.analysis.influence_matrix(
        model, TOKENS, measure="linf", placement=jaxsens.Placement(batch_size=4)
    )
    expected = specified(config, parameters, TOKENS, "linf")
    assert len(found.positions) == 10
    for flip, (i, s) in enumerate(zip(found.positions, found.symbols, strict=True)):
        for j in range(6):
            assert found.norms[flip, j] == pytest.approx(expected[i, s, j], rel=1e-9, abs=1e-13)
    for statistic, over in (("mean", np.mean), ("max", np.max)):
        matrix = found.matrix(statistic)  # pyright: ignore[reportArgumentType]
        for i in range(5):
            for j in range(6):
                values = [value for (at, _, row), value in expected.items() if (at, row) == (i, j)]
                assert matrix[i, j] == pytest.approx(over(values), rel=1e-9, abs=1e-13)
        assert np.isnan(matrix[5]).all()
    if config.mask == "future":
        assert (found.matrix()[:5][np.tril_indices(5, -1)] == 0).all()  # no row sees what comes after it
    forward = found.by_distance()
    assert forward[2] == pytest.approx(np.mean([found.matrix()[i, i + 2] for i in range(4)]))
    assert len(found.to_pandas()) == 60
    assert "n=6, 10 flips, linf" in repr(found)


def test_a_row_that_no_flip_reaches_changes_by_exactly_0():
    # Here the batch of all flips rounds in other places than the pass on the input: by up to 1e-5 before it was masked.
    config = jaxsens.TransformerConfig(2, heads=4, mask=("future", SlidingWindow(3)))
    found = jaxsens.analysis.influence_matrix(jaxsens.Transformer(config, seed=0), np.arange(33) % 2).matrix()
    assert (found[:32][np.tril_indices(32, -1, 33)] == 0).all()
    assert (found[:32][np.triu_indices(32, 0, 33)] > 0).all()
    windows = jaxsens.Transformer(config.replace(mask=SlidingWindow(3)), seed=0)
    reached = np.isin(np.arange(33) - np.arange(32)[:, None], range(5))  # two positions a layer
    np.testing.assert_array_equal(
        jaxsens.analysis.influence_matrix(windows, np.arange(33) % 2).matrix()[:32] > 0, reached
    )


def test_a_column_is_the_flip_sensitivity_of_that_row():
    config = small(logits=2, readout=2, layers=1)
    model = jaxsens.Transformer(config)
    found = jaxsens.analysis.influence_matrix(
        model, TOKENS, flips=jaxsens.Substitute(positions=[0, 4]), measure=jaxsens.L2(outputs=[1])
    )
    own = jaxsens.flip_sensitivity(
        model,
        TOKENS,
        flips=jaxsens.Substitute(positions=[0, 4]),
        measure=jaxsens.L2(outputs=[1]),
        engine="vmap",
    )
    np.testing.assert_allclose(found.norms[:, 2], own.norms, rtol=1e-12)
    np.testing.assert_array_equal(found.positions, own.positions)


def test_models_that_return_rows():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    rows = jaxsens.analysis.influence_matrix(
        lambda tokens: jnp.cumsum(table[tokens], axis=0), [0, 1, 2, 0], flips=[0, 1]
    )
    assert rows.matrix("max")[1, 0] == 0
    np.testing.assert_allclose(
        rows.matrix()[1], [0, *[float(jnp.linalg.norm(table[1] - table[0]))] * 3], rtol=1e-5
    )
    spelled = jaxsens.analysis.influence_matrix(SPELLER, "cabba", flips=3)
    assert spelled.names == {0: "a", 1: "b", 2: "c"}
    assert spelled.norms.shape == (10, 5)
    axes = spelled.plot()
    assert [label.get_text() for label in axes.get_xticklabels()] == list("cabba")
    assert np.asarray(axes.images[0].get_array()).shape == (5, 5)
    masked = jaxsens.analysis.influence_matrix(SPELLER, "cabba", flips=jaxsens.Substitute(3, positions=[1]))
    again = masked.plot(pyplot.subplots()[1], "max")
    assert len(again.patches) == 4  # positions that were not flipped
    pyplot.close("all")


def test_what_is_refused(monkeypatch):
    model = jaxsens.Transformer(small())
    for engine in ("difference", "incremental", "first-order"):
        with refusal("engine"):
            jaxsens.analysis.influence_matrix(model, TOKENS, engine=engine)  # pyright: ignore[reportArgumentType]
    refused(
        "engine measure tokens",
        jaxsens.analysis.influence_matrix,
        model,
        [TOKENS, TOKENS],
        measure="l3",
        engine="fast",
    )
    refused(
        "model",
        jaxsens.analysis.influence_matrix,
        lambda tokens: jnp.ones(2) * tokens.sum(),
        [0, 1, 1],
        flips=[0, 1],
    )
    with refusal("statistic"):
        jaxsens.analysis.influence_matrix(model, TOKENS, flips=jaxsens.Substitute(positions=[0])).matrix(
            "median"  # pyright: ignore[reportArgumentType]
        )
    monkeypatch.setattr(errors, "machine_memory", lambda: 1000)
    refused("tokens", jaxsens.analysis.influence_matrix, model, TOKENS)
