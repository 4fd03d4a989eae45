"""`[attention]` in a sweep: what points keep, the table, the figures, and points that are measured again for it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens.analysis.tables.sweep import ATTENTION_STATISTICS, AttentionTable
from jaxsens.core.report.report import build_report
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import problems_of, quiet

CONFIG = """
lengths = [4, 8, 16]
seeds = 2
variants = ["average-hard"]
[model]
alphabet_size = 2
width = 4
heads = [1, 2]
layers = 2
feed_forward = 0
mask = "strict-future"
[inputs]
count = 2
[measure]
flips = { kind = "substitute", positions = [0, 2] }
[[variant]]
name = "recurrent"
model = { kind = "lstm" }
"""
TABLE = '[attention]\nrows = "read"\n'


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep measured without attention statistics, and then, in the same directory, with them."""
    folder = tmp_path_factory.mktemp("attention")
    before, sweep = parse_sweep_config(CONFIG), parse_sweep_config(CONFIG + TABLE)
    assert [point.key for point in before.points] == [point.key for point in sweep.points]
    assert run_sweep(before, folder, before.points, quiet()).computed == 12
    assert not (folder / "attention.csv").exists()
    return folder, sweep, run_sweep(sweep, folder, sweep.points, quiet())


@pytest.mark.long
def test_points_without_the_statistics_are_measured_again_and_no_others(swept):
    folder, sweep, outcome = swept
    assert (outcome.computed, outcome.finished) == (6, 12)  # the recurrent network has no attention
    assert run_sweep(sweep, folder, sweep.points, quiet()).computed == 0


@pytest.mark.long
def test_the_table_has_the_means_over_words_rows_and_flipped_keys(swept):
    folder, sweep, _ = swept
    table = pd.read_csv(folder / "attention.csv")
    assert tuple(table.columns) == AttentionTable.columns
    assert len(table) == 6 * 3  # one head and two
    point = next(point for point in sweep.points if point.variant == "average-hard" and point.n == 8)
    model = point.model()
    row = table.query("n == 8 and layer == 1 and head == 1").to_dict("records")[0]
    words = [jaxsens.analysis.attention_statistics(model, word) for word in point.tokens()]
    for name in ("largest", "entropy", "first"):
        each = [getattr(word, name)[1, 1] for word in words]
        assert row[name] == pytest.approx(
            np.mean([values[1:].mean() for values in each])
        )  # row 0 sees nothing
        assert row[f"{name}_read"] == pytest.approx(np.mean([values[7] for values in each]))
    assert row["flipped"] == pytest.approx(np.mean([word.received[1, 1, [0, 2]] for word in words]))
    assert row["flipped_read"] == pytest.approx(np.mean([word.read[1, 1, [0, 2]] for word in words]))


@pytest.mark.long
def test_the_report_shows_each_statistic_by_layer(swept):
    folder, _, _ = swept
    data = load_sweep(folder)
    report = build_report(data)
    section = next(section for section in report.sections if section.heading == "Attention")
    assert [figure.name for figure in section.figures] == [
        f"attention-{name}" for name in ATTENTION_STATISTICS
    ]
    assert "the row that is read" in section.paragraphs[0]
    axes = section.figures[0].figure.axes
    assert [one.get_xlabel() for one in axes] == ["input length n (symbols)"] * 2
    (first, second) = section.tables[0].rows
    assert (first[:2], second[:2]) == (("average-hard", "1"), ("average-hard", "2"))
    table = pd.read_csv(folder / "attention.csv").query("n == 16 and layer == 1")
    assert second[2] == f"{np.median(table.groupby('seed')['largest_read'].median()):.3g}"
    # The same rows as medians of all rows, and with a power of n that is known.
    known = [row | {"largest": 3.0 * row["n"] ** -0.5} for row in data.results["attention"]]
    (powers,) = AttentionTable().sections(data, known)
    assert powers.tables[0].rows[1][3].startswith("\N{MINUS SIGN}0.50")
    (each,) = AttentionTable(heads="each").sections(data, data.results["attention"])
    assert [row[:2] for row in each.tables[0].rows if row[1] == "2"] == [
        ("average-hard, head 1", "2"),
        ("average-hard, head 2", "2"),
    ]
    assert not AttentionTable().sections(data, [])


def test_what_is_refused():
    (problem,) = problems_of(CONFIG.replace('variants = ["average-hard"]\n', "") + TABLE)
    assert (
        problem
        == "attention: no variant is a transformer, whose attention can be looked into: leave the table out"
    )
    problems = problems_of(CONFIG + '[attention]\nrows = "some"\nhead = 1\n')
    assert [problem.split(" ")[0].rstrip(":") for problem in problems] == ["attention.rows", "attention.head"]
