"""One measurement from the command line: a model table, an input, and what is said of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.asked.measures import Decision
from jaxsens.base.errors import InputError, Problems
from jaxsens.base.memory import TOKEN_BYTES, check_fits
from jaxsens.base.strict import did_you_mean, read_table, read_toml
from jaxsens.experiments.sweep.config import BUILT_IN, TABLES, Variant, check_label
from jaxsens.experiments.sweep.sources import ModelSource, changed, keys_of, read_source
from jaxsens.experiments.sweep.words import RandomWords
from jaxsens.sensitivity.results.at_most import ceiling
from jaxsens.sensitivity.results.result import FlipSensitivity

_QUANTILES = (0.1, 0.5, 0.9, 0.99)
_MADE = ("formula", "construction", "checkpoint")
_ONLY_CONSTRUCTED = ("alphabet", "condition", "read", "autoregressive")
_AS_TRAINED = "a checkpoint is as it was trained"


def model_source(config: Path | None, variant: str | None, options: Mapping[str, Any]) -> ModelSource:
    """The model that `jaxsens measure` is asked for.

    Args:
        config: a TOML file whose `[model]` and `[[variant]]` tables are used; a sweep's config will do.
        variant: a built-in variant or one of the file's; changes `[model]` first.
        options: keys of a `[model]` table that come last and win. A formula, a construction or a checkpoint among them
            replaces the model; only the keys that it has too are kept. Beside a checkpoint there is nothing to change.

    Raises:
        InputError: listing every problem.
    """
    raw = {} if config is None else read_toml(config, "--config")[1]
    problems = Problems("measure" if config is None else str(config))
    for key in raw:
        if key not in TABLES:
            problems.messages.append(f"{key}: unknown key{did_you_mean(key, TABLES)}")
    table = raw.get("model", {})
    folder = Path() if config is None or "checkpoint" in options else config.parent
    if variant is not None:
        known = dict(BUILT_IN)
        for k, own in enumerate(raw.get("variant", [])):
            read = read_table(Variant, own, f"variant[{k}]", problems)
            known |= {} if read is None else {read.name: read}
        if variant in known:
            check_label(known[variant], table, problems)
            table = known[variant].table(table)
            lost = sorted(known[variant].table({}).keys() - changed(table, options).keys())
            if lost and "checkpoint" not in options:
                made = next(_option(key) for key in _MADE if key in options)
                problems.add("--variant", variant, f"leave it out; with {made} there is no {', '.join(lost)}")
        else:
            problems.add("--variant", variant, f"no variant of this name{did_you_mean(variant, known)}")
    if "checkpoint" in options:
        for name, value in (("--config", None if config is None else str(config)), ("--variant", variant)):
            if value is not None:
                problems.add(name, value, f"leave it out; {_AS_TRAINED}")
    source = read_source(_with_options(table, options, problems), "model", problems, folder)
    problems.raise_if_any()
    if source is None:
        raise InputError("model: cannot be used")
    return source


def _with_options(table: Mapping[str, Any], options: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """The `[model]` table with options of the command line, without those that its kind of model does not have."""
    wanted = changed(table, options)
    known = keys_of(wanted)
    kinds = [key for key in _MADE if key in wanted]
    if len(kinds) > 1:
        return wanted
    for name in [name for name in options if name not in known]:
        if kinds:
            has = ", ".join(_option(key) for key in sorted(known - {*kinds}))
            why = f"what goes with {_option(kinds[0])} is {has}" if has else _AS_TRAINED
            problems.add(_option(name), options[name], f"leave it out; {why}")
        elif name in _ONLY_CONSTRUCTED:
            needed = "--formula" if name == "alphabet" else "--formula or --construction"
            problems.add(
                _option(name), options[name], f"give it with {needed}; random weights have no such choice"
            )
        else:
            continue
        del wanted[name]
    return wanted


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


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
        known = ", ".join(names) if len(names) <= 10 else f"{names[0]} to {names[-1]}"
        problems.add("--tokens", word, f"symbols ({known}), one a character or with blanks between")
    problems.raise_if_any()
    return source.symbols.with_end(np.array([[names.index(part) for part in parts]], dtype=np.int64))


def summarise(result: FlipSensitivity, source: ModelSource, top: int) -> dict[str, Any]:
    """What is said of a result, as JSON values.

    `top` lists its largest flips, the largest first, and the first of equals first; -1 is the symbol of a deletion, and
    flips of groups have lists of positions and symbols. `symbols` are the names of the
    tokens 0, 1, 2 ... `training` is `source.training`. `estimate` says how good an estimate is; None if all flips were
    measured. `unresolved` counts the flips that the arithmetic does not resolve, and `at_most` has those statistics,
    with what they are at most, that their rounding may decide.
    """
    largest = np.argsort(-result.norms, kind="stable")[:top]
    behind = "before" if result.asked.flips.copies else "replaces"  # an insertion leaves the symbol behind it
    average = result.average_sensitivity if isinstance(result.measure, Decision) else None
    blurred, resolved = at_most_of(result, _QUANTILES), result.resolved
    if average is not None and (most := ceiling(result, lambda one: one.average_sensitivity)) is not None:
        blurred["average_sensitivity"] = most
    return {
        "n": result.n,
        "inputs": len(result.tokens),
        "flips": len(result),
        "population": result.population,
        "measure": result.measure.table(),
        "engine": {"name": result.engine.name, "reason": result.engine.reason},
        "dtype": result.dtype,
        "mean": result.mean,
        "max": result.max,
        "average_sensitivity": average,
        "unresolved": result.unresolved,
        "at_most": blurred,
        "estimate": estimate_facts(result),
        "quantiles": {f"q{100 * q:g}": result.quantile(q) for q in _QUANTILES},
        "top": [
            {
                "input": int(result.inputs[k]),
                "position": position,
                "symbol": symbol,
                behind: result.tokens[result.inputs[k], position].tolist(),
                "norm": float(result.norms[k]),
                **({} if resolved[k] else {"at_most": float(result.norms[k] + result.resolution[k])}),
            }
            for k in largest
            for position, symbol in [place_and_symbol(result, int(k))]
        ],
        "model": source.expanded,
        "tokens": result.tokens.tolist(),
        "versions": result.run.versions,
        "symbols": source.names,
        "training": source.training,
    }


def at_most_of(result: FlipSensitivity, quantiles: Sequence[float] = ()) -> dict[str, float]:
    """Returns what the mean, the largest and quantiles are at most: those that rounding may move by over 1 %."""
    asked = {"mean": "mean", "max": "max", **{f"q{100 * q:g}": q for q in quantiles}}
    found = {name: result.at_most(statistic) for name, statistic in asked.items()}
    return {name: most for name, most in found.items() if most is not None}


def unresolved_facts(flips: int) -> dict[str, str]:
    """Returns how many flips the arithmetic does not resolve, for a list of facts; nothing if it resolves all."""
    if not flips:
        return {}
    return {"not resolved": f"{flips} flips, whose changes are below the rounding of the arithmetic"}


def place_and_symbol(result: FlipSensitivity, k: int) -> tuple[int, int] | tuple[list[int], list[int]]:
    """Returns the position of flip k and the symbol that it inserts; for a group, lists of all of them."""
    joint, insertion = result.flips.joint, result.flips.insertion
    if joint is None or insertion is None:
        return int(result.positions[k]), int(result.symbols[k])
    both = joint.columns(result.positions[k : k + 1], insertion[k : k + 1])
    return list(both["positions"][0]), list(both["symbols"][0])


def estimate_facts(result: FlipSensitivity) -> dict[str, str] | None:
    """What is said of how good an estimate is, by keys of JSON; None if all flips were measured."""
    if result.accuracy is None:
        return None
    return {
        "mean_over_all_flips": result.mean_interval().told(6),
        "accuracy": str(result.accuracy),
        "not_measured": f"{int((~result.exact).sum())} flips; {result.accuracy.exceeding_told}",
    }
