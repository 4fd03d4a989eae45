"""Lemma 9: rounding and comparing are exact for all approximate Booleans and counts; Lemma 27: what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.formal.constructions import rounding
from jaxsens.formal.constructions.rounding import AT_LEAST_ZERO, EQUALS_ZERO, ROUND, ReluForm, Unit
from tests.refusals import refusal


@pytest.mark.parametrize("width", [32, 64])
@given(data=st.data())
def test_rounding_is_exact_in_floating_point(width, data):
    dtype = np.dtype(f"float{width}").type
    false = data.draw(st.floats(-(2.0**20), 0.25, width=width))
    true = data.draw(st.floats(0.75, 2.0**20, width=width))
    assert ROUND(np.array([false, true], dtype)).tolist() == [0.0, 1.0]
    assert ROUND(np.array([true], dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_comparisons_of_counts_known_to_a_quarter(dtype):
    whole = np.arange(-1000, 1001)
    for error in (-0.25, -0.1, 0.0, 0.2, 0.25):
        z = (whole + error).astype(dtype)
        np.testing.assert_allclose(AT_LEAST_ZERO(z), whole >= 0, rtol=0, atol=1e-4)
        np.testing.assert_allclose(EQUALS_ZERO(z), whole == 0, rtol=0, atol=1e-4)
        if error in (-0.25, 0.0, 0.25):  # these numbers are represented exactly
            assert (AT_LEAST_ZERO(z) == (whole >= 0)).all()
            assert (EQUALS_ZERO(z) == (whole == 0)).all()


@pytest.mark.parametrize("form", [ROUND, AT_LEAST_ZERO, EQUALS_ZERO])
def test_the_steepest_slope_is_what_is_said(form):
    z = np.linspace(-3, 3, 6001)
    steepest = np.abs(np.diff(form(z)) / np.diff(z)).max()
    assert form.lipschitz == 2 == pytest.approx(steepest, rel=1e-9)


def test_the_steepest_slope_may_lie_left_of_all_kinks():
    assert ReluForm((Unit(2, -3, 1), Unit(1, 1, 0))).lipschitz == 6


def test_the_steepest_slope_is_that_between_the_kinks_in_their_order():
    assert (
        ReluForm((Unit(-2, 1, -1), Unit(3, 1, 0))).lipschitz == 3
    )  # 0, 3 and 1, where the other order has -2


def random_pieces(width: int, layers: int, seed: int) -> int:
    """Pieces of a random ReLU network on a line, counted by the units' signs: at least the affine pieces it shows."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-30, 30, 40_001)[:, None]
    patterns, h = [], x
    for _ in range(layers):
        h = h @ rng.normal(size=(h.shape[1], width)) + 3 * rng.normal(size=width)
        patterns.append(h > 0)
        h = np.maximum(h, 0)
    pattern = np.concatenate(patterns, axis=1)
    return 1 + int(np.any(pattern[1:] != pattern[:-1], axis=1).sum())


@pytest.mark.parametrize(("width", "layers"), [(1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (3, 3)])
def test_no_random_network_has_more_pieces_than_lemma_27_says(width, layers):
    most = max(random_pieces(width, layers, seed) for seed in range(5))
    assert (
        1
        < most
        <= rounding.affine_pieces(width, layers)
        <= rounding.affine_pieces(width, layers, simple=True)
    )


@pytest.mark.parametrize("width", [1, 2, 5])
def test_one_layer_has_as_many_pieces_as_is_said(width):
    """Kinks at 1 .. width, each where its unit begins: width + 1 pieces."""
    zigzag = ReluForm(tuple(Unit((-2.0) ** k, 1, -float(k)) for k in range(1, width + 1)))
    x = np.arange(0, width + 2, 0.25)
    slopes = np.diff(zigzag(x)) / np.diff(x)
    assert 1 + int((np.abs(np.diff(slopes)) > 1e-9).sum()) == rounding.affine_pieces(width, 1)


@pytest.mark.parametrize(
    ("layers", "bits"), [(1, 1), (1, 10), (2, 10), (3, 16), (4, 40), (5, 3), (1, 1024), (3, 4000)]
)
def test_rounding_more_bits_takes_more_width(layers, bits):
    width = rounding.rounding_width(layers, bits)
    assert rounding.affine_pieces(width, layers) >= 2**bits
    assert width == 1 or rounding.affine_pieces(width - 1, layers) < 2**bits


def test_bad_sizes_are_refused():
    with refusal("width"):
        rounding.affine_pieces(0, 2)
    with refusal("bits"):
        rounding.rounding_width(2, 2.5)  # pyright: ignore[reportArgumentType]
