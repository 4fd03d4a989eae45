"""Average-hard attention replaced by softmax at a low temperature, with a promise (Yang et al. 2024, Theorem 26)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jax.typing import ArrayLike

from jaxsens import inputs
from jaxsens.constructions.error_growth import (
    Constants,
    head_gain,
    norm_constants,
    theorem_temperature,
    warmest_temperature,
)
from jaxsens.constructions.uniform_tieless import (
    UniformTieless,
    all_inputs,
    batches,
    check_measurable,
    measure,
)
from jaxsens.errors import Faults, InputError
from jaxsens.models.schedules import Schedule
from jaxsens.models.transformer import Transformer, check_tokens
from jaxsens.models.weighting import Softmax

FLOATING_POINT = 1024
"""A promise is not made below so many units of rounding of the largest activation: arithmetic would break it."""


@dataclass(frozen=True)
class SoftenedPromise:
    """What `soften` promises, and from what.

    Every activation y^(L) of the softened model, at every position, and its output are within `epsilon` of the hard
    model's on all inputs of length n, if `exhaustive`, else on the inputs that were given.

    Attributes:
        n: the length it holds for.
        epsilon: the largest difference of an entry.
        tau: the temperature of every layer.
        theorem_tau: Theorem 26's with `constants`, never warmer; `tau` follows the error more closely
            (`error_growth.warmest_temperature`).
        gap: gamma(n), the least difference of the largest score and the next; infinite if no head chooses.
        x_max: the largest |entry| of x^(0), at least 1.
        gaps: the gap of each head of each layer, infinite for uniform heads.
        inputs: how many inputs these were measured on.
        exhaustive: whether these are all inputs of the length.
        constants: of Lemmas 28 to 34, from the norms of the matrices.
    """

    n: int
    epsilon: float
    tau: float
    theorem_tau: float
    gap: float
    x_max: float
    gaps: tuple[tuple[float, ...], ...]
    inputs: int
    exhaustive: bool
    constants: Constants

    @property
    def theorem(self) -> str:
        """Where the promise comes from."""
        return "Yang et al., arXiv 2412.09925, Theorem 26"


class SoftenedTransformer(Transformer):
    """A transformer with the hard model's parameters and softmax at temperature `promise.tau` in every layer.

    An ordinary `Transformer`. It reads inputs of any length, but `promise` is about inputs of length `promise.n`.
    `outputs` is the hard model's choice of coordinates to measure, None if it has none.
    """

    def __init__(self, hard: Transformer, promise: SoftenedPromise) -> None:
        weighting = Softmax(Schedule(coefficient=1 / promise.tau))
        super().__init__(hard.config.replace(weighting=weighting), parameters=hard.parameters)
        self.promise = promise
        self.outputs: tuple[int, ...] | None = getattr(hard, "outputs", None)


def soften(
    model: Transformer, n: int, epsilon: float, *, words: ArrayLike | None = None
) -> SoftenedTransformer:
    """A softmax transformer within `epsilon` of a uniform-tieless average-hard one on inputs of length n.

    The temperature follows from the gap between the largest score and the next, the magnitudes of activations and
    parameters, and the depth. Gap and magnitudes are measured on all inputs of length n, or on `words`.

    Args:
        model: average-hard in every layer; each head either has W_Q = 0 or W_K = 0 or one largest score a row.
        n: length of the inputs.
        epsilon: largest difference allowed in any entry of any activation and output.
        words: (k, n) inputs to measure, and promise for, where there are too many of length n to try them all.

    Raises:
        InputError: with all reasons against the arguments: a model that Theorem 26 is not about, `n`, `epsilon`; then
            if the model is not uniform-tieless on these inputs (`uniform_tieless.measure`), or `epsilon` below what
            the arithmetic resolves.
    """
    faults = Faults("soften")
    epsilon = inputs.number("epsilon", epsilon, faults, above=0, below=math.inf)
    check_measurable(model, n, words, faults)
    faults.raise_if_any()
    measured = measure(model, n, words)
    promise = _promise(model, measured, epsilon)
    limits = np.finfo(model.config.dtype)
    resolved = FLOATING_POINT * float(limits.eps) * max(1.0, float(measured.magnitudes.max()))
    if epsilon < resolved:
        faults.add(
            "epsilon",
            epsilon,
            f"at least {resolved:.3g}, what {limits.dtype} resolves of activations so large",
        )
    if not (promise.tau > 0 and 1 / promise.tau < float(limits.max)):
        faults.add("tau", promise.tau, f"a gap that is not so small: 1/tau is beyond {limits.dtype}")
    faults.raise_if_any()
    return SoftenedTransformer(model, promise)


def largest_difference(soft: Transformer, hard: Transformer, words: ArrayLike | None = None) -> float:
    """The largest |difference| of an entry of y^(L), at any position, or of the output, over `words` (k, n).

    Without `words`, over all inputs of the length that `soft` makes its promise for. To hold against
    `soft.promise.epsilon`. NaN if any number is.
    """
    if words is None:
        if not isinstance(soft, SoftenedTransformer):
            raise InputError("words = None: give words, or a model that `soften` made")
        tried = all_inputs(hard.config, soft.promise.n)
    else:
        tried = np.atleast_2d(np.asarray(words))
        check_tokens(hard.config, tried)
    largest = 0.0
    for batch in batches(hard.config, tried):
        pairs = [(soft.activations(batch), hard.activations(batch))]
        if hard.config.logits is not None:
            pairs.append((soft(batch), hard(batch)))
        for a, b in pairs:
            found = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()
            largest = float(np.maximum(largest, found))
    return largest


def _promise(model: Transformer, measured: UniformTieless, epsilon: float) -> SoftenedPromise:
    parameters, layers = model.parameters, model.config.layers
    constants = norm_constants(parameters)
    within = epsilon / head_gain(parameters)
    theorem = theorem_temperature(constants, layers, measured.n, measured.gap, measured.x_max, within)
    return SoftenedPromise(
        n=measured.n,
        epsilon=epsilon,
        tau=warmest_temperature(parameters, measured, epsilon, theorem),
        theorem_tau=theorem,
        gap=measured.gap,
        x_max=measured.x_max,
        gaps=measured.gaps,
        inputs=measured.inputs,
        exhaustive=measured.exhaustive,
        constants=constants,
    )
