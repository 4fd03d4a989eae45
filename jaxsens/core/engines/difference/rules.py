"""Difference rules: f(x + dx) - f(x) for every map of a layer, without subtracting two nearly equal numbers; the
running bound of the rounding in a change; and the change of a row of softmax weights for changes of its scores from
1e-30 to 1e30.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsens.core.base.errors import rule_for
from jaxsens.core.base.programs import LARGEST_SCORE, LARGEST_TIED
from jaxsens.core.engines.one_key.one_moved_key import sigmoid_change
from jaxsens.core.measures.formulas import l2
from jaxsens.core.models.parts.choices import ACTIVATIONS
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.parameters import NormParameters, needed

ROUNDINGS = 2.0
"""A result is taken to be off by this many roundings of what was added: two to four times what is usual."""

TERMS = 32.0
"""A sum of this many terms squared is taken to be off by `ROUNDINGS` more: errors of random signs grow like a root."""

Vectors: TypeAlias = Float[Array, "*rows width"]
Sizes: TypeAlias = Float[Array, "*rows"]
"""A number of each row: its size, or an error."""


def unit(dtype: jnp.dtype, terms: int = 1) -> float:
    """Returns the error of a sum of so many `terms`, relative to the sum of their sizes."""
    return float(ROUNDINGS * jnp.finfo(dtype).eps * (1 + terms**0.5 / TERMS))


def size(rows: Vectors) -> Sizes:
    """Returns the l2 norm of each row."""
    return l2(rows)


def gain(matrix: Float[Array, "*heads width out"]) -> Float[Array, "*heads"]:
    """Returns the root mean square by which a matrix stretches rows of random directions: |W|_F / sqrt(width)."""
    flat = matrix.reshape(*matrix.shape[:-2], -1)
    return l2(flat) / np.sqrt(matrix.shape[-2]).astype(matrix.dtype)


def product_error(
    sizes: Sizes, errors: Sizes, matrix: Float[Array, "*heads width out"]
) -> Float[Array, "*heads_rows"]:
    """Returns the error of rows @ matrix, from the sizes and errors of the rows; with heads in front if it has them.

    The products' own rounding is that of rows which are off by a rounding.
    """
    through, moved = gain(matrix), errors + unit(matrix.dtype) * sizes
    return through * moved if matrix.ndim == 2 else through[:, None] * moved


def layer_norm_error(
    layer: LayerConfig,
    parameters: NormParameters | None,
    x: Vectors,
    dx: Vectors,
    errors: Sizes,
    change: Vectors,
) -> Sizes:
    """Returns the error of `layer_norm_change`, whose result is `change`, from that of dx.

    Its slope at x + dx is at most 1 / sqrt(v'). The rounding of x moves the change by a part eps |x| / sqrt(v), where
    |x| is the root mean square.
    """
    scale = jnp.max(jnp.abs(needed(parameters, "norm").scale))

    def deviation(rows: Vectors) -> Sizes:
        return jnp.sqrt(jnp.var(rows, axis=-1) + layer.layer_norm_epsilon)

    old, new = deviation(x), deviation(x + dx)
    per_entry = x.shape[-1] ** -0.5
    own = unit(x.dtype) * (size(change) * (1 + per_entry * size(x) / old) + scale * size(dx) / new)
    return scale * errors / new + own


def feed_forward_error(
    layer: LayerConfig, w1: Array | None, w2: Array | None, h: Vectors, dz: Vectors, errors: Sizes
) -> Sizes:
    """Returns the error of `feed_forward_change` from that of its input's change dz.

    Slopes are taken where an error may move h + dh to: a unit of relu that may be active is. As |h f''(h)| is at
    most about 1, a rounding of h moves the change of f by a rounding of dh.
    """
    first, second = needed(w1, "w1"), needed(w2, "w2")
    dh = dz @ first
    hidden = size(dh)
    before = product_error(size(dz), errors, first) + unit(dz.dtype) * hidden
    moved = h + dh + before[..., None]
    slopes = jax.jvp(ACTIVATIONS[layer.activation], (moved,), (jnp.ones_like(moved),))[1]
    return product_error(hidden, jnp.sqrt(jnp.mean(slopes**2, axis=-1)) * before, second)


Number: TypeAlias = Float[Array, "*shape"]


def relu_change(h: Number, dh: Number) -> Number:
    """relu(h + dh) - relu(h) = max(dh, -h) where h > 0, else max(h + dh, 0)."""
    return jnp.where(h > 0, jnp.maximum(dh, -h), jnp.maximum(h + dh, 0))


def tanh_change(h: Number, dh: Number) -> Number:
    """tanh(h + dh) - tanh(h), from tanh(h) = 2 sigmoid(2h) - 1."""
    return 2 * sigmoid_change(2 * h, 2 * (h + dh), 2 * dh)[1]


def silu_change(h: Number, dh: Number) -> Number:
    """Change of silu(h) = h sigmoid(h): dh sigmoid(h + dh) + h (sigmoid's change)."""
    gate, dgate = sigmoid_change(h, h + dh, dh)
    return dh * gate + h * dgate


_GELU_BOUND = 32.0
"""Beyond it the tanh form of gelu's gate is 0 or 1 in float64: 2 u(32) = 2389."""


def gelu_change(h: Number, dh: Number) -> Number:
    """Change of gelu(h) = h sigmoid(2 u(h)), its tanh form, with u(h) = sqrt(2/pi) (h + 0.044715 h^3).

    u's change is sqrt(2/pi) dh (1 + 0.044715 (h^2 + h t + t^2)) with t = h + dh. For the cubes, h and t are clipped to
    where the gate still changes, because otherwise they would overflow, and inf - inf is NaN.
    """
    c, cubic = np.sqrt(8 / np.pi).astype(h.dtype), 0.044715
    near, far = (jnp.clip(x, -_GELU_BOUND, _GELU_BOUND) for x in (h, h + dh))
    old, new = (c * x * (1 + cubic * x * x) for x in (near, far))
    gate, dgate = sigmoid_change(old, new, c * dh * (1 + cubic * (near * near + near * far + far * far)))
    return dh * gate + h * dgate


def activation_change(layer: LayerConfig, h: Number, dh: Number) -> Number:
    """Returns the change of the per-position map's activation, by its rule in `ACTIVATION_CHANGES`."""
    return rule_for("the difference engine", "activation", layer.activation, ACTIVATION_CHANGES)(h, dh)


ACTIVATION_CHANGES: dict[str, Callable[[Array, Array], Array]] = {
    "relu": relu_change,
    "tanh": tanh_change,
    "silu": silu_change,
    "gelu": gelu_change,
}
"""The exact rule of each activation: from h and its change dh to the change of its value."""


def layer_norm_change(
    layer: LayerConfig, parameters: NormParameters | None, x: Vectors, dx: Vectors
) -> Vectors:
    """Change of layer normalisation.

    With c = x - mean(x), d = dx - mean(dx), v = mean(c^2) + epsilon and v' = mean((c + d)^2) + epsilon, the change is
    (c + d) / sqrt(v') - c / sqrt(v), times the scale. Where d lies along c, only epsilon keeps it from being 0, and
    the terms d / sqrt(v') and c (1 / sqrt(v') - 1 / sqrt(v)) cancel. So d is split into a part along c and the rest,
    d = a c + e, and with v' = (1 + a)^2 (v - epsilon) + 2 (1 + a) mean(c e) + mean(e^2) + epsilon

        change = g c / sqrt(v) + e / sqrt(v'),    g = (1 + a) sqrt(v) / sqrt(v') - 1
               = (epsilon a (2 + a) - mean(e^2) - 2 (1 + a) mean(c e)) / (sqrt(v') ((1 + a) sqrt(v) + sqrt(v'))).

    This holds for any a: the least-squares a makes e small, and the formula includes what rounding leaves of mean(c e).
    The two parts of the change are orthogonal and do not cancel. If 1 + a < 0, the row reverses direction, and the two
    normalised rows can be subtracted. In a row of two entries d always lies along c, so e is set to exactly 0. The
    squares of x and dx must be finite, as layer normalisation itself requires.
    """
    if parameters is None:
        raise TypeError("layer normalisation needs its parameters")

    def mean(values: Vectors) -> Float[Array, "*rows 1"]:
        return jnp.mean(values, axis=-1, keepdims=True)

    def centred(values: Vectors) -> Vectors:
        return (values - values[..., ::-1]) / 2 if values.shape[-1] == 2 else values - mean(values)

    epsilon, c, d = layer.layer_norm_epsilon, centred(x), centred(dx)
    square = mean(c * c)
    exact = square > jnp.finfo(x.dtype).tiny / jnp.finfo(x.dtype).eps
    a = jnp.where(exact, mean(c * d) / jnp.where(exact, square, 1), 0)
    e = jnp.where(exact, 0, d) if x.shape[-1] == 2 else d - a * c
    old, new = jnp.sqrt(square + epsilon), jnp.sqrt(mean((c + d) ** 2) + epsilon)
    across = mean(e * (e + 2 * (1 + a) * c))
    # Divided one factor at a time, because a^2 may overflow where c is tiny.
    total = jnp.where(a >= -1, (1 + a) * old + new, 1)
    g = epsilon * (a / new) * ((2 + a) / total) - across / new / total
    unit, inverse = c * (1 / old), 1 / new
    return jnp.where(a >= -1, unit * g + e * inverse, (c + d) * inverse - unit) * parameters.scale


def feed_forward_change(
    layer: LayerConfig, w1: Array | None, w2: Array | None, h: Float[Array, "*rows hidden"], dz: Vectors
) -> Vectors:
    """Change of the per-position map (without its skip), from its pre-activation h and its input's change dz."""
    return activation_change(layer, h, dz @ needed(w1, "w1")) @ needed(w2, "w2")


_MARGIN = 64
"""Scores that differ by fewer than this many of their rounding errors are treated as tied."""

FAR = 0.1
"""The weight, lost and gained, from which all changes of a row are taken by subtracting. That costs some ten eps of the
weight that the row moves."""


def too_large(ds: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Returns whether changes of scores are too large for the dtype, or not finite."""
    return ~(jnp.abs(ds) <= LARGEST_SCORE[str(ds.dtype)])


def tied(
    s: Float[Array, "*shape"], other: Float[Array, "*shape"], size: Float[Array, "*shape"]
) -> Bool[Array, "*shape"]:
    """Returns whether scores of the given size appear to tie and are too large for a tie to be accurate."""
    return (jnp.abs(s - other) <= _MARGIN * jnp.finfo(s.dtype).eps * size) & (size > LARGEST_TIED)


def best_tied(s: Float[Array, "*rows keys"], ds: Float[Array, "*rows keys"]) -> Bool[Array, "*rows 1"]:
    """Returns whether a row's best key ties with another, before or after the change, according to `tied`."""
    seen = s > -jnp.inf
    size = jnp.max(jnp.where(seen, jnp.maximum(jnp.abs(s), jnp.abs(ds)), 0), axis=-1, keepdims=True)

    def ties(scores: Array) -> Array:
        best = jnp.max(scores, axis=-1, keepdims=True)
        return jnp.sum(tied(scores, best, size) & seen, axis=-1, keepdims=True) > 1

    return ties(s) | ties(s + ds)


def cancelled(
    s: Float[Array, "*shape"], ds: Float[Array, "*shape"], new: Float[Array, "*shape"]
) -> Bool[Array, "*shape"]:
    """Returns whether a new weight is inaccurate because the score after the flip, s + ds, is far smaller than ds.

    The sum is off by eps |ds|, which changes a weight by p' (1 - p') eps |ds|. A forward pass computes the new score
    directly and is off by only eps |s + ds|. Weights close to 0 or 1 are not affected.
    """
    return (jnp.abs(s + ds) < jnp.abs(ds) / 2) & (new * (1 - new) * jnp.abs(ds) > LARGEST_TIED)


def log1p(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns log(1 + x), to 4 eps of itself.

    `jnp.log1p` in float64 on CPU is off by up to 128 eps where XLA goes over from a series to the logarithm, between
    -0.414 and -0.35 (jaxlib 0.10). There 1 + x is rounded by at most a quarter of eps, which the logarithm keeps.
    """
    return jnp.where(x < -0.25, jnp.log(1 + jnp.minimum(x, 0)), jnp.log1p(jnp.maximum(x, -0.25)))


def softmax_change(
    s: Float[Array, "*rows keys"], ds: Float[Array, "*rows keys"]
) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows keys"]]:
    """Returns the new weights p' = softmax(s + ds) and their change p' - p, with p = softmax(s).

    An invisible key has the score -inf; a row that sees no key has weights 0. Both results are accurate to a few
    rounding errors of s or ds, whichever is larger, for changes of any size.

    With C = lse(s + ds) - lse(s), the change of the log-normaliser, and t = ds - C, the ratio of a key's weights is
    p'/p = e^t. Its change is taken in one of two forms:

    - |t| <= 1: p (e^t - 1). Subtracting weights would lose the digits of a small t. C must be as good as ds, so it is
      not the difference of two normalisers where that is small: it is log(1 + E) with E = sum_w p_w (e^(ds_w) - 1),
      whose terms are as accurate as ds. Where C is large, what all scores share is taken out of ds first.
    - |t| > 1: p' - p, of which one is at least e times the other. The product form would carry the error eps |t| of the
      exponent t into the weight: with scores of 1e5 in float32 that is 1 %, where the weights of a softmax so cold are
      0 and 1 exactly.

    Where much of a row's weight moves (`FAR`), all of its keys take the second form. p' and p add up to 1 each, so an
    error in p' of one key is made up by the others, and it is lost on values that agree after the flip. Changes of two
    forms do not make up for each other: each is off by its own eps |s|.

    O(keys) per row: four exponentials per key.
    """
    old, best, total = _weights(s)
    new, new_best, new_total = _weights(s + ds)
    moved = (new_best - best) + jnp.log(new_total / total)
    shared = jnp.where(jnp.abs(moved) > 1, moved, 0)
    own = ds - shared
    # p e^(ds - shared) - p. Its sum E lies between e^-1 - 1 and e - 1 by the choice of `shared`: log1p loses nothing.
    # A key that keeps its weight has |rest| <= 1, or a little more by rounding: it takes the accurate form up to 2.
    gained = jnp.where(
        jnp.abs(own) > 2, new * jnp.exp(moved - shared) - old, old * jnp.expm1(jnp.clip(own, -2, 2))
    )
    t = own - log1p(jnp.sum(gained, axis=-1, keepdims=True))
    subtracted = new - old
    far = (jnp.sum(jnp.abs(subtracted), axis=-1, keepdims=True) > FAR) | (jnp.abs(t) > 1)
    return new, jnp.where(far, subtracted, old * jnp.expm1(jnp.clip(t, -1, 1)))


def _weights(s: Float[Array, "*rows keys"]) -> tuple[Array, Array, Array]:
    """softmax(s), each row's largest score and the sum of exponentials relative to that; 0, 0, 1 where nothing is seen.

    The two parts of the log-normaliser are not added up: the log of the sum would be lost in scores of 1e7.
    """
    best = jnp.max(s, axis=-1, keepdims=True)
    best = jnp.where(best == -jnp.inf, 0, best)
    powers = jnp.exp(s - best)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    total = jnp.where(total == 0, 1, total)
    return powers / total, best, total
