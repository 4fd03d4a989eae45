"""The options of `jaxsens measure` that hold for every model: how it is measured, and where the result goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsens.cli.flipped import flipped_by
from jaxsens.cli.shared import Count, File, Flag, Names, Number, check_output, default, one_of, write_output
from jaxsens.errors import Problems

if TYPE_CHECKING:
    from jaxsens.sensitivity.result import FlipSensitivity


MEASURED_BY = ("engine", "candidates", "groups", "sketch", "verify", "batch_size", "memory_budget")
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
            **flipped_by(self.candidates, self.groups),
            **{key: value for key, value in estimation.items() if value is not None},
        }


@dataclass(frozen=True)
class OutputOptions:
    """What is printed and written.

    Attributes:
        top: The number of largest flips to print.
        json_output: Print JSON instead of a table.
        save: Write every flip to this file, NAME.parquet; read it with `jaxsens.load_result`.
        html: Write a page with the input, its symbols coloured by sensitivity.
        quiet: Print only errors and warnings; requires --save or --html.
    """

    top: Number = 5
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False
    save: Annotated[File, default("not written")] = None
    html: Annotated[File, default("not written")] = None
    quiet: Flag = False

    def write(self, result: FlipSensitivity, title: str) -> int:
        """Writes the files asked for. Returns the exit code."""
        code = 0 if self.save is None else write_output("--save", self.save, _saving(result, self.save))
        if self.html is not None:
            path = self.html
            page = write_output("--html", path, lambda: result.to_html(path, title=title))
            code = code or page
        return code


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
    save = output.save
    if save is not None and save.suffix != ".parquet":
        problems.add("--save", str(save), "a file name that ends in .parquet")
    check_output("--save", save, problems)
    check_output("--html", output.html, problems)
    if output.quiet and save is None and output.html is None:
        problems.add("--quiet", True, "give --save or --html too; otherwise the result is lost")
