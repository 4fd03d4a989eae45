"""The `jaxsens` command: sweep, measure, report. What is heavy is imported where it is used."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from jaxsens.errors import InputError

if TYPE_CHECKING:
    from jaxsens.experiments.single import Summary
    from jaxsens.experiments.sweep import Sweep

_Text = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
_Count = Annotated[int | None, tyro.conf.arg(metavar="INT")]
_File = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]

_DESCRIPTION = """Measures how much one symbol of the input moves a transformer's output, and how that scales with
the input's length. `jaxsens --version` prints the version."""


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

    alphabet_size: _Count = None
    width: _Count = None
    heads: _Count = None
    layers: _Count = None
    feed_forward: _Count = None
    weighting: _Text = None
    mask: _Text = None
    positions: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME [NAME ...]")] = None
    scores: _Text = None
    layer_norm: _Text = None
    activation: _Text = None
    dtype: _Text = None

    def table(self) -> dict[str, Any]:
        """What was given, as a `[model]` table."""
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        if self.positions is not None:
            # One name alone may be "none", which is no position embedding that could be added to others.
            given["positions"] = self.positions[0] if len(self.positions) == 1 else list(self.positions)
        return given


def sweep(
    config: tyro.conf.Positional[Path],
    /,
    *,
    out: Path,
    only: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    shard: Annotated[str | None, tyro.conf.arg(metavar="K/M")] = None,
    list_points: Annotated[bool, tyro.conf.arg(name="list"), tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Measure every variant at every length with every seed, then write tables, plots and report.html.

    Run it again to resume: what is measured is kept.

    Args:
        config: A TOML file; see configs/.
        out: The directory for everything that is written.
        only: Take only these points: variant=NAME, n=LENGTH or seed=SEED; several values with commas; may be repeated.
        shard: Take part K of M of the points, such as 3/16, for job arrays. The last part to end writes the report.
        list_points: Print the points and which are done, and do nothing else.
    """
    from jaxsens.experiments.runner import run_sweep, strangers
    from jaxsens.experiments.selection import select
    from jaxsens.experiments.sweep_config import load_sweep_config

    _use_all_cores()
    loaded = load_sweep_config(config)
    chosen = select(loaded.points, only, shard)
    if list_points:
        return _list(loaded, chosen, out)
    console = Console(stderr=True)
    others = strangers(loaded.plan, out)
    if others:
        _say(console, f"{others} points in {out} belong to another config; they are kept and not shown")
    outcome = run_sweep(loaded, out, chosen, console)
    for failure in outcome.failures:
        _say(console, f"failed: {failure.point}: {failure.message}")
    if outcome.stopped_by is not None:
        parts = [part for value in only for part in ("--only", value)] + (["--shard", shard] if shard else [])
        again = shlex.join(["jaxsens", "sweep", str(config), "--out", str(out), *parts])
        _say(console, f"stopped; {outcome.finished} of {outcome.planned} points are done. To resume: {again}")
    elif outcome.finished == 0:
        _say(console, "no point could be measured")
    elif shard is not None and outcome.finished < outcome.planned:
        done = f"{outcome.finished} of {outcome.planned} points are done"
        _say(console, f"{done}; `jaxsens report {out}` draws what there is")
    else:
        _report(out)
    return outcome.exit_code


def report(directory: tyro.conf.Positional[Path], /) -> int:
    """Write points.csv, summary.csv, the plots and report.html of a sweep once more, from the points there are.

    Args:
        directory: What `jaxsens sweep` was given as --out.
    """
    from jaxsens.experiments.results import read_metadata, read_plan, write_points_csv

    write_points_csv(directory, read_metadata(directory), read_plan(directory))
    _report(directory)
    return 0


def measure(
    *,
    tokens: Annotated[str | None, tyro.conf.arg(metavar="WORD")] = None,
    n: _Count = None,
    inputs: int = 1,
    config: _File = None,
    variant: _Text = None,
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = ModelOptions(),  # noqa: B008, RUF100 - frozen
    seed: int = 0,
    engine: str = "auto",
    norm: Literal["l2", "l1", "linf"] = "l2",
    sample: _Count = None,
    batch_size: _Count = None,
    memory_budget: _Count = None,
    top: int = 5,
    json_output: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
    save: _File = None,
) -> int:
    """Measure one model with random weights on one input, and print what came out.

    Args:
        tokens: The input: digits, one a symbol ("0110"), or numbers between blanks or commas.
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
        save: Write every flip to this Parquet file; `jaxsens.load_result` reads it.
    """
    from jaxsens.experiments.single import input_tokens, model_source, summarise
    from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
    from jaxsens.sensitivity.flips import sample as draw

    _use_all_cores()
    source = model_source(config, variant, model.table())
    words = input_tokens(source.symbols, tokens, n, inputs, seed)
    result = flip_sensitivity(
        source.build(seed),
        words,
        positions=None if sample is None else draw(sample, seed),
        norm=norm,
        engine=engine,  # pyright: ignore[reportArgumentType] - checked there
        batch_size=batch_size,
        memory_budget=memory_budget,
    )
    if save is not None:
        result.save(save)
    summary = summarise(result, source, top)
    if json_output:
        print(json.dumps(dataclasses.asdict(summary), indent=1))
    else:
        _print_summary(summary)
    return 0


def _use_all_cores() -> None:
    """Makes JAX see the machine's cores as that many CPU devices (eight at most), over which flips are spread.

    The engines' small operations leave one device's other threads idle. JAX_NUM_CPU_DEVICES overrides it; it has no
    effect on accelerators.
    """
    import os

    import jax

    if "JAX_NUM_CPU_DEVICES" not in os.environ and "xla_force_host_platform" not in os.environ.get(
        "XLA_FLAGS", ""
    ):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jax.config.update("jax_num_cpu_devices", min(cores, 8))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0, 1 (a point failed), 2 (bad input), 128 + signal."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if list(arguments) == ["--version"]:
        from jaxsens.versions import package_version

        print(f"jaxsens {package_version()}")
        return 0
    commands: dict[str, Any] = {"sweep": sweep, "measure": measure, "report": report}
    try:
        return tyro.extras.subcommand_cli_from_dict(
            commands, prog="jaxsens", description=_DESCRIPTION, args=arguments
        )
    except (InputError, OSError) as error:
        print(f"jaxsens: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _list(loaded: Sweep, chosen: Sequence[Any], out: Path) -> int:
    from jaxsens.experiments.runner import state_of

    console, done = Console(), 0
    for point in chosen:
        state = state_of(point, out)
        done += state == "done"
        _say(console, f"{state:8} {point}  {point.path(out)}")
    _say(console, f"{done} of {len(chosen)} points are done")
    return 0


def _report(directory: Path) -> None:
    from jaxsens.analysis.fits import fit_exponents
    from jaxsens.analysis.report import write_report
    from jaxsens.analysis.tables import summary_table
    from jaxsens.experiments.results import read_points

    page = write_report(directory)
    console = Console()
    console.print(summary_table(fit_exponents(read_points(directory))))
    _say(console, f"{page}")


def _print_summary(summary: Summary) -> None:
    from rich.table import Table

    console = Console()
    facts = Table.grid(padding=(0, 2))
    flips = (
        f"{summary.flips}"
        if summary.flips == summary.population
        else f"{summary.flips} of {summary.population}"
    )
    rows = {
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


if __name__ == "__main__":
    sys.exit(main())
