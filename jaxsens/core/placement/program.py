"""The program that prepares inputs, many at a time, and the one that measures blocks of flips of several inputs on
every device of a mesh; and the largest block that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError, Written
from jaxsens.core.base.programs import (
    SOONER,
    Shapes,
    abstract_of,
    cached,
    compiled,
    compiled_for,
    compiling_for,
    near,
    numerics,
    on_host,
    platform_of,
    power_within,
    program_key,
    room_for,
)
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.measures import L2
from jaxsens.core.placement.placement import Placement

Quantity = Literal["measured", "changes"]
"""The method of an engine that measures a block of flips. It is NaN for flips that the engine declines."""

_MUCH = 2e9
"""The operations of forward passes from which on XLA's default options pay: the program runs in as little as half of
the time, since softmax and activations are fused in another way, and compiles some tenths of a second longer."""

_TABLES = 0.25
"""Flips that with their results take more than this share of the memory beside the arguments are measured in parts."""


@dataclass(frozen=True)
class FlipProgram:
    """A compiled range of blocks: ((parameters, prepared), inputs, flips, results, start, stop, step) -> results.

    A block has `together` rows of `batch` flips, and each row the number of the prepared input to which its flips
    belong. `shape` and `dtype` are those of one flip's result; `bytes` is the temporary memory of one call; `pace` has
    the least seconds of a block in one thread, once it has run.
    """

    run: Any
    batch: int
    together: int
    blocks: int
    shape: tuple[int, ...]
    dtype: Any
    bytes: int
    pace: list[float]


@dataclass
class FlipRequest:
    """A program to measure flips of some inputs of length n, and the memory that it may take.

    Attributes:
        engine: an `Engine.shared`.
        operands: the model's parameters and what the engine prepared of the inputs; abstract values do.
        outputs: the number of outputs.
        row: the number of positions in the row of a flip.
        placement: where it runs. Its memory holds the arguments, the tables of flips and the temporary memory of all
            threads; a batch size is not changed.
        arguments, budget: the bytes of the operands on each device, and of all that may be there.
        flip_bytes: those of a flip and of its results, in the table that all threads read and in each of theirs.
    """

    quantity: Quantity
    engine: Engine
    operands: tuple[Any, Any]
    n: int
    outputs: int
    row: int
    placement: Placement

    def __post_init__(self) -> None:
        leaves, self.structure = jax.tree.flatten(self.operands)
        mesh, numbers = self.placement.local, 2 if self.quantity == "measured" else self.outputs
        self.shapes = Shapes(placed(leaf, spec_on(leaf, mesh), mesh) for leaf in leaves)
        self.arguments = sum(map(_bytes_on_each, self.shapes))
        self.budget = self.placement.budget(self.arguments)
        number = jnp.result_type(float).itemsize
        self.flip_bytes = 8 * self.row + number * numbers * (1 + self.placement.threads)

    def room(self, flips: int) -> int:
        """Returns how many of the flips are measured at once. The others wait: their table would not fit.

        Raises:
            InputError: if what all flips share does not fit, before anything is compiled.
        """
        free = self.budget - self.arguments
        if free < 0 and not self._unlimited:
            raise InputError.of(
                "memory_budget",
                Written(f"{self.budget} bytes"),
                f"the model and what the flips of an input of length {self.n} "
                f"share take {self.arguments} bytes on each device",
            )
        return max(1, min(flips, int(_TABLES * free / self.flip_bytes) * self.placement.devices.size))

    def program(self, counts: np.ndarray, flips: int, room: int) -> tuple[FlipProgram, int]:
        """Returns the compiled program, and the number of threads that fit in the budget.

        The batch is the largest, up to the preferred size, at which all threads fit. If even single flips are too
        large, fewer threads run. The number of declined flips varies between inputs; to reuse a few programs for all,
        each has room for all flips of the inputs, `counts` for each, and for fewer flips the batch size is a power of
        two or the preferred size. Processes that share the mesh use the smallest batch that any of them finds.
        """
        placement, several = self.placement, len(counts) > 1
        platform = placement.platform
        preferred = placement.batch_size or self.engine.preferred_batch(self.n, platform)
        one_cpu_each = placement.least(placement.local.size == 1 and platform.threads)[0]
        batches = platform.batches if placement.batch_size is None and one_cpu_each else 1
        parts = placement.devices.size * batches
        each, most = -(-flips // parts), -(-room // parts)
        if not several:  # inputs of one length may differ by a few flips
            each, most = near(each), near(most)
        batch = max(1, min(preferred, most, each if flips == room else room_for(each)))
        if several and placement.batch_size is None:  # rows of equal length, with little padding
            longest = int(counts.max())
            batch = -(-longest // -(-longest // batch))

        def rows(batch: int) -> int:
            return room_for(int(min(np.sum(-(-counts // batch)), -(-room // batch) + len(counts) - 1)))

        while True:
            program, threads = self.fitting(batch, rows)
            batch, largest = placement.least(program.batch, -program.batch)
            if batch == -largest:
                return program, threads

    def fitting(self, batch: int, rows: Callable[[int], int]) -> tuple[FlipProgram, int]:
        """Returns the program with the largest batch, up to `batch`, at which all threads fit, and their number.

        `rows` are the rows of flips that the program has room for, on all devices together, by the batch.

        Raises:
            InputError: if not even one flip at a time fits the budget, or the user's batch does not.
        """
        mesh, devices, most = self.placement.local, self.placement.devices.size, self.placement.threads
        wide, platform = jnp.result_type(float) == jnp.float64, platform_of(mesh)
        fixed = self.placement.batch_size is not None
        inputs = max((leaf.shape[0] for leaf in jax.tree.leaves(self.operands[1])), default=1)
        while True:
            together = 1  # a core takes one row after the other, an accelerator as many as keep it busy
            if inputs > 1 and not platform.threads:
                fill = min(self.engine.preferred_batch(self.n, platform) // batch, rows(batch) // devices)
                together = power_within(fill)
            blocks = -(-rows(batch) // (together * devices))
            how = wide, mesh, (batch, together, blocks, self.row)
            try:
                program = compiled_program(self.quantity, self.engine, self.structure, self.shapes, *how)
            except jax.errors.JaxRuntimeError as error:
                # The compiler of a TPU refuses what its memory does not hold.
                if "RESOURCE_EXHAUSTED" not in str(error) or batch == 1 or fixed:
                    raise
                batch //= 2
                continue
            held = self.held(program)
            free = max(0, self.budget - held)
            fitting = most if not program.bytes else min(most, free // program.bytes)
            if fitting == most:
                return program, fitting
            if fixed or batch == 1:
                if fitting or self._unlimited:
                    return program, max(1, fitting)
                amount = "one flip" if batch == 1 else f"a batch of {batch} flips"
                raise InputError.of(
                    "memory_budget",
                    Written(f"{self.budget} bytes"),
                    f"{amount} of an input of length {self.n} takes "
                    f"{program.bytes} bytes, beside {held} bytes of arguments",
                )
            batch = max(1, min(batch - 1, int(batch * free / (most * program.bytes))))

    def held(self, program: FlipProgram) -> int:
        """Returns the bytes of a program's arguments and results on each device, for all threads together."""
        return self.arguments + program.blocks * program.together * program.batch * self.flip_bytes

    @property
    def _unlimited(self) -> bool:
        """Whether the user chose the batch and not the memory, which is then not counted."""
        return self.placement.batch_size is not None and self.placement.memory_budget is None


