"""The record of a measurement: one value per flip, what was requested, and how it was measured. Files hold what was
requested, with digests of a model's parameters and of what it computes. The flips that remain of an interrupted
measurement are told from it, and `joined` compares both requests.

And what a statistic of it is at most, where the rounding of flips that are not resolved may decide it. There is one
rule for every statistic S that grows with the norms, such as a mean, a maximum or a quantile. With u the norms and r
the resolutions of the flips that are not resolved (0 for all others), S lies between S(u - r) and S(u + r). It is
resolved if neither end is further from S(u) than `jaxsens.core.base.programs.RESOLVED` of it. Otherwise it is said to
be at most S(u + r), and S(u) is not shown: it may be rounding alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import PlainValidator

from jaxsens.core.base.errors import InputError, Location, Problems, collecting, shortened
from jaxsens.core.base.inputs import is_count
from jaxsens.core.base.programs import RESOLVED, SMALLEST, abstract_of, cached, program_key, resolved
from jaxsens.core.base.registry import read
from jaxsens.core.base.sealed import encoded
from jaxsens.core.checks import check_finite, checked_function
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flip_table import DELETED, DELETED_NAME, FlipTable
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Forgotten, Measure
from jaxsens.core.models.adapters import Model
from jaxsens.core.results.statistics import Estimated


def fingerprint(model: Model, n: int, weights: str | None = None) -> str:
    """Returns the SHA-256 of a model's parameters (`weights_of`, if known) and of its function on inputs of length n.

    The function of a jaxsens transformer is given by its config, a PyTorch module by its description. For any other
    model it is the lowered JAX program (StableHLO), with the arrays that it closes over; it depends on JAX's
    version and the kind of device.
    """
    weights = weights_of(model) if weights is None else weights
    if model.config is not None:
        function = repr(model.config)
    elif model.torch is not None:
        function = f"PyTorch {model.readout!r}"
    else:
        function = _program(model.apply, *program_key(model.parameters, n))
    return hashlib.sha256(f"{function} {weights}".encode()).hexdigest()


def weights_of(model: Model) -> str:
    """Returns the SHA-256 of a model's parameters, by path; of a PyTorch module with its description.

    That of JAX's arrays is kept as long as they are: to read all weights takes longer than to measure a short input.
    """
    leaves, structure = jax.tree.flatten(model.parameters)
    if model.torch is not None or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return _digest(model.parameters, "" if model.torch is None else model.torch.digest())
    return _digest_of_arrays(structure, *leaves)


@cached
def _digest_of_arrays(structure: Any, *leaves: jax.Array) -> str:
    return _digest(jax.tree.unflatten(structure, leaves))


def _digest(parameters: Any, description: str = "") -> str:
    digest = hashlib.sha256(description.encode())
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@cached
def _program(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> str:
    """Returns the SHA-256 of the program. `wide` (64-bit types are on) is part of the cache key."""

    def program(parameters: Any, tokens: Any) -> Any:
        return apply(parameters, tokens)

    tokens = jax.ShapeDtypeStruct((n,), np.int32)
    parameters = abstract_of(structure, shapes)
    lowered = jax.jit(program).lower(parameters, tokens)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _from_file(base: Any) -> PlainValidator:
    """Returns the validator of a field that files hold as an option's `table`."""

    def answer(value: Any) -> Any:
        if isinstance(value, Mapping) and "program" in value:
            return base.kinds[value["kind"]](Forgotten(value["program"]))
        with collecting("asked") as problems:
            return read(base, value, problems, file=True)

    return PlainValidator(answer)


@dataclass(frozen=True)
class RequestRecord:
    """What a measurement was asked. The inputs are in its result.

    Attributes:
        flips: what is flipped.
        measure: what is measured of the change in the output; a threshold is a number.
        engine: as asked for.
        readout: where the model reads its output: a 0-based position, "last" or "mean"; None if unspecified.
        outputs: the output coordinates that were measured; None for all.
        model: SHA-256 of the model's parameters and its function (`jaxsens.core.results.measured`).
        weights: SHA-256 of the parameters alone, whatever the inputs' length.
        counts: the number of flips requested for each input.
    """

    flips: Annotated[Flips, _from_file(Flips)]
    measure: Annotated[Measure, _from_file(Measure)]
    engine: Annotated[AskedEngine, _from_file(AskedEngine)]
    readout: int | str | None
    outputs: tuple[int, ...] | None
    model: str
    weights: str
    counts: tuple[int, ...]


