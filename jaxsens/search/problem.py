"""What is searched: the words, the flips of each, and how they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsens import inputs
from jaxsens.errors import Faults
from jaxsens.inputs import whole_numbers
from jaxsens.memory import TOKEN_BYTES, check_fits
from jaxsens.models.transformer import check_runs
from jaxsens.sensitivity import placement
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.choice import choose
from jaxsens.sensitivity.engine import Engine, EngineChoice
from jaxsens.sensitivity.flips import enumerate_flips, places
from jaxsens.sensitivity.index_check import check_symbol_reads
from jaxsens.sensitivity.output import check_finite, checked_output


@dataclass(frozen=True)
class Words:
    """Which words are searched.

    Attributes:
        n: their length.
        alphabet: the symbols that they are made of, sorted.
        fixed: position to symbol, of the positions that are the same in all words.
        flipped: the 0-based positions that are flipped.
        given: the words to start from, if any.
    """

    n: int
    alphabet: Int[np.ndarray, " symbols"]
    fixed: dict[int, int]
    flipped: Int[np.ndarray, " flipped"]
    given: Int[np.ndarray, "given n"]


def words_of(
    subject: Measurable, n: int, alphabet: Int[np.ndarray, " symbols"], fixed: Any, start: Any, faults: Faults
) -> Words:
    """The words to search; notes what is wrong with `fixed` and `start`, and a length that cannot be searched.

    n is 0, and `alphabet` empty, where they are not known.
    """
    if n and not check_fits("n", n, n * TOKEN_BYTES, "a word of this length", "give a smaller one", faults):
        n = 0
    if n and subject.config is not None:
        check_runs(subject.config, n, faults)
    held = inputs.fixed(fixed, n, subject.vocabulary_size, faults)
    everywhere = places(None, n, subject.position_read(n), faults)
    flipped = everywhere[~np.isin(everywhere, list(held))]
    if n and not len(flipped):
        name, value = ("fixed", fixed) if held else ("n", n)
        remedy = (
            "nothing to flip: the readout position is not flipped, nor are fixed ones; leave another one free"
        )
        faults.add(name, value, remedy)
    given = np.zeros((0, n), np.int32)
    if start is not None and n and len(alphabet):
        given = _given(start, n, alphabet, held, faults)
    return Words(n, alphabet, held, flipped, given)


def _given(
    start: Any, n: int, alphabet: Int[np.ndarray, " symbols"], fixed: Mapping[int, int], faults: Faults
) -> Int[np.ndarray, "given n"]:
    """The words to start from; notes those that are not among the words searched."""
    words = whole_numbers(start)
    if words is None or words.ndim not in (1, 2) or words.size == 0:
        faults.add("start", start, f"whole numbers of shape ({n},) or (words, {n})")
        return np.zeros((0, n), np.int32)
    words = words.reshape(-1, words.shape[-1])
    if words.shape[1] != n:
        faults.add("start", f"shape {words.shape}", f"words of length {n}")
        return np.zeros((0, n), np.int32)
    for k, word in enumerate(words):
        wrong = [p for p in range(n) if (word[p] != fixed[p] if p in fixed else word[p] not in alphabet)]
        if wrong:
            p = wrong[0]
            remedy = f"the fixed symbol {fixed[p]}" if p in fixed else f"a symbol of {alphabet.tolist()}"
            faults.add("start", int(word[p]), f"{remedy} (word {k}, position {p})")
    return words.astype(np.int32)


_ORDER = {"l2": 2, "l1": 1, "linf": np.inf}


def norm_of(change: Float[np.ndarray, "*shape outputs"], norm: str) -> Float[np.ndarray, "*shape"]:
    """The norm over the last axis, in float64."""
    return np.linalg.norm(change.astype(np.float64), ord=_ORDER[norm], axis=-1)


@dataclass(frozen=True)
class Problem:
    """A model, the words of length n that are searched, and how flips are measured.

    Attributes:
        subject: the model.
        engine: measures the flips.
        choice: its name, and why it was chosen.
        parameters: of the model, on the device.
        devices: where flips are measured, and in how much memory.
        objective: "max" or "mean", over the flips of a word.
        norm: "l2", "l1" or "linf".
        n: length of the words.
        alphabet: the symbols that words are made of, sorted; at least two.
        fixed: position to symbol, of the positions that are the same in all words.
        flipped: the 0-based positions that are flipped: neither fixed nor read out. At least one.
        dtype: of the arithmetic.
    """

    subject: Measurable
    engine: Engine
    choice: EngineChoice
    parameters: Any
    devices: placement.Placement
    objective: str
    norm: str
    n: int
    alphabet: Int[np.ndarray, " symbols"]
    fixed: Mapping[int, int]
    flipped: Int[np.ndarray, " flipped"]
    dtype: str

    @cached_property
    def free(self) -> Int[np.ndarray, " free"]:
        """The 0-based positions that differ from word to word: all that are not fixed, the readout among them."""
        return np.array([p for p in range(self.n) if p not in self.fixed], int)

    @cached_property
    def rises(self) -> np.ndarray:
        """For every free position, whether it is flipped, and not only changed from word to word."""
        return np.isin(self.free, self.flipped)

    @property
    def slack(self) -> float:
        """By which share a value must rise to count as larger: above what rounding does to a sensitivity."""
        return 1e-9 if self.dtype == "float64" else 1e-5

    def word(self, symbols: Int[np.ndarray, "*words free"]) -> Int[np.ndarray, "*words n"]:
        """The words with these symbols at the free positions."""
        words = np.zeros((*symbols.shape[:-1], self.n), np.int32)
        words[..., list(self.fixed)] = list(self.fixed.values())
        words[..., self.free] = symbols
        return words

    def measure(self, word: Int[np.ndarray, " n"]) -> Measured:
        """The change of the output under every flip of the word's free positions.

        Raises:
            InputError: if the output is not finite under some flip.
        """
        flips = enumerate_flips(word[None], self.alphabet, self.free, np.ones((1, self.n), bool), None)
        changes, _ = placement.measure_changes(
            self.engine,
            self.parameters,
            word[None],
            flips.inputs,
            flips.positions,
            flips.symbols,
            self.devices,
        )
        norms = norm_of(changes, self.norm)
        check_finite(norms, flips.positions)
        table = (len(self.free), len(self.alphabet) - 1)
        return Measured(
            self,
            word,
            flips.symbols.reshape(table),
            changes.astype(np.float64).reshape(*table, -1),
            norms.reshape(table),
        )

    def few(
        self, words: Int[np.ndarray, "words n"], flips: Sequence[tuple[int, int]]
    ) -> Float[np.ndarray, "words flips"]:
        """The norms of the same few flips (position, symbol) of several words."""
        positions, symbols = np.array(flips).T
        changes, _ = placement.measure_changes(
            self.engine.for_few_flips,
            self.parameters,
            words,
            np.repeat(np.arange(len(words)), len(flips)),
            np.tile(positions, len(words)),
            np.tile(symbols, len(words)),
            self.devices,
        )
        return norm_of(changes, self.norm).reshape(len(words), len(flips))


def problem_of(
    subject: Measurable,
    words: Words,
    objective: str,
    norm: str,
    outputs: tuple[int, ...] | None,
    engine: str,
    devices: placement.Placement,
) -> Problem:
    """The problem, once the model has been tried on a word. To be called, and used, within `numerics(subject.dtype)`.

    Raises:
        InputError: for a model or an engine that `flip_sensitivity` refuses.
    """
    first = np.full((1, words.n), words.alphabet[0], np.int32)
    first[0, list(words.fixed)] = list(words.fixed.values())
    subject, dtype = checked_output(subject, first, outputs)
    last = np.where(np.isin(np.arange(words.n), list(words.fixed)), first[0], words.alphabet[-1])
    check_symbol_reads(subject, last.astype(np.int32), int(words.alphabet[-1]))
    runner, choice = choose(subject, engine, norm, outputs, words.n)
    return Problem(
        subject,
        runner,
        choice,
        jax.tree.map(jnp.asarray, subject.parameters),
        devices,
        objective,
        norm,
        words.n,
        words.alphabet,
        words.fixed,
        words.flipped,
        dtype,
    )


@dataclass(frozen=True)
class Measured:
    """All flips of one word, laid out by free position and, in each row, by the symbols that are not there already.

    Attributes:
        problem: what was measured.
        word: its tokens.
        symbols: the symbol that each flip puts in.
        changes: the change of the chosen outputs.
        norms: of the changes.
    """

    problem: Problem
    word: Int[np.ndarray, " n"]
    symbols: Int[np.ndarray, "free others"]
    changes: Float[np.ndarray, "free others outputs"]
    norms: Float[np.ndarray, "free others"]

    @cached_property
    def value(self) -> float:
        """The objective: the largest sensitivity of the word, or the mean one."""
        flips = self.norms[self.problem.rises]
        return float(flips.max() if self.problem.objective == "max" else flips.mean())

    @cached_property
    def largest(self) -> tuple[int, int]:
        """Row and column of the first flip with the largest sensitivity."""
        shown = np.where(self.problem.rises[:, None], self.norms, -1.0)
        row, column = np.unravel_index(np.argmax(shown), shown.shape)
        return int(row), int(column)

    def flip(self, row: int, column: int) -> tuple[int, int]:
        """Position and symbol of a flip."""
        return int(self.problem.free[row]), int(self.symbols[row, column])

    def after(self, row: int, column: int) -> Int[np.ndarray, " n"]:
        """The word after a flip."""
        return self.with_all(np.array([row]), np.array([column]))

    def with_all(
        self, rows: Int[np.ndarray, " changed"], columns: Int[np.ndarray, " changed"]
    ) -> Int[np.ndarray, " n"]:
        """The word after several flips at once."""
        changed = self.word.copy()
        changed[self.problem.free[rows]] = self.symbols[rows, columns]
        return changed


def after_one_change(
    here: Measured, there: Measured, row: int, column: int
) -> Float[np.ndarray, "free others"]:
    """The norm of one flip in every word that differs from `here.word` by one change elsewhere.

    `there` is measured at the word x' that the flip of (row, column) makes of x. With D_j the change of the output
    under the change j, D the one under the flip,

        y(x'^j) - y(x^j)  =  D + D_j(x') - D_j(x) ,

    so two measurements give it for all j, exactly. The flipped position's own row is -inf.
    """
    flip = here.changes[row, column]
    norms = norm_of(flip + there.changes - here.changes, here.problem.norm)
    norms[row] = -np.inf
    return norms
