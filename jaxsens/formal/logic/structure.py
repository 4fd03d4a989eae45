"""What a formula is made of: its symbols, counts, predicates and operators; and the fragments of the logic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic.counting import Count, CountComparison, CountPredicate, PositionPredicate, Predicate
from jaxsens.formal.logic.formulas import (
    Formula,
    Next,
    Since,
    Symbol,
    Until,
    Yesterday,
    shortened,
    subformulas,
)
from jaxsens.formal.logic.parser import parse

OPERATORS = ("Y", "X", "S", "U", "#L", "#R")
_BRACKETED = re.compile(r"LTL\[([^\[\]]*)\]")


@typed_arguments
def size(formula: Formula) -> int:
    """The number of distinct subformulas."""
    return len(subformulas(formula))


@typed_arguments
def depth(formula: Formula) -> int:
    """The deepest nesting of operators, comparisons and predicates of counts; 0 for Q_a."""
    depths: dict[Formula, int] = {}
    for part in subformulas(formula):
        depths[part] = 1 + max((depths[child] for child in part.children), default=-1)
    return depths[formula]


@typed_arguments
def symbols(formula: Formula) -> tuple[str, ...]:
    """The symbols that the formula names, each once, in the order of `subformulas`."""
    return tuple(part.name for part in subformulas(formula) if isinstance(part, Symbol))


@typed_arguments
def counts(formula: Formula) -> tuple[Count, ...]:
    """The distinct counting terms anywhere in the formula; an inner one before the one that counts it."""
    return tuple(dict.fromkeys(count for part in subformulas(formula) for count in _counts_of(part)))


@typed_arguments
def predicates(formula: Formula) -> tuple[Predicate, ...]:
    """The distinct numerical predicates, of positions and of counts."""
    return tuple(dict.fromkeys(each for part in subformulas(formula) for each in _predicates_of(part)))


@typed_arguments
def operators(formula: Formula) -> frozenset[str]:
    """Which of Y, X, S, U, #L and #R the formula uses."""
    return frozenset().union(*(operators_of(part) for part in subformulas(formula)))


@typed_arguments
def uses_future(formula: Formula) -> bool:
    """Whether X, U or #R occurs."""
    return bool(operators(formula) & {"X", "U", "#R"})


@typed_arguments
def uses_counting(formula: Formula) -> bool:
    """Whether a counting term occurs."""
    return bool(operators(formula) & {"#L", "#R"})


@typed_arguments
def is_past(formula: Formula) -> bool:
    """Whether truth at i depends on w_1 ... w_i only: no X, U or #R, and no predicate that uses the length."""
    return not uses_future(formula) and not any(each.needs_length for each in predicates(formula))


@final
@dataclass(frozen=True)
class Fragment:
    """A part of the logic: the Boolean connectives, some operators, and some predicates.

    Attributes:
        name: What messages call it.
        operators: Which of Y, X, S, U, #L and #R it has.
        predicates: Whether it has numerical predicates, of positions and, if it counts, of counts.
        length: Whether it has predicates that use the word's length. Without them, a fragment of Y, S and #L depends
            on nothing after the position.
    """

    name: str
    operators: frozenset[str]
    predicates: bool = True
    length: bool = True


_NAMED = (
    Fragment("everything", frozenset(OPERATORS)),  # Corollary 22
    Fragment("past", frozenset({"Y", "S", "#L"}), length=False),  # Corollary 23
    Fragment("counting", frozenset({"#L", "#R"})),  # Theorem 20
    Fragment("counting-left", frozenset({"#L"}), length=False),  # Theorem 21
    Fragment("Boolean", frozenset(), predicates=False),
)
FRAGMENTS = {fragment.name: fragment for fragment in _NAMED}


@typed_arguments
def fragment(name: str) -> Fragment:
    """The fragment called `name`: one of `FRAGMENTS`, or "LTL[...]" with some of Y, X, S, U, #L, #R in the brackets.

    LTL[...] has no numerical predicates unless it lists `predicates` too: "LTL[Y,X]" (Theorem 12), "LTL[S,U]"
    (Theorem 15), "LTL[Y,X,S,U]" (Corollary 17), "LTL[Y,S]" (Corollary 18), "LTL[Y,predicates]".

    Raises:
        InputError: If there is no such fragment.
    """
    return _fragment("fragment: name", name)


