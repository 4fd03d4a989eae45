"""`jaxsens measure`: one model on one input. The options that say the model and its input, and those that hold for
every model: how it is measured, and where the result goes.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsens.cli import shared
from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import METHODS, check_ending, read_text_within
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.sweeps.inputs import PlacementTable
from jaxsens.pretrained.folder import existing_folder

if TYPE_CHECKING:
    from jaxsens.core.results.result import FlipSensitivity
    from jaxsens.core.sweeps.sources import ModelSource


_OUTPUTS = ("hidden", "logits", "labels")
DTYPES = ("float32", "float64", "bfloat16")

_MOST_BYTES = 2**24
"""The bytes of the longest text that is read; models read some thousand symbols."""


@dataclass(frozen=True)
class InputOptions(shared.OptionGroup):
    """The model and its input.

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

    checkpoint: tyro.conf.Positional[Annotated[shared.File, shared.default("", "[CHECKPOINT]")]] = None
    model: Annotated[shared.Names, shared.default("as in --config", "KEY=VALUE ...")] = None
    tokens: Annotated[shared.Text, shared.default("a random word of --n symbols", "WORD")] = None
    n: Annotated[shared.Count, shared.default("that of --tokens")] = None
    inputs: shared.Number = 1
    config: Annotated[shared.File, shared.default("")] = None
    variant: Annotated[shared.Text, shared.default("")] = None

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
        shared.check_there("CHECKPOINT", self.checkpoint, problems)
        shared.check_there("--config", self.config, problems)


@dataclass(frozen=True)
class PublishedOptions(shared.OptionGroup):
    """A published model, what is read of it, and what it is computed in.

    Attributes:
        pretrained: The folder of a published model: config.json, *.safetensors, tokenizer.json.
        readout: Where the output is read: cls (the first position), last, mean, or a 0-based position.
        output: What is read there: the hidden row, the logits of the language-model head, or the scores of a
            classifier's labels.
        dtype: What a published model is computed in.
    """

    pretrained: Annotated[shared.File, shared.default("", "DIR")] = None
    readout: Annotated[shared.Text, shared.default("that of the folder", "cls|last|mean|N")] = None
    output: Annotated[
        shared.Text, shared.default("hidden; logits with --measure log-probability", shared.one_of(_OUTPUTS))
    ] = None
    dtype: Annotated[shared.Text, shared.default("float32", shared.one_of(DTYPES))] = None

    def check_model(self, measure: Measure | None, problems: Problems) -> None:
        """Adds the errors that can be found without loading the model, of which `measure` is measured."""
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
        if measure is not None and measure.of_scores and self.output_read(measure) == "hidden":
            remedy = "give --output logits or labels: a hidden row is no distribution"
            problems.add("--measure", measure.kind, remedy)

    def output_read(self, measure: Measure | None) -> Any:
        """Returns what is read of the model: --output, or what the measure is of by default."""
        return self.output or (measure or Measure).published_output

    def load(self, measure: Measure | None) -> tuple[Any, dict[str, Any]]:
        """Returns the model, and where it is read, as an argument of `flip_sensitivity`; nothing for its own place."""
        from jaxsens.pretrained.load import load_pretrained

        output, dtype = self.output_read(measure), self.dtype or "float32"
        model = load_pretrained(self.pretrained or "", output=output, dtype=dtype)
        if (place := self.readout) is None:
            return model, {}
        return model, {"readout": 0 if place == "cls" else place if place in ("last", "mean") else int(place)}


