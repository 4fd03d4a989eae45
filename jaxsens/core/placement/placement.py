"""Where flips are measured: on which devices, in which batches, within which memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxsens.core.base import inputs as checks
from jaxsens.core.base import stopping
from jaxsens.core.base.errors import Problems, collecting, machine_memory
from jaxsens.core.base.programs import Platform, automatic, platform_of
from jaxsens.core.placement.process_group import ProcessGroup


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
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

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
