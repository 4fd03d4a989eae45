"""The checker's own arithmetic: a layer on rows outside any word, in plain NumPy float64, with bounds on rounding.

Each row comes with a bound on how far its computed value may be from the exact one in the model's program, to first
order in the model's unit roundoff u: sums of m products are off by at most m u sum |a_i b_i|, plus what their operands
bring in. Numbers below the dtype's smallest normal one may be taken for 0, which the bounds count too. Sums are added
up in one order for all rows, so that equal rows give equal results.

Exact ties of a hard head are judged by `Identity`. Two sums that agree in the checker's float64 may differ in the
model's dtype or order of additions. Numbers are certain to be the same in every program if they are made of the same
numbers in the same way, or if rounding cannot touch them: multiples of a power of two so few that every partial sum is
exact even in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models.config import LayerConfig
from jaxsens.models.positions import AddedTerm, Alibi, CoordinateTerm, Learned, Rotary, ScoreTerm
from jaxsens.models.transformer import Transformer

_GRID = 2.0**6
"""Products of two multiples of 1/64 are multiples of 1/4096. Sums of these up to 2^12 fit float32's 24 bits."""

_MOST = 2.0**11
"""The largest sum of magnitudes that counts as exact; half of 2^12, to spare."""

_CHECK = "check"
"""Who refuses, in the messages of refusals."""

Table = Float[np.ndarray, "rows columns"]
PerHead = Float[np.ndarray, "heads rows width"]


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
        cls,
        x: Table,
        names: Int[np.ndarray, "rows columns"],
        exact: Bool[np.ndarray, "rows columns"],
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
        self,
        x: Table,
        matrix: Float[np.ndarray, "columns made"],
        made: Float[np.ndarray, "rows made"],
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
class Rows:
    """Vectors at positions, with bounds on their errors, and the largest number met on the way."""

    positions: Int[np.ndarray, " rows"]
    x: Float[np.ndarray, "rows d"]
    bound: Float[np.ndarray, "rows d"]
    identity: Identity
    largest: float


def _array(parameter: Any) -> np.ndarray:
    return np.asarray(parameter, np.float64)


def _roundoff(model: Transformer) -> float:
    return 2.0**-24 if model.config.dtype == "float32" else 2.0**-53


def _tiny(model: Transformer) -> float:
    """The smallest normal number: programs may take smaller ones for 0."""
    return float(np.finfo(model.config.dtype).tiny)


def _largest(*arrays: np.ndarray) -> float:
    """The largest size in the arrays; infinite if some number is not finite."""
    found = [float(np.abs(each).max(initial=0)) for each in arrays]
    return max(found) if np.isfinite(found).all() else np.inf


def _times(x: Table, matrix: Float[np.ndarray, "columns made"]) -> Float[np.ndarray, "rows made"]:
    """x @ matrix, every row in the same order of additions."""
    total = np.zeros((len(x), matrix.shape[1]))
    for c in range(matrix.shape[0]):
        total += x[:, c, None] * matrix[c]
    return total


def _times_bound(
    x: Table,
    bound: Table,
    matrix: Float[np.ndarray, "columns made"],
    u: float,
    tiny: float,
) -> Float[np.ndarray, "rows made"]:
    """The bound of x @ matrix: rounding, and each product, sum or weight that may be taken for 0."""
    lost = tiny * (2 + np.abs(x)) * ((x != 0) | (bound > 0)) @ (matrix != 0)
    return (bound + (matrix.shape[0] + 1) * u * np.abs(x)) @ np.abs(matrix) + lost


def embedded_rows(
    model: Transformer, n: int, positions: Int[np.ndarray, " rows"], symbols: Int[np.ndarray, " rows"]
) -> Rows:
    """Symbols at positions, before the first layer."""
    config, parameters = model.config, model.parameters
    x = _array(parameters.embedding)[symbols]
    size, identity = np.abs(x), Identity.given(x)
    coordinate = 0
    for term in config.position_terms:
        if isinstance(term, ScoreTerm):
            continue  # it enters the scores instead, see `_score_terms`
        if isinstance(term, AddedTerm):
            added = term.values(n, config.width)
            alike = Identity.given(added)
        elif isinstance(term, Learned):
            added = _array(parameters.learned)[:n]
            alike = Identity.given(added)
        elif isinstance(term, CoordinateTerm):
            values, vector = term.values(n)[:, None], _array(parameters.components)[coordinate, None]
            added = values * vector
            alike = Identity.given(values).times(values, vector, added)
            coordinate += 1
        else:
            raise no_rule(_CHECK, "position term", term)
        identity = identity.plus(x, alike[positions], added[positions])
        x = x + added[positions]
        size = size + np.abs(added[positions])
    each = _roundoff(model) * size + _tiny(model) * (size > 0)
    return Rows(positions, x, (len(config.position_terms) + 3) * each, identity, _largest(size))


