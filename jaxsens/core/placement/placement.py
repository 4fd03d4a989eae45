"""Runs an engine over many flips, in blocks within a memory budget, over devices or cores, with progress.

Placement is independent of the model. A compiled program processes a range of blocks whose ends are arguments, so one
compilation serves chunks of any length, and the host picks chunks of about a second. Blocks are dealt like cards: in
turn to the devices of a mesh, or to one thread per core if the mesh is a single CPU device. With a mask, flips early in
the word cost more than late ones, and dealing distributes them evenly.

The devices of a mesh may belong to several processes (`ProcessGroup`). Each measures the blocks of its own devices, and
after each chunk all receive the values of all. What depends on a host (its clock, cores and memory) is agreed on first,
so that all processes always take part in the same exchanges.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base import inputs as checks
from jaxsens.core.base import stopping
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.memory import machine_memory
from jaxsens.core.base.platforms import Platform, automatic, on_host, platform_of
from jaxsens.core.base.precision import numerics, resolved
from jaxsens.core.base.programs import compiled
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.placement.lanes import Lanes, is_one_cpu, lanes_on
from jaxsens.core.placement.process_group import ProcessGroup
from jaxsens.core.placement.program import FlipProgram, Memory, Quantity, Wanted, spec_on

Progress = Callable[[int, int], None]
"""Called with (flips done, flips in all) after every chunk."""

_CHUNK_SECONDS = 1.0
_HOPELESS = 0.5
"""An engine that declines more than this share of a chunk's flips is not used for the rest of the input."""


class Ready(NamedTuple):
    """An input that an engine has prepared, on every device.

    Attributes:
        parameters: those of the model, with tables (`Engine.with_tables`).
        prepared: what `Engine.prepare` returns.
        output: the output of the unflipped input.
        sizes: `Engine.sizes`.
    """

    parameters: Any
    prepared: Any
    output: Float[np.ndarray, " outputs"]
    sizes: Float[np.ndarray, " layers"]


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C, or a recorded signal, during a measurement.

    `finished` is what it has finished, of whose values some may be NaN; `signal` is the number of the signal.
    """

    def __init__(self, finished: Finished, number: int = signal.SIGINT) -> None:
        super().__init__("interrupted")
        self.finished, self.signal = finished, number


@dataclass
class Finished:
    """What a measurement has finished so far.

    Attributes:
        values: of all flips, with their resolutions; empty as long as nothing is measured.
        done: which of them are finished.
        elsewhere: how many were measured by each fallback.
    """

    values: Float[np.ndarray, "flips 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    done: Bool[np.ndarray, " flips"] = field(default_factory=lambda: np.zeros(0, bool))
    elsewhere: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Where flips are measured: on which devices, in which batches, within which memory.

    Results depend on it only by rounding.

    Args:
        mesh: the devices to spread the flips over; None for all of this process (`local_mesh`). A single CPU device
            uses one thread per core. In a distributed job, `jaxsens.global_mesh()` shares the flips between the
            processes, all of which make the same call and return the whole result; a mesh of several processes has one
            axis. Ctrl-C, or the scheduler's SIGTERM, in one process stops all of them with the same partial result.
            Without a mesh each process measures all flips.
        batch_size: flips per batch on each device; None for a fast size that fits the budget.
        memory_budget: bytes on each device for the model, what the flips of an input share, their table, and the
            temporary memory of all threads together; None for what the first two take and 2 GiB more on CPU, 8 GiB
            more on a GPU, 12 GiB more on a TPU, but no more than the device has.

    Raises:
        InputError: naming each unusable field.
    """

    mesh: Mesh | None = None
    batch_size: int | None = None
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        with collecting("Placement") as problems:
            checks.mesh(self.mesh, problems)
            checks.optional_count("batch_size", self.batch_size, problems)
            checks.optional_count("memory_budget", self.memory_budget, problems)

    @property
    def devices(self) -> Mesh:
        """The devices that flips are spread over."""
        return local_mesh() if self.mesh is None else self.mesh

    @property
    def platform(self) -> Platform:
        """What is chosen by the platform of the devices."""
        return platform_of(self.devices)

    @property
    def budget(self) -> int:
        """The memory budget in bytes; by default, without what all flips of an input share."""
        return self.budget_beside(0)

    def budget_beside(self, arguments: int) -> int:
        """The memory budget in bytes of a measurement in which all flips of an input share that many."""
        if self.memory_budget is not None:
            return self.memory_budget
        return self.platform.budget_beside(arguments, device_memory(self.local))

    @property
    def group(self) -> ProcessGroup | None:
        """The processes that share the mesh; None if this process has all its devices."""
        return ProcessGroup.of(self.devices)

    @property
    def local(self) -> Mesh:
        """The mesh of this process's devices."""
        return self.devices if self.group is None else self.group.local

    @property
    def columns(self) -> Int[np.ndarray, " devices"]:
        """The numbers of this process's devices in the mesh."""
        return np.arange(self.devices.size) if self.group is None else self.group.columns[self.group.rank]

    def check(self) -> None:
        """Raises `Stopped` after a signal; if processes share the mesh, in all of them at the same place."""
        if self.group is None:
            stopping.check()
        else:
            self.group.check()

    def agree(self, what: object) -> None:
        """Raises InputError, in all processes of the mesh, if `what` has another `repr` in one of them."""
        if self.group is not None:
            with self.group.together(repr(what).encode()):
                pass

    def least(self, *numbers: int) -> list[int]:
        """Returns these numbers, or the smallest that any process of the mesh has."""
        return list(numbers) if self.group is None else self.group.meet(*numbers).min(axis=0).tolist()


