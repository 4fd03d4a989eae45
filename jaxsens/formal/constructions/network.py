"""A transformer under construction: forms over the residual stream, and the network and the parts they are built with.

A construction asks for one number after another (`ResidualNetwork.attend`, `.rectify`). Each becomes a new coordinate
of the residual stream, which nothing else writes to. The network puts it in the earliest layer where everything it
reads is available; the heads of one layer share its mask. Time 0 is the embedding, 1 follows the attention of layer 0,
2 follows its per-position map, 3 the attention of layer 1, and so on.

Networks that round and compare are those of Lemma 9 of Yang et al. (arXiv 2412.09925).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from jaxsens.core.models.parts.positions import Component, CoordinateTerm, Limb
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.parameters import TransformerParameters, shapes
from jaxsens.formal.constructions.conditions import Condition


@dataclass(frozen=True)
class Affine:
    """sum_c weight_c x_c + constant, where x_c is coordinate c of the residual stream at one position.

    Queries, keys, values and hidden units of a constructed network read such forms. `+`, `-` and `*` by numbers make
    new forms, so a negation 1 - x or a sum of counts needs no hidden unit and no coordinate.
    """

    terms: tuple[tuple[int, float], ...] = ()
    constant: float = 0.0

    def __add__(self, other: Affine | float) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.terms, self.constant + other)
        return Affine(_summed([self, other]), self.constant + other.constant)

    def __mul__(self, factor: float) -> Affine:
        if not factor:
            return Affine()
        return Affine(tuple((c, factor * w) for c, w in self.terms), factor * self.constant)

    __radd__ = __add__
    __rmul__ = __mul__

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


def total(forms: Sequence[Affine]) -> Affine:
    """The sum of several forms, in time proportional to the number of all their terms."""
    return Affine(_summed(forms), sum((form.constant for form in forms), 0.0))


def _summed(forms: Iterable[Affine]) -> tuple[tuple[int, float], ...]:
    weights: dict[int, float] = {}
    for form in forms:
        for coordinate, weight in form.terms:
            weights[coordinate] = weights.get(coordinate, 0.0) + weight
    return tuple(sorted((c, w) for c, w in weights.items() if w))


Pair = tuple[Affine, Affine]
"""A query and a key, one number each. A head's score is the sum of query times key over its pairs."""

Units = tuple[tuple[float, float, float], ...]
"""A piecewise linear function of a number z: the sum of c relu(a z + b) over the units (c, a, b)."""

Sum = tuple[int, int]
"""A sum of counts that is compared with 0, described by H, the sum of |coefficients|, and its constant."""

Mask = Literal["none", "future", "past"]
HeadKind = Literal["average", "nearest", "table", "sign", "match", "exists", "centre"]


@dataclass(frozen=True)
class Head:
    """One attention head.

    Attributes:
        pairs: Queries and keys. A uniform head, whose scores are all 0, has none.
        value: What is averaged.
        target: The coordinate that the average is added to.
        kind: What the head computes: an average over all keys, the value at the nearest of the best keys, a table
            look-up, the sign of a sum, the value at the nearest key of the same depth, whether there is an error, or
            the centre of a discrete Gaussian.
        error: How far the soft average may be from the hard one, by the lemma that the construction uses.
        sharpness: The factor of the scores that the lemma asks for, KAPPA or Gamma_H; 0 for an average.
    """

    pairs: tuple[Pair, ...]
    value: Affine
    target: int
    kind: HeadKind
    error: float
    sharpness: float


@dataclass
class _LayerParts:
    mask: Mask | None = None
    heads: list[Head] = field(default_factory=list)
    units: list[tuple[Affine, int, float]] = field(default_factory=list)  # input, target, weight


