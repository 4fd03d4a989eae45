"""The report of the Theorem 6 experiment: pictures between the right lines, words that say what the numbers say."""

from __future__ import annotations

import csv
import dataclasses
import math
import re

import numpy as np
import pytest

from jaxsens.languages import Dyck, Parity
from jaxsens.training.theorem6.report import (
    build_theorem6_report,
    cross_entropy_figure,
    load_theorem6,
    prediction_table,
    recognition_figure,
    sentences,
    write_theorem6_report,
)
from tests.core.report.drawn import clashes
from tests.core.sweeps.tiny import draw_nothing
from tests.refusals import refused
from tests.training.theorem6_synthetic import LENGTHS, alone, experiment, without, write

DATA = experiment()
PARITY, DYCK, RECOGNITION = DATA.groups


def figure_of(group):
    draw = recognition_figure if group.task == "recognition" else cross_entropy_figure
    return draw(group).figure


def guides(axes) -> dict[str, np.ndarray]:
    """The grey lines by their names, which are written at their right ends from bottom to top."""
    drawn = [np.asarray(line.get_xydata()) for line in axes.lines if line.get_color() == "#a6a6a6"]
    named = sorted(
        (text for text in axes.texts if text.get_color() == "#767676"), key=lambda text: text.xy[1]
    )
    ordered = sorted(drawn, key=lambda points: points[-1, 1])
    return {text.get_text(): points for text, points in zip(named, ordered, strict=True)}


def test_models_stand_together_by_task_and_language():
    assert [(group.task, group.title) for group in DATA.groups] == [
        ("prediction", "PARITY, end probability 0.5"),
        ("prediction", "2DYCK, open probability 0.5"),
        ("recognition", "PARITY, end probability 0.5"),
    ]
    assert PARITY.names == ("parity-transformer", "parity-lstm", "exact")
    assert (PARITY.has_choice, DYCK.has_choice, RECOGNITION.has_choice) == (False, True, False)


def test_the_lines_of_parity_are_optimum_unigram_level_and_the_logarithms():
    (axes,) = figure_of(PARITY).axes
    lines, parity = guides(axes), Parity(0.5)
    assert set(lines) == {"optimum", "unigram level", "log 3", "log 2"}
    expected = {
        "optimum": parity.optimal_cross_entropy(64),
        "unigram level": parity.unigram_cross_entropy(64),
        "log 3": math.log(3),
        "log 2": math.log(2),
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(lines[name][:, 0], LENGTHS)
        np.testing.assert_allclose(lines[name][:, 1], value)


def test_the_line_of_theorem_6_for_brackets_is_the_optimum_and_the_blind_guesses():
    axes, choosing = figure_of(DYCK).axes
    lines, dyck = guides(axes), Dyck(2, 0.5)
    bound = [
        dyck.optimal_cross_entropy(n) + dyck.closing_choice_probability(n) * 0.5 * math.log(2)
        for n in LENGTHS
    ]
    np.testing.assert_allclose(lines["Theorem 6"][:, 1], bound)
    assert set(lines) == {"optimum", "unigram level", "log 5", "Theorem 6"}
    assert set(guides(choosing)) == {"log 2: chance", "optimum"}
    soft = next(line for line in choosing.lines if line.get_color() == "#0072B2")
    np.testing.assert_allclose(np.asarray(soft.get_ydata()), 0.9 * math.log(2))


def test_a_model_is_drawn_through_its_medians_over_seeds_and_says_how_far_it_was_trained():
    (axes,) = figure_of(PARITY).axes
    soft = next(line for line in axes.lines if line.get_color() == "#0072B2")
    level = Parity(0.5)
    value = 0.1 * level.optimal_cross_entropy(9) + 0.9 * level.unigram_cross_entropy(9)
    np.testing.assert_allclose(np.asarray(soft.get_ydata()), value)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "parity-transformer:  trained up to n = 128",
        "parity-lstm:  trained up to n = 40",
        "exact:  set by hand",
    ]


