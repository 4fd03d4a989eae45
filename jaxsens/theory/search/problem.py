"""What is searched: the object of `search`, the words, the flips of each, and how they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import TOKEN_BYTES, Problems, check_fits, collecting
from jaxsens.core.base.registry import Seed
from jaxsens.core.base.strict import Count, OptionalPositive, checked_by, config
from jaxsens.core.checks import RANDOM_FLIPS, check_calls, check_finite, check_words, traced_model
from jaxsens.core.choose import choose
from jaxsens.core.engines.engine import Engine, EngineChoice
from jaxsens.core.engines.options import MANY_CALLS, AskedEngine, Auto
from jaxsens.core.flips.flip_table import Candidates
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import Norm
from jaxsens.core.models.adapters import Model
from jaxsens.core.placement import placement
from jaxsens.core.placement.run import Measuring
from jaxsens.theory.rules import fixed_symbols


@config
class Search:
    """Which word is looked for, and how.

    Args:
        fixed: {0-based position: symbol} for positions that are the same in all words and are not flipped, such as an
            end-of-sequence symbol, {n - 1: alphabet_size}. The readout position is not flipped either, but its symbol
            is searched with the others unless it is fixed.
        exact: True to enumerate all words, with one forward pass each (up to 2^24 words, if all outputs fit the memory
            budget). False to search. None to enumerate up to 2^16 words, and to search if there are more. The others
            apply to a search.
        restarts: the number of words to start from, in addition to `start`: random and structured ones in turn.
        budget: stop after this many measurements of all flips of a word; None to stop when every start has converged.
        start: words to start from, (n,) or (words, n).
        seed: seed of everything that is drawn at random.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, feed_forward=4))
    >>> int(jaxsens.theory.worst_input(model, 4, search=Search(fixed={3: 2})).tokens[3])
    2
    """

    fixed: Any = None
    exact: Annotated[bool | None, checked_by(inputs.choice, options=(None, True, False))] = None
    restarts: Count = 8
    budget: OptionalPositive = None
    start: Any = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.start is None:
            with collecting("Search") as problems:
                inputs.count("restarts", self.restarts, problems, least=1)


@dataclass(frozen=True)
class SearchSpace:
    """The words that are searched.

    Attributes:
        alphabet: The symbols that they are made of, sorted; at least two.
        fixed: Position to symbol, for the positions that are the same in all words.
        flipped: The 0-based positions that are flipped: neither fixed nor read out. At least one.
        start_words: The words to start from before any others.
    """

    n: int
    alphabet: Int[np.ndarray, " symbols"]
    fixed: dict[int, int]
    flipped: Int[np.ndarray, " flipped"]
    start_words: Int[np.ndarray, "starts n"]

    @cached_property
    def free(self) -> Int[np.ndarray, " free"]:
        """The 0-based positions that differ from word to word: all that are not fixed, including the readout."""
        return np.array([p for p in range(self.n) if p not in self.fixed], int)

    @cached_property
    def is_flipped(self) -> Bool[np.ndarray, " free"]:
        """Whether each free position is flipped, and does not only differ from word to word."""
        return np.isin(self.free, self.flipped)

    @property
    def count(self) -> int:
        """The number of words."""
        return len(self.alphabet) ** len(self.free)

    def word(self, symbols: Int[np.ndarray, "*words free"]) -> Int[np.ndarray, "*words n"]:
        """The words with these symbols at the free positions."""
        words = np.zeros((*symbols.shape[:-1], self.n), np.int32)
        words[..., list(self.fixed)] = list(self.fixed.values())
        words[..., self.free] = symbols
        return words

    def tried(self, seed: int) -> Int[np.ndarray, "words n"]:
        """Returns words on which a model's indices are checked: of the largest symbol, of the smallest, and random."""
        random = np.random.default_rng(seed).choice(self.alphabet, (RANDOM_FLIPS, len(self.free)))
        extreme = np.repeat([[self.alphabet.max()], [self.alphabet.min()]], len(self.free), axis=1)
        return self.word(np.concatenate([extreme, random]))


