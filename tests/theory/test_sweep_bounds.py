"""The bounds of a sweep: what is asked, what is kept, and what happens where something is wrong; and the report."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from jaxsens import InputError, Placement
from jaxsens.core.report.report import build_report
from jaxsens.core.sweeps import job as jobs
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sweep import RecordsJob, read_plan, read_records
from jaxsens.theory.tables import sweep as bounds
from jaxsens.theory.tables.record import BoundRecord
from jaxsens.theory.tables.report import BoundsData, bounds_sections
from jaxsens.theory.tables.sweep import Bounds, Unsound
from tests.core.report.synthetic import LENGTHS, points, power, sweep_data
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


@pytest.mark.long
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


TABLE = points(
    {
        "softmax": {"mean": power(-1), "max": power(-1, 2.0)},
        "leftmost-hard": {"mean": power(-1), "max": power(0)},
    }
)


def soft(n, seed, **changes):
    values = {
        "worst": 3 / n,
        "certified": 12 / n,
        "log_lemma5": 50.0 - seed - math.log(n),
        "logit_bound": 7.0,
    }
    return BoundRecord("k", "softmax", n, seed, **{**values, **changes})


def hard(n, seed, **changes):
    values = {"worst": 1.0, "matter": 2, "free": n // 2, "notes": {"certified": "hard attention jumps"}}
    return BoundRecord("k", "leftmost-hard", n, seed, **{**values, **changes})


def data(*kinds):
    records = tuple(kind(n, seed) for kind in kinds for n in LENGTHS for seed in range(3))
    return BoundsData(records, TABLE, ("softmax", "leftmost-hard"), "l2")


def section_of(make, seeds=2):
    """The section about softmax attention whose record of a length and a seed `make` makes."""
    records = tuple(make(n, seed) for n in LENGTHS for seed in range(seeds))
    (section,) = bounds_sections(BoundsData(records, TABLE, ("softmax",), "l2"))
    return section


def test_without_records_there_is_no_section():
    assert bounds_sections(data()) == []


def test_both_sides_and_their_exponents_are_said():
    (section,) = bounds_sections(data(soft))
    assert section.heading == "Bounds over all inputs"
    (said,) = section.bullets
    assert "worst input found n^−1.00" in said
    assert "certified for every input n^−1.00" in said
    assert "certified / found at n = 256: 4 (the median over seeds; at most 4)" in said
    (table,) = section.tables
    assert table.rows[0][:5] == ("softmax", "16", "0.1875", "0.75", "4")
    assert table.rows[0][-2:] == (f"{(49 - math.log(16)) / math.log(10):.1f}", "7")
    assert "Lemma 5's closed form falls (A = 7 at n = 16, 7 at n = 256, medians over seeds)" in said


def test_lemma_5_forbids_nothing_where_the_logits_grow_but_for_less_than_half_of_log_n():
    section = section_of(lambda n, seed: soft(n, seed, logit_bound=2.0 * n, log_lemma5=4.0 * n))
    assert "rules nothing out (A = 32 at n = 16, 512 at n = 256, medians over seeds)" in section.bullets[0]
    section = section_of(lambda n, seed: soft(n, seed, log_lemma5=50.0))
    assert "does not fall yet (A = 7 at n = 16, 7 at n = 256, medians over seeds)" in section.bullets[0]
    section = section_of(
        lambda n, seed: soft(n, seed, logit_bound=0.03 * math.log(n), log_lemma5=9 - 0.9 * math.log(n))
    )
    assert "closed form falls" in section.bullets[0]


def test_only_what_is_there_is_spoken_of():
    hard_only = bounds_sections(data(hard))[0]
    assert "From below" in hard_only.paragraphs[0]
    assert "certified" not in hard_only.paragraphs[0]
    section = section_of(lambda n, seed: soft(n, seed, worst=None), seeds=1)
    assert "search" not in section.paragraphs[0]
    records = tuple(hard(n, 0, worst=None) for n in LENGTHS)
    section, missing = bounds_sections(BoundsData(records, TABLE, ("leftmost-hard",), "l2"))
    assert missing.bullets == ["leftmost-hard: no certified bound at 5 of 5 points (hard attention jumps)."]
    assert "on the inputs that were measured" in section.figures[0].caption


def test_hard_attention_gets_its_count_and_the_reason_for_what_it_lacks():
    first, second, missing = bounds_sections(data(soft, hard))
    assert any(text.endswith("; no certified bound.") for text in first.bullets)
    assert missing.heading == "Bounds that are missing, and why"
    assert missing.bullets == ["leftmost-hard: no certified bound at 15 of 15 points (hard attention jumps)."]
    assert second.heading == "Inputs that matter"
    assert second.bullets == ["leftmost-hard: at most 2 free inputs matter at n = 16, 2 at n = 256."]
    assert [figure.name for section in (first, second) for figure in section.figures] == [
        "bounds",
        "worst-inputs",
        "inputs-that-matter",
    ]


@pytest.mark.parametrize("missing", ["worst", "certified", "log_lemma5"])
def test_what_is_missing_is_left_out(missing):
    section = section_of(lambda n, seed: soft(n, seed, **{missing: None}))
    assert "nan" not in str(section.tables).lower()


def test_a_change_of_exactly_0_has_no_ratio_is_drawn_and_is_said_where_a_fit_leaves_it_out():
    section = section_of(lambda n, seed: soft(n, seed, worst=0.0))
    assert {row[4] for row in section.tables[0].rows} == {"\N{EM DASH}"}
    section = section_of(lambda n, seed: BoundRecord("k", "softmax", n, seed, worst=0.0, certified=0.0))
    assert section.bullets == [
        "softmax: worst input found: exactly 0 at every length; certified for every input: exactly 0 at every length."
    ]
    section = section_of(lambda n, seed: soft(n, seed, worst=0.0 if seed else 3 / n))
    expected = "worst input found n^\u22121.00 (5 zeros left out of 10 values); certified"
    assert expected in section.bullets[0]
    without = tuple(hard(n, seed, worst=0.0 if seed else 3 / n) for n in LENGTHS for seed in range(2))
    first, *_ = bounds_sections(BoundsData(without, TABLE, ("leftmost-hard",), "l2"))
    assert "(5 zeros left out of 10 values)" in first.bullets[0]


def test_where_nothing_could_be_had_the_report_says_so_and_why():
    refused = {"matter": "no position is irrelevant"}
    records = tuple(BoundRecord("k", v, n, 0, notes=refused) for v in ("a", "b") for n in LENGTHS)
    (section,) = bounds_sections(BoundsData(records, TABLE, ("a", "b"), "l2"))
    assert section.bullets == ["a and b: no restriction at 5 of 5 points each (no position is irrelevant)."]


def test_a_restriction_that_some_points_lack_is_not_spoken_of_as_if_all_had_it():
    records = tuple(
        hard(n, seed, matter=None, free=None, notes={"matter": "refused"})
        if n == 16 or seed
        else hard(n, seed)
        for n in LENGTHS
        for seed in range(2)
    )
    sections = bounds_sections(BoundsData(records, TABLE, ("leftmost-hard",), "l2"))
    (said,) = next(section for section in sections if section.heading == "Inputs that matter").bullets
    assert "at n = 32, 2 at n = 256. This holds for 4 of 10 points" in said
    assert sections[-1].bullets[-1] == "leftmost-hard: no restriction at 6 of 10 points (refused)."


@pytest.mark.long
@pytest.mark.parametrize("others", [0, 2])
def test_every_certified_variant_has_a_panel_and_a_missing_closed_form_is_said(others):
    names = ["softmax", "pn", *(f"other-{k}" for k in range(others))]
    records = tuple(
        dataclasses.replace(soft(n, 0), variant=name)
        if name != "pn"
        else BoundRecord("k", "pn", n, 0, worst=1 / n, certified=2 / n, notes={"lemma5": "future masked"})
        for name in names
        for n in LENGTHS
    )
    table = points({name: {"mean": power(-1), "max": power(-1)} for name in names}, seeds=1)
    section, missing = bounds_sections(BoundsData(records, table, tuple(names), "l2"))
    (figure,) = section.figures
    axes = [each for each in figure.figure.axes if each.get_visible()]
    assert [each.get_title(loc="left") for each in axes] == names
    assert missing.bullets == ["pn: no closed form of Lemma 5 at 5 of 5 points (future masked)."]


def test_what_no_seed_changes_has_no_interval_over_seeds():
    records = tuple(soft(n, seed, worst=(3 + seed) / n) for n in LENGTHS for seed in range(3))
    said = {}
    for unseeded in (frozenset(), frozenset({"softmax"})):
        sections = bounds_sections(BoundsData(records, TABLE, ("softmax",), "l2", unseeded))
        said[bool(unseeded)] = sections[0].bullets[0]
    assert "certified for every input n^\u22121.00 [\u22121.00, \u22121.00];" in said[False]
    assert "certified for every input n^\u22121.00;" in said[True]
    # The searches of the seeds differ: they are repetitions.
    assert all("worst input found n^\u22121.00 [\u22121.00, \u22121.00];" in text for text in said.values())


def test_maxima_that_are_known_exactly_are_marked_apart_from_those_that_were_searched():
    section = section_of(lambda n, seed: soft(n, seed, worst_exact=n <= 32), seeds=1)
    assert "(every input tried at n = 16 and 32, searched at the others)" in section.bullets[0]
    (figure,) = section.figures
    assert "A hollow marker means that inputs were searched" in figure.caption
    left = figure.figure.axes[0]
    marks = [line for line in left.lines if line.get_marker() != "None"]
    hollow = [line for line in marks if line.get_markerfacecolor() == "white"]
    assert [np.size(line.get_xdata()) for line in hollow] == [3]
    legend = left.get_legend()
    assert legend is not None
    assert any("filled: every input tried" in text.get_text() for text in legend.get_texts())
    section = section_of(lambda n, seed: soft(n, seed, worst_exact=True), seeds=1)
    assert "hollow" not in section.figures[0].caption
    assert "tried" not in section.bullets[0]


def test_the_report_of_a_sweep_has_the_sections():
    records = data(soft, hard).records
    report = build_report(sweep_data(TABLE, bounds=records))
    headings = [section.heading for section in report.sections]
    assert headings.index("Bounds over all inputs") < headings.index("Inputs that matter")
