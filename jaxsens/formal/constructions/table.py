"""The paper's table of results, measured: does a construction's sensitivity fall, and up to which n is it exact;
the catalogue for a terminal, and the tables as Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import count
from jaxsens.core.base.programs import DTYPES
from jaxsens.core.base.stopping import check
from jaxsens.core.base.text import markdown_table
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.initialisation import generator
from jaxsens.core.models.parts.positions import COMPONENTS
from jaxsens.core.models.transformer.config import Dtype
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.report.fits import least_squares
from jaxsens.core.sweeps.job import Named, RowsJob
from jaxsens.formal.constructions.catalogue import EVERY_CONDITION, REFERENCES, Entry, catalogue, construction
from jaxsens.formal.constructions.chiang_cholak import ReferenceVariant
from jaxsens.formal.constructions.compiler import CompiledTransformer, Promise, Read, compile_formula
from jaxsens.formal.constructions.conditions import CONDITIONS, Condition
from jaxsens.formal.constructions.programs import brackets, dyck
from jaxsens.formal.logic import LIBRARY, Formula, evaluate_tokens, named_formula, parse
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
    truth = partial(evaluate_tokens, formula, alphabet=alphabet)
    return TableCase(name, alphabet, make, truth, word, conditions, at)


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
    items = []
    for case, condition, read in plan.rows:
        decoder = ", autoregressive" if condition.autoregressive else ""
        of = "" if read == "output" else f", {read}"
        items.append(Named(f"{case.name}, {condition.name}{decoder}{of}", (case, condition, read)))
    return RowsJob(items, lambda row, _: measure_row(*row, plan), TableRow, settings, folder)


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


TABLES = {
    "Sensitivity": ("construction", "condition", "largest change", "its exponent", "exponent of the mean"),
    "Exactness": ("construction", "condition", "exact to, float32", "exact to, float64"),
    "Networks": (
        *("logic", "construction", "condition", "by", "temperature", "embeddings"),
        "layers, heads, width",
    ),
}
"""The measured tables, each with its columns."""

_READ = {"output": "", "before-rounding": ", before rounding", "everything": ", all coordinates"}


def overview() -> RenderableType:
    """Every construction: its name, what it computes, and the conditions in which it exists."""
    parts: list[RenderableType] = []
    for entry in catalogue():
        parts += [Text(entry.name, "bold"), _indented(entry.description)]
        if entry.name not in REFERENCES:
            parts.append(_indented(conditions_text(entry.conditions), "dim"))
    return Group(*parts, Text(), Text("* also autoregressive: future-masked, and nothing depends on n"))


def conditions_text(conditions: Sequence[Condition]) -> str:
    """The conditions by name, with a star if the autoregressive one exists too."""
    if len(conditions) == len(EVERY_CONDITION):
        return "every condition*"
    starred = {each.name for each in conditions if each.autoregressive}
    plain = {each.name for each in conditions if not each.autoregressive}
    if plain == CONDITIONS.keys() and not starred:
        return "every condition"
    return ", ".join(name + ("*" if name in starred else "") for name in CONDITIONS if name in plain)


def details(name: str) -> RenderableType:
    """One construction: what it is, and its promise in each condition, or the reasons why there is none.

    Raises:
        InputError: for a name that is not in the catalogue.
    """
    entries = {entry.name: entry for entry in catalogue()}
    if name not in entries:
        raise InputError.of("name", name, f"one of {', '.join(entries)}", subject="constructions")
    entry = entries[name]
    parts: list[RenderableType] = [Text(name, "bold"), _indented(entry.description)]
    if entry.note:
        parts.append(_indented(f"Note: {entry.note}"))
    if name in LIBRARY:
        known = LIBRARY[name]
        parts.append(_indented(f"{known.formula}   over {' '.join(known.alphabet)}"))
    if name in REFERENCES:
        options = {each.name: each.default for each in fields(ReferenceVariant) if each.name != "language"}
        parts.append(_indented("Options: " + ", ".join(f"{key}={value}" for key, value in options.items())))
        return Group(*parts)
    return Group(*parts, *_promises(entry))


def _promises(entry: Entry) -> Iterator[RenderableType]:
    refused: dict[str, list[str]] = {}
    for condition in EVERY_CONDITION:
        reasons = entry.refused(condition)
        for reason in reasons:
            label = condition.name + (", autoregressive" if condition.autoregressive else "")
            refused.setdefault(reason, []).append(label)
        if not reasons:
            # As it prints, without its first line, which is the formula. Long lines continue below their text.
            table = Table.grid(padding=(0, 2))
            made: Any = construction(entry.name, condition.name, autoregressive=condition.autoregressive)
            for line in str(made.promise).splitlines()[1:]:
                table.add_row(*map(Text, re.split(" {2,}", line.strip(), maxsplit=1)))
            yield from (Text(), Padding(table, (0, 0, 0, 2)))
    for reason, labels in refused.items():
        yield from (Text(f"\nnot {'; '.join(labels)}:"), _indented(reason))


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, 2))


def markdown(rows: Sequence[TableRow], plan: TablePlan) -> str:
    """The measured tables, below a paragraph that says what was measured.

    Conditions that promise nothing are left out of the table of exactness. A network that was measured in several ways
    has one line in the tables that say the same of all of them.
    """
    lines = [
        f"Flip sensitivity in float64 over all flips of one word, n = {', '.join(map(str, plan.lengths))}; the largest "
        "change is that at the last n. Exactness: every position of words of one symbol, of all in turn, of blocks, "
        f"random and sensitive, n = {', '.join(map(str, plan.tried))}; in brackets what is predicted."
    ]
    for name, headings in TABLES.items():
        told = [cells(row) for row in rows if row.promise.exact or name != "Exactness"]
        distinct = dict.fromkeys(tuple(row[heading] for heading in headings) for row in told)
        lines += ["", f"## {name}", "", markdown_table(headings, distinct)]
    return "\n".join(lines) + "\n"


def cells(row: TableRow) -> dict[str, str]:
    """What one row says, by the headings of `TABLES`."""
    promise = row.promise
    embeddings = [COMPONENTS[name].formula if name in COMPONENTS else name for name in promise.components]
    return {
        "logic": promise.table_row,
        "construction": row.name if row.at == "last" else f"{row.name}, read at the {row.at} position",
        "condition": promise.condition + (", autoregressive" if promise.autoregressive else ""),
        "by": re.split("[:,]", promise.theorem.removeprefix("the "))[0],
        "temperature": promise.temperature,
        "embeddings": ", ".join(embeddings) + ("" if promise.bounded else " (unbounded)"),
        "layers, heads, width": f"{promise.layers}, {promise.heads}, {promise.width}",
        "largest change": f"{row.maxima[-1]:.3g}{_READ[row.read]}",
        "its exponent": exponent_text(row.lengths, row.maxima),
        "exponent of the mean": exponent_text(row.lengths, row.means),
        **{f"exact to, {dtype}": _exact(row.exactness.get(dtype)) for dtype in ("float32", "float64")},
    }


def exponent_text(lengths: Sequence[int], values: Sequence[float]) -> str:
    """The least-squares slope of log(value) on log(n) with two decimals, or why there is none."""
    if max(values) == 0:
        return "none: exactly 0"
    if min(values) <= 0:
        return "none: 0 at some n"
    return f"{round(least_squares(np.log(lengths), np.log(values)), 2) + 0.0:.2f}"


def _exact(found: Exactness | None) -> str:
    if found is None:
        return "not promised"
    predicted = f"{found.predicted}" if found.predicted < 10**6 else f"{found.predicted:.1e}"
    beyond = " and more" if found.inexact is None else f", not {found.inexact}"
    return f"{found.longest}{beyond} ({re.sub('e[+]0?', 'e', predicted)})"
