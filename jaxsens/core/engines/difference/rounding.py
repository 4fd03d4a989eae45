"""A running bound of the rounding in a change, carried through a layer beside the change itself.

A change dx of a row has one number beside it, `error`: a bound of the l2 norm of what rounding has done to it. Each map
adds eps times the sizes of what it adds up, and multiplies the error that comes in by its gain. So the bound counts
cancellation: where large terms leave a small change, its error is theirs.

It is an estimate of first order in eps, for errors of random signs and directions: a map's gain is the root mean square
of its singular values, that of a row's activations is the root mean square of their slopes, and errors that a row
gets from its skip connection, its heads and its per-position map add up like roots. Those of different keys are added
as they are: rows of equal symbols are rounded alike. Bounds by the largest singular values would grow a thousandfold in
each layer. The errors of unlucky directions are what `ROUNDINGS` is for; `tools/digits.py` compares with 400 bits. The
cost is O(head_width) for each attention weight and O(width) for each row.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
