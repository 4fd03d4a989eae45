"""The influence of every position on every row, as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxsens.base.errors import collecting
from jaxsens.sensitivity.pictures.plot import MOST_LABELS, safe_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADES = 6
"""Colours span at most this many powers of ten below the largest influence."""


def draw_influence(
    matrix: Float[np.ndarray, "n n"], norm: str, written: Sequence[str] | None = None, axes: Any = None
) -> Axes:
    """Draws the matrix: flipped positions from top to bottom, output rows from left to right, darker for more.

    Args:
        matrix: the influence of each position on each row; NaN for positions that were not flipped.
        norm: of the changes.
        written: how to write the symbol at each position; None for numbers of positions.
        axes: where to draw; a new figure by default.

    Raises:
        InputError: for something else than Matplotlib axes.
    """
    from matplotlib import pyplot
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm

    with collecting("plot") as problems:
        if axes is not None and not isinstance(axes, Axes):
            problems.add("axes", axes, "Matplotlib axes, or None for a new figure")
    if axes is None:
        _, axes = pyplot.subplots(figsize=(6.4, 5.4), layout="constrained")
    positive = matrix[matrix > 0]
    high = float(positive.max()) if positive.size else 1.0
    low = max(float(positive.min()), high * 10.0**-DECADES) if positive.size else 0.1
    colours = LogNorm(low if low < high else high / 2, high)
    shown = np.ma.masked_where(~(matrix > 0), np.maximum(matrix, low))
    axes.set_facecolor("white")
    image = axes.imshow(shown, norm=colours, cmap="viridis_r", interpolation="nearest")
    for place in np.flatnonzero(np.isnan(matrix).all(axis=1)):
        axes.axhspan(
            place - 0.5, place + 0.5, facecolor="none", edgecolor="#b0b0b0", hatch="////", linewidth=0
        )
    bar = axes.figure.colorbar(
        image, ax=axes, extend="min" if positive.size and positive.min() < low else "neither"
    )
    bar.set_label(f"change of the row, {norm} norm")
    axes.set_xlabel("output row")
    axes.set_ylabel("flipped position")
    if written is not None and len(matrix) <= MOST_LABELS:
        texts = [safe_label(text) for text in written]
        axes.set_xticks(range(len(matrix)), texts, rotation=90)
        axes.set_yticks(range(len(matrix)), texts)
    return axes
