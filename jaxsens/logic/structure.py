"""What a formula is made of: its subformulas in the order in which a compiler computes them, its symbols and counts."""

from __future__ import annotations

from jaxsens.logic.counting import Comparison, Count, CountPredicate
from jaxsens.logic.formulas import Formula, Next, Since, Symbol, Until, Yesterday
from jaxsens.logic.numerical import PositionPredicate, Predicate
from jaxsens.logic.order import children_first

FUTURE_OPERATORS = frozenset({"X", "U", "#R"})


def subformulas(formula: Formula) -> tuple[Formula, ...]:
    """Every distinct subformula, children before parents, the formula itself last; a shared one appears once.

    What stands inside a counting term is a subformula too; the counting term itself, a number, is not: see `counts`.
    """
    return children_first(formula)


def size(formula: Formula) -> int:
    """The number of distinct subformulas."""
    return len(subformulas(formula))


def depth(formula: Formula) -> int:
    """The largest number of operators, comparisons and predicates on counts that lie inside one another; of Q_a 0."""
    depths: dict[Formula, int] = {}
    for part in subformulas(formula):
        depths[part] = 1 + max((depths[child] for child in part.children), default=-1)
    return depths[formula]


def symbols(formula: Formula) -> tuple[str, ...]:
    """The symbols named, each once, in the order of `subformulas`."""
    return tuple(part.name for part in subformulas(formula) if isinstance(part, Symbol))


def counts_of(part: Formula) -> tuple[Count, ...]:
    """The counting terms that this very formula compares or asks a predicate of; not those further inside."""
    if isinstance(part, Comparison):
        return tuple(count for _, count in part.terms)
    return (part.count,) if isinstance(part, CountPredicate) else ()


def counts(formula: Formula) -> tuple[Count, ...]:
    """The distinct counting terms anywhere in the formula; an inner one before the one that counts it."""
    return tuple(dict.fromkeys(count for part in subformulas(formula) for count in counts_of(part)))


def predicates_of(part: Formula) -> tuple[Predicate, ...]:
    """The numerical predicate that this very formula consists of or applies to a count, if it is such a formula."""
    return (part.predicate,) if isinstance(part, PositionPredicate | CountPredicate) else ()


def predicates(formula: Formula) -> tuple[Predicate, ...]:
    """The distinct numerical predicates, on positions and on counts."""
    return tuple(dict.fromkeys(each for part in subformulas(formula) for each in predicates_of(part)))


def operators_of(part: Formula) -> frozenset[str]:
    """Which of Y, X, S, U, #L and #R this very formula is or uses as its outermost; Booleans count as none."""
    if isinstance(part, Yesterday | Next | Since | Until):
        return frozenset({part.notation.sign})
    return frozenset(count.sign for count in counts_of(part))


def operators(formula: Formula) -> frozenset[str]:
    """Which of Y, X, S, U, #L and #R the formula uses."""
    return frozenset().union(*(operators_of(part) for part in subformulas(formula)))


def uses_future(formula: Formula) -> bool:
    """Whether X, U or #R occurs."""
    return bool(operators(formula) & FUTURE_OPERATORS)


def uses_counting(formula: Formula) -> bool:
    """Whether a counting term occurs."""
    return bool(operators(formula) & {"#L", "#R"})


def is_past(formula: Formula) -> bool:
    """Whether truth at i depends on w_1 ... w_i alone: no X, U, #R, and no predicate that looks at the length."""
    return not uses_future(formula) and not any(each.needs_length for each in predicates(formula))
