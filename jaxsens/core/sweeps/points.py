"""Points of a sweep: what is measured at one (variant, n, seed), and the file that keeps it.

A file is what `FlipSensitivity.save` writes, so `jaxsens.load_result` reads it too. Its metadata holds the point with
the result, under the same checksum.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int
from pydantic import ConfigDict

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.programs import MATMUL_PRECISION
from jaxsens.core.base.registry import Option, read
from jaxsens.core.base.sealed import DamagedFile, digest
from jaxsens.core.base.strict import STRICT, OptionalPositive, checked_by, field_names, read_fields
from jaxsens.core.engines.options import AskedEngine, Auto, estimating
from jaxsens.core.flip_sensitivity import compile_ahead, flip_sensitivity
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.measures import L2, Measure
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.run import Progress
from jaxsens.core.results.measured import as_text, ceiling
from jaxsens.core.results.result import FlipSensitivity, Interval, load_with_metadata, save_with_metadata
from jaxsens.core.sweeps.inputs import Inputs
from jaxsens.core.sweeps.job import check_key
from jaxsens.core.sweeps.sources import ModelSource

FORMAT = 2
"""Raised when the meaning of an expanded config, or of the numbers behind it, changes."""

AVERAGE_SENSITIVITY = "average-sensitivity"
"""The mean over inputs of the number of flips that change the decision (`FlipSensitivity.average_sensitivity`)."""

PER_POSITION = "average-sensitivity-per-position"
"""The average sensitivity divided by the number of positions that are flipped."""

EXTREMES = ("minimum-sensitivity", "maximum-sensitivity")
"""The smallest and the largest number of flips that change the decision, of the inputs measured. The largest over all
inputs is the sensitivity of a Boolean function."""

OF_DECISIONS: dict[str, Callable[[FlipSensitivity], float]] = {
    AVERAGE_SENSITIVITY: lambda result: result.average_sensitivity,
    PER_POSITION: lambda result: result.average_sensitivity_per_position,
    EXTREMES[0]: lambda result: float(np.flatnonzero(result.sensitivity_distribution)[0]),
    EXTREMES[1]: lambda result: float(np.flatnonzero(result.sensitivity_distribution)[-1]),
}
"""The statistics of results with measure = "decision"; the extremes need every flip of an input."""

STATISTICS = f'mean, max, min, median, a quantile such as "q90", or {", ".join(OF_DECISIONS)} with measure = "decision"'
"""The statistics there are, for messages."""

STATUS_COLUMN = "{}_is"
"""The column of points.csv that says what the value of a statistic is."""

Status = Literal["exact", "estimated", "lower bound", "upper bound", "at most"]
"""What a statistic of a point is to the statistic of all its flips. "at most": the rounding of flips that are not
resolved may decide it, and the number is what it is at most."""

_QUANTILE = re.compile(r"q(\d{1,2}(?:\.\d+)?|100)")
_NAMED = {"mean": np.mean, "max": np.max, "min": np.min, "median": partial(np.quantile, q=0.5)}


NOT_INSTALLED = "no engine that estimates is installed"


def _option(name: str, value: Any, problems: Problems, base: Any) -> Any:
    """Returns the object that a key of a config stands for."""
    return read(base, value, problems, name, file=True)


@dataclass(frozen=True)
class Measurement:
    """The `[measure]` table: what is flipped, what is measured, and how. The point's seed draws what is drawn.

    Attributes:
        flips: what is flipped, and by what; its `sample` is of each point.
        measure: what is measured of the change of the output. A threshold "median" is that of the point's inputs.
        engine: of inputs up to `exact_up_to`, and of flips sampled beyond.
        exact_up_to: the longest inputs that `engine` measures; `engine_beyond` estimates beyond. None for no limit.
        sample_beyond: the number of flips that `engine` measures of longer inputs, for variants that are not estimated.
            None if all variants are estimated there.
        engine_beyond: estimates flips beyond `exact_up_to`; None if no engine that estimates is installed.
        estimate: the variants that are estimated beyond `exact_up_to`; None for all that `engine_beyond` serves.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    flips: Annotated[Flips, checked_by(_option, base=Flips)] = field(default_factory=Substitute)
    measure: Annotated[Measure, checked_by(_option, base=Measure)] = field(default_factory=L2)
    engine: Annotated[AskedEngine, checked_by(_option, base=AskedEngine)] = field(default_factory=Auto)
    exact_up_to: OptionalPositive = None
    sample_beyond: OptionalPositive = None
    engine_beyond: Annotated[AskedEngine | None, checked_by(_option, base=AskedEngine)] = field(
        default_factory=estimating
    )
    estimate: tuple[str, ...] | None = None

    @property
    def estimates(self) -> bool:
        """Whether flips are estimated, at some length."""
        return not self.engine.exact or self.exact_up_to is not None

    def of_variant(self, sampled: bool) -> Measurement:
        """How one variant is measured: beyond `exact_up_to`, a random sample of its flips if it is `sampled`, estimates
        otherwise."""
        return replace(self, estimate=None, **({} if sampled else {"sample_beyond": None}))

    def is_beyond(self, n: int) -> bool:
        """Whether inputs of length n are longer than `exact_up_to`."""
        return self.exact_up_to is not None and n > self.exact_up_to

    def engine_at(self, n: int) -> AskedEngine:
        """The engine for inputs of length n of a variant: see `of_variant`."""
        if not self.is_beyond(n) or self.sample_beyond is not None:
            return self.engine
        if self.engine_beyond is None:
            raise InputError.of(
                "measure.exact_up_to", self.exact_up_to, f"{NOT_INSTALLED}; give sample_beyond"
            )
        return self.engine_beyond

    def flips_at(self, n: int, seed: int = 0) -> Flips:
        """What is flipped of inputs of length n of a variant: see `of_variant`. The seed draws the sample."""
        beyond = self.is_beyond(n) and self.sample_beyond is not None
        return self.flips.drawing(self.sample_beyond if beyond else self.flips.sample, seed)

    def expanded(self, n: int) -> dict[str, Any]:
        """Everything here that determines the numbers at length n, as JSON values."""
        options = (self.flips_at(n), self.measure, self.engine_at(n))
        return {one.argument: one.table() for one in options}

    def table(self) -> dict[str, Any]:
        """The table, as JSON values for `of_table`."""
        values = {name: getattr(self, name) for name in field_names(Measurement)}
        values |= {name: one.table() for name, one in values.items() if isinstance(one, Option)}
        return values | ({} if self.estimate is None else {"estimate": [*self.estimate]})

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Measurement:
        """The measurement whose `table` this is."""
        with collecting("measure") as problems:
            fields = read_fields(
                cls, {key: one for key, one in table.items() if one is not None}, "", problems
            )
        return cls(**fields)

    def flip_sensitivity(
        self,
        model: Any,
        tokens: Int[np.ndarray, "inputs n"],
        seed: int,
        progress: Progress | None = None,
        placement: Placement | None = None,
        calls: int = 1,
    ) -> FlipSensitivity:
        """The model's flip sensitivity, measured as the table says. The seed draws what is drawn: a sample of flips, a
        sketch, and the flips that check estimates. So many calls share their programs."""
        options = self._options(tokens.shape[1], seed, placement, calls)
        return flip_sensitivity(model, tokens, progress=False if progress is None else progress, **options)

    def compile_ahead(
        self, model: Any, tokens: Int[np.ndarray, "inputs n"], seed: int, placement: Placement, calls: int
    ) -> None:
        """Compiles what `flip_sensitivity` runs of these arguments. See `flip_sensitivity.compile_ahead`."""
        compile_ahead(model, tokens, **self._options(tokens.shape[1], seed, placement, calls))

    def _options(self, n: int, seed: int, placement: Placement | None, calls: int) -> dict[str, Any]:
        engine = self.engine_at(n).seeded(seed).shared_by(calls)
        flips = self.flips_at(n, seed)
        return {"flips": flips, "measure": self.measure, "engine": engine, "placement": placement}


