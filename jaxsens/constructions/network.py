"""A transformer under construction: coordinates of the residual stream, attention heads and hidden units.

A construction asks for one number after another (`attend`, `rectify`), each a new coordinate that nothing else writes.
The network puts each in the earliest layer where everything it reads is there; heads of one layer share its mask. Time
runs 0 (the embedding), 1 (after the attention of layer 0), 2 (after its per-position map), 3, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from jaxsens.constructions.affine import Affine
from jaxsens.constructions.rounding import ReluForm
from jaxsens.models.config import TransformerConfig
from jaxsens.models.parameters import LayerParameters, TransformerParameters
from jaxsens.models.positions import CoordinateTerm
from jaxsens.models.weighting import Weighting

Pair = tuple[Affine, Affine]
"""A query and a key, one number each; a head's score is the sum of query times key over its pairs."""

Sum = tuple[int, int]
"""Of a sum of counts that is compared with 0: H, the sum of its coefficients' sizes, and its constant."""

Kind = Literal["average", "nearest", "table", "sign", "match", "exists"]


@dataclass(frozen=True)
class Head:
    """One attention head.

    Attributes:
        pairs: queries and keys; none for a uniform head, whose scores are all 0.
        value: what is averaged.
        target: the coordinate that the average is added to.
        kind: what the head does: an average of all, the nearest of the best, a table look-up, the sign of a sum, the
            nearest of the same depth, or whether there is one.
        error: how far the soft average may be from the hard one, by the lemma that the construction uses.
        sharpness: the factor of the scores that the lemma asks for, KAPPA or Gamma_H; 0 for an average.
    """

    pairs: tuple[Pair, ...]
    value: Affine
    target: int
    kind: Kind
    error: float
    sharpness: float


@dataclass
class _Layer:
    mask: str | None = None
    heads: list[Head] = field(default_factory=list)
    units: list[tuple[Affine, int, float]] = field(default_factory=list)  # input, target, weight


