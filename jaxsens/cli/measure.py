"""`jaxsens measure`: one model on one input."""

from __future__ import annotations

import dataclasses
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from jaxsens.cli.shared import Count, File, Text, check_output, say, write_output
from jaxsens.errors import Faults, InputError

if TYPE_CHECKING:
    from jaxsens.experiments.single import Summary


@dataclass(frozen=True)
class ModelOptions:
    """The model; what is not given here is as in --config, or the default of jaxsens.TransformerConfig.

    Attributes:
        alphabet_size: Symbols 0 .. alphabet_size - 1.
        width: Size of the activation vectors.
        heads: Attention heads of a layer.
        layers: Layers.
        feed_forward: Hidden units of the per-position map; 0 leaves it out.
        weighting: softmax, temperature-log, leftmost-hard, ...
        mask: none, future (causal), past, strict-future or strict-past.
        positions: One or several position embeddings that add up: sinusoidal, learned, rotary, alibi, length, ...
        scores: dot-product or additive.
        layer_norm: none, pre or post.
        activation: relu, gelu, silu or tanh.
        dtype: float32 or float64.
    """

    alphabet_size: Count = None
    width: Count = None
    heads: Count = None
    layers: Count = None
    feed_forward: Count = None
    weighting: Text = None
    mask: Text = None
    positions: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME [NAME ...]")] = None
    scores: Text = None
    layer_norm: Text = None
    activation: Text = None
    dtype: Text = None

    def table(self) -> dict[str, Any]:
        """What was given, as a `[model]` table."""
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        if self.positions is not None:
            # One name alone may be "none", which is no position embedding that could be added to others.
            given["positions"] = self.positions[0] if len(self.positions) == 1 else list(self.positions)
        return given


@dataclass(frozen=True)
class ConstructedOptions:
    """A model with constructed weights, in place of random ones.

    Attributes:
        formula: Compile this formula of temporal logic with counting, such as "odd(#L[Q_1])".
        alphabet: The formula's symbols, one a character, or with blanks between.
        construction: Take this construction: parity, majority, ...
        condition: temperature, unbounded, average-hard, bounded-softmax, ...
        read: Which coordinates of the output to measure: output, before-rounding or everything.
        autoregressive: Take the construction with the future masked, which does not depend on n.
    """

    formula: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None
    alphabet: Annotated[str | None, tyro.conf.arg(metavar="SYMBOLS")] = None
    construction: Text = None
    condition: Text = None
    read: Text = None
    autoregressive: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def table(self) -> dict[str, Any]:
        """What was given, as a `[model]` table."""
        given = {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, False)}
        if self.alphabet is not None and len(self.alphabet.split()) > 1:
            given["alphabet"] = self.alphabet.split()
        return given


def measure(
    checkpoint: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="[CHECKPOINT]")]] = None,
    /,
    *,
    tokens: Annotated[str | None, tyro.conf.arg(metavar="WORD")] = None,
    n: Count = None,
    inputs: int = 1,
    config: File = None,
    variant: Text = None,
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = ModelOptions(),  # noqa: B008, RUF100 - frozen
    constructed: tyro.conf.OmitArgPrefixes[ConstructedOptions] = ConstructedOptions(),  # noqa: B008, RUF100 - frozen
    seed: int = 0,
    engine: str = "auto",
    norm: Literal["l2", "l1", "linf"] = "l2",
    sample: Count = None,
    batch_size: Count = None,
    memory_budget: Count = None,
    top: int = 5,
    json_output: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
    save: File = None,
) -> int:
    """Measure one model, with random, constructed or trained weights, on one input, and print what came out.

    Args:
        checkpoint: A model that `jaxsens train` trained: what it was given as --out.
        tokens: The input: symbols, one a character ("0110"), or with blanks between.
        n: Instead of --tokens: the length of a random input, the end-of-sequence symbol included.
        inputs: How many random inputs.
        config: A TOML file with a [model] table; a sweep's config will do.
        variant: A change to the model: a built-in variant, such as leftmost-hard, or one of the config's.
        seed: Of the weights and of random inputs.
        engine: Which engine measures; auto chooses.
        norm: Of the change of the output.
        sample: Measure so many flips, drawn at random, instead of all.
        batch_size: Flips at a time.
        memory_budget: Bytes of temporary memory, where no --batch-size is given.
        top: How many of the largest flips to print.
        json_output: Print JSON instead of a table.
        save: Write every flip to this file, NAME.parquet; `jaxsens.load_result` reads it.
    """
    from jaxsens.experiments.single import check_words, input_tokens, model_source, summarise
    from jaxsens.sensitivity.flip_sensitivity import MeasurementInterrupted, flip_sensitivity
    from jaxsens.sensitivity.flips import sample as draw
    from jaxsens.strict import messages

    trained = {} if checkpoint is None else {"checkpoint": str(checkpoint)}
    faults = Faults("measure")
    at_least = {
        "--seed": (seed, 0),
        "--sample": (sample, 1),
        "--batch-size": (batch_size, 1),
        "--memory-budget": (memory_budget, 1),
        "--top": (top, 0),
    }
    _check_options(at_least, engine, save, faults)
    check_words(tokens, n, inputs, faults)
    try:
        source = model_source(config, variant, {**model.table(), **constructed.table(), **trained})
        words = input_tokens(source, tokens, n, inputs, max(seed, 0))
    except InputError as error:
        if not faults:
            raise
        faults.messages[:] = dict.fromkeys([*faults.messages, *messages(error)])
        faults.raise_if_any()
        raise
    faults.raise_if_any()
    try:
        result = flip_sensitivity(
            source.build(seed),
            words,
            positions=None if sample is None else draw(sample, seed),
            norm=norm,
            engine=engine,  # pyright: ignore[reportArgumentType] - checked there
            batch_size=batch_size,
            memory_budget=memory_budget,
        )
    except MeasurementInterrupted as stop:
        done = f"{len(stop.partial)} of {stop.partial.population} flips were measured, and nothing is written"
        say(Console(stderr=True), f"stopped; {done}")
        return 128 + signal.SIGINT
    # Kept first: whoever reads what is printed may be gone.
    code = 0 if save is None else write_output("--save", save, lambda: result.save(save))
    summary = summarise(result, source, top)
    if json_output:
        print(json.dumps(dataclasses.asdict(summary), indent=1), flush=True)
    else:
        _print_summary(summary)
    return code


def _check_options(
    at_least: dict[str, tuple[int | None, int]], engine: str, save: Path | None, faults: Faults
) -> None:
    from jaxsens.sensitivity.choice import ENGINES

    for option, (value, least) in at_least.items():
        if value is not None and value < least:
            faults.add(option, value, f"at least {least}")
    if engine not in ("auto", *ENGINES):
        faults.add("--engine", engine, f"one of auto, {', '.join(ENGINES)}")
    if save is not None and save.suffix != ".parquet":
        faults.add("--save", str(save), "a name that ends in .parquet, for that is what is written")
    check_output("--save", save, faults)


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
    if not summary.top:
        return
    table = Table(title="Largest flips")
    for column in summary.top[0]:
        table.add_column(column, justify="right")
    for flip in summary.top:
        table.add_row(
            *(f"{value:.6g}" if isinstance(value, float) else str(value) for value in flip.values())
        )
    console.print(table)


def _trained(step: int, steps: int) -> str:
    return f"{step} steps" if step == steps else f"not to the end: {step} of {steps} steps"
