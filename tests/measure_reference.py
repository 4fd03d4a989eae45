"""What is measured of two outputs, by plain loops in decimal arithmetic of 60 digits."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np

DIGITS = Context(prec=60, Emin=-(10**6), Emax=10**6)


def exact(values: Sequence[Any] | np.ndarray) -> list[Decimal]:
    """The values of floating-point numbers, without rounding."""
    return [Decimal(float(value)) for value in values]


def norm(before: list[Decimal], after: list[Decimal], name: str) -> Decimal:
    """The l1, l2 or l-infinity norm of the change."""
    sizes = [abs(b - a) for a, b in zip(before, after, strict=True)]
    if name == "l1":
        return sum(sizes, Decimal(0))
    return max(sizes) if name == "linf" else sum((size * size for size in sizes), Decimal(0)).sqrt()


def cosine(before: list[Decimal], after: list[Decimal]) -> Decimal:
    """1 - cos."""
    product = sum((a * b for a, b in zip(before, after, strict=True)), Decimal(0))
    squares = [sum((x * x for x in vector), Decimal(0)) for vector in (before, after)]
    return 1 - product / (squares[0].sqrt() * squares[1].sqrt())


def kl(before: list[Decimal], after: list[Decimal]) -> Decimal:
    """The divergence of the softmax of the second from that of the first."""
    powers = [[value.exp() for value in vector] for vector in (before, after)]
    totals = [sum(vector, Decimal(0)) for vector in powers]
    total = Decimal(0)
    for old, new in zip(*powers, strict=True):
        p, q = old / totals[0], new / totals[1]
        total += p * (p.ln() - q.ln())
    return total


def decision(values: list[Decimal]) -> int:
    """The first largest output; of a single one, whether it is above 0."""
    return int(values[0] > 0) if len(values) == 1 else values.index(max(values))


def measured(before: list[Decimal], after: list[Decimal], name: str) -> float:
    """What `name` measures of an output and another one."""
    with localcontext(DIGITS):
        if name == "cosine":
            return float(cosine(before, after))
        if name == "kl":
            return float(kl(before, after))
        if name == "decision":
            return float(decision(before) != decision(after))
        return float(norm(before, after, name))
