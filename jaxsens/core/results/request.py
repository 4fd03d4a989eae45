"""What was requested of a measurement: what `joined` compares and files hold. And digests of models: of their
parameters, and of what they compute."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from pydantic import PlainValidator

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.programs import abstract_of, cached, program_key
from jaxsens.core.base.registry import read
from jaxsens.core.checks.functions import checked_function
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Forgotten, Measure
from jaxsens.core.models.adapters import Model


def fingerprint(model: Model, n: int, weights: str | None = None) -> str:
    """Returns the SHA-256 of a model's parameters (`weights_of`, if known) and of its function on inputs of length n.

    The function of a jaxsens transformer is given by its config, a PyTorch module by its description. For any other
    model it is the lowered JAX program (StableHLO), with the arrays that it closes over; it depends on JAX's
    version and the kind of device.
    """
    weights = weights_of(model) if weights is None else weights
    if model.config is not None:
        function = repr(model.config)
    elif model.torch is not None:
        function = f"PyTorch {model.readout!r}"
    else:
        function = _program(model.apply, *program_key(model.parameters, n))
    return hashlib.sha256(f"{function} {weights}".encode()).hexdigest()


def weights_of(model: Model) -> str:
    """Returns the SHA-256 of a model's parameters, by path; of a PyTorch module with its description.

    That of JAX's arrays is kept as long as they are: to read all weights takes longer than to measure a short input.
    """
    leaves, structure = jax.tree.flatten(model.parameters)
    if model.torch is not None or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return _digest(model.parameters, "" if model.torch is None else model.torch.digest())
    return _digest_of_arrays(structure, *leaves)


@cached
def _digest_of_arrays(structure: Any, *leaves: jax.Array) -> str:
    return _digest(jax.tree.unflatten(structure, leaves))


def _digest(parameters: Any, description: str = "") -> str:
    digest = hashlib.sha256(description.encode())
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@cached
def _program(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> str:
    """Returns the SHA-256 of the program. `wide` (64-bit types are on) is part of the cache key."""

    def program(parameters: Any, tokens: Any) -> Any:
        return apply(parameters, tokens)

    tokens = jax.ShapeDtypeStruct((n,), np.int32)
    parameters = abstract_of(structure, shapes)
    lowered = jax.jit(program).lower(parameters, tokens)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def name_of(model: Any) -> str | None:
    """Returns the name that a model has; that of a function, or of the model's class; None for a lambda."""
    if isinstance(model, tuple) and model:
        return name_of(model[0])
    own = getattr(model, "name", None) or getattr(model, "__name__", None)
    if isinstance(own, str):
        return None if own == "<lambda>" else own
    return type(model).__name__


def _from_file(base: Any) -> PlainValidator:
    """Returns the validator of a field that files hold as an option's `table`."""

    def answer(value: Any) -> Any:
        if isinstance(value, Mapping) and "program" in value:
            return base.kinds[value["kind"]](Forgotten(value["program"]))
        with collecting("asked") as problems:
            return read(base, value, problems, file=True)

    return PlainValidator(answer)


@dataclass(frozen=True)
class RequestRecord:
    """What a measurement was asked. The inputs are in its result.

    Attributes:
        flips: what is flipped.
        measure: what is measured of the change in the output; a threshold is a number.
        engine: as asked for.
        readout: where the model reads its output: a 0-based position, "last" or "mean"; None if unspecified.
        outputs: the output coordinates that were measured; None for all.
        model: SHA-256 of the model's parameters and its function (`jaxsens.core.results.request`).
        weights: SHA-256 of the parameters alone, whatever the inputs' length.
        counts: the number of flips requested for each input.
    """

    flips: Annotated[Flips, _from_file(Flips)]
    measure: Annotated[Measure, _from_file(Measure)]
    engine: Annotated[AskedEngine, _from_file(AskedEngine)]
    readout: int | str | None
    outputs: tuple[int, ...] | None
    model: str
    weights: str
    counts: tuple[int, ...]

    def compared(self) -> dict[str, Any]:
        """Returns what two measurements have in common if the results of one complete the other, by name."""
        return {
            "flips": self.flips,
            "measure": self.measure.without_function(""),
            "outputs": self.outputs,
            "engine": self.engine,
            "readout": self.readout,
        }


def requested(
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    table: FlipTable,
    options: tuple[Flips, Measure, AskedEngine],
    output: tuple[tuple[int, ...], str],
) -> RequestRecord:
    """Returns the request of a call, from its flips, measure and engine. `output` has the shape and dtype of the
    model's output.

    Raises:
        InputError: for a measure's function that does not return one number.
    """
    (flips, measure, engine), weights = options, weights_of(model)
    if measure.function is not None:
        measure = measure.without_function(checked_function(measure, *output))
    return RequestRecord(
        flips=flips,
        measure=measure,
        engine=engine,
        readout=model.readout,
        outputs=measure.coordinates(model.outputs),
        model=fingerprint(model, tokens.shape[1], weights),
        weights=weights,
        counts=tuple(np.bincount(table.inputs, minlength=len(tokens)).tolist()),
    )
