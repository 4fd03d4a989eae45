"""The checker's own arithmetic: a layer on rows outside any word, in plain NumPy float64, with bounds on rounding.

Each row comes with a bound on how far its computed value may be from the exact one in the model's program, to first
order in the model's unit roundoff u: sums of m products are off by at most m u sum |a_i b_i|, plus what their operands
bring in. Numbers below the dtype's smallest normal one may be taken for 0, which the bounds count too. Sums are added
up in one order for all rows, so that equal rows give equal results.

Exact ties of a hard head are judged by `Identity`. Numbers are certain to be the same in every program if they are made
of the same numbers in the same way, or if every partial sum is exact even in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base.errors import no_rule, rule_for
from jaxsens.core.models.parts.masks import AnyMask, SlidingWindow
from jaxsens.core.models.parts.positions import AddedTerm, CoordinateTerm, Learned, ScoreTerm
from jaxsens.core.models.parts.score_positions import Alibi, PartialAlibi, PartialRotary, RelativeBias, Rotary
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.module import Transformer

_GRID = 2.0**6
"""Products of two multiples of 1/64 are multiples of 1/4096. Sums of these up to 2^12 fit float32's 24 bits."""

_MOST = 2.0**11
"""The largest sum of magnitudes that counts as exact; half of 2^12, to spare."""

_CHECK = "check"
"""Who refuses, in the messages of refusals."""

Table = Float[np.ndarray, "rows columns"]


@dataclass(frozen=True)
class Identity:
    """Which numbers in a column are the same: equal names mean bitwise equal numbers, up to the sign of zero.

    Attributes:
        names: counted in each column separately.
        exact: whether the number is free of rounding errors, in any program.
    """

    names: Int[np.ndarray, "rows columns"]
    exact: Bool[np.ndarray, "rows columns"]

    def __getitem__(self, rows: Int[np.ndarray, " some"]) -> Identity:
        return Identity(self.names[rows], self.exact[rows])

    @classmethod
    def of(
        cls, x: Table, names: Int[np.ndarray, "rows columns"], exact: Bool[np.ndarray, "rows columns"]
    ) -> Identity:
        """Exact numbers are named by their values, the others as given."""
        made = np.empty(x.shape, np.int64)
        for c in range(x.shape[1]):
            named = np.unique(names[:, c], return_inverse=True)[1].reshape(-1)
            valued = np.unique(x[:, c], return_inverse=True)[1].reshape(-1)
            made[:, c] = np.where(exact[:, c], -1 - valued, named)
        return cls(made, exact)

    @classmethod
    def given(cls, x: Table) -> Identity:
        """For parameters, which every program holds alike."""
        return cls.of(x, np.zeros(x.shape, np.int64), np.ones(x.shape, bool))

    def row_names(self, columns: Bool[np.ndarray, " columns"]) -> Int[np.ndarray, " rows"]:
        """Names of rows, equal where the rows have the same numbers in all of some columns."""
        if not columns.any():
            return np.zeros(len(self.names), np.int64)
        return np.unique(self.names[:, columns], axis=0, return_inverse=True)[1].reshape(-1)

    def times(
        self, x: Table, matrix: Float[np.ndarray, "columns made"], made: Float[np.ndarray, "rows made"]
    ) -> Identity:
        """For made = x @ matrix, where self is for x. A number is made of those whose weight is not 0."""
        support = matrix != 0
        kinds, kind = np.unique(support.T, axis=0, return_inverse=True)
        names = np.stack([self.row_names(columns) for columns in kinds], axis=1)[:, kind.reshape(-1)]
        inexact = ~(self.exact & _multiple(x, _GRID)) @ support
        exact = ~inexact & (_multiple(matrix, _GRID) | ~support).all(axis=0)
        return Identity.of(made, names, exact & (np.abs(x) @ np.abs(matrix) <= _MOST))

    def plus(self, x: Table, other: Identity, y: Table) -> Identity:
        """For x + y."""
        low = other.names.min(initial=0)
        names = self.names * (other.names.max(initial=0) - low + 1) + (other.names - low)
        exact = self.exact & other.exact & _multiple(x, _GRID**2) & _multiple(y, _GRID**2)
        return Identity.of(x + y, names, exact & (np.abs(x) + np.abs(y) <= _MOST))

    def mixed(self, x: Table) -> Identity:
        """For numbers x each made of its whole row, with rounding."""
        names = self.row_names(np.ones(self.names.shape[1], bool))
        return Identity(np.repeat(names[:, None], x.shape[1], axis=1), np.zeros(x.shape, bool))

    def turned(self, positions: Int[np.ndarray, " rows"]) -> Identity:
        """For pairs of columns turned by the angles of their positions."""
        pairs = np.stack([self.names[:, 0::2], self.names[:, 1::2]], axis=-1)
        made = np.empty(self.names.shape, np.int64)
        for c in range(pairs.shape[1]):
            keys = np.column_stack([pairs[:, c], positions])
            made[:, 2 * c : 2 * c + 2] = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1, 1)
        return Identity(made, np.zeros(made.shape, bool))

    def same(
        self, entry: int, others: Int[np.ndarray, " some"], columns: Bool[np.ndarray, " columns"]
    ) -> Bool[np.ndarray, " some"]:
        """Which other rows have the same numbers as `entry` in some columns."""
        return (self.names[others][:, columns] == self.names[entry][columns]).all(axis=-1)


