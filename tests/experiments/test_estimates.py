"""A sweep that estimates long inputs: its config, its points' keys, and what is kept of the estimates."""

from __future__ import annotations

import csv
import dataclasses
import math

import numpy as np
import pytest

from jaxsens.errors import InputError
from jaxsens.experiments import points
from jaxsens.experiments.points import Measurement, of_estimates, read_point, statistics_of, write_point
from jaxsens.experiments.sweep import ESTIMATE_COLUMNS, KEY_COLUMNS, run_sweep
from jaxsens.experiments.sweep_config import parse_sweep_config
from jaxsens.experiments.theorem6_config import parse_theorem6_config
from jaxsens.sensitivity.estimated import ESTIMATED, Estimated, strata
from tests.experiments.test_theorem6_config import INLINE
from tests.experiments.tiny import TINY, fake_flip_sensitivity, quiet
from tests.experiments.tiny_training import PREDICTION

SOFT = TINY.replace('["softmax", "leftmost-hard"]', '["softmax"]').replace("[4, 6]", "[8, 40]")


def sweep_of(measure, text=SOFT):
    return parse_sweep_config(f"{text}\n[measure]\n{measure}\n")


def estimated_flip_sensitivity(model, tokens, **options):
    """The stand-in for the measurement; with the first-order engine its norms are estimates, off by a factor."""
    exact = fake_flip_sensitivity(model, tokens, **options)
    if options["engine"] != "first-order":
        return exact
    estimates = exact.norms * (1 + 0.1 * np.cos(np.arange(len(exact.norms))))
    stratum = strata(estimates, options["verify"], options["seed"])
    measured = stratum != ESTIMATED
    known = Estimated(estimates, stratum, np.where(measured, exact.norms, np.nan), options["sketch"])
    norms = np.where(measured, exact.norms, estimates).astype(np.float32)
    return dataclasses.replace(exact, norms=norms, estimated=known)


@pytest.fixture
def stood_in(monkeypatch):
    calls = []

    def measured(model, tokens, **options):
        calls.append({"n": tokens.shape[1], **options})
        return estimated_flip_sensitivity(model, tokens, **options)

    monkeypatch.setattr(points, "flip_sensitivity", measured)
    return calls


def test_first_order_and_its_options_are_read():
    measure = sweep_of('engine = "first-order"\nsketch = 4\nverify = 16').measure
    assert (measure.engine_at(8), measure.engine_at(40), measure.estimates) == (*["first-order"] * 2, True)
    assert measure.expanded(8) == {
        "engine": "first-order",
        "norm": "l2",
        "sample": None,
        "outputs": "designated",
        "sketch": 4,
        "verify": 16,
    }
    measure = sweep_of('engine = "vmap"\nexact_up_to = 8').measure
    assert (measure.engine_at(8), measure.engine_at(9)) == ("vmap", "first-order")
    assert not Measurement().estimates


