"""`jaxsens.theory.worst_input`: the word and the flip with the largest sensitivity, and how it was found."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from jaxsens.core.base import inputs, stopping
from jaxsens.core.base.errors import InputError, PrecisionWarning, collecting
from jaxsens.core.base.programs import numerics, versions
from jaxsens.core.base.registry import read
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.base.text import html_facts
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure, read_norm
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.layered import LAST_OTHER
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.results.measured import fingerprint
from jaxsens.core.results.rounding import forward_pass, unreliable
from jaxsens.theory.rules import alphabet_of
from jaxsens.theory.search import local_search
from jaxsens.theory.search.local_search import Measurements, Restart, SearchProgress, climb
from jaxsens.theory.search.problem import Search, SearchTask, problem_of, search_space

MOST_SHOWN = 100
"""The symbols of a word that a notebook shows."""


@dataclass(frozen=True, eq=False)
class WorstInput(SavedResult):
    """The word with the largest sensitivity that was found, and how it was found.

    Attributes:
        value: `flip_sensitivity(model, tokens).max` over the flips of `positions`, in the units of the model's output.
        tokens: The word, (n,).
        position: The 0-based position of its largest flip.
        symbol: The symbol that this flip puts in.
        exact: Whether `value` is the largest of all words, by enumeration. Otherwise it is a lower bound.
        alphabet: The symbols that words are made of, sorted.
        fixed: (position, symbol) for the positions that are the same in all words.
        positions: The 0-based positions that were flipped.
        measure, outputs: The norm ("l2", "l1" or "linf"), and the output coordinates that entered it; None for all.
        words: The number of words that were enumerated; 0 for a search.
        measurements: The measurements of all flips of a word that were used; for an enumeration, one at its end.
        restarts, seed: The starts of the search, and where each led; none for an enumeration; the search's seed.
        starts: The number of starts asked for. Fewer were made if the budget was spent or the search interrupted.
        history: (measurements, value) each time that the best improved.
        engine: Which engine ran, and why.
        dtype, versions: The dtype of the arithmetic; the versions of jaxsens, jax, numpy and the device.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, feed_forward=4))
    >>> worst_input(model, 4).exact  # every word was tried
    True
    """

    kind = "result of worst_input"
    value: float
    tokens: Int[np.ndarray, " n"]
    position: int
    symbol: int
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
            f"sensitivity ({self.measure})": self.value,
            "word": word,
            "largest flip": f"position {self.position}: {self.tokens[self.position]} to {self.symbol}",
            "found by": how,
        }
        bound = "Another word may have more: a lower bound."
        note = "No word of this length has more." if self.exact else bound
        return html_facts(f"Worst input of length {self.n}", rows, note)

    def __repr__(self) -> str:
        how = f"{self.measurements} measurements, {len(self.restarts)} starts"
        if self.exact:
            how = f"all {self.words} words"
        return (
            f"WorstInput(n={self.n}, {self.measure} = {self.value:.4g}, largest flip at position "
            f"{self.position}, {'exact' if self.exact else 'searched'}: {how}, engine={self.engine.name})"
        )


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search. `partial` is what had been found by then.

    >>> def found(model, n):
    ...     try:
    ...         return worst_input(model, n)
    ...     except SearchInterrupted as stopped:
    ...         return stopped.partial
    """

    def __init__(self, partial: WorstInput) -> None:
        super().__init__(f"interrupted after {partial.measurements} measurements; see .partial")
        self.partial = partial


