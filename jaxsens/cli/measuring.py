"""The options of `jaxsens measure` that hold for every model: how it is measured, and where the result goes."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsens.cli.flipped import flipped_by
from jaxsens.cli.shared import (
    Count,
    File,
    Flag,
    Names,
    Number,
    check_output,
    command_line,
    default,
    flags_named,
    one_of,
    write_output,
)
from jaxsens.errors import InputError, Problems
from jaxsens.files import METHODS, check_ending

if TYPE_CHECKING:
    from jaxsens.sensitivity.result import FlipSensitivity


MEASURED_BY = ("engine", "candidates", "groups", "sketch", "verify", "batch_size", "memory_budget", "resume")
"""The arguments of `flip_sensitivity` whose errors name the option instead."""


@dataclass(frozen=True)
class MeasuringOptions:
    """What is flipped, and how flips are measured.

    Attributes:
        seed: The seed for the weights, the random inputs and samples.
        engine: The engine to measure with; auto chooses an exact one, and first-order estimates.
        sketch: With first-order, estimate this many random combinations of the outputs instead of all.
        verify: With first-order, measure this many flips exactly, half of them the largest estimates.
        norm: What is measured of the change in the output: a norm, the cosine distance, the divergence KL of softmax
            in nats, or whether the largest output changes.
        candidates: What is done at each position: insert its K nearest symbols instead (8 if K is left out); the mask
            symbol; the symbols given; all of them; delete it; insert a symbol before it; or repeat it.
        groups: Positions to flip together, joined by commas, with blanks between groups: 3,4,5 9.
        sample: Measure this many flips, drawn at random.
        batch_size: The number of flips per batch.
        memory_budget: Bytes of temporary memory to use if --batch-size is not given.
        resume: Go on from this file, the --save of a command that was stopped, with the same other options. It may be
            the --save of this command, which may then be missing.
    """

    seed: Number = 0
    engine: Annotated[str, one_of("auto", "vmap", "incremental", "difference", "first-order")] = "auto"
    sketch: Annotated[Count, default("all outputs")] = None
    verify: Annotated[Count, default("64 with --engine first-order")] = None
    norm: Annotated[str, one_of("l2", "l1", "linf", "cosine", "kl", "decision")] = "l2"
    candidates: Annotated[
        Names,
        default(
            "all; neighbours 8 with --pretrained",
            "neighbours [K] | mask [ID] | delete | insert [ID ...] | repeat [TIMES] | symbols ID [ID ...] | all",
        ),
    ] = None
    groups: Annotated[Names, default("each position alone", "I,J,... [I,J,... ...]")] = None
    sample: Annotated[Count, default("all flips")] = None
    batch_size: Annotated[Count, default("as many as --memory-budget allows")] = None
    memory_budget: Annotated[Count, default("2 GiB on CPUs, 8 GiB on accelerators")] = None
    resume: Annotated[File, default("begin anew")] = None

    def arguments(self, quiet: bool) -> dict[str, Any]:
        """Returns the arguments of `flip_sensitivity` that these options give."""
        from jaxsens.sensitivity.flips import sample as draw

        estimation = {
            "sketch": self.sketch,
            "verify": self.verify,
            "seed": self.seed if self.engine == "first-order" else None,
        }
        return {
            "engine": self.engine,
            "norm": self.norm,
            "positions": None if self.sample is None else draw(self.sample, self.seed),
            "batch_size": self.batch_size,
            "memory_budget": self.memory_budget,
            "progress": False if quiet else None,
            "resume": self._partial(),
            **flipped_by(self.candidates, self.groups),
            **{key: value for key, value in estimation.items() if value is not None},
        }

    def _partial(self) -> FlipSensitivity | None:
        from jaxsens.sensitivity.result import load_result

        # One that is missing is the --save of this command (`check_options`), which was not stopped before.
        if self.resume is None or not os.path.lexists(self.resume):
            return None
        with flags_named({"path": "--resume"}):
            return load_result(self.resume)


@dataclass(frozen=True)
class OutputOptions:
    """What is printed and written.

    Attributes:
        top: The number of largest flips to print.
        json_output: Print JSON instead of a table.
        save: Write every flip to this file, NAME.parquet; read it with `jaxsens.load_result`. A command that is
            stopped writes the flips measured so far, from which --resume goes on.
        html: Write a page with the input, its symbols coloured by sensitivity.
        png: Write the coloured input as a picture.
        svg: Write the same as SVG.
        quiet: Print only errors and warnings; requires a file to write.
    """

    top: Number = 5
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False
    save: Annotated[File, default("not written")] = None
    html: Annotated[File, default("not written")] = None
    png: Annotated[File, default("not written")] = None
    svg: Annotated[File, default("not written")] = None
    quiet: Flag = False

    def keep(self, partial: FlipSensitivity) -> None:
        """Writes the flips of a measurement that was stopped, and prints how to go on from them."""
        told = f"jaxsens: stopped; {len(partial)} of {partial.requested} flips were measured"
        if self.save is None or not len(partial):
            why = "--save FILE keeps them" if len(partial) else "run the same command again"
            print(f"{told}; nothing was written: {why}", file=sys.stderr, flush=True)
        elif write_output("--save", self.save, _saving(partial, self.save)) == 0:
            again = command_line("--resume", str(self.save))
            print(f"{told}, and are kept in {self.save}. To go on: {again}", file=sys.stderr, flush=True)

    def write(self, result: FlipSensitivity, title: str) -> int:
        """Writes the files asked for. Returns the exit code."""
        code = 0 if self.save is None else write_output("--save", self.save, _saving(result, self.save))
        for option, path, write in (
            ("--html", self.html, result.to_html),
            ("--png", self.png, result.to_png),
            ("--svg", self.svg, result.to_svg),
        ):
            if path is not None:
                code = write_output(option, path, partial(write, path, title=title)) or code
        return code

    @property
    def files(self) -> dict[str, Path]:
        """The files to write, by the method that writes them."""
        given = {"save": self.save, "to_html": self.html, "to_png": self.png, "to_svg": self.svg}
        return {method: path for method, path in given.items() if path is not None}


def _saving(result: FlipSensitivity, path: Path) -> Any:
    return lambda: result.save(path)


def check_options(measuring: MeasuringOptions, output: OutputOptions, problems: Problems) -> None:
    """Collects the errors in these options that do not depend on the model."""
    counts = {
        "--seed": measuring.seed,
        "--sample": measuring.sample,
        "--sketch": measuring.sketch,
        "--verify": measuring.verify,
        "--batch-size": measuring.batch_size,
        "--memory-budget": measuring.memory_budget,
        "--top": output.top,
    }
    for option, value in counts.items():
        least = 0 if option in ("--seed", "--top") else 1
        if value is not None and value < least:
            problems.add(option, value, f"at least {least}")
    for option in ("--sketch", "--verify"):
        if counts[option] is not None and measuring.engine != "first-order":
            problems.add(option, counts[option], "only with --engine first-order; leave it out")
    options = {method: f"--{method.removeprefix('to_')}" for method in METHODS.values()}
    for method, path in output.files.items():
        check_ending(method, path, problems, options[method], options)
        check_output(options[method], path, problems)
    _check_resumed(measuring, output.save, problems)
    if output.quiet and not output.files:
        problems.add("--quiet", True, "give --save or --html too; otherwise the result is lost")


def check_nothing_is_lost(measuring: MeasuringOptions, output: OutputOptions) -> None:
    """Raises InputError if --save has flips of a command that was stopped, and this one does not go on from them."""
    from jaxsens.sensitivity.result import load_result

    path = output.save
    if path is None or measuring.resume is not None or not path.is_file():
        return
    found = None
    with suppress(InputError):  # What else is there is replaced, as the user asks.
        found = load_result(path)
    if found is not None and not found.complete:
        held = f"{len(found)} of {found.requested} flips of a measurement that was stopped"
        remedy = f"it holds {held}: add --resume {shlex.quote(str(path))} to go on, or remove it"
        raise InputError(f"measure: --save = {str(path)!r}: {remedy}")


def _check_resumed(measuring: MeasuringOptions, save: Path | None, problems: Problems) -> None:
    path = measuring.resume
    if path is None or path == save:
        return
    if not path.is_file():
        problems.add("--resume", str(path), "no such file; give the --save of the command that was stopped")
