"""What a training wrote down, as a plot and as a table: the loss by step, and the evaluations on the way."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsens.analysis.style import GREY, add_heading, figure_settings, png_bytes, svg_bytes, variant_styles
from jaxsens.errors import InputError
from jaxsens.files import write_bytes

if TYPE_CHECKING:
    from rich.table import Table

Rows = list[dict[str, float]]
"""A CSV file's rows by column; NaN for an empty field."""


def write_training_plot(directory: str | os.PathLike[str]) -> Path | None:
    """Writes training.svg and training.png into a training's directory, each atomically; returns the latter.

    None, and nothing written, where metrics.csv is missing: the losses of an ended training cannot be had again.

    Raises:
        InputError: if a table cannot be read.
    """
    folder = Path(directory)
    metrics = read_rows(folder / "metrics.csv")
    if not metrics:
        return None
    figure = training_figure(metrics, read_rows(folder / "evaluation.csv"))
    write_bytes(folder / "training.svg", svg_bytes(figure))
    write_bytes(folder / "training.png", png_bytes(figure))
    return folder / "training.png"


def training_figure(metrics: Rows, evaluations: Rows) -> Figure:
    """The loss above a vertical distance of the optimum, and, where there were evaluations, these by length."""
    with figure_settings():
        panels = 2 if evaluations else 1
        figure = Figure(figsize=(6.0 * panels, 4.2), layout="constrained")
        grid = figure.subplots(1, panels, squeeze=False)[0]
        _draw_loss(grid[0], metrics)
        if evaluations:
            _draw_evaluations(grid[1], evaluations)
        for axes in grid:
            axes.set_xlabel("step of training")
            axes.legend(fontsize=9)
        add_heading(figure, "What was learned on the way")
        figure.draw_without_rendering()
    return figure


def training_summary(directory: str | os.PathLike[str]) -> Table | None:
    """The last evaluation, or the last loss where there was none, as a table for a terminal; None without either."""
    from rich import box
    from rich.table import Table

    folder = Path(directory)
    rows = read_rows(folder / "evaluation.csv") or read_rows(folder / "metrics.csv")[-1:]
    if not rows:
        return None
    rows = [row for row in rows if row["step"] == rows[-1]["step"]]
    columns = [name for name in rows[0] if not all(math.isnan(row[name]) for row in rows)]
    table = Table(title="After the last step", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{row[name]:.6g}" for name in columns))
    return table


def read_rows(path: Path) -> Rows:
    """The numbers of a CSV file; no rows where there is no file.

    Raises:
        InputError: if it is no table of numbers, or not the one that a training wrote.
    """
    from jaxsens.training.evaluation_table import COLUMNS
    from jaxsens.training.records import METRICS, checked_rows

    if not path.is_file():
        return []
    try:
        header, *rows = checked_rows(path.read_text(encoding="utf-8")) or [()]
        unknown = set(header).difference(METRICS, *COLUMNS.values())
        if unknown:
            raise ValueError(f"unknown columns: {sorted(unknown)}")
        return [
            {name: float(value or "nan") for name, value in zip(header, row, strict=True)} for row in rows
        ]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: no table of numbers ({error}); remove the file") from error


def _draw_loss(axes: Axes, metrics: Rows) -> None:
    step, loss, optimum = (_column(metrics, name) for name in ("step", "loss", "optimum"))
    style = variant_styles(["loss"])["loss"]
    axes.plot(step, loss, color=style.colour, linewidth=1.4, label="loss")
    if np.any(optimum > 0):
        axes.plot(step, optimum, color=GREY, linewidth=1.0, label="least possible on the same targets")
    axes.set_title("Loss")
    axes.set_ylabel("cross-entropy (nats), mean over positions" if np.any(optimum > 0) else "loss (nats)")


def _draw_evaluations(axes: Axes, evaluations: Rows) -> None:
    predicts = "cross_entropy" in evaluations[0]
    name = "excess" if predicts else "accuracy"
    lengths = sorted({int(row["n"]) for row in evaluations})
    styles = variant_styles([str(n) for n in lengths])
    for n in lengths:
        rows = [row for row in evaluations if row["n"] == n]
        style = styles[str(n)]
        axes.plot(
            _column(rows, "step"),
            _column(rows, name),
            color=style.colour,
            marker=style.marker,
            markersize=4,
            linewidth=1.2,
            label=f"n = {n}",
        )
    axes.axhline(0.0 if predicts else 1.0, color=GREY, linewidth=0.8)
    axes.set_title("Evaluations")
    axes.set_ylabel("cross-entropy above the optimum (nats)" if predicts else "share of words labelled right")


def _column(rows: Sequence[dict[str, float]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])