def local_mesh() -> Mesh:
    """Returns a mesh of all devices of this process, with one axis called "flips"."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), ("flips",), devices=devices, axis_types=(AxisType.Auto,))


def global_mesh() -> Mesh:
    """Returns a mesh of all devices of all processes of a distributed job, with one axis called "flips".

    Every process calls `jax.distributed.initialize` first, and then makes the same calls with
    `Placement(global_mesh())`: the flips are shared, and every process returns the whole result. Hosts with other
    processors or another number of cores give other last digits. In a single process it is the mesh of all its devices,
    which is the default.
    """
    return Mesh(np.array(jax.devices()), ("flips",), axis_types=(AxisType.Auto,))


def device_memory(mesh: Mesh) -> int:
    """Returns the bytes of memory of each device of a mesh, as far as JAX may use them."""
    told = mesh.devices.flat[0].memory_stats() or {}
    return int(told.get("bytes_limit", machine_memory() // mesh.size))


def checked_placement(value: Any, problems: Problems, mesh: Mesh | None = None) -> Placement:
    """Returns the argument `placement`, or the default one; adds an error for anything else, and for another mesh than
    that over which a model's parameters are split."""
    if value is None or (isinstance(value, Placement) and value.mesh is None):
        return replace(value or Placement(), mesh=mesh)
    if not isinstance(value, Placement):
        problems.add("placement", value, "jaxsens.Placement(mesh, batch_size=64), or None")
    elif mesh is not None and automatic(value.devices) == mesh:
        return replace(value, mesh=mesh)
    elif mesh is not None:
        problems.add(
            "placement.mesh", value.mesh, f"the model's parameters are split over {mesh}; give that mesh"
        )
    return value if isinstance(value, Placement) else Placement()


Doubts = Callable[[int, str, Float[np.ndarray, " outputs"]], Float[np.ndarray, " outputs"]]
"""Returns a bound of the rounding of each output's change, from the number of an input, the dtype of the arithmetic,
and the output found in it."""


