"""Points of sweeps that were never run: powers of n with as much noise as a test asks for.

Also what a drawn figure shows: its texts, where they stand, and its axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from jaxsens import SweepResult
from jaxsens.core.report.data import FlipTables
from jaxsens.core.report.fits import statistic_columns
from jaxsens.core.sweeps.points import Measurement, PointMetadata
from jaxsens.core.sweeps.sweep import PlannedPoint, PlannedVariant, SweepPlan

LENGTHS = (16, 32, 64, 128, 256)
Law = Callable[[int, int], float]


def power(exponent: float, constant: float = 1.0) -> Law:
    """constant * n ** exponent, for every seed."""
    return lambda n, seed: constant * float(n) ** exponent


def points(laws: dict[str, dict[str, Law]], lengths: Sequence[int] = LENGTHS, seeds: int = 3) -> pd.DataFrame:
    """A table like points.csv: for each variant, each statistic's value as its law says."""
    rows = [
        {"variant": variant, "n": n, "seed": seed, "inputs": 1, "flips": n - 1}
        | {statistic: law(n, seed) for statistic, law in statistics.items()}
        for variant, statistics in laws.items()
        for n in lengths
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)


def six_variants() -> pd.DataFrame:
    """The variants of the shipped configs; one is 0 now and then, one always."""

    def sometimes(n: int, seed: int) -> float:
        return 0.0 if (n + seed) % 3 == 0 else 0.5

    def wobbly(exponent: float) -> Law:
        return lambda n, seed: (1 + 0.2 * np.sin(n + 5 * seed)) * float(n) ** exponent

    return points(
        {
            "softmax": {"mean": wobbly(-1), "max": wobbly(-0.9)},
            "temperature-log": {"mean": wobbly(-0.9), "max": wobbly(-0.7)},
            "temperature-linear": {"mean": wobbly(-0.6), "max": wobbly(-0.05)},
            "unbounded": {"mean": wobbly(-1), "max": wobbly(-0.85)},
            "leftmost-hard": {"mean": sometimes, "max": sometimes},
            "average-hard": {"mean": power(0, 0.0), "max": power(0, 0.0)},
        }
    )


def sweep_data(
    table: pd.DataFrame,
    *,
    title: str = "Synthetic",
    claim: str = "",
    config: str = "lengths = [16, 32]\n",
    variants: Mapping[str, Mapping[str, object]] | None = None,
    planned: Sequence[tuple[str, int, int]] = (),
    bounds: Sequence[Any] = (),
) -> SweepResult:
    """What a report is made from, around a table of points, as if all flips of every point had its mean.

    variants: changes of the planned variants, by name. planned: points that the plan has and the table has not.
    """
    flips, metadata, statistics = FlipTables(), [], statistic_columns(table)
    for row in table.to_dict("records"):
        variant, n, seed = str(row["variant"]), int(row["n"]), int(row["seed"])
        flips.add(variant, n, seed, np.arange(n - 1), np.full(n - 1, row["mean"]))
        metadata.append(
            PointMetadata(
                key="k",
                variant=variant,
                n=n,
                seed=seed,
                inputs=int(row["inputs"]),
                flips=n - 1,
                population=n - 1,
                point={},
                statistics={name: row[name] for name in statistics},
                versions={"jax": "0.10.2"},
                device="cpu",
                dtype="float32",
                precision="highest",
                engine={"name": "vmap", "reason": "serves every model"},
                seconds=1.5,
            )
        )
    keys = dict.fromkeys([*((point.variant, point.n, point.seed) for point in metadata), *planned])
    names = dict.fromkeys(variant for variant, _, _ in keys)
    given = {
        name: {
            "description": f"what {name} is",
            "bounded": name != "unbounded",
            "outputs": "every coordinate",
        }
        | dict((variants or {}).get(name, {}))
        for name in names
    }
    plan = SweepPlan(
        config=config,
        title=title,
        claim=claim,
        lengths=(),
        seeds=(),
        statistics=statistics,
        measure=Measurement().table(),
        inputs={},
        variants=tuple(
            PlannedVariant(**{"name": name, "model": {}, "weights": "random", **given[name]})  # pyright: ignore[reportArgumentType]
            for name in names
        ),
        points=tuple(PlannedPoint(*key, key="k", file="f") for key in keys),
        tables={"bounds": {}} if bounds else {},
    )
    return SweepResult(plan, tuple(metadata), flips, {"bounds": tuple(bounds)})


def axes_titled(figure: Figure, title: str) -> Axes:
    """The axes with this title, be it a title or an annotation above."""
    for axes in figure.axes:
        if any(text.get_text() == title for text in axes.findobj(Text)):
            return axes
    raise AssertionError(f"no axes titled {title!r}")


def y_labels(axes: Axes) -> dict[str, float]:
    """The labels of the vertical axis that are in sight, with their values."""
    low, high = axes.get_ylim()
    marks = zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    return {
        label.get_text(): float(value) for label, value in marks if low <= value <= high and label.get_text()
    }


def clashes(figure: Figure) -> list[str]:
    """Texts that overlap one another or stick out of the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and _is_drawn(text, figure):
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
    found = [
        f"{name!r} sticks out"
        for name, box in boxes
        if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox.x1 or box.y1 > figure.bbox.y1
    ]
    for (name, box), (other_name, other) in combinations(boxes, 2):
        width = min(box.x1, other.x1) - max(box.x0, other.x0)
        height = min(box.y1, other.y1) - max(box.y0, other.y0)
        if width > 1 and height > 1:
            found.append(f"{name!r} overlaps {other_name!r}")
    return found


def _is_drawn(text: Text, figure: Figure) -> bool:
    """Whether the text is of axes that are shown, and no tick label beyond their limits."""
    for axes in figure.axes:  # a tick's label does not always know its axes
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if text in (tick.label1, tick.label2):
                    return axes.get_visible() and low <= tick.get_loc() <= high
    return text.axes is None or text.axes.get_visible()
