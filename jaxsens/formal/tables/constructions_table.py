"""The paper's table of results, measured: does a construction's sensitivity fall, and up to which n is it exact.

A row measures one construction in one condition on a word of its language. At every length some flip of the word
changes the truth value where the network is read. So a network that computes the formula has the largest flip
sensitivity 1. Most positions of the word take part in what attention must decide, so that without sharp attention each
counts for O(1/n) from small n on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.inputs import count
from jaxsens.core.base.programs import DTYPES
from jaxsens.core.base.stopping import check
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.initialisation import generator
from jaxsens.core.models.transformer.config import Dtype
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.sweeps.jobs.job import Named, RowsJob
from jaxsens.formal.constructions.compiled import CompiledTransformer, Promise, Read
from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.conditions import Condition
from jaxsens.formal.constructions.dyck import brackets, dyck
from jaxsens.formal.logic import Formula, evaluate_tokens, named_formula, parse
from jaxsens.formal.logic.library import LETTERS

Truth = Callable[[Int[np.ndarray, "words n"]], Bool[np.ndarray, "words n"]]


@dataclass(frozen=True)
class TableCase:
    """A construction, words on which a flip changes its truth value, and the conditions that it is measured in.

    Attributes:
        name: what it is called.
        alphabet: its symbols.
        make: the network of (condition, autoregressive=, dtype=, read=).
        truth: at which positions of words what it computes holds.
        word: the word of each even length of at least 8.
        conditions: in the order of the table.
        at: where the network is read: at the last position, or, for formulas that look ahead, at the first.
    """

    name: str
    alphabet: tuple[str, ...]
    make: Callable[..., CompiledTransformer]
    truth: Truth
    word: Callable[[int], str]
    conditions: tuple[Condition, ...]
    at: Literal["last", "first"] = "last"

    def build(self, condition: Condition, dtype: Dtype, read: Read = "output") -> CompiledTransformer:
        """The network in one of its conditions."""
        return self.make(condition.name, autoregressive=condition.autoregressive, dtype=dtype, read=read)

    def tokens(self, n: int) -> Int[np.ndarray, " n"]:
        """The sensitive word of length n as symbols 0, 1, ..."""
        return np.array([self.alphabet.index(symbol) for symbol in self.word(n)], np.int32)

    def adversarial(self, n: int) -> Int[np.ndarray, "words n"]:
        """Words that strain rounding: one symbol only, all in turn, block after block, random, and the sensitive one.

        One symbol only makes counts largest; blocks make long ties, and counts of half the length.
        """
        size, i = len(self.alphabet), np.arange(n)
        words = [np.full(n, symbol) for symbol in range(size)]
        words += [i % size, i * size // n, generator(0, f"adversarial.n={n}").integers(0, size, n)]
        if n % 2 == 0:
            words.append(self.tokens(n))
        return np.array(words, np.int32)


def cycle(symbols: str, n: int) -> str:
    """The symbols over and over, n in all."""
    return (symbols * (n // len(symbols) + 1))[:n]


def nested(lefts: str, rights: str, n: int) -> str:
    """n/2 left brackets, of the kinds in turn, and the right ones that close them."""
    opened = cycle(lefts, n // 2)
    return opened + opened[::-1].translate(str.maketrans(lefts, rights))


def balanced(opens: int, tokens: Int[np.ndarray, "words n"]) -> Bool[np.ndarray, "words n"]:
    """Up to which positions words are balanced; symbols below `opens` open, the others close in the same order."""
    found = np.zeros(tokens.shape, bool)
    for row, word in enumerate(tokens.tolist()):
        stack: list[int] = []
        for i, symbol in enumerate(word):
            if symbol < opens:
                stack.append(symbol)
            elif not stack or stack.pop() != symbol - opens:
                break
            found[row, i] = not stack
    return found


def _of(
    name: str,
    word: Callable[[int], str],
    *conditions: Condition,
    formula: Formula | None = None,
    at: Literal["last", "first"] = "last",
) -> TableCase:
    """The case of a formula over `LETTERS`, or of the library's formula of this name."""
    alphabet = LETTERS
    if formula is None:
        formula, alphabet = named_formula(name).formula, named_formula(name).alphabet
    make = partial(compile_formula, formula, alphabet)
    return TableCase(
        name, alphabet, make, partial(evaluate_tokens, formula, alphabet=alphabet), word, conditions, at
    )


