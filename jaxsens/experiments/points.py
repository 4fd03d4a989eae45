"""Points of a sweep: what is measured at one (variant, n, seed), and the file that keeps it.

A file is what `FlipSensitivity.save` writes, so `jaxsens.load_result` reads it too. Its metadata holds the point with
the result, under the same checksum.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from jaxsens.errors import InputError, Problems
from jaxsens.experiments.attention import AttentionValues
from jaxsens.experiments.edits import Edited, EditName, candidates_of
from jaxsens.experiments.job import check_key
from jaxsens.experiments.positions import Positions, positions_at
from jaxsens.experiments.sources import ModelSource
from jaxsens.experiments.words import Inputs
from jaxsens.inputs import Measure, is_count
from jaxsens.precision import MATMUL_PRECISION, numerics
from jaxsens.sealed import DamagedFile, digest
from jaxsens.sensitivity.adapters import measurable
from jaxsens.sensitivity.at_most import ceiling, told
from jaxsens.sensitivity.candidates import edit_of
from jaxsens.sensitivity.choice import ENGINES
from jaxsens.sensitivity.first_order.estimate import NAME as FIRST_ORDER
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.sensitivity.flips import sample
from jaxsens.sensitivity.measures import DECISION
from jaxsens.sensitivity.placement import Progress
from jaxsens.sensitivity.result import FlipSensitivity, Interval, load_with_metadata, save_with_metadata
from jaxsens.sensitivity.vmap_engine import compiled_output
from jaxsens.strict import STRICT

FORMAT = 1
"""Raised when the meaning of an expanded config, or of the numbers behind it, changes."""

MEDIAN = "median"
"""The threshold that makes a decision balanced."""

VERIFY = 64
"""The number of flips measured exactly to check estimates, if a config does not say."""

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
"""The statistics of results with norm = "decision"; the extremes need every flip of an input."""

STATISTICS = (
    f'mean, max, min, median, a quantile such as "q90", or {", ".join(OF_DECISIONS)} with norm = "{DECISION}"'
)
"""The statistics there are, for messages."""

STATUS_COLUMN = "{}_is"
"""The column of points.csv that says what the value of a statistic is."""

Status = Literal["exact", "estimated", "lower bound", "upper bound", "at most"]
"""What a statistic of a point is to the statistic of all its flips. "at most": the rounding of flips that are not
resolved may decide it, and the number is what it is at most."""

_LARGEST, _SMALLEST = ("max", "q100"), ("min", "q0")

_QUANTILE = re.compile(r"q(\d{1,2}(?:\.\d+)?|100)")
_NAMED = {"mean": np.mean, "max": np.max, "min": np.min, "median": partial(np.quantile, q=0.5)}


def _known_engine(name: str) -> str:
    known = ("auto", *ENGINES, FIRST_ORDER)
    if name not in known:
        raise ValueError(f"should be one of {', '.join(known)}")
    return name


def _outputs(value: object) -> object:
    """A list of coordinates sorted, each once."""
    if value in ("designated", "all"):
        return value
    if not isinstance(value, list) or not value or not all(is_count(one) for one in value):
        raise ValueError('should be "designated", "all" or a list of coordinates, from 0 on')
    return tuple(sorted(set(value)))


SAME_OUTPUT = 256
"""Outputs are the same to `balancing_threshold` if they differ by no more than this many roundings of the largest."""


def balancing_threshold(outputs: Float[np.ndarray, " inputs"], eps: float) -> float:
    """The threshold between two outputs that as nearly as possible half of them exceed: their median, where no two tie.

    Outputs that differ by rounding alone (`eps` is that of their dtype) are not told apart. If all are the same, it is
    above them by more than rounding: the decision is constant, and no flip of vanishing effect changes it.
    """
    ordered = np.sort(outputs)
    same = SAME_OUTPUT * eps * (float(np.abs(ordered).max()) or 1.0)
    gaps = np.flatnonzero(np.diff(ordered) > same)
    if not gaps.size:
        return float(ordered[-1]) + same
    middle = gaps[np.argmin(np.abs(2 * (gaps + 1) - len(ordered)))]
    return float(ordered[middle : middle + 2].mean())


@dataclass(frozen=True)
class Measurement:
    """The `[measure]` table: how flips are measured.

    Attributes:
        engine: as `flip_sensitivity` takes it. "first-order" estimates flips, and measures some exactly to check them.
        exact_up_to: the longest inputs that `engine` measures; the first-order engine estimates beyond. None for no
            such limit.
        sample_beyond: the number of flips that `engine` measures of longer inputs, drawn by the point's seed, for
            variants that are not estimated. None if all variants are estimated there.
        estimate: the variants that are estimated beyond `exact_up_to`; None for all that the first-order engine
            serves.
        sketch: of the first-order engine: the number of random combinations of the outputs; None for all outputs.
        verify: of the first-order engine: the number of flips measured exactly; None for 64. The point's seed draws
            both.
        norm: what is measured of the change of the output: a norm, "cosine", "kl" or "decision".
        threshold: of the decision of a single output: a number; "median" of the outputs on the point's inputs, for
            which the decision is as balanced as it can be (`balancing_threshold`); None for 0.
        edit: what a flip does: "replace" a symbol, or change the length: "delete" a position, "insert" a symbol before
            it, or "repeat" the symbol that stands there.
        times: the number of copies that a repetition adds; None for 1.
        sample: the number of flips to measure at each point, drawn by the point's seed; None for all of them.
        positions: which positions are flipped, as `jaxsens.experiments.positions` says; None for all but the one that
            is read, and those that hold the end-of-sequence symbol.
        batch_size: flips at a time. Like the budget it changes no number beyond rounding, and no key.
        memory_budget: bytes of temporary memory, used if no batch_size is given.
        outputs: the coordinates of the output that enter the norm: those that the model designates (all of them in
            networks with random weights), all, or a list, from 0 on.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    engine: Annotated[str, AfterValidator(_known_engine)] = "auto"
    norm: Measure = "l2"
    threshold: float | Literal["median"] | None = None
    edit: EditName = "replace"
    times: Annotated[int, Field(ge=1)] | None = None
    sample: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    memory_budget: Annotated[int, Field(ge=1)] | None = None
    outputs: Annotated[Literal["designated", "all"] | tuple[int, ...], BeforeValidator(_outputs)] = (
        "designated"
    )
    exact_up_to: Annotated[int, Field(ge=1)] | None = None
    sample_beyond: Annotated[int, Field(ge=1)] | None = None
    estimate: tuple[str, ...] | None = None
    sketch: Annotated[int, Field(ge=1)] | None = None
    verify: Annotated[int, Field(ge=1)] | None = None
    positions: Positions | None = None

    @property
    def estimates(self) -> bool:
        """Whether flips are estimated, at some length."""
        return self.engine == FIRST_ORDER or self.exact_up_to is not None

    def of_variant(self, sampled: bool) -> Measurement:
        """How one variant is measured: beyond `exact_up_to`, a random sample of its flips if it is `sampled`, estimates
        otherwise."""
        return replace(self, estimate=None, **({} if sampled else {"sample_beyond": None}))

    def is_beyond(self, n: int) -> bool:
        """Whether inputs of length n are longer than `exact_up_to`."""
        return self.exact_up_to is not None and n > self.exact_up_to

    def engine_at(self, n: int) -> str:
        """The engine for inputs of length n of a variant: see `of_variant`."""
        return FIRST_ORDER if self.is_beyond(n) and self.sample_beyond is None else self.engine

    def sample_at(self, n: int) -> int | None:
        """The number of flips to draw of inputs of length n of a variant: see `of_variant`. None for all."""
        return self.sample_beyond if self.is_beyond(n) and self.sample_beyond is not None else self.sample

    @property
    def candidates(self) -> Edited:
        """What is inserted, as `flip_sensitivity` takes it; None for the symbols of the alphabet in place of others."""
        return candidates_of(self.edit, self.times or 1)

    @property
    def longer(self) -> int:
        """By how many symbols a flip makes an input longer; -1 for a deletion."""
        return edit_of(self.candidates).longer

    def expanded(self, n: int) -> dict[str, Any]:
        """Everything here that determines the numbers at length n, as JSON values. Keys of tables that were added later
        are left out where they have their defaults, so that points keep their keys."""
        outputs = self.outputs if isinstance(self.outputs, str) else [*self.outputs]
        engine = self.engine_at(n)
        described = {"engine": engine, "norm": self.norm, "sample": self.sample_at(n), "outputs": outputs}
        # Points of configs without these keep their keys.
        chosen = {} if self.positions is None else {"positions": [*self.positions]}
        chosen |= {} if self.threshold is None else {"threshold": self.threshold}
        chosen |= {} if self.edit == "replace" else {"edit": self.edit, "copies": self.longer}
        return described | chosen | (self._of_estimates if engine == FIRST_ORDER else {})

    @property
    def _of_estimates(self) -> dict[str, Any]:
        return {"sketch": self.sketch, "verify": VERIFY if self.verify is None else self.verify}

    @property
    def chosen_outputs(self) -> Literal["all"] | tuple[int, ...] | None:
        """The coordinates as `flip_sensitivity` takes them: None for those that the model designates."""
        return None if self.outputs == "designated" else self.outputs

    def threshold_of(self, model: Any, tokens: Int[np.ndarray, "inputs n"]) -> float:
        """The threshold of the decision of a model, which is run on the inputs if it is the median of its outputs."""
        if not isinstance(self.threshold, str):
            return self.threshold or 0.0
        subject = measurable(model)
        chosen = subject.chosen_outputs(self.chosen_outputs) or (0,)
        with numerics(subject.dtype):
            outputs = [compiled_output(subject.apply, subject.parameters, word)[chosen[0]] for word in tokens]
        return balancing_threshold(np.asarray(outputs, np.float64), float(np.finfo(subject.dtype).eps))

    def flip_sensitivity(
        self,
        model: Any,
        tokens: Int[np.ndarray, "inputs n"],
        seed: int,
        progress: Progress | None = None,
        mesh: Mesh | None = None,
    ) -> FlipSensitivity:
        """The model's flip sensitivity, measured as the table says. The seed draws what is drawn: a sample of flips, a
        sketch, and the flips that check estimates. `mesh` is as `flip_sensitivity` takes it."""
        n = tokens.shape[1]
        engine, drawn = self.engine_at(n), self.sample_at(n)
        further: dict[str, Any] = {**self._of_estimates, "seed": seed} if engine == FIRST_ORDER else {}
        further |= {} if mesh is None else {"mesh": mesh}
        flipped = None if self.positions is None else positions_at(self.positions, n, read_by(model))
        return flip_sensitivity(
            model,
            tokens,
            positions=flipped if drawn is None else sample(drawn, seed, flipped),
            candidates=self.candidates,
            norm=self.norm,
            threshold=self.threshold_of(model, tokens),
            outputs=self.chosen_outputs,
            engine=engine,  # pyright: ignore[reportArgumentType] - checked with the config
            batch_size=self.batch_size,
            memory_budget=self.memory_budget,
            progress=False if progress is None else progress,
            **further,
        )


