"""What certified bounds know of a model: its parameters in float64, which symbol may stand where, and scores as balls.

Arrays over words have an axis `kinds`: the symbols that may stand at the position, by index into its row of
`Setting.kinds`. An entry (position m, kind tau) speaks of all words with that symbol at m. A symbol that stands at
fixed positions only takes an index that other symbols have elsewhere, so the axis is no longer than the largest choice
at one position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base.errors import InputError, no_rule
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.models.transformer.parameters import LayerParameters, NormParameters, needed
from jaxsens.theory import rules
from jaxsens.theory.certified.averages import Counts, Weights
from jaxsens.theory.certified.intervals import (
    FLOOR,
    MARGIN,
    Ball,
    exact,
    inverse_deviation,
    layer_normed,
    plus,
    scaled,
    stacked,
    times,
)
from jaxsens.theory.rules import added_scores, inverse_temperatures, position_parts, rounded, score_terms

BOUND = "certified_bound"
"""Who refuses, in the messages of refusals."""

Positions: TypeAlias = Int[np.ndarray, " rows"]
"""Of rows, 0-based."""

KeyPositions: TypeAlias = Int[np.ndarray, " keys"]
KeyBalls: TypeAlias = Float[Ball, "keys kinds head_width"]
ScoreBalls: TypeAlias = Float[Ball, "rows kinds keys"]
"""Scores of rows with every kind at every key."""

HeadBalls: TypeAlias = Float[Ball, "*heads rows any head_width"]


@dataclass(frozen=True)
class Setting:
    """A model at one length.

    Attributes:
        kinds: the symbols' ids at every position.
        allowed: whether a kind may stand at its position.
        readout: the readout position, None for the mean.
        points: y^(0) of every position and kind.
        layers: parameters, NumPy float64; w1, b1, w2 and b2 are there in every layer.
        out: the linear map from y_r to the outputs that enter the norm.
        counts: the class of words that is spoken of; None for all words.
        norm: of changes of the outputs.
    """

    config: TransformerConfig
    n: int
    kinds: Int[np.ndarray, "n kinds"]
    allowed: Bool[np.ndarray, "n kinds"]
    readout: int | None
    points: Float[Ball, "n kinds width"]
    layers: tuple[LayerParameters, ...]
    out: Float[np.ndarray, "width outputs"]
    counts: Counts | None = None
    norm: str = "l2"

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

    def normed(
        self, x: Float[Ball, "*rows width"], norm: NormParameters | None
    ) -> tuple[Float[Ball, "*rows width"], Float[np.ndarray, "*rows"]]:
        """Layer normalisation of every vector in the ball, and its Lipschitz constant in l2 within each row's ball.

        The constant is |scale| / sqrt(var + epsilon). Without parameters the vectors stay as they are.
        """
        if norm is None:
            return x, np.ones(x.shape[:-1])
        epsilon, scale = self.config.layer_norm_epsilon, np.asarray(norm.scale)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            result = layer_normed(x, epsilon, scale, np.asarray(norm.bias))
        known = all(np.isfinite(part).all() for part in x)
        if epsilon == 0 and known and not np.isfinite(result.mid).all():
            remedy = "the variance may be 0 for some word, as far as intervals tell; use a positive epsilon"
            raise InputError.of("layer_norm_epsilon", 0, remedy, subject=BOUND)
        return result, inverse_deviation(x, epsilon).hi[..., 0] * np.max(abs(scale))

    def turned(self, layer: LayerConfig, x: HeadBalls, positions: Positions) -> HeadBalls:
        """Queries or keys of rows at these positions after the rotary embedding, if there is one."""
        rotary = score_terms(layer).turns
        if rotary is None:
            return x
        angles = rotary.angles(self.n, layer.head_width)[positions, None]
        cosine, sine = (rounded(f(angles), self.config.dtype) for f in (np.cos, np.sin))
        even, odd = x[..., 0::2], x[..., 1::2]
        first = plus(scaled(even, cosine), scaled(odd, -sine))
        second = plus(scaled(even, sine), scaled(odd, cosine))
        pairs = (np.stack(pair, axis=-1) for pair in zip(first, second, strict=True))
        return Ball(*(pair.reshape(*pair.shape[:-2], layer.head_width) for pair in pairs))

    def inverse_temperature(self, k: int, positions: Positions) -> Float[np.ndarray, " rows"]:
        """1/tau of the rows at these positions, in layer k."""
        return inverse_temperatures(self.config.layer(k), self.n, self.config.dtype)[positions]

    def visible(self, k: int, queries: Positions, keys: KeyPositions) -> Bool[np.ndarray, "rows keys"]:
        """Which keys each query sees in layer k, both by position."""
        return rules.visible(self.config.layer(k).mask, self.n, queries, keys)

    def tempered(
        self, k: int, h: int, positions: Positions, key_positions: KeyPositions, content: ScoreBalls
    ) -> ScoreBalls:
        """Scores of symbols, as the softmax sees them: with what positions add, divided by the temperature."""
        layer = self.config.layer(k)
        if score_terms(layer).adds:
            dtype = self.config.dtype
            added = added_scores(layer, self.layers[k], h, positions, key_positions, dtype)
            content = plus(content, exact(added[:, None, :]))
        return scaled(content, self.inverse_temperature(k, positions)[:, None, None])

    def weigh(
        self, k: int, positions: Positions, kinds: Positions, s: Float[Ball, "rows kinds n"]
    ) -> Weights:
        """exp of the scores with all keys, of rows at these positions that hold these kinds."""
        seen = self.visible(k, positions, np.arange(self.n))[:, None, :]
        possible = np.broadcast_to(self.allowed.T, s.shape).copy()
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
        return Weights(hi, lo, shift, self.counts)


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
    readout = readout_row(config.readout, n)
    there = [symbols] * n
    if readout is not None:
        there[readout] = readout_symbols
    for position, symbol in fixed.items():
        there[position] = np.array([symbol])
    kinds, allowed = _slots(symbols, there)
    parts = position_parts(config, parameters, n)
    positions = sum(parts, np.zeros((n, config.width)))
    size = sum((abs(part) for part in parts), np.zeros((n, config.width)))
    embedding = parameters.embedding[kinds]
    points = Ball(positions[:, None] + embedding, MARGIN * (size[:, None] + abs(embedding)))
    out = np.eye(config.width) if parameters.head is None else parameters.head
    out = out if outputs is None else out[:, outputs]
    # A layer without a per-position map gets one of no hidden units.
    w, b = np.zeros((config.width, 0)), np.zeros(config.width)
    none = {"w1": w, "b1": w[0], "w2": w.T, "b2": b}
    layers = tuple(layer if layer.w1 is not None else replace(layer, **none) for layer in parameters.layers)
    return Setting(config, n, kinds, allowed, readout, points, layers, np.asarray(out))


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


def dot_products(queries: Float[Ball, "rows head_width"], keys: KeyBalls) -> ScoreBalls:
    """Of every query with every key."""
    flat = keys.map(lambda part: np.swapaxes(part, 0, 1).reshape(-1, part.shape[-1]).T)
    shape = (queries.shape[0], keys.shape[1], keys.shape[0])
    sizes = abs(queries.mid), abs(flat.mid) + flat.rad
    mid = queries.mid @ flat.mid
    rad = sizes[0] @ flat.rad + queries.rad @ sizes[1] + MARGIN * ((sizes[0] + queries.rad) @ sizes[1])
    return Ball(mid.reshape(shape), rad.reshape(shape))


@dataclass(frozen=True)
class ProjectedKinds:
    """Layer k's queries, keys and values of every position and kind."""

    setting: Setting
    k: int
    queries: Float[Ball, "heads n kinds head_width"]
    keys: Float[Ball, "heads n kinds head_width"]
    values: Float[Ball, "heads n kinds head_width"]

    def scores(self, h: int, positions: Int[np.ndarray, " some"], key_positions: KeyPositions) -> ScoreBalls:
        """The scores, as the softmax sees them, of all rows (position, kind) at some positions with keys, in head h.

        For dot products keys are relative to their mean, which makes scores small and which softmax does not notice.
        """
        setting, layer, keys = self.setting, self.setting.config.layer(self.k), self.keys[h]
        queries = self.queries[h][positions].map(lambda part: part.reshape(-1, part.shape[-1]))
        match layer.scores:
            case "additive":
                vector = setting.matrices(self.k, "additive")[0][h]
                others = keys[key_positions].map(lambda part: np.swapaxes(part, 0, 1)[None])
                both = plus(queries[:, None, None], others)
                low, high = np.tanh(both.lo), np.tanh(both.hi)
                mid, rad = (low + high) / 2, (high - low) / 2 + 4 * MARGIN
                result = Ball(mid @ vector, rad @ abs(vector) + MARGIN * (abs(mid) @ abs(vector)))
            case "dot-product":
                mean = keys.mid.mean(axis=(0, 1))
                keys = Ball(keys.mid - mean, keys.rad + MARGIN * (abs(keys.mid) + abs(mean)))
                result = scaled(dot_products(queries, keys[key_positions]), 1 / np.sqrt(layer.head_width))
            case _:
                raise no_rule(BOUND, "score", layer.scores, ("additive", "dot-product"))
        return setting.tempered(self.k, h, np.repeat(positions, setting.slots), key_positions, result)

    def weights(self, h: int, positions: Int[np.ndarray, " some"]) -> Weights:
        """The unnormalised weights of all rows (position, kind) at some positions, in head h."""
        slots, s = self.setting.slots, self.scores(h, positions, np.arange(self.setting.n))
        kinds = np.tile(np.arange(slots), len(positions))
        return self.setting.weigh(self.k, np.repeat(positions, slots), kinds, s)

    def weights_of_heads(self, positions: Int[np.ndarray, " some"]) -> Weights:
        """Those of all heads."""
        return Weights.of_heads([self.weights(h, positions) for h in range(len(self.values.mid))])


def project(setting: Setting, k: int, z: Float[Ball, "n kinds width"]) -> ProjectedKinds:
    """Queries and keys (turned, with a rotary embedding) and values of layer k."""
    layer, everywhere = setting.config.layer(k), np.arange(setting.n)
    matrices = setting.matrices(k, "query", "key", "value")
    queries, keys, values = (stacked(times(z, one) for one in each) for each in matrices)
    queries, keys = (setting.turned(layer, x, everywhere) for x in (queries, keys))
    return ProjectedKinds(setting, k, queries, keys, values)
