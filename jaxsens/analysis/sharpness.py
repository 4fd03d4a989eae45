"""The figure of sharpness: sharpness, layer-norm blow-up and sensitivity of trained models against the length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsens.analysis.panels import grid, line_style
from jaxsens.experiments.sharpness_table import SharpnessExperiment, SharpnessRow

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
