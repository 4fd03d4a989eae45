"""Parallel threads for one CPU device, which leaves most cores idle during an engine's small operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxsens.core.base.programs import numerics

Result = TypeVar("Result")


class Lanes:
    """A context manager with `count` threads. All of them have ended when it exits, also after an exception.

    Interrupted computations are waited for, because one that is still running when the interpreter shuts down crashes
    it.
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
