"""Counting measurements against a budget, and keeping the best word seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsens.search.problem import Measured, Problem
from jaxsens.stopping import check


class SearchProgress(NamedTuple):
    """How far a search is.

    Attributes:
        done: measurements of all flips of a word so far; of an enumeration, words so far.
        total: the budget, None without one; of an enumeration, the words there are.
        value: the largest objective so far; None in an enumeration, which knows it only at its end.
    """

    done: int
    total: int | None
    value: float | None


class Found(NamedTuple):
    """A word, its objective and its largest flip."""

    value: float
    tokens: tuple[int, ...]
    position: int
    symbol: int


class BudgetSpent(Exception):
    """The next measurement would be one too many."""


@dataclass
class Meter:
    """Measures words within a budget.

    Attributes:
        problem: how.
        budget: measurements of all flips of a word; None for as many as it takes.
        used: measurements so far.
        best: the first word with the largest objective so far.
        history: (used, value) each time that the best became better.
        progress: called after every measurement.
    """

    problem: Problem
    budget: int | None
    used: int = 0
    best: Found | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    progress: Callable[[SearchProgress], None] | None = None

    def measure(self, word: Int[np.ndarray, " n"]) -> Measured:
        """All flips of a word.

        Raises:
            BudgetSpent: if the budget has no measurement left.
        """
        if self.budget is not None and self.used >= self.budget:
            raise BudgetSpent
        measured = self.problem.measure(word)
        self.used += 1
        if self.best is None or measured.value > self.best.value:
            position, symbol = measured.flip(*measured.largest)
            self.best = Found(measured.value, tuple(int(token) for token in word), position, symbol)
            self.history.append((self.used, measured.value))
        if self.progress is not None:
            self.progress(SearchProgress(self.used, self.budget, self.best.value))
        return measured

    def probe(self, word: Int[np.ndarray, " n"], flip: tuple[int, int]) -> float:
        """One flip (position, symbol) of a word. Costs a forward pass or two, and no budget."""
        check()
        return float(self.problem.few(word[None], [flip])[0, 0])
