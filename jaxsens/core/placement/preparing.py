"""What an engine computes once for each input, for many inputs in one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.programs import (
    abstract_of,
    cached,
    compiled,
    compiled_for,
    numerics,
    on_host,
    platform_of,
    power_within,
    program_key,
    room_for,
)
from jaxsens.core.engines.engine import Engine
from jaxsens.core.measures import L2
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.program import bytes_of, is_single, spec_on

_SYMBOLS = 2**14
"""The symbols of the inputs that are prepared by one call, at most: between two calls, Ctrl-C is heard."""

_TOGETHER, _IN_CACHE = 2**13, 2**11
"""The symbols that are run at the same time: by an accelerator, where what is computed on the way may be large, and by
a CPU, where more leave the cache of a core."""

_MANY = 16
"""The words from which on a CPU runs several at the same time. Fewer have the values that each has alone."""

_SHARE = 0.25
"""The share of the memory budget that prepared inputs may take."""


class Ready(NamedTuple):
    """Inputs that an engine has prepared, on every device, and the parameters with tables (`Engine.with_tables`).

    What `Engine.prepare` returns has an axis for inputs in front, which may have room for more than there are.
    `output`, `sizes` and `resolved` are what `Engine.output`, `sizes` and `resolves` return for each.
    """

    parameters: Any
    prepared: Any
    output: Float[np.ndarray, "inputs outputs"]
    sizes: Float[np.ndarray, "inputs layers"]
    resolved: Bool[np.ndarray, " inputs"]


@contextmanager
def computed(engine: Engine, placement: Placement) -> Iterator[Placement]:
    """Enters the arithmetic of an engine; yields where it computes: on the host, if that is float64 and the devices
    have none."""
    with ExitStack() as settings:
        if engine.wide:
            settings.enter_context(numerics("float64"))
        if not (placement.platform.float64 or jnp.result_type(float) != jnp.float64):
            placement = Placement(settings.enter_context(on_host()))
        yield placement


def inputs_at_once(engine: Engine, parameters: Any, shape: tuple[int, int], placement: Placement) -> int:
    """Returns how many of some inputs (inputs, n) are prepared, and their flips measured, at once: what fits in the
    memory.

    Processes that share a mesh take one after the other: each exchanges a fixed number of integers for it.
    """
    count, n = shape
    most = min(count, max(1, max(_SYMBOLS, placement.platform.forward_symbols) // n))
    if most <= 1 or placement.group is not None:
        return 1
    key = program_key(engine.with_tables(parameters, n), n)
    each, own = _prepared_bytes(engine.shared, *key), bytes_of(abstract_of(*key[:2]))
    return max(1, min(most, int(_SHARE * (placement.budget(own) - own) / max(1, each))))


@cached
def _prepared_bytes(engine: Engine, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> int:
    del wide  # 64-bit types are on: another program
    parameters = abstract_of(structure, shapes)
    return bytes_of(jax.eval_shape(engine.prepare, parameters, jax.ShapeDtypeStruct((n,), jnp.int32)))


def prepared_on(mesh: Mesh, engine: Engine, parameters: Any, tokens: Int[np.ndarray, "inputs n"]) -> Ready:
    """Returns the parameters of the `shared` engine, and its prepared values for inputs, on every device of a mesh.

    An engine with `prepares_in_float64` prepares in float64, on the host if the devices do not compute in it, and the
    result is rounded once to 32 bits.
    """
    count, n = tokens.shape
    parameters, engine = engine.with_tables(parameters, n), engine.shared
    if engine.wide:
        parameters = jax.tree.map(_widened, parameters)
    filled = np.zeros((room_for(count), n), np.int32)
    filled[:count] = tokens
    prepare = preparation_of(engine)
    if engine.prepares_in_float64:
        with numerics("float64"), nullcontext() if platform_of(mesh).float64 else on_host():
            prepared = prepare(jax.tree.map(np.asarray, parameters), filled, np.int32(count))
    else:
        prepared = prepare(parameters, filled, np.int32(count))
    arguments = parameters, prepared[0]
    if is_single(mesh):
        device = mesh.devices.flat[0]  # arrays that are there already are not moved, which takes long
        arguments = jax.tree.map(
            lambda leaf: leaf if getattr(leaf, "device", None) == device else jax.device_put(leaf, device),
            arguments,
        )
    else:
        places = jax.tree.map(lambda leaf: NamedSharding(mesh, spec_on(leaf, mesh)), arguments)
        arguments = jax.device_put(arguments, places)
    return Ready(*arguments, *(np.asarray(one)[:count] for one in prepared[1:]))


def preparation_of(engine: Engine) -> Callable[[Any, Any, Any], tuple[Any, Array, Array, Array]]:
    """Returns what prepares inputs for a `shared` engine: of (parameters, words, their number) it gives what `Ready`
    has beside the parameters. Words beyond that number are not prepared. One program serves all measures and outputs,
    if the engine prepares for neither."""
    if not engine.prepares_for_measure:
        engine = replace(engine, measure=L2(), outputs=None)
    return partial(_prepare_in_float64 if engine.prepares_in_float64 else _prepare, engine)


def _widened(leaf: Any) -> Any:
    """Returns an array in float64, unless it holds whole numbers."""
    return jax.device_put(np.asarray(leaf, np.float64)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _prepared(engine: Engine, parameters: Any, tokens: Any, count: Any) -> tuple[Any, Array, Array, Array]:
    def one(word: Array) -> tuple[Any, Array, Array, Array]:
        prepared = engine.prepare(parameters, word)
        output = engine.output(parameters, prepared)
        return prepared, output, engine.sizes(prepared), engine.resolves(prepared)

    # One after the other on a CPU: where no path leads from a flip to the output, both are then the same to the bit.
    return of_first(one, (tokens,), count, alone=compiled_for().threads)


def of_first(one: Callable[..., Any], words: tuple[Array, ...], count: Any, alone: bool = False) -> Any:
    """Returns the trees that a function makes of each of the first `count` words (room, n), and of what else there is
    for each, with an axis in front. Those of other words are of no use. The room is a power of two. With `alone`, one
    word is run after the other, as few words always are on a CPU."""
    room, n = words[0].shape
    if room == 1:
        return jax.tree.map(lambda leaf: leaf[None], one(*(array[0] for array in words)))
    symbols = _TOGETHER
    if compiled_for().threads:
        symbols = 1 if alone or room < _MANY else _IN_CACHE
    together = min(room, power_within(symbols / n))
    if together == 1:
        some, groups = one, words
    else:
        some = jax.vmap(one)
        groups = tuple(array.reshape(room // together, together, *array.shape[1:]) for array in words)
    kinds = jax.eval_shape(some, *(group[0] for group in groups))
    empty = jax.tree.map(lambda kind: jnp.zeros((room // together, *kind.shape), kind.dtype), kinds)

    def step(k: Array, results: Any) -> Any:
        own = some(*(group[k] for group in groups))
        return jax.tree.map(lambda leaf, part: leaf.at[k].set(part), results, own)

    results = jax.lax.fori_loop(0, (count + together - 1) // together, step, empty)
    return results if together == 1 else jax.tree.map(lambda x: x.reshape(room, *x.shape[2:]), results)


_prepare = compiled(static=1)(_prepared)


@compiled(static=1)
def _prepare_in_float64(
    engine: Engine, parameters: Any, tokens: Any, count: Any
) -> tuple[Any, Array, Array, Array]:
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), parameters)
    narrow, prepared = {"float64": jnp.float32, "int64": jnp.int32}, _prepared(engine, wide, tokens, count)
    return jax.tree.map(lambda leaf: leaf.astype(narrow.get(str(leaf.dtype), leaf.dtype)), prepared)
