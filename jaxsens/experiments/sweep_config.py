"""The sweep's config: a TOML file, read strictly, every fault reported at once and nothing run.

title = "..."                       for the report
claim = "..."
lengths = [16, 32, 64]              n, the end-of-sequence symbol included
seeds = 5                           0..4, or a list
variants = ["softmax", "leftmost-hard"]
statistics = ["mean", "max"]

[model]                             random weights: `kind` and its config's fields; or `formula`, `alphabet` and
                                    `condition`; or `construction`, `condition` and its options; or `checkpoint`,
                                    a directory of `jaxsens train`
[inputs]                            `count` random words a point and their `kind`, or `file` of words
[measure]                           engine, norm, outputs, sample, batch_size, memory_budget

[bounds]                            what is asked of all inputs: worst, restarts, budget, certified, restrict,
                                    free_fraction

[[variant]]                         variants of one's own: name, model, add_positions, description
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from jaxsens.errors import Faults, InputError
from jaxsens.experiments.bounds import Bounds, longest_certified
from jaxsens.experiments.inputs import (
    INPUTS_ADAPTER,
    GivenWords,
    InputsTable,
    RandomWords,
    SharedWords,
    Symbols,
    WordFile,
    read_words,
)
from jaxsens.experiments.model_source import ModelSource, read_source
from jaxsens.experiments.points import Measurement
from jaxsens.experiments.statistics import KNOWN, is_statistic
from jaxsens.experiments.sweep import Sweep, SweepVariant
from jaxsens.experiments.variants import BUILT_IN, Variant, check_label
from jaxsens.memory import TOKEN_BYTES, check_fits
from jaxsens.sensitivity.adapters import measurable
from jaxsens.sensitivity.choice import choose
from jaxsens.strict import STRICT, did_you_mean, field_names, read_table


def _rising(lengths: tuple[int, ...]) -> tuple[int, ...]:
    faults = [f"{n} is too small, the least is 2" for n in lengths if n < 2]
    faults += [f"{b} comes after {a}: list them by size" for a, b in itertools.pairwise(lengths) if b < a]
    return _distinct(lengths, faults)


MOST_POINTS = 100_000
"""Points of a sweep. Each has a file, and a place in the plan and in memory, of some kilobytes."""


def _seeds(value: object) -> object:
    """A count as that many seeds from 0 on; a list as the tuple that a strict check wants."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("should be at least 1, or a list of seeds")
        if value > MOST_POINTS:
            raise ValueError(f"should be at most {MOST_POINTS}: a sweep has no more points")
        return tuple(range(value))
    if not isinstance(value, list):
        raise ValueError("should be a count of seeds or a list of them")
    return tuple(value)


def _distinct(values: tuple, faults: Sequence[str] = ()) -> tuple:
    """The values; raises what is wrong with them, repetitions included."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    faults = [*faults, *(f"{value!r} comes more than once" for value in repeated)]
    if not values:
        faults.append("give at least one")
    if faults:
        raise ValueError("; ".join(faults))
    return values


def _built_in(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [
        f'no variant is called "{name}"{did_you_mean(name, BUILT_IN)}'
        for name in names
        if name not in BUILT_IN
    ]
    return _distinct(names, unknown) if names else names


def _statistics(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [f'no statistic is called "{name}": give {KNOWN}' for name in names if not is_statistic(name)]
    return _distinct(names, unknown)


Lengths = Annotated[tuple[int, ...], AfterValidator(_rising)]
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    AfterValidator(_distinct),
    BeforeValidator(_seeds),
]
_Variants = Annotated[tuple[str, ...], AfterValidator(_built_in)]
_Statistics = Annotated[tuple[str, ...], AfterValidator(_statistics)]


@dataclass(frozen=True)
class _Tables:
    """The config's tables as they are written."""

    __pydantic_config__ = STRICT
    lengths: Lengths
    seeds: Seeds = (0,)
    title: str = ""
    claim: str = ""
    variants: _Variants = ()
    statistics: _Statistics = ("mean", "max")
    model: dict[str, Any] = field(default_factory=dict)
    inputs: InputsTable = field(default_factory=RandomWords)
    measure: Measurement = field(default_factory=Measurement)
    bounds: Bounds | None = None
    variant: tuple[Variant, ...] = ()


