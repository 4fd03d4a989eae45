"""Y, X, S and U as attention layers (Yang et al. 2024, sections 4.1 and 4.2)."""

from __future__ import annotations

from typing import Literal

from jaxsens.constructions.affine import Affine
from jaxsens.constructions.builder import Builder
from jaxsens.constructions.lemmas import KAPPA, linear_gap_error_simple, value_error
from jaxsens.constructions.network import Pair
from jaxsens.constructions.rounding import ROUND
from jaxsens.constructions.tie_breaking import LEFTMOST, RIGHTMOST

NEIGHBOUR_ERROR = 1 / 32
"""How far a soft average may be from the neighbour's value.

Candidates of the right parity are 2 apart and lose 2 KAPPA a step, one of the wrong parity loses as much: all others
together weigh less than 1/255 + 1/256, and values lie in [-2, 1]."""

SINCE_ERROR = value_error(linear_gap_error_simple(KAPPA))
"""1/8, by Lemma 8 for values in [0, 1]: scores fall by KAPPA or more a position after the temperature."""


def neighbour(builder: Builder, operand: Affine, side: Literal["Y", "X"]) -> Affine:
    """Y or X (Theorems 12 and 13): two heads look for the nearest even and the nearest odd position on one side.

    The nearest visible position of the other parity is i - 1 (or i + 1). The values are lowered by 2 at positions of
    the wrong parity, so that a head that sees no right one, as at the first position, returns less than 0. So the ends
    need not be marked first, which would take a layer.
    """
    network, parity = builder.network, builder.position("alternating")
    mask = "future" if side == "Y" else "past"
    found = {}
    for name, sign in (("even", parity), ("odd", -parity)):
        pairs = _nearest(builder, sign, 2.0, side)
        value = operand + sign - 1.0
        found[name] = network.attend(mask, pairs, value, "nearest", NEIGHBOUR_ERROR, KAPPA)
    # At an odd position the head for even ones is asked: the other's result is lowered by 1 and rounds to 0.
    even, odd = found["even"] - 0.5 * (1.0 + parity), found["odd"] - 0.5 * (1.0 - parity)
    return network.shaped((ROUND, even), (ROUND, odd))


def since(builder: Builder, left: Affine, right: Affine, side: Literal["S", "U"]) -> Affine:
    """S or U (Theorems 15 and 16): the nearest position where `left` fails or `right` holds decides by `right`.

    If there is none, all scores tie but for the tie-break, and attention falls on i itself, where `right` is false.
    """
    network = builder.network
    decides = 1.0 - network.rectify([(left - right, 1.0)])
    mask = "future" if side == "S" else "past"
    pairs = _nearest(builder, decides, 1.0, side)
    found = network.attend(mask, pairs, right, "nearest", SINCE_ERROR, KAPPA)
    return network.shaped((ROUND, found))


def _nearest(builder: Builder, wanted: Affine, gap: float, side: str) -> list[Pair]:
    """The scores of a search for the nearest position on a side with the highest `wanted`, which has this gap.

    Lemma 8's tie-breaking, scaled so that scores fall by KAPPA a position after the temperature. Wanted and tie-break
    are pairs of their own, so that the sum of a large and a small number is never rounded.
    """
    condition = builder.condition
    one = Affine(constant=1.0)
    if not condition.autoregressive:
        # Lemma 8(b), (c): wanted + slope gap j/n to the right, - to the left, at temperature 1/n.
        tie = RIGHTMOST if side in ("Y", "S") else LEFTMOST
        length = builder.position("length") if condition.name == "unbounded" else one
        scale = (KAPPA / tie.fall_off(gap, 1)) * length
        return [(scale, wanted), (scale, float(tie.terms(gap, 1, 1)) * builder.position("fraction"))]
    if condition.hard or condition.name == "unbounded":
        # Beyond the paper: i wanted / gap + j / 2, where the paper has i^2 (wanted - 1/j): scores grow as i only.
        index = builder.position("index")
        return [((2 * KAPPA / gap) * index, wanted), (KAPPA * one, index)]
    # Lemma 8(a) for the gap 1: wanted / gap - 1/j, at temperature 1/i^2.
    return [(KAPPA * one, (1 / gap) * wanted), (KAPPA * one, -builder.inverse("#L"))]
