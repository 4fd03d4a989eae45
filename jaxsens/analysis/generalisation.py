"""The figure of length generalisation: accuracy by bin of lengths, as a heat map for each language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from jaxsens.analysis.panels import grid
from jaxsens.experiments.generalisation import Generalisation, GeneralisationRow


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