@dataclass(frozen=True)
class Point:
    """One (variant, n, seed) of a sweep, which has so many `seeds`: as many points share their programs."""

    variant: str
    n: int
    seed: int
    source: ModelSource
    inputs: Inputs
    measure: Measurement
    seeds: int = 1

    def tokens(self) -> Int[np.ndarray, "inputs n"]:
        """The inputs: the same for every variant."""
        return self.inputs.tokens(self.source.symbols, self.n, self.seed)

    def model(self) -> Any:
        """The model, made anew."""
        return self.source.build(self.n, self.seed)

    @property
    def expanded(self) -> dict[str, Any]:
        """Everything that determines the numbers, defaults written out, and nothing else. JSON values.

        It is made every time it is asked for: a large sweep has room for its points' keys, not for all this.
        """
        return {
            "format": FORMAT,
            "model": self.source.expanded_at(self.n, self.seed),
            "n": self.n,
            "seed": self.seed,
            "inputs": self.inputs.expanded(self.source.symbols, self.n, self.seed),
            "measure": self.measure.expanded(self.n),
        }

    @cached_property
    def key(self) -> str:
        """SHA-256 of the expanded config."""
        return digest(self.expanded)

    @property
    def group(self) -> tuple[str, int]:
        """Points of one group and length cost the same, except that the first is compiled for."""
        return self.variant, self.n

    def path(self, directory: Path, folder: str = "points", end: str = "parquet", key: str = "") -> Path:
        """Where a sweep directory keeps the point: folders as Hive and pandas read them.

        What else is kept of a point lies in a `folder` of its own, under its own `key`.
        """
        name = f"seed={self.seed}-{(key or self.key)[:12]}.{end}"
        return directory / f"{folder}/variant={self.variant}/n={self.n}/{name}"

    def __str__(self) -> str:
        return f"{self.variant} n={self.n} seed={self.seed}"


