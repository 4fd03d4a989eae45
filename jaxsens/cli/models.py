"""The options of `jaxsens measure` that say the model and its input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from jaxsens.cli.measuring import MeasuringOptions
from jaxsens.cli.shared import (
    CacheFolder,
    Count,
    File,
    Names,
    Number,
    OptionGroup,
    Text,
    check_there,
    default,
    one_of,
)
from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import read_within
from jaxsens.core.base.registry import fields_of
from jaxsens.core.measures import Measure
from jaxsens.pretrained.folder import existing_folder

_OUTPUTS = ("hidden", "logits", "labels")
DTYPES = ("float32", "float64", "bfloat16")

_MOST_BYTES = 2**24
"""The bytes of the longest text that is read; models read some thousand symbols."""


@dataclass(frozen=True)
class InputOptions(OptionGroup):
    """The model and its input, and where programs are kept.

    Attributes:
        checkpoint: The directory of a trained model: the --out of `jaxsens train`.
        model: Keys of the model, as in the [model] table of a config: alphabet_size=2 layers=3 weighting=leftmost-hard,
            construction=parity condition=unbounded, or formula="odd(#L[Q_1])" alphabet=01. They override --config.
            `jaxsens schema` lists them.
        tokens: The input word: single characters ("0110"), or symbols separated by spaces. Give this or --n.
        n: The length of a random input, including the end-of-sequence symbol.
        inputs: The number of random inputs.
        config: A TOML file with a [model] table, such as a sweep config.
        variant: A variant of the model: a built-in one, such as leftmost-hard, or one from the config.
    """

    checkpoint: tyro.conf.Positional[Annotated[File, default("", "[CHECKPOINT]")]] = None
    model: Annotated[Names, default("as in --config", "KEY=VALUE ...")] = None
    tokens: Annotated[Text, default("a random word of --n symbols", "WORD")] = None
    n: Annotated[Count, default("that of --tokens")] = None
    inputs: Number = 1
    config: Annotated[File, default("")] = None
    variant: Annotated[Text, default("")] = None
    compilation_cache: CacheFolder = None

    def table(self, problems: Problems) -> dict[str, Any] | None:
        """Returns what the options say as a `[model]` table, or None after adding errors."""
        table = fields_of(self.model or (), problems, "--model", ("alphabet",))
        if table is not None and self.checkpoint is not None:
            table["checkpoint"] = str(self.checkpoint)
        return table

    def check(self, problems: Problems) -> None:
        """Adds the errors that do not depend on the model."""
        if (self.tokens is None) == (self.n is None):
            advice = "give either --tokens (a word) or --n (the length of a random input)"
            problems.add("--tokens", self.tokens, advice)
        if self.n is not None and self.n < 2:
            problems.add("--n", self.n, "at least 2: the readout position is not flipped")
        if self.inputs < 1:
            problems.add("--inputs", self.inputs, "at least 1")
        if self.tokens is not None and self.inputs != 1:
            problems.add("--inputs", self.inputs, "1 with --tokens, which gives one input")
        check_there("CHECKPOINT", self.checkpoint, problems)
        check_there("--config", self.config, problems)


@dataclass(frozen=True)
class PublishedOptions(OptionGroup):
    """A published model, what is read of it, and what it is computed in.

    Attributes:
        pretrained: The folder of a published model: config.json, *.safetensors, tokenizer.json.
        readout: Where the output is read: cls (the first position), last, mean, or a 0-based position.
        output: What is read there: the hidden row, the logits of the language-model head, or the scores of a
            classifier's labels.
        dtype: What a published model is computed in.
    """

    pretrained: Annotated[File, default("", "DIR")] = None
    readout: Annotated[Text, default("that of the folder", "cls|last|mean|N")] = None
    output: Annotated[Text, default("hidden; logits with --measure log-probability", one_of(_OUTPUTS))] = None
    dtype: Annotated[Text, default("float32", one_of(DTYPES))] = None

    def check_model(self, measuring: MeasuringOptions, problems: Problems) -> None:
        """Adds the errors that can be found without loading the model."""
        for option, value, names in (("--output", self.output, _OUTPUTS), ("--dtype", self.dtype, DTYPES)):
            if value is not None:
                inputs.choice(option, value, names, problems)
        try:
            existing_folder(self.pretrained)
        except InputError as error:
            problems.include(one.renamed({"folder": "--pretrained"}) for one in error.problems)
        place = self.readout
        number = place is not None and place.isascii() and place.isdigit() and len(place) < 10
        if not number and place not in (None, "cls", "last", "mean"):
            problems.add("--readout", place, "cls, last, mean, or a 0-based position")
        measure = measuring.objects(Problems("measure")).get("measure")
        if measure is not None and measure.of_scores and self.output_read(measure) == "hidden":
            problems.add(
                "--measure", measure.kind, "give --output logits or labels: a hidden row is no distribution"
            )

    def output_read(self, measure: Measure | None) -> Any:
        """Returns what is read of the model: --output, or what the measure is of by default."""
        return self.output or (measure or Measure).published_output

    def place(self) -> dict[str, int | str]:
        """Returns the readout that is asked for, as an argument of `flip_sensitivity`; nothing for the model's own."""
        value = self.readout
        if value is None:
            return {}
        return {"readout": 0 if value == "cls" else value if value in ("last", "mean") else int(value)}


@dataclass(frozen=True)
class TextOptions(PublishedOptions):
    """A published model on a text: --pretrained, and --text or --text-file.

    Attributes:
        text: The text itself.
        text_file: A file that holds the text, UTF-8; - for standard input. A line break at its end is left out.
    """

    text: Annotated[Text, default("", "TEXT")] = None
    text_file: Annotated[File, default("", "FILE|-")] = None

    def check(self, measuring: MeasuringOptions, others: dict[str, Any], problems: Problems) -> None:
        """Adds the errors, with --pretrained, that can be found without loading the model.

        Args:
            measuring: how flips are measured.
            others: the options given for other models.
            problems: collects the errors.
        """
        for option, value in others.items():
            problems.add(option, value, "leave it out; with --pretrained the folder and the text say it")
        self.check_model(measuring, problems)
        if self.text is not None and self.text_file is not None:
            problems.add("--text-file", str(self.text_file), "give it or --text, not both")
        elif self.text_file is None and not self.text:
            problems.add("--text", self.text, "give the text, or --text-file, a file that holds it")
        elif str(self.text_file) != "-":
            check_there("--text-file", self.text_file, problems)

    def read(self) -> str:
        """Returns the text: that of --text-file without a line break at its end.

        Raises:
            InputError: if the file is not UTF-8, empty, or too long to be a text for a model.
        """
        if self.text_file is None:
            return self.text or ""
        path = self.text_file
        with collecting("measure") as problems:
            text = ""
            try:
                stdin, most = str(path) == "-", _MOST_BYTES
                raw = read_within(sys.stdin.buffer if stdin else path, most)
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
