"""Runs an engine over many flips of many inputs, in blocks within a memory budget, with progress: a bar on a
terminal, the caller's function, or nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.base.programs import numerics, resolved
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.engines.incremental import LARGEST_SCORE
from jaxsens.core.engines.vmap import CERTAIN_SCORE
from jaxsens.core.measures.formulas import is_whole
from jaxsens.core.placement.placement import Placement, ProcessGroup
from jaxsens.core.placement.program import (
    FlipProgram,
    FlipRequest,
    Quantity,
    Ready,
    computed,
    inputs_at_once,
    is_single,
    prepared_on,
)

Progress = Callable[[int, int], None]
"""Called with (flips done, flips in all) after every chunk."""

_CHUNK_SECONDS = 1.0

_SHORT = 0.008
"""Seconds of a measurement that is made in this thread: to start others would take as long as what they do."""

_FEW_BYTES = 2**29
"""Of a program that has not run yet, the first block is measured in this thread if all flips and symbols together read
fewer bytes of its arguments. Of a larger one it could take long, while the other cores wait."""


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
    those whose resolution exceeds `programs.RESOLVED` of the change by its `wider` engine; and so on.

    Attributes:
        inputs, positions, symbols: the flips, sorted by their input.
        error_bounds: the rounding of each output, for engines that subtract outputs; by default, a few roundings.
        finished: what is finished, also after Ctrl-C; some of the values may be NaN.
        first: the first inputs as the engine prepares them, if they are at hand.
        compiles: whether `numbers` compiles its programs for the first inputs, and measures nothing.
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
    compiles: bool = False
    quantity: Quantity = field(default="measured", init=False)

    def numbers(self, quantity: Quantity = "measured") -> tuple[Float[np.ndarray, "flips 2"], dict[str, int]]:
        """Returns what the engine measures of every flip with its resolution, and the counts for each other engine.

        The order is the given one.

        Raises:
            InputError: if not even one flip at a time fits the budget.
            KeyboardInterrupt: on Ctrl-C, or a recorded signal.
        """
        self.quantity, total, so_far = quantity, len(self.inputs), self.finished
        so_far.values = np.full((total, 2) if quantity == "measured" else (total,), np.nan, np.float32)
        so_far.done = np.zeros(total, bool)
        group, waiting = self.placement.group, {self.engine: [np.arange(total)]}
        options = type(self.engine).__name__, self.placement.batch_size, self.placement.memory_budget
        arrays = self.tokens, self.inputs, self.positions, self.symbols
        # All processes of the mesh enter with the same flips, and leave in the same way.
        same = (
            b"" if group is None else b"".join([repr(options).encode(), *(one.tobytes() for one in arrays)])
        )
        with nullcontext() if group is None else group.together(same):
            while waiting:  # by the engine first, and what it leaves by the engines that come after it
                runner = next(iter(waiting))
                flips = np.sort(np.concatenate(waiting.pop(runner)))
                numbers, ends = np.unique(self.inputs[flips], return_index=True)
                ends = np.append(ends, len(flips))
                with computed(runner, self.placement) as placement:
                    shape = len(numbers), self.tokens.shape[1]
                    size = inputs_at_once(runner, self.parameters, shape, placement)
                    for first in range(0, len(numbers), size):
                        self.placement.check()
                        some = numbers[first : first + size]
                        own = flips[ends[first] : ends[first + len(some)]]
                        self._measure_by(runner, some, own, placement, waiting)
                        if self.compiles:
                            break
        return so_far.values, so_far.fallbacks

    def changes(self) -> tuple[Float[np.ndarray, "flips chosen"], dict[str, int]]:
        """Like `numbers`, but returns the change of the chosen outputs under every flip instead of its norm."""
        return self.numbers("changes")

    def _measure_by(
        self,
        runner: Engine,
        inputs: Int[np.ndarray, " inputs"],
        flips: Int[np.ndarray, " flips"],
        placement: Placement,
        waiting: dict[Engine, list[np.ndarray]],
    ) -> None:
        """Measures flips of some inputs by one engine; those that it leaves wait for others."""
        ready, number = None, np.searchsorted(inputs, self.inputs[flips])
        if self.first is not None and runner == self.engine:
            ready, self.first = self.first, None
        if ready is None or not np.array_equal(inputs, np.arange(len(ready.output))):
            ready = prepared_on(placement.local, runner, self.parameters, self.tokens[inputs])
        if runner.fallback is not None:
            fine = np.array(placement.least(*ready.resolved.tolist()), bool)
            _wait(waiting, runner.fallback, flips[~fine[number]])
            flips, number = flips[fine[number]], number[fine[number]]
        prepared = ready.prepared
        if runner.subtracts and self.error_bounds is not None and len(flips):
            dtype = "float64" if jnp.result_type(float) == jnp.float64 else "float32"
            bound = self.error_bounds(inputs, dtype, ready.output)
            scores = np.max(ready.sizes, axis=1, initial=0)[:, None]
            factor = np.where(scores > LARGEST_SCORE[dtype], np.inf, np.maximum(1, scores / CERTAIN_SCORE))
            bound = np.where(bound > 0, factor, 1) * bound
            if runner.wider is not None:  # a change as large as the output itself may not be resolved
                sizes = (np.linalg.norm(np.asarray(one, np.float64), axis=1) for one in (ready.output, bound))
                lost = ~resolved(*sizes)[number]
                _wait(waiting, runner.wider, flips[lost])
                flips, number = flips[~lost], number[~lost]
            if not is_whole(prepared.output):
                filled = np.zeros(prepared.error_bound.shape, prepared.error_bound.dtype)
                filled[: len(inputs)] = bound
                prepared = replace(prepared, error_bound=filled)
        if not len(flips):
            return
        if self.compiles and stopping.asked():
            return
        counts = np.subtract(*np.searchsorted(self.inputs, [inputs + 1, inputs]))
        operands = ready.parameters, prepared
        lengths = self.tokens.shape[1], ready.output[0].size, self.positions.shape[1]
        request = FlipRequest(self.quantity, runner.shared, operands, *lengths, placement)
        room = placement.least(request.room(int(counts.sum())))[0]
        for first in range(0, len(number), room):
            some, own = flips[first : first + room], number[first : first + room]
            program, threads = request.program(counts, len(some), room)
            if self.compiles:
                return
            block = FlipBlock(self.positions[some], self.symbols[some])
            for done, values in _chunks(request, program, threads, own, block):
                self._take(runner, some[done], values, waiting)
                placement.check()

    def _take(
        self, runner: Engine, here: np.ndarray, values: np.ndarray, waiting: dict[Engine, list[np.ndarray]]
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
        # Not finite: the engine declined them, or overflowed.
        missing = np.any(~np.isfinite(values), axis=tuple(range(1, values.ndim)))
        blurred = np.zeros(len(values), bool)
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


def _wait(waiting: dict[Engine, list[np.ndarray]], engine: Engine | None, flips: np.ndarray) -> None:
    """Adds flips to those that wait for an engine, if there is one."""
    if engine is not None and len(flips):
        waiting.setdefault(engine, []).append(flips)


def _rows_of(number: Int[np.ndarray, " flips"], batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows of `batch` flips of one input each, from the sorted number of each flip's input: the inputs (rows),
    the flips (rows, batch), and which of these are no padding, which repeats the last flip of a row."""
    counts = np.bincount(number)
    rows, ends = -(-counts // batch), np.cumsum(counts)
    inputs = np.repeat(np.arange(len(counts)), rows)
    place = np.arange(len(inputs)) - (np.cumsum(rows) - rows)[inputs]
    flips = ((ends - counts)[inputs] + place * batch)[:, None] + np.arange(batch)
    last = ends[inputs, None]
    return inputs, np.minimum(flips, last - 1), flips < last


def _chunks(
    request: FlipRequest,
    program: FlipProgram,
    threads: int,
    number: Int[np.ndarray, " flips"],
    flips: FlipBlock,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Measures flips for which a program has room, in chunks; yields which of them are done, and their values.

    `number` is that of each flip's input. Nothing runs while it is suspended.
    """
    placement, mesh, together = request.placement, request.placement.local, program.together
    (words, in_rows, real), group = _rows_of(number, program.batch), placement.group
    devices = placement.devices.size
    columns = np.arange(devices) if group is None else group.columns[group.rank]
    blocks = -(-len(words) // (together * devices))
    threads = min(threads, blocks)
    # Block k of device d is the (k D + d)-th group of rows; the last row is repeated as padding, dropped later.
    shape = (program.blocks, devices, together)
    order = np.arange(np.prod(shape)).reshape(shape).transpose(1, 0, 2)
    filled = np.minimum(order[columns].reshape(-1, together), len(words) - 1)
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    where = mesh.devices.flat[0] if is_single(mesh) else split
    # A program on the CPU reads NumPy's arrays; moving them takes longer than a short measurement.
    put = (
        np.asarray
        if placement.platform.threads and is_single(mesh)
        else partial(jax.device_put, device=where)
    )
    table = in_rows[filled]
    inputs = put(words[filled].astype(np.int32))
    blocks_of_flips = FlipBlock(*(put(part[table].astype(np.int32)) for part in flips))
    empty = put(np.zeros((*table.shape, *program.shape), program.dtype))
    dtype = str(jnp.result_type(float))

    def lane(start: int, stop: int, stride: int, k: int) -> np.ndarray:
        """Measures every `stride`-th block from `start + k` to `stop`."""
        ends = np.int32(start + k), np.int32(stop), np.int32(stride)
        with numerics(dtype):  # a thread has the user's settings, as of a disabled jit
            results = np.asarray(program.run(request.operands, inputs, blocks_of_flips, empty, *ends))
        each = len(columns), program.blocks, together, program.batch
        return results.reshape(*each, *program.shape)[:, start + k : stop : stride]

    start, pace = 0, program.pace
    few = request.arguments * len(number) * request.n < _FEW_BYTES
    stride = threads if group is None else int(group.meet(threads).max())
    step = stride * max(1, int(_CHUNK_SECONDS / pace[0])) if pace and group is None else stride
    with ExitStack() as stack:
        lanes: ThreadPoolExecutor | None = None
        while start < blocks:
            alone, began = threads == 1, time.perf_counter()
            if group is None and ((blocks - start) * pace[0] < _SHORT if pace else few):
                alone, step = True, blocks - start if pace else 1
            stop = min(start + step, blocks)
            if alone:
                results = lane(start, stop, 1, 0)
            else:
                # When the pool ends, also by an exception, it waits: what still runs as Python ends crashes it.
                lanes = lanes or stack.enter_context(ThreadPoolExecutor(threads))
                results = np.empty(
                    (len(columns), stop - start, *table.shape[1:], *program.shape), program.dtype
                )
                for k, part in enumerate(lanes.map(partial(lane, start, stop, threads), range(threads))):
                    results[:, k::threads] = part
            seconds = max(time.perf_counter() - began, 1e-6) / (threads if alone else 1)  # by all threads
            pace[:] = [min([*pace, seconds * threads / (stop - start)])]
            if group is not None:
                results, seconds = _of_all(results, seconds, group)
            row = order[:, start:stop].ravel()
            row, there = row[row < len(words)], row < len(words)
            results = results.reshape(len(there), -1, *program.shape)[there]
            yield in_rows[row][real[row]], results[real[row]]
            step = max(1, min(8 * step, int((stop - start) * _CHUNK_SECONDS / seconds)))
            step = -(-step // stride) * stride
            start = stop


def _of_all(results: np.ndarray, seconds: float, group: ProcessGroup) -> tuple[np.ndarray, float]:
    """Returns the values of all devices of the mesh from those of this process's, and the seconds of the slowest."""
    slowest = group.meet(int(1e6 * seconds))[:, 0].max() / 1e6
    most = max(len(columns) for columns in group.columns)
    sent = np.zeros((most, *results.shape[1:]), results.dtype)
    sent[: len(results)] = results
    of_all = np.empty((group.mesh.size, *results.shape[1:]), results.dtype)
    for columns, part in zip(group.columns, group.gather(sent), strict=True):
        of_all[columns] = part[: len(columns)]
    return of_all, max(float(slowest), 1e-6)


PROGRESS = "(flips done, flips in all), True for a bar, or False for nothing"
"""What `progress` may be, in words."""

PATIENCE = 2.0
"""Seconds before the default bar appears: shorter measurements need none."""


@contextmanager
def progress_of(progress: Callable[[int, int], object] | bool | None) -> Iterator[Progress | None]:
    """Yields a function of (flips done, flips in all): the user's own; for True one that moves a bar on standard error,
    which appears even while a program is still being compiled; and for None, on a terminal, a late one.

    In a notebook the bar appears below the cell.
    """
    on_terminal = progress is None and sys.stderr is not None and sys.stderr.isatty()
    if callable(progress) or not (progress or on_terminal):
        own: Any = progress  # what it returns is ignored
        yield own if callable(progress) else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    description, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
    columns = BarColumn(bar_width=20), description, TimeElapsedColumn(), left, TimeRemainingColumn()
    bar = RichProgress(*columns, console=Console(stderr=True))
    task = bar.add_task("preparing and compiling", total=None, left="")

    def show(done: int, total: int) -> None:
        bar.update(task, description=f"{done}/{total} flips", total=total, completed=done, left="left:")

    timer = threading.Timer(0.0 if progress else PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield show
    finally:
        timer.cancel()
        timer.join()  # it may be about to start the bar
        if bar.live.is_started:
            bar.stop()  # it stays where it stands
