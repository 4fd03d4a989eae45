"""Difference rules: f(x + dx) - f(x) for every map of a layer, without subtracting two nearly equal numbers.

`x` is a value of the unflipped run, `dx` its change; both are rounded numbers. Each rule's result is within a few
rounding errors of the exact change for inputs that are themselves off by a rounding error. To first order

    |result - D| <= c eps (|D| + |dD/dx| |x| + |dD/ddx| |dx|),      D = f(x + dx) - f(x),

with a small c and eps of the dtype. So the error is relative to the change, however small, provided that dx is that
accurate. Numbers below the smallest normal one, of inputs and results alike, may be taken for 0. No result is inf or
NaN if D is finite. For layer normalisation |.| is the norm of a row. `tests/core/flip_sensitivity/test_rules.py`
verifies these properties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsens.core.base.errors import rule_for
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.parameters import NormParameters, needed

Number: TypeAlias = Float[Array, "*shape"]
Vectors: TypeAlias = Float[Array, "*rows width"]


def relu_change(h: Number, dh: Number) -> Number:
    """relu(h + dh) - relu(h) = max(dh, -h) where h > 0, else max(h + dh, 0)."""
    return jnp.where(h > 0, jnp.maximum(dh, -h), jnp.maximum(h + dh, 0))


def _sigmoid_change(old: Number, new: Number, change: Number) -> tuple[Number, Number]:
    """Returns sigmoid(new) and sigmoid(new) - sigmoid(old), for a `change` more accurate than subtracting new - old.

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - e^(b - a)): three factors for a > b, each in [0, 1], none
    a difference. With exponentials of -|a| and -|b| nothing overflows, and sigmoid(a) is accurate for a << 0.
    """
    e_old, e_new = jnp.exp(-jnp.abs(old)), jnp.exp(-jnp.abs(new))
    r_old, r_new = 1 / (1 + e_old), 1 / (1 + e_new)
    at_new = r_new * jnp.where(new > 0, 1, e_new)
    rises = change > 0
    upper = jnp.where(rises, at_new, r_old * jnp.where(old > 0, 1, e_old))
    lower = jnp.where(rises, r_old * jnp.where(old > 0, e_old, 1), r_new * jnp.where(new > 0, e_new, 1))
    size = upper * lower * -jnp.expm1(-jnp.abs(change))
    return at_new, jnp.where(rises, size, -size)


def tanh_change(h: Number, dh: Number) -> Number:
    """tanh(h + dh) - tanh(h), from tanh(h) = 2 sigmoid(2h) - 1."""
    return 2 * _sigmoid_change(2 * h, 2 * (h + dh), 2 * dh)[1]


def silu_change(h: Number, dh: Number) -> Number:
    """Change of silu(h) = h sigmoid(h): dh sigmoid(h + dh) + h (sigmoid's change)."""
    gate, dgate = _sigmoid_change(h, h + dh, dh)
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
    gate, dgate = _sigmoid_change(old, new, c * dh * (1 + cubic * (near * near + near * far + far * far)))
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
