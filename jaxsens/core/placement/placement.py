"""Where flips are measured: on which devices, in which batches, within which memory; and the processes of a distributed
job that share one mesh: what they exchange, and how they stop together.

Each process runs its own compiled programs on its own devices; only results are exchanged, by JAX's collectives. A
collective hangs if one process does not take part, so every exchange begins with a short message that says how the
sender is: well, asked to stop, or failed. All of them then go on, stop or fail at the same place.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, UInt8

from jaxsens.core.base import inputs as checks
from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError, Problems, ProcessLost, collecting, machine_memory
from jaxsens.core.base.programs import Platform, automatic, platform_of, room_for

_WELL, _STOPPED, _LEFT, _FAILED, _WRONG = 0, 1, 2, 3, 4
"""How a process is: well; asked to stop, which all do at the next `check`; or gone, interrupted or for an error."""
_MESSAGE, _TEXT = 2048, 300
"""The bytes of a message, and the most characters of its text."""

_MESSAGES = {
    _FAILED: "process {0} of the mesh failed, so all stop: {1}",
    _WRONG: "process {0} of the mesh refused: {1}",
}


class ProcessGroup:
    """The processes whose devices make up a mesh with one axis. Every method is called by all of them, in one order.

    Attributes:
        mesh: the whole mesh.
        local: the mesh of this process's devices among them, in the same order.
        columns: the numbers of each process's devices along the axis, by the rank of the process.
        rank: the number of this process among them, in the order of their process ids.
    """

    def __init__(self, mesh: Mesh) -> None:
        devices = list(mesh.devices.flat)
        processes = sorted({device.process_index for device in devices})
        self.mesh = mesh
        self.columns = [
            np.flatnonzero([device.process_index == process for device in devices]) for process in processes
        ]
        self.rank = processes.index(jax.process_index())
        own = [devices[column] for column in self.columns[self.rank]]
        self.local = Mesh(np.array(own), mesh.axis_names)
        self._first = own[0]
        self._ids = processes
        self._everyone = len(processes) == jax.process_count()
        one_each = Mesh(np.array([devices[columns[0]] for columns in self.columns]), ("processes",))
        self._rows = NamedSharding(one_each, PartitionSpec("processes"))
        self._copied = jax.jit(lambda x: x, out_shardings=NamedSharding(one_each, PartitionSpec()))
        self._pending: int | None = None
        self._agreed = False

    @staticmethod
    @lru_cache(maxsize=16)
    def of(mesh: Mesh) -> ProcessGroup:
        """Returns the processes of a mesh, the same object at each call: exchanges are counted."""
        return ProcessGroup(mesh)

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.columns)

    def check(self) -> None:
        """Raises `Stopped` if a process was asked to stop before the last exchange. Needs no exchange itself."""
        if self._pending is not None:
            number, self._pending = self._pending, None
            self._agreed = True
            stopping.check()  # marks a signal to this process as answered
            raise stopping.Stopped(number)

    def meet(self, *numbers: int) -> Int[np.ndarray, "processes numbers"]:
        """Returns these numbers of every process. A request to stop is noted for `check`.

        Raises:
            InputError, RuntimeError: if another process refused its input, or failed.
            Stopped: if another process was interrupted where it cannot go on.
        """
        number = stopping.requested_signal()
        messages = self._exchange(_WELL if number is None else _STOPPED, number or 0, numbers)
        self._agreed = True
        for process, (status, _, _, text) in zip(self._ids, messages, strict=True):
            if status in _MESSAGES:
                error = InputError if status == _WRONG else RuntimeError
                raise error(_MESSAGES[status].format(process, text))
        for status, number, _, _ in messages:
            if status == _LEFT:
                raise stopping.Stopped(number)
        self._pending = next(
            (number for status, number, _, _ in messages if status == _STOPPED), self._pending
        )
        self._agreed = False
        return np.array([numbers for _, _, numbers, _ in messages], np.int64)

    def gather(self, values: np.ndarray) -> list[np.ndarray]:
        """Returns the array of every process, bit for bit. All have one shape and dtype. Call `meet` just before."""
        if not values.size:
            return [values] * self.size
        sent = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        filled = np.zeros(max(1024, room_for(len(sent))), np.uint8)
        filled[: len(sent)] = sent
        rows = self._gather(filled)[:, : len(sent)]
        return [np.frombuffer(row.tobytes(), values.dtype).reshape(values.shape) for row in rows]

    def from_first(self, text: bytes) -> bytes:
        """Returns the text of the first process; the others' texts do not matter."""
        length = int(self.meet(len(text))[0, 0])
        sent = np.zeros(length, np.uint8)
        if self.rank == 0:
            sent[:] = np.frombuffer(text, np.uint8)
        return self.gather(sent)[0].tobytes()

    @contextmanager
    def together(self, what: bytes) -> Iterator[None]:
        """A block of work that all processes leave in the same way, whichever of them is stopped or fails. Blocks may
        be nested.

        what: identifies the work, which must be the same for all.

        Raises:
            InputError: if the processes were called with different arguments.
        """
        self._agreed = False
        digest = int.from_bytes(hashlib.sha256(what).digest()[:7], "big")
        statuses = self.meet(digest)[:, 0]
        if (statuses != statuses[0]).any():
            other = self._ids[int(np.flatnonzero(statuses != statuses[0])[0])]
            raise InputError.note(
                "mesh",
                f"process {other} was called with another model, input or option than process {self._ids[0]}; "
                "all processes of a mesh make the same calls",
            )
        self.check()
        try:
            yield
            self.meet()
            self.check()
        except ProcessLost:
            raise
        except BaseException as error:
            self._report(error)
            raise

    def _report(self, error: BaseException) -> None:
        """Tells the others why this process leaves, unless they left together."""
        if self._agreed:
            return
        self._agreed = True
        if isinstance(error, KeyboardInterrupt):
            self._exchange(_LEFT, getattr(error, "signal", signal.SIGINT))
        else:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._exchange(_WRONG if isinstance(error, InputError) else _FAILED, text=text)

    def _exchange(
        self, status: int, number: int = 0, numbers: tuple[int, ...] = (), text: str = ""
    ) -> list[tuple[int, int, list[int], str]]:
        """Returns the status of every process, the number of its signal, its numbers and its text."""
        if self._everyone and _preempted():
            # All processes learn of it at the same exchange.
            status, number = (_STOPPED, signal.SIGTERM) if status == _WELL else (status, number)
        message = json.dumps((status, number, [*map(int, numbers)], text[:_TEXT]), ensure_ascii=False)
        sent = np.frombuffer(message.encode(errors="replace").ljust(_MESSAGE), np.uint8)
        return [json.loads(row.tobytes()) for row in self._gather(sent)]

    def _gather(self, row: UInt8[np.ndarray, " bytes"]) -> UInt8[np.ndarray, "processes bytes"]:
        """Returns the rows of all processes: `multihost_utils.process_allgather` for some processes of a job, each of
        which may have any number of devices."""
        try:
            shape, mine = (self.size, len(row)), jax.device_put(row[None], self._first)
            rows_of_all = jax.make_array_from_single_device_arrays(shape, self._rows, [mine])
            return np.asarray(self._copied(rows_of_all).addressable_data(0))
        except Exception as error:  # whatever the transport raises
            self._agreed = True
            cause = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ProcessLost(
                f"mesh: another process of it has ended or cannot be reached ({cause[:300]}); start all processes again"
            ) from error