@pytest.mark.parametrize("group", DATA.groups, ids=lambda group: group.slug)
def test_no_text_of_a_figure_overlaps_another(group):
    assert clashes(figure_of(group)) == []


def test_sentences_give_the_distance_to_chance_and_to_the_optimum():
    soft, lstm, _ = sentences(PARITY)
    assert soft == (
        "parity-transformer: after n = 1024 symbols the cross-entropy, the mean over seeds, is 1.0606, "
        "2.0 % below the unigram level 1.0822; "
        "the optimum is 0.8664. This is 90 % of the way from the optimum to chance."
    )
    assert lstm.endswith("This is 0 % of the way from the optimum to chance.")
    soft, lstm = sentences(DYCK)
    gap = Dyck(2, 0.5).theorem6_gap(1024)
    assert (
        f"the cross-entropy, the mean over seeds, is {1.0397207 + 0.9 * gap:.4f}, "
        f"{0.9 * gap:.4f} above the optimum 1.0397" in soft
    )
    assert "costs 90 % of what a blind guess costs" in soft
    assert "costs 0 % of what" in lstm
    soft, lstm = sentences(RECOGNITION)
    assert (
        soft
        == "recognition-transformer: at n = 1024 it labels 55 % of the words correctly, with a margin of 0.5 "
        "(medians over seeds)."
    )


def test_a_model_that_is_worse_than_chance_is_said_to_be_worse_and_not_part_of_the_way():
    data = alone(dict(PARITY.language.settings), LENGTHS, share=2.27)
    (soft,) = sentences(data.groups[0])
    assert soft.endswith(" above the unigram level 1.0822; the optimum is 0.8664. This is worse than chance.")


def test_the_table_pools_seeds_and_their_standard_errors():
    table = prediction_table(DYCK)
    row = dict(zip(table.header, table.rows[0], strict=False))
    assert (row["model"], row["n"]) == ("2dyck-transformer", "16")
    assert table.rows[0][3] == f"{0.01 / math.sqrt(3):.4f}"
    assert len(table.rows) == 2 * len(LENGTHS)
    assert all(len(row) == len(table.header) for row in table.rows)


@pytest.mark.long
def test_a_directory_gives_one_page_with_every_figure_and_the_exponents_as_a_table(tmp_path):
    write(DATA, tmp_path)
    page, found, fits = write_theorem6_report(tmp_path)
    text = page.read_text("utf-8")
    assert len(found) == 7
    assert "Incomplete" not in text
    names = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert names == {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert names == {
        "cross-entropy-prediction-1", "cross-entropy-prediction-2", "recognition-recognition-3",
        "sensitivity-prediction-1", "sensitivity-prediction-2", "sensitivity-recognition-3",
    }  # fmt: skip
    assert text.count("<img") == len(names)
    assert not re.search(r'src="(?!data:)', text)
    linked = {name for name in re.findall(r'href="([^"]*)"', text) if "://" not in name}
    assert linked
    assert [name for name in linked if not (tmp_path / name).is_file()] == []
    rows = {
        (row["variant"], row["statistic"]): row
        for row in csv.DictReader((tmp_path / "summary.csv").read_text().splitlines())
    }
    assert len(rows) == len(fits) == 14
    assert float(rows["parity-transformer", "mean"]["exponent"]) == pytest.approx(-1)
    assert float(rows["2dyck-lstm", "max"]["exponent"]) == pytest.approx(0)
    assert "As n grows, the mean change over all flips (exponent of n in brackets) falls about as 1/n" in text


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("settings", "lengths", "to_unigram", "text"),
    [
        (
            {"name": "one-star", "end_probability": 0.1},
            (2, 4, 8),
            "+0.0 %",
            "0.0 % above the unigram level 0.3251",
        ),
        ({"name": "flip-flop"}, (2, 4, 2), "+0.0 %", "0.0 % above the unigram level 0.6390"),
        (
            {"name": "equal-blocks", "stop_probability": 0.9},
            (2, 4, 901),
            "\N{EM DASH}",
            "0.0000 nats above the unigram level 0.0000",
        ),
    ],
)
def test_where_the_prefix_says_nothing_there_is_no_way_to_chance(
    tmp_path, settings, lengths, to_unigram, text
):
    """At these lengths the unigram level is the optimum, or both are 0: no share of the way between them."""
    data = alone(settings, sorted(set(lengths)))
    write(data, tmp_path)
    assert write_theorem6_report(tmp_path)[0].is_file()
    last = lengths[-1]
    data = dataclasses.replace(data, measured=tuple(one for one in data.measured if one.row.n <= last))
    (group,) = data.groups
    (sentence,) = sentences(group)
    assert text in sentence
    assert sentence.endswith(
        "; the optimum is the same: the prefix carries no information about what follows."
    )
    table = prediction_table(group)
    row = next(row for row in table.rows if row[1] == str(last))
    assert row[table.header.index("above unigram")] == to_unigram


