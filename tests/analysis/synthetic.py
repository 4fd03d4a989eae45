"""Points of sweeps that were never run: powers of n with as much noise as a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from jaxsens.analysis.profiles import ProfileBuilder
from jaxsens.analysis.sweep_data import PointRun, SweepData

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


def sweep_data(table: pd.DataFrame, **changes: object) -> SweepData:
    """What a report is made from, around a table of points, as if all flips of every point had its mean."""
    builder = ProfileBuilder()
    runs = []
    for row in table.to_dict("records"):
        variant, n, seed = str(row["variant"]), int(row["n"]), int(row["seed"])
        builder.add(variant, n, np.arange(n - 1), np.full(n - 1, row["mean"]))
        runs.append(
            PointRun(
                key=(variant, n, seed),
                flips=n - 1,
                population=n - 1,
                engine="vmap",
                engine_reason="serves every model",
                device="cpu",
                dtype="float32",
                precision="highest",
                seconds=1.5,
                versions={"jax": "0.10.2"},
            )
        )
    variants = list(dict.fromkeys(table["variant"]))
    content = {
        "title": "Synthetic",
        "claim": "",
        "points": table,
        "runs": tuple(runs),
        "profiles": builder.profiles(),
        "planned": tuple(run.key for run in runs),
        "descriptions": {variant: f"what {variant} is" for variant in variants},
        "bounded": {variant: variant != "unbounded" for variant in variants},
        "norm": "l2",
        "outputs": dict.fromkeys(variants, "every coordinate"),
        "constructed": frozenset(),
        "trained": frozenset(),
        "exact_lengths": {},
        "config_text": "lengths = [16, 32]\n",
    }
    return SweepData(**(content | changes))  # type: ignore[arg-type]
