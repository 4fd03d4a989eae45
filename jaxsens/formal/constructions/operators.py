"""Operators as attention layers (Yang et al. 2026): Y, X, S, U (sections 4.1, 4.2), counting (4.4, and beyond it)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxsens.core.base.errors import InputError
from jaxsens.core.models.parts.positions import FunctionComponent
from jaxsens.formal.constructions.conditions import KAPPA, lookup_sharpness, lookup_value_error
from jaxsens.formal.constructions.network import (
    AT_LEAST_ZERO,
    EQUALS_ZERO,
    MASK_OF,
    ROUND,
    Affine,
    Builder,
    Mask,
    Pair,
    Units,
    total,
)
from jaxsens.formal.logic import CountComparison, CountPredicate, Predicate

OneSided = Literal["future", "past"]

NEIGHBOUR_ERROR = 1 / 32
"""How far a soft average may be from the neighbour's value.

Candidates of the right parity are 2 apart and lose 2 KAPPA per step; one of the wrong parity loses as much. All others
together weigh less than 1/255 + 1/256, and values lie in [-2, 1]."""

SINCE_ERROR = 1 / 8
"""By Lemma 8 for values in [0, 1]: after the temperature, scores fall by at least KAPPA per position."""


def neighbour(builder: Builder, operand: Affine, mask: OneSided) -> Affine:
    """Y (mask "future") or X (mask "past") of Theorems 12 and 13.

    Two heads look for the nearest even and the nearest odd position on one side. The nearest visible position of the
    other parity is i - 1 (or i + 1). The values are lowered by 2 at positions of the wrong parity, so a head that sees
    no position of the right parity, as at the first position, returns less than 0. The ends therefore need not be
    marked first, which would take a layer.
    """
    network, parity = builder.network, builder.position("alternating")

    def nearest(sign: Affine) -> Affine:
        pairs = _nearest(builder, sign, 2.0, mask)
        return network.attend(mask, pairs, operand + sign - 1.0, "nearest", NEIGHBOUR_ERROR, KAPPA)

    # An odd position asks the head for even ones; the other head's result is lowered by 1 and rounds to 0.
    even = nearest(parity) - 0.5 * (1.0 + parity)
    odd = nearest(-parity) - 0.5 * (1.0 - parity)
    return network.shaped((ROUND, even), (ROUND, odd))


def since(builder: Builder, left: Affine, right: Affine, mask: OneSided) -> Affine:
    """S (mask "future") or U (mask "past") of Theorems 15 and 16.

    The nearest position where `left` fails or `right` holds decides, by whether `right` holds there. If there is no
    such position, all scores tie except for the tie-break, and attention falls on i itself, where `right` is false.
    """
    network = builder.network
    decides = 1.0 - network.rectify((left - right, 1.0))
    pairs = _nearest(builder, decides, 1.0, mask)
    found = network.attend(mask, pairs, right, "nearest", SINCE_ERROR, KAPPA)
    return network.shaped((ROUND, found))


def _nearest(builder: Builder, wanted: Affine, gap: float, mask: OneSided) -> list[Pair]:
    """The scores of a search for the nearest position on a side with the highest `wanted`, whose gap is `gap`.

    This is Lemma 8's tie-breaking, scaled so that scores fall by KAPPA per position after the temperature. `wanted`
    and the tie-break are separate pairs, so the sum of a large and a small number is never rounded.
    """
    condition = builder.condition
    one = Affine(constant=1.0)
    if not condition.autoregressive:
        # Lemma 8(b), (c): wanted + (gap/2) j/n to the right, - to the left, at temperature 1/n.
        term = gap / 2 if mask == "future" else -gap / 2
        length = builder.position("length") if condition.name == "unbounded" else one
        scale = (2 * KAPPA / gap) * length
        return [(scale, wanted), (scale, term * builder.position("fraction"))]
    if condition.hard or condition.name == "unbounded":
        # Not in the paper: i wanted / gap + j / 2 for its i^2 (wanted - 1/j), so that scores grow only as i.
        index = builder.position("index")
        return [((2 * KAPPA / gap) * index, wanted), (KAPPA * one, index)]
    # Lemma 8(a) for the gap 1: wanted / gap - 1/j, at temperature 1/i^2.
    return [(KAPPA * one, (1 / gap) * wanted), (KAPPA * one, -builder.inverse("#L"))]


# Counting

NEGATED_PART: Units = ((-1, 1, 0),)
"""-relu(z)."""

BEYOND_ONE: Units = ((-1, 2, -5 / 2), (1, 2, -7 / 2))
"""-[k >= 2] for z within 1/4 of the whole number k >= 1."""

WHOLE_AT_LEAST_ZERO: Units = ((1, 1, 1), (-1, 1, 0))
"""[k >= 0] for the whole number k, and 0 for everything below -1."""

SIGN_ERROR = 2 / 256
"""How far the share of even positions may be from 0 or 1 if they win or lose by 2 KAPPA each."""


def comparison(builder: Builder, formula: CountComparison, counted: list[Affine]) -> Affine:
    """sum_k lambda_k C_k + c >= 0 (or = 0, != 0), given what each C_k counts."""
    weights = [weight for weight, _ in formula.terms]
    if not weights:
        return Affine(constant=float(formula.holds(formula.constant)))
    builder.network.sums.append((formula.weight, formula.constant))
    if builder.condition.name != "temperature-bounded":
        # Stages 1 and 2 of section 4.4: each C_k within 1/(4 H), so the sum within 1/4.
        parts = _looked_up(builder, formula, counted)
        terms = [float(weight) * (found - none) for weight, found, none in parts]
        value = total(terms) + float(formula.constant)
        if formula.relation == ">=":
            return builder.network.shaped((AT_LEAST_ZERO, value))
        equal = builder.network.shaped((EQUALS_ZERO, value))
        return equal if formula.relation == "=" else 1.0 - equal
    at_least = _sign_of_average if len(formula.directions) == 1 else _sign_of_looked_up
    if formula.relation == ">=":
        return at_least(builder, formula, counted, 1.0)
    above, below = (at_least(builder, formula, counted, sign) for sign in (1.0, -1.0))
    # Both hold if the sum is 0, and at least one always holds.
    return above + below - 1.0 if formula.relation == "=" else 2.0 - above - below


def predicate(builder: Builder, formula: CountPredicate, counted: Affine) -> Affine:
    """theta(C): a table look-up of C with the values theta(1), theta(2), ..., and theta(0) where C = 0 (trap T15)."""
    direction, theta = formula.count.sign, formula.predicate
    ratio, inverse = builder.ratio(direction, counted), builder.inverse(direction)
    sharpness = max(KAPPA, lookup_sharpness(1))
    pairs = builder.table(ratio, inverse, sharpness)
    wanted = predicate_embedding(builder, theta)
    found = builder.look_up(pairs, wanted, lookup_value_error(sharpness), sharpness)
    none = _is_zero(builder, direction, counted, sharpness)
    if theta.needs_length:
        # theta_n(0) may depend on n: it is a component of its own, the same at every position.
        values = FunctionComponent(f"[0 {theta}]", PredicateValues(theta, at_zero=True))
        at_zero = builder.network.rectify((none + builder.network.component(values) - 1.0, 1.0))
    else:
        at_zero = none if theta.holds(0, 1) else Affine()
    return builder.network.shaped((ROUND, found - none)) + at_zero


@dataclass(frozen=True)
class PredicateValues:
    """I[theta_n(i)] as a function of positions and length: the embedding that "contains theta" (section 4.4).

    With `at_zero`, I[theta_n(0)] at every position. Compared by value, so two models of one formula share their
    compiled programs.
    """

    predicate: Predicate
    at_zero: bool = False

    def __call__(self, i: np.ndarray, n: int) -> np.ndarray:
        """The values at the positions i (whole numbers from 1 to n), float64."""
        if self.at_zero:
            return np.full(np.shape(i), self._value(0, n))
        return np.array([self._value(int(value), n) for value in i])

    def _value(self, value: int, n: int) -> float:
        try:
            return float(self.predicate.holds(value, n))
        except Exception as error:
            raise InputError(
                f"predicate {self.predicate}: it fails for the value {value} at n = {n}, with {type(error).__name__}: "
                f"{error}; it must be true or false for every value from 0 to n"
            ) from error


def predicate_embedding(builder: Builder, theta: Predicate) -> Affine:
    """The position component that contains theta: 1 at the positions i with theta_n(i), else 0.

    Its name is in brackets, with which no other component's name begins: a predicate may be called "square".
    """
    return builder.network.component(FunctionComponent(f"[i {theta}]", PredicateValues(theta)))


def _is_zero(builder: Builder, direction: str, counted: Affine, sharpness: float) -> Affine:
    """1 where C = 0, else 0: there the look-up of C + 1 finds row 1, and elsewhere a later row.

    Where the table has a single row, C + 1 finds row 1 for C = 1 as well, and 1 - C decides: the average itself (T1).
    """

    def make() -> Affine:
        ratio, inverse = builder.ratio(direction, counted), builder.inverse(direction)
        pairs = builder.table(ratio + inverse, inverse, sharpness)
        one_row = (NEGATED_PART, ratio + builder.single_row(direction))
        if builder.condition.name == "temperature-bounded":
            found = builder.look_up(pairs, builder.first(), lookup_value_error(sharpness), sharpness)
            return builder.network.shaped((ROUND, found), one_row)
        found = builder.look_up(pairs, builder.index_value(), 1 / 4, sharpness)
        # The row found, within 1/4 of a whole number, is 1 or at least 2.
        return 1.0 + builder.network.shaped((BEYOND_ONE, found), one_row)

    return builder.once(("is zero", direction, counted), make)


def _looked_up(
    builder: Builder, formula: CountComparison, counted: list[Affine]
) -> Iterator[tuple[int, Affine, Affine]]:
    """For each term lambda_k: the look-up of C_k within 1/(4 H), which finds 1 for C_k = 0, and [C_k = 0].

    If embeddings are bounded, C_k / n is looked up instead.
    """
    sharpness = lookup_sharpness(formula.weight)
    for (weight, count), what in zip(formula.terms, counted, strict=True):
        ratio, inverse = builder.ratio(count.sign, what), builder.inverse(count.sign)
        pairs = builder.table(ratio, inverse, sharpness)
        key, error = ("looked up", count.sign, what, sharpness), 1 / (4 * formula.weight)
        found = builder.once(key, builder.look_up, pairs, builder.index_value(), error, sharpness)
        yield weight, found, _is_zero(builder, count.sign, what, lookup_sharpness(1))


def _sign_of_average(
    builder: Builder, formula: CountComparison, counted: list[Affine], sign: float
) -> Affine:
    """Whether sign * (sum_k lambda_k C_k + c) >= 0, for counts of one direction, without any table (ours).

    y = (sum_k lambda_k C_k + c) / m is exact, and at least 0 or at most -1/m. A head with the score
    2 KAPPA (y + 1/(2m)) (-1)^j averages [j even]. With one visible position there is nothing to compare, and y decides,
    which is an integer there. Every embedding is bounded.
    """
    (direction,) = formula.directions
    inverse = builder.inverse(direction)
    parts = [
        sign * weight * builder.ratio(direction, what)
        for (weight, _), what in zip(formula.terms, counted, strict=True)
    ]
    y = total(parts) + sign * formula.constant * inverse
    even = _share_of_even(builder, MASK_OF[direction], y + 0.5 * inverse)
    # If only the last position is visible it may be even; the first position is odd.
    alone = builder.first() if direction == "#L" else builder.last()
    return _decided(builder, even - alone, y, alone - 1.0, formula)


def _sign_of_looked_up(
    builder: Builder, formula: CountComparison, counted: list[Affine], sign: float
) -> Affine:
    """Like `_sign_of_average`, for counts of both directions: each is first looked up as C/n (ours).

    The table's values are j/n, so that each C_k / n is right within 1/(4 H n), and the sum is at least -1/(4n) or at
    most -3/(4n). The temperature 1/n^3 makes that decide.
    """
    parts = []
    for weight, found, none in _looked_up(builder, formula, counted):
        share = builder.once(("positive share", found, none), builder.network.rectify, (found - none, 1.0))
        parts.append(sign * weight * share)
    per_length = builder.inverse_length()
    y = total(parts) + sign * formula.constant * per_length
    even = _share_of_even(builder, "none", y + 0.5 * per_length)
    return _decided(builder, even, y, 2.0 * per_length - 2.0, formula)


def _share_of_even(builder: Builder, mask: Mask, score: Affine) -> Affine:
    """The weight of even positions j under the scores 2 KAPPA (-1)^j score: nearly [score > 0]."""
    parity = builder.position("alternating")
    pairs = [(2.0 * KAPPA * score, parity)]
    return builder.network.attend(mask, pairs, 0.5 + 0.5 * parity, "sign", SIGN_ERROR, 2.0 * KAPPA)


def _decided(builder: Builder, even: Affine, y: Affine, alone: Affine, formula: CountComparison) -> Affine:
    """The average of [j even], rounded. Where `alone` is 0 and not at most -1, [y >= 0] for the integer y instead."""
    bound = formula.weight + abs(formula.constant) + 1.0
    return builder.network.shaped((ROUND, even), (WHOLE_AT_LEAST_ZERO, y + bound * alone))
