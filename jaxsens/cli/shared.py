"""What the subcommands share: the types of their arguments, and how they speak."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

Text = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Count = Annotated[int | None, tyro.conf.arg(metavar="INT")]
File = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]


def use_all_cores() -> None:
    """Makes JAX see the machine's cores as that many CPU devices (eight at most), over which flips are spread.

    The engines' small operations leave one device's other threads idle. JAX_NUM_CPU_DEVICES overrides it; it has no
    effect on accelerators.
    """
    import os

    import jax

    if "JAX_NUM_CPU_DEVICES" not in os.environ and "xla_force_host_platform" not in os.environ.get(
        "XLA_FLAGS", ""
    ):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jax.config.update("jax_num_cpu_devices", min(cores, 8))


def say(console: Console, text: str) -> None:
    """Prints plain text as it is, whatever the terminal's width."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
