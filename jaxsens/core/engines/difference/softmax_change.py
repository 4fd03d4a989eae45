"""The change of a row of softmax weights for changes of its scores from 1e-30 to 1e30."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsens.core.base.programs import LARGEST_SCORE, LARGEST_TIED

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
