"""Starts a distributed job of a few processes on this machine: `python -m MODULE PROCESS PROCESSES PORT ARGUMENTS`.

And stands in for a disk that is full, for tests that are not run by root.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code and all that it printed."""

    code: int
    log: str


def free_port() -> int:
    """A port that is free at the moment."""
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        return int(bound.getsockname()[1])


def environment(devices: int = 1) -> dict[str, str]:
    """The environment of a process with so many CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def run(module: str, processes: int, *arguments: str, devices: int = 1, patience: float = 600) -> list[Ended]:
    """Runs a module in so many processes, until all have ended."""
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(k), str(processes), port, *arguments],
            cwd=ROOT,
            env=environment(devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(processes)
    ]
    try:
        logs = [process.communicate(timeout=patience)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [Ended(process.returncode, log) for process, log in zip(started, logs, strict=True)]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may be longer, in bytes: as on a full disk, writing fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
