"""Texts, and inputs of several lengths, as arguments of `flip_sensitivity`."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import numpy as np
from jaxtyping import Int

from jaxsens import inputs
from jaxsens.errors import InputError, Problems
from jaxsens.models.layered_model import LayeredModel
from jaxsens.sensitivity.adapters import checked_input, measurable
from jaxsens.sensitivity.candidates import Selection, Wanted, select
from jaxsens.sensitivity.concat import concat
from jaxsens.sensitivity.flips import Sample
from jaxsens.sensitivity.progress import telling
from jaxsens.sensitivity.result import FlipSensitivity
from jaxsens.sensitivity.resuming import MeasurementInterrupted
from jaxsens.strict import bind

Arguments = ParamSpec("Arguments")

PROGRESS = "(flips done, flips in all), True for a bar, or False for nothing"
"""What `progress` may be, in words."""

FEWEST = 2
"""Flips drawn of each input: fewer have no variance."""


def of_several_lengths(
    measure: Callable[Arguments, FlipSensitivity],
) -> Callable[Arguments, FlipSensitivity]:
    """Makes `flip_sensitivity`, which measures inputs of one length, take texts and inputs of several lengths."""
    signature = inspect.signature(measure)

    @functools.wraps(measure)
    def measured(*args: Arguments.args, **kwargs: Arguments.kwargs) -> FlipSensitivity:
        arguments = bind(measure, signature, args, kwargs).arguments
        tokens = encoded(arguments["model"], arguments["tokens"])
        rows = rows_of_several_lengths(tokens)
        if rows is None:
            return measure(**{**arguments, "tokens": tokens})  # pyright: ignore[reportCallIssue]
        return _one_after_another(measure, rows, arguments)

    return measured


def encoded(model: Any, tokens: Any) -> Any:
    """Returns the ids of a text, or of each text of a list, if the model encodes texts; anything else unchanged."""
    encode = getattr(model, "encode", None) if isinstance(model, LayeredModel) else None
    if encode is None:
        return tokens
    if isinstance(tokens, str):
        return encode(tokens)
    if isinstance(tokens, list | tuple) and tokens and all(isinstance(one, str) for one in tokens):
        return [encode(one) for one in tokens]
    return tokens


def rows_of_several_lengths(tokens: Any) -> list[Any] | None:
    """Returns the inputs if they are a list of several lengths; None for anything else."""
    if not isinstance(tokens, list | tuple) or len(tokens) < 2:
        return None
    shapes = [inputs.array_of(one).shape if hasattr(one, "__len__") else () for one in tokens]
    several = all(len(shape) == 1 for shape in shapes) and len(set(shapes)) > 1
    return list(tokens) if several else None


@dataclass(frozen=True)
class _PlannedInput:
    """An input that can be measured: its number, its ids, and the number of flips to measure."""

    number: int
    tokens: Int[np.ndarray, " n"]
    flips: int


def _one_after_another(
    measure: Callable[..., FlipSensitivity], rows: Sequence[Any], arguments: dict[str, Any]
) -> FlipSensitivity:
    """Measures each input by itself, and puts the results together.

    Raises:
        InputError: naming the input that cannot be measured, before anything is.
        MeasurementInterrupted: on Ctrl-C, with the inputs that were begun.
    """
    if arguments["resume"] is not None:
        raise InputError(
            f"flip_sensitivity: resume = {arguments['resume']!r}: not with inputs of several lengths; complete the "
            "input that was begun by itself, resume=partial.of_input(k), and put the results together: "
            "jaxsens.concat(results)"
        )
    with_progress = _checked_progress(arguments["progress"])
    planned = _planned(rows, arguments)
    total, done, found = sum(row.flips for row in planned), 0, []
    with telling(with_progress) as told:
        for row in planned:
            own = {**arguments, "tokens": row.tokens, "progress": _within(told, done, row.flips, total)}
            own |= _drawn(arguments, row)
            try:
                found.append(measure(**own))
            except InputError as error:
                raise type(error)(f"input {row.number}: {error}") from error
            except MeasurementInterrupted as stop:
                raise MeasurementInterrupted(concat([*found, stop.partial]), stop.signal) from stop
            except KeyboardInterrupt as stop:
                if not found:
                    raise
                raise MeasurementInterrupted(concat(found), getattr(stop, "signal", signal.SIGINT)) from stop
            done += row.flips
    return concat(found)


def _checked_progress(progress: Any) -> Any:
    """Returns `progress` after checking it, which a measurement does only once it has begun."""
    problems = Problems("flip_sensitivity")
    inputs.progress(progress, 2, PROGRESS, problems)
    problems.raise_if_any()
    return progress


def _within(
    told: Callable[[int, int], object] | None, done: int, flips: int, total: int
) -> Callable[[int, int], object] | bool:
    """Returns the progress function of one input, of whose flips some were done before in other inputs."""
    if told is None:
        return False
    return lambda mine, all_mine: told(done + mine * flips // max(1, all_mine), total)


def _planned(rows: Sequence[Any], arguments: dict[str, Any]) -> list[_PlannedInput]:
    """Returns every input with the number of its flips.

    Raises:
        InputError: listing the errors of all inputs.
    """
    subject, problems = measurable(arguments["model"]), Problems("flip_sensitivity")
    wanted = Wanted(
        **{
            name: arguments[name]
            for name in ("alphabet_size", "symbols", "positions", "flips", "candidates", "groups")
        }
    )
    found: list[tuple[Int[np.ndarray, " n"], int]] = []
    for k, row in enumerate(rows):
        own = Problems("")
        words, reading = checked_input(subject, row, arguments["readout"], own, one=True)
        selection = select(wanted, reading, words, own) if words.size else None
        problems.extend(own, prefix=f"input {k}: ")
        if not own and selection is not None:
            undrawn = Selection(selection.lists, selection.rows, selection.edit, groups=selection.groups)
            try:
                found.append((words[0], undrawn.flips(words).population))
            except InputError as error:
                problems.messages.append(f"input {k}: {error}")
    problems.raise_if_any()
    populations = np.array([population for _, population in found])
    counts = populations
    if (drawn := wanted.drawn) is not None:
        counts = _divided(drawn, populations)
    return [_PlannedInput(k, word, int(counts[k])) for k, (word, _) in enumerate(found)]


def _divided(drawn: Sample, populations: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Returns how many flips to draw of each input: in proportion to its flips, `FEWEST` or all at least.

    Raises:
        InputError: for a sample too small for the number of inputs.
    """
    least = np.minimum(populations, FEWEST)
    if drawn.count < least.sum():
        raise InputError(
            f"flip_sensitivity: sample of {drawn.count} flips: at least {FEWEST} of each of the {len(populations)} "
            f"inputs, jaxsens.sample({int(least.sum())})"
        )
    free = min(drawn.count, int(populations.sum())) - int(least.sum())
    rest = populations - least
    shares = free * rest / max(1, rest.sum())
    counts = np.floor(shares).astype(int)
    order = np.argsort(counts - shares, kind="stable")
    counts[order[: free - int(counts.sum())]] += 1
    return least + counts


def _drawn(arguments: dict[str, Any], row: _PlannedInput) -> dict[str, Any]:
    """Returns the arguments with the sample of one input in place of that of all."""
    return {
        name: Sample(row.flips, arguments[name].seed + row.number, arguments[name].positions)
        for name in ("positions", "candidates")
        if isinstance(arguments[name], Sample)
    }
