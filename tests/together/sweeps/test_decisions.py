"""Sweeps of decisions, and of chosen positions."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.errors import InputError
from jaxsens.core.measures import Decision, Measure, balancing_threshold
from jaxsens.core.report.figures import change_label
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.points import (
    AVERAGE_SENSITIVITY,
    OF_DECISIONS,
    is_statistic,
    read_point,
    statistics_of,
    write_point,
)
from jaxsens.training.theorem6.run import parse_theorem6_config
from tests.core.sweeps.tiny import TINY, problems_of, tiny_sweep
from tests.refusals import refusal, refused
from tests.training.test_theorem6_config import INLINE

DECIDED = TINY.replace('"q90"]', f'"{AVERAGE_SENSITIVITY}"]')


def sweep_of(measure, text=DECIDED):
    return parse_sweep_config(f"{text}\n[measure]\n{measure}\n")


def test_the_average_sensitivity_of_a_point_is_kept_with_it(tmp_path):
    sweep = sweep_of('measure = "decision"\nengine = "vmap"')
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
    refused("statistics", sweep_of, 'measure = "l1"')
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
    with refusal("measure.measure", "model[0].train.language", "model[0].train.optimiser.steps"):
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