def _score_terms(layer: LayerConfig) -> tuple[Rotary | None, Alibi | None]:
    """The position embeddings that enter the scores."""
    rotary, alibi = None, None
    for term in layer.position_scores:
        match term:
            case Rotary():
                rotary = term
            case Alibi():
                alibi = term
            case _:
                raise no_rule(_CHECK, "position term", term)
    return rotary, alibi


def visible_keys(mask: str, n: int, row: int) -> range:
    """The positions that the query at a position sees."""
    seen = {
        "none": range(n),
        "future": range(row + 1),
        "past": range(row, n),
        "strict-future": range(row),
        "strict-past": range(row + 1, n),
    }
    if mask not in seen:
        raise no_rule(_CHECK, "mask", mask, seen)
    return seen[mask]


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values of rows in one layer, and what is to be known of their scores.

    Attributes:
        layer, n: the layer's config, the length.
        additive: the parameter vectors of additive scores; None for dot products.
        positions: the rows' positions.
        margin: the error of a query's scores, for the worst key.
        used: of each query, the coordinates that may differ from 0.
        value_identity, key_identity: of each head's values and keys.
        largest: the largest number met, in the worst order of additions.
    """

    layer: LayerConfig
    n: int
    additive: Float[np.ndarray, "heads width"] | None
    positions: Int[np.ndarray, " rows"]
    queries: PerHead
    keys: PerHead
    values: PerHead
    values_bound: PerHead
    margin: Float[np.ndarray, "heads rows"]
    used: Bool[np.ndarray, "heads rows width"]
    key_identity: list[Identity]
    value_identity: list[Identity]
    largest: float

    def scores(self, queries: Int[np.ndarray, " q"]) -> Float[np.ndarray, "heads q rows"]:
        """The scores of some rows' queries with all keys."""
        q = self.queries[:, queries]
        if self.additive is not None:
            found = np.zeros((q.shape[0], q.shape[1], self.keys.shape[1]))
            for c in range(q.shape[2]):
                hidden = np.tanh(q[:, :, None, c] + self.keys[:, None, :, c])
                found += hidden * self.additive[:, None, None, c]
        else:
            found = q @ self.keys.transpose(0, 2, 1) / np.sqrt(self.layer.head_width)
        _, alibi = _score_terms(self.layer)
        if alibi is not None:
            distance = np.abs(self.positions[queries][:, None] - self.positions[None, :])
            found -= alibi.slopes(self.layer.heads)[:, None, None] * distance
        return found

    def seen(self, row: int) -> Bool[np.ndarray, " rows"]:
        """Which rows the query at position `row` sees."""
        keys = visible_keys(self.layer.mask, self.n, row)
        return (self.positions >= keys.start) & (self.positions < keys.stop)

    def same_key(
        self, head: int, query: int, entry: int, others: Int[np.ndarray, " some"]
    ) -> Bool[np.ndarray, " some"]:
        """Whether the keys of `others` equal that of `entry` in every program, wherever the query is not zero."""
        if _score_terms(self.layer)[1] is not None:  # a penalty tells equal keys apart by their distance
            return np.zeros(len(others), bool)
        return self.key_identity[head].same(entry, others, self.used[head, query])


