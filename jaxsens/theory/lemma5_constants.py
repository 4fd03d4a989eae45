"""The constants of Lemma 5, layer by layer: F, A, the maps' Lipschitz constants, from norms of the parameters.

Notation: y_j is a layer's input, z_j what queries, keys and values are made of (y_j, or LN(y_j) with
pre-normalisation), v_m^h = z_m W_V^h W_O^h the value of key m in head h as it arrives in the residual stream, s_jm the
score of query j with key m as the softmax sees it: penalties added, multiplied by 1/tau_j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.parameters import LayerParameters, NormParameters, TransformerParameters, needed
from jaxsens.models.positions import Alibi, Rotary
from jaxsens.models.weighting import Softmax
from jaxsens.theory.lipschitz import (
    ACTIVATION_LIPSCHITZ,
    OUTWARD,
    largest_embedding,
    log,
    log_layer_norm_bound,
    log_layer_norm_lipschitz,
    operator_norm,
    plus,
    times,
    vector_norm,
)


@dataclass(frozen=True, eq=False)
class LayerConstants:
    """One layer's constants at one length. Logarithms are natural; entries of arrays belong to heads and query rows.

    Attributes:
        log_F: F_k, a bound on |y_j^(k)| over all words and positions. F_0 is the largest |embedding + position|;
            F_{k+1} adds the heads' largest values (a weighted average is no longer than its longest term) and
            |W_2| (|W_1| F_in + |b_1|) + |b_2|, every activation function having |f(x)| <= |x| (tanh: sqrt(d_ff) if
            less); with post-normalisation it is max |scale| sqrt(d) + |bias|.
        log_F_z: the same of z_j: F_k, or the bound of LN(y_j).
        log_lambda: by how much z_j may change per change of y_j: 1, or max |scale| / sqrt(epsilon).
        log_values: V_h = |W_V W_O|: how far a change of z_m moves v_m.
        log_radius: R_h = V_h F_z: a bound on |v_m|. Two averages of values are at most 2 R_h apart.
        A: half the largest difference of two scores that one query can see: softmax knows scores up to a shift of
            the row only, so all of a row's lie in [-A, A]. Dot product: |W_Q W_K^T| F_z^2 / sqrt(d_k) (with rotary
            embedding |W_Q| |W_K| in place of |W_Q W_K^T|, since the turn between them depends on the pair);
            additive: |a|_1, tanh being at most 1; ALiBi: half of slope times the largest visible distance more; all
            times 1/tau. May be inf.
        log_query, log_key: Lambda: |Delta s_jm| <= Lambda_query |Delta z_j| + Lambda_key |Delta z_m|. Dot product,
            both: |W_Q W_K^T| F_z / (sqrt(d_k) tau); additive: |a|_2 |W_Q| / tau and |a|_2 |W_K| / tau.
        log_map: Lip: by how much the layer's output changes per change of x + attention: 1 + |W_2| |W_1| times the
            activation's constant, times max |scale| / sqrt(epsilon) of each layer norm on the way.
        mask: the layer's.
    """

    log_F: float
    log_F_z: float
    log_lambda: float
    log_values: Float[np.ndarray, " heads"]
    log_radius: Float[np.ndarray, " heads"]
    A: Float[np.ndarray, "heads n"]
    log_query: Float[np.ndarray, "heads n"]
    log_key: Float[np.ndarray, "heads n"]
    log_map: float
    mask: str

    @property
    def heads(self) -> int:
        """H of this layer."""
        return len(self.log_values)

    @property
    def logit_bound(self) -> float:
        """A of this layer: the largest of its heads and rows."""
        return float(self.A.max())

    def log_L_fact(self, with_score_term: bool = True) -> float:
        """log L_fact: how far a change of *all* activations by 1 moves a layer's output, per head.

        Lip (1 + lambda max_h (V_h + 4 R_h Lambda_h)). 1 is the skip connection, V_h the values' own change, which is
        all that the published proof has; 4 R_h Lambda_h is the change of the weights, the term it leaves out:
        2 R_h Lambda_h from the other keys (query and key move) and 2 R_h Lambda_h from the query at the flipped key.
        """
        gain = self.log_values
        if with_score_term:
            score = np.maximum(self.log_query, self.log_key).max(axis=1)
            gain = plus(gain, times(math.log(4), self.log_radius, score))
        return float(times(self.log_map, plus(0.0, times(self.log_lambda, np.max(gain)))))


def layer_constants(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> tuple[list[LayerConstants], float]:
    """The constants of every layer for inputs of length n, and log F_L. O(n (vocabulary d + L H)), one SVD a matrix."""
    log_f = float(log(largest_embedding(config, parameters, n)))
    found = []
    for k, given in enumerate(parameters.layers):
        constants, log_f = _layer(config.layer(k), config.dtype, given, n, log_f)
        found.append(constants)
    return found, log_f


def _layer(
    layer: LayerConfig, dtype: str, parameters: LayerParameters, n: int, log_f: float
) -> tuple[LayerConstants, float]:
    """One layer's constants, and the bound F of its output."""
    epsilon = layer.layer_norm_epsilon
    log_z, log_lambda = log_f, 0.0
    if layer.layer_norm == "pre":
        norm = _present(parameters.attention_norm)
        log_z = log_layer_norm_bound(epsilon, norm, log_f)
        log_lambda = log_layer_norm_lipschitz(epsilon, norm)
    value, output = (np.asarray(m, np.float64) for m in (parameters.value, parameters.output))
    log_values = log(np.array([operator_norm(v @ w) for v, w in zip(value, output, strict=True)]))
    log_radius = times(log_values, log_z)
    log_map, log_next = _map(layer, parameters, float(plus(log_f, *log_radius)))
    bound, log_query, log_key = _scores(layer, parameters, log_z)
    # The temperatures and slopes are the model's own rounded numbers.
    log_inverse = log(_inverse_temperatures(layer, n).astype(dtype).astype(np.float64))
    penalties = np.zeros((layer.heads, n))
    for term in layer.position_scores:
        if isinstance(term, Alibi):
            slopes = term.slopes(layer.heads).astype(dtype).astype(np.float64)
            penalties = slopes[:, None] * _reach(layer.mask, n) / 2
    with np.errstate(over="ignore"):
        a = np.exp(times(plus(bound[:, None], log(penalties)), log_inverse)) * (1 + OUTWARD)
    constants = LayerConstants(
        log_F=log_f,
        log_F_z=log_z,
        log_lambda=log_lambda,
        log_values=log_values,
        log_radius=log_radius,
        A=a,
        log_query=times(log_query[:, None], log_inverse),
        log_key=times(log_key[:, None], log_inverse),
        log_map=log_map,
        mask=layer.mask,
    )
    return constants, log_next


