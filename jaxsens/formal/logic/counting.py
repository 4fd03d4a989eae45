"""Counting terms, linear comparisons of them, and predicates of a count (section 4.4).

#L[f](i) = |{j <= i : f holds at j}| and #R[f](i) = |{j >= i : f holds at j}|. Every comparison is kept in the paper's
normal form, sum_k lambda_k C_k + c >= 0 with integers lambda_k and c, or in the same form with = 0 or != 0, which a
compiler can also decide with one comparator:

>>> from jaxsens.formal.logic import CountLeft, Symbol
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
from numbers import Integral
from operator import index
from typing import ClassVar, Literal, final

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic import grammar
from jaxsens.formal.logic.formulas import Formula
from jaxsens.formal.logic.numerical import LARGEST_INTEGER, Predicate


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
    """The number of positions up to this one, or from this one on, at which `formula` holds."""

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
        return self


class CountComparison(Formula):
    """The normal form sum_k lambda_k C_k + c >= 0, or = 0, or != 0.

    Equal counts are merged, terms with lambda = 0 are dropped, and positive terms come first. An equation whose terms
    are all negative is multiplied by -1. A comparison without terms (H = 0) is allowed; it is a constant.
    """

    terms: tuple[tuple[int, Count], ...]
    constant: int
    relation: Literal[">=", "=", "!="]
    notation = grammar.COMPARISON

    def __post_init__(self) -> None:
        with collecting("CountComparison") as problems:
            pairs = isinstance(self.terms, tuple | list) and all(map(_is_term, self.terms))
            if not pairs:
                problems.add("terms", self.terms, "give pairs (integer, CountLeft or CountRight)")
            if not isinstance(self.relation, str) or self.relation not in (">=", "=", "!="):
                wanted = "one of >=, =, !=; compare(sum, relation) takes the other relations"
                problems.add("relation", self.relation, wanted)
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
    """theta(C): the predicate holds of the count, a number from 0 to n."""

    predicate: Predicate
    count: Count

    def __post_init__(self) -> None:
        if not isinstance(self.predicate, Predicate) or not isinstance(self.count, Count):
            raise InputError(
                f"CountPredicate: predicate = {self.predicate!r}, count = {self.count!r}: "
                "give a predicate, such as ODD(), and a CountLeft or CountRight"
            )
        super().__post_init__()

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

    Raises:
        InputError: If the relation is none of these.
    """
    if relation not in grammar.RELATIONS:
        raise InputError.of(
            "relation", relation, f"give one of {', '.join(grammar.RELATIONS)}", subject="compare"
        )
    total = value.as_sum()
    if relation == "=" or relation == "!=":
        return CountComparison(total.terms, total.constant, relation)
    if relation in ("<", "<="):
        total = -total
    return CountComparison(total.terms, total.constant - (relation in ("<", ">")), ">=")