@dataclass(frozen=True)
class PointMetadata:
    """What is kept of a point besides its flips.

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
        seconds: wall time, with what is compiled for it, or is waited for, meanwhile.
        estimated: of a point with estimates, what `of_estimates` says; None if all its flips were measured. Which
            statistics are then exact is said by `statistics_of`.
        tables: what each `PointTable` of the sweep's config has of the point; None where it does not apply. In the file
            they are fields beside the others.
        unresolved: how many flips the arithmetic does not resolve.
        at_most: what those statistics are at most that the rounding of these flips may decide.
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
    estimated: dict[str, float | int | None] | None = None
    tables: dict[str, Any] = field(default_factory=dict)
    unresolved: int = 0
    at_most: dict[str, float] = field(default_factory=dict)

    def status(self, statistic: str) -> Status:
        """What the value of a statistic is. The largest change of a random sample of flips is a lower bound on that of
        all flips, the smallest an upper bound; means and quantiles of a sample are estimates, as is every statistic of
        a point with estimates. Its largest change is the largest of the flips measured exactly, among them the largest
        estimates. What rounding may decide is "at most" a value; of a sample, for the flips that were drawn."""
        if statistic in self.at_most:
            return "at most"
        drawn = self.flips < self.population
        if drawn and (share := share_of(statistic)) in (0, 1):
            return "lower bound" if share else "upper bound"
        return "estimated" if drawn or self.estimated is not None else "exact"

    def summary(self) -> str:
        """The statistics; if they are estimated, how well the mean is known."""
        values = ", ".join(
            f"{name} {as_text(value, self.at_most.get(name), 3)}" for name, value in self.statistics.items()
        )
        if self.estimated is None:
            return values
        ends = Interval(self.estimated["mean_low"] or 0.0, self.estimated["mean_high"] or math.inf)
        return f"{values}; estimated, the mean: {ends.text(3)}"


def write_point(
    directory: Path | None,
    point: Point,
    result: FlipSensitivity,
    statistics: tuple[str, ...],
    seconds: float,
    tables: Mapping[str, Any] = MappingProxyType({}),
) -> PointMetadata:
    """Writes a measured point to its place in a sweep directory, if there is one; returns its metadata."""
    versions = dict(result.run.versions)
    metadata = PointMetadata(
        key=point.key,
        variant=point.variant,
        n=point.n,
        seed=point.seed,
        inputs=len(result.tokens),
        flips=len(result),
        population=result.population,
        point=point.expanded,
        statistics=statistics_of(result, statistics),
        device=versions.pop("device", "unknown"),
        versions=versions,
        dtype=result.dtype,
        precision=MATMUL_PRECISION,
        engine={"name": result.engine.name, "reason": result.engine.reason},
        seconds=seconds,
        estimated=of_estimates(result),
        tables=dict(tables),
        unresolved=result.unresolved,
        at_most=ceilings_of(result, statistics),
    )
    if directory is not None:
        # What killed writers left in the folder is removed when a job begins, not for every point.
        described, own = asdict(metadata), {"seed": point.seed} if point.seed < 2**63 else {}
        save_with_metadata(result, point.path(directory), described.pop("tables") | described, **own)
    return metadata


def read_point(path: Path, key: str, statistics: tuple[str, ...]) -> tuple[PointMetadata, FlipSensitivity]:
    """Reads a point with these statistics, verified against its checksum and the key it should have.

    Statistics that were not asked for when it was measured are computed from its flips.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if it is not what was written.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        result, described = load_with_metadata(path)
        own = {name: described.pop(name) for name in field_names(PointMetadata) if name in described}
        metadata = PointMetadata(**own, tables=described)
    except InputError as error:
        raise DamagedFile(path, error.problems[0].remedy) from error
    except TypeError as error:
        raise DamagedFile(path, "a result, but no point of a sweep") from error
    check_key(path, metadata.key, key)
    metadata = _shares(metadata)
    missing = tuple(name for name in statistics if name not in metadata.statistics)
    metadata.statistics.update(statistics_of(result, missing))
    metadata.at_most.update(ceilings_of(result, missing))
    return metadata, result


def _shares(metadata: PointMetadata) -> PointMetadata:
    """The metadata, with what is equal in many points of a sweep as one object. Of 100,000 points that saves 500 MB."""
    point = {
        name: _one_of_equals(json.dumps(part)) if isinstance(part, dict) else part
        for name, part in metadata.point.items()
    }
    shared = {name: _one_of_equals(json.dumps(getattr(metadata, name))) for name in ("versions", "engine")}
    return replace(metadata, point=point, **shared)


