"""What certified bounds know of a model: its parameters in float64, which symbol may stand where, and scores as balls.

Arrays over words have an axis `kinds`: the symbols that may stand at the position, by index into its row of
`Setting.kinds`. An entry (position m, kind tau) speaks of all words with that symbol at m. A symbol that stands at
fixed positions only takes an index that other symbols have elsewhere, so the axis is no longer than the largest choice
at one position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.errors import InputError, no_rule
from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.layers import readout_position
from jaxsens.models.parameters import LayerParameters, NormParameters, needed
from jaxsens.models.transformer import Transformer
from jaxsens.theory.certified.intervals import (
    FLOOR,
    MARGIN,
    Ball,
    exact,
    inverse_deviation,
    layer_normed,
    plus,
    scaled,
    times,
)
from jaxsens.theory.rules import inverse_temperatures, position_parts, rounded, score_terms, visible_keys

BOUND = "certified_bound"
"""Who refuses, in the messages of refusals."""


@dataclass(frozen=True)
class Setting:
    """A model at one length.

    Attributes:
        config: the model's.
        n: the length.
        kinds: the symbols' ids at every position.
        allowed: whether a kind may stand at its position.
        readout: the readout position, None for the mean.
        points: y^(0) of every position and kind.
        layers: parameters, NumPy float64.
        out: the linear map from y_r to the outputs that enter the norm.
    """

    config: TransformerConfig
    n: int
    kinds: Int[np.ndarray, "n kinds"]
    allowed: Bool[np.ndarray, "n kinds"]
    readout: int | None
    points: Float[Ball, "n kinds width"]
    layers: tuple[LayerParameters, ...]
    out: Float[np.ndarray, "width outputs"]

    @property
    def slots(self) -> int:
        """The length of the axis `kinds`."""
        return self.kinds.shape[1]

    def matrices(self, k: int, *names: str) -> tuple[Float[np.ndarray, "..."], ...]:
        """Parameters of layer k by name.

        Raises:
            TypeError: if the layer lacks one of them.
        """
        return tuple(np.asarray(needed(getattr(self.layers[k], name), name)) for name in names)


@dataclass(frozen=True)
class ProjectedKinds:
    """A layer's queries, keys and values of every position and kind."""

    queries: Float[Ball, "heads n kinds head_width"]
    keys: Float[Ball, "heads n kinds head_width"]
    values: Float[Ball, "heads n kinds head_width"]


def settle(
    model: Transformer,
    n: int,
    symbols: Int[np.ndarray, " symbols"],
    readout_symbols: Int[np.ndarray, " readout_symbols"],
    fixed: Mapping[int, int],
    outputs: Int[np.ndarray, " outputs"] | None,
) -> Setting:
    """The setting of a model at length n, with the symbol of each fixed position. O(n kinds width)."""
    config = model.config
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    readout = readout_position(config, n)
    there = [symbols] * n
    if readout is not None:
        there[readout] = readout_symbols
    for position, symbol in fixed.items():
        there[position] = np.array([symbol])
    kinds, allowed = _slots(symbols, there)
    parts = position_parts(BOUND, config, parameters, n)
    positions = sum(parts, np.zeros((n, config.width)))
    size = sum((abs(part) for part in parts), np.zeros((n, config.width)))
    embedding = parameters.embedding[kinds]
    points = Ball(positions[:, None] + embedding, MARGIN * (size[:, None] + abs(embedding)))
    out = np.eye(config.width) if parameters.head is None else parameters.head
    out = out if outputs is None else out[:, outputs]
    return Setting(config, n, kinds, allowed, readout, points, parameters.layers, np.asarray(out))


def _slots(
    symbols: Int[np.ndarray, " symbols"], there: list[Int[np.ndarray, " _"]]
) -> tuple[Int[np.ndarray, "n kinds"], Bool[np.ndarray, "n kinds"]]:
    """Every position's symbols by index, and which indices it uses; a symbol of words has the same index everywhere."""
    length = max(len(np.union1d(one, symbols)) if len(one) > 1 else len(symbols) for one in there)
    if any(len(one) == 1 and one[0] not in symbols for one in there):
        # Not the first symbol's index: classes of words count the first symbol.
        length = max(length, 2)
    kinds = np.full((len(there), length), symbols[0])
    kinds[:, : len(symbols)] = symbols
    allowed = np.zeros(kinds.shape, bool)
    for position, one in enumerate(there):
        allowed[position, : len(symbols)] = np.isin(symbols, one)
        others = np.setdiff1d(one, symbols)
        free = np.flatnonzero(~allowed[position])
        free = np.concatenate([free[free >= len(symbols)], free[(free < len(symbols)) & (free > 0)]])
        kinds[position, free[: len(others)]] = others
        allowed[position, free[: len(others)]] = True
    return kinds, allowed


