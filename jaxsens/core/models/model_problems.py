"""Errors for models that are not functions from tokens to an array: five messages, each with what to write."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.errors import InputError, Written, shortened
from jaxsens.core.base.inputs import takes
from jaxsens.core.models.transformer.config import NetworkConfig
from jaxsens.core.models.transformer.module import instead_of, network

_KINDS = (
    "a jaxsens model, an NNX module, (Linen module, variables), (function, parameters), an Equinox module, or a "
    "callable tokens -> array"
)
_CALLBACK = """
    kind = jax.ShapeDtypeStruct((d,), "float32")  # of the model's output
    numpy = lambda t: np.asarray(numpy_model(np.asarray(t)), "float32")
    model = lambda tokens: jax.pure_callback(numpy, kind, tokens, vmap_method="sequential")"""
_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_REMEDIES = {
    (
        "vmap_method",
    ): 'its callback takes one input at a time: jax.pure_callback(..., vmap_method="sequential")',
    (
        "context mesh",
    ): "it uses shard_map, but jaxsens spreads the flips over devices: pass the function within",
    (
        "trace level",
    ): "it changes the state of a Flax module: pass (lambda parts, tokens: nnx.merge(*parts)(tokens), "
    "nnx.split(module))",
    (
        "ScopeCollection",
        "ApplyScope",
    ): 'pass everything that init returned, or (module, {"params": parameters})',
    ("Rng", "ropout", "deterministic"): "switch off randomness: model.eval(), deterministic=True, "
    "eqx.nn.inference_mode(model)",
    ("MemoryError", "RESOURCE_EXHAUSTED"): "give a shorter input",
}
"""What to do about an exception of JAX or Flax whose name or text has one of these parts."""


def check_is_model(model: Any) -> None:
    """Rejects an object that is not a model, or that cannot be called as one.

    Raises:
        InputError: with what to pass.
    """
    pair = model if isinstance(model, tuple) and len(model) == 2 and not callable(model) else ()
    function, called_as = (pair[0], "function(parameters, tokens)") if pair else (model, "model(tokens)")
    if not callable(function) or inspect.isclass(function) or _is_of_torch(function):
        what = f"({', '.join(type(part).__name__ for part in pair)})" if pair else type(model).__name__
        what = repr(os.fspath(model)) if isinstance(model, str | os.PathLike) else what
        raise InputError.of(
            "model", Written(what), f"pass {_instead(function if callable(function) else model)}"
        )
    if not takes(function, 2 if pair else 1):
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"model = {name}{inspect.signature(function)}: it is called as {called_as}. Pass an argument before the "
            "tokens in a pair, (function, parameters); others by lambda tokens: model(tokens, deterministic=True)"
        )


def _instead(model: Any) -> str:
    if inspect.isclass(model):
        return f"an instance of the class, {model.__name__}(...)"
    if _is_of_torch(model):
        return "jaxsens.from_torch(module.eval())"
    if isinstance(model, NetworkConfig):
        made = network(model.kind)
        home = re.sub(
            r"^jaxsens(\.core|(\.\w+)).*", r"jaxsens\2", made.__module__
        )  # where users take it from
        return f"a model that is made of this config, {home}.{made.__name__}(config, seed=0)"
    if isinstance(model, str | os.PathLike):
        return "the model that a path holds, jaxsens.training.load_checkpoint(path).model"
    if any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(model)):
        return "parameters with their function, (function, parameters)"
    return instead_of(model, _KINDS)


def _is_of_torch(model: Any) -> bool:
    return any(base.__module__.startswith("torch.") for base in type(model).__mro__)


def check_is_array(output: Any) -> Any:
    """Returns an output, and rejects one that is not an array of real numbers, or a number.

    Raises:
        InputError: with what it is, and how to select an array from it.
    """
    what, select = f"a {type(output).__name__}", "one array of real numbers, such as network(tokens)[0]"
    if isinstance(output, jax.Array | np.ndarray | np.generic | int | float | complex):
        dtype = jnp.result_type(output)
        if getattr(dtype, "kind", "") in ("b", "i", "u", "f") or dtype == jnp.bfloat16:
            return output
        what = f"an array of {dtype}"
        select = "real numbers: y.astype(jnp.float32), or of complex ones jnp.stack([y.real, y.imag]).ravel()"
    elif isinstance(output, Mapping):
        select = f"network(tokens)[{next(iter(output), 'logits')!r}], an array, one of {list(output)}"
    elif dataclasses.is_dataclass(output):
        fields = [field.name for field in dataclasses.fields(output)]
        select = f"network(tokens).{'logits' if 'logits' in fields else fields[0]}, an array, one of {fields}"
    raise InputError.note("model", f"it returns {what}; return {select}")


def raised(error: Exception, n: int) -> str:
    """Returns the message for an exception that a model raised when called on tokens of shape (n,)."""
    text = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    if isinstance(error, _UNTRACEABLE) or "Tracer" in text:
        return (
            f"model: JAX cannot trace it ({shortened(text, 200)}); write it with jax.numpy, without NumPy calls, "
            "float() or Python branches on the values of tokens. A PyTorch module is passed as "
            f"jaxsens.from_torch(module.eval()); a function that must use NumPy is called back:{_CALLBACK}"
        )
    everything = f"{type(error).__name__} {error}"
    known = (remedy for parts, remedy in _REMEDIES.items() if any(part in everything for part in parts))
    batch = "it is called with a single input; to add a leading batch axis, use lambda tokens: model(tokens[None])[0]"
    return (
        f"model: called on whole numbers of shape ({n},) it raised {text.rstrip('.')}; {next(known, batch)}"
    )
