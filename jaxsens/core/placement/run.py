"""Runs an engine over many flips of many inputs, in blocks within a memory budget, with progress.

A compiled program processes a range of blocks whose ends are arguments, so one compilation serves chunks of any length,
and the host picks chunks of about a second. Inputs are prepared as many at once as fit; each row of a block has flips
of one of them, so that many short inputs are one call of one program. Blocks are dealt like cards: in turn to the
devices of a mesh, or to one thread per core if the mesh is a single CPU device. With a mask, flips early in the word
cost more than late ones, and dealing distributes them evenly.

The devices of a mesh may belong to several processes (`ProcessGroup`). Each measures the blocks of its own devices, and
after each chunk all receive the values of all. What depends on a host (its clock, cores, memory) is agreed on first.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int

from jaxsens.core.base.programs import resolved, room_for
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.placement.lanes import Lanes, is_one_cpu, lanes_on
from jaxsens.core.placement.placement import Placement, where_computed
from jaxsens.core.placement.preparing import Ready, arithmetic_of, inputs_at_once, prepared_on
from jaxsens.core.placement.program import FlipProgram, FlipRequest, Memory, Quantity, is_single

Progress = Callable[[int, int], None]
"""Called with (flips done, flips in all) after every chunk."""

_CHUNK_SECONDS = 1.0

_SHORT = 0.02
"""Seconds of a measurement that is made in this thread: to start others would take as long as what they do."""


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C, or a recorded signal, during a measurement.

    `finished` is what it has finished, of whose values some may be NaN; `signal` is the number of the signal.
    """

    def __init__(self, finished: Finished, number: int = signal.SIGINT) -> None:
        super().__init__("interrupted")
        self.finished, self.signal = finished, number


