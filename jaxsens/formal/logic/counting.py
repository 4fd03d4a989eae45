"""Counting terms, linear comparisons of them, and unary numerical predicates of positions and counts (section 4.4).

#L[f](i) = |{j <= i : f holds at j}| and #R[f](i) = |{j >= i : f holds at j}|. Every comparison is kept in the paper's
normal form, sum_k lambda_k C_k + c >= 0 with integers lambda_k and c, or in the same form with = 0 or != 0, which a
compiler can also decide with one comparator:

>>> from jaxsens.formal.logic import CountLeft, Symbol
>>> majority = CountLeft(Symbol("1")) > CountLeft(Symbol("0"))
>>> [coefficient for coefficient, _ in majority.terms], majority.constant, majority.relation
([1, -1], -1, '>=')
>>> print(majority)
#L[Q_1] > #L[Q_0]

A numerical predicate is theta = (theta_n), theta_n: {0, ..., n} -> {0, 1}. A *family* such as mod has a name and
integer parameters. A *predicate* is a family with its arguments, such as mod(3, 1). Give `parse` your own families
to use them like the built-in ones:

>>> from jaxsens.formal.logic import PredicateFamily, parse
>>> late = PredicateFamily("late", (), lambda value, length: 2 * value > length, needs_length=True)
>>> print(parse("Q_1 & late", predicates=[late]))
Q_1 & late
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import isqrt
from numbers import Integral
from operator import index
from typing import Any, ClassVar, Literal, final

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import is_count
from jaxsens.core.base.strict import config, typed_arguments
from jaxsens.formal.logic.formulas import COMPARISON, RELATIONS, RESERVED, Formula

LARGEST_INTEGER = 2**31 - 1
"""Largest argument, coefficient or constant. Its product with a length still fits in 64 bits."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@final
@config
class PredicateFamily:
    """A numerical predicate without its arguments.

    >>> cube = PredicateFamily("cube", (), lambda value, length: round(value ** (1 / 3)) ** 3 == value)
    >>> [value for value in range(30) if cube().holds(value, 30)]
    [0, 1, 8, 27]

    Attributes:
        name: Its name in a formula's text.
        parameters: The names of its arguments.
        function: `function(value, length, *arguments)` says whether theta_length(value) holds, for
            0 <= value <= length. The value is a position (from 1) or a count (from 0).
        needs_length: Must be True if the function uses the length. Such a predicate on a position depends on the
            future, so a future-masked model, which knows only i, cannot have it as an embedding.
        problem: `problem(*arguments)` returns what is wrong with the arguments, or None.

    Raises:
        InputError: Listing every field that cannot be used.
    """

    name: str
    parameters: tuple[str, ...]
    function: Callable[..., bool]
    needs_length: bool = False
    problem: Callable[..., str | None] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in RESERVED or self.name.startswith("Q_"):
            remedy = f"start with a letter but not with Q_; avoid {', '.join(sorted(RESERVED))}"
            text = f"use letters, digits and underscores; {remedy}"
            raise InputError.of("name", self.name, text, subject="PredicateFamily")

    def __call__(self, *arguments: int) -> Predicate:
        """The predicate with these arguments."""
        return Predicate(self, arguments)

    def __reduce__(self) -> Any:
        """A built-in family is pickled by its name: its function has none."""
        return (_built_in, (self.name,)) if self in BUILT_IN else super().__reduce__()


@final
@dataclass(frozen=True)
class Predicate:
    """A family with its arguments, such as mod(3, 1): one theta. Arguments are whole numbers of at least 0.

    Raises:
        InputError: If the number of arguments is wrong, or the family does not accept their values.
    """

    family: PredicateFamily
    arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        family = self.family
        with collecting("Predicate") as problems:
            if not isinstance(family, PredicateFamily):
                problems.add("family", family, "a PredicateFamily")
            if not isinstance(self.arguments, tuple):
                problems.add("arguments", self.arguments, "a tuple")
        subject = f"{family.name}: arguments = {self.arguments}"
        if len(self.arguments) != len(family.parameters):
            raise InputError(f"{subject}: wanted are {', '.join(family.parameters) or 'none'}")
        if not all(is_count(each) and each <= LARGEST_INTEGER for each in self.arguments):
            raise InputError(f"{subject}: give whole numbers from 0 to {LARGEST_INTEGER}")
        object.__setattr__(self, "arguments", tuple(int(each) for each in self.arguments))
        if family.problem is not None and (text := family.problem(*self.arguments)) is not None:
            raise InputError(f"{subject}: {text}")

    @property
    def needs_length(self) -> bool:
        """Whether the predicate also depends on the word's length."""
        return self.family.needs_length

    def holds(self, value: int, length: int) -> bool:
        """theta_length(value)."""
        return bool(self.family.function(value, length, *self.arguments))

    def table(self, length: int) -> list[bool]:
        """theta_length(0), ..., theta_length(length): `length` + 1 truth values."""
        return [self.holds(value, length) for value in range(length + 1)]

    def __str__(self) -> str:
        return self.written()

    def written(self, *more: str) -> str:
        """The predicate's text, with `more` arguments after its own."""
        arguments = [*map(str, self.arguments), *more]
        return f"{self.family.name}({', '.join(arguments)})" if arguments else self.family.name


