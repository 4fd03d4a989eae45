"""Average-hard attention replaced by softmax at a low temperature, with a promise (Yang et al. 2026, Theorem 26).

The temperature must be so low that softmax's error stays small as it grows from layer to layer: Lemmas 25 and 28 to 34
and Theorem 26 of Yang et al. (arXiv 2412.09925), for layers with residual connections, biases and several heads.

The theorem bounds the error by the worst layer, head and coordinate. `error_bound` is the same proof without its
maxima: it follows the error layer by layer and coordinate by coordinate, so that no temperature of the theorem is
warmer. It gains in three places. It has each head's own gap and magnitudes. It uses Lemma 33 with the gap that is left,
gamma - 2 delta, where the theorem gives away half of it. And coordinates that nothing writes to, such as position
embeddings up to n^2, are exact and stay out of the product of error and magnitude in Lemma 32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.models.transformer.module import Transformer, check_tokens
from jaxsens.core.models.transformer.parameters import LayerParameters, TransformerParameters
from jaxsens.formal.constructions import uniform_tieless
from jaxsens.formal.constructions.uniform_tieless import UniformTieless

FLOATING_POINT = 1024
"""Least epsilon, in units of rounding of the largest activation. Arithmetic would break a smaller promise."""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-300, 1e20
"""Where the search for a temperature ends: a colder one is refused."""


@dataclass(frozen=True)
class SoftenedPromise:
    """What `soften` promises, and from what it follows.

    At every position, every activation y^(L) of the softened model and its output are within `epsilon` of the hard
    model's: on all inputs of length `measured.n` if `measured.exhaustive`, and otherwise on the inputs that were given.

    Attributes:
        epsilon: The largest difference of an entry.
        tau: The temperature of every layer.
        measured: The hard model's gaps and magnitudes, and on which inputs.
    """

    epsilon: float
    tau: float
    measured: UniformTieless

    @property
    def theorem(self) -> str:
        """Where the promise comes from."""
        return "Yang et al., arXiv 2412.09925, Theorem 26"


class SoftenedTransformer(Transformer):
    """A transformer with the hard model's parameters and softmax at temperature `promise.tau` in every layer.

    It is an ordinary `Transformer` and reads inputs of any length, but `promise` is about inputs of length
    `promise.measured.n`. `outputs` are the coordinates that the hard model designates for measurement; None if it
    designates none.
    """

    def __init__(self, hard: Transformer, promise: SoftenedPromise) -> None:
        weighting = Softmax(Schedule(coefficient=1 / promise.tau))
        super().__init__(hard.config.replace(weighting=weighting), parameters=hard.parameters)
        self.promise = promise
        self.outputs: tuple[int, ...] | None = getattr(hard, "outputs", None)


@naming_arguments
def soften(
    model: Transformer, n: int, epsilon: float, *, words: ArrayLike | None = None
) -> SoftenedTransformer:
    """A softmax transformer within `epsilon` of a uniform-tieless average-hard one on inputs of length n.

    The temperature follows from the gap between the largest score and the next, the magnitudes of activations and
    parameters, and the depth. Gap and magnitudes are measured on all inputs of length n, or on `words`.

    Args:
        model: Average-hard in every layer. Each head either has W_Q = 0 or W_K = 0, or one largest score per row.
        n: The length of the inputs.
        epsilon: The largest difference allowed in any entry of any activation and output.
        words: (k, n) inputs to measure, and to make the promise for, if there are too many of length n to try all.

    Raises:
        InputError: With every reason against the arguments: a model that Theorem 26 is not about, `n`, `epsilon`. Then
            if the model is not uniform-tieless on these inputs (`uniform_tieless.measure`), or `epsilon` is below what
            the arithmetic resolves.

    >>> from jaxsens.formal.constructions.compiler import compile_formula
    >>> hard = compile_formula("!Q_c S Q_a", "abc", condition="average-hard")
    >>> soften(hard, n=3, epsilon=1e-3).promise.measured.inputs
    27
    """
    problems = Problems("soften")
    epsilon = inputs.number("epsilon", epsilon, problems, above=0, below=math.inf)
    uniform_tieless.check_measurable(model, n, words, problems)
    problems.raise_if_any()
    measured = uniform_tieless.measure(model, n, words)
    tau = warmest_temperature(model.parameters, measured, epsilon)
    promise = SoftenedPromise(epsilon, tau, measured)
    limits = np.finfo(model.config.dtype)
    resolved = FLOATING_POINT * float(limits.eps) * max(1.0, float(measured.magnitudes.max()))
    if epsilon < resolved:
        remedy = f"at least {resolved:.3g}, what {limits.dtype} resolves of activations so large"
        problems.add("epsilon", epsilon, remedy)
    if not (promise.tau > 0 and 1 / promise.tau < float(limits.max)):
        problems.add("tau", promise.tau, f"a larger gap: 1/tau exceeds the largest number of {limits.dtype}")
    problems.raise_if_any()
    return SoftenedTransformer(model, promise)


def largest_difference(soft: Transformer, hard: Transformer, words: ArrayLike | None = None) -> float:
    """The largest |difference| of an entry of y^(L), at any position, or of the output, over `words` (k, n).

    Without `words`, over all inputs of the length that `soft` makes its promise for. Compare it with
    `soft.promise.epsilon`. NaN if any number is NaN.

    Raises:
        InputError: If there are no words, and `soft` has no promise to take a length from.
    """
    if words is not None:
        tried = np.atleast_2d(np.asarray(words))
        check_tokens(hard.config, tried)
    elif isinstance(soft, SoftenedTransformer):
        tried = uniform_tieless.all_inputs(hard.config, soft.promise.measured.n)
    else:
        raise InputError.of("words", None, "give words, or a model that `soften` made")
    largest = 0.0
    for batch in uniform_tieless.batches(hard.config, tried):
        pairs = [(soft.activations(batch), hard.activations(batch))]
        if hard.config.logits is not None:
            pairs.append((soft(batch), hard(batch)))
        for a, b in pairs:
            found = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()
            largest = float(np.maximum(largest, found))
    return largest


def error_bound(
    layers: Sequence[LayerParameters], measured: UniformTieless, inverse_temperature: float
) -> Float[np.ndarray, " width"]:
    """How far y^(L) of the softmax transformer may be from the average-hard one's, in each coordinate.

    Let e be the error of a layer's input and X its magnitude, both vectors over the coordinates. In each head, scores
    move by delta = e |N| X + X |N| e + e |N| e (Lemma 32), and weights move in the 1-norm by h = 2 y / (1 + y), where
    y = (n - 1) exp(-(gap - 2 delta) / tau) (Lemma 33, without its first inequality). The head's output moves by
    e |W_V W_O|, as weights sum to at most 1, and by h / 2 times the spread of the values, as both rows of weights have
    the same sum (Lemma 34, which uses a spread of at most 2 X |W_V W_O|). The residual connection adds e, and the
    per-position map turns an error c into c + c |W1| |W2| (Lemma 30). Rounding is not counted.
    """
    e = np.zeros(measured.magnitudes.shape[1])
    for k, layer in enumerate(layers):
        x = measured.magnitudes[k]
        four = layer.query, layer.key, layer.value, layer.output
        query, key, value, output = (np.asarray(matrix, np.float64) for matrix in four)
        score = np.abs(query @ np.swapaxes(key, 1, 2)) / math.sqrt(query.shape[2])
        delta = np.einsum("hab,a,b->h", score, e, x + e) + np.einsum("hab,a,b->h", score, x, e)
        gaps = np.array(measured.gaps[k])
        chosen = np.isfinite(gaps) & (measured.n > 1)
        off = np.zeros(len(gaps))
        log_y = math.log(max(measured.n - 1, 1)) - (gaps[chosen] - 2 * delta[chosen]) * inverse_temperature
        off[chosen] = 2 * np.exp(-np.logaddexp(0, -log_y))
        e = e + np.einsum("a,had->d", e, np.abs(value @ output)) + off / 2 @ measured.spreads[k]
        if layer.w1 is not None and layer.w2 is not None:
            e = e + e @ _absolute(layer.w1) @ _absolute(layer.w2)
    return e


def warmest_temperature(parameters: TransformerParameters, measured: UniformTieless, epsilon: float) -> float:
    """Nearly the warmest temperature at which `error_bound` is at most epsilon; 1 if there is nothing to choose, and
    0 if there is none.

    The error of the logits, if there are any, is bounded too. Found by doubling and halving, to 1 in 1000.
    """
    head = None if parameters.head is None else _absolute(parameters.head)

    def kept(tau: float) -> bool:
        error = error_bound(parameters.layers, measured, 1 / tau)
        largest = max(float(error.max()), 0.0 if head is None else float((error @ head).max()))
        return largest <= epsilon * (1 - 1e-9)

    if math.isinf(measured.gap):
        return 1.0
    low = measured.gap
    while low > LEAST_TEMPERATURE and not kept(low):
        low /= 2
    high = 2 * low
    while high < MOST_TEMPERATURE and kept(high):
        low, high = high, 2 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low if kept(low) else 0.0


def _absolute(matrix: ArrayLike) -> np.ndarray:
    return np.abs(np.asarray(matrix, np.float64))
