"""Statistics of estimated results, on synthetic populations whose exact norms are known."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from jaxsens import InputError, load_result
from jaxsens.core.measures import Function
from jaxsens.core.models.adapters import as_model
from jaxsens.core.results.statistics import (
    ESTIMATED,
    RANDOM,
    TOP,
    Estimated,
    accuracy_of,
    stratified_mean,
)
from jaxsens.first_order.estimate import strata, warn_if_far
from tests.made_results import made


def population(kind: str, flips: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Exact norms with a heavy tail, and estimates of them."""
    x = rng.pareto(2.0, flips) + 0.05 if kind == "pareto" else np.exp(rng.normal(size=flips))
    match kind:
        case "wide log-normal":
            x = x**1.5
            z = x * np.exp(0.2 * rng.normal(size=flips))
        case "errors with tails":
            z = np.abs(x * (1 + 0.15 * rng.standard_t(2.5, size=flips)))
        case "biased":
            z = 0.6 * x**0.8 * np.exp(0.1 * rng.normal(size=flips))
        case _:
            z = x * np.exp(0.2 * rng.normal(size=flips))
    return x, z


KINDS = ("log-normal", "wide log-normal", "pareto", "errors with tails", "biased")


def result_of(norms: np.ndarray, estimates: np.ndarray, verify: int, seed: int, **changes: Any) -> Any:
    """The estimated result of flips with these exact norms."""
    stratum = strata(estimates, verify, seed)
    measured = stratum != ESTIMATED
    estimated = Estimated(estimates, stratum, np.where(measured, norms, np.nan))
    norms = np.where(measured, norms, np.abs(estimates))
    return made(norms, engine="first-order", estimated=estimated, **changes)


FINITE = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40).map(np.array)


@given(FINITE, st.integers(1, 50), st.integers(0, 5))
def test_strata_are_the_largest_sizes_and_a_draw_from_the_others(estimates, verify, seed):
    found = strata(estimates, verify, seed)
    assert found.dtype == np.int8
    measured = min(verify, len(estimates))
    assert (found == TOP).sum() == measured // 2
    assert (found == RANDOM).sum() == measured - measured // 2
    if (found == TOP).any():
        assert np.abs(estimates[found == TOP]).min() >= np.abs(estimates[found != TOP]).max(initial=0)
    np.testing.assert_array_equal(found, strata(-estimates, verify, seed))


def test_equal_estimates_are_taken_in_their_order_and_every_flip_of_the_rest_is_drawn_equally_often():
    assert np.flatnonzero(strata(np.ones(100), 20, 0) == TOP).tolist() == list(range(10))
    counts = np.sum([strata(np.arange(30.0), 10, seed) == RANDOM for seed in range(2000)], axis=0)
    assert (counts[25:] == 0).all()
    assert stats.chisquare(counts[:25]).pvalue > 1e-3


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_unbiased_and_far_better_than_that_of_a_plain_sample(kind):
    norms, estimates = population(kind, 1000, np.random.default_rng(0))
    found = np.array([result_of(norms, estimates, 64, seed).mean for seed in range(400)])
    plain = [np.random.default_rng(seed).choice(norms, 64, replace=False).mean() for seed in range(400)]
    error = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - norms.mean()) < 4 * error + 2e-3 * norms.mean()
    assert found.std() < np.std(plain) / 2
    assert abs(estimates.mean() - norms.mean()) > 4 * error or kind != "biased"


def test_constant_estimates_leave_the_mean_of_the_sample():
    norms = np.random.default_rng(0).exponential(size=200)
    result = result_of(norms, np.full(200, 0.3), 40, 0)
    top, drawn = (result.estimated.stratum == s for s in (TOP, RANDOM))
    assert result.mean == pytest.approx((norms[top].sum() + 180 * norms[drawn].mean()) / 200)


def test_one_estimate_that_alone_determines_the_slope_leaves_a_mean():
    estimates, norms = np.zeros(50), np.random.default_rng(0).exponential(size=50)
    stratum = np.array([TOP] * 4 + [RANDOM] * 8 + [ESTIMATED] * 38, np.int8)
    estimates[:5], norms[4] = 1, 5
    found = stratified_mean(Estimated(estimates, stratum, norms), norms)
    assert norms[:12].sum() / 50 <= found < 5


