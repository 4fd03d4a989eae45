"""A corpus as a picture: sensitivity by part of the input, by token, and by label."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from jaxsens.core.results.pictures.plot import LARGEST, families, safe_label
from jaxsens.pretrained.corpus_table import CorpusRow

MOST = 20
"""The number of tokens, and of labels, that a picture has room for."""


def corpus_picture(
    tables: Sequence[Sequence[CorpusRow]], title: str, unit: str, form: Literal["png", "svg"]
) -> bytes:
    """Returns the picture of tables by position, token and label; empty ones are left out."""
    from matplotlib import pyplot

    shown = [table[:MOST] if table[0].by != "position" else table for table in tables if table]
    tall = max(len(table) for table in shown)
    figure, axes = pyplot.subplots(
        1,
        len(shown),
        figsize=(4.6 * len(shown), 1.6 + 0.24 * max(tall, 8)),
        layout="constrained",
        squeeze=False,
    )
    for table, one in zip(shown, axes[0], strict=True):
        draw_table(table, one)
        one.set_xlabel(f"mean size of change {unit}")
    figure.suptitle(title, parse_math=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=200)
    pyplot.close(figure)
    return buffer.getvalue()


def draw_table(table: Sequence[CorpusRow], axes: Any) -> None:
    """Draws rows as bars from above to below, with standard errors, the number of texts behind each."""
    places = np.arange(len(table))
    errors = [0.0 if np.isnan(row.error) else row.error for row in table]
    axes.barh(places, [row.mean for row in table], xerr=errors, color=LARGEST, ecolor="#404040", capsize=2)
    texts = [f"{safe_label(row.key)}  ({row.texts})" for row in table]
    axes.set_yticks(places, texts, fontfamily=families(texts))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_title(
        {"position": "by part of the text", "token": "by token", "label": "by label"}[table[0].by]
        + " (texts)"
    )