def normed(
    setting: Setting, x: Float[Ball, "*rows width"], norm: NormParameters | None
) -> Float[Ball, "*rows width"]:
    """Layer normalisation of every vector in the ball."""
    if norm is None:
        raise TypeError("layer normalisation needs its parameters")
    epsilon = setting.config.layer_norm_epsilon
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        result = layer_normed(x, epsilon, np.asarray(norm.scale), np.asarray(norm.bias))
    known = all(np.isfinite(part).all() for part in x)
    if epsilon == 0 and known and not np.isfinite(result.mid).all():
        raise InputError(
            "certified_bound: layer_norm_epsilon = 0: the variance may be 0 for some word, as far as intervals tell; "
            "use a positive epsilon"
        )
    return result


def norm_lipschitz(
    setting: Setting, x: Float[Ball, "*rows width"], norm: NormParameters | None
) -> Float[np.ndarray, "*rows"]:
    """The largest ||LN(x) - LN(x')|| / ||x - x'|| in l2 within each row's ball: |scale| / sqrt(var + epsilon)."""
    if norm is None:
        raise TypeError("layer normalisation needs its parameters")
    inverse = inverse_deviation(x, setting.config.layer_norm_epsilon)
    return inverse.hi[..., 0] * np.max(abs(np.asarray(norm.scale)))


def project(setting: Setting, k: int, z: Float[Ball, "n kinds width"]) -> ProjectedKinds:
    """Queries and keys (turned, with a rotary embedding) and values of layer k."""
    layer, everywhere = setting.config.layer(k), np.arange(setting.n)
    queries, keys, values = (
        Ball(*(np.stack(part) for part in zip(*(times(z, one) for one in each), strict=True)))
        for each in setting.matrices(k, "query", "key", "value")
    )
    return ProjectedKinds(
        turned(setting, layer, queries, everywhere), turned(setting, layer, keys, everywhere), values
    )


