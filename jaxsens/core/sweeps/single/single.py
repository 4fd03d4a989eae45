"""One measurement from the command line: its model, its input, and what remains of a stopped one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import TOKEN_BYTES, InputError, Problems, check_fits
from jaxsens.core.base.strict import did_you_mean, field_names, read_table, read_toml
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.flips.selection import default_flips
from jaxsens.core.models.adapters import as_model
from jaxsens.core.results.interrupted import MeasurementInterrupted
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.config import BUILT_IN, Variant, check_label, config_class
from jaxsens.core.sweeps.inputs import RandomWords
from jaxsens.core.sweeps.sources import ModelSource, changed, naming, read_source, source_kind


def model_source(config: Path | None, variant: str | None, options: Mapping[str, Any]) -> ModelSource:
    """The model that `jaxsens measure` is asked for.

    Args:
        config: a TOML file whose `[model]` and `[[variant]]` tables are used; a sweep's config will do.
        variant: a built-in variant or one of the file's; changes `[model]` first.
        options: keys of a `[model]` table that come last and win. One that names a model, such as `formula`, replaces
            the model; only the keys that it has too are kept. Beside a checkpoint there is nothing to change.

    Raises:
        InputError: listing every problem.
    """
    raw = {} if config is None else read_toml(config, "--config")[1]
    problems = Problems("measure" if config is None else str(config))
    known_keys = field_names(config_class())
    for key in raw:
        if key not in known_keys:
            problems.note((key,), f"unknown key{did_you_mean(key, known_keys)}")
    table = raw.get("model", {})
    made = next((key for key in naming() if key in options), None)
    fixed = "" if made is None else source_kind(made).fixed
    folder = Path() if config is None or made is not None else config.parent
    if variant is not None:
        variants = dict(BUILT_IN)
        for k, own in enumerate(raw.get("variant", [])):
            read = read_table(Variant, own, f"variant[{k}]", problems)
            variants |= {} if read is None else {read.name: read}
        if variant in variants:
            check_label(variants[variant], table, problems)
            table = variants[variant].table(table)
            lost = sorted(variants[variant].table({}).keys() - changed(table, options).keys())
            if lost and made is not None and not fixed:
                problems.add(
                    "--variant", variant, f"leave it out; with --{made} there is no {', '.join(lost)}"
                )
        else:
            problems.add("--variant", variant, f"no variant of this name{did_you_mean(variant, variants)}")
    if fixed:
        for name, value in (("--config", None if config is None else str(config)), ("--variant", variant)):
            if value is not None:
                problems.add(name, value, f"leave it out; {fixed}")
    source = read_source(changed(table, options), "model", problems, folder)
    problems.raise_if_any()
    if source is None:
        raise InputError.note("model", "cannot be used")
    return source


def input_tokens(
    source: ModelSource, word: str | None, n: int | None, count: int, seed: int
) -> Int[np.ndarray, "count n"]:
    """The inputs: a word as text, or `count` random ones of length n, those of a sweep's point of this n and seed.

    A word is its symbols' names, one a character or between blanks or commas. The symbols of a network with random
    weights are called 0, 1, 2 ... The end-of-sequence symbol is added after the word if the model has one, or in front
    if the model was trained to predict the next symbol.

    Raises:
        InputError: for a word that cannot be read, or a length that the model cannot read.
    """
    problems = Problems("measure")
    if word is None:
        length, remedy = n or 0, "give a smaller --n, or fewer --inputs"
        size = length * count * TOKEN_BYTES
        if check_fits("--n", n, size, f"a set of {count} such inputs", remedy, problems):
            source.check_length(length, problems)
        problems.raise_if_any()
        return RandomWords(count).tokens(source.symbols, length, seed)
    names = source.names
    parts = list(word.strip())
    if not all(part in names for part in parts):
        parts = word.replace(",", " ").split()
    if not parts or not all(part in names for part in parts):
        listed = ", ".join(names) if len(names) <= 10 else f"{names[0]} to {names[-1]}"
        problems.add("--tokens", word, f"symbols ({listed}), one a character or with blanks between")
    problems.raise_if_any()
    return source.symbols.with_end(np.array([[names.index(part) for part in parts]], dtype=np.int64))


def measured(
    model: Any, tokens: Any, arguments: dict[str, Any], partial: FlipSensitivity | None
) -> FlipSensitivity:
    """Returns the result on all flips; with the `partial` one of --resume, that one and the flips that it lacks."""
    if partial is None:
        return flip_sensitivity(model, tokens, **arguments)
    flips, began = arguments.pop("flips", None) or default_flips(as_model(model)), partial.asked.flips
    if flips != began:
        remedy = f"this call has {flips!r}; repeat the interrupted call"
        raise InputError.of("remaining.flips", began, remedy, subject="flip_sensitivity")
    try:
        return partial.joined(flip_sensitivity(model, tokens, partial.remaining, **arguments))
    except MeasurementInterrupted as stop:
        raise MeasurementInterrupted(partial.joined(stop.partial), stop.signal) from None
