"""Walks of steps +1 and -1 that never go below 0: how many, how high, and uniform ones of any length.

N(n, h) = (h + 1) / (n + 1) * binomial(n + 1, (n - h) / 2) walks of n steps end at height h (the ballot numbers; h and
n are both even or both odd). In a word of brackets an opening bracket is a step up, a closing one a step down.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.languages.distributions import from_log_ratios


def final_heights(n: int) -> Int[np.ndarray, " m"]:
    """The heights that n steps can end at: n mod 2, ..., n - 2, n."""
    return np.arange(n % 2, n + 1, 2)


def final_height_law(n: int, up: float) -> Float[np.ndarray, " m"]:
    """P(height = h after n steps | never below 0) for h in `final_heights(n)`, a step being up with probability `up`.

    The weight of h is N(n, h) up^((n + h)/2) (1 - up)^((n - h)/2). Only ratios of neighbours are used:
    N(n, h + 2) / N(n, h) = (h + 3)/(h + 1) * (n - h)/(n + h + 4). O(n) time.
    """
    h = final_heights(n)[:-1].astype(np.float64)
    ratios = (h + 3) / (h + 1) * (n - h) / (n + h + 4)
    return from_log_ratios(np.log(ratios) + (np.log(up) - np.log1p(-up)))


def last_step_down(n: int, heights: Int[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """N(n - 1, h + 1) / N(n, h) = (h + 2)(n - h) / (2 n (h + 1)): how many walks to h end with a step down. n >= 1."""
    h = heights.astype(np.float64)
    return (h + 2) * (n - h) / (2 * n * (h + 1))


def uniform_walks(
    heights: Int[np.ndarray, " count"], n: int, generator: np.random.Generator
) -> Int[np.ndarray, "count n"]:
    """For each final height one walk, uniform among the N(n, h) that end there; steps +1 and -1 as int8.

    By the cycle lemma (Dvoretzky and Motzkin 1947): of the n + 1 rotations of any arrangement of (n + h)/2 + 1 steps
    up and (n - h)/2 down, exactly h + 1 stay above 0: those that begin where the walk is for the last time on one of
    its h + 1 lowest levels. Without its first step, each is a walk as sought. So a random arrangement and a random one
    of its good rotations give a uniform walk, nothing rejected. O(n) a walk.
    """
    count, period = len(heights), n + 1
    ups = (n + heights) // 2 + 1
    steps = np.where(np.arange(period) < ups[:, None], 1, -1).astype(np.int8)
    generator.permuted(steps, axis=1, out=steps)
    level = np.zeros((count, period + 1), np.int32)
    np.cumsum(steps, axis=1, dtype=np.int32, out=level[:, 1:])
    later = np.minimum.accumulate(level[:, :0:-1], axis=1)[:, ::-1]
    last_there = level[:, :-1] < later  # in order, one on each level, the lowest first
    chosen = generator.integers(0, heights + 1)
    start = np.argmax(np.cumsum(last_there, axis=1, dtype=np.int32) == chosen[:, None] + 1, axis=1)
    return np.take_along_axis(steps, (start[:, None] + np.arange(1, period)) % period, axis=1)


def innermost_open(opening: Bool[np.ndarray, "count n"]) -> Int[np.ndarray, "count n"]:
    """Where, after each symbol, the innermost opening bracket not yet closed stands; -1 if there is none.

    Right up to the first closing bracket that closes nothing. O(n log n) time a word: the opening bracket sought is the
    last one to lead to the present height, so positions are sorted by height, in order within one height.
    """
    count, n = opening.shape
    if opening.size == 0:
        return np.zeros((count, n), np.int64)
    height = np.cumsum(np.where(opening, 1, -1).astype(np.int8), axis=1, dtype=np.int32)
    lowest = int(height.min())
    few = int(height.max()) - lowest < 2**16  # sorting 16-bit numbers takes a radix sort, four times as fast
    order = np.argsort((height - lowest).astype(np.uint16) if few else height, axis=1, kind="stable")
    opens = np.take_along_axis(opening, order, axis=1)
    last = np.maximum.accumulate(np.where(opens, np.arange(n), 0), axis=1)
    found = np.empty((count, n), np.int64)
    np.put_along_axis(found, order, np.take_along_axis(order, last, axis=1), axis=1)
    return np.where(height > 0, found, -1)
