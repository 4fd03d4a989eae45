"""What the arithmetic of a model resolves on an input: its unflipped forward pass, and warnings about rounding."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base.errors import InputError, PrecisionWarning
from jaxsens.core.base.programs import UNRESOLVED
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.engine import Engine
from jaxsens.core.models.adapters import Model
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.program import Ready, computed, inputs_at_once, prepared_on

if TYPE_CHECKING:
    from jaxsens.core.results.result import FlipSensitivity


class ForwardPass(NamedTuple):
    """The unflipped run of a model: the output on the first input, the largest |log-normaliser| of each layer of a
    jaxsens transformer on any input, and the first inputs as the engine prepared them."""

    output: Float[np.ndarray, " outputs"]
    largest: Float[np.ndarray, " layers"]
    first: Ready


def forward_pass(
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    engine: Engine,
    parameters: Any,
    placement: Placement,
) -> ForwardPass:
    """Prepares the first inputs as the engine does, and of a jaxsens transformer every one; keeps the first ones.

    So this compiles nothing that a measurement does not need. Call it within `numerics(model.dtype)`.

    Raises:
        InputError: if the output on one of the inputs is not finite.
    """
    first: Any = None  # there is at least one input
    largest = np.zeros(0 if model.config is None else model.config.layers)
    with computed(engine, placement) as there:
        size = inputs_at_once(engine, parameters, tokens.shape, there)
        for start in range(0, size if model.config is None else len(tokens), size):
            ready = prepared_on(there.local, engine, parameters, tokens[start : start + size])
            bad = np.flatnonzero(~np.all(np.isfinite(ready.output), axis=1))
            if len(bad):
                where = f"its output on input {start + bad[0]} is not finite in {model.dtype}"
                remedy = "look for NaN in its parameters, or use float64 or smaller weights"
                raise InputError.note("model", f"{where}; {remedy}")
            # An engine of a package may not see the scores.
            sizes = ready.sizes.max(axis=0) if ready.sizes.size else 0
            first, largest = first or ready, np.maximum(largest, sizes) if len(largest) else largest
    return ForwardPass(first.output[0], largest, first)


def unreliable(model: Model, n: int, passed: ForwardPass, widens: bool) -> str | None:
    """Returns why a result for inputs of length n may be an effect of rounding; None if no reason is known.

    Either the model is exact only up to a smaller length, or its dtype cannot resolve its attention scores. With
    `widens`, float64 is assumed: the engine measures in float64 what float32 does not resolve. Only scores of keys with
    weight matter, so the check uses the log-normaliser of each row, which is within log n of the largest score; in the
    last layer only the readout row's. Hard weightings, sparsemax and entmax are skipped, as is a constructed model up
    to its `exact_length`.
    """
    config, limit = model.config, model.exact_length
    if limit is not None and n > limit:
        wider = (
            'with dtype="float64", which is exact for longer inputs, or ' if model.dtype == "float32" else ""
        )
        return (
            f"n = {n}: in {model.dtype} this model is exact only up to n = {limit}. Rounding affects which key its "
            f"attention chooses, so the result may be an effect of rounding; build the model {wider}under another "
            "condition"
        )
    if config is None or limit is not None:
        return None
    largest, dtype = passed.largest, "float64" if widens else model.dtype
    error = largest * np.finfo(dtype).eps
    if not np.any(error > UNRESOLVED):
        return None
    layer = int(np.argmax(error))
    remedy = "smaller query and key weights, or a higher temperature"
    if dtype == "float32":
        remedy = f'dtype="float64", or {remedy}'
        if difference.refusal(config) is None:
            remedy = f'engine="difference", which measures in float64 what float32 cannot, {remedy}'
    return (
        f"n = {n}: attention scores of layer {layer} reach {largest[layer]:.2g}, where {dtype} has an error of "
        f"{error[layer]:.2g}. A difference of 1 is a factor of e between attention weights, so the result "
        f"may be an effect of rounding; use {remedy}"
    )


def warn_if_unresolved(result: FlipSensitivity, stacklevel: int) -> None:
    """Issues one `PrecisionWarning` that counts the flips whose change is below the rounding of its arithmetic.

    There is none if all of these are exactly 0: no path may lead from such a flip to the output, and of a model of
    which all changes are 0 an `UnchangedWarning` says so.
    """
    blurred = ~result.resolved
    count, zeros = int(blurred.sum()), int((blurred & (result.norms == 0)).sum())
    if not count or count == zeros:
        return
    largest = np.max(result.resolution[blurred])
    exact = f", {zeros} of them as exactly 0" if zeros else ""
    warnings.warn(
        f"n = {result.n}: {count} of {len(result)} flips change the output by less than its arithmetic resolves"
        f"{exact}. Their change is at most its value plus `result.resolution`, up to {largest:.2g}. "
        "`result.resolved` says which; statistics that they matter to say at most, and fits leave them out",
        PrecisionWarning,
        stacklevel=stacklevel,
    )
