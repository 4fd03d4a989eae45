"""The `jaxsens` command, one module a subcommand or two. What is heavy is imported where it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tyro

from jaxsens.cli import constructions, measure, restrictions, sweep, theorem6, train
from jaxsens.errors import InputError

_DESCRIPTION = """Measures how much one symbol of the input moves a transformer's output, and how that scales with
the input's length. `jaxsens --version` prints the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 1 (a point failed, or the disk is full), 2 (bad input), 128 +
    the signal."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if list(arguments) == ["--version"]:
        from jaxsens.versions import package_version

        print(f"jaxsens {package_version()}")
        return 0
    commands: dict[str, Any] = {
        "sweep": sweep.sweep,
        "measure": measure.measure,
        "train": train.train,
        "theorem6": theorem6.theorem6,
        "report": sweep.report,
        "constructions": constructions.constructions,
        "restrictions": restrictions.restrictions,
    }
    try:
        return tyro.extras.subcommand_cli_from_dict(
            commands, prog="jaxsens", description=_DESCRIPTION, args=arguments
        )
    except (InputError, OSError) as error:
        from jaxsens.experiments.stopping import takes_no_more

        if takes_no_more(error):
            remedy = "what was written before is kept; make room, then run the same command again"
            print(f"jaxsens: {error}: {remedy}", file=sys.stderr)
            return 1
        print(f"jaxsens: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
