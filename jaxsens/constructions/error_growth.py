"""How softmax's error grows from layer to layer of a uniform-tieless transformer, and which temperature keeps it small.

Lemmas 25 and 28 to 34 and Theorem 26 of Yang et al. (arXiv 2412.09925), for layers with residual connections, biases
and several heads. Norms of activations are largest entries. There are three temperatures, each warmer than the last:

* Theorem 26 with `paper_constants`, made of the sizes and P, the largest parameter;
* Theorem 26 with `norm_constants`, which has the norms of the actual matrices instead of d P;
* `warmest_temperature`, which follows the error layer by layer and coordinate by coordinate (`error_bound`).

The last is what is used. It is never colder, being the same proof without its maxima. What it gains: a head's own gap
and magnitudes, where the theorem takes the worst of all; Lemma 33 with the gap that is left, gamma - 2 delta, where
the theorem gives away half of it; and coordinates that nothing writes to, such as position embeddings up to n^2, are
exact and keep out of the product of error and magnitude in Lemma 32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.constructions.uniform_tieless import UniformTieless
from jaxsens.models.config import TransformerConfig
from jaxsens.models.parameters import LayerParameters, TransformerParameters


@dataclass(frozen=True)
class Constants:
    """The constants of Lemmas 28 to 34, as natural logarithms: their powers overflow. The worst of all layers.

    Attributes:
        log_value: V: the heads' outputs, through W_V and W_O and added up, are at most V times the activations
            (Lemma 28, twice); with one head and W_O = 1 the paper's d P. At least 1.
        log_growth: G: |x^(l)| <= G^l x_max (Lemma 29).
        log_feed_forward: A_f: an error grows at most so much through skip connection and per-position map (Lemma 30).
        log_uniform: 1 + V: an error grows at most so much through uniform attention (Lemma 31).
        log_score: K: an error e of activations of size X >= e changes scores by at most K X e (Lemma 32). At least 1.
    """

    log_value: float
    log_growth: float
    log_feed_forward: float
    log_uniform: float
    log_score: float

    @property
    def log_error(self) -> float:
        """A = A_f (1 + V), the factor of the error that is there already (Lemma 25)."""
        return self.log_feed_forward + self.log_uniform

    @property
    def log_weight(self) -> float:
        """B = A_f V, the factor of X times the error in the attention weights (Lemmas 25 and 34)."""
        return self.log_feed_forward + self.log_value


def paper_constants(config: TransformerConfig, parameters: TransformerParameters) -> Constants:
    """The constants from sizes and P = max(1, max |parameter of a layer|) alone.

    With d the width, d_v the head width, H heads and F hidden units: V = H d_v d P^2, for b_h W_O adds d_v products in
    each of H heads; K = 3 sqrt(d_v) d^2 P^2; A_f = 1 + d F P^2; G = (1 + V)(1 + F P (d P + P) + P).
    """
    found = []
    for k, layer in enumerate(parameters.layers):
        sizes, d = config.layer(k), config.width
        matrices = (layer.query, layer.key, layer.value, layer.output, layer.w1, layer.b1, layer.w2, layer.b2)
        present = [np.abs(np.asarray(m, np.float64)) for m in matrices if m is not None]
        p = max([1.0, *(float(m.max(initial=0)) for m in present)])
        into, out = (d * p, sizes.feed_forward * p) if sizes.feed_forward else (0.0, 0.0)
        found.append(
            _constants(
                value=sizes.heads * sizes.head_width * d * p**2,
                score=3 * math.sqrt(sizes.head_width) * d**2 * p**2,
                into=into,
                out=out,
                bias=p if sizes.feed_forward else 0.0,
            )
        )
    return _worst(found)


def norm_constants(parameters: TransformerParameters) -> Constants:
    """The constants from norms of the matrices.

    x W is at most gain(W) times |x|, the largest column sum of |W|, attained; it is at most d P. For the values, W is
    the heads' W_V W_O one above the other. A score is x_i N x_j with N = W_Q W_K^T / sqrt(head_width), so that an
    error e <= X changes it by sum |N| (2 X + e) e: K is 3 times the largest sum of |N| of a head.
    """
    found = []
    for layer in parameters.layers:
        sizes = LayerSizes.of(layer)
        bias = max(
            (float(np.abs(b).max(initial=0)) for b in (layer.b1, layer.b2) if b is not None), default=0.0
        )
        found.append(
            _constants(
                value=float(sizes.value.sum(axis=(0, 1)).max()),
                score=3 * float(sizes.score.sum(axis=(1, 2)).max()),
                into=_gain(sizes.into),
                out=_gain(sizes.out),
                bias=bias,
            )
        )
    return _worst(found)


def theorem_temperature(
    constants: Constants, layers: int, n: int, gap: float, x_max: float, epsilon: float
) -> float:
    """Theorem 26: gamma / (2 log(2 (n - 1) B L A^(L-1) X / e)), X = G^(L-1) x_max, e = min(1, epsilon, gamma/(4 K X)).

    At this temperature every activation of the softmax transformer is within `epsilon` of the average-hard one's.
    Proof: while layers' errors stay below gamma / (4 K X), scores move by at most gamma / 4, so that at least half of
    each gap is left and weights are off by h = 2 (n - 1) e^(-gamma / (2 tau)) at most (Lemma 33); then an error e
    becomes A e + B X h (Lemma 25), after L layers no more than B X h L A^(L-1), which is that by the choice of tau.
    1 if the gap is infinite: there is nothing to choose, and any temperature will do.
    """
    if math.isinf(gap) or n == 1:
        return 1.0
    log_x = (layers - 1) * constants.log_growth + math.log(x_max)
    log_e = min(math.log(epsilon), math.log(gap / 4) - constants.log_score - log_x, 0.0)
    growth = constants.log_weight + math.log(layers) + (layers - 1) * constants.log_error
    return gap / (2 * (math.log(2 * (n - 1)) + growth + log_x - log_e))


@dataclass(frozen=True, eq=False)
class LayerSizes:
    """The absolute values of a layer's matrices, in float64.

    Attributes:
        score: |W_Q W_K^T| / sqrt(head_width).
        value: |W_V W_O|.
        into: |W1|, None without a per-position map.
        out: |W2|.
    """

    score: Float[np.ndarray, "heads width width"]
    value: Float[np.ndarray, "heads width width"]
    into: Float[np.ndarray, "width hidden"] | None
    out: Float[np.ndarray, "hidden width"] | None

    @staticmethod
    def of(layer: LayerParameters) -> LayerSizes:
        """The sizes of one layer's parameters."""
        query, key, value, output = (
            np.asarray(matrix, np.float64) for matrix in (layer.query, layer.key, layer.value, layer.output)
        )
        return LayerSizes(
            score=np.abs(query @ np.swapaxes(key, 1, 2)) / math.sqrt(query.shape[2]),
            value=np.abs(value @ output),
            into=None if layer.w1 is None else np.abs(np.asarray(layer.w1, np.float64)),
            out=None if layer.w2 is None else np.abs(np.asarray(layer.w2, np.float64)),
        )


