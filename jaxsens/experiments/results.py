"""What a sweep directory holds: the plan, the points that are done, and points.csv.

DIR/sweep.toml      the config as it was given
DIR/sweep.json      the plan, sealed: the config with everything written out, and every point with its key and file
DIR/points/         one Parquet file a point
DIR/points.csv      a row a point
DIR/bounds/, DIR/bounds.csv     bounds over all inputs, where the config asks for them
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsens.errors import InputError
from jaxsens.experiments.store import PointMetadata, read_point
from jaxsens.files import write_text
from jaxsens.sealed import DamagedFile, read_sealed, write_sealed

if TYPE_CHECKING:
    import pandas

    from jaxsens.sensitivity.result import FlipSensitivity

_PLAN = "plan of a sweep"
_ANEW = "run the sweep again: points that are measured are kept"

KEY_COLUMNS = ("variant", "n", "seed", "inputs", "flips")
"""The columns of points.csv before the statistics."""


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
class Plan:
    """What sweep.json says: everything about a sweep but its numbers. Points come in the order of the config.

    `config` is the config as it was given. `inputs` says what the inputs are, by length; `bounds` where the bounds over
    all inputs are, if they are asked for.
    """

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

    def write(self, directory: Path) -> None:
        """Writes sweep.json with its checksum, atomically. The same plan gives the same bytes."""
        write_sealed(directory / "sweep.json", _PLAN, asdict(self))


def read_plan(directory: str | os.PathLike[str]) -> Plan:
    """The plan of a sweep directory.

    Raises:
        InputError: if it is no sweep directory, or the plan is damaged.
    """
    path = Path(directory) / "sweep.json"
    try:
        stored = read_sealed(path, _PLAN)
        return Plan(
            config=stored["config"],
            title=stored["title"],
            claim=stored["claim"],
            lengths=tuple(stored["lengths"]),
            seeds=tuple(stored["seeds"]),
            statistics=tuple(stored["statistics"]),
            norm=stored["norm"],
            measure=stored["measure"],
            inputs=stored["inputs"],
            variants=tuple(PlannedVariant(**variant) for variant in stored["variants"]),
            points=tuple(PlannedPoint(**point) for point in stored["points"]),
            bounds=tuple(PlannedPoint(**bound) for bound in stored.get("bounds", ())),
        )
    except OSError as error:
        raise InputError(f"directory = {str(directory)!r}: no sweep was run here ({error})") from error
    except DamagedFile as error:
        raise InputError(f"{error}; {_ANEW}") from error
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not what a sweep writes ({error!r}); {_ANEW}") from error


def read_flips(directory: str | os.PathLike[str]) -> Iterator[tuple[PointMetadata, pandas.DataFrame]]:
    """Every finished point of the sweep's plan, one at a time: metadata, and a row a flip (input, position, symbol,
    norm).

    Raises:
        InputError: if it is no sweep directory, or a file is damaged.
    """
    for metadata, result in _finished(directory):
        yield metadata, result.to_pandas()


def read_metadata(directory: str | os.PathLike[str]) -> list[PointMetadata]:
    """The metadata of every finished point of the sweep's plan, in its order. Raises as `read_flips` does."""
    return [metadata for metadata, _ in _finished(directory)]


def read_points(directory: str | os.PathLike[str]) -> pandas.DataFrame:
    """The table that points.csv holds, from the points' own files. Raises as `read_flips` does."""
    import pandas as pd

    statistics = read_plan(directory).statistics
    rows = list(_rows(read_metadata(directory), statistics))
    return pd.DataFrame(rows, columns=[*KEY_COLUMNS, *statistics])


def write_points_csv(directory: Path, points: Iterable[PointMetadata], plan: Plan) -> None:
    """Writes points.csv, atomically: the plan's order, floats to the last digit, the same bytes for the same points."""
    order = {(point.variant, point.n, point.seed): k for k, point in enumerate(plan.points)}
    ordered = sorted(points, key=lambda point: order[point.variant, point.n, point.seed])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEY_COLUMNS, *plan.statistics])
    for row in _rows(ordered, plan.statistics):
        writer.writerow([repr(value) if isinstance(value, float) else value for value in row])
    write_text(directory / "points.csv", text.getvalue())


def _rows(points: Iterable[PointMetadata], statistics: Sequence[str]) -> Iterator[list[str | int | float]]:
    for point in points:
        keys = [getattr(point, column) for column in KEY_COLUMNS]
        yield [*keys, *(point.statistics[name] for name in statistics)]


def _finished(
    directory: str | os.PathLike[str],
) -> Iterator[tuple[PointMetadata, FlipSensitivity]]:
    plan = read_plan(directory)
    for point in plan.points:
        try:
            yield read_point(Path(directory) / point.file, point.key, plan.statistics)
        except FileNotFoundError:
            continue
        except DamagedFile as error:
            raise InputError(f"{error}; run the sweep again to measure it anew") from error
