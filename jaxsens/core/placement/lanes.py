"""Parallel threads for one CPU device, which leaves most cores idle during an engine's small operations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxsens.core.base.programs import numerics, platform_of

Result = TypeVar("Result")


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_one_cpu(mesh: Mesh) -> bool:
    """Returns whether a mesh is a single CPU device."""
    return mesh.size == 1 and platform_of(mesh).threads


def lanes_on(mesh: Mesh) -> int:
    """Returns the number of threads for a mesh: one per core of a single CPU device, otherwise one. XLA itself spreads
    work over several devices, and one thread keeps an accelerator busy."""
    return cores() if is_one_cpu(mesh) else 1


class Lanes:
    """A context manager with `count` threads. All of them have ended when it exits, also after an exception.

    Even a single lane is a separate thread, so that the main thread can handle signals while it waits. Interrupted
    computations are waited for, because one that is still running when the interpreter shuts down crashes it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # JAX's settings are thread-local: each thread must enter those in force here.
        self._dtype = str(jnp.result_type(float))
        self._name = f"jaxsens-lane-{id(self)}"
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=self._name)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        # A thread that was being started when Ctrl-C came may not be on the pool's list.
        while any(thread.name.startswith(f"{self._name}_") for thread in threading.enumerate()):
            time.sleep(0.001)

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """Returns work(0) .. work(count - 1), run in parallel.

        Raises:
            Exception: the exception of the first lane that failed, after all lanes have ended.
        """
        futures = [self._threads.submit(self._in_lane, work, lane) for lane in range(self.count)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _in_lane(self, work: Callable[[int], Result], lane: int) -> Result:
        with numerics(self._dtype):
            return jax.block_until_ready(work(lane))
