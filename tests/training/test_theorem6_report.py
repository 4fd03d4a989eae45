"""Trained models in the report of a sweep: pictures between the right lines, words that say what the numbers say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxsens.languages import Dyck, Parity, language
from jaxsens.training.evaluation import EvaluationRecord, lines
from jaxsens.training.theorem6.evaluation import Evaluation
from jaxsens.training.theorem6.report import (
    Group,
    cross_entropy_figure,
    groups,
    prediction_table,
    recognition_figure,
    sentences,
)
from tests.core.report.synthetic import clashes, points, power, sweep_data

LENGTHS = (16, 64, 256, 1024)
SEEDS = (0, 1, 2)
PARITY_TABLE = {"name": "parity", "end_probability": 0.5}
DYCK_TABLE = {"name": "dyck", "kinds": 2, "open_probability": 0.5}


def record(
    name: str, settings: dict, n: int, seed: int, share: float, trained: int | None
) -> EvaluationRecord:
    """What is found of a model that is this share of the way from the optimum to chance."""
    wobble, numbers = 1 + 0.002 * (seed - 1), dict[str, Any]()
    recognises = name.startswith("recognition")
    if recognises:
        numbers |= {"accuracy": 1 - share / 2, "accuracy_error": 0.01}
        numbers |= {"margin": 5 * (1 - share) * wobble, "margin_error": 0.1}
    else:
        numbers |= lines(language(**settings), n)
        optimum, gap = numbers["optimum"], numbers["choice_bound"]
        ceiling = numbers["unigram"] if gap is None else numbers["bound"]
        value = (optimum + share * (ceiling - optimum)) * wobble
        numbers |= {"cross_entropy": value, "excess": value - optimum, "standard_error": 0.01}
        numbers |= {} if gap is None else {"choice": share * gap, "choice_error": 0.002}
    task = "recognition" if recognises else "prediction"
    steps = None if trained is None else 600
    return EvaluationRecord("k", name, n, seed, task, settings, trained, steps, 64, **numbers)


def records(
    name: str, settings: dict, share: float, trained: int | None = 128, lengths: Sequence[int] = LENGTHS
) -> list[EvaluationRecord]:
    return [record(name, settings, n, seed, share, trained) for n in lengths for seed in SEEDS]


def alone(settings: dict, lengths: Sequence[int] = LENGTHS, share: float = 0.5) -> Group:
    """One model on a language, this share of the way from the optimum to chance."""
    (group,) = groups(records("soft", settings, share, lengths=lengths))
    return group


RECORDS = [
    one
    for task in ("parity", "2dyck", "recognition")
    for settings in [DYCK_TABLE if task == "2dyck" else PARITY_TABLE]
    for one in (
        *records(f"{task}-transformer", settings, 0.9),
        *records(f"{task}-lstm", settings, 0.0, 40),
        *(records("exact", settings, 0.0, None) if task == "parity" else ()),
    )
]
"""Transformers that end at chance beside recurrent networks that stay at the optimum."""

PARITY, DYCK, RECOGNITION = groups(RECORDS)


def figure_of(group):
    draw = recognition_figure if group.task == "recognition" else cross_entropy_figure
    figure = draw(group).figure
    assert clashes(figure) == []
    return figure


def guides(axes) -> dict[str, np.ndarray]:
    """The grey lines by their names, which are written at their right ends from bottom to top."""
    drawn = [np.asarray(line.get_xydata()) for line in axes.lines if line.get_color() == "#a6a6a6"]
    named = sorted(
        (text for text in axes.texts if text.get_color() == "#767676"), key=lambda text: text.xy[1]
    )
    ordered = sorted(drawn, key=lambda points: points[-1, 1])
    return {text.get_text(): points for text, points in zip(named, ordered, strict=True)}


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
    # A model's line goes through its medians over seeds, and the legend says how far the model was trained.
    soft = next(line for line in axes.lines if line.get_color() == "#0072B2")
    value = 0.1 * parity.optimal_cross_entropy(9) + 0.9 * parity.unigram_cross_entropy(9)
    np.testing.assert_allclose(np.asarray(soft.get_ydata()), value)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "parity-transformer:  trained up to n = 128",
        "parity-lstm:  trained up to n = 40",
        "exact:  set by hand",
    ]
    assert set(guides(figure_of(RECOGNITION).axes[0])) == {"all correct", "chance"}


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


def test_sentences_give_the_distance_to_chance_and_to_the_optimum():
    soft, lstm, _ = sentences(PARITY)
    assert soft == (
        "parity-transformer: after n = 1024 symbols the cross-entropy, the mean over seeds, is 1.0606, "
        "2.0 % below the unigram level 1.0822; "
        "the optimum is 0.8664. This is 90 % of the way from the optimum to chance."
    )
    assert lstm.endswith("This is 0 % of the way from the optimum to chance.")
    (worse,) = sentences(alone(PARITY_TABLE, share=2.27))
    assert worse.endswith(
        " above the unigram level 1.0822; the optimum is 0.8664. This is worse than chance."
    )
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
def test_where_the_prefix_says_nothing_there_is_no_way_to_chance(settings, lengths, to_unigram, text):
    """At these lengths the unigram level is the optimum, or both are 0: no share of the way between them."""
    last = lengths[-1]
    group = alone(settings, sorted({n for n in lengths if n <= last}))
    (sentence,) = sentences(group)
    assert text in sentence
    assert sentence.endswith(
        "; the optimum is the same: the prefix carries no information about what follows."
    )
    table = prediction_table(group)
    row = next(row for row in table.rows if row[1] == str(last))
    assert row[table.header.index("above unigram")] == to_unigram


def test_three_kinds_of_brackets_are_told_with_their_own_logarithm():
    group = alone({"name": "dyck", "kinds": 3, "open_probability": 0.5})
    figure = cross_entropy_figure(group)
    formula = "P0 (1 \N{MINUS SIGN} p) log 3"
    assert f"the optimum + {formula}: what remains" in figure.caption
    assert formula in prediction_table(group).header
    for text in ("log 2", "round", "square"):
        assert text not in figure.caption
        assert text not in " ".join(prediction_table(group).header)


def test_a_report_has_a_section_for_each_group_and_says_what_hand_set_weights_mean():
    names = dict.fromkeys(one.variant for one in RECORDS)
    data = sweep_data(points({name: {"mean": power(-1)} for name in names}))
    models, *found = Evaluation().sections(data, RECORDS)
    assert [section.heading for section in found] == [
        "Predicting PARITY, end probability 0.5",
        "Predicting 2DYCK, open probability 0.5",
        "Recognising PARITY, end probability 0.5",
    ]
    assert models.tables[0].rows[2] == ("exact", "prediction", "parity", "\N{EM DASH}", "\N{EM DASH}")
    assert [len(section.bullets) for section in found] == [3, 2, 2]
    told = [" ".join(section.paragraphs) for section in found]
    assert ["set by hand" in text for text in told] == [True, False, False]
    assert (
        "means nothing for exact, whose weights are set by hand: where the word cannot end, the logit of the end is -40"
        in told[0]
    )
    assert Evaluation().sections(data, []) == []