_ADAPTER = TypeAdapter(_Tables)
_VARIANT_ADAPTER = TypeAdapter(Variant)
TABLES = field_names(_Tables)
"""The keys of a config, outermost."""
_KEYS = {
    "": TABLES,
    "inputs": (*field_names(RandomWords), *field_names(WordFile)),
    "measure": field_names(Measurement),
    "bounds": field_names(Bounds),
    "variant": field_names(Variant),
}


def load_sweep_config(path: str | os.PathLike[str]) -> Sweep:
    """Reads and checks a sweep's config.

    Raises:
        InputError: if the file cannot be read, is no TOML, or has faults: all of them, with their paths.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config = {str(path)!r}: a readable TOML file is needed ({error})") from error
    return parse_sweep_config(text, str(path), Path(path).parent)


def parse_sweep_config(text: str, subject: str = "config", folder: Path = Path()) -> Sweep:
    """As `load_sweep_config`, from the text itself. Files that it names are looked for in `folder`."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{subject}: not TOML: {error}") from error
    faults = Faults(subject)
    tables = read_table(_ADAPTER, raw, "", faults, _KEYS)
    variants = _variants(raw, folder, faults)
    symbols, shared = _symbols(variants, faults)
    lengths = _salvaged(TypeAdapter(Lengths), raw.get("lengths"))
    measure = _salvaged(TypeAdapter(Measurement), raw.get("measure", {}))
    bounds = _salvaged(TypeAdapter(Bounds), raw.get("bounds"))
    for variant in variants:
        _check_lengths(variant, lengths, faults)
        _check_certified(variant, lengths, bounds, faults)
        _check_engine(variant, measure, faults)
        _check_outputs(variant, measure, faults)
    seeds = _salvaged(TypeAdapter(Seeds), raw.get("seeds", 1))
    check_points(len(variants), lengths, seeds, faults)
    inputs = _inputs(raw, folder, symbols, lengths, faults)
    faults.messages[:] = dict.fromkeys(faults.messages)
    faults.raise_if_any()
    if tables is None or inputs is None:
        raise InputError(f"{subject}: cannot be used")
    return Sweep(
        title=tables.title,
        claim=tables.claim,
        lengths=tables.lengths,
        seeds=tables.seeds,
        variants=variants,
        statistics=tables.statistics,
        inputs=SharedWords(inputs) if shared else inputs,
        measure=tables.measure,
        text=text,
        bounds=tables.bounds,
    )


def check_points(
    models: int, lengths: Sequence[int] | None, seeds: Sequence[int] | None, faults: Faults
) -> None:
    """Notes that there are more points than a sweep can have, each a model at a length with a seed."""
    points = models * len(lengths or ()) * len(seeds or ())
    if points > MOST_POINTS:
        faults.messages.append(
            f"{models} models at {len(lengths or ())} lengths with {len(seeds or ())} seeds are {points} points: at "
            f"most {MOST_POINTS}; give fewer, or several configs"
        )


def _salvaged(adapter: TypeAdapter[Any], value: object) -> Any:
    """The checked value, or None where it has faults, which are reported elsewhere."""
    return None if value is None else read_table(adapter, value, "", Faults(""), {})


def _variants(raw: Mapping[str, Any], folder: Path, faults: Faults) -> tuple[SweepVariant, ...]:
    """Every variant with its model. What is wrong with `[model]` is noted once, not once a variant."""
    base = raw.get("model", {})
    base = base if isinstance(base, dict) else {}
    base_faults = Faults("model")
    read_source(base, "model", base_faults, folder)
    found: dict[str, SweepVariant] = {}
    chosen = _chosen(raw)
    for variant in chosen:
        own = Faults(variant.name)
        source = read_source(variant.table(base), "model", own, folder)
        shared = [message for message in own.messages if message in base_faults.messages]
        faults.messages += shared
        faults.messages += [
            f'variant "{variant.name}": {message}' for message in own.messages if message not in shared
        ]
        if variant.name in found:
            faults.add("variant.name", variant.name, _why_taken(found[variant.name], source))
        elif source is not None:
            check_label(variant, base, folder, faults)
            found[variant.name] = SweepVariant(variant.name, variant.line(), source)
    if not raw.get("variants") and not raw.get("variant"):
        faults.add(
            "variants",
            raw.get("variants"),
            f"name at least one of {', '.join(BUILT_IN)}, or add a [[variant]]",
        )
    return tuple(found.values())


