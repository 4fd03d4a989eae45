"""Affine forms: a number at every position as a weighted sum of the residual stream's coordinates and a constant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Affine:
    """sum_c weight_c x_c + constant, where x_c is coordinate c of the residual stream at one position.

    What a query, a key, a value or a hidden unit of a constructed network reads. `+`, `-` and `*` by numbers make new
    forms, so that a negation 1 - x or a sum of counts costs no unit and no coordinate.
    """

    terms: tuple[tuple[int, float], ...] = ()
    constant: float = 0.0

    def __add__(self, other: Affine | float) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.terms, self.constant + other)
        weights = dict(self.terms)
        for coordinate, weight in other.terms:
            weights[coordinate] = weights.get(coordinate, 0.0) + weight
        kept = tuple(sorted((c, w) for c, w in weights.items() if w))
        return Affine(kept, self.constant + other.constant)

    def __radd__(self, other: float) -> Affine:
        return self + other

    def __mul__(self, factor: float) -> Affine:
        if not factor:
            return Affine()
        return Affine(tuple((c, factor * w) for c, w in self.terms), factor * self.constant)

    def __rmul__(self, factor: float) -> Affine:
        return self * factor

    def __neg__(self) -> Affine:
        return -1.0 * self

    def __sub__(self, other: Affine | float) -> Affine:
        return self + (-other)

    def __rsub__(self, other: float) -> Affine:
        return -self + other

    @property
    def coordinates(self) -> tuple[int, ...]:
        """The coordinates that occur."""
        return tuple(coordinate for coordinate, _ in self.terms)

    @property
    def coordinate(self) -> int | None:
        """The one coordinate that this form is, or None if it is more than that."""
        if self.constant or len(self.terms) != 1 or self.terms[0][1] != 1:
            return None
        return self.terms[0][0]


def total(forms: list[Affine]) -> Affine:
    """The sum of some forms, in time proportional to all their terms together."""
    weights: dict[int, float] = {}
    for form in forms:
        for coordinate, weight in form.terms:
            weights[coordinate] = weights.get(coordinate, 0.0) + weight
    kept = tuple(sorted((c, w) for c, w in weights.items() if w))
    return Affine(kept, sum((form.constant for form in forms), 0.0))
