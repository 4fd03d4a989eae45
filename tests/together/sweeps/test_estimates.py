"""Sweeps that estimate long inputs, sweeps of decisions and of chosen positions: configs, keys, and what is kept."""

from __future__ import annotations

import csv
import dataclasses
import math

import numpy as np
import pytest

import jaxsens
from jaxsens import Auto, FirstOrder, InputError, Vmap
from jaxsens.core.measures import Decision, Measure, balancing_threshold
from jaxsens.core.report.page import change_label
from jaxsens.core.results.statistics import ESTIMATED, Estimated
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.points import (
    AVERAGE_SENSITIVITY,
    OF_DECISIONS,
    PER_POSITION,
    Measurement,
    is_statistic,
    of_estimates,
    read_point,
    statistics_of,
    write_point,
)
from jaxsens.core.sweeps.sweep import ESTIMATE_COLUMNS, KEY_COLUMNS, run_sweep
from jaxsens.first_order.estimate import strata
from jaxsens.training.theorem6.run import parse_theorem6_config
from tests.core.sweeps.tiny import TINY, fake_flip_sensitivity, measured_by, problems_of, quiet, tiny_sweep
from tests.refusals import refusal, refused
from tests.training.test_theorem6 import INLINE
from tests.training.tiny import PREDICTION

SOFT = TINY.replace('["softmax", "leftmost-hard"]', '["softmax"]').replace("[4, 6]", "[8, 40]")

BEYOND = "engine_beyond = {{ kind = 'first-order', {} }}"


def sweep_of(measure, text=SOFT):
    return parse_sweep_config(f"{text}\n[measure]\n{measure}\n")


def estimated_flip_sensitivity(model, tokens, **options):
    """The stand-in for the measurement; with the first-order engine its norms are estimates, off by a factor."""
    exact = fake_flip_sensitivity(model, tokens, **options)
    engine = options["engine"]
    if not isinstance(engine, FirstOrder):
        return exact
    estimates = exact.norms * (1 + 0.1 * np.cos(np.arange(len(exact.norms))))
    stratum = strata(estimates, engine.verify, engine.seed)
    measured = stratum != ESTIMATED
    known = Estimated(estimates, stratum, np.where(measured, exact.norms, np.nan), engine.sketch)
    norms = np.where(measured, exact.norms, estimates).astype(np.float32)
    return dataclasses.replace(exact, values=norms, estimated=known)


@pytest.fixture
def stood_in(monkeypatch):
    calls = []

    def measured(model, tokens, **options):
        calls.append({"n": tokens.shape[1], **options})
        return estimated_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, measured)
    return calls


def test_first_order_and_its_options_are_read():
    measure = sweep_of('engine = { kind = "first-order", sketch = 4, verify = 16 }').measure
    engine = FirstOrder(sketch=4, verify=16)
    assert (measure.engine_at(8), measure.engine_at(40), measure.estimates) == (engine, engine, True)
    assert measure.expanded(8) == {
        "flips": {"kind": "substitute"},
        "measure": {"kind": "l2"},
        "engine": {"kind": "first-order", "sketch": 4, "verify": 16},
    }
    measure = sweep_of('engine = "vmap"\nexact_up_to = 8').measure
    assert (measure.engine_at(8), measure.engine_at(9)) == (Vmap(), FirstOrder())
    assert not Measurement().estimates