@dataclass
class Finished:
    """What a measurement has finished so far: the `values` of all flips with their resolutions, empty before anything
    is measured, which are `done`, and how many were measured by each fallback."""

    values: Float[np.ndarray, "flips 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    done: Bool[np.ndarray, " flips"] = field(default_factory=lambda: np.zeros(0, bool))
    fallbacks: dict[str, int] = field(default_factory=dict)


ErrorBounds = Callable[
    [Int[np.ndarray, " inputs"], str, Float[np.ndarray, "inputs outputs"]],
    Float[np.ndarray, "inputs outputs"],
]
"""Returns a bound of the rounding of each output's change, from the numbers of some inputs, the dtype of the
arithmetic, and the outputs found in it."""


@dataclass
class Measuring:
    """What one call measures, how, and how far it is. Every flip is measured once, by `numbers` or by `changes`.

    Flips that the engine declines (NaN, or inf after an overflow) are measured by its `fallback`, if it has one, and
    those whose resolution exceeds `precision.RESOLVED` of the change by its `wider` engine; and so on.

    Attributes:
        inputs, positions, symbols: the flips, sorted by their input.
        error_bounds: the rounding of each output, for engines that subtract outputs; by default, a few roundings.
        finished: kept up to date with what is finished.
        first: the first inputs as the engine prepares them, if they are at hand.
    """

    engine: Engine
    parameters: Any
    tokens: Int[np.ndarray, "batch n"]
    inputs: Int[np.ndarray, " flips"]
    positions: Int[np.ndarray, "flips k"]
    symbols: Int[np.ndarray, "flips k"]
    placement: Placement
    progress: Progress | None = None
    error_bounds: ErrorBounds | None = None
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
            # All processes of the mesh enter with the same flips, and leave in the same way.
            group = self.placement.group
            with nullcontext() if group is None else group.together(self._identity()):
                for some in self._groups():
                    self.placement.check()
                    self._measure_inputs(some)
        except KeyboardInterrupt as stop:
            raise Interrupted(so_far, getattr(stop, "signal", signal.SIGINT)) from None
        return so_far.values, so_far.fallbacks

    def _identity(self) -> bytes:
        options = type(self.engine).__name__, self.placement.batch_size, self.placement.memory_budget
        flips = self.tokens, self.inputs, self.positions, self.symbols
        return repr(options).encode() + b"".join(array.tobytes() for array in flips)

    def _groups(self) -> list[Int[np.ndarray, " inputs"]]:
        """Returns the numbers of the inputs that have flips, in groups that are measured at once."""
        numbers = np.unique(self.inputs)
        if len(numbers) < 2:
            return [numbers] if len(numbers) else []
        shape = len(numbers), self.tokens.shape[1]
        with arithmetic_of(self.engine), where_computed(self.placement) as placement:
            size = inputs_at_once(self.engine, self.parameters, shape, placement)
        return [numbers[first : first + size] for first in range(0, len(numbers), size)]

    def _measure_inputs(self, inputs: Int[np.ndarray, " inputs"]) -> None:
        """Measures the flips of some inputs: by the engine, and those that it leaves by the engines that come after it.

        An engine in wider arithmetic may have room for fewer inputs at once.
        """
        waiting = {self.engine: np.arange(*np.searchsorted(self.inputs, [inputs[0], inputs[-1] + 1]))}
        while waiting:
            runner, flips = next(iter(waiting.items()))
            del waiting[runner]
            with arithmetic_of(runner), where_computed(self.placement) as placement:
                numbers, size = np.unique(self.inputs[flips]), len(inputs)
                if runner != self.engine:
                    shape = len(numbers), self.tokens.shape[1]
                    size = inputs_at_once(runner, self.parameters, shape, placement)
                for first in range(0, len(numbers), size):
                    some = numbers[first : first + size]
                    own = flips[slice(*np.searchsorted(self.inputs[flips], [some[0], some[-1] + 1]))]
                    self._measure_by(runner, some, own, placement, waiting)

    def _measure_by(
        self,
        runner: Engine,
        inputs: Int[np.ndarray, " inputs"],
        flips: Int[np.ndarray, " flips"],
        placement: Placement,
        waiting: dict[Engine, np.ndarray],
    ) -> None:
        """Measures flips of some inputs by one engine; those that it leaves wait for others."""
        ready, number = self._ready(runner, inputs, placement), np.searchsorted(inputs, self.inputs[flips])
        if runner.fallback is not None:
            fine = np.array(placement.least(*ready.resolved.tolist()), bool)
            _wait(waiting, runner.fallback, flips[~fine[number]])
            flips, number = flips[fine[number]], number[fine[number]]
        if runner.subtracts and self.error_bounds is not None and len(flips):
            dtype = "float64" if jnp.result_type(float) == jnp.float64 else "float32"
            bound = self.error_bounds(inputs, dtype, ready.output)
            if runner.wider is not None:  # a change as large as the output itself may not be resolved
                sizes = (np.linalg.norm(np.asarray(one, np.float64), axis=1) for one in (ready.output, bound))
                lost = ~resolved(*sizes)[number]
                _wait(waiting, runner.wider, flips[lost])
                flips, number = flips[~lost], number[~lost]
            room = max((leaf.shape[0] for leaf in jax.tree.leaves(ready.prepared)), default=len(inputs))
            filled = np.zeros((room, *bound.shape[1:]))
            filled[: len(inputs)] = bound
            ready = ready._replace(prepared=runner.with_error_bound(ready.prepared, filled))
        if not len(flips):
            return
        ends = np.searchsorted(self.inputs, [inputs, inputs + 1])
        block = FlipBlock(self.positions[flips], self.symbols[flips])
        operands, outputs = (ready.parameters, ready.prepared), ready.output[0].size
        one = _ByOneEngine(self, placement, runner, operands, outputs, ends[1] - ends[0])
        for finished, values in one.chunks(number, block):
            self._take(runner, flips[finished], values, waiting)
            placement.check()

    def _ready(self, runner: Engine, inputs: Int[np.ndarray, " inputs"], placement: Placement) -> Ready:
        """Returns inputs as an engine prepares them; the first ones may be at hand."""
        if self.first is not None and runner == self.engine:
            ready, self.first = self.first, None
            if np.array_equal(inputs, np.arange(len(ready.output))):
                return ready
        return prepared_on(placement.local, runner, self.parameters, self.tokens[inputs])

    def _take(
        self, runner: Engine, here: np.ndarray, values: np.ndarray, waiting: dict[Engine, np.ndarray]
    ) -> None:
        """Takes the values of some flips, and lets those wait that the engine declined or did not resolve."""
        # No engine is given up for the others of its flips: which it has measured by then depends on the clock.
        so_far, total = self.finished, len(self.inputs)
        if so_far.values.shape[1:] != values.shape[1:]:
            # Integers have no NaN, and would wrap around where they are subtracted.
            dtype = np.float64 if values.dtype.kind in "biu" else values.dtype
            so_far.values = np.full((total, *values.shape[1:]), np.nan, dtype)
        all_values = so_far.values.astype(np.promote_types(so_far.values.dtype, values.dtype), copy=False)
        better = np.ones(len(values), bool)
        if self.quantity == "measured":  # it only replaces one that is no better resolved
            before = all_values[here]
            better = ~np.isfinite(before[:, 1]) | (values[:, 1] <= before[:, 1])
        all_values[here[better]] = values[better]
        missing, blurred = _missing(values), np.zeros(len(values), bool)
        if self.quantity == "measured":
            blurred = ~missing & ~resolved(values[:, 0], values[:, 1])
        _wait(waiting, runner.fallback, here[missing])
        _wait(waiting, runner.wider, here[blurred])
        # A value from the last engine that is not finite comes from the model itself.
        final = ~(missing & (runner.fallback is not None)) & ~(blurred & (runner.wider is not None))
        so_far.values = all_values
        so_far.done[here] = final
        if runner != self.engine and final.any():
            so_far.fallbacks[runner.how] = so_far.fallbacks.get(runner.how, 0) + int(final.sum())
        if self.progress is not None:
            self.progress(int(so_far.done.sum()), total)


def _wait(waiting: dict[Engine, np.ndarray], engine: Engine | None, flips: np.ndarray) -> None:
    """Adds flips to those that wait for an engine, if there is one."""
    if engine is not None and len(flips):
        waiting[engine] = np.union1d(waiting.get(engine, flips), flips)


def _missing(values: np.ndarray) -> np.ndarray:
    """Returns which flips have values that are not finite: the engine declined them, or overflowed."""
    return np.asarray(np.any(~np.isfinite(values), axis=tuple(range(1, values.ndim))))


class _FlipRows(NamedTuple):
    """Flips in rows of one length, each of one input. The last flip of a row is repeated as padding.

    Attributes:
        inputs: the number of each row's input.
        flips: the numbers of the flips of each row.
        real: which of them are no padding.
    """

    inputs: Int[np.ndarray, " rows"]
    flips: Int[np.ndarray, "rows batch"]
    real: Bool[np.ndarray, "rows batch"]

    @classmethod
    def of(cls, number: Int[np.ndarray, " flips"], batch: int) -> _FlipRows:
        """Returns rows of `batch` flips, from the sorted number of each flip's input."""
        counts = np.bincount(number)
        rows, ends = -(-counts // batch), np.cumsum(counts)
        inputs = np.repeat(np.arange(len(counts)), rows)
        place = np.arange(len(inputs)) - (np.cumsum(rows) - rows)[inputs]
        flips = ((ends - counts)[inputs] + place * batch)[:, None] + np.arange(batch)
        last = ends[inputs, None]
        return cls(inputs, np.minimum(flips, last - 1), flips < last)


@dataclass(frozen=True)
class _ByOneEngine:
    """Flips of some inputs that one engine measures.

    `operands` are the parameters and what it prepared; `counts` the flips of each input, for all engines together.
    """

    of: Measuring
    placement: Placement
    engine: Engine
    operands: tuple[Any, Any]
    outputs: int
    counts: Int[np.ndarray, " inputs"]

    def chunks(
        self, number: Int[np.ndarray, " flips"], flips: FlipBlock
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Measures flips in chunks; yields the finished ones and their values. Nothing runs while it is suspended.

        Flips whose table would not fit are measured in parts. `number` is that of each flip's input.
        """
        placement = self.placement
        where = flips.places.shape[1], placement.local, placement.devices.size
        n = self.of.tokens.shape[1]
        request = FlipRequest(self.of.quantity, self.engine.shared, self.operands, n, self.outputs, *where)
        limited, batched = placement.memory_budget is not None, placement.batch_size is not None
        budget = placement.budget_beside(request.arguments)
        memory = Memory(budget, lanes_on(placement.local), limited, batched)
        room = placement.least(request.room(int(self.counts.sum()), memory))[0]
        for first in range(0, len(number), room):
            part = FlipBlock(*(of[first : first + room] for of in flips))
            program, lanes = self._program(len(part.places), request, room, memory)
            for done, values in self._part(number[first : first + room], part, program, lanes):
                yield first + done, values

    def _part(
        self, number: Int[np.ndarray, " flips"], flips: FlipBlock, program: FlipProgram, lanes: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Measures flips for which a program has room; yields of each chunk which are done, and their values."""
        placement, columns = self.placement, self.placement.columns
        rows, devices, together = (
            _FlipRows.of(number, program.batch),
            placement.devices.size,
            program.together,
        )
        blocks = -(-len(rows.inputs) // (together * devices))
        lanes = min(lanes, blocks)
        # Block k of device d is the (k D + d)-th group of rows; the last row is repeated as padding, dropped later.
        shape = (program.blocks, devices, together)
        order = np.arange(np.prod(shape)).reshape(shape).transpose(1, 0, 2)
        filled = np.minimum(order[columns].reshape(-1, together), len(rows.inputs) - 1)
        local = placement.local
        split = NamedSharding(local, PartitionSpec(local.axis_names))
        put = partial(jax.device_put, device=local.devices.flat[0] if is_single(local) else split)
        inputs, table = put(rows.inputs[filled].astype(np.int32)), rows.flips[filled]
        blocks_of_flips = FlipBlock(*(put(part[table].astype(np.int32)) for part in flips))
        empty = put(np.zeros((*table.shape, *program.shape), program.dtype))
        each = (len(columns), program.blocks, together, program.batch)

        def lane(start: int, stop: int, stride: int, k: int) -> np.ndarray:
            """Measures every `stride`-th block from `start + k` to `stop`."""
            ends = np.int32(start + k), np.int32(stop), np.int32(stride)
            results = np.asarray(program.run(self.operands, inputs, blocks_of_flips, empty, *ends))
            return results.reshape(*each, *program.shape)[:, start + k : stop : stride]

        if placement.group is None and program.pace and blocks * program.pace[0] < _SHORT:
            began = time.perf_counter()
            results = lane(0, blocks, 1, 0)
            program.pace[0] = min(program.pace[0], (time.perf_counter() - began) / blocks)
            yield self._values(order[:, :blocks], rows, results)
            return
        start, step, stride = 0, lanes, lanes
        if placement.group is not None:
            step = stride = int(placement.group.meet(lanes).max())
        elif program.pace:
            step = max(step, int(lanes * _CHUNK_SECONDS / program.pace[0]) // stride * stride)
        with Lanes(lanes) as threads:
            while start < blocks:
                stop = min(start + step, blocks)
                began = time.perf_counter()
                shape = len(columns), stop - start, together, program.batch, *program.shape
                results = np.empty(shape, program.dtype)
                for k, part in enumerate(threads.run(partial(lane, start, stop, lanes))):
                    results[:, k::lanes] = part
                seconds = max(time.perf_counter() - began, 1e-6)
                program.pace[:] = [min([*program.pace, seconds * lanes / (stop - start)])]
                results, seconds = _of_all(results, seconds, placement)
                yield self._values(order[:, start:stop], rows, results)
                step = max(1, min(8 * step, int((stop - start) * _CHUNK_SECONDS / seconds)))
                step = -(-step // stride) * stride
                start = stop

    def _values(
        self, order: Int[np.ndarray, "devices blocks together"], rows: _FlipRows, results: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which flips are done, and their values."""
        row = order.ravel()
        there = row < len(rows.inputs)
        row, results = row[there], results.reshape(len(there), -1, *results.shape[4:])[there]
        return rows.flips[row][rows.real[row]], results[rows.real[row]]

    def _program(self, flips: int, plan: FlipRequest, room: int, memory: Memory) -> tuple[FlipProgram, int]:
        """Returns the compiled program, and the number of threads that fit in the budget.

        The batch is the largest, up to the preferred size, at which all threads fit. If even single flips are too
        large, fewer threads run. The number of declined flips varies between inputs; to reuse a few programs for all,
        each has room for all flips of the inputs, and for fewer flips the batch size is a power of two or the preferred
        size. Processes that share the mesh use the smallest batch that any of them finds.
        """
        placement, several = self.placement, len(self.counts) > 1
        preferred = placement.batch_size or self.engine.preferred_batch(plan.n, placement.platform)
        one_cpu_each = placement.least(is_one_cpu(placement.local))[0]
        batches = placement.platform.batches if placement.batch_size is None and one_cpu_each else 1
        parts = placement.devices.size * batches
        each, most = -(-flips // parts), -(-room // parts)
        batch = max(1, min(preferred, most, each if flips == room else room_for(each)))
        if several and placement.batch_size is None:  # rows of equal length, with little padding
            longest = int(self.counts.max())
            batch = -(-longest // -(-longest // batch))

        def rows(batch: int) -> int:
            count = int(min(np.sum(-(-self.counts // batch)), -(-room // batch) + len(self.counts) - 1))
            return room_for(count) if several else count

        while True:
            program, lanes = plan.fitting(batch, rows, memory)
            batch, largest = placement.least(program.batch, -program.batch)
            if batch == -largest:
                return program, lanes


def _of_all(results: np.ndarray, seconds: float, placement: Placement) -> tuple[np.ndarray, float]:
    """Returns the values of all devices of the mesh from those of this process's, and the seconds of the slowest."""
    group = placement.group
    if group is None:
        return results, seconds
    slowest = group.meet(int(1e6 * seconds))[:, 0].max() / 1e6
    most = max(len(columns) for columns in group.columns)
    sent = np.zeros((most, *results.shape[1:]), results.dtype)
    sent[: len(results)] = results
    of_all = np.empty((placement.devices.size, *results.shape[1:]), results.dtype)
    for columns, part in zip(group.columns, group.gather(sent), strict=True):
        of_all[columns] = part[: len(columns)]
    return of_all, max(float(slowest), 1e-6)
