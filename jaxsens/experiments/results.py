"""What a sweep directory holds, and of which config it is.

DIR/sweep.toml      the config as it was given
DIR/sweep.json      the plan: the config with everything written out, and every point with its key and file
DIR/points/         one Parquet file a point
DIR/points.csv      a row a point
DIR/bounds/, DIR/bounds.csv     bounds over all inputs, if the config asks for them
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jaxsens.errors import InputError
from jaxsens.experiments.bounds import BoundRecord
from jaxsens.experiments.points import PointMetadata, read_point
from jaxsens.experiments.record import Record, read_finished, write_table
from jaxsens.files import write_text
from jaxsens.sealed import DamagedFile

if TYPE_CHECKING:
    import pandas

    from jaxsens.sensitivity.result import FlipSensitivity

_AGAIN = "run the sweep again: what is measured is kept"
_REPORT = ("report.html", "summary.csv")

KEY_COLUMNS = ("variant", "n", "seed", "inputs", "flips")
"""The columns of points.csv before the statistics."""

_BOUND_COLUMNS = (
    *("variant", "n", "seed", "worst", "worst_exact", "certified", "ratio"),
    *("log_lemma5", "logit_bound", "matter", "free"),
)


@dataclass(frozen=True)
class PlannedPoint:
    """A point of a sweep and where its numbers are or will be; `file` is relative to the sweep directory."""

    variant: str
    n: int
    seed: int
    key: str
    file: str


@dataclass(frozen=True)
class PlannedVariant:
    """A variant of a sweep.

    Attributes:
        name: unique within the sweep.
        description: one line on what it is.
        bounded: whether its position embeddings stay bounded; True where it has none.
        model: with every default written out.
        constructed: whether its weights are given by a construction, not drawn by the seed.
        outputs: in words, which coordinates of its output are measured; empty if not known.
        exact_length: the longest input for which a construction is exact; None where there is none.
        trained: whether its weights are those of a checkpoint.
    """

    name: str
    description: str
    bounded: bool
    model: dict[str, Any]
    constructed: bool = False
    outputs: str = ""
    exact_length: int | None = None
    trained: bool = False


@dataclass(frozen=True)
class SweepPlan(Record):
    """What sweep.json says: everything about a sweep except its numbers. Points come in the order of the config.

    `config` is the config as it was given. `inputs` says what the inputs are, by length; `bounds` where the bounds over
    all inputs are, if they are asked for.
    """

    kind: ClassVar[str] = "plan of a sweep"
    config: str
    title: str
    claim: str
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    statistics: tuple[str, ...]
    norm: str
    measure: dict[str, Any]
    inputs: dict[str, dict[str, Any]]
    variants: tuple[PlannedVariant, ...]
    points: tuple[PlannedPoint, ...]
    bounds: tuple[PlannedPoint, ...] = ()


def plan_path(directory: Path) -> Path:
    """Where a sweep directory keeps its plan."""
    return directory / "sweep.json"


def read_plan(directory: str | os.PathLike[str]) -> SweepPlan:
    """Reads the plan of a sweep directory.

    Raises:
        InputError: if it is no sweep directory, or the plan is damaged.
    """
    try:
        return SweepPlan.read(plan_path(Path(directory)))
    except OSError as error:
        raise InputError(f"directory = {str(directory)!r}: no sweep was run here ({error})") from error
    except DamagedFile as error:
        raise InputError(f"{error}; {_AGAIN}") from error


def read_flips(directory: str | os.PathLike[str]) -> Iterator[tuple[PointMetadata, pandas.DataFrame]]:
    """Yields every finished point of the sweep's plan: metadata, and a row a flip (input, position, symbol, norm).

    Raises:
        InputError: if it is no sweep directory, or a file is damaged.
    """
    for metadata, result in _finished(directory, read_plan(directory)):
        yield metadata, result.to_pandas()


def read_points(directory: str | os.PathLike[str]) -> pandas.DataFrame:
    """The table that points.csv holds, from the points' own files. Raises as `read_flips` does."""
    import pandas as pd

    plan = read_plan(directory)
    points = [metadata for metadata, _ in _finished(directory, plan)]
    return pd.DataFrame(_point_rows(points), columns=[*KEY_COLUMNS, *plan.statistics])


