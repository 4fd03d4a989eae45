"""`jaxsens constructions`."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.cli.shared import Count, File, Flag, check_output, default, write_output
from jaxsens.errors import InputError, collecting
from jaxsens.files import write_text


def constructions(
    name: tyro.conf.Positional[
        Annotated[str | None, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")]
    ] = None,
    /,
    *,
    measure: Flag = False,
    out: Annotated[File, default("printed")] = None,
    cap: Annotated[Count, default("4000")] = None,
    quiet: Flag = False,
) -> int:
    """List the constructions; with a name, print what one is in every condition; or measure them.

    Args:
        name: A construction: parity, majority, dyck, ...
        measure: Measure sensitivity and exactness, and print the table of results in Markdown. Minutes a construction.
        out: Write the table to this file.
        cap: The longest words to try exactness on; time grows as their square.
        quiet: Print no progress.
    """
    from jaxsens.analysis.constructions import details, measured, overview

    if not measure:
        if out is not None or cap is not None or quiet:
            raise InputError("constructions: --out, --cap and --quiet belong to --measure")
        Console(highlight=False).print(overview() if name is None else details(name))
        return 0
    with collecting("constructions") as faults:
        check_output("--out", out, faults)
    text = measured(name, cap, Console(stderr=True, quiet=quiet))
    if out is None:
        print(text, end="")
        return 0
    return write_output("--out", out, lambda: write_text(out, text), text)
