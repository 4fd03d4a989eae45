"""Trained models in the report of a sweep: what they predict between the lines of the theory, in figures and words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsens.core.report.data import SweepData, spreads, text
from jaxsens.core.report.fits import enumeration
from jaxsens.core.report.page import DASH, ReportFigure, ReportTable, Section, panel_figure, table_of
from jaxsens.core.report.panels import Guide, Line, Panel, variant_styles
from jaxsens.core.sweeps.sweep import row_of
from jaxsens.formal.languages import Dyck, Language
from jaxsens.training.baselines import NEVER
from jaxsens.training.evaluation import EVALUATION_COLUMNS, LINES, EvaluationRecord

if TYPE_CHECKING:
    import pandas

_LEAST = 1e-9
"""In nats. Levels that are closer to each other, or to 0, differ only by rounding: no share of them is taken."""


def evaluation_sections(data: SweepData, records: Sequence[EvaluationRecord]) -> list[Section]:
    """The sections of a report on trained models; none without records."""
    if not records:
        return []
    about = [text("known-of-trained-models"), text("trained-models")]
    sampled = {point.variant for point in data.metadata if point.flips < point.population}
    sections = [Section("What the models learned", about, tables=[model_table(records)])]
    for group in groups(records):
        if group.task == "prediction":
            verb, figure, table = "Predicting", cross_entropy_figure(group), prediction_table(group)
        else:
            verb, figure, table = "Recognising", recognition_figure(group), recognition_table(group)
        by_hand = [name for name, trained in group.reach.items() if trained is None]
        about = [text("few-matter")] if group.has_choice and sampled.intersection(group.names) else []
        about += [text("set-by-hand", names=enumeration(by_hand), never=NEVER)] if by_hand else []
        sections.append(Section(f"{verb} {group.title}", about, sentences(group), [figure], [table]))
    return sections


@dataclass(frozen=True)
class Group:
    """The models that do one task on one language, which share a figure and a table.

    Attributes:
        task: "prediction" or "recognition".
        language: of the words.
        slug: for the names of files.
        records: of these models, in the order of the plan.
    """

    task: str
    language: Language
    slug: str
    records: tuple[EvaluationRecord, ...]

    @property
    def title(self) -> str:
        """The language's name with its options."""
        settings = dict(self.language.settings)
        name = str(settings.pop("name"))
        if isinstance(self.language, Dyck):
            name = f"{settings.pop('kinds')}{name}"
        options = (f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
        return ", ".join([name.upper(), *options])

    @property
    def has_choice(self) -> bool:
        """Whether the kind of a closing bracket is to be chosen."""
        return self.task == "prediction" and isinstance(self.language, Dyck) and self.language.kinds > 1

    @property
    def gap(self) -> str:
        """The distance to the optimum that Theorem 6 predicts, as a formula; only for groups with such a choice."""
        return f"P0 (1 \N{MINUS SIGN} p) log {self.language.settings['kinds']}"

    @cached_property
    def reach(self) -> dict[str, int | None]:
        """The longest words on which each model was trained; None for weights that were set by hand."""
        return {record.variant: record.longest_trained for record in self.records}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models, in the order of the config."""
        return tuple(self.reach)

    @cached_property
    def lines(self) -> dict[int, Any]:
        """A record of each length, which has what cross-entropy is compared with there; the shortest first."""
        return {record.n: record for record in sorted(self.records, key=lambda one: one.n)}

    @cached_property
    def scores(self) -> pandas.DataFrame:
        """The rows of evaluation.csv.

        Column "per_choice", where there is a choice, is the part of the cross-entropy that chooses the kind of bracket,
        divided by how often there is such a choice.
        """
        import pandas as pd

        table = pd.DataFrame([row_of(record, EVALUATION_COLUMNS) for record in self.records])
        if not self.has_choice:
            return table
        # A blind guess costs log k per choice, and `choice_bound` per symbol: their ratio says how often there is one.
        kinds = self.language.settings["kinds"]
        often = np.asarray(table["choice_bound"], dtype=np.float64) / math.log(kinds)
        return table.assign(per_choice=np.asarray(table["choice"], dtype=np.float64) / often)

    def estimate(self, model: str, n: int, value: str, error: str) -> tuple[float, float]:
        """The mean of a column over seeds, which all have the same number of words, and its standard error."""
        rows = self.scores.query("variant == @model and n == @n")
        values, errors = (np.asarray(rows[name], dtype=np.float64) for name in (value, error))
        return float(values.mean()), float(np.sqrt(np.sum(errors**2))) / len(errors)


def groups(records: Sequence[EvaluationRecord]) -> tuple[Group, ...]:
    """The groups of models, in the order of the plan."""
    found: dict[tuple[str, str], list[EvaluationRecord]] = {}
    for record in records:
        found.setdefault((record.task, str(sorted(record.language.items()))), []).append(record)
    return tuple(
        Group(task, each[0].learned, f"{task}-{k}", tuple(each))
        for k, ((task, _), each) in enumerate(found.items(), start=1)
    )


def sentences(group: Group) -> tuple[str, ...]:
    """A sentence a model: how its cross-entropy at the longest prefixes compares with chance and with the optimum, or
    its accuracy and margin on the longest words."""
    tell = _prediction_sentence if group.task == "prediction" else _recognition_sentence
    longest = {one.variant: one.n for one in sorted(group.records, key=lambda one: one.n)}
    return tuple(tell(group, model, longest[model]) for model in group.names)


def _prediction_sentence(group: Group, model: str, n: int) -> str:
    lines, (value, _) = group.lines[n], group.estimate(model, n, "cross_entropy", "standard_error")
    told = {"model": model, "n": n, "value": value, **row_of(lines, LINES)}
    if group.has_choice and lines.choice_bound:
        choice, _ = group.estimate(model, n, "choice", "choice_error")
        share = 100 * choice / lines.choice_bound
        return text("predicts-brackets", **told, above=value - lines.optimum, share=share)
    distance, way = abs(value - lines.unigram), lines.unigram - lines.optimum
    far = f"{distance:.4f} nats" if lines.unigram <= _LEAST else f"{100 * distance / lines.unigram:.1f} %"
    told |= {"far": far, "side": "below" if value < lines.unigram else "above"}
    if way <= _LEAST:
        return text("predicts-without-a-way", **told)
    percent = round(100 * (value - lines.optimum) / way)
    part = f"{percent} % of the way from the optimum to chance".replace("-", "\N{MINUS SIGN}")
    # A model that is worse than chance is not part of the way to it.
    return text("predicts", **told, part="worse than chance" if percent > 100 else part)


def _recognition_sentence(group: Group, model: str, n: int) -> str:
    share, margin = (spreads(group.scores, model, column)[n].median for column in ("accuracy", "margin"))
    told = f"{margin:.3g}".replace("-", "\N{MINUS SIGN}")
    return text("recognises", model=model, n=n, percent=100 * share, margin=told)


def model_table(records: Sequence[EvaluationRecord]) -> ReportTable:
    """What each model was trained for, and on what."""
    columns: dict[str, Any] = {
        "model": lambda record: record.variant,
        "task": lambda record: record.task,
        "language": lambda record: record.learned.name,
        "longest trained on": lambda record: str(record.longest_trained or DASH),
        "steps": lambda record: str(record.steps or DASH),
    }
    return table_of("", {record.variant: record for record in records}.values(), columns, numeric=2)


def prediction_table(group: Group) -> ReportTable:
    """Cross-entropy by model and length, and what it is compared with, in nats."""
    rows = []
    for model in group.names:
        for n in spreads(group.scores, model, "cross_entropy"):
            lines = group.lines[n]
            mean, error = group.estimate(model, n, "cross_entropy", "standard_error")
            above = f"{100 * (mean / lines.unigram - 1):+.1f} %" if lines.unigram > _LEAST else DASH
            row = [mean, error, lines.optimum, lines.unigram, lines.chance, above, mean - lines.optimum]
            if group.has_choice:
                row += [*group.estimate(model, n, "choice", "choice_error"), lines.choice_bound or 0.0]
            cells = (cell if isinstance(cell, str) else f"{cell:.4f}" for cell in row)
            rows.append((model, str(n), *(cell.replace("-", "\N{MINUS SIGN}") for cell in cells)))
    header = (
        *("model", "n", "cross-entropy", "\N{PLUS-MINUS SIGN}", "optimum", "unigram"),
        *(f"log {group.language.outcomes}", "above unigram", "above optimum"),
        *(("choosing", "\N{PLUS-MINUS SIGN}", group.gap) if group.has_choice else ()),
    )
    caption = text("table-of-predictions", title=group.title)
    return ReportTable(caption, header, rows, numeric=len(header) - 1, collapsed=True)


def recognition_table(group: Group) -> ReportTable:
    """Accuracy and margin by model and length: medians over seeds."""
    rows = []
    for model in group.names:
        margins = spreads(group.scores, model, "margin")
        for n, share in spreads(group.scores, model, "accuracy").items():
            margin = f"{margins[n].median:.4g}".replace("-", "\N{MINUS SIGN}")
            seeds = f"{share.low:.3f} to {share.high:.3f}"
            rows.append((model, str(n), f"{share.median:.3f}", seeds, margin))
    caption = text("table-of-recognitions", title=group.title)
    header = ("model", "n", "accuracy", "smallest to largest seed", "margin")
    return ReportTable(caption, header, rows, numeric=4, collapsed=True)


def cross_entropy_figure(group: Group) -> ReportFigure:
    """Cross-entropy of the next symbol against the prefix's length, between the lines of the theory."""
    outcomes, lengths = group.language.outcomes, [*group.lines]
    named = {"optimum": "optimum", "unigram": "unigram level", "chance": f"log {outcomes}"}
    named |= {"bound": "Theorem 6"} if group.has_choice else {}
    guides = [
        Guide(label, lengths, [getattr(line, name) for line in group.lines.values()])
        for name, label in named.items()
    ]
    guides += [] if group.has_choice else [Guide("log 2", lengths, [math.log(2)] * len(lengths))]
    panels = [_panel(group, "cross_entropy", group.title, "cross-entropy of the next symbol (nats)", guides)]
    if group.has_choice:
        kinds = group.language.settings["kinds"]
        guides = [_level(group, f"log {kinds}: chance", math.log(kinds)), _level(group, "optimum", 0)]
        title, y_label = "Choosing which bracket closes", "cross-entropy per choice (nats)"
        panels.append(_panel(group, "per_choice", title, y_label, guides))
    choice = text("blind-guess", gap=group.gap) if group.has_choice else ""
    return panel_figure(
        f"cross-entropy-{group.slug}",
        (text("spread"), text("cross-entropy", outcomes=outcomes), choice),
        f"Cross-entropy against prefix length of {enumeration(group.names)}.",
        panels,
        "Is the next symbol predicted better than by chance?",
        share_y=False,
        width=6.4 if len(panels) == 2 else 8.4,
    )


def recognition_figure(group: Group) -> ReportFigure:
    """Accuracy and margin against the word's length."""
    levels = [_level(group, "all correct", 1), _level(group, "chance", 0.5)]
    of_margin = "correct label's logit \N{MINUS SIGN} the other's"
    panels = [
        _panel(group, "accuracy", f"Accuracy on {group.title}", "share of words labelled correctly", levels),
        _panel(group, "margin", "Margin", of_margin, [_level(group, "undecided", 0)]),
    ]
    caption = (text("spread"), text("recognition"))
    about = f"Accuracy and margin against word length of {enumeration(group.names)}."
    heading = "Are words told apart from near misses?"
    return panel_figure(f"recognition-{group.slug}", caption, about, panels, heading, share_y=False)


def _level(group: Group, label: str, y: float) -> Guide:
    return Guide(label, (min(group.lines), max(group.lines)), (y, y))


def _panel(group: Group, column: str, title: str, y_label: str, guides: Sequence[Guide]) -> Panel:
    styles, lines = variant_styles(group.names), []
    for name, trained in group.reach.items():
        reach = "set by hand" if trained is None else f"trained up to n = {trained}"
        lines.append(Line(f"{name}:  {reach}", styles[name], spreads(group.scores, name, column)))
    x_label = f"{'prefix' if group.task == 'prediction' else 'word'} length n (symbols)"
    return Panel(title, y_label, lines, [*group.lines], guides, x_label, log=False)
