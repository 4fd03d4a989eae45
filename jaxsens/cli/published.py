"""`jaxsens measure --pretrained`: a published model on a text."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from jaxsens.asked.measures import KL, Decision, LogProbability
from jaxsens.base.errors import InputError, Problems, collecting
from jaxsens.base.files import read_within, rest_within
from jaxsens.cli.measuring import MEASURED_BY, MeasuringOptions, OutputOptions
from jaxsens.cli.shared import File, Text, check_there, default, flags_named, one_of
from jaxsens.pretrained.folder import existing_folder

if TYPE_CHECKING:
    from jaxsens.experiments.single.published import TextMeasurement

_MOST_BYTES = 2**24
"""The bytes of the longest text that is read; models read some thousand symbols."""


@dataclass(frozen=True)
class PublishedOptions:
    """A published model on a text: --pretrained, and --text or --text-file. Of the options above, only --dtype goes
    with it.

    Attributes:
        pretrained: The folder of a published model: config.json, *.safetensors, tokenizer.json.
        text: The text itself.
        text_file: A file that holds the text, UTF-8; - for standard input. A line break at its end is left out.
        readout: Where the output is read: cls (the first position), last, mean, or a 0-based position.
        output: What is read there: the hidden row, or the logits of the language-model head.
    """

    pretrained: Annotated[File, default("", "DIR")] = None
    text: Annotated[Text, default("", "TEXT")] = None
    text_file: Annotated[File, default("", "FILE|-")] = None
    readout: Annotated[Text, default("cls for encoders, last for decoders", "cls|last|mean|N")] = None
    output: Annotated[
        str | None, one_of("hidden", "logits"), default("hidden; logits with --measure log-probability")
    ] = None

    def given(self) -> dict[str, Any]:
        """Returns the options given, by name."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


def check_absent(options: PublishedOptions, problems: Problems) -> None:
    """Collects an error for each of these options that is given without --pretrained."""
    for key, value in options.given().items():
        shown = str(value) if isinstance(value, Path) else value
        problems.add(f"--{key.replace('_', '-')}", shown, "only with --pretrained; leave it out")


def check_published(
    options: PublishedOptions, measuring: MeasuringOptions, others: dict[str, Any], problems: Problems
) -> None:
    """Collects the errors that can be found without loading the model.

    Args:
        options: with --pretrained.
        measuring: how flips are measured.
        others: the options given for other models.
        problems: collects the errors.
    """
    from jaxsens.base.strict import messages

    for option, value in others.items():
        problems.add(option, value, "leave it out; with --pretrained the folder and the text say it")
    try:
        existing_folder(options.pretrained)
    except InputError as error:
        problems.messages += [message.replace("folder", "--pretrained", 1) for message in messages(error)]
    if options.text is not None and options.text_file is not None:
        problems.add("--text-file", str(options.text_file), "give it or --text, not both")
    elif options.text_file is None and not options.text:
        problems.add("--text", options.text, "give the text, or --text-file, a file that holds it")
    elif str(options.text_file) != "-":
        check_there("--text-file", options.text_file, problems)
    _check_readout(options.readout, problems)
    measure = measuring.asked(Problems("measure")).get("measure")
    if isinstance(measure, LogProbability) and options.output == "hidden":
        problems.add("--output", "hidden", "leave it out; a log-probability is that of the logits")
    elif isinstance(measure, KL | Decision) and options.output != "logits":
        problems.add("--measure", measure.kind, "give --output logits: a hidden row is no distribution")


def _check_readout(value: str | None, problems: Problems) -> None:
    if value is None or value in ("cls", "last", "mean"):
        return
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        problems.add("--readout", value, "cls, last, mean, or a 0-based position")


def read_text(path: Path) -> str:
    """Returns the text of a file, or of standard input for "-", without a line break at its end.

    Raises:
        InputError: if it is not UTF-8, empty, or too long to be a text for a model.
    """
    with collecting("measure") as problems:
        text = ""
        try:
            stdin, most = str(path) == "-", _MOST_BYTES
            raw = rest_within(sys.stdin.buffer, most) if stdin else read_within(path, most)
            text = raw.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            problems.add(
                "--text-file", str(path), f"UTF-8, which it is not ({error.reason} at byte {error.start})"
            )
        except ValueError as error:
            problems.add("--text-file", str(path), f"a shorter text; {error}")
        if not text and not problems:
            problems.add("--text-file", str(path), "a text; it is empty")
    return text


def measure_published(
    options: PublishedOptions, dtype: str, measuring: MeasuringOptions, output: OutputOptions
) -> int:
    """Measures a published model on a text, and prints and writes the result. Returns the exit code."""
    from jaxsens.experiments.single.published import measure_text

    if options.pretrained is None:
        raise RuntimeError("measure_published needs --pretrained")
    given = "--text" if options.text_file is None else "--text-file"
    with flags_named({"folder": "--pretrained", "text": given, "readout": "--readout", **MEASURED_BY}):
        measured = measure_text(
            options.pretrained,
            options.text or "" if options.text_file is None else read_text(options.text_file),
            output=options.output,
            dtype=dtype,
            readout=options.readout,
            arguments=measuring.arguments(output.quiet),
        )
    # Save first: printing fails if the reader has closed the pipe.
    code = output.write(measured.result, measured.title)
    if output.json_output and not output.quiet:
        print(json.dumps(measured.summary(output.top), indent=1), flush=True)
    elif not output.quiet:
        _print(measured, output.top)
    return code


def _print(measured: TextMeasurement, top: int) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text as Plain

    console = Console()
    facts = Table.grid(padding=(0, 2))
    for name, value in measured.facts().items():
        facts.add_row(name, value)
    console.print(facts, highlight=False, markup=False)
    rows = measured.top(top)
    if not rows:
        return
    estimated = measured.result.estimated is not None
    # Light enough for a token's context to fit a terminal of 80 columns.
    table = Table(title="Largest flips", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("in the text")
    table.add_column("before it" if measured.result.asked.flips.copies else "replaced by")
    table.add_column(
        "change" if measured.signed else measured.result.measure.kind, justify="right", no_wrap=True
    )
    for row in rows:
        value = f"{row['value']:+.4g}" if measured.signed else f"{row['value']:.4g}"
        value = f"at most {row['at_most']:.4g}" if "at_most" in row else value
        about = "~" if estimated and not row["exact"] else ""
        marked = Plain.assemble(row["before"], (f"«{row['token']}»", "bold"), row["after"])
        where = (
            " ".join(map(str, row["position"])) if isinstance(row["position"], list) else str(row["position"])
        )
        table.add_row(where, marked, Plain(row["replacement"]), about + value)
    console.print(table)
    if any(estimated and not row["exact"] for row in rows):
        console.print("~ estimated to first order, not measured", highlight=False)