def _finished(
    directory: str | os.PathLike[str], plan: SweepPlan
) -> Iterator[tuple[PointMetadata, FlipSensitivity]]:
    def read(point: PlannedPoint) -> tuple[PointMetadata, FlipSensitivity]:
        return read_point(Path(directory) / point.file, point.key, plan.statistics)

    return (found for _, found in read_finished(plan.points, read, _AGAIN))


def write_points_csv(directory: Path, points: Iterable[PointMetadata], plan: SweepPlan) -> None:
    """Writes points.csv: a row a point, in the order given."""
    write_table(directory / "points.csv", [*KEY_COLUMNS, *plan.statistics], _point_rows(points))


def _point_rows(points: Iterable[PointMetadata]) -> list[dict[str, Any]]:
    return [{**{name: getattr(point, name) for name in KEY_COLUMNS}, **point.statistics} for point in points]


def read_bounds(directory: str | os.PathLike[str], plan: SweepPlan) -> list[BoundRecord]:
    """The bounds that are done, in the plan's order. Raises InputError if a file is damaged."""

    def read(planned: PlannedPoint) -> BoundRecord:
        return BoundRecord.read(Path(directory) / planned.file, planned.key)

    return [record for _, record in read_finished(plan.bounds, read, _AGAIN)]


def write_bounds_csv(directory: Path, records: Iterable[BoundRecord]) -> None:
    """Writes bounds.csv: a row a record, in the order given."""
    rows = [{name: getattr(record, name) for name in _BOUND_COLUMNS} for record in records]
    write_table(directory / "bounds.csv", _BOUND_COLUMNS, rows)


def strangers(plan: SweepPlan, directory: Path) -> int:
    """How many point files of the directory belong to another config; they are kept, and shown nowhere."""
    files = {path.relative_to(directory).as_posix() for path in (directory / "points").glob("*/*/*.parquet")}
    return len(files - {point.file for point in plan.points})


def check_grows(plan: SweepPlan, directory: Path) -> None:
    """Refuses a directory with finished points that are not in the plan, which came from another config.

    A config may add lengths, seeds, variants and statistics: points are found by their keys.

    Raises:
        InputError: saying in what the configs differ.
    """
    try:
        before = read_plan(directory)
    except InputError:  # Without a readable plan nothing says which config the points are of.
        return
    wanted = {point.file for point in plan.points}
    lost = [
        point for point in before.points if point.file not in wanted and (directory / point.file).exists()
    ]
    if not lost:
        return
    differences = "; ".join(_differences(before, plan)) or "what its inputs are"
    raise InputError(
        f"directory = {str(directory)!r}: it holds {len(lost)} points that this config does not have, so its report "
        f"would mix two configs. There and here differ: {differences}. Name another directory, or keep in the config "
        "what this one holds: lengths, seeds, variants and statistics may be added, and --only takes a part"
    )


def write_config(path: Path, text: str) -> bool:
    """Writes a config next to its results. Removes the report of another config first; returns whether there was one.

    A report can be drawn again from the results at any time.
    """
    try:
        same = path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        same = False
    stale = [] if same else [path.with_name(name) for name in _REPORT if path.with_name(name).exists()]
    for file in stale:
        file.unlink(missing_ok=True)
    write_text(path, text)
    return bool(stale)


def _differences(before: SweepPlan, now: SweepPlan) -> list[str]:
    """The differences between two plans that decide which points there are, each in a few words."""
    found = []
    for name in ("lengths", "seeds"):
        missing = sorted(set(getattr(before, name)) - set(getattr(now, name)))
        if missing:
            found.append(f"{name}: {', '.join(map(str, missing))} there only")
    models = {variant.name: variant.model for variant in now.variants}
    found += [f'variant "{each.name}" there only' for each in before.variants if each.name not in models]
    kept = [each for each in before.variants if each.name in models]
    # A change of [model] shows in every variant, and is listed once.
    changes = [change for each in kept for change in _changed("model", each.model, models[each.name])]
    return list(dict.fromkeys([*found, *changes, *_changed("measure", before.measure, now.measure)]))


def _changed(table: str, before: dict[str, object], now: dict[str, object]) -> list[str]:
    keys = [key for key in {**before, **now} if _listed(before.get(key)) != _listed(now.get(key))]
    return [f"{table}.{key}: {before.get(key)!r} there, {now.get(key)!r} here" for key in keys]


def _listed(value: object) -> object:
    # JSON gives back a tuple as a list.
    return list(value) if isinstance(value, tuple) else value
