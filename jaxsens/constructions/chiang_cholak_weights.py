"""Configs and weights of Chiang and Cholak's transformers (ACL 2022), derived anew.

Three things differ from the paper in every variant. Positions count from 1, so the number k of ones is found at
position k + 1, and the parity of that position is the opposite of k's. The classification symbol stands last for both
languages; it is the end-of-sequence symbol, id 2. And heads have width 1, so that a score is c itself.

With layer normalisation the paper puts -x behind x, so that the mean is 0. Here every coordinate stands next to its
negative, and the mean is 0 in floating point too, in whatever order a machine adds. The paper's last map erases all but
the logit; here the bits' rows, which nothing reads, keep their symbols, for normalising a row of zeros would be 0/0.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.constructions.chiang_cholak_logits import Variant
from jaxsens.models.config import TransformerConfig
from jaxsens.models.parameters import TransformerParameters, build
from jaxsens.models.schedules import SCHEDULES
from jaxsens.models.weighting import Softmax
from jaxsens.precision import numerics

ZERO, ONE, CLS = range(3)

# Coordinates of PARITY after the symbols: i/N, (-1)^i, k/N, 1/N, the tent [i = k + 1]/N and the logit; one is unused.
FRACTION, ALTERNATING, ONES, UNIT, TENT, PARITY_LOGIT = range(3, 9)

# Coordinates of FIRST after the symbols: [i = 1], the flag "this is the first symbol, and a one", and the logit.
START, FLAG, FIRST_LOGIT = range(3, 6)


def config(variant: Variant, dtype: Literal["float32", "float64"]) -> TransformerConfig:
    """The shape of a variant: two layers; width 10 or 6, twice that with layer normalisation."""
    parity = variant.language == "parity"
    d = variant.pairs
    return TransformerConfig(
        alphabet_size=2,
        width=2 * d if variant.layer_norm else d,
        heads=2 if parity else 1,
        layers=2,
        feed_forward=(3 if parity else 1, 2 * (d - 3) if variant.layer_norm else 0),
        head_width=1,
        weighting=Softmax(SCHEDULES["log" if variant.log_length else "constant"]),
        positions=("fraction", "alternating") if parity else ("first",),
        layer_norm="post" if variant.layer_norm else "none",
        layer_norm_epsilon=variant.layer_norm_epsilon,
        dtype=dtype,
    )


def logit_coordinate(variant: Variant) -> int:
    """Where the logit stands in y^(L)."""
    coordinate = PARITY_LOGIT if variant.language == "parity" else FIRST_LOGIT
    return 2 * coordinate if variant.layer_norm else coordinate


def parameters(variant: Variant, shape: TransformerConfig) -> TransformerParameters:
    """The weights of a variant, NumPy float64, for `shape = config(variant, ...)`."""
    single = shape.replace(width=variant.pairs, layer_norm="none")
    weights = _blank(single)
    weights.embedding[[ZERO, ONE, CLS], [ZERO, ONE, CLS]] = 1
    if variant.language == "parity":
        _set_parity(weights, variant.sharpness)
    else:
        _set_first(weights, variant.sharpness)
    if not variant.layer_norm:
        return weights
    _erase(weights.layers[1], PARITY_LOGIT if variant.language == "parity" else FIRST_LOGIT)
    return _paired(weights, shape)


def _blank(shape: TransformerConfig) -> Any:
    """`TransformerParameters` of zeros (scales of ones) as float64 NumPy arrays, which can be written to."""

    def zeros(name: str, size: tuple[int, ...], variance: float) -> jax.Array:
        return jnp.zeros(size)

    with numerics("float64"):
        return jax.tree.map(np.array, build(shape, zeros))


def _set_parity(weights: Any, c: float) -> None:
    weights.components[[0, 1], [FRACTION, ALTERNATING]] = 1
    count, look = weights.layers
    # Attention without queries averages: over the ones k/N, over the classification symbol 1/N.
    count.value[[0, 1], [ONE, CLS], 0] = 1
    count.output[[0, 1], 0, [ONES, UNIT]] = 1
    # t = (k + 1 - i)/N, and relu(t - 1/N) - 2 relu(t) + relu(t + 1/N) is 1/N where t is 0, and 0 at other positions.
    count.w1[[ONES, FRACTION], :] = [[1], [-1]]
    count.w1[UNIT, :] = [0, 1, 2]
    count.w2[:, TENT] = [1, -2, 1]
    # One head looks at even positions, the other at odd ones; the logit is how much more of the tent the first sees.
    look.query[:, CLS, 0] = c
    look.key[:, ALTERNATING, 0] = [1, -1]
    look.value[:, TENT, 0] = 1
    look.output[:, 0, PARITY_LOGIT] = [1, -1]


def _set_first(weights: Any, c: float) -> None:
    weights.components[0, START] = 1
    flag, look = weights.layers
    # relu([i = 1] - [0] - [CLS]) needs no bias, so layer normalisation only scales it.
    flag.w1[[START, ZERO, CLS], 0] = [1, -1, -1]
    flag.w2[0, FLAG] = 1
    look.query[0, CLS, 0] = c
    look.key[0, START, 0] = 1
    look.value[0, [FLAG, START], 0] = [1, -0.5]
    look.output[0, 0, FIRST_LOGIT] = 1


def _erase(layer: Any, logit: int) -> None:
    """relu(-x) - relu(x) = -x on all that the classification symbol's row has but the logit: what is left is the logit.

    The bits' own rows keep their symbols: their logit is 0, and without an epsilon a row of zeros has no normal form.
    """
    others = np.delete(np.eye(len(layer.w1)), [ZERO, ONE, logit], axis=0)
    layer.w1[...] = np.concatenate([others, -others]).T
    layer.w2[...] = np.concatenate([-others, others])


def _paired(weights: Any, shape: TransformerConfig) -> TransformerParameters:
    """The same network on rows (x_0, -x_0, x_1, -x_1, ...): it reads the first of each pair and writes both."""
    blank = _blank(shape)

    def written(matrix: np.ndarray) -> np.ndarray:
        return np.repeat(matrix, 2, axis=-1) * np.tile([1.0, -1.0], matrix.shape[-1])

    def read(matrix: np.ndarray) -> np.ndarray:
        return np.repeat(matrix, 2, axis=-2) * np.tile([1.0, 0.0], matrix.shape[-2])[:, None]

    layers = [
        dataclasses.replace(
            empty,
            **{name: read(getattr(layer, name)) for name in ("query", "key", "value", "w1")},
            **{name: written(getattr(layer, name)) for name in ("output", "w2")},
        )
        for empty, layer in zip(blank.layers, weights.layers, strict=True)
    ]
    return dataclasses.replace(
        blank,
        embedding=written(weights.embedding),
        components=written(weights.components),
        layers=tuple(layers),
    )