@lru_cache(maxsize=4096)
def _one_of_equals(text: str) -> dict[str, Any]:
    """The JSON object of a text: the same one for the same text, so not to be changed."""
    return json.loads(text)


def is_statistic(name: str) -> bool:
    """Whether `name` is a statistic: mean, max, min, median, one of decisions, or qP for the P % quantile,
    0 <= P <= 100."""
    return name in (*_NAMED, *OF_DECISIONS) or share_of(name) is not None


def compute(name: str, norms: Float[np.ndarray, " flips"]) -> float:
    """A statistic that needs no more than the norms of all flips of all inputs, in float64. Quantiles interpolate
    linearly between flips.

    Raises:
        ValueError: if there is no such statistic.
    """
    values = np.asarray(norms, dtype=np.float64)
    if name in _NAMED:
        return float(_NAMED[name](values))
    if (share := share_of(name)) is None:
        raise ValueError(f"statistic = {name!r}: {STATISTICS}")
    return float(np.quantile(values, share))


def share_of(name: str) -> float | None:
    """The P / 100 of the statistic qP, of which "min" is q0 and "max" q100; None for another."""
    match = _QUANTILE.fullmatch({"min": "q0", "max": "q100"}.get(name, name))
    return None if match is None else float(match[1]) / 100


def statistics_of(result: FlipSensitivity, names: Iterable[str]) -> dict[str, float]:
    """Every named statistic of a result. Of an estimated one, the mean is the corrected one and the maximum that of the
    measured flips; all others are those of `norms`, which are estimates where flips were not measured.

    Raises:
        InputError: for a statistic of decisions of a result without them, or of a sample that does not say it.
    """
    values = {
        name: OF_DECISIONS[name](result) if name in OF_DECISIONS else compute(name, result.norms)
        for name in names
    }
    if result.estimated is not None:
        values |= {name: getattr(result, name) for name in ("mean", "max") if name in values}
    return values


def ceilings_of(result: FlipSensitivity, names: Iterable[str]) -> dict[str, float]:
    """What those named statistics are at most that rounding may decide (`jaxsens.core.results.measured`)."""
    limits = {
        name: ceiling(result, lambda one, name=name: statistics_of(one, (name,))[name]) for name in names
    }
    return {name: most for name, most in limits.items() if most is not None}


def of_estimates(result: FlipSensitivity) -> dict[str, float | int | None] | None:
    """What is known of the estimates of a result: the number of flips `measured`, the 95 % interval of the mean
    (`mean_low`, `mean_high`, infinite where no upper end can be given), and the fields of its `Accuracy`. None if all
    flips were measured."""
    if result.accuracy is None or result.exact.all():
        return None
    low, high = result.mean_interval()
    limits = {"measured": int(result.exact.sum()), "mean_low": low, "mean_high": high}
    return {**limits, **asdict(result.accuracy)}


def select(points: Sequence[Point], only: Sequence[str] = (), shard: str | None = None) -> list[Point]:
    """The chosen points, cheap ones first: by n, so that the whole picture is there early, then seed, then variant.

    Args:
        points: of the sweep.
        only: such as "variant=softmax", "n=64,128", "seed=0"; a point must meet every one.
        shard: "K/M" takes, of the points in this order, those whose number is K modulo M, 0 <= K < M.

    Raises:
        InputError: if a condition cannot be read or names what the sweep does not have, or if no point meets them all.
    """
    problems = Problems()
    # Sorting is stable: points of one n and seed keep the config's order of variants.
    chosen = sorted(points, key=lambda point: (point.n, point.seed))
    present = {key: dict.fromkeys(str(getattr(p, key)) for p in points) for key in ("variant", "n", "seed")}
    for condition in only:
        field, _, values = condition.partition("=")
        if field not in present:
            problems.add("--only", condition, "variant=NAME, n=LENGTH or seed=SEED")
            continue
        named = values.split(",")
        if not set(named) <= present[field].keys():
            problems.add("--only", condition, f"{field} is one of {', '.join(present[field])}")
        chosen = [point for point in chosen if str(getattr(point, field)) in named]
    if only and not chosen and not problems:
        there = " ".join(f"{name}={','.join(values)}" for name, values in present.items())
        problems.add("--only", " ".join(only), f"no point meets all of these; there are {there}")
    match = re.fullmatch(r"(\d+)/(\d+)", "0/1" if shard is None else shard)
    index, count = map(int, match.groups()) if match else (0, 0)
    if index >= count:
        problems.add("--shard", shard, "K/M with 0 <= K < M, such as 0/16 to 15/16")
    problems.raise_if_any()
    return chosen[index::count]
