"""What is chosen by the platform that a program is compiled for: one row for each, in one table.

Engines and models read the row that they are given. They name no platform.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxsens.core.base.errors import InputError


@dataclass(frozen=True)
class Platform:
    """The choices for one kind of device. Results depend on them only by rounding.

    Attributes:
        name: JAX's name of the platform.
        memory: the default budget: bytes of temporary memory on each device, for all threads together.
        float64: whether the device computes in float64; otherwise the host does what needs its digits.
        rate: float32 operations per second of a large matrix product on the device that stands for the platform.
        wide_rate, host_rate: the same in float64, of the device and of its host; of the host twice where the device
            does not compute in float64.
        compiling: how many times as long as on the reference machine, two cores, programs take to compile.
        threads: whether a single device is kept busy by one thread for each core, and not by XLA itself.
        batches: the least number of batches into which the flips of a single device are divided, so that results do not
            depend on the number of cores.
        forward_symbols: the symbols of a batch of forward passes.
        difference_symbols, difference_flips: the most symbols, and flips, of a batch of the difference engine.
        folded_flips: the flips of a batch of its folded form.
        estimated_flips: the flips of a batch of first-order estimates.
        cached_scores: soft attention with more scores goes by one head and some rows at a time; None if it never does.
        mapped_numbers: maps of single rows are computed for so many numbers at a time; None for all rows.
    """

    name: str
    memory: int
    float64: bool
    rate: float
    wide_rate: float
    compiling: float
    threads: bool
    batches: int
    forward_symbols: int
    difference_symbols: int
    difference_flips: int
    folded_flips: int
    estimated_flips: int
    cached_scores: int | None
    mapped_numbers: int | None = None
    host_rate: float = 5e10

    def mapped_rows(self, width: int) -> int | None:
        """Returns how many rows of a width are mapped at a time; None for all."""
        return None if self.mapped_numbers is None else max(1, self.mapped_numbers // width)

    def budget_beside(self, arguments: int, memory: int) -> int:
        """Returns the default budget of devices with so many bytes of memory: what all flips share, and `memory` of
        this row beside it."""
        return min(arguments + self.memory, memory)


def _accelerator(name: str, float64: bool) -> Platform:
    """An accelerator needs large products, and its budget is what the smallest that is in use can spare. The scores of
    128 flips of 1024 symbols keep it busy; of eight times as many the program is compiled twice, for want of memory."""
    return Platform(
        name,
        memory=2**33,
        float64=float64,
        # What an H200 reached, a third of its data sheet, and its first calls: benchmarks/README.md.
        rate=2e13,
        wide_rate=1e13,
        compiling=1.4,
        threads=False,
        batches=1,
        forward_symbols=2**17,
        difference_symbols=2**22,
        difference_flips=2**22,
        folded_flips=2**12,
        estimated_flips=2**12,
        cached_scores=None,
    )


PLATFORMS = {
    # A batch stays in the cache of a core: larger ones of forward passes take up to twice as long, and products with
    # scores that go through memory up to four times as long.
    "cpu": Platform(
        "cpu",
        memory=2**31,
        float64=True,
        rate=1e11,
        wide_rate=5e10,
        compiling=1.0,
        threads=True,
        batches=16,
        forward_symbols=2**8,
        difference_symbols=2**14,
        difference_flips=8,
        folded_flips=32,
        estimated_flips=256,
        cached_scores=2**18,
    ),
    "gpu": _accelerator("gpu", float64=True),
    # XLA emulates float64 on a TPU by pairs of float32, with fewer digits and the range of float32.
    # It makes six products in bfloat16 of one in float32, and unrolls each over its tiles: a program for 2**17 rows
    # of 64 numbers took up to 30 times as long to compile for a v6e as one for 2**12, which fill its units as well.
    "tpu": replace(
        _accelerator("tpu", float64=False),
        # A third of a v5e's data sheet, not measured; programs compiled for a v5e took 14 to 32 times as long.
        rate=1e13,
        wide_rate=5e10,
        compiling=25.0,
        memory=12 * 2**30,  # of 16 GiB of a v5e: narrow arrays take up to eight times their size on a TPU
        forward_symbols=2**10,
        difference_symbols=2**13,
        difference_flips=2**8,
        folded_flips=2**7,
        estimated_flips=2**7,
        cached_scores=2**18,
        mapped_numbers=2**18,
    ),
}

_COMPILED_FOR = jax.make_user_context(None)
"""The name of the platform that programs are traced for. JAX caches what it traces separately for each."""


def platform_called(name: str) -> Platform:
    """Returns the row of a platform.

    Raises:
        InputError: if there is none.
    """
    if name not in PLATFORMS:
        known = ", ".join(PLATFORMS)
        raise InputError(f"platform {name!r}: jaxsens computes on {known}; set JAX_PLATFORMS to one of them")
    return PLATFORMS[name]


def platform_of(mesh: Mesh) -> Platform:
    """Returns the row of the platform of a mesh's devices."""
    return platform_called(mesh.devices.flat[0].platform)


def compiled_for() -> Platform:
    """Returns the platform that programs are traced for: that of `compiling_for`, otherwise JAX's default one."""
    return platform_called(_COMPILED_FOR.value or jax.default_backend())


def automatic(mesh: Mesh) -> Mesh:
    """Returns a mesh of the same devices on whose axes XLA places arrays, whatever the user's mesh says of them."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def host_mesh() -> Mesh:
    """Returns the mesh of this process's CPU.

    Raises:
        InputError: if JAX was told to leave it out.
    """
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise InputError.of(
            "JAX_PLATFORMS",
            os.environ.get("JAX_PLATFORMS"),
            'what needs float64 is computed on the host; add cpu, as "tpu,cpu"',
        ) from error
    return Mesh(np.array([device]), ("flips",), axis_types=(AxisType.Auto,))


@contextmanager
def on_host() -> Iterator[Mesh]:
    """Computes on this process's CPU, and traces for it; yields its mesh. Raises as `host_mesh` does."""
    mesh = host_mesh()
    with jax.default_device(mesh.devices.flat[0]), compiling_for(PLATFORMS["cpu"]):
        yield mesh


@contextmanager
def compiling_for(platform: Platform) -> Iterator[None]:
    """Programs traced within are for devices of this platform, which need not be at hand."""
    with _COMPILED_FOR(platform.name):
        yield