@pytest.mark.parametrize(
    ("measure", "match"),
    [
        (
            'engine = "first_order"',
            "measure.engine = 'first_order': should be one of auto, vmap, .*first-order",
        ),
        ("verify = 16", "measure.verify = 16: only for estimates"),
        ("sketch = 16", "measure.sketch = 16: only for estimates"),
        ('engine = "first-order"\nexact_up_to = 8', "measure.exact_up_to = 8: not with engine"),
        ("exact_up_to = 40", "measure.exact_up_to = 40: no length is above it: the longest is 40"),
        ('exact_up_to = 8\nsketch = 4\nnorm = "l1"', 'measure.sketch = 4: only for norm = "l2", not "l1"'),
        ("exact_up_to = 0", "measure.exact_up_to"),
        ("exact_up_to = 8\nverify = 0", "measure.verify"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(measure, match):
    with pytest.raises(InputError, match=match):
        sweep_of(measure)


@pytest.mark.parametrize(
    ("measure", "key"), [('engine = "first-order"', "engine"), ("exact_up_to = 8", "exact_up_to")]
)
def test_a_variant_that_cannot_be_estimated_is_found_before_anything_runs(measure, key):
    text = TINY.replace("[4, 6]", "[8, 40]")
    with pytest.raises(InputError, match=f'measure.{key}: variant "leftmost-hard": engine = "first-order"'):
        sweep_of(measure, text)


def test_the_theorem_6_experiment_measures_exactly():
    with pytest.raises(InputError, match="measure: this experiment measures every flip exactly"):
        parse_theorem6_config(
            INLINE.replace("[[model]]", "[measure]\nexact_up_to = 2\n[[model]]") + PREDICTION
        )


def keys(sweep):
    return {(point.n, point.seed): point.key for point in sweep.points}


def test_points_up_to_the_limit_have_the_keys_of_an_exact_sweep_and_longer_ones_those_of_estimates():
    exact, limited = keys(parse_sweep_config(SOFT)), keys(sweep_of("exact_up_to = 8\nverify = 16"))
    estimated = keys(sweep_of('engine = "first-order"\nverify = 16'))
    for (n, seed), key in limited.items():
        assert key == (exact if n == 8 else estimated)[n, seed]
    assert exact[40, 0] != estimated[40, 0] != keys(sweep_of("exact_up_to = 8"))[40, 0]
    assert keys(sweep_of("exact_up_to = 8\nverify = 64")) == keys(sweep_of("exact_up_to = 8"))


def test_only_estimated_points_get_the_options_of_estimates_and_their_seed(stood_in, tmp_path):
    sweep = sweep_of("exact_up_to = 8\nverify = 16\nsketch = 4")
    run_sweep(sweep, tmp_path, sweep.points, quiet())
    told = [
        (call["n"], call["engine"], call.get("verify"), call.get("sketch"), call.get("seed"))
        for call in stood_in
    ]
    assert told == [
        *[(8, "auto", None, None, None)] * 2,
        (40, "first-order", 16, 4, 0),
        (40, "first-order", 16, 4, 1),
    ]


def test_an_estimated_point_keeps_what_is_known_of_its_error(stood_in, tmp_path):
    sweep = sweep_of("exact_up_to = 8\nverify = 16")
    point = sweep.points[-1]
    result = point.measure.flip_sensitivity(point.source.build(1), point.tokens(), 1)
    written = write_point(tmp_path, point, result, ("mean", "max", "q90"), 1.0)
    read, again = read_point(point.path(tmp_path), point.key, ("mean", "max", "q90", "min"))
    assert read.estimated is not None
    assert result.accuracy is not None
    assert read.estimated == written.estimated == of_estimates(again)
    assert read.estimated["measured"] == 16
    assert (read.estimated["mean_low"], read.estimated["mean_high"]) == result.mean_interval()
    assert read.estimated["rank_correlation"] == result.accuracy.rank_correlation
    assert read.statistics["mean"] == result.mean != result.norms.mean()
    assert read.statistics["max"] == result.max == result.norms[result.exact].max()
    assert read.statistics["q90"] == result.quantile(0.9)
    assert read.statistics["min"] == result.norms.min()
    assert statistics_of(again, ["mean"]) == {"mean": result.mean}
    assert "estimated, the mean in [" in read.summary()


def test_a_point_of_which_every_flip_was_measured_is_exact(stood_in):
    point = sweep_of('engine = "first-order"\nverify = 500').points[0]
    result = point.measure.flip_sensitivity(point.source.build(0), point.tokens(), 0)
    assert of_estimates(result) is None


def test_the_table_of_points_says_which_are_estimates(stood_in, tmp_path):
    sweep = sweep_of("exact_up_to = 8\nverify = 16")
    assert run_sweep(sweep, tmp_path, sweep.points, quiet()).finished == 4
    rows = list(csv.DictReader((tmp_path / "points.csv").read_text().splitlines()))
    assert tuple(rows[0]) == (*KEY_COLUMNS, "mean", "max", "q90", *ESTIMATE_COLUMNS)
    for row in rows:
        if row["n"] == "8":
            assert all(row[name] == "" for name in ESTIMATE_COLUMNS)
        else:
            assert row["measured"] == "16"
            assert float(row["mean_low"]) <= float(row["mean"]) <= float(row["mean_high"])
    exact = parse_sweep_config(SOFT)
    assert exact.plan.columns == (*KEY_COLUMNS, "mean", "max", "q90")


def test_a_point_whose_mean_has_no_interval_is_kept_and_read(stood_in, tmp_path):
    point = sweep_of('engine = "first-order"\nverify = 2').points[-1]
    result = point.measure.flip_sensitivity(point.source.build(1), point.tokens(), 1)
    write_point(tmp_path, point, result, ("mean",), 1.0)
    read, _ = read_point(point.path(tmp_path), point.key, ("mean",))
    assert read.estimated is not None
    assert read.estimated["mean_high"] == math.inf
    assert read.estimated["slope"] != read.estimated["slope"]  # NaN


@pytest.mark.slow
def test_a_real_sweep_estimates_its_long_inputs(tmp_path):
    sweep = sweep_of("exact_up_to = 8\nverify = 16", SOFT.replace("layers = 1", "layers = 3"))
    outcome = run_sweep(sweep, tmp_path, sweep.points, quiet())
    assert [(point.n, point.estimated is not None) for point in outcome.records] == [
        (8, False),
        (8, False),
        (40, True),
        (40, True),
    ]
    assert {point.engine["name"] for point in outcome.records[2:]} == {"first-order"}
