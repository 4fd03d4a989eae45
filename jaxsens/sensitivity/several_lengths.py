"""Texts, and inputs of several lengths, as arguments of `flip_sensitivity`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.asked.flips import Flips
from jaxsens.base import inputs
from jaxsens.base.errors import InputError, Problems
from jaxsens.sensitivity.flips.selection import select
from jaxsens.sensitivity.placement.progress import telling
from jaxsens.sensitivity.results.concat import concat
from jaxsens.sensitivity.results.result import FlipSensitivity
from jaxsens.sensitivity.results.resuming import MeasurementInterrupted
from jaxsens.sensitivity.subjects.adapters import Measurable, checked_input

PROGRESS = "(flips done, flips in all), True for a bar, or False for nothing"
"""What `progress` may be, in words."""

FEWEST = 2
"""Flips drawn of each input: fewer have no variance."""


def rows_of_several_lengths(tokens: Any) -> list[Any] | None:
    """Returns the inputs if they are a list of several lengths; None for anything else."""
    if not isinstance(tokens, list | tuple) or len(tokens) < 2:
        return None
    shapes = [inputs.array_of(one).shape if hasattr(one, "__len__") else () for one in tokens]
    several = all(len(shape) == 1 for shape in shapes) and len(set(shapes)) > 1
    return list(tokens) if several else None


@dataclass(frozen=True)
class _PlannedInput:
    """An input that can be measured: its number, its flips, and how many they are."""

    number: int
    flips: Flips
    count: int


def one_after_another(
    measure: Callable[[int, Flips, Any], FlipSensitivity],
    rows: Sequence[Any],
    subject: Measurable,
    flips: Flips,
    readout: Any,
    progress: Any,
) -> FlipSensitivity:
    """Measures each input by itself, and puts the results together.

    Args:
        measure: measures an input of a number, with its own flips and progress.
        rows: the inputs.
        subject: the model.
        flips: what is flipped.
        readout, progress: the arguments of `flip_sensitivity`.

    Raises:
        InputError: naming the input that cannot be measured, before anything is.
        MeasurementInterrupted: on Ctrl-C, with the inputs that were begun.
    """
    planned = _planned(rows, subject, flips, readout)
    total, done, found = sum(row.count for row in planned), 0, []
    with telling(progress) as told:
        for row in planned:
            try:
                found.append(measure(row.number, row.flips, _within(told, done, row.count, total)))
            except InputError as error:
                raise type(error)(f"input {row.number}: {error}") from error
            except MeasurementInterrupted as stop:
                raise MeasurementInterrupted(concat([*found, stop.partial]), stop.signal) from stop
            except KeyboardInterrupt as stop:
                if not found:
                    raise
                raise MeasurementInterrupted(concat(found), getattr(stop, "signal", signal.SIGINT)) from stop
            done += row.count
    return concat(found)


def _within(
    told: Callable[[int, int], object] | None, done: int, flips: int, total: int
) -> Callable[[int, int], object] | bool:
    """Returns the progress function of one input, of whose flips some were done before in other inputs."""
    if told is None:
        return False
    return lambda mine, all_mine: told(done + mine * flips // max(1, all_mine), total)


def _planned(rows: Sequence[Any], subject: Measurable, flips: Flips, readout: Any) -> list[_PlannedInput]:
    """Returns every input with its flips.

    Raises:
        InputError: listing the errors of all inputs.
    """
    problems = Problems("flip_sensitivity")
    found: list[int] = []
    for k, row in enumerate(rows):
        own = Problems("")
        words, reading = checked_input(subject, row, readout, own, one=True)
        selection = select(flips.drawing(None), reading, words, own) if words.size else None
        problems.extend(own, prefix=f"input {k}: ")
        if not own and selection is not None:
            try:
                found.append(selection.flips(words).population)
            except InputError as error:
                problems.messages.append(f"input {k}: {error}")
    problems.raise_if_any()
    populations = np.array(found)
    if flips.sample is None:
        each = [(flips, int(population)) for population in populations]
    else:
        counts = _divided(flips.sample, populations)
        each = [(flips.drawing(int(count), flips.seed + k), int(count)) for k, count in enumerate(counts)]
    return [_PlannedInput(k, *own) for k, own in enumerate(each)]


def _divided(count: int, populations: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Returns how many flips to draw of each input: in proportion to its flips, `FEWEST` or all at least.

    Raises:
        InputError: for a sample too small for the number of inputs.
    """
    least = np.minimum(populations, FEWEST)
    if count < least.sum():
        raise InputError(
            f"flip_sensitivity: flips: sample = {count}: at least {FEWEST} of each of the {len(populations)} inputs, "
            f"sample={int(least.sum())}"
        )
    free = min(count, int(populations.sum())) - int(least.sum())
    rest = populations - least
    shares = free * rest / max(1, rest.sum())
    counts = np.floor(shares).astype(int)
    order = np.argsort(counts - shares, kind="stable")
    counts[order[: free - int(counts.sum())]] += 1
    return least + counts
