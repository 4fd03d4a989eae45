"""Comparisons of counts and predicates on counts as attention layers (Yang et al. 2024, section 4.4; and beyond it)."""

from __future__ import annotations

from jaxsens.constructions.affine import Affine, total
from jaxsens.constructions.builder import MASK_OF, Builder
from jaxsens.constructions.lemmas import KAPPA, lookup_sharpness, lookup_weight_error, value_error
from jaxsens.constructions.network import Pair
from jaxsens.constructions.predicate_values import PredicateValues
from jaxsens.constructions.rounding import AT_LEAST_ZERO, EQUALS_ZERO, ROUND, ReluForm, Unit
from jaxsens.logic import Comparison, CountPredicate, Predicate
from jaxsens.models.positions import FunctionComponent

NEGATED_PART = ReluForm((Unit(-1, 1, 0),))
"""-relu(z)."""

BEYOND_ONE = ReluForm((Unit(-1, 2, -5 / 2), Unit(1, 2, -7 / 2)))
"""-[k >= 2] for z within 1/4 of the whole number k >= 1."""

WHOLE_AT_LEAST_ZERO = ReluForm((Unit(1, 1, 1), Unit(-1, 1, 0)))
"""[k >= 0] for the whole number k, and 0 for everything below -1."""

SIGN_ERROR = 2 / 256
"""How far the share of even positions may be from 0 or 1 where they win or lose by 2 KAPPA each."""


def comparison(builder: Builder, formula: Comparison, counted: list[Affine]) -> Affine:
    """sum_k lambda_k C_k + c >= 0 (or = 0, != 0), given what each C_k counts."""
    weights = [weight for weight, _ in formula.terms]
    if not weights:
        holds = {">=": formula.constant >= 0, "=": formula.constant == 0, "!=": formula.constant != 0}
        return Affine(constant=float(holds[formula.relation]))
    builder.network.sums.append((formula.weight, formula.constant))
    if builder.condition.name != "temperature-bounded":
        value = _sum_of_counts(builder, formula, counted)
        if formula.relation == ">=":
            return builder.network.shaped((AT_LEAST_ZERO, value))
        equal = builder.network.shaped((EQUALS_ZERO, value))
        return equal if formula.relation == "=" else 1.0 - equal
    at_least = _sign_of_average if len(formula.directions) == 1 else _sign_of_looked_up
    if formula.relation == ">=":
        return at_least(builder, formula, counted, 1.0)
    above, below = (at_least(builder, formula, counted, sign) for sign in (1.0, -1.0))
    # Both hold if the sum is 0, and at least one always does.
    return above + below - 1.0 if formula.relation == "=" else 2.0 - above - below


def predicate(builder: Builder, formula: CountPredicate, counted: Affine) -> Affine:
    """theta(C): a table look-up of C whose values are theta(1), theta(2), ..., and theta(0) where C = 0 (trap T15)."""
    direction, theta = formula.count.sign, formula.predicate
    ratio, inverse = builder.ratio(direction, counted), builder.inverse(direction)
    sharpness = max(KAPPA, lookup_sharpness(1))
    pairs = builder.table(ratio, inverse, sharpness)
    found = _look_up(builder, pairs, predicate_embedding(builder, theta), boolean_error(sharpness), sharpness)
    none = _is_zero(builder, direction, counted, sharpness)
    return builder.network.shaped((ROUND, found - none)) + _at_zero(builder, theta, none)


def boolean_error(sharpness: float) -> float:
    """How far the look-up of a value in [0, 1] may be from the value at the count (Lemma 7)."""
    return value_error(lookup_weight_error(sharpness))


def predicate_embedding(builder: Builder, theta: Predicate) -> Affine:
    """The position component that contains theta: 1 at the positions i with theta_n(i), else 0.

    In brackets, which no other component's name begins with: a predicate may be called "square" or "length".
    """
    return builder.network.component(FunctionComponent(f"[i {theta}]", PredicateValues(theta)))


def _at_zero(builder: Builder, theta: Predicate, none: Affine) -> Affine:
    if not theta.needs_length:
        return none if theta.holds(0, 1) else Affine()
    # theta_n(0) may depend on n: it is a component of its own, the same at every position.
    value = builder.network.component(FunctionComponent(f"[0 {theta}]", PredicateValues(theta, at_zero=True)))
    return builder.network.rectify([(none + value - 1.0, 1.0)])


def _look_up(builder: Builder, pairs: list[Pair], value: Affine, error: float, sharpness: float) -> Affine:
    mask = "future" if builder.condition.autoregressive else "none"
    return builder.network.attend(mask, pairs, value, "table", error, sharpness)


