"""The result of `restrict`: a restriction as in Hahn (2020), Theorem 1, with a certificate of its effect."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.inputs import array_of
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.text import html_facts

FREE = -1
"""The value of a restriction at a free position (the paper's star)."""


class RestrictionRefused(InputError):
    """Raised if no restriction was found. The message says which quantity grew too large, and what to change.

    >>> def free(model, n):
    ...     try:
    ...         return jaxsens.theory.restrict(model, n).free_fraction
    ...     except RestrictionRefused:  # try a larger n
    ...         return free(model, 2 * n)
    """


@dataclass(frozen=True)
class Case:
    """One case of a row's value after a layer, and the winners of the layer's heads in it.

    Attributes:
        row: the 0-based position.
        conditions: (input, symbol) pairs: the free inputs that the value depends on in this case.
        keys: for each head, the positions that can win in this case; none if the row sees no key. There is more than
            one only if rounding leaves the winner open.
    """

    row: int
    conditions: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Certificate:
    """Lists the keys that can win each head, case by case, which proves that the output depends on few inputs.

    A row's cases are mutually exclusive and exhaustive. In each case the row is constant: for any free inputs that meet
    the conditions, only the keys named can win. `check` verifies this from the model alone.

    Attributes:
        layers: for each layer, the cases of every row that the readout can depend on.
    """

    layers: tuple[tuple[Case, ...], ...]

    def row(self, layer: int, row: int) -> tuple[Case, ...]:
        """Returns the cases of one row after one layer (0-based)."""
        return tuple(case for case in self.layers[layer] if case.row == row)


@dataclass(frozen=True, eq=False)
class Restriction(SavedResult):
    """A map from positions to a symbol or FREE, under which a hard-attention model's output depends on few inputs.

    Verify one that was loaded with `check`: a file can claim anything.

    Attributes:
        values: for each position, the symbol it is fixed to, or FREE (-1).
        symbols: the symbols that a free position may hold.
        depends_on: the free positions that the output may depend on. The others have no effect on it.
        fixed: the number of positions that the caller fixed.
        stages: the number of positions that each stage of the construction fixed, by stage name.
        certificate: the keys that can win each head.

    >>> import jaxsens
    >>> config = jaxsens.TransformerConfig(2, layers=1, width=4, heads=1, weighting="leftmost-hard")
    >>> jaxsens.theory.restrict(jaxsens.Transformer(config), 16, free_fraction=0.5).free_fraction >= 0.5
    True
    """

    kind = "restriction"
    values: Int[np.ndarray, " n"]
    symbols: tuple[int, ...]
    depends_on: tuple[int, ...]
    fixed: int
    stages: dict[str, int]
    certificate: Certificate = field(repr=False)

    @property
    def n(self) -> int:
        """The length of the inputs."""
        return len(self.values)

    @property
    def c(self) -> int:
        """The number of free inputs that the output may depend on."""
        return len(self.depends_on)

    @property
    def free(self) -> Bool[np.ndarray, " n"]:
        """Which positions are free."""
        return self.values == FREE

    @property
    def free_fraction(self) -> float:
        """The share of free positions."""
        return float(np.mean(self.free))

    @property
    def irrelevant(self) -> Int[np.ndarray, " some"]:
        """The free positions that the output does not depend on."""
        return np.setdiff1d(np.flatnonzero(self.free), self.depends_on)

    def complete(self, generator: np.random.Generator, count: int = 1) -> Int[np.ndarray, "count n"]:
        """Returns words under the restriction, int32, with an independent uniform symbol at every free position.

        Raises:
            InputError: naming each unusable argument.
        """
        with collecting("Restriction.complete") as problems:
            inputs.generator(generator, problems)
            inputs.count("count", count, problems)
        return self._drawn(self.values, np.flatnonzero(self.free), generator, count)

    def vary(
        self, word: Int[np.ndarray, " n"], generator: np.random.Generator, count: int = 1
    ) -> Int[np.ndarray, "count n"]:
        """Returns words that differ from `word` only in the irrelevant free positions, which are redrawn. int32.

        Raises:
            InputError: naming each unusable argument; also for a word that is not under the restriction.
        """
        given = array_of(word)
        with collecting("Restriction.vary") as problems:
            self._check_word(given, word, problems)
            inputs.generator(generator, problems)
            inputs.count("count", count, problems)
        return self._drawn(given, self.irrelevant, generator, count)

    def _drawn(
        self, word: np.ndarray, where: np.ndarray, generator: np.random.Generator, count: int
    ) -> Int[np.ndarray, "count n"]:
        words = np.repeat(word.astype(np.int32)[None], count, axis=0)
        words[:, where] = generator.choice(np.array(self.symbols), size=(count, len(where)))
        return words

    def _check_word(self, given: np.ndarray, word: object, problems: Problems) -> None:
        if given.shape != (self.n,) or not np.issubdtype(given.dtype, np.integer):
            shown = word if given.ndim < 2 else f"shape {given.shape}"
            problems.add("word", shown, f"{self.n} whole numbers, such as complete(generator)[0]")
            return
        wrong = np.where(self.free, ~np.isin(given, self.symbols), given != self.values)
        if wrong.any():
            i = int(np.argmax(wrong))
            held = f"{self.values[i]}, to which it is fixed"
            wanted = f"one of {list(self.symbols)}" if self.free[i] else held
            problems.add("word", f"{given[i]} at position {i}", f"{wanted}: it is not under the restriction")

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {
            "length n": self.n,
            "free positions": int(self.free.sum()),
            "of them can matter": self.c,
            "which": ", ".join(map(str, self.depends_on)) or "none",
            "fixed by stage": ", ".join(f"{name} {count}" for name, count in self.stages.items()),
        }
        note = "Whatever symbols the other free positions hold, the output is the same."
        return html_facts("Restriction", rows, note)