def _why_taken(first: SweepVariant, second: ModelSource | None) -> str:
    if second is None or first.source.expanded() != second.expanded():
        return "this name is taken by another variant"
    kind = "the built-in variant" if first.name in BUILT_IN else "another variant"
    return f"a copy of {kind} of this name, with the same model: leave one of them out"


def _chosen(raw: Mapping[str, Any]) -> list[Variant]:
    """The built-in variants that are named, then the config's own; without those that cannot be read."""
    names, own = raw.get("variants", []), raw.get("variant", [])
    built_in = (
        dict.fromkeys(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
    )
    read = [_salvaged(_VARIANT_ADAPTER, table) for table in own] if isinstance(own, list) else []
    return [BUILT_IN[name] for name in built_in if name in BUILT_IN] + [
        each for each in read if each is not None
    ]


def _symbols(variants: tuple[SweepVariant, ...], faults: Faults) -> tuple[Symbols | None, bool]:
    """The alphabet that all variants read, for they read the same inputs, and whether they do not all have an
    end-of-sequence symbol, or not in one place, so that the inputs are `SharedWords`."""
    alphabets = {variant.name: variant.source.symbols for variant in variants}
    if len({symbols.alphabet_size for symbols in alphabets.values()}) > 1:
        listed = ", ".join(f"{name}: {symbols.alphabet_size} symbols" for name, symbols in alphabets.items())
        faults.messages.append(f"variants read the same inputs and so need one alphabet, but {listed}")
    symbols = next(iter(alphabets.values()), None)
    if symbols is None or len(set(alphabets.values())) == 1:
        return symbols, False
    return symbols.without_end(), True


def _check_lengths(variant: SweepVariant, lengths: tuple[int, ...] | None, faults: Faults) -> None:
    for n in lengths or ():
        own = Faults(variant.name)
        if check_fits("lengths", n, n * TOKEN_BYTES, "an input of this length", "give shorter ones", own):
            variant.source.check_length(n, own)
        if own:
            faults.messages += [f'lengths: variant "{variant.name}": {message}' for message in own.messages]
            return


def _check_certified(
    variant: SweepVariant, lengths: tuple[int, ...] | None, bounds: Bounds | None, faults: Faults
) -> None:
    """Notes where a length is beyond what can be certified for a variant."""
    if bounds is None or not bounds.certified or not lengths:
        return
    longest = longest_certified(variant.source)
    if longest is not None and max(lengths) > longest:
        faults.messages.append(
            f'lengths: variant "{variant.name}": n = {max(lengths)} is beyond {longest}, the longest that a bound can '
            "be certified for: leave it out, or give [bounds] certified = false"
        )


def _check_engine(variant: SweepVariant, measure: Measurement | None, faults: Faults) -> None:
    """Notes where the engine that is asked for by name refuses a variant."""
    if measure is None or measure.engine == "auto":
        return
    try:
        choose(measurable(variant.source.build(seed=0)), measure.engine, measure.norm, None, n=2)
    except InputError as error:
        faults.messages.append(f'measure.engine: variant "{variant.name}": {error}')


def _check_outputs(variant: SweepVariant, measure: Measurement | None, faults: Faults) -> None:
    """Notes where a variant's output lacks a coordinate that is asked for."""
    size = variant.source.output_size
    if measure is not None and isinstance(measure.outputs, tuple) and measure.outputs[-1] >= size:
        faults.messages.append(
            f'measure.outputs: variant "{variant.name}": its output has the coordinates 0 to {size - 1}, '
            f"not {measure.outputs[-1]}"
        )


def _inputs(
    raw: Mapping[str, Any],
    folder: Path,
    symbols: Symbols | None,
    lengths: tuple[int, ...] | None,
    faults: Faults,
) -> RandomWords | GivenWords | None:
    table = _salvaged(INPUTS_ADAPTER, raw.get("inputs", {}))
    if isinstance(table, WordFile):
        return None if symbols is None else read_words(table, folder, symbols, lengths or (), faults)
    return table
