"""The bounds of a sweep: what is asked, what is kept, and what happens where something is wrong."""

from __future__ import annotations

import pytest

from jaxsens.core.base.errors import InputError
from jaxsens.core.placement.placement import Placement
from jaxsens.core.sweeps import job as jobs
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sweep import RecordsJob, read_plan, read_records
from jaxsens.theory.tables import sweep as bounds
from jaxsens.theory.tables.record import BoundRecord
from jaxsens.theory.tables.sweep import Bounds, Unsound
from tests.core.sweeps.tiny import TINY, printed, quiet, tiny_sweep
from tests.refusals import refused
from tests.tolerances import SUBTRACTED

ASKED = "\n[bounds]\nrestarts = 1\n"


def fake_answer(bound):
    return BoundRecord(
        bound.key,
        bound.point.variant,
        bound.point.n,
        bound.point.seed,
        worst=1 / bound.point.n,
        worst_word=(0,) * bound.point.n,
        certified=2 / bound.point.n,
        seconds={"worst": 0.5},
    )


def requests(sweep):
    return [*sweep.table_points["bounds"].values()]


def answer(bound, shared=None):
    reporter = Reporter(quiet(), 1, 0, "")
    return bound.table.answer(bound, reporter, {} if shared is None else shared, Placement())


def read_bounds(folder, plan):
    return read_records(folder, plan, "bounds")


@pytest.fixture
def answered(monkeypatch):
    """Replaces the computation by the stand-in; the list fills with what was asked."""
    asked = []

    def one(table, bound, reporter, shared, placement):
        asked.append(str(bound))
        return fake_answer(bound)

    monkeypatch.setattr(Bounds, "answer", one)
    return asked


def run(sweep, folder):
    console = quiet()
    folder.mkdir(exist_ok=True)
    return jobs.run(RecordsJob(sweep, "bounds", folder), console), printed(console)


def test_a_sweep_without_the_table_asks_for_nothing_and_keeps_its_keys():
    assert tiny_sweep().table_points == {}
    assert [point.key for point in tiny_sweep().points] == [p.key for p in tiny_sweep(after=ASKED).points]


def test_every_point_has_its_bound_in_the_plan(tmp_path):
    sweep = tiny_sweep(after=ASKED)
    sweep.plan.write(tmp_path / "sweep.json")
    plan = read_plan(tmp_path)
    assert plan == sweep.plan
    assert [(b.variant, b.n, b.seed) for b in plan.records["bounds"]] == [
        (p.variant, p.n, p.seed) for p in plan.points
    ]
    assert len({b.key for b in plan.records["bounds"]}) == 8


def test_what_changes_the_numbers_changes_the_key_and_nothing_else_does():
    def keys(text):
        return [bound.key for bound in requests(tiny_sweep(after=text))]

    base = keys(ASKED)
    assert not set(keys(ASKED + "free_fraction = 0.25\n")) & set(base)
    assert not set(keys(ASKED + '[measure]\nmeasure = "l1"\n')) & set(base)
    assert keys(ASKED + "[placement]\nbatch_size = 3\n") == base


def test_bounds_are_computed_once_and_kept(answered, tmp_path):
    sweep = tiny_sweep(after=ASKED)
    outcome, _ = run(sweep, tmp_path)
    assert (outcome.computed, outcome.finished, outcome.planned) == (8, 8, 8)
    first = (tmp_path / "bounds.csv").read_bytes()
    again, _ = run(sweep, tmp_path)
    assert (again.computed, again.finished, len(answered)) == (0, 8, 8)
    assert (tmp_path / "bounds.csv").read_bytes() == first
    lines = first.decode().splitlines()
    assert lines[0].startswith("variant,n,seed,worst,worst_exact,certified,ratio")
    assert lines[1].split(",")[:4] == ["softmax", "4", "0", "0.25"]
    assert lines[1].split(",")[6] == "2.0"
    assert read_bounds(tmp_path, sweep.plan) == [fake_answer(bound) for bound in requests(sweep)]


def test_problems_of_the_table_are_reported_together():
    text = TINY + '\n[bounds]\nrestart = 2\nfree_fraction = 1.5\nworst = "yes"\n'
    refused("bounds.restart bounds.free_fraction bounds.worst", parse_sweep_config, text)


def test_soft_and_hard_attention_each_get_what_applies():
    sweep = tiny_sweep(after=ASKED)
    soft = answer(requests(sweep)[0])
    assert soft.worst is not None
    assert soft.certified is not None
    assert soft.log_lemma5 is not None
    assert soft.worst_exact
    # The bound is of real arithmetic; the search measures in the model's dtype.
    assert soft.worst <= soft.certified * (1 + SUBTRACTED["float32"].relative)
    assert soft.matter is None
    assert "matter" in soft.notes
    # The last symbol of a sweep's inputs is the end-of-sequence symbol, in what is searched too.
    assert soft.worst_word[-1] == 2
    assert soft.worst_position != 3
    hard = answer(requests(sweep)[4])
    assert hard.variant == "leftmost-hard"
    assert hard.certified is None
    assert "certified" in hard.notes
    assert hard.matter is not None
    assert hard.free is not None
    assert hard.matter <= hard.free < hard.n


def test_an_input_beyond_the_certified_bound_is_an_error(monkeypatch):
    sweep = tiny_sweep(after=ASKED)

    def too_small(model, point):
        return {"certified": 1e-9}

    monkeypatch.setattr(bounds, "_certified", too_small)
    with pytest.raises(Unsound, match="above the certified bound"):
        answer(requests(sweep)[0])


def test_a_bound_of_a_constructed_model_is_computed_once_for_all_seeds_and_of_a_random_one_anew(monkeypatch):
    asked = []

    def certify(model, point):
        asked.append((point.variant, point.n, point.seed))
        return {"certified": 1.0}

    def refuse(model, point):
        asked.append("lemma5")
        raise InputError("lemma5: refused")

    monkeypatch.setattr(bounds, "_certified", certify)
    monkeypatch.setattr(bounds, "_lemma5", refuse)
    parity = '[[variant]]\nname = "parity"\nmodel = {construction = "parity"}\n'
    sweep = tiny_sweep(after=f"{parity}[bounds]\nworst = false\nrestrict = false\n")
    shared = {}
    every = [bound for bound in requests(sweep) if bound.point.variant in ("parity", "softmax")]
    records = {
        (bound.point.variant, bound.point.n, bound.point.seed): answer(bound, shared) for bound in every
    }
    assert {record.certified for record in records.values()} == {1.0}
    assert {record.notes["lemma5"] for record in records.values()} == {"lemma5: refused"}
    certified = [what for what in asked if what != "lemma5"]
    assert certified == [("softmax", n, seed) for n in (4, 6) for seed in (0, 1)] + [
        ("parity", 4, 0),
        ("parity", 6, 0),
    ]
    assert asked.count("lemma5") == 6


def test_where_nothing_could_be_had_the_line_beside_the_progress_says_why():
    record = BoundRecord("k", "leftmost-hard", 4, 0, notes={"matter": "too few positions " + "x" * 200})
    assert record.summary().startswith("no restriction (too few positions x")
    assert len(record.summary()) < 200
    assert BoundRecord("k", "lstm", 4, 0, worst=0.5, notes={"certified": "no"}).summary() == "worst 0.5"
