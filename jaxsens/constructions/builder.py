"""What several constructions share: a network, its condition, and the numbers made once: ends and inverse positions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal

from jaxsens.constructions.affine import Affine
from jaxsens.constructions.conditions import Condition
from jaxsens.constructions.network import Network, Pair
from jaxsens.models.positions import Component, Limb

Direction = Literal["#L", "#R"]

MASK_OF: dict[str, Literal["future", "past"]] = {"#L": "future", "#R": "past"}
"""The mask under which a query sees what a count of this direction counts."""

PLACES = {"index": 1, "square": 2, "length-index": 2, "length-square": 2}
"""In how many float32 numbers these components are kept: enough for n = 65536."""

_BOUNDED = {"index": Component("fraction"), "square": Component("fraction-square")}


class Builder:
    """A network under construction in one condition.

    `reciprocals` says that 1/i and 1/(n-i+1) are position embeddings, as Theorems 20 and 21 have them; else they are
    made from (-1)^i by attention (Proposition 11). `digits` splits integers that float32 cannot hold.
    """

    def __init__(self, network: Network, condition: Condition, reciprocals: bool, digits: bool) -> None:
        self.network = network
        self.condition = condition
        self.reciprocals = reciprocals
        self.digits = digits
        self._made: dict[Hashable, Affine] = {}

    def position(self, name: str) -> Affine:
        """A named position component."""
        return self.network.component(Component(name))

    def parts(self, name: str) -> list[Affine]:
        """Components that add up to a whole one: as many as its digits need, or its bounded form over n or n^2."""
        if self.condition.name in ("bounded-softmax", "temperature-bounded"):
            return [self.network.component(_BOUNDED[name])]
        if not self.digits or PLACES[name] == 1:
            return [self.position(name)]
        return [self.network.component(Limb(name, place)) for place in range(PLACES[name])]

    def index_value(self) -> Affine:
        """j, as the value of a table look-up; j/n where embeddings are bounded."""
        return self.parts("index")[0]

    def integers(self, query: Affine, name: str, factor: float) -> list[Pair]:
        """The pairs of a score query(i) * factor * p(j), with the component p in as many parts as its digits need."""
        return [(query, factor * part) for part in self.parts(name)]

    def table(self, ratio: Affine, inverse: Affine, sharpness: float) -> list[Pair]:
        """The scores of a table look-up (Lemma 7; Theorem 20): sharpness * n/m * (2 C j - j^2) after the temperature.

        `ratio` is C/m and `inverse` 1/m, where m is how many positions are counted.
        """
        asked, scaled = sharpness * ratio, sharpness * inverse
        if self.condition.name == "temperature-bounded":
            slope = self.position("fraction-over-length")
            return [(asked, 2.0 * slope), (scaled, -self.position("fraction-square"))]
        if self.condition.name == "unbounded":
            return [
                *self.integers(asked, "length-index", 2.0),
                *self.integers(scaled, "length-square", -1.0),
            ]
        return [*self.integers(asked, "index", 2.0), *self.integers(scaled, "square", -1.0)]

    def first(self) -> Affine:
        """1 at the first position, else 0 (Proposition 11): the average of -(-1)^j up to i is 1 there, else <= 1/3."""

        def make() -> Affine:
            average = self.network.attend("future", (), -self.position("alternating"))
            return self.network.rectify([(2.0 * average - 1.0, 1.0)])

        return self.once("first", make)

    def last(self) -> Affine:
        """1 at the last position, else 0 (Proposition 11): the average of (-1)^j from i on is 1 or -1 there."""

        def make() -> Affine:
            average = self.network.attend("past", (), self.position("alternating"))
            return self.network.rectify([(2.0 * average - 1.0, 1.0), (-2.0 * average - 1.0, 1.0)])

        return self.once("last", make)

    def inverse(self, direction: str) -> Affine:
        """1/m, where m is i (#L) or n-i+1 (#R): how many positions a count looks at."""
        if self.reciprocals:
            return self.position("reciprocal" if direction == "#L" else "reverse-reciprocal")

        def make() -> Affine:
            mark = self.first() if direction == "#L" else self.last()
            return self.network.attend(MASK_OF[direction], (), mark)

        return self.once(("inverse", direction), make)

    def inverse_length(self) -> Affine:
        """1/n."""
        return self.once("inverse length", lambda: self.network.attend("none", (), self.first()))

    def ratio(self, direction: str, counted: Affine) -> Affine:
        """C/m exactly: the average of what is counted over the m positions (stage 1 of section 4.4)."""
        return self.once(
            ("ratio", direction, counted),
            lambda: self.network.attend(MASK_OF[direction], (), counted),
        )

    def single_row(self, direction: str) -> Affine:
        """0 where the table has one row only, at most -2 elsewhere.

        A table look-up sees positions 1..i in an autoregressive network and all n else, so one row means i = 1 or
        n = 1. There it cannot tell the count 0 from 1 (trap T1 of the constructions).
        """
        if self.condition.autoregressive:
            return 4.0 * self.inverse("#L") - 4.0
        return 4.0 * self.inverse("#L") + 4.0 * self.inverse("#R") - 8.0

    def once(self, key: Hashable, make: Callable[[], Affine]) -> Affine:
        """The form under this key, made at first use."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
