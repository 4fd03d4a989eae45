"""`jaxsens measure`: one model on one input."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.asked.measures import Measure
from jaxsens.base.errors import Problems, collecting
from jaxsens.cli.compilation import CacheFolder, programs_kept
from jaxsens.cli.measuring import (
    MEASURED_BY,
    MeasuringOptions,
    OutputOptions,
    check_nothing_is_lost,
    check_options,
)
from jaxsens.cli.published import PublishedOptions, check_absent, check_published, measure_published
from jaxsens.cli.shared import (
    Count,
    File,
    Flag,
    Names,
    Number,
    Text,
    check_choices,
    check_there,
    default,
    flag,
    flags_named,
    one_of,
    say,
)

if TYPE_CHECKING:
    from jaxsens.experiments.sweep.sources import ModelSource
    from jaxsens.sensitivity.results.result import FlipSensitivity


# The choices are repeated here so that help can list them and reject others without loading JAX. Tests compare them
# with the library's.
_WEIGHTINGS = one_of(
    "softmax",
    "temperature-constant",
    "temperature-log",
    "temperature-sqrt",
    "temperature-linear",
    "temperature-linearithmic",
    "temperature-quadratic",
    "temperature-cubic",
    "temperature-one-plus-log",
    "temperature-log-from-one",
    "temperature-root-log",
    "leftmost-hard",
    "rightmost-hard",
    "average-hard",
    "sparsemax",
    "entmax-1.5",
    "softmax-off-by-one",
    "adaptive-temperature",
    "sigmoid",
    "sigmoid-log",
)
_MASKS = one_of("none", "future", "past", "strict-future", "strict-past")
_CONDITIONS = one_of(
    "temperature",
    "unbounded",
    "temperature-bounded",
    "bounded-softmax",
    "average-hard",
    "leftmost-hard",
    "rightmost-hard",
)


@dataclass(frozen=True)
class ModelOptions:
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
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        if self.positions is not None:
            # A single name may be "none", which cannot be combined with others.
            given["positions"] = self.positions[0] if len(self.positions) == 1 else list(self.positions)
        if (width := given.pop("window", None)) is not None:
            given["mask"] = {"type": "SlidingWindow", "width": width}
        return given

    def check(self, problems: Problems) -> None:
        """Adds the errors in the options together."""
        if self.window is not None and self.mask is not None:
            problems.add("--window", self.window, f"not with --mask {self.mask}: a window masks the future")
        if self.window is not None and self.window < 1:
            problems.add("--window", self.window, "at least 1: a position sees itself")


@dataclass(frozen=True)
class ConstructedOptions:
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
        given = {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, False)}
        if self.alphabet is not None:
            several = self.alphabet.split()
            given["alphabet"] = several if len(several) > 1 else "".join(several)
        return given


_OPTIONS = tuple(
    field.name for kind in (ModelOptions, ConstructedOptions) for field in dataclasses.fields(kind)
)


def measure(
    checkpoint: tyro.conf.Positional[
        Annotated[Path | None, tyro.conf.arg(metavar="[CHECKPOINT]", help_behavior_hint="")]
    ] = None,
    /,
    *,
    tokens: Annotated[Text, default("a random word of --n symbols", "WORD")] = None,
    n: Annotated[Count, default("that of --tokens")] = None,
    inputs: Number = 1,
    config: Annotated[File, default("")] = None,
    variant: Annotated[Text, default("")] = None,
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = ModelOptions(),  # noqa: B008, RUF100 - frozen
    constructed: tyro.conf.OmitArgPrefixes[ConstructedOptions] = ConstructedOptions(),  # noqa: B008, RUF100 - frozen
    published: tyro.conf.OmitArgPrefixes[PublishedOptions] = PublishedOptions(),  # noqa: B008, RUF100 - frozen
    measuring: tyro.conf.OmitArgPrefixes[MeasuringOptions] = MeasuringOptions(),  # noqa: B008, RUF100 - frozen
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = OutputOptions(),  # noqa: B008, RUF100 - frozen
    compilation_cache: CacheFolder = None,
) -> int:
    """Measure one model with random, constructed, trained or published weights on one input, and print the result.

    For example: jaxsens measure --alphabet-size 2 --n 64

    Args:
        checkpoint: The directory of a trained model: the --out of `jaxsens train`.
        tokens: The input word: single characters ("0110"), or symbols separated by spaces. Give this or --n.
        n: The length of a random input, including the end-of-sequence symbol.
        inputs: The number of random inputs.
        config: A TOML file with a [model] table, such as a sweep config.
        variant: A variant of the model: a built-in one, such as leftmost-hard, or one from the config.
        model: Of a network with random weights.
        constructed: Of constructed weights.
        published: Of a published model.
        measuring: How flips are measured.
        output: What is printed and written.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
    """
    options = {**model.table(), **constructed.table()}
    # Report the errors that can be found without loading JAX first.
    with collecting("measure") as problems:
        if published.pretrained is None:
            _check_input(tokens, n, inputs, problems)
            check_absent(published, problems)
            check_there("CHECKPOINT", checkpoint, problems)
            check_there("--config", config, problems)
        else:
            others = {flag(key): value for key, value in options.items() if key != "dtype"}
            others |= _given(checkpoint, tokens, n, inputs, config, variant)
            check_published(published, measuring, others, problems)
        for each in (model, constructed, published, measuring):
            check_choices(each, problems)
        model.check(problems)
        check_options(measuring, output, problems)
    from jaxsens.sensitivity.results.resuming import MeasurementInterrupted, keeping

    check_nothing_is_lost(measuring, output)
    try:
        if published.pretrained is not None:
            with programs_kept(compilation_cache), keeping(output.keep):
                return measure_published(published, model.dtype or "float32", measuring, output)
        trained = {} if checkpoint is None else {"checkpoint": str(checkpoint)}
        asked = _Asked(config, variant, {**options, **trained}, tokens, n, inputs)
        with programs_kept(compilation_cache), keeping(output.keep):
            return _measure(asked, measuring, output)
    except MeasurementInterrupted as stop:
        output.keep(stop.partial)
        return 128 + stop.signal


@dataclass(frozen=True)
class _Asked:
    """The model and the input that the options ask for."""

    config: Path | None
    variant: str | None
    options: dict[str, Any]
    tokens: str | None
    n: int | None
    inputs: int


def _given(
    checkpoint: Path | None,
    tokens: str | None,
    n: int | None,
    inputs: int,
    config: Path | None,
    variant: str | None,
) -> dict[str, Any]:
    """Returns the options given that say the model or the input, by name."""
    found = {
        "CHECKPOINT": None if checkpoint is None else str(checkpoint),
        "--tokens": tokens,
        "--n": n,
        "--inputs": None if inputs == 1 else inputs,
        "--config": None if config is None else str(config),
        "--variant": variant,
    }
    return {name: value for name, value in found.items() if value is not None}


def _measure(asked: _Asked, measuring: MeasuringOptions, output: OutputOptions) -> int:
    """Measures a model with random, constructed or trained weights. Returns the exit code."""
    from jaxsens.experiments.single.single import input_tokens, model_source
    from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity

    with flags_named(_flags(_OPTIONS if asked.config is None else tuple(asked.options))):
        source = model_source(asked.config, asked.variant, asked.options)
        words = input_tokens(source, asked.tokens, asked.n, asked.inputs, measuring.seed)
        model = source.build(words.shape[1], measuring.seed)
        result = flip_sensitivity(model, words, **measuring.arguments(output.quiet))
    return _report(result, source, output)


def _report(result: FlipSensitivity, source: ModelSource, output: OutputOptions) -> int:
    """Writes and prints a result. Returns the exit code."""
    from jaxsens.experiments.single.single import summarise

    # Save first: printing fails if the reader has closed the pipe.
    code = output.write(result, "Sensitivity by position")
    summary = summarise(result, source, output.top)
    if output.json_output and not output.quiet:
        print(json.dumps(summary, indent=1), flush=True)
    elif not output.quiet:
        _print_summary(summary)
    return code


def _flags(keys: Iterable[str]) -> dict[str, str]:
    """Maps the library's argument names to options; `keys` are the model options that may have been given."""
    return {f"model.{key}": flag(key) for key in keys} | MEASURED_BY


