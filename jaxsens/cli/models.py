"""The options of `jaxsens measure` that say the model and its input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsens.cli.measuring import MeasuringOptions
from jaxsens.cli.shared import (
    CacheFolder,
    Count,
    File,
    Flag,
    Names,
    Number,
    OptionGroup,
    Text,
    check_there,
    default,
    one_of,
)
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import read_within
from jaxsens.core.measures import Measure
from jaxsens.pretrained.folder import existing_folder

_MOST_BYTES = 2**24
"""The bytes of the longest text that is read; models read some thousand symbols."""

# The choices are repeated here so that help can list them and reject others without loading JAX. Tests compare them
# with the library's.
_HARD = ("leftmost-hard", "rightmost-hard", "average-hard")
_GROWING = ("constant", "log", "sqrt", "linear", "linearithmic", "quadratic", "cubic")
_TEMPERATURES = (f"temperature-{name}" for name in (*_GROWING, "one-plus-log", "log-from-one", "root-log"))
_OTHERS = ("sparsemax", "entmax-1.5", "softmax-off-by-one", "adaptive-temperature", "sigmoid", "sigmoid-log")
_WEIGHTINGS = one_of("softmax", *_TEMPERATURES, *_HARD, *_OTHERS)
_MASKS = one_of("none", "future", "past", "strict-future", "strict-past")
_SHARP = ("temperature", "unbounded", "temperature-bounded", "bounded-softmax", "average-hard")
_CONDITIONS = one_of(*_SHARP, "leftmost-hard", "rightmost-hard")


@dataclass(frozen=True)
class InputOptions(OptionGroup):
    """The model's config and its input, and where programs are kept.

    Attributes:
        checkpoint: The directory of a trained model: the --out of `jaxsens train`.
        tokens: The input word: single characters ("0110"), or symbols separated by spaces. Give this or --n.
        n: The length of a random input, including the end-of-sequence symbol.
        inputs: The number of random inputs.
        config: A TOML file with a [model] table, such as a sweep config.
        variant: A variant of the model: a built-in one, such as leftmost-hard, or one from the config.
    """

    checkpoint: tyro.conf.Positional[
        Annotated[Path | None, tyro.conf.arg(metavar="[CHECKPOINT]", help_behavior_hint="")]
    ] = None
    tokens: Annotated[Text, default("a random word of --n symbols", "WORD")] = None
    n: Annotated[Count, default("that of --tokens")] = None
    inputs: Number = 1
    config: Annotated[File, default("")] = None
    variant: Annotated[Text, default("")] = None
    compilation_cache: CacheFolder = None

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
class ModelOptions(OptionGroup):
    """A network with random weights. These options override --config. Without --config, --alphabet-size is required
    and the others have the defaults below. --dtype also applies to constructed weights.

    Attributes:
        alphabet_size: The number of input symbols 0, 1, ....
        width: The size of the activation vectors.
        heads: The number of attention heads per layer.
        layers: The number of layers.
        feed_forward: The number of hidden units in the feed-forward block; 0 omits the block.
        weighting: How scores become attention weights.
        mask: Which positions attention cannot see; "future" gives causal attention.
        window: Causal attention to this number of last positions only, the position itself included; instead of --mask.
        positions: One or more position embeddings to add: none, sinusoidal, learned, rotary, alibi, length, ...
        layer_positions: One per layer, in addition to --positions: rotary none rotary none, ...
        scores: How queries and keys are compared.
        layer_norm: Where activations are normalised.
        activation: The activation function of the feed-forward block.
        output_gate: What multiplies the heads' outputs: a sigmoid gate per head, or per coordinate.
        dtype: The dtype of parameters and arithmetic.
    """

    alphabet_size: Annotated[Count, default("as in --config")] = None
    width: Annotated[Count, default("64")] = None
    heads: Annotated[Count, default("4")] = None
    layers: Annotated[Count, default("2")] = None
    feed_forward: Annotated[Count, default("256")] = None
    weighting: Annotated[str | None, _WEIGHTINGS, default("softmax")] = None
    mask: Annotated[str | None, _MASKS, default("none")] = None
    window: Annotated[Count, default("all positions")] = None
    positions: Annotated[Names, default("sinusoidal")] = None
    layer_positions: Annotated[Names, default("none")] = None
    scores: Annotated[str | None, one_of("dot-product", "additive"), default("dot-product")] = None
    layer_norm: Annotated[str | None, one_of("none", "pre", "post"), default("none")] = None
    activation: Annotated[str | None, one_of("relu", "gelu", "silu", "tanh"), default("relu")] = None
    output_gate: Annotated[str | None, one_of("none", "headwise", "elementwise"), default("none")] = None
    dtype: Annotated[str | None, one_of("float32", "float64"), default("float32; float64 if constructed")] = (
        None
    )

    def table(self) -> dict[str, Any]:
        """Returns the options given, as a `[model]` table."""
        table = self.given()
        if self.positions is not None:
            # A single name may be "none", which cannot be combined with others.
            table["positions"] = self.positions[0] if len(self.positions) == 1 else list(self.positions)
        if (width := table.pop("window", None)) is not None:
            table["mask"] = {"type": "SlidingWindow", "width": width}
        return table

    def check(self, problems: Problems) -> None:
        """Adds the errors in the options together."""
        if self.window is not None and self.mask is not None:
            problems.add("--window", self.window, f"not with --mask {self.mask}: a window masks the future")
        if self.window is not None and self.window < 1:
            problems.add("--window", self.window, "at least 1: a position sees itself")


@dataclass(frozen=True)
class ConstructedOptions(OptionGroup):
    """A model with constructed weights instead of random ones: --formula and --alphabet, or --construction.

    Attributes:
        formula: Compile this formula of temporal logic with counting, such as "odd(#L[Q_1])".
        alphabet: The formula's symbols: single characters, or names separated by spaces.
        construction: Use this construction; `jaxsens constructions` lists them.
        condition: What makes attention sharp enough; `jaxsens constructions NAME` explains.
        read: Which output coordinates to measure. The rounded output of a control is often the same for every word;
            its value before rounding is not.
        autoregressive: Use the variant with future masking, whose weights do not depend on n.
    """

    formula: Annotated[Text, default("", "TEXT")] = None
    alphabet: Annotated[Text, default("as in --config", "SYMBOLS")] = None
    construction: Annotated[Text, default("")] = None
    condition: Annotated[str | None, _CONDITIONS, default("temperature")] = None
    read: Annotated[str | None, one_of("output", "before-rounding", "everything"), default("output")] = None
    autoregressive: Flag = False

    def table(self) -> dict[str, Any]:
        """Returns the options given, as a `[model]` table."""
        table = self.given()
        if self.alphabet is not None:
            several = self.alphabet.split()
            table["alphabet"] = several if len(several) > 1 else "".join(several)
        return table


@dataclass(frozen=True)
class PublishedOptions(OptionGroup):
    """A published model on a text: --pretrained, and --text or --text-file. Of the options above, only --dtype goes
    with it.

    Attributes:
        pretrained: The folder of a published model: config.json, *.safetensors, tokenizer.json.
        text: The text itself.
        text_file: A file that holds the text, UTF-8; - for standard input. A line break at its end is left out.
        readout: Where the output is read: cls (the first position), last, mean, or a 0-based position.
        output: What is read there: the hidden row, the logits of the language-model head, or the scores of a
            classifier's labels.
    """

    pretrained: Annotated[File, default("", "DIR")] = None
    text: Annotated[Text, default("", "TEXT")] = None
    text_file: Annotated[File, default("", "FILE|-")] = None
    readout: Annotated[Text, default("that of the folder", "cls|last|mean|N")] = None
    output: Annotated[
        str | None,
        one_of("hidden", "logits", "labels"),
        default("hidden; logits with --measure log-probability"),
    ] = None

    def check_absent(self, problems: Problems) -> None:
        """Adds an error for each of these options that is given without --pretrained."""
        for option, value in self.flags().items():
            problems.add(option, value, "only with --pretrained; leave it out")

    def check(self, measuring: MeasuringOptions, others: dict[str, Any], problems: Problems) -> None:
        """Adds the errors, with --pretrained, that can be found without loading the model.

        Args:
            measuring: how flips are measured.
            others: the options given for other models.
            problems: collects the errors.
        """
        for option, value in others.items():
            problems.add(option, value, "leave it out; with --pretrained the folder and the text say it")
        try:
            existing_folder(self.pretrained)
        except InputError as error:
            problems.include(one.renamed({"folder": "--pretrained"}) for one in error.problems)
        if self.text is not None and self.text_file is not None:
            problems.add("--text-file", str(self.text_file), "give it or --text, not both")
        elif self.text_file is None and not self.text:
            problems.add("--text", self.text, "give the text, or --text-file, a file that holds it")
        elif str(self.text_file) != "-":
            check_there("--text-file", self.text_file, problems)
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