_KNOWING_N = (Condition("temperature"), Condition("unbounded"))
_BOUNDED = Condition("temperature-bounded")
_CONTROL = Condition("bounded-softmax")
_DECODER = Condition("temperature", autoregressive=True)
_DECODERS = (_DECODER, Condition("unbounded", autoregressive=True))
_DECODER_BOUNDED = Condition("temperature-bounded", autoregressive=True)

_TEMPORAL = (*_KNOWING_N, _CONTROL)
_COUNTING = (*_KNOWING_N, _BOUNDED, _CONTROL)

CASES: tuple[TableCase, ...] = (
    _of("previous", lambda n: cycle("01", n), *_TEMPORAL, *_DECODERS),
    _of("3-gram-ahead", lambda n: "aab" + cycle("cab", n - 3), *_TEMPORAL, at="first"),
    _of("since", lambda n: cycle("ac", n - 4) + "abbb", *_TEMPORAL, *_DECODERS),
    _of("until", lambda n: "bbba" + cycle("ca", n - 4), *_TEMPORAL, formula=parse("!Q_c U Q_a"), at="first"),
    _of("induction-head", lambda n: cycle("cb", n - 4) + "cabc", *_TEMPORAL, *_DECODERS),
    _of("parity", lambda n: cycle("01", n), *_COUNTING, _DECODER),
    _of("majority", lambda n: cycle("10", n), *_COUNTING, _DECODER, _DECODER_BOUNDED),
    _of("parity-without-predicates", lambda n: cycle("01", n), *_COUNTING),
    _of("dyck-1", lambda n: nested("(", ")", n), *_COUNTING, _DECODER, _DECODER_BOUNDED),
    TableCase(
        "dyck",
        brackets(2),
        partial(dyck, 2),
        partial(balanced, 2),
        lambda n: nested("([", ")]", n),
        (*_COUNTING, _DECODER),
    ),
)
"""The cases of the table, in its order."""

CAP = 4000
"""The longest words that exactness is tried on by default: a forward pass of one word takes seconds there."""

LENGTHS = (32, 70, 150, 320)
"""Where sensitivity is measured by default."""

SHORTER = (100, 777, 2000)
"""Where exactness is tried below the cap: no powers of two, which hide rounding (trap T9)."""

REFINEMENTS = 4
"""How often the interval from the longest exact length tried to the shortest inexact one is halved."""


Place = tuple[TableCase, Condition, Read]
"""A row of the table: a construction in a condition, and which coordinates of its output are measured."""


@dataclass(frozen=True)
class TablePlan:
    """What to measure.

    Attributes:
        cases: whose networks.
        lengths: where flip sensitivity is measured. Words need even lengths of at least 8, and fits three or more;
            neither is checked.
        cap: the longest words that exactness is tried on.
    """

    cases: tuple[TableCase, ...] = CASES
    lengths: tuple[int, ...] = LENGTHS
    cap: int = CAP

    @property
    def rows(self) -> tuple[Place, ...]:
        """The rows of the table, in its order.

        The control has two: its rounded output hardly moves, so what the rounding reads is measured, and everything.
        """
        return tuple(
            (case, condition, read)
            for case in self.cases
            for condition in case.conditions
            for read in (("output",) if condition.promises else ("before-rounding", "everything"))
        )

    @property
    def tried(self) -> tuple[int, ...]:
        """The lengths that exactness is tried on, the cap last."""
        return (*(n for n in SHORTER if n < self.cap), self.cap)


@dataclass(frozen=True)
class Exactness:
    """Up to which length a network equalled its formula at every position of every word tried.

    Attributes:
        longest: the longest length up to which every length tried was exact; 0 if none was.
        inexact: the shortest length tried that was not; None if all were.
        predicted: `promise.exact_to` of the dtype.
    """

    longest: int
    inexact: int | None
    predicted: int


