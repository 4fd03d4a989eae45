"""One step of the search: from a measured word to a better one, by what a few measurements of all flips tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxsens.search.meter import Meter
from jaxsens.search.problem import Measured, Problem, after_one_change

SIDEWAYS = 4
"""Steps in a row that may leave the value as it is: hard attention has plateaus, on which all gains are 0."""

FAILURES = 3
"""Of the mean: a word that cannot be bettered by so many samples of its flips is taken for a local maximum."""

SAMPLED = 4
"""Flips whose mean stands for the mean of all, to tell which changes raise it."""

SINGLES = 4
"""Single changes tried where no set of changes raises the mean."""


@dataclass(frozen=True)
class Step:
    """Where a step led: the next word, measured, and how many steps in a row have not raised the value."""

    at: Measured
    idle: int


Climb = Callable[[Meter, Measured, int, np.random.Generator], Step | None]
"""(meter, the word, idle steps so far, randomness) -> the next word, or None at a local maximum."""


def climb_max(meter: Meter, at: Measured, idle: int, rng: np.random.Generator) -> Step | None:
    """A step towards a larger sensitivity of one flip. Costs two measurements, and O(log n) single flips.

    The largest flip of the word x leads to x'. All flips of x' tell how much that flip would do after any single
    change of what x and x' have in common. Changes interact by O(1/n), so the best of them are made together: all that
    raise it, the better half, and so on, as long as fewer do more; down to the best alone if need be. Or the step goes
    to x', if some other flip of x' is larger still. If neither, no neighbour of the pair is better.
    """
    row, column = at.largest
    flip, there = at.flip(row, column), meter.measure(at.after(row, column))
    gains = after_one_change(at, there, row, column)
    enough, same = at.value * (1 + at.problem.slack), at.value * (1 - at.problem.slack)
    columns = np.argmax(gains, axis=1)
    rows = _descending(gains.max(axis=1), enough)
    if len(rows):
        best, most = at.word, enough
        for word in _halved(at, rows, columns):
            found = meter.probe(word, flip)
            if found > most:
                best, most = word, found
            elif most > enough:
                break
        if most > enough and most >= there.value:
            return Step(meter.measure(best), 0)
    if there.value > enough:
        return Step(there, 0)
    if idle >= SIDEWAYS:
        return None
    # A plateau: as many of the changes that do nothing as can be made together, drawn at random.
    columns = np.argmax(np.where(gains >= same, rng.random(gains.shape), -1), axis=1)
    rows = rng.permutation(np.flatnonzero(gains.max(axis=1) >= same))
    if not len(rows):
        return None
    level = (word for word in _halved(at, rows, columns) if meter.probe(word, flip) >= same)
    word = next(level, None)
    return None if word is None else Step(meter.measure(word), idle + 1)


def climb_mean(meter: Meter, at: Measured, idle: int, rng: np.random.Generator) -> Step | None:
    """A step towards a larger mean over flips. Costs `SAMPLED` measurements, and one for each word tried.

    As `climb_max`, but of a sample of flips, whose mean gain under every single change stands for that of all. The
    words behind the sampled flips are tried along with the rest. Where nothing is better, the next step draws others.
    """
    problem = at.problem
    enough = at.value * (1 + problem.slack)
    rows, columns = _sample(problem, at, rng)
    gains, known, best = np.zeros(at.norms.shape), np.zeros(at.norms.shape), None
    for row, column in zip(rows, columns, strict=True):
        there = meter.measure(at.after(row, column))
        if there.value > enough and (best is None or there.value > best.value):
            best = there
        after = after_one_change(at, there, row, column) - at.norms[row, column]
        gains += np.where(np.isfinite(after), after, 0)
        known += np.isfinite(after)
    gains = np.where(known > 0, gains / np.maximum(known, 1), -np.inf)
    choice = np.argmax(gains, axis=1)
    better = _descending(gains.max(axis=1), 0.0)
    if len(better):
        words = np.stack(list(_halved(at, better, choice)))
        flips = [at.flip(row, column) for row, column in zip(rows, columns, strict=True)]
        promise = problem.few(words, flips).mean(axis=1)
        order = np.argsort(-promise, kind="stable")
        singles = [at.after(row, int(choice[row])) for row in better[1 : 1 + SINGLES]]
        for word in [*words[order], *singles]:
            tried = meter.measure(word)
            if tried.value > enough:
                best = tried if best is None or tried.value > best.value else best
                break
    if best is not None:
        return Step(best, 0)
    return Step(at, idle + 1) if idle + 1 < FAILURES else None


CLIMBS: dict[str, Climb] = {"max": climb_max, "mean": climb_mean}
"""The step of each objective."""


def _descending(values: Float[np.ndarray, " rows"], above: float) -> Int[np.ndarray, " chosen"]:
    """The rows whose values are above a number, the largest first."""
    order = np.argsort(-values, kind="stable")
    return order[values[order] > above]


def _halved(at: Measured, rows: np.ndarray, columns: np.ndarray) -> Iterator[Int[np.ndarray, " n"]]:
    """The word after all changes, the first half of them, and so on down to the first alone."""
    size = len(rows)
    while size:
        yield at.with_all(rows[:size], columns[rows[:size]])
        size //= 2


def _sample(problem: Problem, at: Measured, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of `SAMPLED` flips, drawn without replacement."""
    rows = np.flatnonzero(problem.rises)
    others = at.norms.shape[1]
    drawn = rng.choice(len(rows) * others, min(SAMPLED, len(rows) * others), replace=False)
    return rows[drawn // others], drawn % others