class Network:
    """A residual stream to which coordinates are added, over an alphabet of named symbols."""

    def __init__(self, alphabet: Sequence[str]) -> None:
        self.alphabet = tuple(alphabet)
        self._ready: list[int] = []  # of each coordinate, the time from which it holds its number
        self._symbols: dict[str, int] = {}
        self._terms: dict[CoordinateTerm, int] = {}
        self._one: int | None = None
        self._layers: list[_Layer] = []
        self.sums: list[Sum] = []

    @property
    def width(self) -> int:
        """How many coordinates there are so far."""
        return len(self._ready)

    @property
    def heads(self) -> tuple[tuple[Head, ...], ...]:
        """The heads of every layer."""
        return tuple(tuple(layer.heads) for layer in self._layers)

    @property
    def terms(self) -> tuple[CoordinateTerm, ...]:
        """The position components used, in the order of first use."""
        return tuple(self._terms)

    def symbol(self, name: str) -> Affine:
        """1 where the input has this symbol, else 0."""
        if name not in self._symbols:
            self._symbols[name] = self._new(0)
        return Affine(((self._symbols[name], 1.0),))

    def component(self, term: CoordinateTerm) -> Affine:
        """p_n(i), as part of the position embedding."""
        if term not in self._terms:
            self._terms[term] = self._new(0)
        return Affine(((self._terms[term], 1.0),))

    def attend(
        self,
        mask: Literal["none", "future", "past"],
        pairs: Sequence[Pair],
        value: Affine,
        kind: Kind = "average",
        error: float = 0.0,
        sharpness: float = 0.0,
    ) -> Affine:
        """sum_j alpha_ij value(j), the weights alpha_i made of the scores sum over pairs of query(i) key(j)."""
        read = [value, *(form for pair in pairs for form in pair)]
        index = max(-(-self._time(read) // 2), 0)
        while self._layer(index).mask not in (None, mask):
            index += 1
        target = self._new(2 * index + 1)
        layer = self._layer(index)
        layer.mask = mask
        layer.heads.append(Head(tuple(pairs), value, target, kind, error, sharpness))
        return Affine(((target, 1.0),))

    def rectify(self, units: Sequence[tuple[Affine, float]], constant: float = 0.0) -> Affine:
        """constant + sum of weight * max(0, form) over pairs (form, weight): one hidden unit each.

        The constant stays in the form returned, so that the coordinate itself starts from 0.
        """
        index = max(-(-(self._time([form for form, _ in units]) - 1) // 2), 0)
        target = self._new(2 * index + 2)
        self._layer(index).units += [(form, target, weight) for form, weight in units]
        return Affine(((target, 1.0),), constant)

    def shaped(self, *parts: tuple[ReluForm, Affine]) -> Affine:
        """The sum of piecewise linear functions, each of its form: one coordinate."""
        units = [
            (unit.slope * form + unit.bias, unit.coefficient)
            for function, form in parts
            for unit in function.units
        ]
        return self.rectify(units)

    def settled(self, form: Affine) -> int:
        """A coordinate that holds this form, which must be at least 0 everywhere: its own, or a copy."""
        if form.coordinate is not None:
            return form.coordinate
        copy = self.rectify([(form, 1.0)])
        return copy.coordinates[0]

    def read_by_rounding(self, output: int) -> tuple[int, ...]:
        """The averages that the hidden units behind a coordinate read; through Booleans, those behind these."""
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
        """The config and float64 parameters of the network, in NumPy.

        A layer without heads gets one that is idle, all its weights 0, behind the mask `idle_mask`.
        """
        if self._needs_one():
            self._one_coordinate()
        layers = self._layers
        widths = [_head_width(layer) for layer in layers]
        config = TransformerConfig(
            alphabet_size=len(self.alphabet),
            width=max(self.width, 1),
            layers=len(layers),
            heads=tuple(max(len(layer.heads), 1) for layer in layers),
            head_width=tuple(widths),
            feed_forward=tuple(len(layer.units) for layer in layers),
            mask=tuple(layer.mask or idle_mask for layer in layers),
            weighting=weighting,
            positions=self.terms or "none",
            centred_scores=centred_scores,
            end_symbol=False,
            dtype=dtype,
        )
        components = np.zeros((len(self._terms), config.width))
        for row, coordinate in enumerate(self._terms.values()):
            components[row, coordinate] = 1.0
        return config, TransformerParameters(
            embedding=self._embedding(config.width),  # pyright: ignore[reportArgumentType] - NumPy until it is built
            components=components if len(components) else None,  # pyright: ignore[reportArgumentType]
            learned=None,
            layers=tuple(self._parameters(layer, config.width) for layer in layers),
            head=None,
            head_bias=None,
        )

    def _new(self, ready: int) -> int:
        self._ready.append(ready)
        return len(self._ready) - 1

    def _time(self, forms: Sequence[Affine]) -> int:
        return max((self._ready[c] for form in forms for c in form.coordinates), default=0)

    def _layer(self, index: int) -> _Layer:
        while len(self._layers) <= index:
            self._layers.append(_Layer())
        return self._layers[index]

    def _needs_one(self) -> bool:
        """Whether attention reads a constant; hidden units have biases for theirs."""
        heads = (head for layer in self._layers for head in layer.heads)
        return any(form.constant for head in heads for form in (head.value, *sum(head.pairs, ())))

    def _one_coordinate(self) -> int:
        # Every symbol's embedding has a 1 there: attention has no biases, as in the paper (Definition 1).
        if self._one is None:
            self._one = self._new(0)
        return self._one

    def _embedding(self, width: int) -> np.ndarray:
        embedding = np.zeros((len(self.alphabet), width))
        for row, name in enumerate(self.alphabet):
            if name in self._symbols:
                embedding[row, self._symbols[name]] = 1.0
        if self._one is not None:
            embedding[:, self._one] = 1.0
        return embedding

    def _vector(self, form: Affine, width: int) -> np.ndarray:
        """A form as a vector for attention."""
        vector = np.zeros(width)
        for coordinate, weight in form.terms:
            vector[coordinate] += weight
        if form.constant:
            vector[self._one_coordinate()] += form.constant
        return vector

    def _parameters(self, layer: _Layer, width: int) -> LayerParameters:
        heads, head_width, hidden = max(len(layer.heads), 1), _head_width(layer), len(layer.units)
        query, key, value = (np.zeros((heads, width, head_width)) for _ in range(3))
        output = np.zeros((heads, head_width, width))
        for h, head in enumerate(layer.heads):
            for k, (asked, offered) in enumerate(head.pairs):
                # Scores are divided by sqrt(head_width), a power of two here, so that this loses no digit.
                query[h, :, k] = self._vector(asked, width) * np.sqrt(head_width)
                key[h, :, k] = self._vector(offered, width)
            value[h, :, 0] = self._vector(head.value, width)
            output[h, 0, head.target] = 1.0
        w1, b1, w2 = np.zeros((width, hidden)), np.zeros(hidden), np.zeros((hidden, width))
        for unit, (form, target, weight) in enumerate(layer.units):
            for coordinate, factor in form.terms:
                w1[coordinate, unit] = factor
            b1[unit] = form.constant
            w2[unit, target] = weight
        return LayerParameters(
            query=query,  # pyright: ignore[reportArgumentType] - NumPy until the model is built
            key=key,  # pyright: ignore[reportArgumentType]
            value=value,  # pyright: ignore[reportArgumentType]
            output=output,  # pyright: ignore[reportArgumentType]
            additive=None,
            w1=w1 if hidden else None,  # pyright: ignore[reportArgumentType]
            b1=b1 if hidden else None,  # pyright: ignore[reportArgumentType]
            w2=w2 if hidden else None,  # pyright: ignore[reportArgumentType]
            b2=np.zeros(width) if hidden else None,  # pyright: ignore[reportArgumentType]
            attention_norm=None,
            feed_forward_norm=None,
        )


def _head_width(layer: _Layer) -> int:
    """The least power of 4 that holds the longest list of pairs: its square root is exact."""
    longest = max((len(head.pairs) for head in layer.heads), default=0)
    return 1 if longest <= 1 else 4 if longest <= 4 else 16