@dataclass(frozen=True)
class TextOptions(PublishedOptions):
    """A published model on a text: --pretrained, and --text or --text-file.

    Attributes:
        text: The text itself.
        text_file: A file that holds the text, UTF-8; - for standard input. A line break at its end is left out.
    """

    text: Annotated[shared.Text, shared.default("", "TEXT")] = None
    text_file: Annotated[shared.File, shared.default("", "FILE|-")] = None

    def check(self, measure: Measure | None, problems: Problems) -> None:
        """Adds the errors, with --pretrained, that can be found without loading the model."""
        self.check_model(measure, problems)
        if self.text is not None and self.text_file is not None:
            problems.add("--text-file", str(self.text_file), "give it or --text, not both")
        elif self.text_file is None and not self.text:
            problems.add("--text", self.text, "give the text, or --text-file, a file that holds it")
        elif str(self.text_file) != "-":
            shared.check_there("--text-file", self.text_file, problems)

    def read(self) -> str:
        """Returns the text: that of --text-file without a line break at its end. Raises InputError for a file that is
        not UTF-8, empty, or too long to be a text for a model."""
        if self.text_file is None:
            return self.text or ""
        path = str(self.text_file)
        try:
            text = read_text_within(sys.stdin.buffer if path == "-" else path, _MOST_BYTES)
            if text := text.removesuffix("\n").removesuffix("\r"):
                return text
            raise ValueError("it is empty")
        except ValueError as error:
            raise InputError.of("--text-file", path, f"a text; {error}", subject="measure") from None


MEASURED_BY = {
    **{key: shared.flag(key) for key in ("flips", "measure", "engine", "placement")},
    **dict.fromkeys(("remaining", "joined"), "--save"),
    **{key: ("--placement", key) for key in ("batch_size", "memory_budget")},
}
"""The arguments of `flip_sensitivity`, and the fields, whose errors name the option instead."""

_WRITTEN_BY = {method: shared.flag(method.removeprefix("to_")) for method in METHODS.values()}
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
        measure: What is measured of the change in the output. A token is an id (token=7) or a text (token=cat); quotes
            make digits a text: token='"1984"'.
        engine: The engine to measure with; auto chooses an exact one, and first-order estimates.
        placement: In which batches and within which memory: batch_size and memory_budget, in bytes.
    """

    seed: shared.Number = 0
    flips: Annotated[shared.Names, shared.default(_FLIPS, shared.one_of(Flips.kinds, _FIELDS))] = None
    measure: Annotated[shared.Names, shared.default("l2", shared.one_of(_MEASURES, _FIELDS))] = None
    engine: Annotated[shared.Names, shared.default("auto", shared.one_of(AskedEngine.kinds, _FIELDS))] = None
    placement: Annotated[
        shared.Names,
        shared.default("the model and 2 GiB on CPUs, 8 GiB on GPUs, 12 GiB on TPUs", "FIELD=VALUE ..."),
    ] = None

    def objects(self, problems: Problems) -> dict[str, Any]:
        """Returns the arguments of `flip_sensitivity` that are given; those with errors are None. Adds the errors."""
        objects: dict[str, Any] = {}
        if self.seed < 0:
            problems.add("--seed", self.seed, "at least 0")
        for base in (Flips, Measure, AskedEngine):
            values = getattr(self, base.argument)
            if values is not None:
                one = shared.of_words(base, values, problems, shared.flag(base.argument))
                if one is not None and self.seed > 0 and not any(word.startswith("seed=") for word in values):
                    one = one.seeded(self.seed)
                objects[base.argument] = one
        if self.placement is not None:
            table = shared.of_words(PlacementTable, self.placement, problems, "--placement")
            objects["placement"] = None if table is None else table.placement()
        return objects


@dataclass(frozen=True)
class OutputOptions:
    """What is printed and written, and where programs are kept.

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

    top: shared.Number = 5
    json_output: shared.Json = False
    save: shared.NewFile = None
    html: shared.NewFile = None
    png: shared.NewFile = None
    svg: shared.NewFile = None
    quiet: shared.Flag = False
    compilation_cache: shared.CacheFolder = None

    @property
    def files(self) -> dict[str, Path]:
        """The files to write, by the method of a result that writes them."""
        paths = {method: getattr(self, method.removeprefix("to_")) for method in _WRITTEN_BY}
        return {method: path for method, path in paths.items() if path is not None}

    def check(self, problems: Problems) -> None:
        """Adds the errors that do not depend on the model."""
        inputs.count("--top", self.top, problems)
        for method, path in self.files.items():
            check_ending(method, path, problems, _WRITTEN_BY[method], _WRITTEN_BY)
            shared.check_output(_WRITTEN_BY[method], path, problems)
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
            if shared.write_output("--save", path, lambda: partial.save(path)):
                return
            told = f", and are kept in {path}. To go on: {shared.command_line()}"
        message = f"jaxsens: stopped; {len(partial)} of {partial.requested} flips were measured{told}"
        print(message, file=sys.stderr, flush=True)

    def write(self, result: FlipSensitivity, title: str) -> int:
        """Writes the files asked for. Returns the exit code."""
        code = 0
        for method, path in self.files.items():
            named = {} if method == "save" else {"title": title}
            write = partial(getattr(result, method), path, **named)
            code = shared.write_output(_WRITTEN_BY[method], path, write) or code
        return code


