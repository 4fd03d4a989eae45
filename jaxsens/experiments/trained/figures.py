"""The figures of experiments that train: a heat map of accuracy by bin of lengths, and sharpness against the length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsens.base.errors import no_rule
from jaxsens.experiments.report.panels import grid, line_style
from jaxsens.experiments.trained.generalisation import Generalisation, GeneralisationRow
from jaxsens.experiments.trained.sharpness import SharpnessExperiment, SharpnessRow


def figure_of(experiment: object, rows: Sequence[Any]) -> Figure:
    """The figure of an experiment's rows.

    Raises:
        InputError: for an experiment without one.
    """
    match experiment:
        case Generalisation():
            return generalisation_figure(experiment, rows)
        case SharpnessExperiment():
            return sharpness_figure(experiment, rows)
        case _:
            raise no_rule("figure_of", "experiment", experiment, (Generalisation, SharpnessExperiment))


def generalisation_figure(experiment: Generalisation, rows: Sequence[GeneralisationRow]) -> Figure:
    """A panel for each bin: models by languages, with the mean accuracy over the seeds in each cell."""
    languages = list(dict.fromkeys(row.language for row in rows))
    models = list(dict.fromkeys(row.model for row in rows))
    bins = experiment.bins
    heading, size = experiment.title or "Accuracy by length", (0.75 * len(languages) + 0.5, 0.5 * len(models))
    with grid(heading, len(bins), len(bins), size, (1.6, 1.9), sharey=True) as (figure, places):
        image = None
        for k, (axes, (least, largest)) in enumerate(zip(places, bins, strict=True)):
            means = np.full((len(models), len(languages)), np.nan)
            for i, j in np.ndindex(*means.shape):
                shown = (models[i], languages[j])
                found = [row.accuracies[k] for row in rows if (row.model, row.language) == shown]
                if found:
                    means[i, j] = np.mean(found)
                    colour = "white" if means[i, j] < 0.6 else "black"
                    axes.text(j, i, f"{means[i, j]:.2f}", ha="center", va="center", color=colour)
            image = axes.imshow(means, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            axes.set_title(f"{least} to {largest} symbols", fontsize=10)
            axes.set_xticks(range(len(languages)), languages, rotation=35, ha="right")
            axes.set_yticks(range(len(models)), models)
            axes.tick_params(length=0)
            for spine in axes.spines.values():
                spine.set_visible(False)
        if image is not None:
            figure.colorbar(image, ax=places, label="share of words all right", shrink=0.9)
    return figure


_PANELS = {
    "sharpness": "sharpness: rise of the loss under noise",
    "blowup": "layer-norm blow-up",
    "sensitivity": "sensitivity of the output",
}


def sharpness_figure(experiment: SharpnessExperiment, rows: Sequence[SharpnessRow]) -> Figure:
    """A dot for each fitted model and a line through the means, for each function."""
    shown = [name for name in _PANELS if name != "blowup" or experiment.model.layer_norm != "none"]
    heading = experiment.title or "Sharpness of trained models"
    with grid(heading, len(shown), len(shown), (4.4, 4.2)) as (figure, places):
        for axes, name in zip(places, shown, strict=True):
            _draw(axes, name, experiment, rows)
        places[0].legend(fontsize=9)
    return figure


def _draw(axes: Axes, name: str, experiment: SharpnessExperiment, rows: Sequence[SharpnessRow]) -> None:
    for k, function in enumerate(experiment.functions):
        style = line_style(k)
        found = {n: models for n, models in experiment.fitted(rows, function).items() if models}
        means = [np.mean([getattr(model, name) for model in models]) for models in found.values()]
        points = [(n, getattr(model, name)) for n, models in found.items() for model in models]
        if not points:
            continue
        axes.plot([*found], means, color=style.colour, marker=style.marker, markersize=5, label=function)
        axes.plot(*zip(*points, strict=True), color=style.colour, marker=".", linestyle="", alpha=0.4)
    axes.set_yscale("log")
    axes.set_xlabel("length n")
    axes.set_title(_PANELS[name], fontsize=10)
    axes.set_xticks(experiment.lengths)
