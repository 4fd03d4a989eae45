"""The options of `jaxsens measure` that hold for every model: how it is measured, and where the result goes."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsens.cli.shared import (
    File,
    Flag,
    Names,
    Number,
    check_output,
    command_line,
    default,
    flag,
    one_of,
    write_output,
)
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import METHODS, check_ending
from jaxsens.core.base.registry import of_words
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.sweeps.placement_table import PlacementTable

if TYPE_CHECKING:
    from jaxsens.core.results.result import FlipSensitivity


MEASURED_BY = {
    **{key: flag(key) for key in ("flips", "measure", "engine", "placement")},
    **dict.fromkeys(("remaining", "joined"), "--save"),
    **{key: ("--placement", key) for key in ("batch_size", "memory_budget")},
}
"""The arguments of `flip_sensitivity`, and the fields, whose errors name the option instead."""

_WRITTEN_BY = {method: flag(method.removeprefix("to_")) for method in METHODS.values()}
"""The option for each method of a result that writes a file."""


# No command line holds a function.
_MEASURES = [name for name, kind in Measure.kinds.items() if kind.portable]


_FIELDS = " [FIELD=VALUE ...]"
_FLIPS = "the model's symbols; neighbours with --pretrained"


@dataclass(frozen=True)
class MeasuringOptions:
    """What is flipped, what is measured, and how. Each option takes a kind and its fields: --flips neighbours k=8
    sample=1000, --measure decision threshold=0.5. Lists are joined by commas: positions=0,5.

    Attributes:
        seed: The seed for the weights and the random inputs; also for samples and estimates whose own is not given.
        flips: What is flipped, and by what. A number or ids stand for substitute.
        measure: What is measured of the change in the output.
        engine: The engine to measure with; auto chooses an exact one, and first-order estimates.
        placement: In which batches and within which memory: batch_size and memory_budget, in bytes.
    """

    seed: Number = 0
    flips: Annotated[Names, default(_FLIPS, one_of(Flips.kinds, _FIELDS))] = None
    measure: Annotated[Names, default("l2", one_of(_MEASURES, _FIELDS))] = None
    engine: Annotated[Names, default("auto", one_of(AskedEngine.kinds, _FIELDS))] = None
    placement: Annotated[
        Names, default("the model and 2 GiB on CPUs, 8 GiB on GPUs, 12 GiB on TPUs", "FIELD=VALUE ...")
    ] = None

    def objects(self, problems: Problems) -> dict[str, Any]:
        """Returns the objects that the options describe, by argument; those that are given. Adds the errors."""
        objects: dict[str, Any] = {}
        for base in (Flips, Measure, AskedEngine):
            values = getattr(self, base.argument)
            if values is not None:
                one = of_words(base, values, problems, flag(base.argument))
                if one is not None and self.seed > 0 and not any(word.startswith("seed=") for word in values):
                    one = one.seeded(self.seed)
                objects[base.argument] = one
        if self.placement is not None:
            objects["placement"] = of_words(PlacementTable, self.placement, problems, "--placement")
        return objects

    def arguments(self, quiet: bool) -> dict[str, Any]:
        """Returns the arguments of `flip_sensitivity` that these options give."""
        with collecting("measure") as problems:
            objects = self.objects(problems)
        if "placement" in objects:
            objects["placement"] = objects["placement"].placement()
        return {**objects, "progress": False if quiet else None}


@dataclass(frozen=True)
class OutputOptions:
    """What is printed and written.

    Attributes:
        top: The number of largest flips to print.
        json_output: Print JSON instead of a table.
        save: Write every flip to this file, NAME.parquet; read it with `jaxsens.load_result`. A command that is
            stopped writes the flips measured so far, and the same command goes on from them; remove the file to
            begin anew.
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

    @property
    def files(self) -> dict[str, Path]:
        """The files to write, by the method of a result that writes them."""
        paths = {method: getattr(self, method.removeprefix("to_")) for method in _WRITTEN_BY}
        return {method: path for method, path in paths.items() if path is not None}

    def check(self, problems: Problems) -> None:
        """Adds the errors in files that do not depend on the model."""
        for method, path in self.files.items():
            check_ending(method, path, problems, _WRITTEN_BY[method], _WRITTEN_BY)
            check_output(_WRITTEN_BY[method], path, problems)
        if self.quiet and not self.files:
            problems.add("--quiet", True, "give --save or --html too; otherwise the result is lost")

    def partial(self) -> FlipSensitivity | None:
        """Returns the flips that this command measured before it was stopped, which --save has; None without any."""
        from jaxsens.core.results.result import load_result

        if self.save is not None and self.save.is_file():
            with suppress(InputError):  # What else is there is replaced, as the user asks.
                result = load_result(self.save)
                return None if result.complete else result
        return None

    def keep(self, partial: FlipSensitivity) -> None:
        """Writes the flips of a measurement that was stopped, and prints how to go on from them."""
        path, why = self.save, "--save FILE keeps them" if len(partial) else "run the same command again"
        told = f"; nothing was written: {why}"
        if path is not None and len(partial):
            if write_output("--save", path, lambda: partial.save(path)):
                return
            told = f", and are kept in {path}. To go on: {command_line()}"
        message = f"jaxsens: stopped; {len(partial)} of {partial.requested} flips were measured{told}"
        print(message, file=sys.stderr, flush=True)

    def write(self, result: FlipSensitivity, title: str) -> int:
        """Writes the files asked for. Returns the exit code."""
        code = 0
        for method, path in self.files.items():
            named = {} if method == "save" else {"title": title}
            write = partial(getattr(result, method), path, **named)
            code = write_output(_WRITTEN_BY[method], path, write) or code
        return code
