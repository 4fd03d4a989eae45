"""What a training wrote down, as a plot and as a table: the loss by step, and the evaluations during training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsens.core.base.files import only_inside, write_bytes
from jaxsens.core.report.panels import GREY, figure_bytes, grid, line_style

if TYPE_CHECKING:
    import pandas
    from rich.table import Table


def write_training_plot(directory: str | os.PathLike[str]) -> Path:
    """Writes training.svg and training.png into the directory of a training that has ended, each atomically; returns
    the path of the latter."""
    folder = Path(directory)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    with only_inside(folder):
        return write_figure(folder, "training", figure)


def training_figure(metrics: pandas.DataFrame, evaluations: pandas.DataFrame) -> Figure:
    """The loss with the smallest loss possible, and the evaluations by length if there are any."""
    count = 1 if evaluations.empty else 2
    with grid("Progress of the training", count, count, (6.0, 4.2)) as (figure, places):
        known, steps = bool((metrics["optimum"] > 0).any()), metrics["step"]
        places[0].plot(steps, metrics["loss"], color=line_style(0).colour, linewidth=1.4, label="loss")
        if known:
            optimum = metrics["optimum"]
            places[0].plot(steps, optimum, color=GREY, linewidth=1.0, label="smallest possible loss")
        label = "cross-entropy (nats), mean over positions" if known else "loss (nats)"
        places[0].set(title="Loss", ylabel=label)
        if not evaluations.empty:
            _draw_evaluations(places[1], evaluations)
        for axes in places:
            axes.set_xlabel("training step")
            axes.legend(fontsize=9)
    return figure


def training_summary(directory: str | os.PathLike[str]) -> Table:
    """The last evaluation, or the last loss if there was none, as a table for a terminal."""
    from rich import box
    from rich.table import Table

    evaluations, metrics = (read_table(Path(directory) / name) for name in ("evaluation.csv", "metrics.csv"))
    rows = metrics if evaluations.empty else evaluations
    rows = rows[rows["step"] == rows["step"].iloc[-1]].dropna(axis="columns", how="all")
    table = Table(title="After the last step", box=box.SIMPLE_HEAD)
    for name in rows.columns:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows.itertuples(index=False):
        table.add_row(*(f"{value:.6g}" for value in row))
    return table


def read_table(path: Path) -> pandas.DataFrame:
    """The numbers of a CSV file that the training wrote; NaN for an empty field, and no rows if there is no file."""
    import pandas as pd

    return pd.read_csv(path).astype(np.float64) if path.is_file() else pd.DataFrame()


def _draw_evaluations(axes: Axes, evaluations: pandas.DataFrame) -> None:
    column, best, label = "accuracy", 1.0, "share of words labelled correctly"
    if "cross_entropy" in evaluations.columns:
        column, best, label = "excess", 0.0, "cross-entropy above the optimum (nats)"
    for k, (n, rows) in enumerate(evaluations.groupby("n")):
        style = {"color": line_style(k).colour, "marker": line_style(k).marker, "markersize": 4}
        axes.plot(rows["step"], rows[column], linewidth=1.2, label=f"n = {n:g}", **style)
    axes.axhline(best, color=GREY, linewidth=0.8)
    axes.set(title="Evaluations", ylabel=label)


def write_figure(folder: Path, name: str, figure: Figure) -> Path:
    """Writes NAME.svg and NAME.png, each atomically. Returns the path of the latter."""
    for format in ("svg", "png"):
        write_bytes(folder / f"{name}.{format}", figure_bytes(figure, format))
    return folder / f"{name}.png"
