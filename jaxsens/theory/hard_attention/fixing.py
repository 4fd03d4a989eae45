"""Which inputs to fix: stage 2 of Theorem 1's proof as an algorithm.

A query of a head is settled when at most `allowed` rows with an open case can still win it. Fixing the inputs of a key
so that its score is high settles the queries that rank few open rows above it.

The proof finds one input that settles many queries by the pigeonhole principle. Here the input that settles most is
fixed, again and again: a greedy set cover.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.theory.hard_attention.cases import check_scores
from jaxsens.theory.hard_attention.contest import Contest

COVERED_SCORES = 2**23
"""How many pairs of query and key the cover considers at a time. The rest waits for the next round."""

Events: TypeAlias = Int[np.ndarray, " e"]
"""Heads, or queries, of pairs that are not settled."""


def unsettled(contest: Contest, rows: Int[np.ndarray, " some"], allowed: int) -> tuple[Events, Events]:
    """Heads and queries (entries of `rows`) that more than `allowed` open rows can win."""
    queries = contest.queries_of(rows)
    check_scores(contest, len(queries))
    heads, found = [], []
    for part, block in contest.blocks(queries):
        head, row = np.nonzero(block.free_rivals > allowed)
        heads.append(head)
        found.append(part[row])
    return np.concatenate(heads), np.concatenate(found)


def cover(
    contest: Contest, heads: Events, queries: Events, allowed: int, budget: int, spared: int
) -> dict[int, int]:
    """The inputs to fix, with their symbols: at most `budget`, chosen greedily to settle the most queries.

    The input `spared` is not fixed.
    """
    settles = _settles(contest, heads, queries, allowed)
    level = contest.level
    cost = np.array([len(case.conditions) for case in level.cases], np.float64)[level.case]
    alone = level.sizes[level.case] == 1
    gains = np.where(alone & (cost > 0), settles.sum(axis=0) / np.maximum(cost, 1), 0.0)
    spares = np.array([spared not in dict(case.conditions) for case in level.cases])
    able = (gains > 0) & spares[level.case]
    open_events = np.ones(len(heads), bool)
    fixed: dict[int, int] = {}
    while (affordable := able & (cost <= budget - len(fixed))).any():
        entry = int(np.argmax(np.where(affordable, gains, -1.0)))
        if gains[entry] <= 0:
            break
        for condition in level.conditions(entry):
            fixed[condition[0]] = condition[1]
            able[level.rivals[condition]] = False
        able[entry] = False
        now = open_events & settles[:, entry]
        gains = gains - settles[now].sum(axis=0) / np.maximum(cost, 1)
        open_events &= ~now
    return fixed


def _settles(contest: Contest, heads: Events, queries: Events, allowed: int) -> Bool[np.ndarray, "e entries"]:
    """Whether fixing the inputs of an entry's case settles a head's query: few open rows rank above it."""
    level = contest.level
    scores, top, value = _ranked(contest, heads, queries, allowed + 2)
    inside = np.zeros((len(heads), len(level.rows)), bool)
    np.put_along_axis(inside, top[:, : min(allowed + 1, len(level.rows))], True, axis=1)
    row = np.searchsorted(level.rows, level.owner)
    settles = np.zeros(scores.shape, bool)
    # A row among the first does not count against itself: then one more may be above it.
    for rank, among in ((allowed, ~inside[:, row]), (allowed + 1, inside[:, row])):
        threshold, holder = value[:, rank, None], top[:, rank, None]
        before = contest.sign * row < contest.sign * holder
        settles |= among & ((scores > threshold) | ((scores == threshold) & before))
    return settles & (scores > -np.inf)


def _ranked(
    contest: Contest, heads: Events, queries: Events, count: int
) -> tuple[Float[np.ndarray, "e entries"], Int[np.ndarray, "e count"], Float[np.ndarray, "e count"]]:
    """All scores of each query of a head; the `count` rows with an open case that it prefers, by index; their scores.

    Where there are fewer rows the scores are -inf.
    """
    level = contest.level
    scores = np.empty((len(heads), len(level.owner)))
    best = np.empty((len(heads), len(level.rows)))
    for part, block in contest.blocks(np.unique(queries)):
        events = np.flatnonzero(np.isin(queries, part))
        where = np.searchsorted(part, queries[events])
        scores[events] = block.scores[heads[events], where]
        largest = np.maximum.reduceat(scores[events], level.starts, axis=-1)
        best[events] = np.where(block.undecided[where], largest, -np.inf)
    top, value = np.zeros((len(heads), count), np.int64), np.full((len(heads), count), -np.inf)
    every = np.arange(len(heads))
    for rank in range(min(count, best.shape[1])):
        top[:, rank] = contest.preferred(best)
        value[:, rank] = best[every, top[:, rank]]
        best[every, top[:, rank]] = -np.inf
    return scores, top, value