@pytest.mark.parametrize("verify", [200, 500])
def test_if_every_flip_is_measured_the_mean_is_exact(verify):
    norms, estimates = population("pareto", 200, np.random.default_rng(0))
    result = result_of(norms, estimates, verify, 0)
    assert result.exact.all()
    assert result.mean == pytest.approx(norms.mean(), rel=1e-14)
    assert result.mean_interval() == (result.mean, result.mean)
    assert result.accuracy.exceeding_count == 0


@pytest.mark.parametrize("verify", [1, 2, 6])
def test_few_verified_flips_prove_little_more_than_their_own_part_of_the_mean(verify):
    norms, estimates = population("pareto", 200, np.random.default_rng(0))
    result = result_of(norms, estimates, verify, 0)
    low, high = result.mean_interval()
    assert norms[result.exact].sum() / 200 <= low < 0.7 * norms.mean()
    assert high == math.inf
    assert np.isfinite(result.mean)
    assert len(repr(result).splitlines()) == 4


def test_an_interrupted_measurement_has_no_interval():
    norms, estimates = population("pareto", 200, np.random.default_rng(0))
    result = result_of(norms, estimates, 40, 0, populations=[300], requested=[300])
    assert not result.complete
    assert result.mean_interval() == (0, math.inf)
    assert "200 of 300 flips, interrupted" in repr(result)


def test_the_maximum_is_a_measured_one():
    norms, estimates = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 9.0, 0.4, 8.0])
    stratum = np.array([RANDOM, TOP, ESTIMATED, ESTIMATED], np.int8)
    base = result_of(norms, estimates, 2, 0)
    estimated = Estimated(estimates, stratum, np.array([1.0, 2.0, np.nan, np.nan]))
    result = dataclasses.replace(base, values=np.array([1.0, 2.0, 0.4, 8.0]), estimated=estimated)
    assert (result.max, result.argmax.position, result.argmax.norm) == (2.0, 1, 2.0)
    assert result.exact.tolist() == [True, True, False, False]
    assert result.quantile(1) == 8.0
    nothing = dataclasses.replace(estimated, stratum=np.zeros(4, np.int8))
    unmeasured = dataclasses.replace(result, estimated=nothing)
    assert math.isnan(unmeasured.max)
    with pytest.raises(InputError, match="no flip was measured"):
        _ = unmeasured.argmax
    assert len(repr(unmeasured).splitlines()) == 4


def accuracy_between(estimates, compared, **changes):
    m = len(estimates)
    found = Estimated(
        np.array([*estimates, 99.0, 0.0]),
        np.array([RANDOM] * m + [TOP, ESTIMATED], np.int8),
        np.array([*compared, 99.0, np.nan]),
        **changes,
    )
    return accuracy_of(found, np.array([*(changes.pop("norms", compared)), 99.0, 0.0]))


def test_accuracy_is_that_of_the_random_flips():
    rng = np.random.default_rng(0)
    z = rng.exponential(size=32)
    x = 1.3 * z * np.exp(0.1 * rng.normal(size=32)) + 0.1
    found = accuracy_between(z, x)
    assert found.count == 32
    assert found.median_error == pytest.approx(np.median(np.abs(z / x - 1)))
    assert found.error_90 == pytest.approx(
        np.sort(np.abs(z / x - 1))[29]
    )  # the 30th of 32: 30/33 is above 0.9
    assert found.rank_correlation == pytest.approx(stats.spearmanr(z, x)[0])
    assert found.slope == pytest.approx(np.polyfit(z, x, 1)[0])
    assert found.sketch_error is None
    assert found.exceeding == pytest.approx(1 - 0.05 ** (1 / 32))
    assert 0.0885 < found.exceeding < 0.0895