def requested(
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    table: FlipTable,
    options: tuple[Flips, Measure, AskedEngine],
    output: tuple[tuple[int, ...], str],
) -> RequestRecord:
    """Returns the request of a call, from its flips, measure and engine. `output` has the shape and dtype of the
    model's output.

    Raises:
        InputError: for a measure's function that does not return one number.
    """
    (flips, measure, engine), weights = options, weights_of(model)
    if measure.function is not None:
        measure = measure.without_function(checked_function(measure, *output))
    return RequestRecord(
        flips=flips,
        measure=measure,
        engine=engine,
        readout=model.readout,
        outputs=measure.coordinates(model.outputs),
        model=fingerprint(model, tokens.shape[1], weights),
        weights=weights,
        counts=tuple(np.bincount(table.inputs, minlength=len(tokens)).tolist()),
    )


COLUMNS = {
    "input": "flips.inputs",
    "position": "flips.positions",
    "symbol": "flips.symbols",
    "value": "values",
    "resolution": "resolution",
    "estimate": "estimated.estimates",
    "stratum": "estimated.stratum",
    "compared": "estimated.compared",
}
"""The columns of a result's file, and the fields that they hold. Not every result has the last three. Positions and
symbols of groups are lists."""


@dataclass(frozen=True)
class Provenance:
    """What computed a result.

    Attributes:
        dtype: that of the arithmetic.
        versions: of jaxsens, jax and numpy, and the device.
        model: what the model is called; None if unknown.
        scale: of the first input without a flip the size of the output as it is measured, or f of it, for norms and
            functions of the output; otherwise None.
    """

    dtype: str
    versions: dict[str, str]
    model: str | None = None
    scale: float | None = None