def is_single(mesh: Mesh) -> bool:
    """Returns whether a mesh is one device, without axes of a model of its own."""
    return mesh.size == 1 and mesh.axis_names == ("flips",)


def spec_on(leaf: Any, mesh: Mesh) -> PartitionSpec:
    """Returns how an array is split over a mesh; on any other, each device has all of it."""
    own = getattr(leaf, "sharding", None)
    return own.spec if isinstance(own, NamedSharding) and own.mesh == mesh else PartitionSpec()


def placed(leaf: Any, spec: PartitionSpec, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """Returns an array's shape and dtype on the devices of a mesh."""
    where = SingleDeviceSharding(mesh.devices.flat[0]) if is_single(mesh) else NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def bytes_of(tree: Any, mesh: Mesh | None = None) -> int:
    """Returns the bytes of a tree's arrays, which may be abstract: all, or what each device of a mesh has."""
    leaves = jax.tree.leaves(tree)
    if mesh is None:
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    return sum(_bytes_on_each(placed(leaf, spec_on(leaf, mesh), mesh)) for leaf in leaves)


def _bytes_on_each(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


@cached
def compiled_program(
    quantity: Quantity, engine: Engine, structure: Any, shapes: Any, wide: bool, mesh: Mesh, size: Any
) -> FlipProgram:
    """Compiles blocks for each device. `wide` (64-bit types are on) is part of the key; `size` is the flips of a row,
    the rows of a block, the blocks of a device, and the positions of a flip."""
    everywhere, split = PartitionSpec(), PartitionSpec(mesh.axis_names)
    batch, together, blocks, positions = size
    operands = jax.tree.unflatten(structure, shapes)
    local = [jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in shapes]
    of_row = jax.ShapeDtypeStruct((batch, positions), np.int32)

    def row(operands: tuple[Any, Any], number: Array, flips: FlipBlock) -> Array:
        parameters, prepared = operands
        own = jax.tree.map(lambda leaf: leaf[0 if leaf.shape[0] == 1 else number], prepared)
        if quantity == "changes":
            return engine.changes(parameters, own, flips)
        values, resolution = engine.measured(parameters, own, flips)
        return jnp.stack([values, jnp.where(jnp.isfinite(values), resolution, jnp.nan)], axis=-1)

    # Traced once: its shape sizes the results, and the same trace is what the loop computes.
    axes = () if is_single(mesh) else tuple(mesh.shape.items())
    end, own = jax.ShapeDtypeStruct((), np.int32), jax.tree.unflatten(structure, local)
    with compiling_for(platform_of(mesh).name):
        trace = jax.make_jaxpr(row, axis_env=axes)(own, end, FlipBlock(of_row, of_row))
    traced, (of_result,) = jaxpr_as_fun(trace), trace.out_avals

    def run(
        operands: Any, inputs: Array, flips: FlipBlock, results: Array, start: Array, stop: Array, step: Array
    ) -> Array:
        def one(number: Array, flips: FlipBlock) -> Array:
            return traced(*jax.tree.leaves((operands, number, flips)))[0]

        def block(i: Array, results: Array) -> Array:
            k = start + i * step
            some = inputs[k], FlipBlock(*(part[k] for part in flips))
            if together == 1:
                return results.at[k, 0].set(one(*jax.tree.map(lambda part: part[0], some)))
            return results.at[k].set(jax.vmap(one)(*some))

        return jax.lax.fori_loop(0, (stop - start + step - 1) // step, block, results)

    shape = mesh.size * blocks, together, batch
    inputs = placed(jax.ShapeDtypeStruct(shape[:2], np.int32), split, mesh)
    table = FlipBlock(*[placed(jax.ShapeDtypeStruct((*shape, positions), np.int32), split, mesh)] * 2)
    result = placed(jax.ShapeDtypeStruct((*shape, *of_result.shape[1:]), of_result.dtype), split, mesh)
    if not is_single(mesh):
        of_operands = jax.tree.map(lambda leaf: leaf.sharding.spec, operands)
        specs = of_operands, split, split, split, everywhere, everywhere, everywhere
        run = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    with stopping.compiling():
        lowered = jax.jit(run).lower(operands, inputs, table, result, end, end, end)
        block = (lowered.cost_analysis() or {}).get("flops", 0.0) if engine.subtracts else 0.0
        compiled = lowered.compile(SOONER if blocks * block < _MUCH else None)
    analysis = compiled.memory_analysis()
    temporary = 0 if analysis is None else int(analysis.temp_size_in_bytes)
    return FlipProgram(compiled, batch, together, blocks, of_result.shape[1:], of_result.dtype, temporary, [])


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
