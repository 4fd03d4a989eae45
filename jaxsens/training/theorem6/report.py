"""The report of the Theorem 6 experiment: what trained models predict, how sensitive they are, and what theory says."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import only_inside
from jaxsens.core.base.text import duration
from jaxsens.core.report.data import spreads
from jaxsens.core.report.figures import ReportFigure, panel_figure, sensitivity_figure
from jaxsens.core.report.fits import ExponentFit, enumeration, fit_exponents, summary_sentence
from jaxsens.core.report.page import (
    DASH,
    Report,
    ReportTable,
    Section,
    boundedness,
    exponent_table,
    flips_text,
    table_of,
    write_page,
    write_summary,
)
from jaxsens.core.report.panels import Guide, Line, Panel, variant_styles
from jaxsens.core.report.texts import text
from jaxsens.core.sweeps.sweep import KEY_COLUMNS
from jaxsens.formal.languages import Dyck, Language
from jaxsens.training.theorem6.recurrent_parity import NEVER
from jaxsens.training.theorem6.results import (
    CONFIG,
    ROWS,
    KeptRow,
    Lines,
    PlannedModel,
    Row,
    SensitivityRow,
    Theorem6Plan,
    complete,
    lines_of,
    read_plan,
    read_rows,
)

if TYPE_CHECKING:
    import pandas

DEFAULT_TITLE = "What trained models predict as inputs grow"

STATISTICS = ("mean", "max")

_FIGURES = ("cross-entropy-", "recognition-", "sensitivity-")
"""The beginnings of the names of all figures of this report."""

_LEAST = 1e-9
"""In nats. Levels that are closer to each other, or to 0, differ only by rounding: no share of them is taken."""


@dataclass(frozen=True)
class Group:
    """The models that do one task on one language, which share figures and tables.

    Attributes:
        task: "prediction" or "recognition".
        language: of the words.
        models: as planned, in the order of the config.
        slug: for the names of files.
        rows: what was measured of these models.
        fit_from: the length from which exponents are fitted.
    """

    task: str
    language: Language
    models: tuple[PlannedModel, ...]
    slug: str
    rows: tuple[Row, ...]
    fit_from: int

    @property
    def title(self) -> str:
        """The language's name with its options."""
        settings = dict(self.language.settings)
        name = str(settings.pop("name"))
        if isinstance(self.language, Dyck):
            name = f"{settings.pop('kinds')}{name}"
        return ", ".join(
            [name.upper(), *(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())]
        )

    @property
    def has_choice(self) -> bool:
        """Whether the kind of a closing bracket is to be chosen."""
        return self.task == "prediction" and isinstance(self.language, Dyck) and self.language.kinds > 1

    @property
    def gap(self) -> str:
        """The distance to the optimum that Theorem 6 predicts, as a formula; only for groups with such a choice."""
        return f"P0 (1 \N{MINUS SIGN} p) log {self.language.settings['kinds']}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(model.name for model in self.models)

    @cached_property
    def lines(self) -> dict[int, Lines]:
        """What cross-entropy is compared with, by length: all lengths at which a model of the group was evaluated."""
        return {n: lines_of(self.language, n) for n in sorted({row.n for row in self.rows})}

    @cached_property
    def scores(self) -> pandas.DataFrame:
        """The table of predictions or recognitions: a row per model ("variant"), length and seed.

        Column "per_choice", where there is a choice, is the part of the cross-entropy that chooses the kind of bracket,
        divided by how often there is such a choice.
        """
        table = self._table(self.task)
        if not self.has_choice:
            return table
        # A blind guess costs log k per choice, and `choice_bound` per symbol: their ratio says how often there is one.
        blind = math.log(self.language.settings["kinds"])
        often = [(self.lines[n].choice_bound or math.nan) / blind for n in table["n"]]
        return table.assign(per_choice=np.asarray(table["choice"], dtype=np.float64) / often)

    @cached_property
    def sensitivity(self) -> pandas.DataFrame:
        """Flip sensitivity as the table of points of a sweep: the models are the variants."""
        return self._table("sensitivity").filter([*KEY_COLUMNS, *STATISTICS])

    @cached_property
    def fits(self) -> tuple[ExponentFit, ...]:
        """The exponents of the sensitivity."""
        return fit_exponents(self.sensitivity, self.names, self.fit_from)

    def estimate(self, model: str, n: int, value: str, error: str) -> tuple[float, float]:
        """The mean of a column over seeds, which all have the same number of words, and its standard error."""
        rows = self.scores.query("variant == @model and n == @n")
        values, errors = (np.asarray(rows[name], dtype=np.float64) for name in (value, error))
        return float(values.mean()), float(np.sqrt(np.sum(errors**2))) / len(errors)

    def longest(self, model: str) -> int:
        """The longest words on which a model was evaluated."""
        return max(row.n for row in self.rows if row.model == model)

    def _table(self, kind: str) -> pandas.DataFrame:
        import pandas as pd

        rows = [dataclasses.asdict(row) for row in self.rows if isinstance(row, ROWS[kind])]
        return pd.DataFrame(rows).rename(columns={"model": "variant"})


