"""A sweep directory read for its report: the one place where the analysis meets what the experiments write."""

from __future__ import annotations

import os
from pathlib import Path

from jaxsens.analysis.points_table import KEY_COLUMNS
from jaxsens.analysis.profiles import ProfileBuilder
from jaxsens.analysis.sweep_data import PointRun, SweepData
from jaxsens.errors import InputError
from jaxsens.experiments.bounds_runner import read_bounds
from jaxsens.experiments.results import read_flips, read_plan
from jaxsens.experiments.store import PointMetadata


def load_sweep(directory: str | os.PathLike[str]) -> SweepData:
    """Everything a report shows of a sweep. Reads each point's file once and holds one point's flips at a time.

    Raises InputError if this is no sweep directory, if no point of it is finished, or if a file is damaged.
    """
    import pandas as pd

    plan = read_plan(directory)
    rows, runs, profiles = [], [], ProfileBuilder()
    for metadata, flips in read_flips(directory):
        keys = [getattr(metadata, column) for column in KEY_COLUMNS]
        rows.append([*keys, *(metadata.statistics[name] for name in plan.statistics)])
        runs.append(_run(metadata))
        profiles.add(metadata.variant, metadata.n, flips["position"], flips["norm"])
    if not rows:
        raise InputError(
            f"directory = {str(directory)!r}: none of its {len(plan.points)} points is finished; run the sweep first"
        )
    return SweepData(
        title=plan.title,
        claim=plan.claim,
        points=pd.DataFrame(rows, columns=[*KEY_COLUMNS, *plan.statistics]),
        runs=tuple(runs),
        profiles=profiles.profiles(),
        planned=tuple((point.variant, point.n, point.seed) for point in plan.points),
        descriptions={variant.name: variant.description for variant in plan.variants},
        bounded={variant.name: variant.bounded for variant in plan.variants},
        norm=plan.norm,
        outputs={variant.name: variant.outputs for variant in plan.variants if variant.outputs},
        constructed=frozenset(variant.name for variant in plan.variants if variant.constructed),
        trained=frozenset(variant.name for variant in plan.variants if variant.trained),
        exact_lengths={v.name: v.exact_length for v in plan.variants if v.exact_length is not None},
        config_text=plan.config,
        bounds=tuple(read_bounds(Path(directory), plan)),
    )


def _run(metadata: PointMetadata) -> PointRun:
    return PointRun(
        key=(metadata.variant, metadata.n, metadata.seed),
        flips=metadata.flips,
        population=metadata.population,
        engine=metadata.engine["name"],
        engine_reason=metadata.engine["reason"],
        device=metadata.device,
        dtype=metadata.dtype,
        precision=metadata.precision,
        seconds=metadata.seconds,
        versions=metadata.versions,
    )
