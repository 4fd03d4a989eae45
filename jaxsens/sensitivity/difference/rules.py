"""Difference rules: f(x + dx) - f(x) for every map of a layer, without subtracting two nearly equal numbers.

Each rule's relative error stays at rounding however small dx is. `x` is a value of the unflipped run, `dx` its change.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsens.models.config import LayerConfig
from jaxsens.models.parameters import NormParameters, needed


def relu_change(h: Float[Array, "*shape"], dh: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """relu(h + dh) - relu(h) = max(dh, -h) where h > 0, else max(h + dh, 0)."""
    return jnp.where(h > 0, jnp.maximum(dh, -h), jnp.maximum(h + dh, 0))


def tanh_change(h: Float[Array, "*shape"], dh: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """tanh(h + dh) - tanh(h) = sinh(dh) / (cosh(h) cosh(h + dh)), as 2 (e^dh - e^-dh) / ((e^h + e^-h) (...)).

    Written with exponentials of -|h| and -|h + dh| so that nothing overflows: sinh(dh) is exp(|dh|) times
    -expm1(-2|dh|) / 2, and |dh| - |h| - |h + dh| <= 0 by the triangle inequality.
    """
    a, b, d = jnp.abs(h), jnp.abs(h + dh), jnp.abs(dh)
    size = -2 * jnp.expm1(-2 * d) * jnp.exp(d - a - b) / ((1 + jnp.exp(-2 * a)) * (1 + jnp.exp(-2 * b)))
    return jnp.sign(dh) * size


def _gated_change(
    h: Float[Array, "*shape"], dh: Float[Array, "*shape"], gate: Array, dgate: Array
) -> Float[Array, "*shape"]:
    """Change of h * gate: dh (gate + dgate) + h dgate."""
    return dh * (gate + dgate) + h * dgate


def activation_change(
    layer: LayerConfig, h: Float[Array, "*shape"], dh: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Change of the per-position map's nonlinearity: exact rules for relu, tanh, silu and the tanh form of gelu.

    silu(h) = h (1 + tanh(h/2)) / 2; gelu(h) = h (1 + tanh(u(h))) / 2 with u = sqrt(2/pi) (h + 0.044715 h^3).
    """
    if layer.activation == "relu":
        return relu_change(h, dh)
    if layer.activation == "tanh":
        return tanh_change(h, dh)
    if layer.activation == "silu":
        u, du = h / 2, dh / 2
    else:
        c = np.sqrt(2 / np.pi).astype(h.dtype)
        u = c * (h + 0.044715 * h**3)
        du = c * (dh + 0.044715 * dh * (3 * h**2 + 3 * h * dh + dh**2))
    return _gated_change(h, dh, (1 + jnp.tanh(u)) / 2, tanh_change(u, du) / 2)


def layer_norm_change(
    layer: LayerConfig,
    parameters: NormParameters | None,
    x: Float[Array, "*rows width"],
    dx: Float[Array, "*rows width"],
) -> Float[Array, "*rows width"]:
    """Change of layer normalisation.

    With c = x - mean and v = variance + epsilon: Dc = dx - mean(dx), Dv = mean(Dc (2c + Dc)), and
    1/sqrt(v + Dv) - 1/sqrt(v) = -Dv / (sqrt(v) sqrt(v + Dv) (sqrt(v) + sqrt(v + Dv))).
    """
    if parameters is None:
        raise TypeError("layer normalisation needs its parameters")
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    change = dx - jnp.mean(dx, axis=-1, keepdims=True)
    old = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + layer.layer_norm_epsilon)
    new = jnp.sqrt(jnp.mean((centred + change) ** 2, axis=-1, keepdims=True) + layer.layer_norm_epsilon)
    dv = jnp.mean(change * (2 * centred + change), axis=-1, keepdims=True)
    return (change / new - centred * dv / (old * new * (old + new))) * parameters.scale


def feed_forward_change(
    layer: LayerConfig,
    w1: Array | None,
    w2: Array | None,
    h: Float[Array, "*rows hidden"],
    dz: Float[Array, "*rows width"],
) -> Float[Array, "*rows width"]:
    """Change of the per-position map (without its skip), from its pre-activation h and its input's change dz."""
    return activation_change(layer, h, dz @ needed(w1, "w1")) @ needed(w2, "w2")


def weight_change(
    log_weight: Float[Array, "*shape"], ds: Float[Array, "*shape"], shift: Float[Array, "*shape"] | float
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """A softmax weight's new unnormalised value and its change: (e^(l + ds - shift), that minus e^(l - shift)).

    `log_weight` is l = log p. Where ds > 0 the change is new (1 - e^-ds), else old
    (e^ds - 1): a weight that underflows while e^ds is huge (the trap of peaked attention) is not lost.
    """
    new = jnp.exp(log_weight + ds - shift)
    grown = new * -jnp.expm1(-jnp.maximum(ds, 0))
    shrunk = jnp.exp(log_weight - shift) * jnp.expm1(jnp.minimum(ds, 0))
    return new, jnp.where(ds > 0, grown, shrunk)