def search_space(
    model: Model, n: int, alphabet: Int[np.ndarray, " symbols"], search: Search, problems: Problems
) -> SearchSpace:
    """The words to search. Notes a length that cannot be searched, and unusable `fixed` and `start`.

    n is 0, and `alphabet` is empty, if they are not known.
    """
    if n and not check_fits("n", n, n * TOKEN_BYTES, "a word of this length", "give a smaller one", problems):
        n = 0
    if n:
        model.check_length(n, problems)
    fixed, start = search.fixed, search.start
    held = fixed_symbols(fixed, n, model.vocabulary_size, problems)
    kept = {*held, model.position_read(n)}
    flipped = np.array([position for position in range(n) if position not in kept], int)
    if n and not len(flipped):
        kept_out = "neither the readout position nor fixed ones are flipped"
        remedy = f"nothing to flip: {kept_out}; leave another one free"
        problems.add("fixed" if held else "n", fixed if held else n, remedy)
    start_words = np.zeros((0, n), np.int32)
    if start is not None and n and len(alphabet):
        start_words = _start_words(start, n, alphabet, held, problems)
    return SearchSpace(n, alphabet, held, flipped, start_words)


def _start_words(
    start: Any, n: int, alphabet: Int[np.ndarray, " symbols"], fixed: Mapping[int, int], problems: Problems
) -> Int[np.ndarray, "starts n"]:
    """The words to start from. Notes those that are not among the words to search."""
    words = inputs.whole_numbers(start)
    if words is None or words.ndim not in (1, 2) or words.size == 0:
        problems.add("start", start, f"whole numbers of shape ({n},) or (words, {n})")
        return np.zeros((0, n), np.int32)
    words = words.reshape(-1, words.shape[-1])
    if words.shape[1] != n:
        problems.add("start", f"shape {words.shape}", f"words of length {n}")
        return np.zeros((0, n), np.int32)
    for k, word in enumerate(words):
        wrong = [p for p in range(n) if (word[p] != fixed[p] if p in fixed else word[p] not in alphabet)]
        for p in wrong[:1]:
            remedy = f"the fixed symbol {fixed[p]}" if p in fixed else f"a symbol of {alphabet.tolist()}"
            problems.add("start", int(word[p]), f"{remedy} (word {k}, position {p})")
    return words.astype(np.int32)


@dataclass(frozen=True)
class SearchTask:
    """A model, the words that are searched, and how flips are measured.

    Attributes:
        engine, few_engine: Measure all flips of a word, and a few.
        choice: The engine's name, and why it was chosen.
        parameters: The model's parameters, on the device.
        devices: Where flips are measured, and in how much memory.
    """

    model: Model
    space: SearchSpace
    engine: Engine
    few_engine: Engine
    choice: EngineChoice
    parameters: Any
    devices: placement.Placement
    search: Search
    norm: Norm
    dtype: str

    def sizes(self, changes: Float[np.ndarray, "*shape outputs"]) -> Float[np.ndarray, "*shape"]:
        """The norm over the last axis, in float64."""
        return self.norm.of_array(changes.astype(np.float64))

    @property
    def slack(self) -> float:
        """The relative increase from which a value counts as larger: more than rounding adds to a sensitivity."""
        return 1e-9 if self.dtype == "float64" else 1e-5

    @cached_property
    def output_bytes(self) -> int:
        """The size of one word's outputs, in the dtype that they are kept in. Traces the model."""
        word = jax.ShapeDtypeStruct((self.space.n,), jnp.int32)
        output = jax.eval_shape(self.model.apply, self.parameters, word)
        return int(np.prod(output.shape)) * jnp.promote_types(output.dtype, jnp.float32).itemsize

    def measure(self, word: Int[np.ndarray, " n"]) -> Measured:
        """The change of the output under every flip of the word's free positions.

        Raises:
            InputError: If the output is not finite under some flip.
        """
        space = self.space
        which = np.where(np.isin(np.arange(space.n), space.free), 0, -1)
        flips = Candidates.of(word[None], [space.alphabet], which[None]).table()
        parts = flips.inputs, flips.positions, flips.symbols
        changes = Measuring(self.engine, self.parameters, word[None], *parts, self.devices).changes()[0]
        norms = self.sizes(changes)
        check_finite(norms, flips.positions[:, 0], self.norm)
        table = (len(space.free), len(space.alphabet) - 1)
        changes = changes.astype(np.float64).reshape(*table, -1)
        return Measured(self, word, flips.symbols.reshape(table), changes, norms.reshape(table))

    def few(
        self, words: Int[np.ndarray, "words n"], flips: Sequence[tuple[int, int]]
    ) -> Float[np.ndarray, "words flips"]:
        """The norms of the same few flips (position, symbol) of several words."""
        positions, symbols = (np.tile(part, len(words))[:, None] for part in np.array(flips).T)
        rows = np.repeat(np.arange(len(words)), len(flips))
        parts = rows, positions, symbols
        changes = Measuring(self.few_engine, self.parameters, words, *parts, self.devices).changes()[0]
        return self.sizes(changes).reshape(len(words), len(flips))


