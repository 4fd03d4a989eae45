"""`jaxsens measure`: one model on one input."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.cli.shared import (
    Count,
    File,
    Flag,
    Names,
    Number,
    Text,
    check_output,
    default,
    flag,
    flags_named,
    one_of,
    say,
    write_output,
)
from jaxsens.errors import Faults, collecting

if TYPE_CHECKING:
    from jaxsens.experiments.single import Summary
    from jaxsens.experiments.sources import ModelSource
    from jaxsens.sensitivity.result import FlipSensitivity


# The choices stand here so that help shows them, and a wrong one is refused, before JAX is loaded. Tests hold them to
# those of the library.
_WEIGHTINGS = one_of(
    "softmax",
    "temperature-constant",
    "temperature-log",
    "temperature-sqrt",
    "temperature-linear",
    "temperature-linearithmic",
    "temperature-quadratic",
    "temperature-cubic",
    "leftmost-hard",
    "rightmost-hard",
    "average-hard",
    "sparsemax",
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
    """A network with random weights. What is not given here is as in --config; without it --alphabet-size is needed,
    and the rest has the defaults below. --dtype goes with constructed weights as well.

    Attributes:
        alphabet_size: Symbols 0, 1, ... of the input, so many.
        width: Size of the activation vectors.
        heads: Attention heads of a layer.
        layers: Layers.
        feed_forward: Hidden units of the per-position map; 0 leaves it out.
        weighting: How scores become attention weights.
        mask: Which positions are masked; future: causal attention.
        positions: One or several position embeddings that add up: none, sinusoidal, learned, rotary, alibi, length, ...
        scores: How queries and keys are compared.
        layer_norm: Where activations are normalised.
        activation: Of the per-position map.
        dtype: Of parameters and arithmetic.
    """

    alphabet_size: Annotated[Count, default("as in --config")] = None
    width: Annotated[Count, default("64")] = None
    heads: Annotated[Count, default("4")] = None
    layers: Annotated[Count, default("2")] = None
    feed_forward: Annotated[Count, default("256")] = None
    weighting: Annotated[str | None, _WEIGHTINGS, default("softmax")] = None
    mask: Annotated[str | None, _MASKS, default("none")] = None
    positions: Annotated[Names, default("sinusoidal")] = None
    scores: Annotated[str | None, one_of("dot-product", "additive"), default("dot-product")] = None
    layer_norm: Annotated[str | None, one_of("none", "pre", "post"), default("none")] = None
    activation: Annotated[str | None, one_of("relu", "gelu", "silu", "tanh"), default("relu")] = None
    dtype: Annotated[str | None, one_of("float32", "float64"), default("float32; float64 if constructed")] = (
        None
    )

    def table(self) -> dict[str, Any]:
        """What was given, as a `[model]` table."""
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        if self.positions is not None:
            # One name alone may be "none", which is no position embedding that could be added to others.
            given["positions"] = self.positions[0] if len(self.positions) == 1 else list(self.positions)
        return given


@dataclass(frozen=True)
class ConstructedOptions:
    """A model with constructed weights, in place of random ones: --formula and --alphabet, or --construction.

    Attributes:
        formula: Compile this formula of temporal logic with counting, such as "odd(#L[Q_1])".
        alphabet: The formula's symbols, one a character, or with blanks between.
        construction: Take this construction; `jaxsens constructions` lists them.
        condition: What makes attention sharp enough; `jaxsens constructions NAME` explains.
        read: Which coordinates of the output to measure. A rounded output of a control is often the same for all words;
            what is before rounding moves.
        autoregressive: Take the construction with the future masked, which does not depend on n.
    """

    formula: Annotated[Text, default("", "TEXT")] = None
    alphabet: Annotated[Text, default("as in --config", "SYMBOLS")] = None
    construction: Annotated[Text, default("")] = None
    condition: Annotated[str | None, _CONDITIONS, default("temperature")] = None
    read: Annotated[str | None, one_of("output", "before-rounding", "everything"), default("output")] = None
    autoregressive: Flag = False

    def table(self) -> dict[str, Any]:
        """What was given, as a `[model]` table."""
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
    seed: Number = 0,
    engine: Annotated[str, one_of("auto", "vmap", "difference")] = "auto",
    norm: Annotated[str, one_of("l2", "l1", "linf")] = "l2",
    sample: Annotated[Count, default("all flips")] = None,
    batch_size: Annotated[Count, default("as many as --memory-budget allows")] = None,
    memory_budget: Annotated[Count, default("2 GiB on CPUs, 8 GiB on accelerators")] = None,
    top: Number = 5,
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False,
    save: Annotated[File, default("not written")] = None,
    quiet: Flag = False,
) -> int:
    """Measure one model, with random, constructed or trained weights, on one input, and print what came out.

    For example: jaxsens measure --alphabet-size 2 --n 64

    Args:
        checkpoint: A model that `jaxsens train` trained: what it was given as --out.
        tokens: The input: symbols, one a character ("0110"), or with blanks between. Give this or --n.
        n: The length of a random input, the end-of-sequence symbol included.
        inputs: How many random inputs.
        config: A TOML file with a [model] table; a sweep's config will do.
        variant: A change to the model: a built-in variant, such as leftmost-hard, or one of the config's.
        seed: Of the weights and of random inputs.
        engine: Which engine measures; auto chooses.
        norm: Of the change of the output.
        sample: Measure so many flips, drawn at random.
        batch_size: Flips at a time.
        memory_budget: Bytes of temporary memory, where no --batch-size is given.
        top: How many of the largest flips to print.
        json_output: Print JSON instead of a table.
        save: Write every flip to this file, NAME.parquet; `jaxsens.load_result` reads it.
        quiet: Print nothing but errors and warnings; for --save.
    """
    at_least = {
        "--seed": (seed, 0),
        "--sample": (sample, 1),
        "--batch-size": (batch_size, 1),
        "--memory-budget": (memory_budget, 1),
        "--top": (top, 0),
    }
    # What can be told without JAX is told at once.
    with collecting("measure") as faults:
        _check_input(tokens, n, inputs, faults)
        _check_options(at_least, save, quiet, faults)
    from jaxsens.experiments.single import input_tokens, model_source
    from jaxsens.sensitivity.flip_sensitivity import MeasurementInterrupted, flip_sensitivity
    from jaxsens.sensitivity.flips import sample as draw

    options = {**model.table(), **constructed.table()}
    trained = {} if checkpoint is None else {"checkpoint": str(checkpoint)}
    try:
        with flags_named(_flags(_OPTIONS if config is None else tuple(options))):
            source = model_source(config, variant, {**options, **trained})
            words = input_tokens(source, tokens, n, inputs, seed)
            result = flip_sensitivity(
                source.build(seed),
                words,
                positions=None if sample is None else draw(sample, seed),
                norm=norm,  # pyright: ignore[reportArgumentType] - one of the choices
                engine=engine,  # pyright: ignore[reportArgumentType] - one of the choices
                batch_size=batch_size,
                memory_budget=memory_budget,
                progress=False if quiet else None,
            )
    except MeasurementInterrupted as stop:
        done = f"{len(stop.partial)} of {stop.partial.population} flips were measured, and nothing is written"
        say(Console(stderr=True), f"stopped; {done}")
        return 128 + signal.SIGINT
    return _report(result, source, top, save, json_output, quiet)


def _report(
    result: FlipSensitivity,
    source: ModelSource,
    top: int,
    save: Path | None,
    json_output: bool,
    quiet: bool,
) -> int:
    """Saves and prints a result; the exit code."""
    from jaxsens.experiments.single import summarise

    # Saved first, because whoever reads what is printed may be gone.
    code = 0 if save is None else write_output("--save", save, lambda: result.save(save))
    summary = summarise(result, source, top)
    if json_output and not quiet:
        print(json.dumps(dataclasses.asdict(summary), indent=1), flush=True)
    elif not quiet:
        _print_summary(summary)
    return code


def _flags(keys: Iterable[str]) -> dict[str, str]:
    """The options by what the library calls them; those of the model only where they may have been given."""
    return {f"model.{key}": flag(key) for key in keys} | {
        key: flag(key) for key in ("engine", "batch_size", "memory_budget")
    }


def _check_input(word: str | None, n: int | None, count: int, faults: Faults) -> None:
    """Notes what is wrong with the input that is asked for, whatever the model."""
    if (word is None) == (n is None):
        faults.add("--tokens", word, "give either --tokens, a word, or --n, the length of a random input")
    if n is not None and n < 2:
        faults.add("--n", n, "at least 2: the position that is read out is not flipped")
    if count < 1:
        faults.add("--inputs", count, "at least 1")
    if word is not None and count != 1:
        faults.add("--inputs", count, "1 with --tokens, which is one input")


def _check_options(
    at_least: dict[str, tuple[int | None, int]], save: Path | None, quiet: bool, faults: Faults
) -> None:
    for option, (value, least) in at_least.items():
        if value is not None and value < least:
            faults.add(option, value, f"at least {least}")
    if save is not None and save.suffix != ".parquet":
        faults.add("--save", str(save), "a name that ends in .parquet, for that is what is written")
    check_output("--save", save, faults)
    if quiet and save is None:
        faults.add("--quiet", quiet, "give it with --save; else nothing is left of what is measured")


def _print_summary(summary: Summary) -> None:
    from rich.table import Table

    console = Console()
    facts = Table.grid(padding=(0, 2))
    flips = (
        f"{summary.flips}"
        if summary.flips == summary.population
        else f"{summary.flips} of {summary.population}"
    )
    rows = {} if summary.training is None else {"trained": _trained(**summary.training)}
    rows |= {
        "n": f"{summary.n}",
        "inputs": f"{summary.inputs}",
        "flips": flips,
        "engine": f"{summary.engine['name']}: {summary.engine['reason']}",
        "computed in": f"{summary.dtype}, on {summary.versions['device']}",
        f"mean {summary.norm}": f"{summary.mean:.6g}",
        **{name: f"{value:.6g}" for name, value in summary.quantiles.items()},
        "max": f"{summary.max:.6g}",
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    console.print(facts, highlight=False, markup=False)
    if summary.max == 0 and summary.model.get("read") == "output":
        text = "The output is rounded, and no flip moves it. --read before-rounding measures what is rounded."
        say(console, text)
    if not summary.top:
        return
    table = Table(title="Largest flips")
    for column in summary.top[0]:
        table.add_column(column, justify="right")
    for flip in summary.top:
        table.add_row(*(_shown(name, value, summary.symbols) for name, value in flip.items()))
    console.print(table)


def _shown(column: str, value: float, symbols: Sequence[str]) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return symbols[value] if column in ("symbol", "replaces") and value < len(symbols) else str(value)


def _trained(step: int, steps: int) -> str:
    return f"{step} steps" if step == steps else f"not to the end: {step} of {steps} steps"