@dataclass
class Measuring:
    """What one call measures, how, and how far it is. Every flip is measured once, by `numbers` or by `changes`.

    Flips that the engine declines (NaN, or inf after an overflow) are measured by its `fallback`, if it has one, and
    those whose resolution exceeds `precision.RESOLVED` of the change by its `wider` engine; and so on.

    Attributes:
        engine, parameters: what measures.
        words: the inputs.
        inputs, positions, symbols: the flips, sorted by their input.
        placement: where.
        progress: called after every chunk.
        doubts: the rounding of each output, for engines that subtract outputs; without it, a few roundings are assumed.
        finished: kept up to date with what is finished.
        first: the first input as the engine prepares it, if it is at hand.
        quantity: what is measured of each flip.
    """

    engine: Engine
    parameters: Any
    words: Int[np.ndarray, "batch n"]
    inputs: Int[np.ndarray, " flips"]
    positions: Int[np.ndarray, "flips k"]
    symbols: Int[np.ndarray, "flips k"]
    placement: Placement
    progress: Progress | None = None
    doubts: Doubts | None = None
    finished: Finished = field(default_factory=Finished)
    first: Ready | None = None
    quantity: Quantity = field(default="measured", init=False)

    def numbers(self) -> tuple[Float[np.ndarray, "flips 2"], dict[str, int]]:
        """Returns what the engine measures of every flip with its resolution, and the counts for each other engine.

        That is the norm or, if the engine has a scalar function, its signed change. The order is the given one.

        Raises:
            InputError: if not even one flip at a time fits the budget.
            Interrupted: on Ctrl-C, with the finished values.
        """
        return self._run("measured")

    def changes(self) -> tuple[Float[np.ndarray, "flips chosen"], dict[str, int]]:
        """Like `numbers`, but returns the change of the chosen outputs under every flip instead of its norm.

        Raises as `numbers` does, except for a plain KeyboardInterrupt on Ctrl-C.
        """
        try:
            return self._run("chosen_changes")
        except Interrupted:
            raise KeyboardInterrupt from None

    def _run(self, quantity: Quantity) -> tuple[np.ndarray, dict[str, int]]:
        self.quantity, total, so_far = quantity, len(self.inputs), self.finished
        so_far.values = np.full((total, 2) if quantity == "measured" else (total,), np.nan, np.float32)
        so_far.done = np.zeros(total, bool)
        try:
            with self._together():
                for b in np.unique(self.inputs):
                    self.placement.check()
                    self._measure_input(int(b))
        except KeyboardInterrupt as stop:
            raise Interrupted(so_far, getattr(stop, "signal", signal.SIGINT)) from None
        return so_far.values, {how: count for how, count in so_far.elsewhere.items() if count}

    def _together(self) -> AbstractContextManager[None]:
        """Returns a block that all processes of the mesh enter with the same flips and leave in the same way."""
        placement = self.placement
        if placement.group is None:
            return nullcontext()
        options = type(self.engine).__name__, placement.batch_size, placement.memory_budget
        flips = self.words, self.inputs, self.positions, self.symbols
        data = b"".join(array.tobytes() for array in flips)
        return placement.group.together(repr(options).encode() + data)

    def _measure_input(self, b: int) -> None:
        """Measures the flips of input b: by the engine, and those that it leaves by the engines that come after it."""
        waiting = {self.engine: np.arange(*np.searchsorted(self.inputs, [b, b + 1]))}
        room, n = len(waiting[self.engine]), self.words.shape[1]
        while waiting:
            runner, chosen = next(iter(waiting.items()))
            del waiting[runner]
            with arithmetic_of(runner), where_computed(self.placement) as placement:
                ready = self._ready(runner, b, placement)
                if runner.fallback is not None and not placement.least(runner.resolves(ready.prepared))[0]:
                    _wait(waiting, runner.fallback, chosen)
                    continue
                if runner.subtracts and self.doubts is not None:
                    dtype = "float64" if jnp.result_type(float) == jnp.float64 else "float32"
                    doubt = self.doubts(b, dtype, ready.output)
                    if runner.wider is not None and _no_digits(ready.output, doubt):
                        _wait(waiting, runner.wider, chosen)
                        continue
                    ready = ready._replace(prepared=runner.doubting(ready.prepared, doubt))
                given = ready.parameters, ready.prepared
                block = FlipBlock(self.positions[chosen], self.symbols[chosen])
                left = np.ones(len(chosen), bool)
                one = _OneInput(self, placement, runner, given, n, ready.output.size, room)
                for finished, values in one.chunks(block):
                    left[finished] = False
                    self._take(runner, chosen[finished], values, waiting)
                    placement.check()
                _wait(waiting, runner.fallback or runner.wider, chosen[left])

    def _ready(self, runner: Engine, b: int, placement: Placement) -> Ready:
        """Returns input b as an engine prepares it; the first one may be at hand."""
        if b == 0 and runner == self.engine and self.first is not None:
            ready, self.first = self.first, None
            return ready
        return prepared_on(placement.local, runner, self.parameters, self.words[b])

    def _take(
        self, runner: Engine, here: np.ndarray, values: np.ndarray, waiting: dict[Engine, np.ndarray]
    ) -> None:
        """Takes the values of some flips, and lets those wait that the engine declined or did not resolve."""
        so_far, total = self.finished, len(self.inputs)
        if so_far.values.shape[1:] != values.shape[1:]:
            # Integers have no NaN, and would wrap around where they are subtracted.
            dtype = np.float64 if values.dtype.kind in "biu" else values.dtype
            so_far.values = np.full((total, *values.shape[1:]), np.nan, dtype)
        found = so_far.values.astype(np.promote_types(so_far.values.dtype, values.dtype), copy=False)
        better = np.ones(len(values), bool)
        if self.quantity == "measured":  # it only replaces one that is no better resolved
            known = found[here]
            better = ~np.isfinite(known[:, 1]) | (values[:, 1] <= known[:, 1])
        found[here[better]] = values[better]
        missing, blurred = _missing(values), self.blurred(values)
        _wait(waiting, runner.fallback, here[missing])
        _wait(waiting, runner.wider, here[blurred])
        # A value from the last engine that is not finite comes from the model itself.
        final = ~(missing & (runner.fallback is not None)) & ~(blurred & (runner.wider is not None))
        so_far.values = found
        so_far.done[here] = final
        if runner != self.engine:
            so_far.elsewhere[runner.how] = so_far.elsewhere.get(runner.how, 0) + int(final.sum())
        if self.progress is not None:
            self.progress(int(so_far.done.sum()), total)

    def blurred(self, values: np.ndarray) -> Bool[np.ndarray, " flips"]:
        """Returns which flips' changes are finite, and not resolved."""
        if self.quantity != "measured":
            return np.zeros(len(values), bool)
        return ~_missing(values) & ~resolved(values[:, 0], values[:, 1])


