"""Named formulas, each with its alphabet, an independent definition and what to beware of when measuring it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxsens.errors import InputError
from jaxsens.logic import definitions
from jaxsens.logic.definitions import Definition
from jaxsens.logic.formulas import Formula
from jaxsens.logic.parser import parse
from jaxsens.logic.programs import dyck_1, flip_flop, hop_induction, n_gram

BITS = ("0", "1")
LETTERS = ("a", "b", "c")
BRACKETS = ("(", ")")


@final
@dataclass(frozen=True)
class NamedFormula:
    """A formula of the library.

    `definition(word, position)` says the same as the formula, at "every" position or only at the "last" one, as
    `positions` tells. `note` says what to beware of; "" if nothing.
    """

    name: str
    description: str
    alphabet: tuple[str, ...]
    formula: Formula
    definition: Definition
    positions: Literal["every", "last"] = "every"
    note: str = ""


_ENTRIES = (
    NamedFormula(
        "parity",
        "PARITY: an odd number of 1s, by the predicate odd on a count",
        BITS,
        parse("odd(#L[Q_1])"),
        definitions.odd_ones,
        note="right at every prefix; the embeddings must contain odd",
    ),
    NamedFormula(
        "parity-without-predicates",
        "PARITY: an odd number of 1s, by counting alone: at no position are as many 1s before it as from it on",
        BITS,
        parse("#L[#L[Y Q_1] = #R[Q_1]] = 0"),
        definitions.odd_ones,
        positions="last",
        note="right only at the last position, read it there; it is not the parity of each prefix",
    ),
    NamedFormula(
        "parity-without-predicates-since",
        "PARITY without predicates, with S in place of the outer count",
        BITS,
        parse("!(true S (#L[Y Q_1] = #R[Q_1]))"),
        definitions.odd_ones,
        positions="last",
        note="right only at the last position, read it there; it is not the parity of each prefix",
    ),
    NamedFormula(
        "ones-divisible-by-three",
        "a number of 1s that three divides, by a modular predicate on a count",
        BITS,
        parse("mod(3, 0, #L[Q_1])"),
        definitions.ones_divisible_by_three,
        note="theta(0) is true here: a compiler that forgets the count 0 fails on words without a 1",
    ),
    NamedFormula(
        "majority",
        "MAJORITY: more 1s than 0s",
        BITS,
        parse("#L[Q_1] - #L[Q_0] - 1 >= 0"),
        definitions.more_ones,
        note="insensitive to a flip unless nearly tied: measure it on balanced inputs, not on random ones",
    ),
    NamedFormula(
        "first",
        "FIRST: the first symbol is 1",
        BITS,
        parse("true S (Q_1 & !Y true)"),
        definitions.first_is_one,
    ),
    NamedFormula(
        "exists",
        "a 1 occurs",
        BITS,
        parse("true S Q_1"),
        definitions.some_one,
        note="never exercises tie-breaking, so it succeeds already with scores that grow like log n",
    ),
    NamedFormula("all-ones", "1*: only 1s occur", BITS, parse("!(true S !Q_1)"), definitions.all_ones),
    NamedFormula("previous", "the symbol before is 1", BITS, parse("Y Q_1"), definitions.one_before),
    NamedFormula(
        "since",
        "of the symbols a and c, the last to occur is a",
        LETTERS,
        parse("!Q_c S Q_a"),
        definitions.last_of_a_and_c_is_a,
        note="over two symbols, as in Q_0 S Q_1, it would not exercise tie-breaking: hence three",
    ),
    NamedFormula(
        "3-gram",
        "an occurrence of aab ends here",
        LETTERS,
        n_gram("aab"),
        definitions.ends_with("a", "a", "b"),
    ),
    NamedFormula(
        "3-gram-ahead",
        "an occurrence of aab begins here",
        LETTERS,
        n_gram("aab", ahead=True),
        definitions.begins_with("a", "a", "b"),
        note="false at the last two positions of every word: measure it at an earlier one",
    ),
    NamedFormula(
        "induction-head",
        "induction head: after the last earlier occurrence of the present symbol came a",
        LETTERS,
        hop_induction(1, "a", LETTERS),
        definitions.hop(1, "a"),
    ),
    NamedFormula(
        "2-hop",
        "two hops of the induction head lead to an a",
        LETTERS,
        hop_induction(2, "a", LETTERS),
        definitions.hop(2, "a"),
    ),
    NamedFormula(
        "flip-flop",
        "flip-flop: each bit right after an r is the one right after the last w, 0 before the first",
        ("w", "r", "i", "0", "1"),
        flip_flop(),
        definitions.flip_flop,
        note="words need not alternate instructions and bits: one after another instruction is no bit",
    ),
    NamedFormula("dyck-1", "DYCK-1: balanced brackets", BRACKETS, dyck_1(), definitions.balanced()),
    NamedFormula(
        "dyck-1-depth-2",
        "DYCK-1 to bounded depth: balanced brackets, never more than 2 open",
        BRACKETS,
        dyck_1(largest_depth=2),
        definitions.balanced(2),
    ),
    NamedFormula(
        "equal-blocks",
        "a^n b^n: some a's, then as many b's",
        ("a", "b"),
        parse("#L[Q_a] = #L[Q_b] & !(true S (Q_a & Y Q_b))"),
        definitions.equal_blocks,
    ),
)
LIBRARY: dict[str, NamedFormula] = {entry.name: entry for entry in _ENTRIES}


def named_formula(name: str) -> NamedFormula:
    """The entry of the library called `name`; raises `InputError` that lists the names if there is none."""
    if name not in LIBRARY:
        raise InputError(
            f"formula: name = {name!r}: the library has {', '.join(LIBRARY)}; read a text with parse()"
        )
    return LIBRARY[name]


def formula(name: str) -> Formula:
    """The formula called `name` in the library.

    >>> print(formula("parity"))
    odd(#L[Q_1])
    """
    return named_formula(name).formula