@dataclass(frozen=True)
class TableRow:
    """One network, measured.

    Attributes:
        name: of the case.
        promise: what the network is.
        read: which coordinates were measured.
        at: the position that was read.
        lengths, maxima, means: flip sensitivity over all flips of the case's word, in float64.
        exactness: by dtype; empty for the control, which promises nothing.
    """

    name: str
    promise: Promise
    read: Read
    at: str
    lengths: tuple[int, ...]
    maxima: tuple[float, ...]
    means: tuple[float, ...]
    exactness: Mapping[str, Exactness]

    def summary(self) -> str:
        """The largest change at the last length."""
        return f"{self.maxima[-1]:.3g} at n = {self.lengths[-1]}"


def plan_of(name: str | None = None, cap: int = CAP) -> TablePlan:
    """The plan of the whole table, or of the cases of one name.

    Raises:
        InputError: for a name that is not measured, or a cap that cannot be used; both at once.
    """
    cases = tuple(case for case in CASES if name in (None, case.name))
    with collecting("constructions table") as problems:
        if not cases:
            problems.add("name", name, f"one of {', '.join(case.name for case in CASES)} is measured")
        count("cap", cap, problems, least=8)
    return TablePlan(cases, cap=cap)


def constructions_job(plan: TablePlan, folder: Path | None = None) -> RowsJob[Place, TableRow]:
    """Measures the rows of the table. A row takes up to a minute on two cores.

    Rows are kept in `folder`, if there is one, for a run that goes on with a stopped one.
    """
    settings = {"lengths": plan.lengths, "cap": plan.cap}
    items = [Named(_name(*row), row) for row in plan.rows]
    return RowsJob(items, lambda row, _: measure_row(*row, plan), TableRow, settings, folder)


def _name(case: TableCase, condition: Condition, read: Read) -> str:
    decoder = ", autoregressive" if condition.autoregressive else ""
    return f"{case.name}, {condition.name}{decoder}{'' if read == 'output' else f', {read}'}"


def measure_row(case: TableCase, condition: Condition, read: Read, plan: TablePlan) -> TableRow:
    """One row of the table."""
    model = case.build(condition, "float64", read)
    # A readout is part of the config, and parameters do not depend on it.
    config = model.config if case.at == "last" else model.config.replace(readout=0)
    network = Transformer(config, parameters=model.parameters)
    outputs = "all" if model.outputs is None else model.outputs
    # Forward passes compile in a third of the other engine's time; changes of 1/n in float64 survive subtraction.
    results = [
        flip_sensitivity(network, case.tokens(n), measure=L2(outputs=outputs), engine="vmap", progress=False)
        for n in plan.lengths
    ]
    maxima, means = tuple(result.max for result in results), tuple(result.mean for result in results)
    exact = {dtype: exactness(case, condition, dtype, plan.tried) for dtype in DTYPES if condition.promises}
    return TableRow(case.name, model.promise, read, case.at, plan.lengths, maxima, means, exact)


def exactness(case: TableCase, condition: Condition, dtype: Dtype, lengths: tuple[int, ...]) -> Exactness:
    """Tries these increasing lengths, and closes in on the first inexact one from below."""
    model = case.build(condition, dtype)
    predicted = model.promise.exact_to(dtype)
    inexact = next((n for n in lengths if not exact_at(case, model, n)), None)
    if inexact is None:
        return Exactness(lengths[-1], None, predicted)
    longest = max((n for n in lengths if n < inexact), default=0)
    for _ in range(REFINEMENTS):
        between = (longest + inexact) // 2 | 1  # odd: no power of two
        if not longest < between < inexact:
            break
        if exact_at(case, model, between):
            longest = between
        else:
            inexact = between
    return Exactness(longest, inexact, predicted)


def exact_at(case: TableCase, model: CompiledTransformer, n: int) -> bool:
    """Whether the output is the formula's truth value, to the last digit, at every position of adversarial words."""
    words = case.adversarial(n)
    for word, expected in zip(words, case.truth(words), strict=True):
        check()
        found = np.asarray(model.activations(jnp.asarray(word)))[:, model.output]  # one word at a time
        if not np.array_equal(found, expected):
            return False
    return True
