"""Counting terms and linear comparisons of them (section 4.4).

#L[f](i) = |{j <= i : f holds at j}| and #R[f](i) = |{j >= i : f holds at j}|. Every comparison is kept in the paper's
normal form, sum_k lambda_k C_k + c >= 0 with integers lambda_k and c (or = 0, != 0, which a compiler can decide by one
comparator as well):

>>> from jaxsens.logic import CountLeft, Symbol
>>> majority = CountLeft(Symbol("1")) > CountLeft(Symbol("0"))
>>> [coefficient for coefficient, _ in majority.terms], majority.constant, majority.relation
([1, -1], -1, '>=')
>>> print(majority)
#L[Q_1] > #L[Q_0]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import index
from typing import ClassVar, Literal, final

from jaxsens.errors import InputError
from jaxsens.logic import grammar
from jaxsens.logic.formulas import Formula
from jaxsens.logic.numerical import LARGEST_INTEGER, Predicate


class Linear(ABC):
    """Something that sums of counts are built from. `<`, `<=`, `>=`, `>`, `.equals` and `.differs` make comparisons."""

    @abstractmethod
    def as_sum(self) -> LinearSum:
        """The sum that this is."""

    def __add__(self, other: Linear | int) -> LinearSum:
        return _plus(self, other, 1)

    def __radd__(self, other: int) -> LinearSum:
        return _plus(self, other, 1)

    def __sub__(self, other: Linear | int) -> LinearSum:
        return _plus(self, other, -1)

    def __rsub__(self, other: int) -> LinearSum:
        return -self + other

    def __neg__(self) -> LinearSum:
        return -1 * self

    def __mul__(self, factor: int) -> LinearSum:
        value, factor = self.as_sum(), index(factor)
        return LinearSum(
            tuple((factor * weight, count) for weight, count in value.terms), factor * value.constant
        )

    def __rmul__(self, factor: int) -> LinearSum:
        return self * factor

    def __ge__(self, other: Linear | int) -> Comparison:
        return compare(self - other, ">=")

    def __gt__(self, other: Linear | int) -> Comparison:
        return compare(self - other, ">")

    def __le__(self, other: Linear | int) -> Comparison:
        return compare(self - other, "<=")

    def __lt__(self, other: Linear | int) -> Comparison:
        return compare(self - other, "<")

    def equals(self, other: Linear | int) -> Comparison:
        """The formula that the two numbers are equal. (`==` asks whether two terms are the same term.)"""
        return compare(self - other, "=")

    def differs(self, other: Linear | int) -> Comparison:
        """The formula that the two numbers are not equal."""
        return compare(self - other, "!=")


@dataclass(frozen=True)
class Count(Linear):
    """The number of positions on one side, the present one included, at which `formula` holds."""

    formula: Formula
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        if not isinstance(self.formula, Formula):
            raise TypeError(
                f"{type(self).__name__}: {self.formula!r} is not a formula: give one, as Symbol('1')"
            )

    def as_sum(self) -> LinearSum:
        """The sum with this count as its only term."""
        return LinearSum(((1, self),), 0)

    def __str__(self) -> str:
        return f"{self.sign}[{self.formula}]"


@final
@dataclass(frozen=True)
class CountLeft(Count):
    """#L[formula](i) = |{j <= i : formula holds at j}|."""

    sign = "#L"


@final
@dataclass(frozen=True)
class CountRight(Count):
    """#R[formula](i) = |{j >= i : formula holds at j}|."""

    sign = "#R"


@final
@dataclass(frozen=True)
class LinearSum(Linear):
    """sum_k lambda_k C_k + c with `terms` = ((lambda_k, C_k), ...) and `constant` = c."""

    terms: tuple[tuple[int, Count], ...]
    constant: int = 0

    def as_sum(self) -> LinearSum:
        """Itself."""
        return self


