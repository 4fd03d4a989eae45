"""Stage 3 of Theorem 1's proof as an algorithm: a random restriction, resampled where it fails.

The proof fixes every input to a random symbol with some probability. By the Lovász local lemma there is a positive
probability that too many inputs can win no head, and that not too many inputs are fixed. Moser and Tardos (2010) find
such a choice: while some head is not settled, draw the inputs that it depends on again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from jaxsens import stopping
from jaxsens.theory.hard_attention.contest import Contest
from jaxsens.theory.hard_attention.greedy import COVERED_SCORES, ranked_rows, unsettled
from jaxsens.theory.hard_attention.restriction import FREE

ROUNDS = 60
"""The search ends after this many rounds of resampling. Where it succeeds it needs about ten."""

PATIENCE = 8
"""It also ends after this many rounds in a row without a new least number of unsettled heads."""

_SHARE = 0.75
"""The share of the budget that is fixed in expectation, so that a draw seldom fixes too many."""


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
