"""What a training wrote down, as a plot and as a table: the loss by step, and the evaluations during training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import only_inside
from jaxsens.core.report.panels import GREY, grid, line_style, write_figure

if TYPE_CHECKING:
    import pandas
    from rich.table import Table


def write_training_plot(directory: str | os.PathLike[str]) -> Path | None:
    """Writes training.svg and training.png into a training's directory, each atomically.

    Returns:
        The path of the latter. None, with nothing written, if metrics.csv is missing or has no rows.

    Raises:
        InputError: if a table cannot be read.
    """
    folder = Path(directory)
    metrics = read_table(folder / "metrics.csv")
    if metrics.empty:
        return None
    figure = training_figure(metrics, read_table(folder / "evaluation.csv"))
    with only_inside(folder):
        return write_figure(folder, "training", figure)


def training_figure(metrics: pandas.DataFrame, evaluations: pandas.DataFrame) -> Figure:
    """The loss with the smallest loss possible, and the evaluations by length if there are any."""
    count = 1 if evaluations.empty else 2
    with grid("Progress of the training", count, count, (6.0, 4.2)) as (figure, places):
        _draw_loss(places[0], metrics)
        if not evaluations.empty:
            _draw_evaluations(places[1], evaluations)
        for axes in places:
            axes.set_xlabel("training step")
            axes.legend(fontsize=9)
    return figure


def training_summary(directory: str | os.PathLike[str]) -> Table | None:
    """The last evaluation, or the last loss if there was none, as a table for a terminal; None without either."""
    from rich import box
    from rich.table import Table

    folder = Path(directory)
    tables = (read_table(folder / name) for name in ("evaluation.csv", "metrics.csv"))
    rows = next((table for table in tables if not table.empty), None)
    if rows is None:
        return None
    rows = rows[rows["step"] == rows["step"].iloc[-1]].dropna(axis="columns", how="all")
    table = Table(title="After the last step", box=box.SIMPLE_HEAD)
    for name in rows.columns:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows.itertuples(index=False):
        table.add_row(*(f"{value:.6g}" for value in row))
    return table


def read_table(path: Path) -> pandas.DataFrame:
    """The numbers of a CSV file; NaN for an empty field, and no rows if there is no file.

    Raises:
        InputError: if this is not a table of numbers, or not one that a training wrote.
    """
    import pandas as pd

    from jaxsens.training.records import EVALUATIONS, METRICS

    if not path.is_file() or not path.stat().st_size:
        return pd.DataFrame()
    try:
        table = pd.read_csv(path)
        if unknown := set(table.columns).difference(METRICS, *EVALUATIONS.values()):
            raise ValueError(f"unknown columns: {sorted(unknown)}")
        return table.astype(np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a table of numbers ({error}); remove the file") from error


def _draw_loss(axes: Axes, metrics: pandas.DataFrame) -> None:
    known = bool((metrics["optimum"] > 0).any())
    axes.plot(metrics["step"], metrics["loss"], color=line_style(0).colour, linewidth=1.4, label="loss")
    if known:
        axes.plot(
            metrics["step"], metrics["optimum"], color=GREY, linewidth=1.0, label="smallest possible loss"
        )
    axes.set_title("Loss")
    axes.set_ylabel("cross-entropy (nats), mean over positions" if known else "loss (nats)")


def _draw_evaluations(axes: Axes, evaluations: pandas.DataFrame) -> None:
    predicts = "cross_entropy" in evaluations.columns
    for k, (n, rows) in enumerate(evaluations.groupby("n")):
        axes.plot(
            rows["step"],
            rows["excess" if predicts else "accuracy"],
            color=line_style(k).colour,
            marker=line_style(k).marker,
            markersize=4,
            linewidth=1.2,
            label=f"n = {n:g}",
        )
    axes.axhline(0.0 if predicts else 1.0, color=GREY, linewidth=0.8)
    axes.set_title("Evaluations")
    axes.set_ylabel(
        "cross-entropy above the optimum (nats)" if predicts else "share of words labelled correctly"
    )