def test_flips_that_exceed_the_largest_are_bounded_by_those_drawn():
    # 40 random and 400 estimated flips beside the largest estimate; five of the random exceed it.
    stratum = np.array([TOP] + [RANDOM] * 40 + [ESTIMATED] * 400, np.int8)
    norms = np.where(stratum == TOP, 1.0, 0.5)
    norms[1:6] = 2.0
    estimated = Estimated(norms, stratum, np.where(stratum == ESTIMATED, np.nan, norms))
    found = accuracy_of(estimated, norms)
    # The share at which five of 40 or fewer exceed with probability 0.05.
    share: Any = optimize.brentq(lambda p: stats.binom.cdf(5, 40, p) - 0.05, 1e-9, 1 - 1e-9)
    assert found.exceeding == pytest.approx(share)
    # Of these, the ones that were measured are no more among the unmeasured.
    assert found.exceeding_count == int(share * 440) - 5


@pytest.mark.parametrize(
    ("estimates", "compared", "expected"),
    [
        (
            [0.0] * 8 + [1.0],
            [0.0] * 9,
            {"median_error": 0, "error_90": math.inf, "rank_correlation": math.nan},
        ),
        ([1.0, 1.0, 1.0], [0.0, 0.0, 1.0], {"median_error": math.inf, "slope": math.nan}),
        ([1.0, 2.0], [1.0, 1.0], {"count": 2, "median_error": 0.5, "slope": math.nan}),
        ([], [], {"count": 0, "median_error": math.nan, "exceeding": 1}),
        # Of too few, no error is known below which nine in ten stay.
        ([1.0] * 8, [2.0] * 8, {"median_error": 0.5, "error_90": math.nan}),
    ],
)
def test_errors_of_exact_zeros_and_of_small_samples_are_infinite_or_unknown(estimates, compared, expected):
    found = accuracy_between(estimates, compared)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, nan_ok=True)
    assert ("not compared" in str(found)) == (not estimates)
    assert ("(median), rank correlation" in str(found)) == (0 < len(estimates) < 9)


@pytest.mark.quick(2)
@pytest.mark.parametrize("verify", [18, 40, 64, 200])
def test_of_the_flips_not_measured_at_most_a_tenth_is_off_by_more_than_it_says(verify):
    beyond = []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        norms, off = rng.exponential(size=500), rng.normal(size=500)
        result = result_of(norms, norms * np.exp(off), verify, seed)
        errors = np.abs(result.estimated.estimates - norms) / norms
        beyond.append(np.mean(errors[~result.exact] > result.accuracy.error_90))
    assert np.mean(beyond) <= 0.1 + 2 * np.std(beyond) / 20


