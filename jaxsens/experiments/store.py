"""One Parquet file a point: written atomically, verified whole when read.

A file is what `FlipSensitivity.save` writes, so `jaxsens.load_result` reads it too. Its metadata holds the point
beside the result, under the same checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsens.errors import InputError
from jaxsens.experiments.points import Point
from jaxsens.experiments.statistics import compute_all
from jaxsens.precision import MATMUL_PRECISION
from jaxsens.sealed import DamagedFile
from jaxsens.sensitivity.result import FlipSensitivity, load_with_metadata


@dataclass(frozen=True)
class PointMetadata:
    """What is kept of a point beside its flips.

    Attributes:
        key: SHA-256 of the point's expanded config.
        variant: its variant's name.
        n: length of its inputs.
        seed: of weights and inputs.
        inputs: how many inputs were measured.
        flips: how many flips, over all inputs.
        population: how many flips there are; more than `flips` for a random sample.
        point: the expanded config.
        statistics: the sweep's statistics by name.
        versions: of Python and the packages that matter.
        device: what it was computed on.
        dtype: what it was computed in.
        precision: of matrix products.
        engine: `name` and `reason` of the engine that ran.
        seconds: wall time, compilation included.
    """

    key: str
    variant: str
    n: int
    seed: int
    inputs: int
    flips: int
    population: int
    point: dict[str, Any]
    statistics: dict[str, float]
    versions: dict[str, str]
    device: str
    dtype: str
    precision: str
    engine: dict[str, str]
    seconds: float


def write_point(
    directory: Path, point: Point, result: FlipSensitivity, statistics: tuple[str, ...], seconds: float
) -> PointMetadata:
    """Writes a measured point to its place in a sweep directory; returns its metadata."""
    versions = dict(result.versions)
    described: dict[str, Any] = {
        "key": point.key,
        "variant": point.variant,
        "n": point.n,
        "seed": point.seed,
        "inputs": len(result.tokens),
        "flips": len(result),
        "population": result.population,
        "point": point.expanded,
        "statistics": compute_all(statistics, result.norms),
        "device": versions.pop("device", "unknown"),
        "versions": versions,
        "dtype": result.dtype,
        "precision": MATMUL_PRECISION,
        "engine": {"name": result.engine.name, "reason": result.engine.reason},
        "seconds": seconds,
    }
    result.save(point.path(directory), **described)
    return PointMetadata(**described)


def read_point(path: Path, key: str, statistics: tuple[str, ...]) -> tuple[PointMetadata, FlipSensitivity]:
    """A stored point with these statistics, verified against its checksum and the key it should have.

    Statistics that were not asked for when it was measured are computed from its flips.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if it is not what was written.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        result, described = load_with_metadata(path)
        metadata = PointMetadata(**described)
    except InputError as error:
        raise DamagedFile(str(error)) from error
    except TypeError as error:
        raise DamagedFile(f"{path}: a result, but no point of a sweep") from error
    if metadata.key != key:
        raise DamagedFile(f"{path}: it holds another point (key {metadata.key[:12]}, not {key[:12]})")
    missing = tuple(name for name in statistics if name not in metadata.statistics)
    metadata.statistics.update(compute_all(missing, result.norms))
    return metadata, result
