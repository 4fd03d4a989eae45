"""Puts results of the same model and measure together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsens.base.errors import InputError, Problems
from jaxsens.sensitivity.engines.engine import EngineChoice
from jaxsens.sensitivity.flips.flip_table import FlipTable, Joint
from jaxsens.sensitivity.results.estimated import TOP, Estimated
from jaxsens.sensitivity.results.measured import Provenance, ResultPart
from jaxsens.sensitivity.results.result import FlipSensitivity

PADDING = -1
"""What stands in `FlipSensitivity.tokens` after the end of a shorter input."""


def concat(results: Sequence[FlipSensitivity]) -> FlipSensitivity:
    """Returns one result on the inputs of all results, in order; they may have different lengths.

    `result.of_input(k)` is again what it was. Statistics are those of all flips together: means of samples and
    estimates are weighted by the numbers of flips that they stand for, and their variances added. What was flipped and
    the engines may differ, but not the number of symbols that a flip inserts. The model is compared by its parameters,
    and by its function for inputs of equal length; constants that a function closes over are not seen if lengths
    differ.

    Args:
        results: at least one. Results of `concat` may be among them.

    Raises:
        InputError: naming all differences in the model, measure, readout, dtype, groups, or copies.
    """
    results = _checked(results)
    if len(results) == 1:
        return results[0]
    counts = [len(one.tokens) for one in results]
    lengths = [one.length(k) for one in results for k in range(len(one.tokens))]
    tokens = np.full((sum(counts), max(lengths)), PADDING, np.int32)
    for one, start in zip(results, np.cumsum(counts) - counts, strict=True):
        tokens[start : start + len(one.tokens), : one.n] = one.tokens
    first = np.repeat(np.cumsum(counts) - counts, [len(one) for one in results])
    joint, insertion = _joint(results)
    known = [one.names for one in results if one.names is not None]
    pieces = tuple(piece for one in results for piece in one.pieces or ())
    parts = tuple(part for one in results for part in _parts(one))
    flips = FlipTable(
        np.concatenate([one.inputs for one in results]) + first,
        np.concatenate([one.positions for one in results]),
        np.concatenate([one.symbols for one in results]),
        np.concatenate([one.flips.populations for one in results]),
        tuple(sorted({symbol for one in results for symbol in one.alphabet})),
        joint,
        insertion,
    )
    return FlipSensitivity(
        values=np.concatenate([one.values for one in results]),
        resolution=np.concatenate([one.resolution for one in results]),
        flips=flips,
        tokens=tokens,
        asked=results[0].asked,
        engine=_engine(parts),
        run=_run(results),
        estimated=_estimated(results),
        names={symbol: name for names in known for symbol, name in names.items()} if known else None,
        pieces=pieces if len(pieces) == len(tokens) else None,
        lengths=tuple(lengths) if len(set(lengths)) > 1 else None,
        parts=parts,
    )


def _run(results: Sequence[FlipSensitivity]) -> Provenance:
    """Returns what computed the results, with every version, and all of them where they differ."""
    keys = dict.fromkeys(key for one in results for key in one.run.versions)
    versions = {
        key: ", ".join(dict.fromkeys(one.run.versions[key] for one in results if key in one.run.versions))
        for key in keys
    }
    names = {one.run.model for one in results}
    scales = [scale for one in results for scale in one.run.scales or [None] * len(one.tokens)]
    model = names.pop() if len(names) == 1 else None
    return Provenance(results[0].dtype, versions, model, tuple(scales) if any(scales) else None)


def _checked(results: Any) -> list[FlipSensitivity]:
    """Returns the results if they can be put together."""
    given = list(results) if isinstance(results, list | tuple) else []
    found = [one for one in given if isinstance(one, FlipSensitivity)]
    if not found or len(found) < len(given):
        raise InputError(
            f"concat: results = {type(results).__name__}: give a list of results of flip_sensitivity, such as "
            "[one, other]"
        )
    problems = Problems("concat")
    for k, one in enumerate(found[1:], 1):
        for (name, own), first in zip(_alike(one).items(), _alike(found[0]).values(), strict=True):
            if own != first:
                problems.add(
                    f"results[{k}]: {name}", own, f"that of results[0] is {first!r}; measure them alike"
                )
    problems.raise_if_any()
    _check_programs(found, problems)
    return found


def _alike(result: FlipSensitivity) -> dict[str, Any]:
    """Returns what all results have in common, by name."""
    asked = result.asked
    compared = {name: asked.compared()[name] for name in ("measure", "outputs", "readout")}
    return {
        **compared,
        "dtype": result.dtype,
        "copies": asked.flips.copies,
        "groups": asked.flips.groups,
        "model's parameters as SHA-256": asked.weights,
        "measure's program as SHA-256": asked.program,
    }


def _check_programs(results: Sequence[FlipSensitivity], problems: Problems) -> None:
    """Rejects different models on inputs of equal length."""
    seen: dict[int, str] = {}
    for k, one in enumerate(results):
        start = 0
        for part in _parts(one):
            n = one.length(start)
            start += part.inputs
            if seen.setdefault(n, part.asked.model) != part.asked.model:
                problems.add(
                    f"results[{k}]: model, parameters and function as SHA-256,",
                    part.asked.model,
                    f"another result of n = {n} has {seen[n]!r}; measure the same model",
                )
    problems.raise_if_any()


def _parts(result: FlipSensitivity) -> tuple[ResultPart, ...]:
    own = ResultPart(len(result.tokens), result.alphabet, result.engine, result.asked)
    return (own,) if result.parts is None else result.parts


def _engine(parts: Sequence[ResultPart]) -> EngineChoice:
    """Returns the engines that ran, in words."""
    engines = list(dict.fromkeys(part.engine for part in parts))
    if len(engines) == 1:
        return engines[0]
    names = ", ".join(dict.fromkeys(one.name for one in engines))
    return EngineChoice(names, "; ".join(dict.fromkeys(one.reason for one in engines)))


def _estimated(results: Sequence[FlipSensitivity]) -> Estimated | None:
    """Returns the estimates of all results; flips of a result without any were all measured."""
    known = [one.estimated for one in results if one.estimated is not None]
    if not known:
        return None
    sketches = list(dict.fromkeys(one.sketch for one in known))
    if len(sketches) > 1:
        raise InputError(
            f"concat: results with the sketches {sketches}: measure them alike, sketch={sketches[0]!r}"
        )
    each = [one.estimated or _all_measured(one) for one in results]
    return Estimated(
        np.concatenate([one.estimates for one in each]),
        np.concatenate([one.stratum for one in each]),
        np.concatenate([one.compared for one in each]),
        sketches[0],
    )


def _all_measured(result: FlipSensitivity) -> Estimated:
    values = np.asarray(result.values, np.float64)
    return Estimated(values, np.full(len(values), TOP, np.int8), values)


def _joint(results: Sequence[FlipSensitivity]) -> tuple[Joint | None, np.ndarray | None]:
    """Returns what flips of groups insert, and the row of each flip; (None, None) for flips of single positions."""
    known = [(one.flips.joint, one.flips.insertion) for one in results if one.flips.joint is not None]
    tables = [(joint.insertions, rows) for joint, rows in known if joint is not None and rows is not None]
    if not tables:
        return None, None
    every, place = np.unique(np.concatenate([table for table, _ in tables]), axis=0, return_inverse=True)
    starts = np.cumsum([0, *(len(table) for table, _ in tables)])
    rows = [place.ravel()[start + row] for start, (_, row) in zip(starts, tables, strict=False)]
    joint = known[0][0]
    return None if joint is None else dataclasses.replace(joint, insertions=every), np.concatenate(rows)
