"""The figures of the Theorem 6 report: cross-entropy, the choice of a bracket, recognition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxsens.analysis.figures import ReportFigure
from jaxsens.analysis.findings import enumeration
from jaxsens.analysis.panels import Guide, Line, Panel, draw_panels
from jaxsens.analysis.style import LineStyle
from jaxsens.analysis.theorem6_data import Group, Reading, Theorem6Data
from jaxsens.experiments.theorem6_cells import PredictionRow
from jaxsens.experiments.theorem6_results import Lines, lines_of

SPREAD = "Line: median over seeds; vertical stroke: smallest to largest seed."


def cross_entropy_figure(data: Theorem6Data, group: Group, styles: Mapping[str, LineStyle]) -> ReportFigure:
    """Cross-entropy of the next symbol against the prefix's length, between the lines of the theory."""
    lengths = data.lengths(group)
    lines = {n: lines_of(group.language, n) for n in lengths}
    panels = [
        Panel(
            title=group.title,
            y_label="cross-entropy of the next symbol (nats)",
            lines=_lines(data, group, styles, lambda row: row.cross_entropy),
            ticks=lengths,
            guides=_cross_entropy_guides(group, lines),
            x_label="prefix length n (symbols)",
            log=False,
        )
    ]
    heading = "Is the next symbol predicted better than by chance?"
    bound = ""
    if group.has_choice:
        panels.append(_choice_panel(data, group, styles, lines))
        bound = (
            f" The line of Theorem 6 is the optimum + {group.gap}: what is left to a model that does not see which "
            "bracket is to be closed. On the right, the part of the cross-entropy that chooses the kind of the closing "
            "bracket, after prefixes that end in a closing bracket and are not balanced, a choice."
        )
    return ReportFigure(
        name=f"cross-entropy-{group.slug}",
        caption=(
            f"{SPREAD} The optimum is the least cross-entropy possible, the unigram level the least without looking at "
            f"the prefix, and log {group.language.outcomes} that of a guess among all outcomes.{bound}"
        ),
        description=f"Cross-entropy against prefix length of {enumeration(group.names)}.",
        figure=draw_panels(panels, heading=heading, share_y=False, width=6.4 if len(panels) == 2 else 8.4),
    )


def recognition_figure(data: Theorem6Data, group: Group, styles: Mapping[str, LineStyle]) -> ReportFigure:
    """Accuracy and margin against the word's length."""
    lengths = data.lengths(group)
    ends = (float(lengths[0]), float(lengths[-1]))
    accuracy = Panel(
        title=f"Accuracy on {group.title}",
        y_label="share of words labelled right",
        lines=_lines(data, group, styles, lambda row: row.accuracy),
        ticks=lengths,
        guides=(Guide("all right", ends, (1.0, 1.0)), Guide("chance", ends, (0.5, 0.5))),
        x_label="word length n (symbols)",
        log=False,
    )
    margin = Panel(
        title="Margin",
        y_label="right label's logit \N{MINUS SIGN} the other's",
        lines=_lines(data, group, styles, lambda row: row.margin),
        ticks=lengths,
        guides=(Guide("undecided", ends, (0.0, 0.0)),),
        x_label="word length n (symbols)",
        log=False,
    )
    return ReportFigure(
        name=f"recognition-{group.slug}",
        caption=(
            f"{SPREAD} Half of the words are in the language, the others are near misses. The margin is a mean over "
            "words; by Lemma 5 near misses have almost the same logits in long words, so that it falls to 0."
        ),
        description=f"Accuracy and margin against word length of {enumeration(group.names)}.",
        figure=draw_panels([accuracy, margin], heading="Are words told from near misses?", share_y=False),
    )


def _lines(
    data: Theorem6Data, group: Group, styles: Mapping[str, LineStyle], reading: Reading
) -> tuple[Line, ...]:
    lines = []
    for model in group.models:
        spreads = data.spreads(model.name, reading)
        reach = (
            "set by hand" if model.longest_trained is None else f"trained up to n = {model.longest_trained}"
        )
        lines.append(
            Line(f"{model.name}:  {reach}", styles[model.name], tuple(spreads), tuple(spreads.values()))
        )
    return tuple(lines)


def _cross_entropy_guides(group: Group, lines: Mapping[int, Lines]) -> tuple[Guide, ...]:
    def guide(label: str, values: Sequence[float | None]) -> Guide:
        return Guide(
            label, tuple(map(float, lines)), tuple(math.nan if value is None else value for value in values)
        )

    found = list(lines.values())
    guides = [
        guide("optimum", [line.optimum for line in found]),
        guide("unigram level", [line.unigram for line in found]),
        guide(f"log {group.language.outcomes}", [line.chance for line in found]),
    ]
    if group.has_choice:
        guides.append(guide("Theorem 6", [line.bound for line in found]))
    else:
        guides.append(guide("log 2", [math.log(2)] * len(found)))
    return tuple(guides)


def _choice_panel(
    data: Theorem6Data, group: Group, styles: Mapping[str, LineStyle], lines: Mapping[int, Lines]
) -> Panel:
    """The part that chooses the kind of bracket, divided by how often there is such a choice."""
    kinds = group.language.settings["kinds"]

    def a_choice(row: PredictionRow) -> float:
        whole = lines[row.n].choice_bound
        return math.nan if row.choice is None or not whole else row.choice / whole * math.log(kinds)

    lengths = data.lengths(group)
    ends = (float(lengths[0]), float(lengths[-1]))
    return Panel(
        title="Choosing which bracket closes",
        y_label="cross-entropy of a choice (nats)",
        lines=_lines(data, group, styles, a_choice),
        ticks=lengths,
        guides=(
            Guide(f"log {kinds}: chance", ends, (math.log(kinds), math.log(kinds))),
            Guide("optimum", ends, (0.0, 0.0)),
        ),
        x_label="prefix length n (symbols)",
        log=False,
    )
