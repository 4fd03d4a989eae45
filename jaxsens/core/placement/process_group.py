"""The processes of a distributed job that share one mesh: what they exchange, and how they stop together.

Each process runs its own compiled programs on its own devices; only results are exchanged, by JAX's collectives. A
collective hangs if one process does not take part, so every exchange begins with a short message that says how the
sender is: well, asked to stop, or failed. All of them then go on, stop or fail at the same place.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, UInt8

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError, ProcessLost
from jaxsens.core.base.programs import room_for

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
        self._copied = jax.jit(_same, out_shardings=NamedSharding(one_each, PartitionSpec()))
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


def _same(x: Array) -> Array:
    return x


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