def _multiple(x: Float[np.ndarray, "*shape"], grid: float) -> Bool[np.ndarray, "*shape"]:
    return x * grid == np.round(x * grid)


@dataclass(frozen=True)
class Numbers:
    """Computed numbers, with bounds on their errors, and which of them are the same."""

    x: Table
    bound: Table
    identity: Identity

    def __getitem__(self, rows: Int[np.ndarray, " some"]) -> Numbers:
        return Numbers(self.x[rows], self.bound[rows], self.identity[rows])

    @classmethod
    def given(cls, x: Table) -> Numbers:
        """Parameters, or what a model holds like them."""
        return cls(x, np.zeros(x.shape), Identity.given(x))

    def plus(self, other: Numbers) -> Numbers:
        """The sum; its rounding is for the caller to add."""
        identity = self.identity.plus(self.x, other.identity, other.x)
        return Numbers(self.x + other.x, self.bound + other.bound, identity)


@dataclass(frozen=True)
class Rows:
    """Vectors at positions, and the largest number met on the way."""

    positions: Int[np.ndarray, " rows"]
    vectors: Numbers
    largest: float


def _array(parameter: Any) -> np.ndarray:
    return np.asarray(parameter, np.float64)


def _rounding(model: Transformer) -> tuple[float, float]:
    """The unit roundoff, and the smallest normal number: programs may take smaller ones for 0."""
    u = 2.0**-24 if model.config.dtype == "float32" else 2.0**-53
    return u, float(np.finfo(model.config.dtype).tiny)


def _largest(*arrays: np.ndarray) -> float:
    """The largest size in the arrays; infinite if some number is not finite."""
    found = [float(np.abs(each).max(initial=0)) for each in arrays]
    return max(found) if np.isfinite(found).all() else np.inf


def embedded_rows(
    model: Transformer, n: int, positions: Int[np.ndarray, " rows"], symbols: Int[np.ndarray, " rows"]
) -> Rows:
    """Symbols at positions, before the first layer."""
    config, parameters = model.config, model.parameters
    found = Numbers.given(_array(parameters.embedding)[symbols])
    size, coordinate = np.abs(found.x), 0
    for term in config.position_terms:
        if isinstance(term, ScoreTerm):
            continue  # it enters the scores instead, see `_score_terms`
        if isinstance(term, AddedTerm):
            added = Numbers.given(term.values(n, config.width))
        elif isinstance(term, Learned):
            added = Numbers.given(_array(parameters.learned)[:n])
        elif isinstance(term, CoordinateTerm):
            values, vector = term.values(n)[:, None], _array(parameters.components)[coordinate, None]
            alike = Identity.given(values).times(values, vector, values * vector)
            added = Numbers(values * vector, np.zeros((n, config.width)), alike)
            coordinate += 1
        else:
            raise no_rule(_CHECK, "position term", term)
        found = found.plus(added[positions])
        size = size + np.abs(added.x[positions])
    u, tiny = _rounding(model)
    bound = (len(config.position_terms) + 3) * (u * size + tiny * (size > 0))
    return Rows(positions, replace(found, bound=bound), _largest(size))