_exchanges = 0


def _preempted() -> bool:
    """Whether the scheduler's SIGTERM, which JAX's preemption service takes, has reached a process of the job, and all
    have come to the exchange at which they stop."""
    global _exchanges
    _exchanges += 1
    try:
        return multihost_utils.reached_preemption_sync_point(_exchanges)
    except RuntimeError:  # The service is off: SIGTERM has its usual effect.
        return False


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
            more on a GPU, 12 GiB more on a TPU, but no more than the device has. Beside that, a sweep then holds the
            model and the unflipped inputs of up to two short points more, for which it compiles meanwhile.

    Raises:
        InputError: naming each unusable field.

    >>> Placement(batch_size=64, memory_budget=2**31).batch_size
    64
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

    def budget(self, arguments: int = 0) -> int:
        """Returns the memory budget in bytes of a measurement in which all flips of an input share that many."""
        if self.memory_budget is not None:
            return self.memory_budget
        stats = self.local.devices.flat[0].memory_stats() or {}  # of what JAX may use; none on CPU
        memory = int(stats.get("bytes_limit", machine_memory() // self.local.size))
        return self.platform.budget_beside(arguments, memory)

    @property
    def group(self) -> ProcessGroup | None:
        """The processes that share the mesh; None if this process has all its devices."""
        return ProcessGroup.of(self.devices) if self.devices.is_multi_process else None

    @property
    def local(self) -> Mesh:
        """The mesh of this process's devices."""
        return self.devices if self.group is None else self.group.local

    @property
    def threads(self) -> int:
        """The number of threads that share the work of this process: one per core of a single CPU device. XLA itself
        spreads work over several devices, and one thread keeps an accelerator busy."""
        if self.local.size > 1 or not self.platform.threads:
            return 1
        return cores()

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


@lru_cache(maxsize=1)
def local_mesh() -> Mesh:
    """Returns a mesh of all devices of this process, with one axis called "flips"."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), ("flips",), devices=devices, axis_types=(AxisType.Auto,))


def global_mesh() -> Mesh:
    """Returns a mesh of all devices of all processes of a distributed job, with one axis called "flips".

    Every process calls `jax.distributed.initialize` first, and then makes the same calls with
    `Placement(global_mesh())`. Hosts with other processors or another number of cores give other last digits. In a
    single process it is the default mesh, of all its devices.

    >>> global_mesh().size >= 1
    True
    """
    return Mesh(np.array(jax.devices()), ("flips",), axis_types=(AxisType.Auto,))


_HERE = Placement()


def checked_placement(value: Any, problems: Problems, mesh: Mesh | None = None) -> Placement:
    """Returns the argument `placement`, or the default one; adds an error for anything else, and for another mesh than
    that over which a model's parameters are split."""
    value = _HERE if value is None else value
    if not isinstance(value, Placement):
        problems.add("placement", value, "jaxsens.Placement(mesh, batch_size=64), or None")
        return _HERE
    if mesh is not None and value.mesh is not None and automatic(value.mesh) != mesh:
        remedy = f"the model's parameters are split over {mesh}; give that mesh"
        problems.add("placement.mesh", value.mesh, remedy)
    return value if mesh is None else replace(value, mesh=mesh)
