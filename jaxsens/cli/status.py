"""`jaxsens status`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.base import stopping
from jaxsens.cli.shared import Directory, Flag, say

WATCH_SECONDS = 10.0
"""The seconds between two looks at a sweep."""


def status(
    directory: Directory,
    /,
    *,
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False,
    quick: Flag = False,
    watch: Flag = False,
) -> int:
    """Print the state of a sweep, running or not, from any machine that sees its directory.

    Every record is read, and its seal checked.

    Args:
        directory: The --out of `jaxsens sweep`.
        json_output: Print JSON, for scripts; its "state" is finished, running, failed or stopped.
        quick: Go by the names of files, without checking seals; the last line says how many were not checked.
        watch: Print the state again every 10 s, as long as somebody is at work.
    """
    from jaxsens.experiments.sweep.status import sweep_status

    while True:
        found = sweep_status(directory, quick)
        if json_output:
            print(json.dumps(asdict(found), indent=None if watch else 1), flush=True)
        else:
            say(Console(), "\n".join(found.lines()))
        if not watch or found.state != "running":
            return 0
        _pause(WATCH_SECONDS)


def _pause(seconds: float) -> None:
    """Waits, and raises `Stopped` soon after a signal."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stopping.check()
        time.sleep(0.1)