def _wait(waiting: dict[Engine, np.ndarray], engine: Engine | None, flips: np.ndarray) -> None:
    """Adds flips to those that wait for an engine, if there is one."""
    if engine is not None and len(flips):
        waiting[engine] = np.union1d(waiting.get(engine, flips), flips)


def _no_digits(output: Float[np.ndarray, " outputs"], doubt: Float[np.ndarray, " outputs"]) -> bool:
    """Returns whether a change as large as the output itself would not be resolved."""
    sizes = (np.atleast_1d(np.linalg.norm(np.asarray(one, np.float64))) for one in (output, doubt))
    return not resolved(*sizes).all()


def _missing(values: np.ndarray) -> np.ndarray:
    """Returns which flips have values that are not finite: the engine declined them, or overflowed."""
    return np.asarray(np.any(~np.isfinite(values), axis=tuple(range(1, values.ndim))))


@dataclass(frozen=True)
class _OneInput:
    """Flips of one input that one engine measures.

    Attributes:
        of: what they are part of.
        placement: where they are measured.
        engine: the engine.
        given: the parameters and what it prepared.
        n: the length of the input.
        outputs: the number of outputs.
        room: the number of the input's flips for all engines together.
    """

    of: Measuring
    placement: Placement
    engine: Engine
    given: tuple[Any, Any]
    n: int
    outputs: int
    room: int

    def chunks(self, flips: FlipBlock) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Measures flips in chunks; yields the finished ones and their values. Nothing runs while it is suspended.

        Flips whose table would not fit are measured in parts.
        """
        wanted, memory = self._wanted()
        room = self.placement.least(wanted.room(self.room, memory))[0]
        for first in range(0, len(flips.places), room):
            part = FlipBlock(*(of[first : first + room] for of in flips))
            program, lanes = self._program(len(part.places), wanted, room, memory)
            for done, values, given_up in self._part(part, program, lanes):
                yield first + done, values
                if given_up:
                    return

    def _part(
        self, flips: FlipBlock, program: FlipProgram, lanes: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
        """Measures flips for which a program has room; yields with each chunk whether the engine is given up."""
        placement, columns = self.placement, self.placement.columns
        count, devices = len(flips.places), placement.devices.size
        blocks = -(-count // (program.batch * devices))
        lanes = min(lanes, blocks)
        # Block k of device d is the (k D + d)-th batch of flips; the last flip is repeated as padding, dropped later.
        shape = (program.blocks, devices, program.batch)
        order = np.arange(np.prod(shape)).reshape(shape).transpose(1, 0, 2)
        filled = np.minimum(order[columns].reshape(-1, program.batch), count - 1)
        split = NamedSharding(placement.local, PartitionSpec(placement.local.axis_names))
        blocks_of_flips = FlipBlock(*(jax.device_put(part[filled].astype(np.int32), split) for part in flips))
        empty = jax.device_put(np.zeros((*filled.shape, *program.shape), program.dtype), split)
        each = (len(columns), program.blocks, program.batch)

        def lane(start: int, stop: int, k: int) -> np.ndarray:
            """Measures every `lanes`-th block from `start + k` to `stop`."""
            ends = np.int32(start + k), np.int32(stop), np.int32(lanes)
            results = np.asarray(program.run(self.given, blocks_of_flips, empty, *ends))
            return results.reshape(*each, *program.shape)[:, start + k : stop : lanes]

        start, step, stride = 0, lanes, lanes
        if placement.group is not None:
            step = stride = int(placement.group.meet(lanes).max())
        with Lanes(lanes) as threads:
            while start < blocks:
                stop = min(start + step, blocks)
                began = time.perf_counter()
                found = np.empty((len(columns), stop - start, program.batch, *program.shape), program.dtype)
                for k, part in enumerate(threads.run(partial(lane, start, stop))):
                    found[:, k::lanes] = part
                seconds = max(time.perf_counter() - began, 1e-6)
                found, seconds = _of_all(found, seconds, placement)
                done = order[:, start:stop].ravel()
                values = found.reshape(-1, *program.shape)
                real = done < count
                given_up = _missing(values[real]) & (self.engine.fallback is not None)
                given_up |= self.of.blurred(values[real]) & (self.engine.wider is not None)
                yield done[real], values[real], bool(np.mean(given_up) > _HOPELESS)
                step = max(1, min(8 * step, int((stop - start) * _CHUNK_SECONDS / seconds)))
                step = -(-step // stride) * stride
                start = stop

    def _wanted(self) -> tuple[Wanted, Memory]:
        """Returns what a program is wanted for, and the memory that it may take."""
        placement, engine = self.placement, self.engine
        wanted = Wanted(
            self.of.quantity,
            engine.shared,
            self.given,
            self.n,
            self.outputs,
            self.of.positions.shape[1],
            placement.local,
            placement.devices.size,
        )
        limited, batched = placement.memory_budget is not None, placement.batch_size is not None
        return wanted, Memory(
            placement.budget_beside(wanted.arguments), lanes_on(placement.local), limited, batched
        )

    def _program(self, flips: int, wanted: Wanted, room: int, memory: Memory) -> tuple[FlipProgram, int]:
        """Returns the compiled program, and the number of threads that fit in the budget.

        The batch is the largest, up to the preferred size, at which all threads fit. If even single flips are too
        large, fewer threads run. The number of declined flips varies between inputs; to reuse a few programs for all,
        each has room for all flips of an input, and for fewer flips the batch size is a power of two or the preferred
        size. Processes that share the mesh use the smallest batch that any of them finds.
        """
        placement = self.placement
        preferred = placement.batch_size or self.engine.preferred_batch(self.n, placement.platform)
        one_cpu_each = placement.least(is_one_cpu(placement.local))[0]
        batches = placement.platform.batches if placement.batch_size is None and one_cpu_each else 1
        parts = placement.devices.size * batches
        each, most = -(-flips // parts), -(-room // parts)
        batch = max(1, min(preferred, most, each if flips == room else 1 << (each - 1).bit_length()))
        while True:
            program, lanes = wanted.fitting(batch, room, memory)
            batch, largest = placement.least(program.batch, -program.batch)
            if batch == -largest:
                return program, lanes


def _of_all(found: np.ndarray, seconds: float, placement: Placement) -> tuple[np.ndarray, float]:
    """Returns the values of all devices of the mesh from those of this process's, and the seconds of the slowest."""
    group = placement.group
    if group is None:
        return found, seconds
    slowest = group.meet(int(1e6 * seconds))[:, 0].max() / 1e6
    most = max(len(columns) for columns in group.columns)
    sent = np.zeros((most, *found.shape[1:]), found.dtype)
    sent[: len(found)] = found
    whole = np.empty((placement.devices.size, *found.shape[1:]), found.dtype)
    for columns, part in zip(group.columns, group.gather(sent), strict=True):
        whole[columns] = part[: len(columns)]
    return whole, max(float(slowest), 1e-6)