def _is_zero(builder: Builder, direction: str, counted: Affine, sharpness: float) -> Affine:
    """1 where C = 0, else 0: the look-up of C + 1 finds row 1 there, and a later one elsewhere.

    Where the table has one row, C + 1 finds row 1 for C = 1 as well, and 1 - C itself, the average, is taken (T1).
    """

    def make() -> Affine:
        ratio, inverse = builder.ratio(direction, counted), builder.inverse(direction)
        pairs = builder.table(ratio + inverse, inverse, sharpness)
        one_row = (NEGATED_PART, ratio + builder.single_row(direction))
        if builder.condition.name == "temperature-bounded":
            found = _look_up(builder, pairs, builder.first(), boolean_error(sharpness), sharpness)
            return builder.network.shaped((ROUND, found), one_row)
        found = _look_up(builder, pairs, builder.index_value(), 1 / 4, sharpness)
        # The row found, within 1/4 of a whole number, is 1 or at least 2.
        return 1.0 + builder.network.shaped((BEYOND_ONE, found), one_row)

    return builder.once(("is zero", direction, counted), make)


def _sum_of_counts(builder: Builder, formula: Comparison, counted: list[Affine]) -> Affine:
    """sum_k lambda_k C_k + c within 1/4: stages 1 and 2 of section 4.4, each C_k within 1/(4 H)."""
    sharpness = lookup_sharpness(formula.weight)
    parts = []
    for (weight, count), what in zip(formula.terms, counted, strict=True):
        ratio, inverse = builder.ratio(count.sign, what), builder.inverse(count.sign)
        pairs = builder.table(ratio, inverse, sharpness)
        found = builder.once(
            ("count", count.sign, what, sharpness),
            lambda pairs=pairs: _look_up(
                builder, pairs, builder.index_value(), 1 / (4 * formula.weight), sharpness
            ),
        )
        parts.append(float(weight) * (found - _is_zero(builder, count.sign, what, lookup_sharpness(1))))
    return total(parts) + float(formula.constant)


def _sign_of_average(builder: Builder, formula: Comparison, counted: list[Affine], sign: float) -> Affine:
    """Whether sign * (sum_k lambda_k C_k + c) >= 0, for counts of one direction, without any table (ours).

    y = (sum_k lambda_k C_k + c) / m is exact, and at least 0 or at most -1/m. A head with the score
    2 KAPPA (y + 1/(2m)) (-1)^j averages [j even]. With one visible position there is nothing to compare, and y itself,
    an integer there, decides. Every embedding is bounded.
    """
    network = builder.network
    (direction,) = formula.directions
    inverse = builder.inverse(direction)
    parts = [
        sign * weight * builder.ratio(direction, what)
        for (weight, _), what in zip(formula.terms, counted, strict=True)
    ]
    y = total(parts) + sign * formula.constant * inverse
    parity = builder.position("alternating")
    even = network.attend(
        MASK_OF[direction],
        [(2.0 * KAPPA * (y + 0.5 * inverse), parity)],
        0.5 + 0.5 * parity,
        "sign",
        SIGN_ERROR,
        2.0 * KAPPA,
    )
    # Alone, the last position may be even; the first is odd.
    alone = builder.first() if direction == "#L" else builder.last()
    return _decided(builder, even - alone, y, alone - 1.0, formula)


def _sign_of_looked_up(builder: Builder, formula: Comparison, counted: list[Affine], sign: float) -> Affine:
    """As `_sign_of_average`, for counts of both directions: each is looked up as C/n first (ours).

    The table's values are j/n, so that each C_k / n is right within 1/(4 H n), and the sum is at least -1/(4n) or at
    most -3/(4n). The temperature 1/n^3 makes that decide.
    """
    network, sharpness = builder.network, lookup_sharpness(formula.weight)
    parts = []
    for (weight, count), what in zip(formula.terms, counted, strict=True):
        ratio, inverse = builder.ratio(count.sign, what), builder.inverse(count.sign)
        pairs = builder.table(ratio, inverse, sharpness)
        found = builder.once(
            ("share", count.sign, what, sharpness),
            lambda pairs=pairs: _look_up(
                builder, pairs, builder.position("fraction"), 1 / (4 * formula.weight), sharpness
            ),
        )
        none = _is_zero(builder, count.sign, what, lookup_sharpness(1))
        share = builder.once(
            ("positive share", count.sign, what, sharpness),
            lambda found=found, none=none: network.rectify([(found - none, 1.0)]),
        )
        parts.append(sign * weight * share)
    per_length = builder.inverse_length()
    y = total(parts) + sign * formula.constant * per_length
    parity = builder.position("alternating")
    even = network.attend(
        "none",
        [(2.0 * KAPPA * (y + 0.5 * per_length), parity)],
        0.5 + 0.5 * parity,
        "sign",
        SIGN_ERROR,
        2.0 * KAPPA,
    )
    return _decided(builder, even, y, 2.0 * per_length - 2.0, formula)


def _decided(builder: Builder, even: Affine, y: Affine, alone: Affine, formula: Comparison) -> Affine:
    """The average of [j even] rounded; where `alone` is 0 and not at most -1, [y >= 0] for the integer y instead."""
    bound = formula.weight + abs(formula.constant) + 1.0
    gate = bound * alone
    return builder.network.shaped((ROUND, even), (WHOLE_AT_LEAST_ZERO, y + gate))