@dataclass(frozen=True, eq=False)
class MeasuredFlips:
    """What a measurement found, without statistics: `jaxsens.FlipSensitivity`, whose fields and columns these are."""

    values: Float[np.ndarray, " flips"]
    resolution: Float[np.ndarray, " flips"]
    flips: FlipTable
    tokens: Int[np.ndarray, "batch n"]
    asked: RequestRecord
    engine: EngineChoice
    run: Provenance
    estimated: Estimated | None = None
    names: Mapping[int, str] | None = None
    pieces: tuple[tuple[str, ...], ...] | None = None
    __pydantic_config__: ClassVar[Any] = {"arbitrary_types_allowed": True}

    @property
    def norms(self) -> Float[np.ndarray, " flips"]:
        """The sensitivities: the sizes of `values`."""
        return np.abs(self.values) if self.measure.signed else self.values

    @property
    def inputs(self) -> Int[np.ndarray, " flips"]:
        """The row of `tokens` to which each flip belongs."""
        return self.flips.inputs

    @property
    def positions(self) -> Int[np.ndarray, " flips"]:
        """The 0-based positions flipped; those before which a symbol is inserted; the first of a group."""
        return self.flips.positions[:, 0]

    @property
    def symbols(self) -> Int[np.ndarray, " flips"]:
        """The symbols inserted; -1 for a deleted position; that of the first position of a group."""
        return self.flips.symbols[:, 0]

    @property
    def alphabet(self) -> tuple[int, ...]:
        """The symbols that flips may insert, sorted."""
        return self.flips.alphabet

    @property
    def population(self) -> int:
        """The number of all flips; more than `len(result)` for a random sample or a partial result."""
        return self.flips.population

    @property
    def measure(self) -> Measure:
        """What was measured of the change in the output."""
        return self.asked.measure

    @property
    def readout(self) -> int | str | None:
        """Where the model reads its output: a 0-based position, "last" or "mean"; None if unspecified."""
        return self.asked.readout

    @property
    def dtype(self) -> str:
        """The dtype of the arithmetic."""
        return self.run.dtype

    def __len__(self) -> int:
        return len(self.values)

    @property
    def resolved(self) -> Bool[np.ndarray, " flips"]:
        """Which changes are known to 1 % of themselves (`jaxsens.core.base.programs.RESOLVED`), or below 1e-300,
        which is taken for 0. The others are at most their norm plus their `resolution`. Estimates count as resolved:
        see `accuracy`.
        """
        return resolved(self.norms, self.resolution)

    @cached_property
    def unresolved(self) -> int:
        """The number of flips that are not `resolved`."""
        return int(np.sum(~self.resolved))

    @property
    def n(self) -> int:
        """The length of the inputs."""
        return self.tokens.shape[1]

    @property
    def exhaustive(self) -> bool:
        """Whether the result has all flips, rather than a sample; an estimated result has estimates of some."""
        return len(self) == self.population

    @property
    def complete(self) -> bool:
        """Whether all requested flips were measured; False for an interrupted measurement."""
        return len(self) == self.requested

    @property
    def requested(self) -> int:
        """The number of flips that were requested: more than `len(result)` for a partial result."""
        return sum(self.asked.counts)

    @property
    def exact(self) -> Bool[np.ndarray, " flips"]:
        """Which norms were measured rather than estimated."""
        return np.ones(len(self), bool) if self.estimated is None else self.estimated.measured

    def of_input(self, k: int) -> Self:
        """Returns the part of the result for input k, as a separate result.

        For a sample, this part is itself a uniform sample of the input's flips.

        Raises:
            InputError: if there is no input k.
        """
        if not is_count(k) or k >= len(self.tokens):
            raise InputError.of("k", k, f"an input from 0 to {len(self.tokens) - 1}")
        mine = slice(*np.searchsorted(self.inputs, [k, k + 1]))
        return dataclasses.replace(
            self,
            values=self.values[mine],
            resolution=self.resolution[mine],
            flips=self.flips.of_input(k),
            tokens=self.tokens[k : k + 1],
            asked=dataclasses.replace(self.asked, counts=self.asked.counts[k : k + 1]),
            run=dataclasses.replace(self.run, scale=None if k else self.run.scale),
            estimated=None if self.estimated is None else self.estimated.part(mine),
            pieces=None if self.pieces is None else self.pieces[k : k + 1],
        )

    @property
    def remaining(self) -> Remaining:
        """The flips that an interrupted call did not finish, which `flip_sensitivity` takes as its `flips`, with the
        other arguments of that call. None are left of a complete result.

        Raises:
            InputError: for an engine that estimates, which keeps nothing when it is interrupted.
        """
        return Remaining(self)

    def joined(self, rest: Self) -> Self:
        """Returns the result on the flips of this one and of `rest`, a result on some that `remaining` has.

        Raises:
            InputError: naming all differences between the calls; for flips that are in both; and for estimates.
        """
        if not isinstance(rest, MeasuredFlips):
            raise InputError.of(
                "rest", rest, "what flip_sensitivity(..., partial.remaining) returns", subject="joined"
            )
        _check_exact("joined", (), self)
        _check_alike("joined", (), self, rest)
        both = self, rest
        keys = np.concatenate(_keys(self, rest))
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order]) < 1).any():
            why = "it has flips that this result has; measure those that it lacks: .remaining"
            raise InputError.note("rest", why, subject="joined")
        measured = [part for part in both if len(part)] or [self]  # the dtype of no values says nothing
        table = {
            name: np.concatenate([getattr(part.flips, name) for part in both])[order]
            for name in ("inputs", "positions", "symbols")
        }
        result = dataclasses.replace(
            self,
            values=np.concatenate([part.values for part in measured])[order],
            resolution=np.concatenate([part.resolution for part in measured])[order],
            flips=dataclasses.replace(self.flips, **table),
            engine=self.engine.after(dict(rest.engine.elsewhere), self.requested),
        )
        if result.complete:  # an interrupted call did not check them
            check_finite(result.values, result.positions, result.measure)
        return result

    def description(self) -> dict[str, Any]:
        """Returns everything except the flips, as JSON."""

        def others(part: Any, above: str) -> dict[str, Any]:
            names = [field.name for field in dataclasses.fields(part)]
            return {name: getattr(part, name) for name in names if above + name not in COLUMNS.values()}

        flips = {"flips": others(self.flips, "flips.")}
        estimated = {} if self.estimated is None else {"estimated": others(self.estimated, "estimated.")}
        return encoded({**others(self, ""), **flips, **estimated})


def strings_of(result: MeasuredFlips, symbols: Int[np.ndarray, " flips"]) -> np.ndarray:
    """Returns how to write each symbol."""
    names = {DELETED: DELETED_NAME, **(result.names or {})}
    unique, place = np.unique(symbols, return_inverse=True)
    return np.array([names.get(int(one), str(one)) for one in unique], object)[place]


Result = TypeVar("Result", bound=MeasuredFlips)