def test_three_kinds_of_brackets_are_told_with_their_own_logarithm():
    data = alone({"name": "dyck", "kinds": 3, "open_probability": 0.5}, LENGTHS)
    (group,) = data.groups
    figure = cross_entropy_figure(group)
    formula = "P0 (1 \N{MINUS SIGN} p) log 3"
    assert f"the optimum + {formula}: what remains" in figure.caption
    assert formula in prediction_table(group).header
    for text in ("log 2", "round", "square"):
        assert text not in figure.caption
        assert text not in " ".join(prediction_table(group).header)


def test_of_a_hand_set_network_only_the_slope_of_the_sensitivity_is_said_to_mean_anything():
    report = build_theorem6_report(DATA)
    told = [
        " ".join(section.paragraphs) for section in report.sections if "Flip sensitivity" in section.heading
    ]
    assert ["set by hand" in text for text in told] == [True, False, False]
    assert (
        "means nothing for exact, whose weights are set by hand: where the word cannot end, the logit of the end is -40"
        in told[0]
    )


@pytest.mark.long
def test_figures_of_an_earlier_report_that_this_one_does_not_have_are_removed(tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    write(DATA, tmp_path)
    write_theorem6_report(tmp_path)
    own = tmp_path / "figures" / "my-notes.png"
    own.write_bytes(b"")
    fewer = experiment(("parity",))
    write(fewer, tmp_path)
    write_theorem6_report(tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        own.name,
        *(
            f"{name}-prediction-1.{kind}"
            for name in ("cross-entropy", "sensitivity")
            for kind in ("svg", "png")
        ),
    }
    assert not (tmp_path / "recognition.csv").exists()


def test_what_is_missing_is_said_and_the_rest_is_shown():
    data = without(DATA, "parity-lstm", 1024)
    failed = dataclasses.replace(data.plan.models[-1], failure="the loss is not finite")
    data = dataclasses.replace(
        data,
        plan=dataclasses.replace(data.plan, models=(*data.plan.models[:-1], failed)),
        measured=tuple(one for one in data.measured if one.row.model != failed.name),
    )
    report = build_theorem6_report(data)
    assert report.warning == (
        "recognition-lstm could not be trained (the loss is not finite); not evaluated: parity-lstm at n = 1024. "
        "Run the same experiment again to continue."
    )
    assert any("parity-lstm: after n = 256 symbols" in text for text in report.sections[0].bullets)
    assert len(report.figures) == 6


def test_a_directory_without_the_experiment_or_without_a_complete_length_is_refused(tmp_path):
    assert "no models were trained here" in refused("directory", load_theorem6, tmp_path)
    write(dataclasses.replace(DATA, measured=DATA.measured[:5]), tmp_path)
    assert "no model was evaluated here yet" in refused("directory", load_theorem6, tmp_path)
