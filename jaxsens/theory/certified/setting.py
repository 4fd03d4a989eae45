"""What certified bounds know of a model: its parameters in float64, which symbol may stand where, and scores as balls.

Arrays over words have an axis `kinds`: the symbols that may occur at the position, by index into its row of
`Setting.kinds`. An entry (position m, kind tau) speaks of all words with that symbol at m. A symbol that stands at
fixed positions alone takes an index that others have elsewhere: the axis is no longer than a position has choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.errors import InputError
from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.layers import readout_position
from jaxsens.models.parameters import LayerParameters, NormParameters, needed
from jaxsens.models.positions import Alibi, CoordinateTerm, Learned, Rotary, Sinusoidal
from jaxsens.models.transformer import Transformer
from jaxsens.models.weighting import Softmax
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
    points: Ball
    layers: tuple[LayerParameters, ...]
    out: Float[np.ndarray, "width outputs"]

    @property
    def slots(self) -> int:
        """The length of the axis `kinds`."""
        return self.kinds.shape[1]


@dataclass(frozen=True)
class Projections:
    """A layer's queries, keys and values, balls of shape (heads, n, kinds, head_width)."""

    queries: Ball
    keys: Ball
    values: Ball


def settle(
    model: Transformer,
    n: int,
    symbols: np.ndarray,
    readout_symbols: np.ndarray,
    fixed: Mapping[int, int],
    outputs: np.ndarray | None,
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
    positions, size = np.zeros((n, config.width)), np.zeros((n, config.width))
    for part in _position_parts(config, parameters, n):
        positions, size = positions + part, size + abs(part)
    embedding = parameters.embedding[kinds]
    mid = positions[:, None] + embedding
    points = Ball(mid, MARGIN * (size[:, None] + abs(embedding)))
    out = np.eye(config.width) if parameters.head is None else parameters.head
    out = out if outputs is None else out[:, outputs]
    return Setting(config, n, kinds, allowed, readout, points, parameters.layers, np.asarray(out))


def _slots(symbols: np.ndarray, there: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Every position's symbols by index, and which indices it uses; a symbol of words has its own index everywhere."""
    length = max(len(np.union1d(one, symbols)) if len(one) > 1 else len(symbols) for one in there)
    if any(len(one) == 1 and one[0] not in symbols for one in there):
        # Not the first one's index: classes of words count the first symbol.
        length = max(length, 2)
    kinds = np.full((len(there), length), symbols[0])
    kinds[:, : len(symbols)] = symbols
    allowed = np.zeros(kinds.shape, bool)
    for position, one in enumerate(there):
        known = np.isin(symbols, one)
        allowed[position, : len(symbols)] = known
        others = np.setdiff1d(one, symbols)
        free = np.flatnonzero(~allowed[position])
        free = np.concatenate([free[free >= len(symbols)], free[(free < len(symbols)) & (free > 0)]])
        kinds[position, free[: len(others)]] = others
        allowed[position, free[: len(others)]] = True
    return kinds, allowed


def _position_parts(config: TransformerConfig, parameters: Any, n: int) -> list[np.ndarray]:
    # As the forward pass does: values made in float64, rounded once to the model's dtype.
    parts, row = [], 0
    for term in config.position_terms:
        if isinstance(term, Sinusoidal):
            parts.append(_rounded(term.values(n, config.width), config))
        elif isinstance(term, Learned):
            parts.append(needed(parameters.learned, "learned")[:n])
        elif isinstance(term, CoordinateTerm):
            vector = needed(parameters.components, "components")[row]
            parts.append(_rounded(term.values(n), config)[:, None] * vector)
            row += 1
    return parts


def _rounded(values: np.ndarray, config: TransformerConfig) -> np.ndarray:
    return values.astype(config.dtype).astype(np.float64)


def normed(setting: Setting, x: Ball, parameters: NormParameters | None) -> Ball:
    """Layer normalisation of every vector in the ball."""
    norm: Any = needed(cast("Any", parameters), "norm")
    epsilon = setting.config.layer_norm_epsilon
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        result = layer_normed(x, epsilon, norm.scale, norm.bias)
    known = all(np.isfinite(part).all() for part in x)
    if epsilon == 0 and known and not np.isfinite(result.mid).all():
        raise InputError(
            "certified_bound: layer_norm_epsilon = 0: a word may have variance 0, as far as intervals tell; "
            "use a positive epsilon"
        )
    return result


def norm_lipschitz(setting: Setting, x: Ball, parameters: NormParameters | None) -> np.ndarray:
    """The largest ||LN(x) - LN(x')|| / ||x - x'|| in l2 within each row's ball: |scale| / sqrt(var + epsilon)."""
    norm: Any = needed(cast("Any", parameters), "norm")
    return inverse_deviation(x, setting.config.layer_norm_epsilon).hi[..., 0] * np.max(abs(norm.scale))


def project(setting: Setting, k: int, z: Ball) -> Projections:
    """Queries and keys (turned, where embeddings are rotary) and values of layer k."""
    layer, parameters = setting.config.layer(k), setting.layers[k]

    def of(matrices: Any) -> Ball:
        parts = [times(z, np.asarray(matrix)) for matrix in matrices]
        return Ball(np.stack([part.mid for part in parts]), np.stack([part.rad for part in parts]))

    return Projections(
        _turned(setting, layer, of(parameters.query)),
        _turned(setting, layer, of(parameters.key)),
        of(parameters.value),
    )


def _turned(setting: Setting, layer: LayerConfig, x: Ball) -> Ball:
    for term in layer.position_scores:
        if isinstance(term, Rotary):
            angles = term.angles(setting.n, layer.head_width)[:, None]
            cosine, sine = (_rounded(f(angles), setting.config) for f in (np.cos, np.sin))
            even, odd = x[..., 0::2], x[..., 1::2]
            first = plus(scaled(even, cosine), scaled(odd, -sine))
            second = plus(scaled(even, sine), scaled(odd, cosine))
            x = Ball(
                *(np.stack(pair, axis=-1).reshape(x.mid.shape) for pair in zip(first, second, strict=True))
            )
    return x


def inverse_temperature(setting: Setting, k: int, positions: np.ndarray) -> np.ndarray:
    """1/tau of the rows at these positions, in layer k."""
    weighting = setting.config.layer(k).weighting
    if not isinstance(weighting, Softmax):
        raise TypeError("only softmax has a temperature")
    lengths = positions + 1 if weighting.by == "query" else np.full(positions.shape, setting.n)
    return _rounded(weighting.inverse_temperature(lengths), setting.config)


def visible(mask: str, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which keys a query sees, both as positions that broadcast."""
    compare = {"none": None, "future": np.less_equal, "past": np.greater_equal}
    compare |= {"strict-future": np.less, "strict-past": np.greater}
    function = compare[mask]
    return (
        np.ones(np.broadcast_shapes(queries.shape, keys.shape), bool)
        if function is None
        else function(keys, queries)
    )


def scores(
    setting: Setting,
    k: int,
    h: int,
    positions: np.ndarray,
    queries: Ball,
    key_positions: np.ndarray,
    keys: Ball,
) -> Ball:
    """The scores, divided by the temperature, of query rows (rows, head_width) with keys (keys, kinds, head_width).

    For dot products they are relative to the row's score with a mean key, which softmax does not notice. Shape
    (rows, kinds, keys).
    """
    layer, parameters = setting.config.layer(k), setting.layers[k]
    if layer.scores == "additive":
        additive = np.asarray(needed(parameters.additive, "additive"))[h]
        both = plus(
            queries[:, None, None], Ball(np.swapaxes(keys.mid, 0, 1), np.swapaxes(keys.rad, 0, 1))[None]
        )
        low, high = np.tanh(both.lo), np.tanh(both.hi)
        mid = (low + high) / 2
        rad = (high - low) / 2 + 4 * MARGIN
        result = Ball(mid @ additive, rad @ abs(additive) + MARGIN * (abs(mid) @ abs(additive)))
    else:
        flat = Ball(*(np.swapaxes(part, 0, 1).reshape(-1, part.shape[-1]).T for part in keys))
        shape = (len(positions), keys.mid.shape[1], keys.mid.shape[0])
        sizes = abs(queries.mid), abs(flat.mid) + flat.rad
        mid = queries.mid @ flat.mid
        rad = sizes[0] @ flat.rad + queries.rad @ sizes[1] + MARGIN * ((sizes[0] + queries.rad) @ sizes[1])
        root = np.sqrt(layer.head_width)
        result = scaled(Ball(mid.reshape(shape), rad.reshape(shape)), 1 / root)
    for term in layer.position_scores:
        if isinstance(term, Alibi):
            slope = _rounded(term.slopes(layer.heads), setting.config)[h]
            distance = abs(positions[:, None] - key_positions)
            result = plus(result, exact(-slope * distance[:, None, :]))
    return scaled(result, inverse_temperature(setting, k, positions)[:, None, None])


@dataclass(frozen=True)
class Weights:
    """Unnormalised weights of rows (position, kind), each divided by exp(shift).

    Attributes:
        hi, lo: bounds, (rows, kinds, n): 0 where not visible, NaN where the symbol cannot stand there.
        shift: (rows,); inf where scores overflowed, and nothing is known of the row's weights.
    """

    hi: np.ndarray
    lo: np.ndarray
    shift: np.ndarray


def weigh(setting: Setting, k: int, positions: np.ndarray, s: Ball) -> Weights:
    """exp of the scores of rows (positions x kinds, position by position) with all keys."""
    everywhere = np.arange(setting.n)
    rows = np.repeat(positions, setting.slots)
    kind = np.tile(np.arange(setting.slots), len(positions))
    seen = visible(setting.config.layer(k).mask, rows[:, None], everywhere[None])[:, None, :]
    possible = np.broadcast_to(setting.allowed.T, s.mid.shape).copy()
    # A row's own key holds the row's own symbol.
    index = np.arange(len(rows))
    possible[index, :, rows] = False
    possible[index, kind, rows] = True
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