def arithmetic_of(engine: Engine) -> AbstractContextManager[None]:
    """Returns a block in the arithmetic that an engine computes in."""
    return numerics("float64") if engine.wide else nullcontext()


@contextmanager
def where_computed(placement: Placement) -> Iterator[Placement]:
    """Yields where the current arithmetic is computed: on the host, if it is float64 and the devices have none."""
    if placement.platform.float64 or jnp.result_type(float) != jnp.float64:
        yield placement
    else:
        with on_host() as mesh:
            yield Placement(mesh)


def prepared_on(mesh: Mesh, engine: Engine, parameters: Any, tokens: Int[np.ndarray, " n"]) -> Ready:
    """Returns the parameters and the engine's prepared values for the tokens, copied to every device of the mesh.

    The parameters are those of the `shared` engine, with tables.

    An engine with `prepares_in_float64` prepares in float64, on the host if the devices do not compute in it, and the
    result is rounded once to 32 bits.
    """
    parameters, engine = engine.with_tables(parameters, len(tokens)), engine.shared
    if engine.wide:
        parameters = jax.tree.map(_widened, parameters)
    prepare = preparation_of(engine)
    if engine.prepares_in_float64:
        elsewhere = nullcontext() if platform_of(mesh).float64 else on_host()
        with numerics("float64"), elsewhere:
            prepared, *told = prepare(engine.preparing, jax.tree.map(np.asarray, parameters), tokens)
    else:
        prepared, *told = prepare(engine.preparing, parameters, tokens)
    given = parameters, prepared
    places = jax.tree.map(lambda leaf: NamedSharding(mesh, spec_on(leaf, mesh)), given)
    return Ready(*jax.device_put(given, places), *(np.asarray(one) for one in told))