def read_by(model: Any) -> int | str | None:
    """Where a sweep's model reads its output: "last", a position, "mean", or None if it does not say."""
    readout = measurable(model).readout
    return "last" if readout == "auto" else readout


@dataclass(frozen=True)
class Point:
    """One (variant, n, seed) of a sweep."""

    variant: str
    n: int
    seed: int
    source: ModelSource
    inputs: Inputs
    measure: Measurement

    def tokens(self) -> Int[np.ndarray, "inputs n"]:
        """The inputs: the same for every variant."""
        return self.inputs.tokens(self.source.symbols, self.n, self.seed)

    @property
    def expanded(self) -> dict[str, Any]:
        """Everything that determines the numbers, defaults written out, and nothing else. JSON values.

        It is made every time it is asked for: a large sweep has room for its points' keys, not for all this.
        """
        return {
            "format": FORMAT,
            "model": self.source.expanded,
            "n": self.n,
            "seed": self.seed,
            "inputs": self.inputs.expanded(self.source.symbols, self.n),
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
        seconds: wall time, compilation included.
        estimated: of a point with estimates, what `of_estimates` says; None if all its flips were measured. Which
            statistics are then exact is said by `statistics_of`.
        attention: attention statistics, if the sweep asks for them: see `jaxsens.experiments.attention`.
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
    attention: AttentionValues | None = None
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
        if drawn and statistic in _LARGEST:
            return "lower bound"
        if drawn and statistic in _SMALLEST:
            return "upper bound"
        return "estimated" if drawn or self.estimated is not None else "exact"

    def summary(self) -> str:
        """The statistics; if they are estimated, how well the mean is known."""
        said = ", ".join(
            f"{name} {told(value, self.at_most.get(name), 3)}" for name, value in self.statistics.items()
        )
        if self.estimated is None:
            return said
        ends = Interval(self.estimated["mean_low"] or 0.0, self.estimated["mean_high"] or math.inf)
        return f"{said}; estimated, the mean: {ends.told(3)}"


def write_point(
    directory: Path,
    point: Point,
    result: FlipSensitivity,
    statistics: tuple[str, ...],
    seconds: float,
    attention: AttentionValues | None = None,
) -> PointMetadata:
    """Writes a measured point to its place in a sweep directory; returns its metadata."""
    metadata = describe_point(point, result, statistics, seconds, attention)
    # What killed writers left in the folder is removed when a job begins, not for every point.
    save_with_metadata(result, point.path(directory), asdict(metadata), clear=False)
    return metadata


def describe_point(
    point: Point,
    result: FlipSensitivity,
    statistics: tuple[str, ...],
    seconds: float,
    attention: AttentionValues | None = None,
) -> PointMetadata:
    """The metadata of a measured point."""
    versions = dict(result.versions)
    return PointMetadata(
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
        attention=attention,
        unresolved=result.unresolved,
        at_most=ceilings_of(result, statistics),
    )


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
        metadata = PointMetadata(**described)
        if "at_most" not in described:
            raise DamagedFile(
                f"{path}: of an earlier version, which did not say what its arithmetic resolves"
            )
    except InputError as error:
        raise DamagedFile(str(error)) from error
    except TypeError as error:
        raise DamagedFile(f"{path}: a result, but no point of a sweep") from error
    check_key(path, metadata.key, key)
    metadata = _shares(metadata)
    missing = tuple(name for name in statistics if name not in metadata.statistics)
    metadata.statistics.update(statistics_of(result, missing))
    metadata.at_most.update(ceilings_of(result, missing))
    return (replace(metadata, estimated=of_estimates(result)) if _may_be_old(metadata) else metadata), result


def _may_be_old(metadata: PointMetadata) -> bool:
    """Whether the interval of the mean may be one that an earlier version wrote: Student's, which did not hold."""
    known = metadata.estimated
    return known is not None and ((known["mean_low"] or 0.0) < 0 or known["mean_high"] != math.inf)


def _shares(metadata: PointMetadata) -> PointMetadata:
    """The metadata, with what is equal in many points of a sweep as one object. Of 100,000 points that saves 500 MB."""
    point = {
        name: _one_of_equals(json.dumps(part)) if isinstance(part, dict) else part
        for name, part in metadata.point.items()
    }
    alike = {name: _one_of_equals(json.dumps(getattr(metadata, name))) for name in ("versions", "engine")}
    return replace(metadata, point=point, **alike)


@lru_cache(maxsize=4096)
def _one_of_equals(text: str) -> dict[str, Any]:
    """The JSON object of a text: the same one for the same text, so not to be changed."""
    return json.loads(text)


def is_statistic(name: str) -> bool:
    """Whether `name` is a statistic: mean, max, min, median, one of decisions, or qP for the P % quantile,
    0 <= P <= 100."""
    return name in (*_NAMED, *OF_DECISIONS) or _QUANTILE.fullmatch(name) is not None


def compute(name: str, norms: Float[np.ndarray, " flips"]) -> float:
    """A statistic that needs no more than the norms of all flips of all inputs, in float64. Quantiles interpolate
    linearly between flips.

    Raises:
        ValueError: if there is no such statistic.
    """
    values = np.asarray(norms, dtype=np.float64)
    if name in _NAMED:
        return float(_NAMED[name](values))
    match = _QUANTILE.fullmatch(name)
    if match is None:
        raise ValueError(f"statistic = {name!r}: {STATISTICS}")
    return float(np.quantile(values, float(match[1]) / 100))


def statistics_of(result: FlipSensitivity, names: Iterable[str]) -> dict[str, float]:
    """Every named statistic of a result. Of an estimated one, the mean is the corrected one and the maximum that of the
    measured flips; all others are those of `norms`, which are estimates where flips were not measured.

    Raises:
        InputError: for a statistic of decisions of a result without them, or of a sample that does not say it.
    """
    found = {
        name: OF_DECISIONS[name](result) if name in OF_DECISIONS else compute(name, result.norms)
        for name in names
    }
    if result.estimated is not None:
        found |= {name: getattr(result, name) for name in ("mean", "max") if name in found}
    return found


def ceilings_of(result: FlipSensitivity, names: Iterable[str]) -> dict[str, float]:
    """What those of the named statistics are at most that rounding may decide (`jaxsens.sensitivity.at_most`)."""
    found = {name: ceiling(result, partial(_statistic_of, name=name)) for name in names}
    return {name: most for name, most in found.items() if most is not None}


def _statistic_of(result: FlipSensitivity, name: str) -> float:
    return statistics_of(result, (name,))[name]


def of_estimates(result: FlipSensitivity) -> dict[str, float | int | None] | None:
    """What is known of the estimates of a result: the number of flips `measured`, the 95 % interval of the mean
    (`mean_low`, `mean_high`, infinite where no upper end can be given), and the fields of its `Accuracy`. None if all
    flips were measured."""
    if result.accuracy is None or result.exact.all():
        return None
    low, high = result.mean_interval()
    known = {"measured": int(result.exact.sum()), "mean_low": low, "mean_high": high}
    return {**known, **asdict(result.accuracy)}


def select(points: Sequence[Point], only: Sequence[str] = (), shard: str | None = None) -> list[Point]:
    """The chosen points, cheap ones first: by n, so that the whole picture is there early, then seed, then variant.

    Args:
        points: of the sweep.
        only: such as "variant=softmax", "n=64,128", "seed=0"; a point must meet every one.
        shard: "K/M" takes, of the points in this order, those whose number is K modulo M, 0 <= K < M.

    Raises:
        InputError: if a condition cannot be read, or names what the sweep does not have.
    """
    problems = Problems("sweep")
    # Sorting is stable: points of one n and seed keep the config's order of variants.
    chosen = sorted(points, key=lambda point: (point.n, point.seed))
    for condition in only:
        field, _, values = condition.partition("=")
        if field not in ("variant", "n", "seed"):
            problems.add("--only", condition, "variant=NAME, n=LENGTH or seed=SEED")
            continue
        present, named = dict.fromkeys(str(getattr(point, field)) for point in points), values.split(",")
        if not set(named) <= present.keys():
            problems.add("--only", condition, f"{field} is one of {', '.join(present)}")
        chosen = [point for point in chosen if str(getattr(point, field)) in named]
    match = re.fullmatch(r"(\d+)/(\d+)", "0/1" if shard is None else shard)
    index, count = map(int, match.groups()) if match else (0, 0)
    if index >= count:
        problems.add("--shard", shard, "K/M with 0 <= K < M, such as 0/16 to 15/16")
    problems.raise_if_any()
    return chosen[index::count]
