"""Named formulas, each with its alphabet and what to watch for when measuring it; first those with a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, final

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import count, is_count
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic.counting import LARGEST_INTEGER, CountLeft
from jaxsens.formal.logic.formulas import TRUE, And, Formula, Next, Or, Since, Symbol, Yesterday
from jaxsens.formal.logic.parser import parse

_PAIRS = ("()", "[]", "{}", "<>")


def brackets(kinds: int) -> tuple[str, ...]:
    """The alphabet of DYCK-k: k left brackets, then the k right ones in the same order. The fifth are "(5" and ")5"."""
    pairs = [tuple(_PAIRS[a]) if a < len(_PAIRS) else (f"({a + 1}", f"){a + 1}") for a in range(kinds)]
    return (*(left for left, _ in pairs), *(right for _, right in pairs))


BITS = ("0", "1")
LETTERS = ("a", "b", "c")
BRACKETS = brackets(1)


@typed_arguments
def n_gram(gram: Sequence[str], ahead: bool = False) -> Formula:
    """An occurrence of the symbols `gram` ends here, or begins here with `ahead`. Nested Y, or X (section 4.1).

    >>> print(n_gram("abc"))
    Q_c & Y (Q_b & Y Q_a)

    Raises:
        InputError: If `gram` is empty.
    """
    if not len(gram):
        raise InputError("n_gram: gram is empty: give at least one symbol")
    step: Callable[[Formula], Formula] = Next if ahead else Yesterday
    inward: list[Formula] = [Symbol(name) for name in (reversed(gram) if ahead else gram)]
    return reduce(lambda found, symbol: symbol & step(found), inward)


MOST_HOPS = 10_000
"""Of `hop_induction`: its graph takes seconds, and a network of it more layers than memory has."""


def hop_induction(hops: int, output: str, alphabet: Sequence[str]) -> Formula:
    """k-hop induction: the symbol reached from here by `hops` hops is `output`. One hop is the induction head.

    A hop goes from i to the rightmost j <= i with w_(j-1) = w_i. For the value v read there, the formula is

        OR_a [ Q_a & (!Y Q_a S (Y Q_a & v)) ] ,

    where v is this same formula for one hop less, and Q_output for the first hop. It is false if a hop finds no j. As
    a graph it grows linearly with `hops`; its text grows by a factor of len(alphabet) with each hop.

    >>> from jaxsens.logic import satisfies
    >>> satisfies(hop_induction(1, "b", "abc"), "abca")
    True

    Raises:
        InputError: Naming each argument that cannot be used.
    """
    with collecting("hop_induction") as problems:
        count("hops", hops, problems, 1, MOST_HOPS)
        if not isinstance(alphabet, Sequence) or not alphabet:
            problems.add("alphabet", alphabet, "a text or a list of symbols")
        elif not isinstance(output, str) or output not in tuple(alphabet):
            problems.add("output", output, f"a symbol of the alphabet {list(alphabet)}")
    value: Formula = Symbol(output)
    for _ in range(hops):
        found = [Symbol(a) & Since(~Yesterday(Symbol(a)), Yesterday(Symbol(a)) & value) for a in alphabet]
        value = reduce(Or, found)
    return value


@typed_arguments
def dyck_1(largest_depth: int | None = None, left: str = "(", right: str = ")") -> Formula:
    """Balanced brackets of one kind: as many right as left ones, and never more right than left before.

    With `largest_depth`, also never more than that many open.

    >>> print(dyck_1(2))
    #L["("] = #L[")"] & !(true S (#L[")"] > #L["("])) & !(true S (#L["("] >= #L[")"] + 3))

    Raises:
        InputError: If `largest_depth` is neither None nor from 1 to 2^31 - 2.
    """
    if largest_depth is not None and not (is_count(largest_depth, 1) and largest_depth < LARGEST_INTEGER):
        remedy = f"give 1 to {LARGEST_INTEGER - 1}, or None for any depth"
        raise InputError.of("largest_depth", largest_depth, remedy, subject="dyck_1")
    opened, closed = CountLeft(Symbol(left)), CountLeft(Symbol(right))
    result = And(opened.equals(closed), ~_once(closed > opened))
    return result if largest_depth is None else result & ~_once(opened > closed + largest_depth)


@typed_arguments
def flip_flop(write: str = "w", read: str = "r", zero: str = "0", one: str = "1") -> Formula:
    """Flip-flop: each bit right after a `read` equals the bit after the last `write` (0 before the first).

    >>> from jaxsens.logic import satisfies
    >>> satisfies(flip_flop(), "w1r1"), satisfies(flip_flop(), "w1r0")
    (True, False)
    """
    written, reading = Yesterday(Symbol(write)), Yesterday(Symbol(read))
    memory = Since(~written, written & Symbol(one))
    return ~_once(reading & Symbol(one) & ~memory | reading & Symbol(zero) & memory)


def _once(formula: Formula) -> Formula:
    """The formula holds here or somewhere before."""
    return Since(TRUE, formula)


@final
@dataclass(frozen=True)
class NamedFormula:
    """A formula of the library.

    >>> named_formula("parity").alphabet
    ('0', '1')

    Attributes:
        name: Its name.
        description: What it says, in words.
        alphabet: The symbols of the words it is about.
        formula: The formula.
        positions: Whether it says this at "every" position, of the prefix that ends there, or only at the "last" one.
        note: What to watch for when measuring it; "" if nothing.
    """

    name: str
    description: str
    alphabet: tuple[str, ...]
    formula: Formula
    positions: Literal["every", "last"] = "every"
    note: str = ""


_LAST_ONLY = "right only at the last position, read it there; it is not the parity of each prefix"
_ENTRIES = (
    NamedFormula(
        "parity",
        "PARITY: an odd number of 1s, by the predicate odd on a count",
        BITS,
        parse("odd(#L[Q_1])"),
        note="right at every prefix; the embeddings must contain odd",
    ),
    NamedFormula(
        "parity-without-predicates",
        "PARITY: an odd number of 1s, by counting alone: at no position are as many 1s before it as from it on",
        BITS,
        parse("#L[#L[Y Q_1] = #R[Q_1]] = 0"),
        "last",
        _LAST_ONLY,
    ),
    NamedFormula(
        "parity-without-predicates-since",
        "PARITY without predicates, with S in place of the outer count",
        BITS,
        parse("!(true S (#L[Y Q_1] = #R[Q_1]))"),
        "last",
        _LAST_ONLY,
    ),
    NamedFormula(
        "ones-divisible-by-three",
        "a number of 1s that three divides, by a modular predicate on a count",
        BITS,
        parse("mod(3, 0, #L[Q_1])"),
        note="theta(0) is true here: a compiler that forgets the count 0 fails on words without a 1",
    ),
    NamedFormula(
        "majority",
        "MAJORITY: more 1s than 0s",
        BITS,
        parse("#L[Q_1] - #L[Q_0] - 1 >= 0"),
        note="insensitive to a flip unless nearly tied: measure it on balanced inputs, not on random ones",
    ),
    NamedFormula("first", "FIRST: the first symbol is 1", BITS, parse("true S (Q_1 & !Y true)")),
    NamedFormula(
        "exists",
        "a 1 occurs",
        BITS,
        parse("true S Q_1"),
        note="never needs a tie to be broken, so scores that grow like log n already suffice",
    ),
    NamedFormula("all-ones", "1*: only 1s occur", BITS, parse("!(true S !Q_1)")),
    NamedFormula("previous", "the symbol before is 1", BITS, parse("Y Q_1")),
    NamedFormula(
        "since",
        "of the symbols a and c, the last to occur is a",
        LETTERS,
        parse("!Q_c S Q_a"),
        note="over two symbols, as in Q_0 S Q_1, no tie would need breaking: hence three",
    ),
    NamedFormula("3-gram", "an occurrence of aab ends here", LETTERS, n_gram("aab")),
    NamedFormula(
        "3-gram-ahead",
        "an occurrence of aab begins here",
        LETTERS,
        n_gram("aab", ahead=True),
        note="false at the last two positions of every word: measure it at an earlier one",
    ),
    NamedFormula(
        "induction-head",
        "induction head: a came after the last earlier occurrence of the present symbol",
        LETTERS,
        hop_induction(1, "a", LETTERS),
    ),
    NamedFormula(
        "2-hop", "two hops of the induction head lead to an a", LETTERS, hop_induction(2, "a", LETTERS)
    ),
    NamedFormula(
        "flip-flop",
        "flip-flop: each bit right after an r is the one right after the last w, 0 before the first",
        ("w", "r", "i", "0", "1"),
        flip_flop(),
        note="instructions and bits need not alternate: an instruction after an instruction is not a bit",
    ),
    NamedFormula("dyck-1", "DYCK-1: balanced brackets", BRACKETS, dyck_1()),
    NamedFormula(
        "dyck-1-depth-2",
        "DYCK-1 to bounded depth: balanced brackets, never more than 2 open",
        BRACKETS,
        dyck_1(largest_depth=2),
    ),
    NamedFormula(
        "equal-blocks",
        "a^n b^n: some a's, then as many b's",
        ("a", "b"),
        parse("#L[Q_a] = #L[Q_b] & !(true S (Q_a & Y Q_b))"),
    ),
)
LIBRARY: dict[str, NamedFormula] = {entry.name: entry for entry in _ENTRIES}


@typed_arguments
def named_formula(name: str) -> NamedFormula:
    """The entry of the library called `name`.

    >>> named_formula("majority").description
    'MAJORITY: more 1s than 0s'

    Raises:
        InputError: Listing the names, if there is no such entry.
    """
    if name not in LIBRARY:
        remedy = f"the library has {', '.join(LIBRARY)}; read a text with parse()"
        raise InputError.of("name", name, remedy, subject="formula")
    return LIBRARY[name]


@typed_arguments
def formula(name: str) -> Formula:
    """The formula called `name` in the library.

    >>> print(formula("parity"))
    odd(#L[Q_1])
    """
    return named_formula(name).formula