def attention_rows(model: Transformer, n: int, k: int, rows: Rows) -> Attention:
    """Queries, keys and values of rows in layer k."""
    layer, parameters = model.config.layer(k), model.parameters.layers[k]
    u, tiny = _roundoff(model), _tiny(model)
    z, bound, identity, sizes = rows.x, rows.bound, rows.identity, [np.array(rows.largest)]
    if _norm_places(layer)[0]:
        sizes.append((np.abs(z) * 2) ** 2 * z.shape[1])
        z, bound = _normalised(layer, parameters.attention_norm, z, bound, u, tiny)
        identity = identity.mixed(z)
    made, bounds = [], []
    for matrices in (parameters.query, parameters.key, parameters.value):
        each = list(_array(matrices))
        made.append(np.stack([_times(z, matrix) for matrix in each]))
        bounds.append(np.stack([_times_bound(z, bound, matrix, u, tiny) for matrix in each]))
        sizes += [np.abs(z) @ np.abs(matrix) for matrix in each]
    of_keys, of_values = (
        [identity.times(z, matrix, y) for matrix, y in zip(_array(matrices), made[which], strict=True)]
        for which, matrices in ((1, parameters.key), (2, parameters.value))
    )
    rotary, _ = _score_terms(layer)
    if rotary is not None:
        angles = rotary.angles(n, layer.head_width)[rows.positions]
        for which in (0, 1):
            made[which], bounds[which] = _turned(made[which], bounds[which], angles, u, tiny)
        of_keys = [each.turned(rows.positions) for each in of_keys]
    queries, keys, values = made
    additive = _array(parameters.additive) if layer.scores == "additive" else None
    margin, size = _margins(model, n, layer, additive, (queries, keys), (bounds[0], bounds[1]))
    return Attention(
        layer=layer,
        n=n,
        additive=additive,
        positions=rows.positions,
        queries=queries,
        keys=keys,
        values=values,
        values_bound=bounds[2],
        margin=margin,
        used=(queries != 0) | (bounds[0] > 0) if additive is None else np.ones(queries.shape, bool),
        key_identity=of_keys,
        value_identity=of_values,
        largest=_largest(*sizes, size, margin),
    )


def _margins(
    model: Transformer,
    n: int,
    layer: LayerConfig,
    additive: Float[np.ndarray, "heads width"] | None,
    made: tuple[PerHead, PerHead],
    bounds: tuple[PerHead, PerHead],
) -> tuple[Float[np.ndarray, "heads rows"], Float[np.ndarray, "*heads_rows"]]:
    """The error of each query's scores for the worst key, and the largest numbers met in the scores."""
    u, tiny, width = _roundoff(model), _tiny(model), layer.head_width
    queries, size = np.abs(made[0]), np.abs(made[1]).max(axis=1)[:, None]
    wrong = bounds[1].max(axis=1)[:, None]
    match layer.scores:
        case "additive":
            weight = np.abs(_array(additive))
            each = bounds[0] + wrong + 2 * u * (queries + size) + (width + 8) * u + 4 * tiny
            largest = weight.sum(axis=-1)
            margin = (each * weight[:, None, :]).sum(axis=-1) + 4 * width * tiny
        case "dot-product":
            each = bounds[0] * size + queries * (wrong + (width + 3) * u * size)
            largest = (queries * size).sum(axis=-1)
            margin = (each.sum(axis=-1) + 4 * width * tiny) / np.sqrt(width) + tiny
        case _:
            raise no_rule(_CHECK, "score", layer.scores, ("additive", "dot-product"))
    _, alibi = _score_terms(layer)
    if alibi is not None:
        margin = margin + 4 * u * alibi.slopes(layer.heads)[:, None] * n
    return margin, largest


