"""Which fragment of the logic a formula lies in, and everything that keeps it out of one, each with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxsens.errors import InputError
from jaxsens.logic.formulas import Formula, Symbol
from jaxsens.logic.printer import shortened
from jaxsens.logic.structure import operators_of, predicates_of, subformulas

OPERATORS = ("Y", "X", "S", "U", "#L", "#R")
_BRACKETED = re.compile(r"LTL\[([^\[\]]*)\]")


@final
@dataclass(frozen=True)
class Fragment:
    """A part of the logic: which of Y, X, S, U, #L, #R it has besides the Boolean connectives, and which predicates.

    `predicates`: numerical predicates on positions, and on counts if it has counts. `length`: also those that depend on
    the word's length; without it, a fragment of Y, S and #L says nothing of what comes after a position.
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


def fragment(name: str) -> Fragment:
    """The fragment called `name`: one of `FRAGMENTS`, or any "LTL[...]" with some of Y, X, S, U, #L, #R inside.

    LTL[...] has no numerical predicates unless it lists `predicates` too: "LTL[Y,X]" (Theorem 12), "LTL[S,U]"
    (Theorem 15), "LTL[Y,X,S,U]" (Corollary 17), "LTL[Y,S]" (Corollary 18), "LTL[Y,predicates]".
    """
    if name in FRAGMENTS:
        return FRAGMENTS[name]
    bracketed = _BRACKETED.fullmatch(name.replace(" ", ""))
    listed = frozenset(bracketed[1].split(",")) if bracketed else frozenset()
    if not listed or listed - {*OPERATORS, "predicates"}:
        raise InputError(
            f"fragment = {name!r}: give one of {', '.join(FRAGMENTS)}, or LTL[...] with some of "
            f"{', '.join(OPERATORS)}, predicates, such as LTL[Y,X]"
        )
    return Fragment(name, listed - {"predicates"}, predicates="predicates" in listed)


@final
@dataclass(frozen=True)
class Violation:
    """A subformula and why it may not occur."""

    subformula: Formula
    reason: str

    def __str__(self) -> str:
        return f"{shortened(self.subformula)}: {self.reason}"


def violations(
    formula: Formula, within: str | Fragment | None = None, alphabet: Sequence[str] | None = None
) -> tuple[Violation, ...]:
    """Every subformula that the fragment `within` or the alphabet excludes, innermost first; () if there is none."""
    allowed = fragment(within) if isinstance(within, str) else within
    found = []
    for part in subformulas(formula):
        if alphabet is not None and isinstance(part, Symbol) and part.name not in alphabet:
            found.append(
                Violation(part, f"the alphabet {', '.join(map(repr, alphabet))} has no {part.name!r}")
            )
        if allowed is not None:
            found.extend(Violation(part, reason) for reason in _reasons(part, allowed))
    return tuple(found)


def _reasons(part: Formula, allowed: Fragment) -> list[str]:
    """Why the outermost operator of `part` is outside the fragment."""
    has = ", ".join(sign for sign in OPERATORS if sign in allowed.operators) or "only the Boolean connectives"
    reasons = [
        f"{sign} is not in the fragment {allowed.name}, which has {has}"
        for sign in OPERATORS
        if sign in operators_of(part) - allowed.operators
    ]
    for predicate in predicates_of(part):
        if not allowed.predicates:
            reasons.append(f"the fragment {allowed.name} has no numerical predicates, such as {predicate}")
        elif predicate.needs_length and not allowed.length:
            reasons.append(
                f"{predicate} depends on the word's length, which the fragment {allowed.name} does not know"
            )
    return reasons


def validate(
    formula: Formula, within: str | Fragment | None = None, alphabet: Sequence[str] | None = None
) -> None:
    """Raises one `InputError` that lists all of `violations`, if there are any."""
    found = violations(formula, within, alphabet)
    if found:
        listed = "\n".join(f"  - {violation}" for violation in found)
        raise InputError(f"formula: {len(found)} part{'s' * (len(found) > 1)} that cannot be used\n{listed}")
