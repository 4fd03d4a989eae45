"""`jaxsens status`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.cli.shared import Directory, Flag, say


def status(
    directory: Directory,
    /,
    *,
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False,
    quick: Flag = False,
) -> int:
    """Print the state of a sweep, running or not, from any machine that sees its directory.

    Every record is read, and its seal checked.

    Args:
        directory: The --out of `jaxsens sweep`.
        json_output: Print JSON, for scripts; its "state" is finished, running, failed or stopped.
        quick: Go by the names of files, without checking seals; the last line says how many were not checked.
    """
    from jaxsens.experiments.status import sweep_status

    found = sweep_status(directory, quick)
    if json_output:
        print(json.dumps(asdict(found), indent=1))
    else:
        for line in found.lines():
            say(Console(), line)
    return 0