def error_bound(
    sizes: tuple[LayerSizes, ...], measured: UniformTieless, inverse_temperature: float
) -> Float[np.ndarray, " width"]:
    """How far y^(L) of the softmax transformer may be from the average-hard one's, in each coordinate.

    With e the error of a layer's input and X its magnitude, vectors over the coordinates, in each head:
    scores move by delta = e |N| X + X |N| e + e |N| e (Lemma 32); weights by h = 2 y / (1 + y) in the 1-norm, where
    y = (n - 1) exp(-(gap - 2 delta) / tau) (Lemma 33, without its first inequality); its output by e |W_V W_O|, as
    weights sum to 1 at most, and by h / 2 times the spread of the values, as both rows of weights sum to the same
    (Lemma 34, for a spread of at most 2 X |W_V W_O|). The residual adds e, and the per-position map's part of an error
    c is c |W1| |W2| (Lemma 30). Rounding is not counted.
    """
    e = np.zeros(measured.magnitudes.shape[1])
    for k, size in enumerate(sizes):
        x = measured.magnitudes[k]
        delta = np.einsum("hab,a,b->h", size.score, e, x + e) + np.einsum("hab,a,b->h", size.score, x, e)
        gaps = np.array(measured.gaps[k])
        chosen = np.isfinite(gaps) & (measured.n > 1)
        off = np.zeros(len(gaps))
        log_y = math.log(max(measured.n - 1, 1)) - (gaps[chosen] - 2 * delta[chosen]) * inverse_temperature
        off[chosen] = 2 * np.exp(-np.logaddexp(0, -log_y))
        c = e + np.einsum("a,had->d", e, size.value) + off / 2 @ measured.spreads[k]
        e = c if size.into is None or size.out is None else c + c @ size.into @ size.out
    return e


def warmest_temperature(
    parameters: TransformerParameters, measured: UniformTieless, epsilon: float, colder: float
) -> float:
    """A temperature of at least `colder`, Theorem 26's, at which `error_bound` is at most epsilon, nearly the warmest.

    It bounds the logits, too, if there are any. Found by doubling and halving, to 1 in 1000.
    """
    sizes = tuple(LayerSizes.of(layer) for layer in parameters.layers)
    head = None if parameters.head is None else np.abs(np.asarray(parameters.head, np.float64))

    def kept(tau: float) -> bool:
        error = error_bound(sizes, measured, 1 / tau)
        largest = max(float(error.max()), 0.0 if head is None else float((error @ head).max()))
        return largest <= epsilon * (1 - 1e-9)

    if math.isinf(measured.gap):
        return colder
    low, high = colder, 2 * colder
    for _ in range(64):
        if not kept(high):
            break
        low, high = high, 2 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def head_gain(parameters: TransformerParameters) -> float:
    """How much an error may grow from the activations to the logits, at least 1."""
    return (
        1.0 if parameters.head is None else max(1.0, _gain(np.abs(np.asarray(parameters.head, np.float64))))
    )


def _gain(absolute: np.ndarray | None) -> float:
    """max |x W| / max |x|: the largest column sum of |W|; 0 for a map that is not there."""
    return 0.0 if absolute is None else float(absolute.sum(axis=0).max(initial=0))


def _constants(value: float, score: float, into: float, out: float, bias: float) -> Constants:
    value = max(1.0, value)
    return Constants(
        log_value=math.log(value),
        log_growth=math.log1p(value) + math.log1p(out * (into + bias) + bias),
        log_feed_forward=math.log1p(into * out),
        log_uniform=math.log1p(value),
        log_score=math.log(max(1.0, score)),
    )


def _worst(found: list[Constants]) -> Constants:
    """The largest of each constant; those of no layer at all if there is none."""
    return Constants(
        log_value=max((one.log_value for one in found), default=0.0),
        log_growth=max((one.log_growth for one in found), default=0.0),
        log_feed_forward=max((one.log_feed_forward for one in found), default=0.0),
        log_uniform=max((one.log_uniform for one in found), default=0.0),
        log_score=max((one.log_score for one in found), default=0.0),
    )