def _rotation(layer: LayerConfig) -> Rotary | PartialRotary | None:
    """The position embedding that turns queries and keys."""
    found = None
    for term in layer.position_scores:
        match term:
            case Rotary() | PartialRotary():
                found = term
            case Alibi() | PartialAlibi() | RelativeBias():
                pass  # see `LayerAttention.added`
            case _:
                raise no_rule(_CHECK, "position term", term)
    return found


def visible_keys(mask: AnyMask, n: int, row: int) -> range:
    """The positions that the query at a position sees."""
    if isinstance(mask, SlidingWindow):
        return range(max(0, row + 1 - mask.width), row + 1)
    if not isinstance(mask, str):
        raise no_rule(_CHECK, "mask", mask)
    seen = {
        "none": range(n),
        "future": range(row + 1),
        "past": range(row, n),
        "strict-future": range(row),
        "strict-past": range(row + 1, n),
    }
    return rule_for(_CHECK, "mask", mask, seen)


class LayerAttention:
    """Layer k on rows, in the rounding of the model's dtype: queries, keys and values by heads, and the later steps.

    Attributes:
        layer, n, rows: the layer's config, the length, the layer's input.
        queries, keys, values: of each head and row.
        margin: the error of a query's scores, for the worst key: (heads, rows).
        largest: the largest number met so far, in the worst order of additions.
    """

    def __init__(self, model: Transformer, k: int, n: int, rows: Rows) -> None:
        self.layer, self.n, self.rows, self.largest = model.config.layer(k), n, rows, rows.largest
        self.parameters, z = model.parameters.layers[k], rows.vectors
        self.u, self.tiny = _rounding(model)
        # Whether rows are normalised before each map, and after each skip connection.
        places = {"none": (False, False), "pre": (True, False), "post": (False, True)}
        self.before, self.after = rule_for(_CHECK, "layer normalisation", self.layer.layer_norm, places)
        if self.layer.output_gate != "none":
            raise no_rule(_CHECK, "output gate", self.layer.output_gate, ("none",))
        if self.before:
            z = self.normalised(z, self.parameters.attention_norm)
        self.queries, self.keys, self.values = (
            [self.affine(z, matrix) for matrix in _array(matrices)]
            for matrices in (self.parameters.query, self.parameters.key, self.parameters.value)
        )
        rotary = _rotation(self.layer)
        if rotary is not None:
            angles = rotary.angles(n, self.layer.head_width)[rows.positions]
            self.queries, self.keys = (
                [self.turned(one, rows.positions, angles) for one in of] for of in (self.queries, self.keys)
            )
        self.margin = self.margins()

    def scores(self, queries: Int[np.ndarray, " q"]) -> Float[np.ndarray, "heads q rows"]:
        """The scores of some rows' queries with all keys."""
        q = np.stack([each.x[queries] for each in self.queries])
        keys = np.stack([each.x for each in self.keys])
        if self.layer.scores == "additive":
            additive = _array(self.parameters.additive)
            found = np.zeros((q.shape[0], q.shape[1], keys.shape[1]))
            for c in range(q.shape[2]):
                hidden = np.tanh(q[:, :, None, c] + keys[:, None, :, c])
                found += hidden * additive[:, None, None, c]
        else:
            found = q @ keys.transpose(0, 2, 1) / np.sqrt(self.layer.head_width)
        ahead = self.rows.positions[None, :] - self.rows.positions[queries][:, None]
        for added in self.added(ahead):
            found += added
        return found

    def added(self, ahead: Int[np.ndarray, "q rows"]) -> Iterator[Float[np.ndarray, "heads q rows"]]:
        """What each position embedding adds to the scores of keys at each distance ahead of their query."""
        for term in self.layer.position_scores:
            match term:
                case Alibi() | PartialAlibi():
                    yield -term.slopes(self.layer.heads)[:, None, None] * np.abs(ahead)
                case RelativeBias():
                    yield _array(self.parameters.relative_bias)[:, term.bucket(ahead)]
                case Rotary() | PartialRotary():
                    pass  # see `_rotation`
                case _:
                    raise no_rule(_CHECK, "position term", term)

    def seen(self, row: int) -> Bool[np.ndarray, " rows"]:
        """Which rows the query at position `row` sees."""
        keys = visible_keys(self.layer.mask, self.n, row)
        return (self.rows.positions >= keys.start) & (self.rows.positions < keys.stop)

    def same_key(
        self, head: int, query: int, entry: int, others: Int[np.ndarray, " some"]
    ) -> Bool[np.ndarray, " some"]:
        """Whether the keys of `others` equal that of `entry` in every program, wherever the query is not zero."""
        # What is added to scores tells equal keys apart by their distance.
        if any(True for _ in self.added(np.zeros((1, 1), int))):
            return np.zeros(len(others), bool)
        q = self.queries[head]
        used = (q.x[query] != 0) | (q.bound[query] > 0) | (self.layer.scores == "additive")
        return self.keys[head].identity.same(entry, others, used)

    def meet(self, *sizes: np.ndarray) -> None:
        """Takes note of numbers that a program may meet."""
        self.largest = max(self.largest, _largest(*sizes))

    def affine(self, a: Numbers, matrix: np.ndarray, bias: Any = None) -> Numbers:
        """a @ matrix, every row in the same order of additions, plus a bias, whose rounding the caller adds.

        The bound counts rounding, and each product, sum or weight that may be taken for 0.
        """
        x, size = np.zeros((len(a.x), matrix.shape[1])), np.abs(a.x) @ np.abs(matrix)
        for c in range(matrix.shape[0]):
            x += a.x[:, c, None] * matrix[c]
        lost = self.tiny * (2 + np.abs(a.x)) * ((a.x != 0) | (a.bound > 0)) @ (matrix != 0)
        bound = (a.bound + (matrix.shape[0] + 1) * self.u * np.abs(a.x)) @ np.abs(matrix) + lost
        made = Numbers(x, bound, a.identity.times(a.x, matrix, x))
        if bias is not None:
            made = made.plus(Numbers.given(np.tile(_array(bias), (len(x), 1))))
            size = size + np.abs(_array(bias))
        self.meet(size)
        return made

    def turned(self, a: Numbers, positions: Int[np.ndarray, " rows"], angles: np.ndarray) -> Numbers:
        """Pairs of columns turned by the angles of their positions."""
        even, odd, x = a.x[:, 0::2], a.x[:, 1::2], np.empty_like(a.x)
        x[:, 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        x[:, 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        own = a.bound + 4 * self.u * np.abs(a.x) + 4 * self.tiny * (1 + np.abs(a.x)) * (a.bound > 0)
        bound = np.repeat(own[:, 0::2] + own[:, 1::2], 2, axis=1)
        return Numbers(x, bound, a.identity.turned(positions))

    def normalised(self, a: Numbers, parameters: Any) -> Numbers:
        """Layer normalisation."""
        x, d, u, tiny = a.x, a.x.shape[1], self.u, self.tiny
        self.meet((np.abs(x) * 2) ** 2 * d)
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + self.layer.layer_norm_epsilon)
        off = a.bound + (a.bound + (d + 1) * u * np.abs(x)).mean(axis=1, keepdims=True) + u * np.abs(centred)
        off = off + 4 * tiny
        rounding = (d + 6) * u * deviation
        spread = np.sqrt((off**2).mean(axis=1, keepdims=True)) + rounding + 4 * tiny / deviation
        z = centred / deviation
        of_z = (off + np.abs(z) * spread) / deviation + 3 * u * np.abs(z)
        scale, bias = _array(parameters.scale), _array(parameters.bias)
        wrong = of_z * np.abs(scale) + 2 * u * (np.abs(z * scale) + np.abs(bias)) + tiny * (4 + np.abs(z))
        return Numbers(z * scale + bias, wrong, a.identity.mixed(z))

    def margins(self) -> Float[np.ndarray, "heads rows"]:
        """The error of each query's scores for the worst key."""
        u, tiny, width = self.u, self.tiny, self.layer.head_width
        q, size = (np.stack([np.abs(each.x) for each in of]) for of in (self.queries, self.keys))
        off, wrong = (np.stack([each.bound for each in of]) for of in (self.queries, self.keys))
        size, wrong = size.max(axis=1, keepdims=True), wrong.max(axis=1, keepdims=True)
        match self.layer.scores:
            case "additive":
                weight = np.abs(_array(self.parameters.additive))
                each = off + wrong + 2 * u * (q + size) + (width + 8) * u + 4 * tiny
                self.meet(weight.sum(axis=-1))
                margin = (each * weight[:, None, :]).sum(axis=-1) + 4 * width * tiny
            case "dot-product":
                each = off * size + q * (wrong + (width + 3) * u * size)
                self.meet((q * size).sum(axis=-1))
                margin = (each.sum(axis=-1) + 4 * width * tiny) / np.sqrt(width) + tiny
            case _:
                raise no_rule(_CHECK, "score", self.layer.scores, ("additive", "dot-product"))
        for added in self.added(np.arange(-self.n, self.n + 1)[None]):
            margin = margin + 4 * u * np.abs(added).max(axis=-1)
        self.meet(margin)
        return margin

    def attended(self, own: Numbers, won: Int[np.ndarray, "heads rows"]) -> Numbers:
        """Each head's winning value (-1 for none) times its output matrix, added to the rows."""
        size = np.abs(own.x)
        for of_head, winners, matrix in zip(self.values, won, _array(self.parameters.output), strict=True):
            some, held = (winners >= 0)[:, None], of_head[winners]
            b = np.where(some, held.x, 0)
            names = np.where(some, held.identity.names, -1 - len(of_head.x))
            identity = Identity.of(b, names, held.identity.exact | ~some)
            own = own.plus(self.affine(Numbers(b, np.where(some, held.bound, 0), identity), matrix))
            size = size + np.abs(b) @ np.abs(matrix)
        self.meet(size)
        rounding = (self.layer.heads + 1) * (self.u * size + self.tiny * (size > 0))
        return replace(own, bound=own.bound + rounding)

    def mapped(self, c: Numbers, inner: Numbers) -> Numbers:
        """The rows c plus the per-position map of `inner`."""
        u, tiny, name, parameters = self.u, self.tiny, self.layer.activation, self.parameters
        hidden = self.affine(inner, _array(parameters.w1), parameters.b1)
        size = np.abs(hidden.x)
        if name == "gelu":
            self.meet(size**3)
        off = 1.2 * (hidden.bound + 2 * u * size + 2 * tiny) + 8 * u * size + 8 * tiny
        x = _activated(name, hidden.x)
        identity = Identity.of(x, hidden.identity.names, hidden.identity.exact & (name == "relu"))
        added = self.affine(Numbers(x, off, identity), _array(parameters.w2), parameters.b2)
        y = c.plus(added)
        rounding = 2 * u * (np.abs(y.x) + np.abs(added.x)) + 2 * tiny * (added.x != 0)
        return replace(y, bound=y.bound + rounding)

    def finished(self, own: Int[np.ndarray, " made"], won: Int[np.ndarray, "heads made"]) -> Rows:
        """The layer's output on the rows `own` when `won` (-1 for none) win their heads."""
        y = self.attended(self.rows.vectors[own], won)
        if self.after:
            y = self.normalised(y, self.parameters.attention_norm)
        if self.layer.feed_forward:
            y = self.mapped(y, self.normalised(y, self.parameters.feed_forward_norm) if self.before else y)
            if self.after:
                y = self.normalised(y, self.parameters.feed_forward_norm)
        self.meet(y.x, y.bound)
        return Rows(self.rows.positions[own], y, self.largest)


def _activated(name: str, h: Float[np.ndarray, "rows hidden"]) -> Float[np.ndarray, "rows hidden"]:
    """The activation; each one's derivative is below 1.2, which the error bounds count on."""
    match name:
        case "relu":
            return np.maximum(h, 0)
        case "gelu":
            return 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        case "silu":
            return h / (1 + np.exp(-h))
        case "tanh":
            return np.tanh(h)
        case _:
            raise no_rule(_CHECK, "activation", name, ("relu", "gelu", "silu", "tanh"))