@dataclass(frozen=True, eq=False)
class Remaining:
    """The flips that a partial result lacks: `FlipSensitivity.remaining`, an argument of `flip_sensitivity`.

    They are listed again from the model and the inputs, without those of the partial result. So every kind of flips and
    every sample can be completed, and a saved result needs no second table.
    """

    partial: MeasuredFlips

    def __post_init__(self) -> None:
        _check_exact("flip_sensitivity", ("remaining",), self.partial)

    def __repr__(self) -> str:
        return f"Remaining({self.partial.requested - len(self.partial)} of {self.partial.requested} flips)"

    def of(self, call: MeasuredFlips) -> Int[np.ndarray, " remaining"]:
        """Returns their numbers among all flips of a call, before any is measured.

        Raises:
            InputError: naming all differences from the interrupted call.
        """
        _check_alike("flip_sensitivity", ("remaining",), self.partial, call)
        keys, every = _keys(self.partial, call)
        # Both are sorted in the same way, so one search finds them all.
        index = np.minimum(np.searchsorted(every, keys), max(len(every) - 1, 0))
        if not np.array_equal(every[index], keys) or (np.diff(index) < 1).any():
            why = "the partial result has flips that its call has not"
            raise InputError.note("remaining", why, subject="flip_sensitivity")
        return np.delete(np.arange(len(every)), index)


def _check_exact(caller: str, place: Location, result: MeasuredFlips) -> None:
    if not result.asked.engine.exact:
        remedy = "an estimate keeps nothing when it is interrupted; repeat the call"
        raise InputError.of((*place, "engine"), result.asked.engine, remedy, subject=caller)


def _check_alike(caller: str, place: Location, one: MeasuredFlips, other: MeasuredFlips) -> None:
    """Rejects results of different calls, naming all differences."""
    calls = []
    for result in (one, other):
        same = {name: getattr(result.asked, name) for name in ("flips", "outputs", "engine", "readout")}
        same |= {"tokens": result.tokens.tolist(), "dtype": result.dtype}
        same |= {f"versions[{name!r}]": version for name, version in result.run.versions.items()}
        calls.append(same | {"measure": result.measure.without_function("")})
        calls[-1]["flips, what they insert"] = result.alphabet
        calls[-1]["flips of each input"] = result.asked.counts
        # With other versions a program, and so its digest, may differ as well, which would mean nothing.
        if one.run.versions == other.run.versions:
            calls[-1]["model, parameters and function as SHA-256,"] = result.asked.model
            calls[-1]["measure, its program as SHA-256,"] = result.asked.measure.program
    problems = Problems(caller)
    for name, before in calls[0].items():
        if before != (now := calls[1].get(name)):
            remedy = f"this call has {shortened(repr(now), 200)}; repeat the interrupted call"
            problems.add((*place, name), before, remedy)
    problems.raise_if_any()


def _keys(*parts: MeasuredFlips) -> list[Int[np.ndarray, " flips"]]:
    """Returns one number for each flip of each part, increasing with input, positions and symbols."""
    tables = [part.flips for part in parts]
    rows = [np.column_stack([table.inputs, table.positions, table.symbols]) for table in tables]
    keys, *columns = np.concatenate(rows).T
    for column in columns:
        values, ranks = np.unique(column, return_inverse=True)
        # Ranks again, since products of many columns would overflow.
        keys = np.unique(keys * len(values) + ranks, return_inverse=True)[1]
    return np.split(keys, [len(tables[0])])


def ceiling(result: Result, statistic: Callable[[Result], float]) -> float | None:
    """Returns what a statistic of a result is at most; None if it is resolved. It is computed three times at most."""
    if result.resolved.all():
        return None
    value, highest = statistic(result), statistic(_moved(result, 1))
    if math.isnan(value) or highest <= SMALLEST:
        return None
    allowed = RESOLVED * abs(value)
    if highest - value <= allowed and value - statistic(_moved(result, -1)) <= allowed:
        return None
    return highest


def _moved(result: Result, sign: int) -> Result:
    """Returns the result with the norms of unresolved flips moved by their resolutions, up or down."""
    by = np.where(result.resolved, 0.0, sign * result.resolution.astype(np.float64))
    norms = np.clip(result.norms.astype(np.float64) + by, 0, result.measure.largest)
    return dataclasses.replace(result, values=norms, resolution=np.zeros(len(norms)))


def as_text(value: float, most: float | None, digits: int = 4) -> str:
    """Returns a statistic in words: its value, or "at most" and what it is at most."""
    return f"{value:.{digits}g}" if most is None else f"at most {most:.{digits}g}"
