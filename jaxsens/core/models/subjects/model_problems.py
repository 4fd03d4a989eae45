"""Error messages for models that are not functions from tokens to an array, with code that would work."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.errors import NO_VALUE, InputError
from jaxsens.core.base.inputs import takes
from jaxsens.core.models.config_tables import network
from jaxsens.core.models.networks.config import NetworkConfig
from jaxsens.core.models.networks.given import instead_of

_PARAMETERS_ALONE = ("ScopeCollectionNotFound", "ApplyScopeInvalidVariablesTypeError")
"""What Linen raises if the variables of a pair are the parameters alone."""

_ELSEWHERE = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_KINDS = "a jaxsens model, an NNX module, (Linen module, variables), (function, parameters), an Equinox module, or a"


def lines(model: str, readout: str = "") -> str:
    """Returns the two lines of code: how to make the model, and the call."""
    return f":\n    model = {model}\n    jaxsens.flip_sensitivity(model, tokens, flips=...{readout})"


def called_back(call: str) -> str:
    """Returns the two lines for a model that computes outside JAX; `call` is its call on a NumPy array `t`."""
    return (
        ":\n"
        f'    kind = jax.ShapeDtypeStruct((d,), "float32")  # of the model\'s output\n'
        f'    model = lambda tokens: jax.pure_callback(lambda t: np.asarray({call}, "float32"), kind, tokens, '
        'vmap_method="sequential")'
    )


def _called_elsewhere(home: str) -> str:
    """Returns the lines for a module of another framework."""
    if home == "PyTorch":
        return lines("jaxsens.from_torch(module.eval())")
    return called_back("module(np.asarray(t))")


def check_is_model(model: Any) -> None:
    """Rejects an object that is not a model.

    Raises:
        InputError: saying what it is instead, and what to write.
    """
    problem = _what_it_is(model)
    if problem is not None:
        raise InputError(f"model = {problem}")


def _what_it_is(model: Any) -> str | None:
    name = type(model).__name__
    if inspect.isclass(model):
        return f"{model.__name__}, a class: pass an instance{lines(f'{model.__name__}(...)')}"
    home = _framework(type(model))
    if home is not None:
        return f"{name}, of {home}: JAX cannot trace it. Let JAX call it{_called_elsewhere(home)}"
    if isinstance(model, NetworkConfig):
        made = network(model.kind)
        return (
            f"{name}, a config: make a model of it{lines(f'{_home(made)}.{made.__name__}(config, seed=0)')}"
        )
    if isinstance(model, str | os.PathLike):
        return f"{os.fspath(model)!r}, a path: load it{lines('jaxsens.training.load_checkpoint(path).model')}"
    if isinstance(model, tuple) and len(model) == 2 and not callable(model):
        return _what_the_pair_is(*model)
    if not callable(model):
        held = any(map(_is_array, jax.tree.leaves(model)))
        if held and (isinstance(model, Mapping | list | tuple) or dataclasses.is_dataclass(model)):
            return (
                f"{name}: parameters alone are not a model; pass them with the function, which is called as "
                f"function(parameters, tokens){lines('(function, parameters)')}"
            )
        return f"{name}: pass {instead_of(model, f'{_KINDS} callable tokens -> array')}"
    if not takes(model, 1):
        return (
            f"{_called(model)}: it is called only with the tokens. Pass an argument before them in a pair"
            f"{lines('(function, parameters)')}\nFor arguments after them, or keyword arguments: lambda tokens: "
            "model(tokens, deterministic=True)"
        )
    return None


def _what_the_pair_is(function: Any, parameters: Any) -> str | None:
    if type(function).__name__ == "GraphDef":
        return f"the result of nnx.split: merge it{lines('nnx.merge(graphdef, state)')}"
    if callable(function) and type(function) is type(parameters) and not inspect.isfunction(function):
        return f"two {type(function).__name__}, as from eqx.partition: combine them{lines('eqx.combine(*parts)')}"
    if not callable(function):
        if callable(parameters):
            return f"a pair in the wrong order: the function comes first{lines('(function, parameters)')}"
        return f"a pair without a function: parameters alone are not a model{lines('(function, parameters)')}"
    if inspect.isclass(function):
        return (
            f"a pair with {function.__name__}, a class: pass an instance{lines(f'{function.__name__}(...)')}"
        )
    if callable(parameters) and not any(map(_is_array, jax.tree.leaves(parameters))):
        return (
            "a pair of two functions: pass the one that is called as function(parameters, tokens), with the parameters"
            f"{lines('(apply, init(key, tokens))')}"
        )
    if not takes(function, 2):
        return (
            f"a pair with {_called(function)}: it is called as function(parameters, tokens)"
            f"{lines('(lambda parameters, tokens: ..., parameters)')}"
        )
    return None


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _called(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name}{inspect.signature(function)}"


def _home(kind: type) -> str:
    """Returns the module from which users take a class."""
    top, package, *_ = *kind.__module__.split("."), ""
    if top != "jaxsens":
        return kind.__module__
    return top if package == "core" else f"{top}.{package}"


def _framework(kind: type) -> str | None:
    """Returns the non-JAX framework that a class comes from, or None."""
    rooms = {base.__module__.split(".")[0] for base in kind.__mro__}
    return next((name for room, name in _ELSEWHERE.items() if room in rooms), None)


def check_is_array(output: Any) -> None:
    """Rejects an output that is neither an array nor a number.

    Raises:
        InputError: saying what it is, and how to select an array from it.
    """
    if isinstance(output, jax.Array | np.ndarray | np.generic | int | float | complex):
        remedy = _what_numbers(jnp.result_type(output))
        if remedy is not None:
            raise InputError.of("model", NO_VALUE, f"it returns {jnp.result_type(output)}; {remedy}")
        return
    name = type(output).__name__
    if output is None:
        raise InputError.of(
            "model",
            NO_VALUE,
            "it returns None; an array is needed. Does it lack a return?\n"
            "    def model(tokens):\n        return logits",
        )
    if isinstance(output, Mapping):
        keys = list(output)
        part, has = (
            f"[{keys[0] if keys else 'logits'!r}]",
            f"a {name} with the keys {', '.join(map(repr, keys))}",
        )
    elif isinstance(output, tuple | list):
        part, has = "[0]", f"a {name} of {len(output)}"
    else:
        fields = (
            [field.name for field in dataclasses.fields(output)] if dataclasses.is_dataclass(output) else []
        )
        likeliest = "logits" if "logits" in fields or not fields else fields[0]
        part, has = f".{likeliest}", f"a {name}" + (f" with {', '.join(fields)}" if fields else "")
    raise InputError(
        f"model: it returns {has}; an array is needed. Select the one to measure"
        + lines(f"lambda tokens: network(tokens){part}")
    )


def _what_numbers(dtype: Any) -> str | None:
    """Returns what to return instead of an array of a dtype that cannot be measured, or None if it can."""
    if not jnp.issubdtype(dtype, np.number) and dtype != jnp.bool_:
        return "an array of numbers is needed"
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return "real numbers are needed: jnp.stack([y.real, y.imag]).ravel() has the same l2 norm"
    try:
        jnp.promote_types(dtype, jnp.float32)
    except jax.dtypes.TypePromotionError:
        return "JAX combines it with no other dtype: return y.astype(jnp.float32)"
    return None


def raised(error: Exception, n: int) -> str:
    """Returns the message for an exception that a model raised when called on tokens of shape (n,)."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = f"{type(error).__name__}: {said[0].rstrip('.')}" if said else type(error).__name__
    rooms = (module.split(".")[0] for module in _modules(error.__traceback__))
    home = next((_ELSEWHERE[room] for room in rooms if room in _ELSEWHERE), None)
    if home is not None:
        return f"model: it calls {home}, which JAX cannot trace. Let JAX call it{_called_elsewhere(home)}"
    if isinstance(error, _UNTRACEABLE):
        return (
            "model: it cannot be traced by JAX; write it with jax.numpy, without NumPy calls, float() or Python "
            f"branches on the values of tokens ({type(error).__name__}). If it must use NumPy, let JAX call it"
            + called_back("numpy_model(np.asarray(t))")
        )
    if "vmap_method" in str(error):
        remedy = 'jax.pure_callback(..., vmap_method="sequential")'
        return f"model: its callback takes one input at a time; say so: {remedy} ({named})"
    if "context mesh" in str(error):
        return (
            "model: it uses shard_map, but jaxsens itself spreads the flips over the devices: pass the "
            f"function that the shard_map runs ({named})"
        )
    if "trace level" in str(error):
        one = lines("(lambda parts, tokens: nnx.merge(*parts)(tokens), nnx.split(module))")
        return f"model: it changes the state of a Flax module within. Pass the module, or its parts ({named}){one}"
    if type(error).__name__ in _PARAMETERS_ALONE:
        return (
            "model: its variables lack a collection. Pass everything that init returned, or the parameters by name: "
            f'(module, {{"params": parameters}}) ({named})'
        )
    if type(error).__name__ == "InvalidRngError" or re.search("dropout|deterministic", str(error), re.I):
        remedy = "model.eval(), deterministic=True, eqx.nn.inference_mode(model)"
        return f"model: it needs random numbers; switch off randomness ({remedy}) ({named})"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return f"model: called on {n} symbols it ran out of memory; give a shorter input ({named})"
    return (
        f"model: called on whole numbers of shape ({n},) it raised {named}. It is called with a single input; "
        "to add a leading batch axis, use lambda tokens: model(tokens[None])[0]"
    )


def _modules(trace: TracebackType | None) -> list[str]:
    found = []
    while trace is not None:
        found.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    return found
