"""The machine: what it is, how busy, and what it reaches on a large matrix product and a large copy."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.costs import Rates

PACKAGES = ("jaxsens", "jax", "jaxlib", "flax", "numpy", "torch", "captum")
BUSY_AT_START = 0.3
BUSY_AT_END = 1.5
"""Load per core above which others use the machine; at the end our own load, about one a core, is in it."""


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """The load average of the last minute, where the system knows it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy(at: float | None, threshold: float, when: str) -> str | None:
    """A warning if the load is more than the machine should have."""
    if at is None or at <= threshold * cores():
        return None
    return f"the machine is busy: load average {at:.1f} on {cores()} cores at the {when}; times are too long"


def describe() -> dict[str, Any]:
    """Processor, cores, system and versions, as JSON."""
    return {
        "cpu": _processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def device_peak(method: str) -> int | None:
    """Peak bytes in use on an accelerator, or None on CPU, which keeps no such statistics."""
    import jax

    if jax.default_backend() == "cpu":
        return None
    if method in ("vmap", "incremental", "difference", "reference"):
        statistics = jax.local_devices()[0].memory_stats()
        return None if statistics is None else int(statistics["peak_bytes_in_use"])
    return int(importlib.import_module("torch").cuda.max_memory_allocated())


def rates(size: int, copied: int) -> tuple[Rates, str]:
    """The best rates of JAX, NumPy and PyTorch, and the name of JAX's device. Call in a process of its own.

    A product of two (size, size) float32 matrices, and a copy of `copied` float32 numbers, best of five each. On an
    accelerator only JAX counts.
    """
    import jax
    import jax.numpy as jnp

    from jaxsens.core.base.programs import numerics

    with numerics("float32"):
        matrix, line = jnp.ones((size, size)), jnp.ones(copied)
        multiply, negate = jax.jit(jnp.matmul), jax.jit(jnp.negative)
        products = [_seconds(lambda: multiply(matrix, matrix).block_until_ready())]
        copies = [_seconds(lambda: negate(line).block_until_ready())]
    if jax.default_backend() == "cpu":
        a, b = np.ones((size, size), np.float32), np.ones(copied, np.float32)
        target = np.empty_like(b)
        products.append(_seconds(lambda: a @ a))
        copies.append(_seconds(lambda: np.copyto(target, b)))
        if importlib.util.find_spec("torch") is not None:
            torch = importlib.import_module("torch")
            c, d, e = torch.ones(size, size), torch.ones(copied), torch.empty(copied)
            products.append(_seconds(lambda: c @ c))
            copies.append(_seconds(lambda: e.copy_(d)))
    reached = Rates(2.0 * size**3 / min(products), 2.0 * 4 * copied / min(copies))
    return reached, str(jax.devices()[0].device_kind)


def _seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def rates_apart(quick: bool) -> tuple[Rates, str]:
    """`rates` in a process of its own."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    size, copied = (1024, 2**24) if quick else (3072, 2**26)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(rates, size, copied).result()