def turned(
    setting: Setting,
    layer: LayerConfig,
    x: Float[Ball, "*heads rows any head_width"],
    positions: Int[np.ndarray, " rows"],
) -> Float[Ball, "*heads rows any head_width"]:
    """Queries or keys of rows at these positions after the rotary embedding, if there is one."""
    rotary, _ = score_terms(BOUND, layer)
    if rotary is None:
        return x
    angles = rotary.angles(setting.n, layer.head_width)[positions, None]
    cosine, sine = (rounded(f(angles), setting.config.dtype) for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    first = plus(scaled(even, cosine), scaled(odd, -sine))
    second = plus(scaled(even, sine), scaled(odd, cosine))
    pairs = (np.stack(pair, axis=-1) for pair in zip(first, second, strict=True))
    return Ball(*(pair.reshape(*pair.shape[:-2], layer.head_width) for pair in pairs))


def inverse_temperature(
    setting: Setting, k: int, positions: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, " rows"]:
    """1/tau of the rows at these positions, in layer k."""
    return inverse_temperatures(BOUND, setting.config.layer(k), setting.n, setting.config.dtype)[positions]


def visible(
    setting: Setting, k: int, queries: Int[np.ndarray, " rows"], keys: Int[np.ndarray, " keys"]
) -> Bool[np.ndarray, "rows keys"]:
    """Which keys each query sees in layer k, both by position."""
    start, stop = visible_keys(BOUND, setting.config.layer(k).mask, setting.n)
    return (start[queries][:, None] <= keys) & (keys < stop[queries][:, None])


def scores(
    setting: Setting,
    k: int,
    h: int,
    positions: Int[np.ndarray, " rows"],
    queries: Float[Ball, "rows head_width"],
    key_positions: Int[np.ndarray, " keys"],
    keys: Float[Ball, "keys kinds head_width"],
) -> Float[Ball, "rows kinds keys"]:
    """The scores of query rows with keys, divided by the temperature, in head h of layer k.

    For dot products keys are given relative to a mean key, and so are the scores, which softmax does not notice.
    """
    layer = setting.config.layer(k)
    match layer.scores:
        case "additive":
            (additive,) = setting.matrices(k, "additive")
            result = _additive_scores(queries, keys, additive[h])
        case "dot-product":
            result = _dot_products(queries, keys)
            result = scaled(result, 1 / np.sqrt(layer.head_width))
        case _:
            raise no_rule(BOUND, "score", layer.scores, ("additive", "dot-product"))
    return tempered(setting, k, h, positions, key_positions, result)


def _dot_products(
    queries: Float[Ball, "rows head_width"], keys: Float[Ball, "keys kinds head_width"]
) -> Float[Ball, "rows kinds keys"]:
    flat = Ball(*(np.swapaxes(part, 0, 1).reshape(-1, part.shape[-1]).T for part in keys))
    shape = (queries.shape[0], keys.shape[1], keys.shape[0])
    sizes = abs(queries.mid), abs(flat.mid) + flat.rad
    mid = queries.mid @ flat.mid
    rad = sizes[0] @ flat.rad + queries.rad @ sizes[1] + MARGIN * ((sizes[0] + queries.rad) @ sizes[1])
    return Ball(mid.reshape(shape), rad.reshape(shape))


def _additive_scores(
    queries: Float[Ball, "rows head_width"],
    keys: Float[Ball, "keys kinds head_width"],
    vector: Float[np.ndarray, " head_width"],
) -> Float[Ball, "rows kinds keys"]:
    swapped = Ball(*(np.swapaxes(part, 0, 1)[None] for part in keys))
    both = plus(queries[:, None, None], swapped)
    low, high = np.tanh(both.lo), np.tanh(both.hi)
    mid, rad = (low + high) / 2, (high - low) / 2 + 4 * MARGIN
    return Ball(mid @ vector, rad @ abs(vector) + MARGIN * (abs(mid) @ abs(vector)))


def tempered(
    setting: Setting,
    k: int,
    h: int,
    positions: Int[np.ndarray, " rows"],
    key_positions: Int[np.ndarray, " keys"],
    content: Float[Ball, "rows kinds keys"],
) -> Float[Ball, "rows kinds keys"]:
    """Scores of symbols, as the softmax sees them: with ALiBi's penalty, divided by the temperature."""
    layer = setting.config.layer(k)
    _, alibi = score_terms(BOUND, layer)
    if alibi is not None:
        slope = rounded(alibi.slopes(layer.heads), setting.config.dtype)[h]
        distance = abs(positions[:, None] - key_positions)
        content = plus(content, exact(-slope * distance[:, None, :]))
    return scaled(content, inverse_temperature(setting, k, positions)[:, None, None])


@dataclass(frozen=True)
class Weights:
    """Bounds on the unnormalised weights of rows (position, kind), each divided by exp(shift).

    Attributes:
        hi, lo: the bounds; 0 where a key is not visible, NaN where the symbol cannot stand there.
        shift: inf where scores overflowed, and nothing is known of the row's weights.
    """

    hi: Float[np.ndarray, "rows kinds n"]
    lo: Float[np.ndarray, "rows kinds n"]
    shift: Float[np.ndarray, " rows"]


def weigh(
    setting: Setting,
    k: int,
    positions: Int[np.ndarray, " rows"],
    kinds: Int[np.ndarray, " rows"],
    s: Float[Ball, "rows kinds n"],
) -> Weights:
    """exp of the scores with all keys, of rows at these positions that hold these kinds."""
    seen = visible(setting, k, positions, np.arange(setting.n))[:, None, :]
    possible = np.broadcast_to(setting.allowed.T, s.shape).copy()
    # A row's own key holds the row's own symbol.
    index = np.arange(len(positions))
    possible[index, :, positions] = False
    possible[index, kinds, positions] = True
    high, low = np.where(np.isnan(s.hi), np.inf, s.hi), s.lo
    shift = np.max(np.where(seen & possible, high, -np.inf), axis=(1, 2))
    shift = np.where(shift == -np.inf, 0.0, shift)
    known = np.isfinite(shift)[:, None, None]
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        hi = np.maximum(np.exp(np.minimum(high - shift[:, None, None], 0)) * (1 + MARGIN), FLOOR)
        lo = np.exp(np.minimum(low - shift[:, None, None], 0)) * (1 - MARGIN)
    hi, lo = np.where(known, hi, 1.0), np.where(known, lo, 0.0)
    hi, lo = (np.where(possible, np.where(seen, e, 0.0), np.nan) for e in (hi, lo))
    return Weights(hi, lo, shift)


def rows_and_kinds(
    setting: Setting, positions: Int[np.ndarray, " some"]
) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
    """Position and kind of every row (position, kind), position by position."""
    return np.repeat(positions, setting.slots), np.tile(np.arange(setting.slots), len(positions))
