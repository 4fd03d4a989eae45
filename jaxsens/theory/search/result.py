"""What a search found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.text import html_facts
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.theory.search.local_search import Restart

MOST_SHOWN = 100
"""The symbols of a word that a notebook shows."""


@dataclass(frozen=True, eq=False)
class WorstInput(SavedResult):
    """The word with the largest sensitivity that was found, and how it was found.

    Attributes:
        value: Its objective, in the units of the model's output: `flip_sensitivity(model, tokens).max` or `.mean`, over
            the flips of `positions`.
        tokens: The word, (n,).
        position: The 0-based position of its largest flip.
        symbol: The symbol that this flip puts in.
        objective: "max", the largest sensitivity of a word, or "mean", the mean over its flips.
        exact: Whether `value` is the largest of all words, by enumeration. Otherwise it is a lower bound.
        alphabet: The symbols that words are made of, sorted.
        fixed: (position, symbol) for the positions that are the same in all words.
        positions: The 0-based positions that were flipped.
        measure: The norm: "l2", "l1" or "linf".
        outputs: The output coordinates that entered the norm; None for all.
        words: The number of words that were enumerated; 0 for a search.
        measurements: The measurements of all flips of a word that were used; for an enumeration, one at its end.
        restarts: The starts of the search, and where each led; none for an enumeration.
        starts: The number of starts asked for. Fewer were made if the budget was spent or the search interrupted.
        history: (measurements, value) each time that the best improved.
        seed: The seed of the search.
        engine: Which engine ran, and why.
        dtype: The dtype of the arithmetic.
        versions: The versions of jaxsens, jax, numpy and the device.
    """

    kind = "result of worst_input"
    value: float
    tokens: Int[np.ndarray, " n"]
    position: int
    symbol: int
    objective: str
    exact: bool
    alphabet: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    positions: tuple[int, ...]
    measure: str
    outputs: tuple[int, ...] | None
    words: int
    measurements: int
    restarts: tuple[Restart, ...]
    starts: int
    history: tuple[tuple[int, float], ...]
    seed: int
    engine: EngineChoice
    dtype: str
    versions: dict[str, str]

    @property
    def n(self) -> int:
        """The length of the word."""
        return len(self.tokens)

    @property
    def flipped(self) -> Int[np.ndarray, " n"]:
        """The word after its largest flip."""
        word = self.tokens.copy()
        word[self.position] = self.symbol
        return word

    @property
    def converged(self) -> bool:
        """Whether nothing was stopped: the words were enumerated, or every start that was asked for converged."""
        made = len(self.restarts) == self.starts
        return self.exact or (made and all(restart.converged for restart in self.restarts))

    def description(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {**asdict(self), "tokens": self.tokens.tolist()}

    def _repr_html_(self) -> str:
        how = f"all {self.words} words" if self.exact else f"a search with {len(self.restarts)} starts"
        word = " ".join(map(str, self.tokens[:MOST_SHOWN])) + (" ..." if self.n > MOST_SHOWN else "")
        rows: dict[str, object] = {
            f"{self.objective} sensitivity ({self.measure})": self.value,
            "word": word,
            "largest flip": f"position {self.position}: {self.tokens[self.position]} to {self.symbol}",
            "found by": how,
        }
        note = (
            "No word of this length has more." if self.exact else "Another word may have more: a lower bound."
        )
        return html_facts(f"Worst input of length {self.n}", rows, note)

    def __repr__(self) -> str:
        how = f"{self.measurements} measurements, {len(self.restarts)} starts"
        if self.exact:
            how = f"all {self.words} words"
        return (
            f"WorstInput(n={self.n}, {self.objective} {self.measure} = {self.value:.4g}, largest flip at position "
            f"{self.position}, {'exact' if self.exact else 'searched'}: {how}, engine={self.engine.name})"
        )


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search. `partial` is what had been found by then."""

    def __init__(self, partial: WorstInput) -> None:
        super().__init__(f"interrupted after {partial.measurements} measurements; see .partial")
        self.partial = partial
