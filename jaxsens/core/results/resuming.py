"""The flips that remain of an interrupted measurement, and how their result is joined to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import InputError, Location, Problems, shortened
from jaxsens.core.checks.check import check_finite
from jaxsens.core.results.measured import MeasuredFlips, Result


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


def joined(one: Result, other: Any) -> Result:
    """Does what `FlipSensitivity.joined` does."""
    if not isinstance(other, MeasuredFlips):
        raise InputError.of(
            "rest", other, "what flip_sensitivity(..., partial.remaining) returns", subject="joined"
        )
    _check_exact("joined", (), one)
    _check_alike("joined", (), one, other)
    both = one, other
    keys = np.concatenate(_keys(one, other))
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) < 1).any():
        why = "it has flips that this result has; measure those that it lacks: .remaining"
        raise InputError.note("rest", why, subject="joined")
    measured = [part for part in both if len(part)] or [one]  # the dtype of no values says nothing
    table = {
        name: np.concatenate([getattr(part.flips, name) for part in both])[order]
        for name in ("inputs", "positions", "symbols")
    }
    result = dataclasses.replace(
        one,
        values=np.concatenate([part.values for part in measured])[order],
        resolution=np.concatenate([part.resolution for part in measured])[order],
        flips=dataclasses.replace(one.flips, **table),
        engine=one.engine.after(dict(other.engine.elsewhere), one.requested),
    )
    if result.complete:  # an interrupted call did not check them
        check_finite(result.values, result.positions, result.measure)
    return result


def _check_exact(caller: str, place: Location, result: MeasuredFlips) -> None:
    if not result.asked.engine.exact:
        remedy = "an estimate keeps nothing when it is interrupted; repeat the call"
        raise InputError.of((*place, "engine"), result.asked.engine, remedy, subject=caller)


def _check_alike(caller: str, place: Location, one: MeasuredFlips, other: MeasuredFlips) -> None:
    """Rejects results of different calls, naming all differences."""
    calls = []
    for result in (one, other):
        versions = {f"versions[{name!r}]": version for name, version in result.run.versions.items()}
        calls.append(
            {"tokens": result.tokens.tolist(), "dtype": result.dtype, **result.asked.compared(), **versions}
        )
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