class ResidualNetwork:
    """A residual stream to which coordinates are added, over an alphabet of named symbols."""

    def __init__(self, alphabet: Sequence[str]) -> None:
        self.alphabet = tuple(alphabet)
        self._ready: list[int] = []  # for each coordinate, the time from which it holds its number
        # The coordinates of symbols and position components, each added when it is first asked for.
        self._symbols: defaultdict[str, int] = defaultdict(partial(self._new, 0))
        self._terms: defaultdict[CoordinateTerm, int] = defaultdict(partial(self._new, 0))
        self._one: int | None = None
        self._layers: list[_LayerParts] = []
        self.sums: list[Sum] = []

    @property
    def width(self) -> int:
        """The number of coordinates so far."""
        return len(self._ready)

    @property
    def heads(self) -> tuple[tuple[Head, ...], ...]:
        """The heads of every layer."""
        return tuple(tuple(layer.heads) for layer in self._layers)

    @property
    def terms(self) -> tuple[CoordinateTerm, ...]:
        """The position components in use, in the order of first use."""
        return tuple(self._terms)

    def symbol(self, name: str) -> Affine:
        """1 where the input has this symbol, and 0 elsewhere."""
        return Affine(((self._symbols[name], 1.0),))

    def component(self, term: CoordinateTerm) -> Affine:
        """p_n(i), as part of the position embedding."""
        return Affine(((self._terms[term], 1.0),))

    def attend(
        self,
        mask: Mask,
        pairs: Sequence[Pair],
        value: Affine,
        kind: HeadKind = "average",
        error: float = 0.0,
        sharpness: float = 0.0,
    ) -> Affine:
        """sum_j alpha_ij value(j), with weights alpha_i from the scores sum over pairs of query(i) key(j)."""
        read = [value, *(form for pair in pairs for form in pair)]
        index = max(-(-self._time(read) // 2), 0)
        while self._layer(index).mask not in (None, mask):
            index += 1
        target = self._new(2 * index + 1)
        layer = self._layer(index)
        layer.mask = mask
        layer.heads.append(Head(tuple(pairs), value, target, kind, error, sharpness))
        return Affine(((target, 1.0),))

    def rectify(self, *units: tuple[Affine, float]) -> Affine:
        """sum of weight * max(0, form) over the units (form, weight), one hidden unit each."""
        index = max(-(-(self._time([form for form, _ in units]) - 1) // 2), 0)
        target = self._new(2 * index + 2)
        self._layer(index).units += [(form, target, weight) for form, weight in units]
        return Affine(((target, 1.0),))

    def shaped(self, *parts: tuple[Units, Affine]) -> Affine:
        """The sum of piecewise linear functions, each of its own form, in one coordinate."""
        pieces = ((slope * form + bias, factor) for units, form in parts for factor, slope, bias in units)
        return self.rectify(*pieces)

    def settled(self, form: Affine) -> int:
        """A coordinate that holds this form, which must be at least 0 everywhere: its own, or a copy."""
        match form:
            case Affine(((coordinate, 1.0),), 0.0):
                return coordinate
        return self.rectify((form, 1.0)).coordinates[0]

    def read_by_rounding(self, output: int) -> tuple[int, ...]:
        """The averages that the hidden units behind a coordinate read, looking through Booleans to what they read."""
        averages = {head.target for layer in self._layers for head in layer.heads}
        units = [unit for layer in self._layers for unit in layer.units]
        reached, found, fresh = {output}, set[int](), {output}
        while fresh and not found:
            read = {c for form, target, _ in units if target in fresh for c in form.coordinates} - reached
            found, fresh, reached = read & averages, read, reached | read
        return tuple(sorted(found)) or (output,)

    def build(
        self,
        weighting: Weighting,
        dtype: Literal["float32", "float64"],
        centred_scores: bool,
        idle_mask: Literal["none", "future"] = "none",
    ) -> tuple[TransformerConfig, TransformerParameters]:
        """The network's config and its parameters, as float64 NumPy arrays.

        A layer without heads gets an idle one: all its weights are 0, and its mask is `idle_mask`.
        """
        attended = (form for head in sum(self.heads, ()) for form in (head.value, *sum(head.pairs, ())))
        if self._one is None and any(form.constant for form in attended):
            # Attention has no biases (Definition 1): a coordinate that is 1 everywhere carries its constants.
            self._one = self._new(0)
        layers = self._layers
        config = TransformerConfig(
            alphabet_size=len(self.alphabet),
            width=max(self.width, 1),
            layers=len(layers),
            heads=tuple(max(len(layer.heads), 1) for layer in layers),
            head_width=tuple(_head_width(layer) for layer in layers),
            feed_forward=tuple(len(layer.units) for layer in layers),
            mask=tuple(layer.mask or idle_mask for layer in layers),
            weighting=weighting,
            positions=self.terms or "none",
            centred_scores=centred_scores,
            end_symbol=False,
            dtype=dtype,
        )
        weights = blank(config)
        for row, coordinate in enumerate(self._terms.values()):
            weights.components[row, coordinate] = 1.0
        for name, coordinate in self._symbols.items():
            weights.embedding[self.alphabet.index(name), coordinate] = 1.0
        if self._one is not None:
            weights.embedding[:, self._one] = 1.0
        for layer, arrays in zip(layers, weights.layers, strict=True):
            self._write(layer, arrays)
        return config, weights

    def _new(self, ready: int) -> int:
        self._ready.append(ready)
        return len(self._ready) - 1

    def _time(self, forms: Sequence[Affine]) -> int:
        return max((self._ready[c] for form in forms for c in form.coordinates), default=0)

    def _layer(self, index: int) -> _LayerParts:
        while len(self._layers) <= index:
            self._layers.append(_LayerParts())
        return self._layers[index]

    def _vector(self, form: Affine, width: int) -> np.ndarray:
        vector = np.zeros(width)
        for coordinate, weight in form.terms:
            vector[coordinate] += weight
        if form.constant:
            vector[self._one] += form.constant
        return vector

    def _write(self, layer: _LayerParts, weights: Any) -> None:
        width, head_width = weights.query.shape[1:]
        for h, head in enumerate(layer.heads):
            for k, (asked, offered) in enumerate(head.pairs):
                # Scores are divided by sqrt(head_width), which is a power of two here, so no digit is lost.
                weights.query[h, :, k] = self._vector(asked, width) * np.sqrt(head_width)
                weights.key[h, :, k] = self._vector(offered, width)
            weights.value[h, :, 0] = self._vector(head.value, width)
            weights.output[h, 0, head.target] = 1.0
        for unit, (form, target, weight) in enumerate(layer.units):
            for coordinate, factor in form.terms:
                weights.w1[coordinate, unit] = factor
            weights.b1[unit] = form.constant
            weights.w2[unit, target] = weight


def blank(config: TransformerConfig) -> Any:
    """`TransformerParameters` of zeros as float64 NumPy arrays, which can be written to."""
    return jax.tree.map(lambda part: np.zeros(part.shape), shapes(config))


def _head_width(layer: _LayerParts) -> int:
    """The least power of 4 that holds the longest list of pairs. Its square root is exact."""
    longest = max((len(head.pairs) for head in layer.heads), default=0)
    return 1 if longest <= 1 else 4 if longest <= 4 else 16


MASK_OF: dict[str, Mask] = {"#L": "future", "#R": "past"}
"""The mask under which a query sees the positions that a count of this direction counts."""

PLACES = {"index": 1, "square": 2, "length-index": 2, "length-square": 2}
"""How many float32 numbers hold these components: enough for n = 65536."""

_BOUNDED = {"index": Component("fraction"), "square": Component("fraction-square")}


@dataclass
class Builder:
    """A network under construction in one condition, with the parts that several constructions share.

    Attributes:
        network: The network.
        condition: The condition it is built in.
        reciprocals: Whether 1/i and 1/(n-i+1) are position embeddings, as Theorems 20 and 21 have them. Otherwise
            attention makes them from (-1)^i (Proposition 11).
        digits: Whether integers that float32 cannot hold are split.
    """

    network: ResidualNetwork
    condition: Condition
    reciprocals: bool
    digits: bool
    _made: dict[Hashable, Affine] = field(default_factory=dict, init=False)

    def position(self, name: str) -> Affine:
        """A named position component."""
        return self.network.component(Component(name))

    def parts(self, name: str) -> list[Affine]:
        """Components that add up to a whole one: one for each place its digits need, or its bounded form."""
        if self.condition.name in ("bounded-softmax", "temperature-bounded"):
            return [self.network.component(_BOUNDED[name])]
        if not self.digits or PLACES[name] == 1:
            return [self.position(name)]
        return [self.network.component(Limb(name, place)) for place in range(PLACES[name])]

    def index_value(self) -> Affine:
        """j, as the value of a table look-up; j/n if embeddings are bounded."""
        return self.parts("index")[0]

    def table(self, ratio: Affine, inverse: Affine, sharpness: float) -> list[Pair]:
        """The scores of a table look-up (Lemma 7; Theorem 20): sharpness * n/m * (2 C j - j^2) after the temperature.

        `ratio` is C/m and `inverse` is 1/m, where m is the number of counted positions.
        """
        asked, scaled = sharpness * ratio, sharpness * inverse
        if self.condition.name == "temperature-bounded":
            slope = self.position("fraction-over-length")
            return [(asked, 2.0 * slope), (scaled, -self.position("fraction-square"))]
        whole = self.condition.name == "unbounded"
        index, square = ("length-index", "length-square") if whole else ("index", "square")
        return [
            *((asked, 2.0 * part) for part in self.parts(index)),
            *((scaled, -1.0 * part) for part in self.parts(square)),
        ]

    def look_up(self, pairs: list[Pair], value: Affine, error: float, sharpness: float) -> Affine:
        """The value in the table's row that `pairs` select, within `error`. An autoregressive table ends at row i."""
        mask = "future" if self.condition.autoregressive else "none"
        return self.network.attend(mask, pairs, value, "table", error, sharpness)

    def first(self) -> Affine:
        """1 at the first position, else 0 (Proposition 11): the average of -(-1)^j up to i is 1 there, else <= 1/3."""
        average = self.ratio("#L", -self.position("alternating"))
        return self.once("first", self.network.rectify, (2.0 * average - 1.0, 1.0))

    def last(self) -> Affine:
        """1 at the last position, else 0 (Proposition 11): the average of (-1)^j from i on is 1 or -1 there."""
        average = self.ratio("#R", self.position("alternating"))
        ends = ((2.0 * average - 1.0, 1.0), (-2.0 * average - 1.0, 1.0))
        return self.once("last", self.network.rectify, *ends)

    def inverse(self, direction: str) -> Affine:
        """1/m, where m is the number of positions that a count looks at: i for #L, n-i+1 for #R."""
        if self.reciprocals:
            return self.position("reciprocal" if direction == "#L" else "reverse-reciprocal")
        return self.ratio(direction, self.first() if direction == "#L" else self.last())

    def inverse_length(self) -> Affine:
        """1/n."""
        return self.once("inverse length", self.network.attend, "none", (), self.first())

    def ratio(self, direction: str, counted: Affine) -> Affine:
        """C/m exactly: the average of what is counted over the m positions (stage 1 of section 4.4)."""
        key = ("ratio", direction, counted)
        return self.once(key, self.network.attend, MASK_OF[direction], (), counted)

    def single_row(self, direction: str) -> Affine:
        """0 where the table has a single row, at most -2 elsewhere.

        A table look-up sees positions 1..i in an autoregressive network, and all n otherwise, so one row means i = 1
        or n = 1. There it cannot tell the count 0 from 1 (trap T1 of the constructions).
        """
        if self.condition.autoregressive:
            return 4.0 * self.inverse("#L") - 4.0
        return 4.0 * self.inverse("#L") + 4.0 * self.inverse("#R") - 8.0

    def once(self, key: Hashable, make: Callable[..., Affine], *arguments: Any) -> Affine:
        """The form under this key: `make(*arguments)`, called at first use."""
        if key not in self._made:
            self._made[key] = make(*arguments)
        return self._made[key]


ROUND: Units = ((1, 2, -1 / 2), (-1, 2, -3 / 2))
"""Lemma 9: relu(2 z - 1/2) - relu(2 z - 3/2), which is 0 for z <= 1/4 and 1 for z >= 3/4.

This is exact in float32 and float64 up to z = 2^21, since both subtracted numbers are multiples of the spacing of z."""

AT_LEAST_ZERO: Units = ((1, 2, 3 / 2), (-1, 2, 1 / 2))
"""[k >= 0] for z within 1/4 of the whole number k."""

EQUALS_ZERO: Units = ((1, 2, 3 / 2), (-1, 2, 1 / 2), (-1, 2, -1 / 2), (1, 2, -3 / 2))
"""[k = 0] for z within 1/4 of the whole number k."""