def measure(
    request: Annotated[InputOptions, tyro.conf.arg(name="")] = InputOptions(),  # noqa: B008, RUF100 - frozen
    published: tyro.conf.OmitArgPrefixes[TextOptions] = TextOptions(),  # noqa: B008, RUF100 - frozen
    measuring: tyro.conf.OmitArgPrefixes[MeasuringOptions] = MeasuringOptions(),  # noqa: B008, RUF100 - frozen
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = OutputOptions(),  # noqa: B008, RUF100 - frozen
) -> int:
    """Measure one model on one input, and print the largest flips.

    For example: jaxsens measure --model alphabet_size=2 --n 64
    """
    source, own = None, Problems()
    arguments = measuring.objects(own)
    with collecting("measure") as problems:
        if published.pretrained is None:
            request.check(problems)
            for option, value in published.flags().items():
                problems.add(option, value, "only with --pretrained; leave it out")
        else:
            for option, value in request.flags().items():
                problems.add(option, value, "leave it out; with --pretrained the folder and the text say it")
            published.check(arguments.get("measure"), problems)
        problems.include(own)
        output.check(problems)
        if published.pretrained is None:
            source = _source(request, problems)
    from jaxsens.cli import single
    from jaxsens.core.results.result import MeasurementInterrupted

    arguments["progress"] = False if output.quiet else None
    names = MEASURED_BY
    if source is None:
        text_option = "--text" if published.text_file is None else "--text-file"
        names = {"folder": "--pretrained", "text": text_option, "readout": "--readout", **MEASURED_BY}
    try:
        with shared.programs_kept(output.compilation_cache), shared.flags_named(names):
            if source is not None:
                asked = request.tokens, request.n, request.inputs
                tokens = single.input_tokens(source, *asked, measuring.seed)
                model = source.build(tokens.shape[1], measuring.seed)
                result = single.measured(model, tokens, arguments, output.partial())
                summary = single.summary_of_words(result, source, output.top)
            else:
                text = published.read()
                model, place = published.load(arguments.get("measure"))
                result = single.measured(model, text, place | arguments, output.partial())
                summary = single.summary_of_text(result, model, text, output.top)
    except MeasurementInterrupted as stop:
        output.keep(stop.partial)
        return 128 + stop.signal
    # Save first: printing fails if the reader has closed the pipe.
    code = output.write(summary.result, summary.title)
    if output.json_output and not output.quiet:
        print(json.dumps(summary.values, indent=1), flush=True)
    elif not output.quiet:
        summary.print()
    return code


def _source(request: InputOptions, problems: Problems) -> ModelSource | None:
    """The model with random, constructed or trained weights; None after adding the errors."""
    from jaxsens.cli.single import model_source

    table = shared.fields_of(request.model or (), problems, "--model")
    if table is None:
        return None
    if request.checkpoint is not None:
        table["checkpoint"] = str(request.checkpoint)
    # With a config, only what the options say is theirs.
    names = {f"model.{key}": ("--model", key) for key in table} if request.config else {"model": "--model"}
    try:
        with shared.flags_named({**names, "model.checkpoint": "CHECKPOINT"}):
            return model_source(request.config, request.variant, table)
    except InputError as error:
        paths = {one.path for one in problems}
        problems.include(one for one in error.problems if one.path not in paths)
        return None
