"""Up to which length rounding cannot change what a constructed transformer computes."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from jaxsens.constructions.network import Head, Sum

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}

MARGIN = 16
"""Rounding stays below 1/16 of what scores must resolve: some roundings a score, twice that in a difference."""

LARGEST_SQUARE, LARGEST_LENGTH_SQUARE = 2**24, 2**16
"""Up to which n the digits kept in float32 hold j^2 and n j^2 (`builder.PLACES`)."""


def exact_length(
    heads: Sequence[Head], sums: Sequence[Sum], condition: str, autoregressive: bool, dtype: str
) -> int:
    """The predicted largest n at which all of these heads attend, and all of these sums are, as in exact arithmetic.

    A sum of counts with the weight H and the constant c is of order H n + |c|, where numbers are 2 u (H n + |c|) apart,
    and is right within 1/4 only while that is small; 0 says that not even n = 1 is sure.

    After the temperature, the scores of a head with the sharpness g resolve steps of g. With plain products (float64),
    a score that selects the nearest of the best is of order g n, a look-up of a table g n^2, so that rounding by u
    costs g n u or g n^2 u. With centred scores (float32) keys are subtracted before they are multiplied: then both
    cost g n u. Except where the keys themselves are rounded: the bounded table's j/n^2 and (j/n)^2, and in float64 1/j
    at the temperature 1/i^2.

    The match of equal depths has scores of order g n^3, or g n^4 at the temperature 1/i^2, in which positions differ by
    g. With centred scores only the differences of depths count, whole numbers that are exact; with bounded embeddings
    they are over n and rounded, though equal where depths are. A look for any error has scores equal or far apart.
    """
    u = UNIT_ROUNDOFF[dtype]
    limits = [int(1 / (MARGIN * u))]
    limits += [max(0, int((1 / (MARGIN * u) - abs(constant)) / weight)) for weight, constant in sums]
    for head in heads:
        if head.kind in ("average", "exists"):
            continue
        linear = int(1 / (MARGIN * u * head.sharpness))
        quadratic = isqrt(linear)
        if head.kind == "match" and dtype == "float64":
            limits.append(isqrt(quadratic) if autoregressive else int(linear ** (1 / 3)))
        elif head.kind == "table" and dtype == "float32" and condition in ("temperature", "average-hard"):
            limits.append(min(linear, LARGEST_SQUARE))
        elif head.kind == "table" and dtype == "float32" and condition == "unbounded":
            limits.append(min(linear, LARGEST_LENGTH_SQUARE))
        elif (
            head.kind == "table"
            or (head.kind == "match" and condition == "temperature-bounded")
            or (autoregressive and dtype == "float64")
        ):
            limits.append(quadratic)
        else:
            limits.append(linear)
    return min(limits)
