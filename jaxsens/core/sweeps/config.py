"""The sweep's config: a TOML file, read strictly, every error reported at once and nothing run.

`example.toml` beside this file has the keys that most sweeps need, docs/reference/sweep-configs.md all of them. Those
that packages bring name a model by itself (`jaxsens.core.sweeps.sources`) or a table (`jaxsens.core.sweeps.tables`).

A variant is a named change to `[model]`. All variants of a sweep share weights, seeds and inputs, so that each differs
from the others only in what its table says.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo

from jaxsens.core.base.errors import TOKEN_BYTES, InputError, Problem, Problems, check_fits
from jaxsens.core.base.registry import entries
from jaxsens.core.base.strict import (
    STRICT,
    checked_by,
    did_you_mean,
    field_names,
    parse_toml,
    read_fields,
    read_toml,
)
from jaxsens.core.choose import choose
from jaxsens.core.engines.options import Auto
from jaxsens.core.engines.request import select
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import MEDIAN
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import read_config
from jaxsens.core.sweeps.beyond import check_estimates, sampled_variants
from jaxsens.core.sweeps.inputs import (
    AllWords,
    InputsTable,
    PlacementTable,
    RandomWords,
    SharedWords,
    TextFile,
    WordFile,
    read_words,
)
from jaxsens.core.sweeps.points import (
    EXTREMES,
    OF_DECISIONS,
    PER_POSITION,
    STATISTICS,
    Measurement,
    PointMetadata,
    is_statistic,
)
from jaxsens.core.sweeps.sources import ModelSource, changed, named_source, naming, read_source, source_kind
from jaxsens.core.sweeps.sweep import REPORT_FILES, Sweep, SweepVariant
from jaxsens.core.sweeps.tables import read_sweep_table

# Variants


NAME = re.compile(r"(?!.* $)[A-Za-z0-9][A-Za-z0-9._+ -]{0,63}")
NAME_RULE = "a name has up to 64 letters, digits, blanks inside and . _ + - and begins with a letter or digit"


def _usable(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(NAME_RULE)
    return name


Name = Annotated[str, AfterValidator(_usable)]
"""A variant's name is also a folder's, and a label in plots."""


@dataclass(frozen=True)
class Variant:
    """A named change to the `[model]` table.

    Attributes:
        name: unique within a sweep.
        model: keys that replace those of `[model]`. Another kind of model (`kind`, `formula` or `construction`), or
            another construction, keeps only the keys of `[model]` that it has too.
        add_positions: position embeddings in addition to those of the model.
        description: one line for plots, tables and reports; made from the change where empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    model: dict[str, Any] = field(default_factory=dict)
    add_positions: tuple[str, ...] = ()
    description: str = ""

    def table(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The variant's model table, from the sweep's."""
        table = changed(base, self.model)
        if self.add_positions:
            own = table.get("positions", TransformerConfig.__dataclass_fields__["positions"].default)
            own = () if own == "none" else own if isinstance(own, list | tuple) else (own,)
            table["positions"] = [*own, *self.add_positions]
        return table

    def line(self) -> str:
        """The description, or the change itself in words, if there is none."""
        if self.description:
            return self.description
        changes = [f"{key} = {value}" for key, value in self.model.items()]
        changes += [f"positions and {name}" for name in self.add_positions]
        return ", ".join(changes) or "as in [model]"


def _weighting(name: str, description: str) -> Variant:
    return Variant(name, {"weighting": name}, description=description)


BUILT_IN: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        _weighting("softmax", "softmax attention: the baseline"),
        _weighting("temperature-log", "softmax of log(n) times the scores"),
        _weighting("temperature-sqrt", "softmax of sqrt(n) times the scores"),
        _weighting("temperature-linear", "softmax of n times the scores"),
        Variant(
            "unbounded",
            {"weighting": "softmax"},
            ("length",),
            "softmax, with n itself among the position embeddings",
        ),
        _weighting("leftmost-hard", "all attention on the leftmost of the highest scores"),
        _weighting("rightmost-hard", "all attention on the rightmost of the highest scores"),
        _weighting("average-hard", "attention shared equally by the highest scores"),
        _weighting("sparsemax", "sparsemax attention: the nearest point of the simplex"),
    )
}
"""The variants that `variants = [...]` in a config names."""


def check_label(variant: Variant, base: Mapping[str, Any], problems: Problems) -> None:
    """Notes a variant of one's own that has a built-in's name and changes nothing, if the built-in is another model:
    what is measured would be the `[model]` table `base` under the name of something else."""
    built_in = BUILT_IN.get(variant.name)
    if built_in is None or variant is built_in or variant.model or variant.add_positions:
        return
    own, named = (read_config(table, "model", Problems()) for table in (base, built_in.table(base)))
    network = not any(key in base for key in naming())
    if network and (own is None or own == named):
        return
    problems.add(
        "variant.name",
        variant.name,
        "the built-in variant of this name is another model, and this [[variant]] changes nothing: give it a "
        f'`model`, or another name, or take the built-in: variants = ["{variant.name}"] in a sweep, or no '
        "[[variant]] of this name",
    )


def at_stages(chosen: Sequence[Variant], base: dict[str, Any], problems: Problems) -> list[Variant]:
    """Every variant at every stage of a model that `[model]` names; as they are, if it names none."""
    named = next((key for key in naming() if key in base), None)
    stages = [] if named is None else source_kind(named).stages(base, problems)
    if not stages:
        return [*chosen]
    base |= stages[0][1]
    return [
        replace(one, name=f"{one.name} {name}", model={**one.model, **keys}, description="")
        for one in chosen
        for name, keys in stages
    ]


# Fields


def _rising(lengths: tuple[int, ...]) -> tuple[int, ...]:
    errors = [f"{n} is too small, the least is 2" for n in lengths if n < 2]
    errors += [f"{b} comes after {a}: list them by size" for a, b in itertools.pairwise(lengths) if b < a]
    return _distinct(lengths, errors)


MOST_POINTS = 100_000
"""Points of a sweep. Each process takes 3 kB and 0.1 ms for every point, also of other processes, whenever it begins:
see docs/planning.md."""


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


def _distinct(values: tuple, errors: Sequence[str] = ()) -> tuple:
    """The values; raises what is wrong with them, repetitions included."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    errors = [*errors, *(f"{value!r} comes more than once" for value in repeated)]
    if not values:
        errors.append("give at least one")
    if errors:
        raise ValueError("; ".join(errors))
    return values


def _built_in(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    info.context["chosen"] += [BUILT_IN[name] for name in dict.fromkeys(names) if name in BUILT_IN]  # pyright: ignore[reportOptionalSubscript]
    unknown = [name for name in names if name not in BUILT_IN]
    errors = [f'no variant is called "{name}"{did_you_mean(name, BUILT_IN)}' for name in unknown]
    return _distinct(names, errors) if names else names


def _own(variant: Variant, info: ValidationInfo) -> Variant:
    info.context["chosen"].append(variant)  # pyright: ignore[reportOptionalSubscript]
    return variant


def _statistics(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [
        f'no statistic is called "{name}": give {STATISTICS}' for name in names if not is_statistic(name)
    ]
    return _distinct(names, unknown)


Lengths = Annotated[tuple[int, ...], AfterValidator(_rising)]
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    AfterValidator(_distinct),
    BeforeValidator(_seeds, json_schema_input_type=int | list[int]),
]


# The config


@dataclass(frozen=True)
class Settings:
    """What the config of every experiment says.

    Attributes:
        lengths: n, rising, at least 2.
        seeds: of what is drawn.
        title, claim: for the report; may be empty.
        measure: what is flipped and measured, and how.
        placement: in which batches, within which memory.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    lengths: Lengths
    seeds: Seeds = (0,)
    title: str = ""
    claim: str = ""
    measure: Measurement = field(default_factory=Measurement)
    placement: PlacementTable = field(default_factory=PlacementTable)


@dataclass(frozen=True)
class SweepTables(Settings):
    """The tables of a sweep's config, as they are written.

    Attributes:
        variants: names of built-in variants.
        statistics: what is told of the changes of a point's flips: "mean", "max", "min", "median", "qP" for the P %
            quantile; of decisions "average-sensitivity", "average-sensitivity-per-position", "minimum-sensitivity" and
            "maximum-sensitivity".
        model: the model; variants change some of its keys.
        inputs: the words that are measured.
        variant: variants of one's own.
    """

    variants: Annotated[tuple[str, ...], AfterValidator(_built_in)] = ()
    statistics: Annotated[tuple[str, ...], AfterValidator(_statistics)] = ("mean", "max")
    model: dict[str, Any] = field(default_factory=dict)
    inputs: InputsTable = field(default_factory=RandomWords)
    variant: tuple[Annotated[Variant, AfterValidator(_own)], ...] = ()


def config_class() -> type[SweepTables]:
    """Returns `SweepTables` with a field for each table that an installed package brings.

    Raises:
        InputError: if a table has a name that is taken.
    """
    files = ("points", "figures", *(Path(name).stem for name in REPORT_FILES))
    taken = {*field_names(SweepTables), *field_names(PointMetadata), *files}
    for name, entry in entries("sweep_tables").items():
        if name in taken or not name.isidentifier():
            raise InputError(
                f"{entry.value}: a table of a sweep cannot be called {name!r}: uninstall its package"
            )
    return _with_tables(tuple(entries("sweep_tables")))


@functools.cache
def _with_tables(names: tuple[str, ...]) -> type[SweepTables]:
    fields = [(name, Annotated[Any, checked_by(read_sweep_table)], None) for name in names]
    return make_dataclass("SweepTables", fields, bases=(SweepTables,), frozen=True)


def load_sweep_config(path: str | os.PathLike[str], allow_code: bool = False) -> Sweep:
    """Reads and checks a sweep's config. `allow_code` lets the functions that it names be imported and called.

    Raises:
        InputError: if the file cannot be read, is not TOML, or has errors: all of them, with their paths.
    """
    text, _ = read_toml(path)
    return parse_sweep_config(text, str(path), Path(path).parent, allow_code)


def parse_sweep_config(
    text: str, model: str = "config", folder: Path = Path(), allow_code: bool = False
) -> Sweep:
    """As `load_sweep_config`, from the text itself. Files that it names are looked for in `folder`."""
    raw, problems = parse_toml(text, model), Problems(model)
    others = {
        "bins": "python examples/generalisation.py",
        "words": "jaxsens theorem6",
        "language": "jaxsens train",
    }
    of = next((others[key] for key in others if key in raw), None)
    if of is not None and not {"variant", "variants"} & raw.keys():
        raise InputError.of(
            "CONFIG",
            model,
            f"a config of `{of}`, which trains models, and not of a sweep, which names variants; run `{of}` with it",
        )
    chosen: list[Variant] = []
    sound = read_fields(config_class(), raw, "", problems, chosen=chosen)
    tables = {name: sound[name] for name in entries("sweep_tables") if sound.get(name) is not None}
    chosen = at_stages(chosen, sound.get("model", {}), problems)
    lengths, measure = sound.get("lengths", ()), sound.get("measure")
    flips = None if measure is None else measure.flips
    code = functools.cache(partial(named_source, folder, lengths, sound.get("seeds", ()), flips))
    read = partial(read_source, folder=folder, code=code if allow_code else None)
    variants = _variants(chosen, sound.get("model", {}), read, problems)
    if not raw.get("variants") and not raw.get("variant"):
        remedy = f"name at least one of {', '.join(BUILT_IN)}, or add a [[variant]]"
        problems.add("variants", raw.get("variants"), remedy)
    if measure is not None and variants and "flips" not in raw.get("measure", {}):
        defaults = [one.source.flips for one in variants]
        if Substitute() not in defaults:  # 30,000 symbols at each position are more than anyone waits for
            sound["measure"] = measure = replace(measure, flips=defaults[0])
    for variant in variants:
        _check_lengths(variant, lengths, problems)
        check_variant(variant, lengths, measure, problems)
    check_estimates(measure, lengths, problems)
    _check_statistics(sound, problems)
    for table in tables.values():
        table.check({one.name: one.source for one in variants}, sound, problems)
    sampled = sampled_variants(variants, measure, lengths, problems)
    check_points(len(variants), lengths, sound.get("seeds", ()), problems)
    inputs = inputs_of(sound.get("inputs"), variants, lengths, folder, problems)
    problems.raise_if_any()
    made = {"variants": variants, "inputs": inputs, "placement": sound["placement"].placement()}
    made["tables"] = tables
    fields = {name: sound[name] for name in field_names(Sweep) if name in sound}
    return Sweep(**{**fields, **made}, text=text, sampled=sampled)


def check_variant(
    variant: SweepVariant, lengths: Sequence[int], measure: Measurement | None, problems: Problems
) -> None:
    """Notes what `check_measure` does of a variant."""
    source, where = variant.source, f'variant "{variant.name}"'
    unknown = source.network is None
    check_measure(where, source.output_size, lambda: source.example, lengths, measure, problems, unknown)


def _check_statistics(sound: Mapping[str, Any], problems: Problems) -> None:
    """Notes a statistic of decisions that the flips do not give, and a median of one input."""
    measure, inputs = sound.get("measure"), sound.get("inputs")
    if measure is None:
        return
    quantity, flips = measure.measure, measure.flips
    if quantity.threshold == MEDIAN and isinstance(inputs, RandomWords) and inputs.count < 2:
        problems.add("inputs.count", inputs.count, f'threshold = "{MEDIAN}" needs at least 2 inputs')
    sampled = flips.sample is not None or measure.sample_beyond is not None
    for name in sound.get("statistics", ()):
        if not quantity.indicator and name in OF_DECISIONS:
            remedy = 'it counts the flips that change the decision: give [measure] measure = "decision"'
            problems.add("statistics", name, remedy)
        elif sampled and name in EXTREMES:
            problems.add("statistics", name, "it needs every flip of an input: leave it out, or the sample")
        elif name == PER_POSITION and (flips.groups is not None or (sampled and not flips.of_alphabet)):
            remedy = "these flips do not say how many positions have any: leave it out, or groups and sample"
            problems.add("statistics", name, remedy)


def check_points(models: int, lengths: Sequence[int], seeds: Sequence[int], problems: Problems) -> None:
    """Notes that there are more points than a sweep can have, each a model at a length with a seed."""
    points = models * len(lengths) * len(seeds)
    if points > MOST_POINTS:
        problems.note(
            (),
            f"{models} models at {len(lengths)} lengths with {len(seeds)} seeds are {points} points: at most "
            f"{MOST_POINTS}; give fewer, or several configs with a directory each",
        )


def _variants(
    chosen: Sequence[Variant],
    base: Mapping[str, Any],
    read: Callable[[Mapping[str, Any], str, Problems], ModelSource | None],
    problems: Problems,
) -> tuple[SweepVariant, ...]:
    """Every variant with its model, which `read` reads. What is wrong with `[model]` itself is noted once, not once a
    variant."""
    base_problems = Problems()
    read(base, "model", base_problems)
    variants: dict[str, SweepVariant] = {}
    for variant in chosen:
        own = Problems()
        source = read(variant.table(base), "model", own)
        for one in own:
            problems.include([one], () if one in base_problems else ("variant", variant.name))
        if variant.name in variants:
            remedy = "this name is taken by another variant: leave one of the two out"
            problems.add("variant.name", variant.name, remedy)
        elif source is not None:
            check_label(variant, base, problems)
            variants[variant.name] = SweepVariant(variant.name, variant.line(), source)
    return tuple(variants.values())


def _check_lengths(variant: SweepVariant, lengths: tuple[int, ...], problems: Problems) -> None:
    """Notes the first length that a variant cannot read."""
    for n in lengths:
        own = Problems()
        if check_fits("lengths", n, n * TOKEN_BYTES, "an input of this length", "give shorter ones", own):
            variant.source.check_length(n, own)
        if own:
            for one in own:
                problems.note("lengths", f'variant "{variant.name}": {one}')
            break


def check_measure(
    where: str,
    output_size: int,
    build: Callable[[], Any],
    lengths: Sequence[int],
    measure: Measurement | None,
    problems: Problems,
    unknown: bool = False,
) -> None:
    """Notes a measure that a model's output does not have, flips that it or its inputs do not have, and an engine asked
    for by name that refuses it. The model is built if anything is asked that depends on it, or if its symbols are
    `unknown`."""
    if measure is None:
        return
    model = functools.cache(lambda: as_model(build()))
    if measure.measure.settings() or measure.measure.least_outputs > 1:
        try:
            measure.measure.resolved(None).check(output_size, model().outputs)
        except InputError as error:
            note_each("measure", where, error.problems, problems)
    for n in (0, *lengths) if unknown or measure.flips.drawing(None) != Substitute() else ():
        own = Problems()
        select(measure.flips, model(), np.zeros((0, n), np.int32), own)
        note_each("flips", where, own, problems)
        if own:  # at any length, or at the first of which it is
            break
    if not isinstance(measure.engine, Auto):
        try:
            choose(model(), measure.engine, measure.flips, measure.measure, next(iter(lengths), 2))
        except InputError as error:
            note_each("engine", where, error.problems, problems)


def note_each(name: str, where: str, new: Iterable[Problem], problems: Problems) -> None:
    """Adds what is wrong with an argument of `[measure]` for a model, which `where` names."""
    for one in new:
        if one.path[:1] == (name,):
            problems.add(("measure", *one.path), one.value, f"{where}: {one.remedy}")
        else:
            problems.note(("measure", name), f"{where}: {one}")


def inputs_of(
    table: Any, variants: Sequence[SweepVariant], lengths: tuple[int, ...], folder: Path, problems: Problems
) -> Any:
    """The inputs, which all variants read; None where they cannot be read.

    They are `SharedWords` if not all variants have an end-of-sequence symbol, or not in one place.
    """
    alphabets = {variant.name: variant.source.symbols for variant in variants}
    unknown = [name for name, symbols in alphabets.items() if not symbols.alphabet_size]
    if unknown:
        remedy = (
            "the models do not say their symbols, of which random words are: give flips = k for 0 .. k - 1"
        )
        problems.add("inputs", None, f'variant "{unknown[0]}": {remedy}')
        return None
    if len({symbols.alphabet_size for symbols in alphabets.values()}) > 1:
        listed = ", ".join(f"{name}: {symbols.alphabet_size} symbols" for name, symbols in alphabets.items())
        problems.note("variants", f"they read the same inputs and so need one alphabet, but {listed}")
    shared = len(set(alphabets.values())) > 1
    if shared and any(symbols.alone for symbols in alphabets.values()):
        problems.note(
            "variants", "they read the same inputs, but have tokenizers or special symbols of their own"
        )
        return None
    if isinstance(table, TextFile):
        return variants[0].source.texts(table, folder, lengths, problems) if variants else None
    if isinstance(table, RandomWords):
        table.check(lengths, problems)
    if isinstance(table, WordFile | AllWords):
        if not alphabets:
            return None
        symbols = next(iter(alphabets.values()))
        read = symbols.without_end() if shared else symbols
        if isinstance(table, AllWords):
            table.check(read, lengths, problems)
        else:
            table = read_words(table, folder, read, lengths, problems)
    return SharedWords(table) if shared and table is not None else table