@dataclass(frozen=True)
class Theorem6Data:
    """Everything that the report shows: what the config asks for, and the models evaluated at each length."""

    plan: Theorem6Plan
    measured: tuple[KeptRow, ...]

    @cached_property
    def evaluated(self) -> set[tuple[str, int]]:
        """The models with the lengths at which they are evaluated."""
        return {(one.row.model, one.row.n) for one in self.measured}

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups with at least one row, in the order of the config."""
        known = {model for model, _ in self.evaluated}
        found: dict[tuple[str, str], list[PlannedModel]] = {}
        for model in self.plan.models:
            if model.name in known:
                found.setdefault((model.task, str(sorted(model.language.items()))), []).append(model)
        return tuple(
            Group(
                task,
                models[0].learned,
                tuple(models),
                f"{task}-{k}",
                tuple(one.row for one in self.measured if one.row.model in {model.name for model in models}),
                self.plan.fit_from,
            )
            for k, ((task, _), models) in enumerate(found.items(), start=1)
        )


def load_theorem6(directory: str | os.PathLike[str]) -> Theorem6Data:
    """Reads everything that the report of a directory shows: models at lengths at which nothing is missing.

    Raises:
        InputError: if this is not a directory of the experiment, or no model was evaluated yet.
    """
    plan = read_plan(directory)
    measured = complete(read_rows(directory, plan), plan)
    if not measured:
        raise InputError.of(
            "directory", str(directory), "no model was evaluated here yet; run `jaxsens theorem6` again"
        )
    return Theorem6Data(plan, measured)


def write_theorem6_report(
    directory: str | os.PathLike[str], format: str = "svg", width: str = "page"
) -> tuple[Path, tuple[str, ...], tuple[ExponentFit, ...]]:
    """Writes summary.csv, figures/ and report.html into a directory of the experiment.

    Figures of an earlier report that this one does not have are removed. The report of an unfinished experiment says
    what is missing. Each file is written atomically. Takes some seconds.

    Returns:
        The path of the page, what was found in sentences, and the fitted exponents.

    Raises:
        InputError: if no model was evaluated yet.
    """
    folder = Path(directory)
    data = load_theorem6(folder)
    fits = tuple(fit for group in data.groups for fit in group.fits)
    report = build_theorem6_report(data)
    with only_inside(folder):
        write_summary(folder / "summary.csv", fits)
        page = write_page(report, folder, format, width)
    kept = {figure.name for figure in report.figures}
    for path in [path for kind in ("*.svg", "*.png", "*.pdf") for path in (folder / "figures").glob(kind)]:
        if path.stem.startswith(_FIGURES) and path.stem not in kept:
            path.unlink()
    return page, found(data), fits


def build_theorem6_report(data: Theorem6Data) -> Report:
    """Chooses what the report shows."""
    growth = [
        f"{group.title}, {group.task}: {summary_sentence(group.fits, statistic)}"
        for group in data.groups
        for statistic in STATISTICS
    ]
    return Report(
        title=data.plan.title or DEFAULT_TITLE,
        claim=data.plan.claim,
        introduction=[text("known-of-trained-models"), text("trained-models")],
        warning=missing_text(data),
        sections=[
            Section("What was found", bullets=[*found(data), *growth]),
            Section("The models", tables=[model_table(data)]),
            *(section for group in data.groups for section in _sections(data, group)),
            Section("The config", ["The config file as it was given:"], code=data.plan.config),
            Section("What was run", tables=[run_table(data)]),
        ],
        files={
            "fitted exponents": "summary.csv",
            **{
                kind.file: kind.file
                for kind in ROWS.values()
                if any(isinstance(one.row, kind) for one in data.measured)
            },
            "config": CONFIG,
        },
    )


def found(data: Theorem6Data) -> tuple[str, ...]:
    """What became of each model on the longest words, a sentence each."""
    return tuple(f"{group.title}: {text}" for group in data.groups for text in sentences(group))


def missing_text(data: Theorem6Data) -> str:
    """Which models and lengths are missing, and why models could not be trained; empty if nothing is missing."""
    failed = {model.name: model.failure for model in data.plan.models if model.failure}
    lacking: dict[str, list[int]] = {}
    for model, n in data.plan.cells:
        if model.name not in failed and (model.name, n) not in data.evaluated:
            lacking.setdefault(model.name, []).append(n)
    listed = [f"{name} at n = {', '.join(map(str, lengths))}" for name, lengths in lacking.items()]
    parts = [f"{name} could not be trained ({failure})" for name, failure in failed.items()]
    parts += [f"not evaluated: {'; '.join(listed)}"] if listed else []
    return f"{'; '.join(parts)}. Run the same experiment again to continue." if parts else ""


def _sections(data: Theorem6Data, group: Group) -> list[Section]:
    if group.task == "prediction":
        about = "Predicting", cross_entropy_figure(group), prediction_table(group)
    else:
        about = "Recognising", recognition_figure(group), recognition_table(group)
    verb, figure, table = about
    rows = [row for row in group.rows if isinstance(row, SensitivityRow)]
    sampled = any(row.flips < row.population for row in rows)
    by_hand = [model.name for model in group.models if model.longest_trained is None]
    sensitivity = sensitivity_figure(
        group.sensitivity,
        group.fits,
        variant_styles(group.names),
        statistics=STATISTICS,
        name=f"sensitivity-{group.slug}",
        heading="How much do the logits change when one symbol is exchanged?",
        norm=data.plan.measure["measure"]["kind"],
    )
    return [
        Section(f"{verb} {group.title}", figures=[figure], tables=[table]),
        Section(
            f"Flip sensitivity of the same models ({group.task})",
            [
                f"Exponents are fitted to the lengths from n = {group.fit_from} on.",
                *([text("samples")] if sampled else []),
                *([text("few-matter")] if sampled and group.has_choice else []),
                *([text("set-by-hand", names=enumeration(by_hand), never=NEVER)] if by_hand else []),
            ],
            figures=[sensitivity],
            tables=[exponent_table(group.fits, {model.name: model.bounded for model in group.models})],
        ),
    ]


def sentences(group: Group) -> tuple[str, ...]:
    """A sentence a model: how its cross-entropy at the longest prefixes compares with chance and with the optimum, or
    its accuracy and margin on the longest words."""
    tell = _prediction_sentence if group.task == "prediction" else _recognition_sentence
    return tuple(tell(group, model, group.longest(model)) for model in group.names)


def _prediction_sentence(group: Group, model: str, n: int) -> str:
    lines, (value, _) = group.lines[n], group.estimate(model, n, "cross_entropy", "standard_error")
    told = {"model": model, "n": n, "value": value, **lines._asdict()}
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


def model_table(data: Theorem6Data) -> ReportTable:
    """What each model is, what it was trained on, and whether it satisfies Lemma 5's condition on embeddings."""
    columns: dict[str, Callable[[PlannedModel], str]] = {
        "model": lambda model: model.name,
        "what it is": lambda model: model.description,
        "task": lambda model: model.task,
        "language": lambda model: model.learned.name,
        "position embeddings": lambda model: boundedness(model.bounded),
        "longest trained on": lambda model: _or_dash(model.longest_trained),
        "steps": lambda model: _or_dash(model.steps),
    }
    return table_of("", data.plan.models, columns, numeric=2)