def _fragment(argument: str, name: str) -> Fragment:
    if name in FRAGMENTS:
        return FRAGMENTS[name]
    bracketed = _BRACKETED.fullmatch(name.replace(" ", ""))
    listed = frozenset(bracketed[1].split(",")) if bracketed else frozenset()
    if not listed or listed - {*OPERATORS, "predicates"}:
        raise InputError(
            f"{argument} = {name!r}: give one of {', '.join(FRAGMENTS)}, or LTL[...] with some of "
            f"{', '.join(OPERATORS)}, predicates, such as LTL[Y,X]"
        )
    return Fragment(name, listed - {"predicates"}, predicates="predicates" in listed)


@final
@dataclass(frozen=True)
class Violation:
    """A subformula, and the reason why it may not occur."""

    subformula: Formula
    reason: str

    def __str__(self) -> str:
        return f"{shortened(self.subformula)}: {self.reason}"


@typed_arguments
def violations(
    formula: Formula, within: str | Fragment | None = None, alphabet: Sequence[str] | None = None
) -> tuple[Violation, ...]:
    """Every subformula that the fragment `within` or the alphabet excludes, innermost first; () if there is none."""
    allowed = _fragment("formula: within", within) if isinstance(within, str) else within
    found = []
    for part in subformulas(formula):
        if alphabet is not None and isinstance(part, Symbol) and part.name not in alphabet:
            reason = f"the alphabet {', '.join(map(repr, alphabet))} has no {part.name!r}"
            found.append(Violation(part, reason))
        if allowed is not None:
            found.extend(Violation(part, reason) for reason in _reasons(part, allowed))
    return tuple(found)


@typed_arguments
def validate(
    formula: Formula, within: str | Fragment | None = None, alphabet: Sequence[str] | None = None
) -> None:
    """Raises one `InputError` that lists all of `violations`, if there are any."""
    found = violations(formula, within, alphabet)
    if found:
        listed = "\n".join(f"  - {violation}" for violation in found)
        raise InputError.note(
            "formula", f"{len(found)} part{'s' * (len(found) > 1)} that cannot be used\n{listed}"
        )


def checked_formula(
    formula: object, alphabet: object, problems: Problems
) -> tuple[Formula | None, tuple[str, ...]]:
    """A formula, given as itself or as its text, and its alphabet; None, or (), after noting why one cannot be used."""
    given = tuple(alphabet) if isinstance(alphabet, str | Sequence) else ()
    named = all(isinstance(each, str) and each for each in given)
    if not named or len(set(given)) < max(2, len(given)):
        problems.add("alphabet", alphabet, 'at least two different symbols, such as "01" or ["a", "b"]')
        given = ()
    if isinstance(formula, str):
        try:
            formula = parse(formula)
        except InputError as error:
            problems.include(error.problems)
            return None, given
    if not isinstance(formula, Formula):
        problems.add("formula", formula, 'a formula, or its text such as "Y Q_1"')
        return None, given
    for violation in violations(formula, alphabet=given) if given else ():
        problems.note("formula", str(violation))
    return formula, given


def _reasons(part: Formula, allowed: Fragment) -> list[str]:
    has = ", ".join(sign for sign in OPERATORS if sign in allowed.operators) or "only the Boolean connectives"
    reasons = [
        f"{sign} is not in the fragment {allowed.name}, which has {has}"
        for sign in OPERATORS
        if sign in operators_of(part) - allowed.operators
    ]
    for predicate in _predicates_of(part):
        if not allowed.predicates:
            reasons.append(f"the fragment {allowed.name} has no numerical predicates, such as {predicate}")
        elif predicate.needs_length and not allowed.length:
            rest = f"which the fragment {allowed.name} does not know"
            reasons.append(f"{predicate} depends on the word's length, {rest}")
    return reasons


def _counts_of(part: Formula) -> tuple[Count, ...]:
    """The counting terms of this node alone, without those further inside."""
    if isinstance(part, CountComparison):
        return tuple(count for _, count in part.terms)
    return (part.count,) if isinstance(part, CountPredicate) else ()


def _predicates_of(part: Formula) -> tuple[Predicate, ...]:
    return (part.predicate,) if isinstance(part, PositionPredicate | CountPredicate) else ()


def operators_of(part: Formula) -> frozenset[str]:
    """Which of Y, X, S, U, #L and #R this node is or uses. Boolean connectives count as none."""
    if isinstance(part, Yesterday | Next | Since | Until):
        return frozenset({part.notation.sign})
    return frozenset(count.sign for count in _counts_of(part))
