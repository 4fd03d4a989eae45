"""Which inputs to fix: stages 2 and 3 of Theorem 1's proof as algorithms.

A query of a head is settled when at most `allowed` rows with an open case can still win it. Fixing the inputs of a key
so that its score is high settles the queries that rank few open rows above it.

`cover`, stage 2. The proof finds one input that settles many queries by the pigeonhole principle. Here the input that
settles most is fixed, again and again: a greedy set cover.

`resample`, stage 3. The proof fixes every input to a random symbol with some probability. By the Lovász local lemma
there is a positive probability that too many inputs can win no head, and that not too many inputs are fixed. Moser and
Tardos (2010) find such a choice: while some head is not settled, draw the inputs that it depends on again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens import stopping
from jaxsens.theory.hard_attention.cases import check_scores
from jaxsens.theory.hard_attention.contest import Contest
from jaxsens.theory.hard_attention.restriction import FREE

COVERED_SCORES = 2**23
"""How many pairs of query and key the cover considers at a time. The rest waits for the next round."""

ROUNDS = 60
"""The search ends after this many rounds of resampling. Where it succeeds it needs about ten."""

PATIENCE = 8
"""It also ends after this many rounds in a row without a new least number of unsettled heads."""

_SHARE = 0.75
"""The share of the budget that is fixed in expectation, so that a draw seldom fixes too many."""


def unsettled(
    contest: Contest, rows: Int[np.ndarray, " some"], allowed: int
) -> tuple[Int[np.ndarray, " e"], Int[np.ndarray, " e"]]:
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
    contest: Contest,
    heads: Int[np.ndarray, " e"],
    queries: Int[np.ndarray, " e"],
    allowed: int,
    budget: int,
    spared: int,
) -> dict[int, int]:
    """The inputs to fix, with their symbols: at most `budget`, chosen greedily to settle the most queries.

    The input `spared` is not fixed.
    """
    settles = _settles(contest, heads, queries, allowed)
    level = contest.level
    cost = np.array([len(level.conditions[case]) for case in level.case], np.float64)
    alone = np.bincount(level.case)[level.case] == 1
    gains = np.where(alone & (cost > 0), settles.sum(axis=0) / np.maximum(cost, 1), 0.0)
    spares = np.array([all(i != spared for i, _ in conditions) for conditions in level.conditions])
    able = (gains > 0) & spares[level.case]
    open_events = np.ones(len(heads), bool)
    fixed: dict[int, int] = {}
    while True:
        affordable = able & (cost <= budget - len(fixed))
        if not affordable.any():
            return fixed
        entry = int(np.argmax(np.where(affordable, gains, -1.0)))
        if gains[entry] <= 0:
            return fixed
        for condition in level.conditions[level.case[entry]]:
            fixed[condition[0]] = condition[1]
            able[level.rivals[condition]] = False
        able[entry] = False
        now = open_events & settles[:, entry]
        gains = gains - settles[now].sum(axis=0) / np.maximum(cost, 1)
        open_events &= ~now


def _settles(
    contest: Contest, heads: Int[np.ndarray, " e"], queries: Int[np.ndarray, " e"], allowed: int
) -> Bool[np.ndarray, "e entries"]:
    """Whether fixing the inputs of an entry's case settles a head's query: few open rows rank above it."""
    level = contest.level
    scores, best = _scores_of(contest, heads, queries)
    top, value = _ranked(best, allowed + 2, contest.leftmost)
    inside = np.zeros(best.shape, bool)
    np.put_along_axis(inside, top[:, : min(allowed + 1, best.shape[1])], True, axis=-1)
    row = np.searchsorted(level.rows, level.owner)
    settles = np.zeros(scores.shape, bool)
    # A row among the first does not count against itself: then one more may be above it.
    for rank, among in ((allowed, ~inside[:, row]), (allowed + 1, inside[:, row])):
        threshold, holder = value[:, rank, None], top[:, rank, None]
        before = row < holder if contest.leftmost else row > holder
        settles |= among & ((scores > threshold) | ((scores == threshold) & before))
    return settles & (scores > -np.inf)


def _scores_of(
    contest: Contest, heads: Int[np.ndarray, " e"], queries: Int[np.ndarray, " e"]
) -> tuple[Float[np.ndarray, "e entries"], Float[np.ndarray, "e rows"]]:
    """The score of every entry for these queries; and of every row its largest, or -inf where the row is decided."""
    level = contest.level
    scores = np.empty((len(heads), len(level.owner)))
    undecided = np.empty((len(heads), len(level.rows)), bool)
    for part, block in contest.blocks(np.unique(queries)):
        events = np.flatnonzero(np.isin(queries, part))
        where = np.searchsorted(part, queries[events])
        scores[events] = block.scores[heads[events], where]
        undecided[events] = block.undecided[where]
    return scores, np.where(undecided, np.maximum.reduceat(scores, level.starts, axis=-1), -np.inf)


def _ranked(
    best: Float[np.ndarray, "e rows"], count: int, leftmost: bool
) -> tuple[Int[np.ndarray, "e count"], Float[np.ndarray, "e count"]]:
    """The first `count` columns of `best` by falling value, and these values. -1 and -inf where there are fewer.

    Of equal values the leftmost comes first, or the rightmost.
    """
    left, every = best.copy(), np.arange(len(best))
    first, value = np.full((len(best), count), -1), np.full((len(best), count), -np.inf)
    # The few largest, one by one: cheaper than sorting whole rows.
    for rank in range(min(count, best.shape[1])):
        chosen = np.argmax(left if leftmost else left[:, ::-1], axis=-1)
        first[:, rank] = chosen if leftmost else best.shape[1] - 1 - chosen
        value[:, rank] = left[every, first[:, rank]]
        left[every, first[:, rank]] = -np.inf
    return first, value


def ranked_rows(
    contest: Contest, heads: Int[np.ndarray, " e"], queries: Int[np.ndarray, " e"], count: int
) -> Int[np.ndarray, "e count"]:
    """The `count` rows with an open case that each query of a head prefers most; -1 where there are fewer."""
    first, value = _ranked(_scores_of(contest, heads, queries)[1], count, contest.leftmost)
    return np.where(value > -np.inf, contest.level.rows[first], -1)


def resample(
    contest_of: Callable[[Int[np.ndarray, " n"]], Contest],
    values: Int[np.ndarray, " n"],
    rows: Int[np.ndarray, " some"],
    symbols: tuple[int, ...],
    allowed: int,
    budget: int,
    spared: int,
    generator: np.random.Generator,
) -> Int[np.ndarray, " n"] | None:
    """Values that fix at most `budget` more inputs and leave at most `allowed` open rows to win any head; or None.

    Args:
        contest_of: the contest of the layer under given values.
        values: what is fixed before.
        rows: whose heads are to be settled.
        symbols: what an input may be fixed to.
        allowed, budget: as said.
        spared: an input that is not fixed.
        generator: of all random choices.
    """
    free = np.flatnonzero((values == FREE) & (np.arange(len(values)) != spared))
    if not len(free) or budget < 1:
        return None
    chance = min(0.9, _SHARE * budget / len(free))
    sources = _sources(contest_of(values), rows, math.ceil((allowed + 1) / (1 - chance)))

    def draw(where: Int[np.ndarray, " some"]) -> None:
        symbol = generator.choice(np.array(symbols), size=len(where))
        drawn[where] = np.where(generator.random(len(where)) < chance, symbol, FREE)

    drawn = values.copy()
    draw(free)
    fewest, idle = math.inf, 0
    for _ in range(ROUNDS):
        stopping.check()
        fixed = free[drawn[free] != FREE]
        if len(fixed) > budget:
            drawn[generator.choice(fixed, size=len(fixed) - budget, replace=False)] = FREE
        contest = contest_of(drawn)
        heads, queries = unsettled(contest, rows, allowed)
        if not len(heads):
            return drawn
        idle = 0 if len(heads) < fewest else idle + 1
        fewest = min(fewest, len(heads))
        if idle >= PATIENCE:
            return None
        events = sorted(set(zip(heads.tolist(), contest.level.owner[queries].tolist(), strict=True)))
        taken: set[int] = set()
        for number in generator.permutation(len(events)):
            inputs = sources[events[number]]
            if taken.isdisjoint(inputs):
                taken |= inputs
                draw(np.array(sorted(inputs - {spared}), np.int64))
    return None


def _sources(
    contest: Contest, rows: Int[np.ndarray, " some"], count: int
) -> dict[tuple[int, int], frozenset[int]]:
    """Of every head and row: the inputs of the first `count` open rows that it prefers, over its possible queries."""
    level = contest.level
    queries = contest.queries_of(rows)
    inputs: dict[int, set[int]] = {}
    for row, conditions in zip(level.case_owner.tolist(), level.conditions, strict=True):
        inputs.setdefault(row, set()).update(i for i, _ in conditions)
    found: dict[tuple[int, int], set[int]] = {}
    size = max(1, COVERED_SCORES // len(level.owner))
    for head in range(contest.heads):
        for start in range(0, len(queries), size):
            part = queries[start : start + size]
            ranked = ranked_rows(contest, np.full(len(part), head), part, count)
            for query, preferred in zip(part, ranked.tolist(), strict=True):
                known = {i for i, _ in level.conditions[level.case[query]]}
                own = found.setdefault((head, int(level.owner[query])), set())
                own.update(*(inputs[row] - known for row in preferred if row >= 0))
    return {event: frozenset(of) for event, of in found.items()}