@naming_arguments
def worst_input(
    model: Any,
    n: int,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    search: Search | None = None,
    readout: int | Literal["auto", "last", "mean"] | None = "auto",
    engine: AskedEngine | Any = "auto",
    placement: Placement | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
) -> WorstInput:
    """Searches the words of length n for the one that a single flip moves most.

    The value found is a lower bound on the largest value, and equal to it if all words were enumerated (`.exact`). A
    step of the search measures, as vectors, all flips of a word and of its neighbour under the largest flip. Together
    they tell exactly what that flip would do after any single change elsewhere, and since changes interact by O(1/n),
    many are made at once. A start ends where no single change and no other flip is better. All this costs
    no more than `measurements` calls of `flip_sensitivity`, plus
    O(log n) single flips for each of them.

    Args:
        model: As for `flip_sensitivity`.
        n: The length of the words.
        flips: A `Substitute` of an alphabet or ids: words are made of its symbols, but of an alphabet not those that
            the model reserves. Known for jaxsens models.
        measure: A norm: `L2`, `L1` or `LInf`.
        search: Which word is looked for, and how (`Search`); by default the one with the largest flip, among all words
            if there are few.
        readout: Where the model reads its output, as for `flip_sensitivity`.
        engine, placement: As for `flip_sensitivity`; in an enumeration a batch is of words. In a distributed job, with
            `jaxsens.global_mesh()`, the processes share the flips of each word and all return the whole result.
        progress: Called with a `SearchProgress` after every measurement, or every block of an enumeration.

    Warns:
        PrecisionWarning: If n is longer than the model is exact in its dtype (`model.exact_length`), or if its dtype
            does not resolve its attention scores on the first word tried, as for `flip_sensitivity`.

    Raises:
        SearchInterrupted: On Ctrl-C once a word has been measured, with what was found: give its `tokens` as
            `Search.start` to go on from there. Before that, and during an enumeration, which knows nothing before its
            end, a plain KeyboardInterrupt.
        InputError: Naming each argument that cannot be used and the remedy; and for a model that `flip_sensitivity`
            refuses.

    >>> import jaxsens
    >>> worst_input(lambda tokens: tokens.sum() / 4.0, 4, 2).value
    0.25
    """
    model = as_model(model)
    with collecting("worst_input") as problems:
        sizes = model.alphabet_size, model.vocabulary_size
        alphabet = alphabet_of(flips, *sizes, problems, reserved=model.reserved)
        n = inputs.length(n, problems)
        model = model.reading(readout, n, problems)
        if str(model.readout).startswith(LAST_OTHER):
            why = f"a row that moves with the word; give {max((n or 1) - 1, 0)}"
            problems.add("readout", model.readout, why)
        if not isinstance(search, Search | None):
            problems.add("search", search, "jaxsens.theory.Search(restarts=4), or None")
        search = search if isinstance(search, Search) else Search()
        space = search_space(model, n, alphabet, search, problems)
        norm, how = read_norm(measure, problems), read(AskedEngine, engine, problems)
        if isinstance(how, AskedEngine) and not how.exact:
            problems.add("engine", how, "an engine that measures: auto, vmap, incremental or difference")
        devices = checked_placement(placement, problems)
        inputs.progress(progress, 1, "a SearchProgress, or None", problems, bar=False)
    with stopping.noting(signal.SIGINT), numerics(model.dtype):
        problem = problem_of(model, space, search, norm, how, devices)
        if devices.group is not None:
            words = alphabet.tolist(), space.fixed, space.start_words.tolist()
            how = search.exact, search.restarts, search.budget, search.seed
            measured = fingerprint(problem.model, space.n), problem.choice.name, norm.table()
            devices.agree((*measured, *words, *how))
        first = space.word(np.full((1, len(space.free)), space.alphabet[0]))
        passed = forward_pass(problem.model, first, problem.engine, problem.parameters, devices)
        if (message := unreliable(problem.model, space.n, passed, problem.engine.widens)) is not None:
            warnings.warn(message, PrecisionWarning, stacklevel=3)
        exact, refused = search.exact, None
        if exact is not False:
            most = local_search.LARGEST if exact else local_search.SMALL
            refused = local_search.refusal(problem, most)
        if exact and refused is not None:
            remedy = f"{refused}; search with exact=False, or take a smaller n"
            raise InputError.of("exact", True, remedy, subject="worst_input")
        if exact is False or refused is not None:
            return _searched(problem, progress)
        measurements = Measurements(problem, budget=None)
        measurements.measure(local_search.largest_word(problem, progress))
        return _result(measurements, problem.space.count, 0)


def _searched(problem: SearchTask, progress: Callable[[SearchProgress], None] | None) -> WorstInput:
    measurements = Measurements(problem, problem.search.budget, progress=progress)
    starts = len(problem.space.start_words) + problem.search.restarts
    try:
        climb(problem, starts, measurements)
    except KeyboardInterrupt:
        if measurements.best is None:
            raise
        raise SearchInterrupted(_result(measurements, 0, starts)) from None
    return _result(measurements, 0, starts)


def _result(measurements: Measurements, words: int, starts: int) -> WorstInput:
    problem, space, best = measurements.problem, measurements.problem.space, measurements.best
    if best is None:
        raise InputError.note("budget", "no word was measured")
    position, symbol = best.flip(*best.largest)
    return WorstInput(
        value=best.value,
        tokens=best.word.astype(np.int32),
        position=position,
        symbol=symbol,
        exact=words > 0,
        alphabet=tuple(space.alphabet.tolist()),
        fixed=tuple(space.fixed.items()),
        positions=tuple(space.flipped.tolist()),
        measure=problem.norm.kind,
        outputs=problem.engine.outputs,
        words=words,
        measurements=measurements.used,
        restarts=tuple(measurements.restarts),
        starts=starts,
        history=tuple(measurements.history),
        seed=problem.search.seed,
        engine=problem.choice,
        dtype=problem.dtype,
        versions=versions(),
    )