@pytest.mark.parametrize(
    ("measure", "names"),
    [
        ('engine = "first_order"', "measure.engine"),
        ("verify = 16", "measure.verify"),
        ('engine = { kind = "vmap", sketch = 16 }', "measure.engine.sketch"),
        (BEYOND.format("verify = 16"), "measure.engine_beyond"),
        ('exact_up_to = 8\nengine_beyond = "vmap"', "measure.engine_beyond"),
        ('engine = { kind = "first-order", seed = 3 }', "measure.engine.seed"),
        ('engine = "first-order"\nexact_up_to = 8', "measure.exact_up_to"),
        ("exact_up_to = 40", "measure.exact_up_to"),
        (f"exact_up_to = 8\nmeasure = 'l1'\n{BEYOND.format('sketch = 4')}", "measure.engine_beyond"),
        ("exact_up_to = 0", "measure.exact_up_to"),
        (f"exact_up_to = 8\n{BEYOND.format('verify = 0')}", "measure.engine_beyond.verify"),
        ("sample_beyond = 3", "measure.sample_beyond"),
        ('estimate = ["softmax"]', "measure.estimate"),
        ("exact_up_to = 8\nsample_beyond = 3", "measure.sample_beyond"),
        (
            "exact_up_to = 8\nflips = { kind = 'substitute', sample = 4 }\nsample_beyond = 3\nestimate = []",
            "measure.sample_beyond",
        ),
        (
            f"exact_up_to = 8\nsample_beyond = 3\nestimate = []\n{BEYOND.format('verify = 16')}",
            "measure.engine_beyond",
        ),
        ("exact_up_to = 8\nestimate = []", "measure.estimate"),
        ('exact_up_to = 8\nestimate = ["softmux"]', "measure.estimate"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(measure, names):
    refused(names, sweep_of, measure)


def test_the_theorem_6_experiment_measures_exactly():
    refused(
        "measure",
        parse_theorem6_config,
        INLINE.replace("[[model]]", "[measure]\nexact_up_to = 2\n[[model]]") + PREDICTION,
    )


MIXED = TINY.replace("[4, 6]", "[4, 6, 40]").replace('"leftmost-hard"', '"leftmost-hard", "sparsemax"')


def test_a_variant_that_needs_a_sample_is_named_with_the_remedy_beside_all_other_errors():
    with pytest.raises(InputError) as caught:
        sweep_of(f"exact_up_to = 6\n{BEYOND.format('verify = 0')}", MIXED)
    assert "measure.engine_beyond.verify" in str(caught.value)
    with pytest.raises(InputError) as caught:
        sweep_of(f"exact_up_to = 6\nmeasure = 'l1'\n{BEYOND.format('sketch = 4')}", MIXED)
    told = str(caught.value)
    assert "sketch = 4: only for L2" in told
    for name in ("leftmost-hard", "sparsemax"):
        assert f'variant "{name}": engine = "first-order": it cannot serve this model' in told
    assert told.count("give sample_beyond = K") == 2


@pytest.mark.parametrize(
    ("estimate", "estimated"),
    [("", {"softmax"}), ("estimate = []", set()), ('estimate = ["softmax"]', {"softmax"})],
)
def test_beyond_the_limit_what_is_not_estimated_is_sampled(stood_in, tmp_path, estimate, estimated):
    sweep = sweep_of(f"exact_up_to = 6\nsample_beyond = 3\n{estimate}", MIXED)
    run_sweep(sweep, tmp_path, sweep.points, quiet())
    points_of = {(point.variant, point.n): point for point in sweep.points if point.seed == 0}
    for (variant, n), point in points_of.items():
        first_order = n > 6 and variant in estimated
        drawn = 3 if n > 6 and variant not in estimated else None
        assert point.measure.engine_at(n) == (FirstOrder() if first_order else Auto())
        assert point.measure.flips_at(n).sample == point.expanded["measure"]["flips"].get("sample") == drawn
    told = [(call["n"], call["engine"].kind, call["flips"].sample) for call in stood_in]
    per_seed = 2 * [(40, "first-order", None)] if estimated else []
    assert sorted(told, key=str) == sorted(
        [
            *6 * [(4, "auto", None)],
            *6 * [(6, "auto", None)],
            *per_seed,
            *(6 - len(per_seed)) * [(40, "auto", 3)],
        ],
        key=str,
    )


def test_sampled_points_have_the_keys_of_a_sweep_with_a_sample():
    mixed = {
        (point.variant, point.n, point.seed): point.key
        for point in sweep_of("exact_up_to = 6\nsample_beyond = 3", MIXED).points
    }
    sampled = sweep_of('flips = { kind = "substitute", sample = 3 }', MIXED)
    for point in sampled.points:
        same = mixed[point.variant, point.n, point.seed] == point.key
        assert same == (point.n == 40 and point.variant != "softmax")


@pytest.mark.parametrize(
    ("flips", "known", "expected"),
    [
        (9, None, ("exact", "exact", "exact", "exact")),
        (9, {"measured": 4}, ("estimated", "estimated", "estimated", "estimated")),
        (5, None, ("lower bound", "upper bound", "estimated", "estimated")),
        (5, {"measured": 4}, ("lower bound", "upper bound", "estimated", "estimated")),
    ],
)
def test_the_extremes_of_a_sample_are_bounds(stood_in, tmp_path, flips, known, expected):
    point = parse_sweep_config(SOFT).points[0]
    result = point.measure.flip_sensitivity(point.source.build(point.n, 0), point.tokens(), 0)
    written = write_point(tmp_path, point, result, ("mean",), 1.0)
    changed = dataclasses.replace(written, flips=flips, population=9, estimated=known)
    assert tuple(map(changed.status, ("max", "min", "mean", "q90"))) == expected
    assert changed.status("q100") == expected[0]
    assert changed.status("q0") == expected[1]


def keys(sweep):
    return {(point.n, point.seed): point.key for point in sweep.points}


def test_points_up_to_the_limit_have_the_keys_of_an_exact_sweep_and_longer_ones_those_of_estimates():
    exact, limited = (
        keys(parse_sweep_config(SOFT)),
        keys(sweep_of(f"exact_up_to = 8\n{BEYOND.format('verify = 16')}")),
    )
    estimated = keys(sweep_of('engine = { kind = "first-order", verify = 16 }'))
    for (n, seed), key in limited.items():
        assert key == (exact if n == 8 else estimated)[n, seed]
    assert exact[40, 0] != estimated[40, 0] != keys(sweep_of("exact_up_to = 8"))[40, 0]
    assert keys(sweep_of(f"exact_up_to = 8\n{BEYOND.format('verify = 64')}")) == keys(
        sweep_of("exact_up_to = 8")
    )


def test_an_estimated_point_keeps_what_is_known_of_its_error(stood_in, tmp_path):
    sweep = sweep_of(f"exact_up_to = 8\n{BEYOND.format('verify = 20')}")
    point = sweep.points[-1]
    result = point.measure.flip_sensitivity(point.source.build(point.n, 1), point.tokens(), 1)
    written = write_point(tmp_path, point, result, ("mean", "max", "q90"), 1.0)
    read, again = read_point(point.path(tmp_path), point.key, ("mean", "max", "q90", "min"))
    assert read.estimated is not None
    assert result.accuracy is not None
    assert read.estimated == written.estimated == of_estimates(again)
    assert read.estimated["measured"] == 20
    assert (read.estimated["mean_low"], read.estimated["mean_high"]) == result.mean_interval()
    assert read.estimated["rank_correlation"] == result.accuracy.rank_correlation
    assert read.statistics["mean"] == result.mean != result.norms.mean()
    assert read.statistics["max"] == result.max == result.norms[result.exact].max()
    assert read.statistics["q90"] == result.quantile(0.9)
    assert read.statistics["min"] == result.norms.min()
    assert statistics_of(again, ["mean"]) == {"mean": result.mean}
    assert f"estimated, the mean: {result.mean_interval().text(3)}" in read.summary()


def test_the_table_of_points_says_which_are_estimates(stood_in, tmp_path):
    sweep = sweep_of(f"exact_up_to = 8\n{BEYOND.format('verify = 16')}")
    assert run_sweep(sweep, tmp_path, sweep.points, quiet()).finished == 4
    rows = list(csv.DictReader((tmp_path / "points.csv").read_text().splitlines()))
    assert tuple(rows[0]) == (
        *(*KEY_COLUMNS, "mean", "max", "q90", "mean_is", "max_is", "q90_is"),
        *ESTIMATE_COLUMNS,
    )
    for row in rows:
        if row["n"] == "8":
            assert all(row[name] == "" for name in ESTIMATE_COLUMNS)
            assert row["mean_is"] == row["max_is"] == "exact"
        else:
            assert row["mean_is"] == row["max_is"] == "estimated"
            assert row["measured"] == "16"
            assert float(row["mean_low"]) <= float(row["mean"]) <= float(row["mean_high"])
    exact = parse_sweep_config(SOFT)
    assert exact.plan.columns == (*KEY_COLUMNS, "mean", "max", "q90", "mean_is", "max_is", "q90_is")


def test_a_point_whose_mean_has_no_interval_is_kept_and_read(stood_in, tmp_path):
    point = sweep_of('engine = { kind = "first-order", verify = 2 }').points[-1]
    result = point.measure.flip_sensitivity(point.source.build(point.n, 1), point.tokens(), 1)
    write_point(tmp_path, point, result, ("mean",), 1.0)
    read, _ = read_point(point.path(tmp_path), point.key, ("mean",))
    assert read.estimated is not None
    assert read.estimated["mean_high"] == math.inf
    assert read.estimated["slope"] != read.estimated["slope"]  # NaN


DECIDED = TINY.replace('"q90"]', f'"{AVERAGE_SENSITIVITY}"]')


def test_the_average_sensitivity_of_a_point_is_kept_with_it(tmp_path):
    sweep = sweep_of('measure = "decision"\nengine = "vmap"', DECIDED)
    point = sweep.points[0]
    tokens = point.tokens()
    result = point.measure.flip_sensitivity(point.model(), tokens, point.seed)
    assert set(result.norms.tolist()) <= {0, 1}
    kept = write_point(tmp_path, point, result, sweep.statistics, 1.0)
    assert kept.statistics[AVERAGE_SENSITIVITY] == pytest.approx(result.norms.sum() / len(tokens))
    assert list(kept.statistics) == ["mean", "max", AVERAGE_SENSITIVITY]
    assert kept.status(AVERAGE_SENSITIVITY) == "exact"
    again, _ = read_point(point.path(tmp_path), point.key, sweep.statistics)
    assert again.statistics == kept.statistics


def test_it_is_a_statistic_of_decisions_only():
    assert is_statistic(AVERAGE_SENSITIVITY)
    refused("statistics", sweep_of, 'measure = "l1"', DECIDED)
    sweep = sweep_of('measure = "kl"', TINY)
    result = sweep.points[0].measure.flip_sensitivity(sweep.points[0].model(), sweep.points[0].tokens(), 0)
    with pytest.raises(InputError, match="average_sensitivity: "):
        statistics_of(result, ["mean", AVERAGE_SENSITIVITY])
    assert np.isfinite(statistics_of(result, ["mean"])["mean"])


@pytest.mark.parametrize("norm", ["cosine", "kl", "decision"])
def test_what_is_of_norms_only_refuses_the_others_before_anything_runs(norm):
    text = f'measure = "{norm}"'
    refused("measure.measure", sweep_of, f"{text}\n[bounds]", TINY)
    assert sweep_of(f"{text}\n[bounds]\nworst = false\ncertified = false", TINY).measure.measure.kind == norm
    with refusal("measure.measure", "model[0].train.language", "model[0].train.optimiser"):
        parse_theorem6_config(f"{INLINE}\n[measure]\n{text}\n")


def test_decisions_are_not_estimated_beyond_a_length_and_distances_are():
    table = TINY.replace('["softmax", "leftmost-hard"]', '["softmax"]')
    refused("measure.exact_up_to", sweep_of, 'measure = "decision"\nexact_up_to = 4', table)
    assert sweep_of('measure = "kl"\nexact_up_to = 4', table).measure.measure.kind == "kl"


def test_a_single_output_has_no_direction():
    refused("measure.measure", sweep_of, 'measure = { kind = "cosine", outputs = [1] }', TINY)


def test_every_measure_has_a_label_for_axes():
    labels = [change_label(norm) for norm in Measure.kinds]
    assert len(set(labels)) == len(labels)
    assert not any("{" in label for label in labels)
    with pytest.raises(InputError, match="the report has no rule for the measure other"):
        change_label("other")


ONE_OUTPUT = DECIDED.replace('"average-sensitivity"]', ", ".join(f'"{name}"' for name in OF_DECISIONS) + "]")
ONE_OUTPUT += 'logits = 1\n[inputs]\nkind = "all"\n'


def test_what_a_sweep_of_decisions_cannot_give_is_refused():
    threshold = "measure.measure.threshold"
    for path, measure in (
        ("statistics", 'measure = "decision"\nflips = { kind = "substitute", sample = 3 }'),
        (threshold, 'measure = { kind = "l2", threshold = 0.5 }'),
        ("statistics", 'measure = "decision"\nsample_beyond = 3\nexact_up_to = 4'),
        (threshold, 'measure = { kind = "decision", threshold = "mean" }'),
    ):
        refused(path, sweep_of, measure, ONE_OUTPUT)
    median = 'measure = { kind = "decision", threshold = "median" }'
    refused("inputs.count", sweep_of, median, ONE_OUTPUT.replace('kind = "all"', ""))
    refused(threshold, sweep_of, 'measure = { kind = "decision", threshold = 0.5 }', DECIDED)
    assert sweep_of(
        'measure = { kind = "decision", threshold = 0.5, outputs = [1] }', DECIDED
    ).measure.measure == (Decision(0.5, outputs=(1,)))


@pytest.mark.parametrize(
    ("flips", "sound"),
    [
        ('"substitute", sample = 3', True),
        ('"substitute", symbols = 2, sample = 3', True),
        ('"substitute", symbols = [0, 1]', True),
        ('"substitute", symbols = [0, 1], sample = 3', False),
        ('"substitute", groups = [[0, 1]]', False),
        ('"delete"', True),
        ('"delete", sample = 3', False),
    ],
)
def test_flips_that_do_not_say_how_many_positions_they_are_of_are_refused_with_the_config(flips, sound):
    measure = f'measure = "decision"\nflips = {{ kind = {flips} }}'
    text = ONE_OUTPUT.replace(", ".join(f'"{name}"' for name in OF_DECISIONS), f'"{PER_POSITION}"')
    if sound:
        assert sweep_of(measure, text).statistics == ("mean", "max", PER_POSITION)
    else:
        refused("statistics", sweep_of, measure, text)


def test_the_balancing_threshold_splits_outputs_as_evenly_as_it_can():
    draws = np.random.default_rng(0)
    for count in (2, 3, 10, 11):
        outputs = draws.normal(size=count)
        threshold = balancing_threshold(outputs, 1e-16)
        assert abs((outputs > threshold).sum() - count / 2) <= 0.5
        assert threshold not in outputs
    ones = np.array([0.0, 1, 1, 1, 0, 1])
    assert balancing_threshold(ones, 1e-7) == 0.5
    near = np.repeat([1.0, 2.0, 3.0], [3, 4, 2]) + 1e-7 * draws.uniform(size=9)
    assert balancing_threshold(near, 1e-7) == pytest.approx(1.5)
    for same in (near[:3], np.zeros(4), np.full(2, -3.0)):
        size = np.abs(same).max() or 1
        assert 1e-7 * size < balancing_threshold(same, 1e-7) - same.max() < 1e-3 * size


def test_problems_are_told_with_the_others():
    measure = "\n[measure]\nflips = {{ kind = 'substitute', positions = {} }}\n"
    for wrong in ('"all"', "[]", '["all"]', "[-1]", "[1.0]", '["0:4:0"]', '["1.5:"]', "[true]"):
        (problem,) = problems_of(TINY + measure.format(wrong))
        assert problem.startswith("measure.flips.positions = ")
        assert 'ranges such as "0:16"' in problem
    both = problems_of(TINY + measure.format("[5]"))
    assert len(both) == 2
    assert both[0] == (
        'measure.flips.positions = 5: variant "softmax": positions from 0 to 3, those of an input of length 4'
    )
    (bounded,) = problems_of(TINY + measure.format("[1]") + "[bounds]\n")
    assert "all symbols at all positions but the one that is read" in bounded
    trained = f'lengths = [4]{measure.format("[1]")}[[model]]\nname = "a"\nlanguage = "parity"\n'
    refused("measure.flips model[0].language", parse_theorem6_config, trained)


def test_a_point_flips_these_positions_and_no_others():
    sweep = tiny_sweep(
        after='\n[measure]\nflips = { kind = "substitute", positions = ["readout", "0.0:0.5"] }\n'
    )
    point = sweep.points[2]
    assert point.n == 6
    model = point.model()
    result = point.measure.flip_sensitivity(model, point.tokens(), point.seed)
    assert set(result.positions) == {0, 1, 2, 5}
    own = jaxsens.flip_sensitivity(model, point.tokens(), flips=jaxsens.Substitute(positions=[0, 1, 2, 5]))
    np.testing.assert_array_equal(result.norms, own.norms)
    assert point.expanded["measure"]["flips"]["positions"] == ["readout", "0.0:0.5"]