def _check_input(word: str | None, n: int | None, count: int, problems: Problems) -> None:
    """Collects the errors in the requested input that do not depend on the model."""
    if (word is None) == (n is None):
        problems.add("--tokens", word, "give either --tokens (a word) or --n (the length of a random input)")
    if n is not None and n < 2:
        problems.add("--n", n, "at least 2: the readout position is not flipped")
    if count < 1:
        problems.add("--inputs", count, "at least 1")
    if word is not None and count != 1:
        problems.add("--inputs", count, "1 with --tokens, which gives one input")


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.table import Table

    from jaxsens.experiments.single.single import unresolved_facts

    console = Console()
    facts = Table.grid(padding=(0, 2))
    flips = (
        f"{summary['flips']}"
        if summary["flips"] == summary["population"]
        else f"{summary['flips']} of {summary['population']}"
    )
    measured = Measure.kinds[summary["measure"]["kind"]]
    rows = {} if summary["training"] is None else {"trained": _trained(**summary["training"])}
    rows |= {
        "n": f"{summary['n']}",
        "inputs": f"{summary['inputs']}",
        "flips": flips,
        "engine": f"{summary['engine']['name']}: {summary['engine']['reason']}",
        "computed in": f"{summary['dtype']}, on {summary['versions']['device']}",
        f"mean {'size of change' if measured.signed else measured.kind}": _told(
            summary, "mean", summary["mean"]
        ),
        **{name: _told(summary, name, value) for name, value in summary["quantiles"].items()},
        "max": _told(summary, "max", summary["max"]),
        **(
            {}
            if (average := summary["average_sensitivity"]) is None
            else {"average sensitivity": _told(summary, "average_sensitivity", average)}
        ),
        **unresolved_facts(summary["unresolved"]),
        **{name.replace("_", " "): told for name, told in (summary["estimate"] or {}).items()},
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    console.print(facts, highlight=False, markup=False)
    if summary["max"] == 0 and summary["model"].get("read") == "output":
        text = (
            "No flip changes the rounded output. --read before-rounding measures the value before rounding."
        )
        say(console, text)
    if not summary["top"]:
        return
    table = Table(title="Largest flips")
    columns = [name for name in summary["top"][0] if name != "at_most"]
    for column in columns:
        table.add_column(column, justify="right")
    for flip in summary["top"]:
        shown = {name: _shown(name, flip[name], summary["symbols"]) for name in columns}
        shown |= {"norm": f"at most {flip['at_most']:.6g}"} if "at_most" in flip else {}
        table.add_row(*shown.values())
    console.print(table)


def _told(summary: dict[str, Any], name: str, value: float) -> str:
    from jaxsens.sensitivity.results.at_most import told

    return told(value, summary["at_most"].get(name), 6)


def _shown(column: str, value: float | list[int], symbols: Sequence[str]) -> str:
    if isinstance(value, list):
        return " ".join(_shown(column, one, symbols) for one in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if column == "symbol" and value < 0:
        return "(deleted)"
    return (
        symbols[value] if column in ("symbol", "replaces", "before") and value < len(symbols) else str(value)
    )


def _trained(step: int, steps: int) -> str:
    return f"{step} steps" if step == steps else f"incomplete: {step} of {steps} steps"
