"""The report of the Theorem 6 experiment: what trained models predict, how sensitive they are, and what theory says."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxsens.analysis.figures import ReportFigure, sensitivity_figure
from jaxsens.analysis.findings import enumeration, summary_sentence
from jaxsens.analysis.fits import ExponentFit, fit_exponents
from jaxsens.analysis.page import Report, Section, write_page
from jaxsens.analysis.report import ABOUT_SAMPLES
from jaxsens.analysis.report_tables import exponent_table
from jaxsens.analysis.style import LineStyle, variant_styles
from jaxsens.analysis.tables import write_summary
from jaxsens.analysis.theorem6_data import Group, Theorem6Data, load_theorem6
from jaxsens.analysis.theorem6_figures import cross_entropy_figure, recognition_figure
from jaxsens.analysis.theorem6_tables import (
    missing_text,
    model_table,
    prediction_sentences,
    prediction_table,
    recognition_sentences,
    recognition_table,
    run_table,
)
from jaxsens.training.recurrent_parity import NEVER

DEFAULT_TITLE = "What trained models predict as inputs grow"

STATISTICS = ("mean", "max")

WHAT_IS_KNOWN = (
    "Exchange one symbol of an input: with softmax attention and bounded position embeddings the output changes by at "
    "most of order 1/n (Hahn 2020, Lemma 5), whatever the weights, trained ones too. So predictions that hang on one "
    "symbol cannot be told apart in long inputs (Theorem 6): the cross-entropy of predicting the next symbol of PARITY "
    "comes to the unigram level, and for 2DYCK it stays a constant above the optimum. Recurrent networks have no such "
    "limit."
)

WHAT_IS_MEASURED = (
    "Every model reads words that were drawn from the language, up to lengths far beyond those it was trained on. Its "
    "cross-entropy, its accuracy and the change of its logits under exchanges of one symbol are measured on the same "
    "models."
)

FEW_MATTER = (
    "What follows hangs on the brackets that are still open, a few symbols of a long prefix: the mean over all flips "
    "falls for recurrent networks too, and a small sample seldom holds a flip that matters."
)


SET_BY_HAND = (
    "How large the change is says nothing for {names}, set by hand: its logit of the end where the word cannot end is "
    "{never:g} in place of minus infinity. Only that the change is the same at every n means anything."
)

_FIGURES = ("cross-entropy-", "recognition-", "sensitivity-")
"""How the names of all figures of this report begin."""


def write_theorem6_report(
    directory: str | os.PathLike[str],
) -> tuple[Path, tuple[str, ...], tuple[ExponentFit, ...]]:
    """Writes summary.csv, figures/*.png, figures/*.svg and report.html into a directory of the experiment.

    Figures of an earlier report that this one does not have are removed.
    Returns the page's path, what was found in sentences, and the fitted exponents. An experiment that is not finished
    gives a report that says what is missing. Each file is written atomically. Takes some seconds. Raises InputError if
    nothing was evaluated yet.
    """
    folder = Path(directory)
    data = load_theorem6(folder)
    fits = {group.slug: _fits(data, group) for group in data.groups}
    everything = tuple(fit for of_group in fits.values() for fit in of_group)
    write_summary(folder / "summary.csv", everything)
    report = build_theorem6_report(data, fits)
    page = write_page(report, folder)
    _remove_other_figures(report, folder / "figures")
    return page, found(data), everything


def build_theorem6_report(data: Theorem6Data, fits: Mapping[str, Sequence[ExponentFit]]) -> Report:
    """Chooses what the report shows. fits: of each group, by its slug."""
    growth = [
        f"{group.title}, {group.task}: {summary_sentence(fits[group.slug], statistic)}"
        for group in data.groups
        for statistic in STATISTICS
    ]
    sections = [
        Section("What was found", bullets=(*found(data), *growth)),
        Section("The models", tables=(model_table(data),)),
        *(section for group in data.groups for section in _sections(data, group, fits[group.slug])),
        Section("The config", ("As it was given:",), code=data.plan.config),
        Section("What was run", tables=(run_table(data),)),
    ]
    return Report(
        title=data.plan.title or DEFAULT_TITLE,
        claim=data.plan.claim,
        introduction=(WHAT_IS_KNOWN, WHAT_IS_MEASURED),
        warning=missing_text(data),
        sections=tuple(sections),
    )


def _remove_other_figures(report: Report, folder: Path) -> None:
    kept = {figure.name for figure in report.figures}
    for path in [path for kind in ("*.svg", "*.png") for path in folder.glob(kind)]:
        if path.stem.startswith(_FIGURES) and path.stem not in kept:
            path.unlink()


def found(data: Theorem6Data) -> tuple[str, ...]:
    """What became of each model on the longest words, a sentence each."""
    told = {"prediction": prediction_sentences, "recognition": recognition_sentences}
    return tuple(f"{group.title}: {text}" for group in data.groups for text in told[group.task](data, group))


def _sections(data: Theorem6Data, group: Group, fits: Sequence[ExponentFit]) -> list[Section]:
    own = variant_styles(group.names)
    if group.task == "prediction":
        figure, table = cross_entropy_figure(data, group, own), prediction_table(data, group)
        heading = f"Predicting {group.title}"
    else:
        figure, table = recognition_figure(data, group, own), recognition_table(data, group)
        heading = f"Recognising {group.title}"
    return [
        Section(heading, figures=(figure,), tables=(dataclasses.replace(table, collapsed=True),)),
        Section(
            f"Flip sensitivity of the same models ({group.task})",
            (
                f"Exponents are fitted to the lengths from n = {data.plan.fit_from} on.",
                *_sampling(data, group),
                *_set_by_hand(group),
            ),
            figures=(_sensitivity(data, group, fits, own),),
            tables=(exponent_table(fits, group.bounded),),
        ),
    ]


def _sampling(data: Theorem6Data, group: Group) -> tuple[str, ...]:
    """What a random sample of the flips leaves open, where one was measured."""
    rows = [row for cell in data.cells if cell.model in group.names for row in cell.sensitivity]
    if all(row.flips == row.population for row in rows):
        return ()
    return (ABOUT_SAMPLES, FEW_MATTER) if group.has_choice else (ABOUT_SAMPLES,)


def _set_by_hand(group: Group) -> tuple[str, ...]:
    """What the sensitivity of hand-set networks cannot say, where there are some."""
    names = [model.name for model in group.models if model.origin == "exact"]
    return (SET_BY_HAND.format(names=enumeration(names), never=NEVER),) if names else ()


def _sensitivity(
    data: Theorem6Data, group: Group, fits: Sequence[ExponentFit], styles: Mapping[str, LineStyle]
) -> ReportFigure:
    return sensitivity_figure(
        data.sensitivity(group),
        fits,
        styles,
        statistics=STATISTICS,
        name=f"sensitivity-{group.slug}",
        heading="How much do the logits change when one symbol is exchanged?",
        norm=data.plan.measure["norm"],
    )


def _fits(data: Theorem6Data, group: Group) -> tuple[ExponentFit, ...]:
    return fit_exponents(
        data.sensitivity(group),
        variants=group.names,
        statistics=STATISTICS,
        minimum_length=data.plan.fit_from,
    )
