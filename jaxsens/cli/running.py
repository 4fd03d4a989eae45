"""The options of commands that work in a directory until all is done, and how such a command runs and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, again, programs_kept
from jaxsens.cli.shared import Flag, Out, say_failures, say_why_ended

if TYPE_CHECKING:
    from jaxsens.experiments.jobs.job import Outcome


@dataclass(frozen=True)
class RunOptions:
    """What such commands are given besides their config.

    Attributes:
        out: The output directory.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Print only failures.
    """

    out: Out
    compilation_cache: CacheFolder = None
    quiet: Flag = False

    def again(self, command: str, config: Path) -> str:
        """Returns the line for the shell that resumes a command."""
        return again(command, config, self.out, self.compilation_cache)

    def run(
        self,
        compute: Callable[[Console], Outcome],
        report: Callable[[Outcome], None],
        parts: str,
        resume: str,
    ) -> int:
        """Runs a job, says how it ended, and returns the exit code.

        Args:
            compute: runs the job, whose progress is printed to the console that it is given.
            report: writes what is to be written after it.
            parts: what the job's items are called, such as "trainings".
            resume: the command that goes on with it.
        """
        console = Console(stderr=True)
        with programs_kept(self.compilation_cache):
            outcome = compute(Console(stderr=True, quiet=self.quiet))
        say_failures(console, outcome)
        report(outcome)
        if outcome.ended_early:
            done = f"{outcome.finished} of {outcome.planned} {parts} are done"
            say_why_ended(console, outcome, done, resume)
        return outcome.exit_code


Running = Annotated[RunOptions, tyro.conf.arg(name="")]
"""The type of a command's parameter that has these options."""
