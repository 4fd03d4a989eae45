"""The figure of length generalisation: accuracy by bin of lengths, as a heat map for each language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from jaxsens.analysis.panels import add_heading, figure_settings
from jaxsens.experiments.generalisation import Generalisation, GeneralisationRow


def generalisation_figure(experiment: Generalisation, rows: Sequence[GeneralisationRow]) -> Figure:
    """A panel for each bin: models by languages, with the mean accuracy over the seeds in each cell."""
    languages = list(dict.fromkeys(row.language for row in rows))
    models = list(dict.fromkeys(row.model for row in rows))
    bins = experiment.bins
    with figure_settings():
        size = (1.6 + len(bins) * (0.75 * len(languages) + 0.5), 1.9 + 0.5 * len(models))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(1, len(bins), squeeze=False, sharey=True)[0]
        image = None
        for k, (axes, (least, largest)) in enumerate(zip(grid, bins, strict=True)):
            means = np.full((len(models), len(languages)), np.nan)
            for (i, model), (j, language) in (
                (a, b) for a in enumerate(models) for b in enumerate(languages)
            ):
                found = [row.accuracies[k] for row in rows if (row.model, row.language) == (model, language)]
                if found:
                    means[i, j] = np.mean(found)
                    dark = means[i, j] < 0.6
                    axes.text(
                        j,
                        i,
                        f"{means[i, j]:.2f}",
                        ha="center",
                        va="center",
                        color="white" if dark else "black",
                    )
            image = axes.imshow(means, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            axes.set_title(f"{least} to {largest} symbols", fontsize=10)
            axes.set_xticks(range(len(languages)), languages, rotation=35, ha="right")
            axes.set_yticks(range(len(models)), models)
            axes.tick_params(length=0)
            for spine in axes.spines.values():
                spine.set_visible(False)
        if image is not None:
            figure.colorbar(image, ax=list(grid), label="share of words all right", shrink=0.9)
        add_heading(figure, experiment.title or "Accuracy by length")
        figure.draw_without_rendering()
    return figure