class PositionPredicate(Formula):
    """theta(i), as in `parse("odd")`: the predicate holds of this position, counted from 1."""

    predicate: Predicate

    def atom_text(self, children: Sequence[str]) -> str:
        return str(self.predicate)


ODD = PredicateFamily("odd", (), lambda value, length: value % 2 == 1)
EVEN = PredicateFamily("even", (), lambda value, length: value % 2 == 0)
MODULO = PredicateFamily(
    "mod",
    ("modulus", "remainder"),
    lambda value, length, modulus, remainder: value % modulus == remainder,
    problem=lambda modulus, remainder: (
        None if 0 <= remainder < modulus else "the remainder must be one of 0, ..., modulus - 1"
    ),
)
EXACTLY = PredicateFamily("exactly", ("value",), lambda value, length, wanted: value == wanted)
FIRST = PredicateFamily("first", (), lambda value, length: value == 1)
LAST = PredicateFamily("last", (), lambda value, length: value == length, needs_length=True)
MIDDLE = PredicateFamily("middle", (), lambda value, length: value == (length + 1) // 2, needs_length=True)
SQUARE = PredicateFamily("square", (), lambda value, length: isqrt(value) ** 2 == value)
PRIME = PredicateFamily(
    "prime", (), lambda value, length: value >= 2 and all(value % k for k in range(2, isqrt(value) + 1))
)

BUILT_IN = (ODD, EVEN, MODULO, EXACTLY, FIRST, LAST, MIDDLE, SQUARE, PRIME)


def _built_in(name: str) -> PredicateFamily:
    return next(family for family in BUILT_IN if family.name == name)


class Linear(ABC):
    """A count or a sum of counts. `<`, `<=`, `>=`, `>`, `.equals` and `.differs` compare two of them."""

    @abstractmethod
    def as_sum(self) -> LinearSum:
        """This number as a sum of counts."""

    def __add__(self, other: Linear | int) -> LinearSum:
        a = self.as_sum()
        b = other.as_sum() if isinstance(other, Linear) else LinearSum((), index(other))
        return LinearSum(a.terms + b.terms, a.constant + b.constant)

    def __mul__(self, factor: int) -> LinearSum:
        value, factor = self.as_sum(), index(factor)
        terms = tuple((factor * weight, count) for weight, count in value.terms)
        return LinearSum(terms, factor * value.constant)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> LinearSum:
        return -1 * self

    def __sub__(self, other: Linear | int) -> LinearSum:
        return self + -1 * other

    def __rsub__(self, other: int) -> LinearSum:
        return -self + other

    def __ge__(self, other: Linear | int) -> CountComparison:
        return compare(self - other, ">=")

    def __gt__(self, other: Linear | int) -> CountComparison:
        return compare(self - other, ">")

    def __le__(self, other: Linear | int) -> CountComparison:
        return compare(self - other, "<=")

    def __lt__(self, other: Linear | int) -> CountComparison:
        return compare(self - other, "<")

    def equals(self, other: Linear | int) -> CountComparison:
        """The formula that the two numbers are equal. (`==` asks whether two terms are the same term.)"""
        return compare(self - other, "=")

    def differs(self, other: Linear | int) -> CountComparison:
        """The formula that the two numbers are not equal."""
        return compare(self - other, "!=")


@dataclass(frozen=True)
class Count(Linear):
    """The number of positions up to here (`CountLeft`), or from here on (`CountRight`), at which `formula` holds."""

    formula: Formula
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        if not isinstance(self.formula, Formula):
            name = type(self).__name__
            raise InputError(f"{name}: {self.formula!r} is not a formula: give one, such as Symbol('1')")

    def as_sum(self) -> LinearSum:
        """The sum with this count as its only term."""
        return LinearSum(((1, self),), 0)

    def __str__(self) -> str:
        return f"{self.sign}[{self.formula}]"


@final
@dataclass(frozen=True)
class CountLeft(Count):
    """#L[formula](i) = |{j <= i : formula holds at j}|: `CountLeft(Symbol("1"))` counts the 1s up to here."""

    sign = "#L"


@final
@dataclass(frozen=True)
class CountRight(Count):
    """#R[formula](i) = |{j >= i : formula holds at j}|: `CountRight(Symbol("1"))` counts the 1s from here on."""

    sign = "#R"


@final
@dataclass(frozen=True)
class LinearSum(Linear):
    """sum_k lambda_k C_k + c: `terms` = ((lambda_k, C_k), ...), `constant` = c. `2 * CountLeft(TRUE) - 3` is one."""

    terms: tuple[tuple[int, Count], ...]
    constant: int = 0

    def as_sum(self) -> LinearSum:
        return self


class CountComparison(Formula):
    """The normal form sum_k lambda_k C_k + c >= 0, or = 0, or != 0.

    Equal counts are merged, terms with lambda = 0 are dropped, and positive terms come first. An equation whose terms
    are all negative is multiplied by -1. A comparison without terms (H = 0) is allowed; it is a constant.

    >>> from jaxsens.logic import Symbol
    >>> print(2 * CountLeft(Symbol("1")) > CountRight(Symbol("0")))
    2*#L[Q_1] > #R[Q_0]
    """

    terms: tuple[tuple[int, Count], ...]
    constant: int
    relation: Literal[">=", "=", "!="]
    notation = COMPARISON

    def __post_init__(self) -> None:
        with collecting("CountComparison") as problems:
            if not isinstance(self.terms, tuple | list) or not all(map(_is_term, self.terms)):
                problems.add("terms", self.terms, "give pairs (integer, CountLeft or CountRight)")
            if not isinstance(self.constant, Integral):
                problems.add("constant", self.constant, "a whole number")
        weights: dict[Count, int] = {}
        for weight, count in self.terms:
            weights[count] = weights.get(count, 0) + index(weight)
        terms = [(weight, count) for count, weight in weights.items() if weight]
        constant = index(self.constant)
        if self.relation != ">=" and terms and all(weight < 0 for weight, _ in terms):
            terms, constant = [(-weight, count) for weight, count in terms], -constant
        terms.sort(key=lambda term: term[0] < 0)  # stable: each sign keeps the order of writing
        numbers = [*(weight for weight, _ in terms), constant]
        if large := [number for number in numbers if abs(number) > LARGEST_INTEGER]:
            raise InputError(
                f"CountComparison: terms, constant: {large}: coefficients and constants lie within ±{LARGEST_INTEGER}"
            )
        object.__setattr__(self, "terms", tuple(terms))
        object.__setattr__(self, "constant", constant)
        super().__post_init__()

    @property
    def children(self) -> tuple[Formula, ...]:
        return tuple(count.formula for _, count in self.terms)

    @property
    def label(self) -> Hashable:
        """The relation, the constant, and each term without its counted formula."""
        return self.relation, self.constant, tuple((weight, count.sign) for weight, count in self.terms)

    def holds(self, total: Any) -> Any:
        """Whether the comparison is true of this value of its sum, or of each of an array of them."""
        return {">=": total >= 0, "=": total == 0, "!=": total != 0}[self.relation]

    @property
    def weight(self) -> int:
        """H = sum_k |lambda_k|, which divides the error allowed for one count (stage 2 of section 4.4)."""
        return sum(abs(weight) for weight, _ in self.terms)

    @property
    def directions(self) -> frozenset[str]:
        """Which of "#L" and "#R" occur. A comparison of one direction needs no table look-up."""
        return frozenset(count.sign for _, count in self.terms)

    def atom_text(self, children: Sequence[str]) -> str:
        """Positive terms on the left of the relation, negative ones on the right."""
        left, right = [], []
        for (weight, count), text in zip(self.terms, children, strict=True):
            factor = "" if abs(weight) == 1 else f"{abs(weight)}*"
            (left if weight > 0 else right).append(f"{factor}{count.sign}[{text}]")
        relation, constant = self.relation, self.constant
        if relation == ">=" and right and not left:
            left, right, relation, constant = right, left, "<=", -constant
        elif left and right and relation == ">=" and constant == -1:
            relation, constant = ">", 0
        if constant > 0:
            left.append(str(constant))
        elif constant:
            right.append(str(-constant))
        return f"{' + '.join(left) or 0} {relation} {' + '.join(right) or 0}"


def _is_term(term: object) -> bool:
    match term:
        case (Integral(), Count()):
            return True
    return False


class CountPredicate(Formula):
    """theta(C), as in `parse("odd(#L[Q_1])")`: the predicate holds of the count, a number from 0 to n."""

    predicate: Predicate
    count: Count

    @property
    def children(self) -> tuple[Formula, ...]:
        return (self.count.formula,)

    @property
    def label(self) -> Hashable:
        return self.predicate, self.count.sign

    def atom_text(self, children: Sequence[str]) -> str:
        return self.predicate.written(f"{self.count.sign}[{children[0]}]")


@typed_arguments
def compare(value: Linear, relation: str) -> CountComparison:
    """The comparison of a sum with 0 by one of <, <=, =, !=, >=, >, in normal form.

    >>> from jaxsens.logic import Symbol
    >>> print(compare(CountLeft(Symbol("1")) - 3, ">="))
    #L[Q_1] >= 3

    Raises:
        InputError: If the relation is none of these.
    """
    if relation not in RELATIONS:
        raise InputError.of("relation", relation, f"give one of {', '.join(RELATIONS)}", subject="compare")
    total = value.as_sum()
    if relation == "=" or relation == "!=":
        return CountComparison(total.terms, total.constant, relation)
    if relation in ("<", "<="):
        total = -total
    return CountComparison(total.terms, total.constant - (relation in ("<", ">")), ">=")