def _plus(left: Linear, right: Linear | int, sign: int) -> LinearSum:
    a = left.as_sum()
    if not isinstance(right, Linear):
        return LinearSum(a.terms, a.constant + sign * index(right))
    b = right.as_sum()
    return LinearSum(
        a.terms + tuple((sign * weight, count) for weight, count in b.terms), a.constant + sign * b.constant
    )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Formula):
    """The normal form: sum_k lambda_k C_k + c >= 0, or = 0, or != 0.

    On building, equal counts are merged, terms with lambda = 0 dropped, and positive terms put first; of an equation
    with negative terms only, the signs are exchanged. Without terms it is a constant, which is allowed (H = 0).
    """

    terms: tuple[tuple[int, Count], ...]
    constant: int
    relation: Literal[">=", "=", "!="]
    notation = grammar.COMPARISON

    def __post_init__(self) -> None:
        wrong = [term for _, term in self.terms if not isinstance(term, Count)]
        if wrong or self.relation not in (">=", "=", "!="):
            raise TypeError(
                f"Comparison: terms {wrong}, relation {self.relation!r}: give pairs (integer, CountLeft or CountRight) "
                "and one of >=, =, !=; compare(sum, relation) takes the other relations"
            )
        weights: dict[Count, int] = {}
        for weight, count in self.terms:
            weights[count] = weights.get(count, 0) + index(weight)
        terms = [(weight, count) for count, weight in weights.items() if weight]
        constant = index(self.constant)
        if self.relation != ">=" and terms and all(weight < 0 for weight, _ in terms):
            terms, constant = [(-weight, count) for weight, count in terms], -constant
        terms.sort(key=lambda term: term[0] < 0)  # stable
        large = [
            number for number in (*(weight for weight, _ in terms), constant) if abs(number) > LARGEST_INTEGER
        ]
        if large:
            raise InputError(f"Comparison: {large}: coefficients and constants lie within ±{LARGEST_INTEGER}")
        object.__setattr__(self, "terms", tuple(terms))
        object.__setattr__(self, "constant", constant)
        super().__post_init__()

    @property
    def children(self) -> tuple[Formula, ...]:
        """The formulas counted, in the order of the terms."""
        return tuple(count.formula for _, count in self.terms)

    @property
    def label(self) -> Hashable:
        """Relation, constant, and each term without the formula counted."""
        return self.relation, self.constant, tuple((weight, count.sign) for weight, count in self.terms)

    @property
    def weight(self) -> int:
        """H = sum_k |lambda_k|, by which the error allowed for one count is divided (stage 2 of section 4.4)."""
        return sum(abs(weight) for weight, _ in self.terms)

    @property
    def directions(self) -> frozenset[str]:
        """Which of "#L" and "#R" occur: a comparison of one direction can do without table look-up."""
        return frozenset(count.sign for _, count in self.terms)

    def atom_text(self, children: Sequence[str]) -> str:
        """Positive terms on the left, negative ones on the right."""
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


@final
@dataclass(frozen=True, eq=False, repr=False)
class CountPredicate(Formula):
    """theta(C): the predicate holds of the count, which is one of 0, ..., n."""

    predicate: Predicate
    count: Count

    def __post_init__(self) -> None:
        if not isinstance(self.predicate, Predicate) or not isinstance(self.count, Count):
            raise TypeError(
                f"CountPredicate: {self.predicate!r}, {self.count!r}: "
                "give a predicate, such as ODD(), and a CountLeft or CountRight"
            )
        super().__post_init__()

    @property
    def children(self) -> tuple[Formula, ...]:
        """The formula counted."""
        return (self.count.formula,)

    @property
    def label(self) -> Hashable:
        """The predicate and the direction."""
        return self.predicate, self.count.sign

    def atom_text(self, children: Sequence[str]) -> str:
        """The predicate with its arguments, the count last."""
        return self.predicate.written(f"{self.count.sign}[{children[0]}]")


def compare(value: Linear, relation: str) -> Comparison:
    """The comparison of a sum with 0 by any of <, <=, =, !=, >=, >, in normal form."""
    total = value.as_sum()
    if relation in ("<", "<="):
        total = -1 * total
    if relation in ("<", ">"):
        total = total - 1
    if relation in ("=", "!="):
        return Comparison(total.terms, total.constant, "=" if relation == "=" else "!=")
    if relation not in grammar.RELATIONS:
        raise InputError(f"compare: relation = {relation!r}: give one of {', '.join(grammar.RELATIONS)}")
    return Comparison(total.terms, total.constant, ">=")
