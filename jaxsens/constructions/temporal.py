"""Y, X, S and U as attention layers (Yang et al. 2026, sections 4.1 and 4.2)."""

from __future__ import annotations

from typing import Literal

from jaxsens.constructions.lemmas import KAPPA, LEFTMOST, RIGHTMOST, linear_gap_error_simple, value_error
from jaxsens.constructions.network import Affine, Builder, Pair
from jaxsens.constructions.rounding import ROUND

OneSided = Literal["future", "past"]

NEIGHBOUR_ERROR = 1 / 32
"""How far a soft average may be from the neighbour's value.

Candidates of the right parity are 2 apart and lose 2 KAPPA per step; one of the wrong parity loses as much. All others
together weigh less than 1/255 + 1/256, and values lie in [-2, 1]."""

SINCE_ERROR = value_error(linear_gap_error_simple(KAPPA))
"""1/8, by Lemma 8 for values in [0, 1]: after the temperature, scores fall by at least KAPPA per position."""


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
        # Lemma 8(b), (c): wanted + slope gap j/n to the right, - to the left, at temperature 1/n.
        tie = {"future": RIGHTMOST, "past": LEFTMOST}[mask]
        length = builder.position("length") if condition.name == "unbounded" else one
        scale = (KAPPA / tie.fall_off(gap, 1)) * length
        return [(scale, wanted), (scale, float(tie.terms(gap, 1, 1)) * builder.position("fraction"))]
    if condition.hard or condition.name == "unbounded":
        # Not in the paper: i wanted / gap + j / 2 for its i^2 (wanted - 1/j), so that scores grow only as i.
        index = builder.position("index")
        return [((2 * KAPPA / gap) * index, wanted), (KAPPA * one, index)]
    # Lemma 8(a) for the gap 1: wanted / gap - 1/j, at temperature 1/i^2.
    return [(KAPPA * one, (1 / gap) * wanted), (KAPPA * one, -builder.inverse("#L"))]