def problem_of(
    model: Model,
    space: SearchSpace,
    search: Search,
    norm: Norm,
    engine: AskedEngine,
    devices: placement.Placement,
) -> SearchTask:
    """The problem, after trying the model on a word. Call and use it within `numerics(model.dtype)`.

    Raises an InputError for a model or an engine that `flip_sensitivity` refuses.
    """
    first = space.word(np.full((1, len(space.free)), space.alphabet[0]))
    model, shape, dtype = traced_model(model, first[0], norm)
    check_calls(model, first, shape)
    check_words(model, space.tried(search.seed), "flips or search.fixed")
    run = choose(model, engine.shared_by(MANY_CALLS), Substitute(), norm, space.n)
    named = AskedEngine.kinds[run.choice.name]() if isinstance(engine, Auto) else engine
    few = choose(model, named, Substitute(), norm, space.n, count=1).engine
    parameters = jax.tree.map(jnp.asarray, model.parameters)
    return SearchTask(model, space, run.engine, few, run.choice, parameters, devices, search, norm, dtype)


@dataclass(frozen=True)
class Measured:
    """All flips of one word: a row for each free position, a column for each symbol that is not there already.

    Attributes:
        symbols: The symbol that each flip puts in.
        changes, norms: The changes of the chosen outputs, and their norms.
    """

    problem: SearchTask
    word: Int[np.ndarray, " n"]
    symbols: Int[np.ndarray, "free others"]
    changes: Float[np.ndarray, "free others outputs"]
    norms: Float[np.ndarray, "free others"]

    @cached_property
    def value(self) -> float:
        """The largest sensitivity of the word's flips."""
        return float(self.norms[self.problem.space.is_flipped].max())

    @cached_property
    def largest(self) -> tuple[int, int]:
        """Row and column of the first flip with the largest sensitivity."""
        shown = np.where(self.problem.space.is_flipped[:, None], self.norms, -1.0)
        row, column = np.unravel_index(np.argmax(shown), shown.shape)
        return int(row), int(column)

    def flip(self, row: int, column: int) -> tuple[int, int]:
        """Position and symbol of a flip."""
        return int(self.problem.space.free[row]), int(self.symbols[row, column])

    def after(self, row: int, column: int) -> Int[np.ndarray, " n"]:
        """The word after a flip."""
        return self.with_all(np.array([row]), np.array([column]))

    def with_all(
        self, rows: Int[np.ndarray, " changed"], columns: Int[np.ndarray, " changed"]
    ) -> Int[np.ndarray, " n"]:
        """The word after several flips at once."""
        changed = self.word.copy()
        changed[self.problem.space.free[rows]] = self.symbols[rows, columns]
        return changed


def after_one_change(
    here: Measured, there: Measured, row: int, column: int
) -> Float[np.ndarray, "free others"]:
    """The norm of one flip in every word that differs from `here.word` by one change elsewhere.

    `there` is measured at the word x' that the flip of (row, column) makes of x. Let D_j be the change of the output
    under the change j, and D the change under the flip. Then

        y(x'^j) - y(x^j)  =  D + D_j(x') - D_j(x) ,

    so two measurements give it exactly for all j. The flipped position's own row is -inf.
    """
    flip = here.changes[row, column]
    norms = here.problem.sizes(flip + there.changes - here.changes)
    norms[row] = -np.inf
    return norms
