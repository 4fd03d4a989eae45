"""`jaxsens.flip_sensitivity`: from a model and an input to the sensitivity of every single-symbol flip."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsens import stopping
from jaxsens.errors import InputError, PrecisionWarning
from jaxsens.precision import numerics
from jaxsens.sensitivity import placement
from jaxsens.sensitivity.adapters import RANDOM_OUTPUT, Measurable, measurable
from jaxsens.sensitivity.arguments import beyond_precision, checked, chosen_outputs, places
from jaxsens.sensitivity.choice import choose
from jaxsens.sensitivity.flips import Sample, enumerate_flips
from jaxsens.sensitivity.norms import Norm
from jaxsens.sensitivity.result import FlipSensitivity
from jaxsens.versions import versions


class MeasurementInterrupted(KeyboardInterrupt):
    """Ctrl-C during `flip_sensitivity`. `partial` is the result on the flips that were finished, no random sample."""

    def __init__(self, partial: FlipSensitivity) -> None:
        super().__init__(f"interrupted after {len(partial)} of {partial.population} flips; see .partial")
        self.partial = partial


def flip_sensitivity(
    model: Any,
    tokens: Any,
    alphabet_size: int | None = None,
    *,
    symbols: Sequence[int] | None = None,
    positions: Sequence[int] | Sample | None = None,
    norm: Norm = "l2",
    outputs: Sequence[int] | Literal["all"] | None = None,
    engine: Literal["auto", "vmap", "difference"] = "auto",
    batch_size: int | None = None,
    memory_budget: int | None = None,
    mesh: Mesh | None = None,
    progress: placement.Progress | None = None,
) -> FlipSensitivity:
    """Measures ||y_r(x) - y_r(x')|| for every x' that differs from x in one symbol.

    Arithmetic is in the model's dtype (float64 parameters are computed with in float64 whatever JAX's global
    setting), with matrix products at `highest` precision: JAX's default on GPUs (TF32) and TPUs (bfloat16) keeps
    two to three digits, and a flip's effect of O(1/n) is lost in what they drop. Programs are compiled once a shape; a
    second input of the same length runs at once. Memory stays within the budget at any n.

    Args:
        model: a jaxsens model, a Flax NNX module, a Linen module with variables (bound, or `(module, variables)`),
            an Equinox module, or any callable from tokens (n,) to an output vector (or number). A function made
            anew for each call compiles anew for each call: make it once.
        tokens: integers (n,), or (batch, n) for several inputs.
        alphabet_size: symbols 0 .. alphabet_size - 1 are put in; known for jaxsens models. Larger tokens (the
            end-of-sequence symbol, id alphabet_size) are never put in, and positions that hold one not flipped.
        symbols: put in these instead.
        positions: 0-based positions to flip, or `jaxsens.sample(count, seed)` for a random sample of the flips.
            By default all but the readout position (the last one, where the model does not say otherwise): it
            reaches the output through the skip connection and changes it by O(1) in every model.
        norm: "l2", "l1" or "linf".
        outputs: which coordinates of the output enter the norm, or "all". By default those that the model designates
            (`model.outputs` of a jaxsens transformer, as compiled ones have), and all where it designates none.
        engine: "vmap", the specification: one forward pass a flip; "difference": carries the change through a jaxsens
            transformer exactly, without subtracting outputs; or "auto": "difference" where it applies.
            `jaxsens.explain` says what "auto" would do, and what it would cost.
        batch_size: flips at a time on each device; by default what is fast and fits the budget.
        memory_budget: bytes of temporary memory on each device; by default 2 GiB on CPU, 8 GiB on an accelerator.
        mesh: the devices to spread the flips over; by default all of this process. Results depend on neither the
            devices nor the batch size, but for rounding.
        progress: called with (flips done, flips in all) about once a second.

    Returns:
        A `FlipSensitivity`: norms, positions and symbols of the flips, statistics, which engine ran and why.

    Warns:
        PrecisionWarning: if the input is longer than the model is exact in its dtype (`model.exact_length`).

    Raises:
        MeasurementInterrupted: on Ctrl-C, with what was finished.
        InputError: naming each argument that cannot be used and the remedy; also for a model whose output is not
            finite, differs between two identical calls, is not a vector, or has a size that depends on n.
    """
    subject = measurable(model)
    words, alphabet = checked(
        subject, tokens, alphabet_size, symbols, norm, outputs, engine, batch_size, memory_budget
    )
    where, drawn = places(subject, words.shape[1], positions)
    chosen = chosen_outputs(subject, outputs)
    imprecise = beyond_precision(subject, words.shape[1])
    if imprecise is not None:
        warnings.warn(imprecise, PrecisionWarning, stacklevel=2)
    with numerics(subject.dtype):
        dtype = checked_output(subject, words, chosen)
        runner, choice = choose(subject, engine, norm, chosen, words.shape[1])
        special = np.ones(words.shape, bool) if symbols is not None else words <= alphabet[-1]
        explicit = positions is not None and not isinstance(positions, Sample)
        flips = enumerate_flips(words, alphabet, where, special | explicit, drawn)
        if not len(flips):
            raise InputError(
                f"tokens of shape {words.shape}: nothing to flip; the readout position is left out by default, "
                "give a longer input or positions=..."
            )
        parameters = jax.tree.map(jnp.asarray, subject.parameters)
        devices = placement.Placement(
            placement.local_mesh() if mesh is None else mesh, batch_size, memory_budget
        )
        interrupted, declined = None, 0
        try:
            with stopping.noting(signal.SIGINT):
                norms, declined = placement.measure(
                    runner, parameters, words, flips.inputs, flips.positions, flips.symbols, devices, progress
                )
        except placement.Interrupted as stop:
            interrupted, norms = stop, stop.norms
    finished = ~np.isnan(norms) if interrupted is not None else np.ones(len(flips), bool)
    check_finite(norms[finished], flips.positions[finished])
    result = FlipSensitivity(
        norms=norms[finished],
        inputs=flips.inputs[finished],
        positions=flips.positions[finished],
        symbols=flips.symbols[finished],
        tokens=words,
        alphabet=tuple(int(s) for s in alphabet),
        population=flips.population,
        populations=tuple(flips.populations.tolist()),
        norm=norm,
        outputs=chosen,
        engine=choice.after(declined, len(flips)),
        dtype=dtype,
        versions=versions(),
    )
    if interrupted is not None:
        raise MeasurementInterrupted(result) from interrupted
    return result


def checked_output(subject: Measurable, words: np.ndarray, outputs: Sequence[int] | None) -> str:
    """Calls a user's model twice on the first input, and once abstractly; returns the output's dtype.

    A jaxsens transformer is known to be a pure function with one vector as its output: it is not called.
    """
    if subject.config is not None:
        _check_outputs(outputs, subject.config.logits or subject.config.width)
        return subject.config.dtype
    shape, dtype = _abstract_output(subject, words.shape[1])
    if len(shape) > 1:
        raise InputError(
            f"model: its output has shape {shape}; a vector or a number is needed. Read out one position, "
            "e.g. lambda tokens: model(tokens)[-1], or with a batch axis lambda tokens: model(tokens[None])[0, -1]"
        )
    _check_outputs(outputs, int(np.prod(shape)))
    tokens = jnp.asarray(words[0])
    first, second = np.asarray(subject.call(tokens)), np.asarray(subject.call(tokens))
    if not np.all(np.isfinite(first)):
        raise InputError(
            "model: its output on the first input is not finite; check the weights and the input"
        )
    if not np.array_equal(first, second):
        raise InputError(RANDOM_OUTPUT)
    if shape != first.shape:
        raise InputError(
            f"model: called it returns shape {first.shape}, compiled {shape}; make it a pure function"
        )
    if words.shape[1] > 2 and len(shape) == 1 and shape[0] == words.shape[1]:
        try:
            shorter = _abstract_output(subject, words.shape[1] - 1)[0]
        except (TypeError, ValueError):
            return dtype  # A model for inputs of one length only has an output of one size only.
        if shorter != shape:
            raise InputError(
                f"model: its output has one entry a position (shape {shape} at n = {words.shape[1]}); read out one, "
                "e.g. lambda tokens: model(tokens)[-1]"
            )
    return dtype


def _check_outputs(outputs: Sequence[int] | None, size: int) -> None:
    if outputs is not None and max(outputs) >= size:
        raise InputError(f"outputs = {list(outputs)}: the model has the outputs 0 to {size - 1}")


def _abstract_output(subject: Measurable, n: int) -> tuple[tuple[int, ...], str]:
    tokens = jax.ShapeDtypeStruct((n,), jnp.asarray(0).dtype)
    try:
        result = jax.eval_shape(subject.apply, subject.parameters, tokens)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise InputError(
            "model: it cannot be traced by JAX; write it with jax.numpy, without NumPy calls or Python branches on "
            f"the values of tokens ({type(error).__name__})"
        ) from error
    return result.shape, str(jnp.promote_types(result.dtype, jnp.float32))


def check_finite(norms: np.ndarray, positions: np.ndarray) -> None:
    """Refuses a model that gives norms that are no numbers; `positions` are those of the flips."""
    bad = ~np.isfinite(norms)
    if bad.any():
        raise InputError(
            f"model: the output is not finite under {int(bad.sum())} of {len(norms)} flips, first at position "
            f"{int(positions[np.argmax(bad)])}; use float64, or smaller weights"
        )