def _present(norm: NormParameters | None) -> NormParameters:
    if norm is None:
        raise TypeError("layer normalisation needs its parameters")
    return norm


def _map(layer: LayerConfig, parameters: LayerParameters, log_in: float) -> tuple[float, float]:
    """From x + attention, bounded by e^log_in, to the layer's output: its log Lipschitz constant and log bound."""
    post, epsilon = layer.layer_norm == "post", layer.layer_norm_epsilon
    log_lipschitz, log_f = 0.0, log_in
    if post:
        norm = _present(parameters.attention_norm)
        log_lipschitz = log_layer_norm_lipschitz(epsilon, norm)
        log_f = log_layer_norm_bound(epsilon, norm, log_f)
    if not layer.feed_forward:
        return log_lipschitz, log_f
    log_w1 = float(log(operator_norm(np.asarray(needed(parameters.w1, "w1")))))
    log_w2 = float(log(operator_norm(np.asarray(needed(parameters.w2, "w2")))))
    log_b1 = log(vector_norm(np.asarray(needed(parameters.b1, "b1"))))
    log_b2 = log(vector_norm(np.asarray(needed(parameters.b2, "b2"))))
    gain, log_inner = times(log_w1, log_w2, math.log(ACTIVATION_LIPSCHITZ[layer.activation])), log_f
    if layer.layer_norm == "pre":
        norm = _present(parameters.feed_forward_norm)
        gain = times(gain, log_layer_norm_lipschitz(epsilon, norm))
        log_inner = log_layer_norm_bound(epsilon, norm, log_f)
    log_hidden = plus(times(log_w1, log_inner), log_b1)
    if layer.activation == "tanh":
        log_hidden = min(log_hidden, 0.5 * math.log(layer.feed_forward))
    log_lipschitz = float(times(log_lipschitz, plus(0.0, gain)))
    log_f = float(plus(log_f, times(log_w2, log_hidden), log_b2))
    if post:
        norm = _present(parameters.feed_forward_norm)
        log_lipschitz = float(times(log_lipschitz, log_layer_norm_lipschitz(epsilon, norm)))
        log_f = log_layer_norm_bound(epsilon, norm, log_f)
    return log_lipschitz, log_f


def _scores(
    layer: LayerConfig, parameters: LayerParameters, log_z: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every head, at temperature 1: logs of the bound on a score, and of its Lipschitz constants in z_j and z_m."""
    query, key = (np.asarray(m, np.float64) for m in (parameters.query, parameters.key))
    if layer.scores == "additive":
        a = np.asarray(needed(parameters.additive, "additive"), np.float64)
        size = log(np.array([vector_norm(vector) for vector in a]))
        log_query = times(size, log(np.array([operator_norm(m) for m in query])))
        log_key = times(size, log(np.array([operator_norm(m) for m in key])))
        return log(np.abs(a).sum(axis=1) * (1 + OUTWARD)), log_query, log_key
    if any(isinstance(term, Rotary) for term in layer.position_scores):
        products = [operator_norm(q) * operator_norm(k) for q, k in zip(query, key, strict=True)]
    else:
        products = [operator_norm(q @ k.T) for q, k in zip(query, key, strict=True)]
    slope = times(log(np.array(products)), log_z) - 0.5 * math.log(layer.head_width)
    return times(slope, log_z), slope, slope


def _inverse_temperatures(layer: LayerConfig, n: int) -> Float[np.ndarray, " n"]:
    weighting = layer.weighting
    if not isinstance(weighting, Softmax):
        raise TypeError("constants of Lemma 5 are those of a softmax")
    if weighting.by == "length":
        return np.full(n, float(weighting.inverse_temperature(n)))
    return weighting.inverse_temperature(np.arange(1, n + 1))


def _reach(mask: str, n: int) -> Float[np.ndarray, " n"]:
    """The largest distance of each row to a key it sees."""
    back, ahead = np.arange(n, dtype=np.float64), np.arange(n, dtype=np.float64)[::-1]
    if mask in ("future", "strict-future"):
        return back
    return ahead if mask in ("past", "strict-past") else np.maximum(back, ahead)


def log_C(A: float, log_L_fact: float) -> float:
    """log C, C = 2 (1 + exp(2A) + L_fact)."""
    return math.log(2) + float(plus(0.0, 2 * A, log_L_fact))