def _turned(
    x: np.ndarray, bound: np.ndarray, angles: np.ndarray, u: float, tiny: float
) -> tuple[np.ndarray, np.ndarray]:
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    turned[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    own = bound + 4 * u * np.abs(x) + 4 * tiny * (1 + np.abs(x)) * (bound > 0)
    return turned, np.repeat(own[..., 0::2] + own[..., 1::2], 2, axis=-1)


@dataclass
class _Growing:
    """Rows on their way through a layer's maps: values, error bounds, identities and the sizes met."""

    model: Transformer
    layer: LayerConfig
    x: Float[np.ndarray, "rows d"]
    bound: Float[np.ndarray, "rows d"]
    identity: Identity
    sizes: list[np.ndarray]

    def attend(self, found: Attention, won: Int[np.ndarray, "heads rows"], output: Any) -> None:
        """Adds each head's winning value (-1 for none) times its output matrix."""
        u, tiny = _roundoff(self.model), _tiny(self.model)
        size = np.abs(self.x)
        for head, matrix in enumerate(_array(output)):
            some = (won[head] >= 0)[:, None]
            b = np.where(some, found.values[head, won[head]], 0)
            b_bound = np.where(some, found.values_bound[head, won[head]], 0)
            held, added = found.value_identity[head][won[head]], _times(b, matrix)
            zero = np.where(some, held.names, -1 - len(found.values[head]))
            of_head = Identity.of(b, zero, held.exact | ~some)
            self.identity = self.identity.plus(self.x, of_head.times(b, matrix, added), added)
            self.x = self.x + added
            self.bound = self.bound + _times_bound(b, b_bound, matrix, u, tiny)
            size = size + np.abs(b) @ np.abs(matrix)
        self.bound = self.bound + (self.layer.heads + 1) * (u * size + tiny * (size > 0))
        self.sizes.append(size)

    def normalised(self, norm: Any) -> tuple[np.ndarray, np.ndarray, Identity]:
        """The rows after a layer normalisation."""
        self.sizes.append((np.abs(self.x) * 2) ** 2 * self.x.shape[1])
        z, bound = _normalised(self.layer, norm, self.x, self.bound, _roundoff(self.model), _tiny(self.model))
        return z, bound, self.identity.mixed(z)

    def normalise(self, norm: Any) -> None:
        """Replaces the rows by their normalisation."""
        self.x, self.bound, self.identity = self.normalised(norm)

    def map(self, parameters: Any, before: bool) -> None:
        """Adds the per-position map of the rows, or of their normalisation (`before`)."""
        u, tiny, name = _roundoff(self.model), _tiny(self.model), self.layer.activation
        inner, of_inner, inside = self.x, self.bound, self.identity
        if before:
            inner, of_inner, inside = self.normalised(parameters.feed_forward_norm)
        w1, w2 = _array(parameters.w1), _array(parameters.w2)
        product = _times(inner, w1)
        b1, b2 = (np.tile(_array(b), (len(inner), 1)) for b in (parameters.b1, parameters.b2))
        hidden = product + b1
        inside = inside.times(inner, w1, product).plus(product, Identity.given(b1), b1)
        of_hidden = _times_bound(inner, of_inner, w1, u, tiny) + 2 * u * np.abs(hidden) + 2 * tiny
        active = _activated(name, hidden)
        of_hidden = 1.2 * of_hidden + 8 * u * np.abs(hidden) + 8 * tiny
        self.sizes += [np.abs(inner) @ np.abs(w1) + np.abs(b1), np.abs(active) @ np.abs(w2) + np.abs(b2)]
        if name == "gelu":
            self.sizes.append(np.abs(hidden) ** 3)
        inside = Identity.of(active, inside.names, inside.exact & (name == "relu"))
        product = _times(active, w2)
        added = product + b2
        inside = inside.times(active, w2, product).plus(product, Identity.given(b2), b2)
        bound = self.bound + _times_bound(active, of_hidden, w2, u, tiny)
        self.bound = bound + 2 * u * (np.abs(self.x + added) + np.abs(added)) + 2 * tiny * (added != 0)
        self.identity = self.identity.plus(self.x, inside, added)
        self.x = self.x + added


def _norm_places(layer: LayerConfig) -> tuple[bool, bool]:
    """Whether rows are normalised before each map, and after each skip connection."""
    places = {"none": (False, False), "pre": (True, False), "post": (False, True)}
    if layer.layer_norm not in places:
        raise no_rule(_CHECK, "layer normalisation", layer.layer_norm, places)
    return places[layer.layer_norm]


def finished_rows(
    model: Transformer,
    k: int,
    rows: Rows,
    found: Attention,
    own: Int[np.ndarray, " made"],
    won: Int[np.ndarray, "heads made"],
) -> Rows:
    """Layer k's output on the rows `own` when `won` (-1 for none) win their heads."""
    layer, parameters = model.config.layer(k), model.parameters.layers[k]
    before, after = _norm_places(layer)
    largest = np.array(found.largest)
    made = _Growing(model, layer, rows.x[own], rows.bound[own], rows.identity[own], [largest])
    made.attend(found, won, parameters.output)
    if after:
        made.normalise(parameters.attention_norm)
    if layer.feed_forward:
        made.map(parameters, before)
        if after:
            made.normalise(parameters.feed_forward_norm)
    return Rows(
        rows.positions[own], made.x, made.bound, made.identity, _largest(*made.sizes, made.x, made.bound)
    )


def _normalised(
    layer: LayerConfig, parameters: Any, x: np.ndarray, bound: np.ndarray, u: float, tiny: float
) -> tuple[np.ndarray, np.ndarray]:
    d = x.shape[1]
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + layer.layer_norm_epsilon)
    off = bound + (bound + (d + 1) * u * np.abs(x)).mean(axis=1, keepdims=True) + u * np.abs(centred)
    off = off + 4 * tiny
    spread = np.sqrt((off**2).mean(axis=1, keepdims=True)) + (d + 6) * u * deviation + 4 * tiny / deviation
    z = centred / deviation
    of_z = (off + np.abs(z) * spread) / deviation + 3 * u * np.abs(z)
    scale, bias = _array(parameters.scale), _array(parameters.bias)
    wrong = of_z * np.abs(scale) + 2 * u * (np.abs(z * scale) + np.abs(bias)) + tiny * (4 + np.abs(z))
    return z * scale + bias, wrong


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
