"""The option --compilation-cache of the commands that compile."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from jaxsens.base.kept_programs import KeptPrograms, kept_in
from jaxsens.cli.shared import Text, default

CacheFolder = Annotated[
    Text,
    default(
        "in the user's cache folder",
        "DIR",
        "Where compiled programs are kept for later commands, in a folder for each version of jaxlib, backend and "
        "processor; off to keep none.",
    ),
]
"""The option --compilation-cache."""


def programs_kept(given: str | None) -> KeptPrograms:
    """`jaxsens.programs_kept` in the folder that the option names; "off" keeps nothing."""
    if given == "off":
        return KeptPrograms(why_not="--compilation-cache off")
    return kept_in(given, "compilation cache", "--compilation-cache", "another folder, or off")


def again(command: str, config: Path, out: Path, cache: str | None, *options: str) -> str:
    """Returns the line for the shell that resumes a command, with --compilation-cache as it was given."""
    kept = [] if cache is None else ["--compilation-cache", cache]
    return shlex.join(["jaxsens", command, str(config), "--out", str(out), *options, *kept])