def _or_dash(value: int | None) -> str:
    return DASH if value is None else str(value)


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
            rows.append(
                (model, str(n), f"{share.median:.3f}", f"{share.low:.3f} to {share.high:.3f}", margin)
            )
    caption = text("table-of-recognitions", title=group.title)
    header = ("model", "n", "accuracy", "smallest to largest seed", "margin")
    return ReportTable(caption, header, rows, numeric=4, collapsed=True)


def run_table(data: Theorem6Data) -> ReportTable:
    """What was run and on what."""
    plan, measured = data.plan, [one for one in data.measured if isinstance(one.row, SensitivityRow)]
    flips = [(row.flips, row.population) for one in measured if isinstance(row := one.row, SensitivityRow)]
    values = {
        "engine": [one.engine for one in measured],
        "number format": [one.dtype for one in measured],
        **{name: [one.versions[name] for one in measured] for name in measured[0].versions},
    }
    rows = [
        ("models and lengths", f"{len(data.evaluated)} of {len(plan.cells)}"),
        ("seeds", ", ".join(map(str, plan.seeds))),
        ("words per length and seed", str(plan.words)),
        ("words per length and seed whose flips are measured", str(plan.inputs)),
        ("flips", flips_text(*map(sum, zip(*flips, strict=True)))),
        ("time of evaluation", duration(sum(one.seconds for one in data.measured))),
        *((name, "; ".join(dict.fromkeys(texts))) for name, texts in values.items()),
    ]
    return ReportTable("", (), rows)


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
    """One column of the scores against length: a line per model."""
    styles, lines = variant_styles(group.names), []
    for model in group.models:
        trained = model.longest_trained
        reach = "set by hand" if trained is None else f"trained up to n = {trained}"
        values = spreads(group.scores, model.name, column)
        lines.append(Line(f"{model.name}:  {reach}", styles[model.name], values))
    part = {"prediction": "prefix", "recognition": "word"}[group.task]
    return Panel(
        title, y_label, lines, [*group.lines], guides, x_label=f"{part} length n (symbols)", log=False
    )