def preparation_of(engine: Engine) -> Callable[..., tuple[Any, Array, Array]]:
    """Returns what prepares an input for an engine: of (`Engine.preparing`, parameters, tokens), it gives the prepared
    values, the output, and `Engine.sizes`."""
    if engine.prepares_in_float64:
        return _prepare_in_float64
    return _prepare if engine.compiles_preparation else _prepared


def _widened(leaf: Any) -> Any:
    """Returns an array in float64, unless it holds whole numbers."""
    return jax.device_put(np.asarray(leaf, np.float64)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _prepared(engine: Engine, parameters: Any, tokens: Any) -> tuple[Any, Array, Array]:
    prepared = engine.prepare(parameters, tokens)
    return prepared, engine.output(parameters, prepared), engine.sizes(prepared)


_prepare = compiled(static=1)(_prepared)


@compiled(static=1)
def _prepare_in_float64(engine: Engine, parameters: Any, tokens: Any) -> tuple[Any, Array, Array]:
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), parameters)
    narrow = {jnp.dtype(jnp.float64): jnp.float32, jnp.dtype(jnp.int64): jnp.int32}
    return jax.tree.map(
        lambda leaf: leaf.astype(narrow.get(leaf.dtype, leaf.dtype)), _prepared(engine, wide, tokens)
    )