@pytest.mark.parametrize(
    ("far", "said"),
    [
        (None, None),
        (
            TOP,
            r"off by 200% in the median of the 32 largest estimates, and by over 200% in a tenth of them, which",
        ),
        (RANDOM, r"off by 200% in the median of 32 random flips, and by over 200% in a tenth of them, which"),
    ],
)
def test_either_part_of_the_measured_flips_warns_if_it_is_far_off(far, said):
    norms = np.random.default_rng(0).exponential(size=400) + 1
    result = result_of(norms, norms, 64, 0)
    estimated = result.estimated
    off = np.where(estimated.stratum == far, 3.0, 1.0)
    result = dataclasses.replace(
        result, estimated=dataclasses.replace(estimated, estimates=off * estimated.estimates)
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_if_far(result, as_model(lambda tokens: tokens), stacklevel=1)
    assert len(found) == (said is not None)
    assert said is None or re.search(said, str(found[0].message))


def test_the_error_of_the_largest_estimates_is_told_beside_that_of_the_random_ones():
    estimates = np.array([4.0, 3.0, 2.0, *[1.0] * 9])
    compared = np.array([2.0, 2.0, 2.0, *[1.0] * 9])
    stratum = np.array([TOP] * 3 + [RANDOM] * 9, np.int8)
    found = accuracy_of(Estimated(estimates, stratum, compared), compared)
    assert (found.median_error, found.error_90) == (0, 0)
    assert (found.largest_count, found.largest_error) == (3, 0.5)
    assert found.largest_error_90 == pytest.approx(0.9)
    assert "against the 3 largest, all measured: error 0.5 (median), 0.9 (90%)" in str(found)


def test_a_sketch_has_an_error_of_its_own():
    found = Estimated(
        np.ones(4), np.array([RANDOM] * 3 + [TOP], np.int8), np.array([1.0, 1.2, 0.9, 1.0]), sketch=16
    )
    accuracy = accuracy_of(found, np.array([2.0, 1.0, 1.0, 1.0]))
    assert accuracy.sketch_error == pytest.approx(0.2)
    assert "the sketch itself 0.2" in str(accuracy)


def test_signs_count_in_the_accuracy_of_a_scalar_and_not_in_its_mean():
    rng = np.random.default_rng(0)
    changes = rng.normal(size=400)
    estimates = changes * np.exp(0.1 * rng.normal(size=400))
    stratum = strata(estimates, 64, 0)
    estimated = Estimated(estimates, stratum, np.where(stratum > 0, changes, np.nan))
    base = result_of(np.abs(changes), np.abs(estimates), 64, 0)
    values = np.where(stratum > 0, changes, estimates)
    signed = made(values, measure=Function(lambda y: y[0]), engine="first-order", estimated=estimated)
    assert signed.mean == base.mean
    accuracy: Any = signed.accuracy
    assert accuracy.rank_correlation > 0.98
    wrong = dataclasses.replace(estimated, estimates=-estimates)
    accuracy = dataclasses.replace(signed, estimated=wrong).accuracy
    assert accuracy.rank_correlation < -0.98


@pytest.fixture
def result():
    norms, estimates = population("log-normal", 400, np.random.default_rng(0))
    return result_of(
        norms,
        estimates,
        64,
        0,
        inputs=np.repeat([0, 1], 200),
        positions=np.tile(np.arange(200), 2),
        tokens=np.zeros((2, 201), np.int32),
    )


def test_the_four_lines_say_what_is_known(result):
    first, second, third, fourth = repr(result).splitlines()
    assert first == "FlipSensitivity(n=201, inputs=2, 400 flips, l2, engine=first-order)"
    assert second == (
        f"  mean={result.mean:.4g}, at least {result.mean_interval().low:.4g} with 95% confidence, and no upper end: "
        f"flips not measured may be larger; "
        f"largest measured={result.max:.4g} at position {result.argmax.position}"
    )
    accuracy = result.accuracy
    assert third.startswith("  estimates against 32 random flips measured: error 0.")
    assert f"rank correlation {accuracy.rank_correlation:.3g}, slope {accuracy.slope:.3g}" in third
    assert fourth == (
        f"  64 flips measured, 336 only estimated; at most {accuracy.exceeding_count} of these (8.9%) "
        "exceed the largest measured, with 95% confidence"
    )


def test_the_part_of_one_input_has_its_strata(result):
    part = result.of_input(1)
    mine = result.inputs == 1
    np.testing.assert_array_equal(part.estimated.stratum, result.estimated.stratum[mine])
    np.testing.assert_array_equal(part.exact, result.exact[mine])
    np.testing.assert_array_equal(part.norms, result.norms[mine])
    assert part.accuracy.count == (part.estimated.stratum == RANDOM).sum()
    assert 0 < part.mean_interval().low < part.mean


def test_the_table_says_which_norms_are_exact(result):
    table = result.to_pandas()
    assert list(table.columns) == ["input", "position", "symbol", "norm", "resolution", "estimate", "exact"]
    assert table["exact"].sum() == 64
    assert (table["norm"] == table["estimate"])[~table["exact"]].all()
    assert np.isfinite(result.profile()).sum() == 400


@pytest.mark.parametrize("sketch", [None, 16])
def test_a_saved_result_comes_back_with_its_estimates(result, sketch, tmp_path):
    estimated = dataclasses.replace(result.estimated, sketch=sketch)
    result = dataclasses.replace(result, estimated=estimated)
    result.save(tmp_path / "r.parquet")
    loaded: Any = load_result(tmp_path / "r.parquet")
    assert loaded.estimated.sketch == sketch
    for name in ("estimates", "stratum", "compared"):
        before, after = getattr(estimated, name), getattr(loaded.estimated, name)
        np.testing.assert_array_equal(after, before)
        assert after.dtype == before.dtype
    assert repr(loaded) == repr(result)
    assert loaded.description() == result.description()
