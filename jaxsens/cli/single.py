"""One measurement from the command line: its model, its input, what remains of a stopped one, and its summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxsens.core.base.errors import TOKEN_BYTES, InputError, Problems, check_fits
from jaxsens.core.base.strict import did_you_mean, field_names, read_table, read_toml
from jaxsens.core.base.text import print_text, printable
from jaxsens.core.choose import WIDE
from jaxsens.core.engines.request import default_flips
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.models.adapters import as_model
from jaxsens.core.results.measured import as_text, ceiling
from jaxsens.core.results.picture import in_context
from jaxsens.core.results.result import FlipSensitivity, MeasurementInterrupted
from jaxsens.core.sweeps.config import BUILT_IN, Variant, check_label, config_class
from jaxsens.core.sweeps.inputs import RandomWords
from jaxsens.core.sweeps.sources import ModelSource, changed, naming, read_source, source_kind

_QUANTILES = {f"q{100 * q:g}": q for q in (0.1, 0.5, 0.9, 0.99)}


def model_source(config: Path | None, variant: str | None, options: Mapping[str, Any]) -> ModelSource:
    """Returns the model of a config's `[model]` and `[[variant]]` tables; a sweep's config will do. Raises InputError,
    listing every problem.

    `variant`, a built-in one or one of the file's, changes `[model]` first. `options`, keys of a `[model]` table, come
    last and win. One that names a model, such as `formula`, replaces the model; only the keys that it has too are kept.
    Beside a checkpoint there is nothing to change.
    """
    raw = {} if config is None else read_toml(config, "--config")[1]
    problems = Problems("measure" if config is None else str(config))
    known_keys = field_names(config_class())
    for key in raw:
        if key not in known_keys:
            problems.note((key,), f"unknown key{did_you_mean(key, known_keys)}")
    for key, kind, remedy in (("model", dict, "a table, [model]"), ("variant", list, "tables, [[variant]]")):
        if not isinstance(raw.get(key, kind()), kind):
            problems.add(key, raw[key], remedy)
            problems.raise_if_any()
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
                problems.add("--variant", variant, f"leave it out; with {made} there is no {', '.join(lost)}")
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
    if the model was trained to predict the next symbol. Raises InputError for a word that cannot be read, or a length
    that the model cannot read.
    """
    problems, length = Problems("measure"), n or 0
    if word is None:
        size, remedy = length * count * TOKEN_BYTES, "give a smaller --n, or fewer --inputs"
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
    """Returns the result on all flips; with a `partial` one, that one and the flips that it lacks."""
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


@dataclass(frozen=True, eq=False)
class Summary:
    """The summary of a result: for a page its `title`; for a terminal, facts before and after how it was measured, by
    name, a table of the largest flips, and a remark, printed last; and the flips and `others` as JSON values."""

    result: FlipSensitivity
    title: str
    about: dict[str, str]
    statistics: dict[str, str]
    table: Table
    flips: list[dict[str, Any]]
    others: dict[str, Any]
    remark: str

    @property
    def values(self) -> dict[str, Any]:
        """All of it as JSON values.

        `top` lists the largest flips, the largest first and the first of equals first; -1 is the symbol of a deletion,
        and flips of groups have lists of positions and symbols. `estimate` says how good an estimate is; None if all
        flips were measured. `unresolved` counts the flips that the arithmetic does not resolve, and `at_most` has those
        statistics, with what they are at most, that their rounding may decide.
        """
        result = self.result
        return {
            "n": result.n,
            "flips": len(result),
            "population": result.population,
            "measure": result.measure.table(),
            "engine": {"name": result.engine.name, "reason": result.engine.reason},
            "dtype": result.dtype,
            "mean": result.mean,
            "max": result.max,
            "unresolved": result.unresolved,
            "at_most": at_most_of(result),
            "estimate": _estimate(result),
            "top": self.flips,
            "versions": result.run.versions,
            **self.others,
        }

    def print(self) -> None:
        """Prints it for people."""
        result, console, grid = self.result, Console(), Table.grid(padding=(0, 2))
        part = "" if result.exhaustive else f" of {result.population}"
        facts = {**self.about, "flips": f"{len(result)}{part}"}
        facts |= {"engine": f"{result.engine.name}: {result.engine.reason}", **self.statistics}
        if lost := result.unresolved:
            facts["not resolved"] = f"{lost} flips, whose changes are below the rounding of the arithmetic"
        facts |= {name.replace("_", " "): fact for name, fact in (_estimate(result) or {}).items()}
        for name, fact in facts.items():
            grid.add_row(name, Text(printable(fact)))
        console.print(grid, highlight=False, markup=False)
        if self.table.rows:
            console.print(self.table)
        if self.remark:
            print_text(console, self.remark)


def summary_of_words(result: FlipSensitivity, source: ModelSource, top: int) -> Summary:
    """Returns the summary of a model of this source on words, with its `top` largest flips.

    In the values, `symbols` are the names of the tokens 0, 1, 2 ..., and `training` is `source.training`.
    """
    names, training = source.names, source.training
    behind = "before" if result.asked.flips.copies else "replaces"  # an insertion leaves the symbol behind it
    table, flips = Table(title="Largest flips"), []
    for column in ("input", "position", "symbol", behind, "norm"):
        table.add_column(column, justify="right")
    for k, flip in _largest(result, top):
        word, norm = int(result.inputs[k]), float(result.norms[k])
        there = result.tokens[word, flip["position"]].tolist()
        flips.append({"input": word, **flip, behind: there, "norm": norm})
        cells = [_joined(flip["position"]), _joined(flip["symbol"], names), _joined(there, names)]
        table.add_row(str(word), *cells, as_text(norm, flip.get("at_most"), 6))
    rows = {f"mean {_sizes(result)}": "mean", **_QUANTILES, "max": "max"}
    wide = ", measured in float64" * (WIDE in result.engine.reason)
    statistics = {"model": f"{result.dtype}{wide}, on {result.run.versions['device']}"}
    statistics |= {name: _statistic(result, one) for name, one in rows.items()}
    at_most, average = at_most_of(result, _QUANTILES), None
    if result.measure.indicator:
        average, most = result.average_sensitivity, ceiling(result, lambda one: one.average_sensitivity)
        statistics["average sensitivity"] = as_text(average, most, 6)
        at_most |= {} if most is None else {"average_sensitivity": most}
    about = {}
    if training is not None:
        step, steps = training["step"], training["steps"]
        about["trained"] = f"{step} steps" if step == steps else f"incomplete: {step} of {steps} steps"
    about |= {"n": f"{result.n}", "inputs": f"{len(result.tokens)}"}
    values = {
        "inputs": len(result.tokens),
        "average_sensitivity": average,
        "at_most": at_most,
        "quantiles": {name: result.quantile(q) for name, q in _QUANTILES.items()},
        "model": source.expanded,
        "tokens": result.tokens.tolist(),
        "symbols": names,
        "training": training,
    }
    remark = ""
    if result.max == 0 and source.expanded.get("read") == "output":
        remark = "No flip changes the rounded output. --model read=before-rounding measures the value before rounding."
    return Summary(result, "Sensitivity by position", about, statistics, table, flips, values, remark)


def summary_of_text(result: FlipSensitivity, model: Any, text: str, top: int) -> Summary:
    """Returns the summary of a model on a text, with its `top` largest flips, each with its context.

    The model is a `LayeredModel` that encodes texts, with its `name`, `family` and `folder`, a `description`, and the
    `labels` of a classifier.
    """
    view, measure, tokens = result.view(), result.measure, result.tokens[0].tolist()
    # Light enough for a token's context to fit a terminal of 80 columns.
    table, flips = Table(title="Largest flips", box=box.SIMPLE_HEAD, padding=(0, 1)), []
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("in the text")
    table.add_column("before it" if result.asked.flips.copies else "replaced by")
    table.add_column("change" if measure.signed else measure.kind, justify="right", no_wrap=True)
    for k, flip in _largest(result, top):
        places = np.atleast_1d(flip["position"]).tolist()
        texts = [in_context(view.inputs[0].pieces, place) for place in places]
        before, token, after = texts[0][0], " ".join(word for _, word, _ in texts), texts[-1][2]
        replacement = " ".join(map(view.name, np.atleast_1d(flip["symbol"]).tolist()))
        value, exact = float(result.values[k]), bool(result.exact[k])
        own = {"before": before, "token": token, "after": after, "replacement": replacement}
        flips.append({**flip, **own, "value": value, "exact": exact})
        signed = measure.signed and "at_most" not in flip
        number = f"{value:+.4g}" if signed else as_text(value, flip.get("at_most"))
        before, token, after, replacement = map(printable, own.values())
        marked = Text.assemble(before, (f"«{token}»", "bold"), after)
        table.add_row(_joined(flip["position"]), marked, Text(replacement), "~" * (not exact) + number)
    place = view.position_read(0)
    read = "the mean over positions" if place is None else f"position {place}, {view.name(tokens[place])!r}"
    about = {
        "model": f"{model.description} in {result.dtype}",
        "tokens": f"{result.n}",
        "read at": read,
        "measured": f"{measure.symbol}, {measure.unit}",
    }
    if model.labels:
        from jaxsens.pretrained.model import scores_of

        scores = zip(model.labels, jax.nn.softmax(scores_of(model, tokens, result.readout)), strict=True)
        about["labels"] = ", ".join(f"{name} {score:.2g}" for name, score in scores)
    rows = {f"{name} {_sizes(result)}": one for name, one in (("mean", "mean"), ("largest", "max"))}
    statistics = {name: _statistic(result, one) for name, one in rows.items()}
    values = {
        "readout": result.readout,
        "text": text,
        "tokens": tokens,
        "pieces": model.tokens(tokens),
        "model": {"folder": str(model.folder), "family": model.family},
    }
    remark = "" if all(flip["exact"] for flip in flips) else "~ estimated to first order, not measured"
    title = f"Sensitivity by token: {model.name} ({model.family})"
    return Summary(result, title, about, statistics, table, flips, values, remark)


def at_most_of(result: FlipSensitivity, quantiles: Mapping[str, float] | None = None) -> dict[str, float]:
    """Returns what the mean, the largest and quantiles are at most: those that rounding may move by over 1 %."""
    statistics = {"mean": "mean", "max": "max", **(quantiles or {})}
    limits = {name: result.at_most(statistic) for name, statistic in statistics.items()}
    return {name: most for name, most in limits.items() if most is not None}


def _estimate(result: FlipSensitivity) -> dict[str, str] | None:
    """What is said of how good an estimate is, by keys of JSON; None if all flips were measured."""
    if result.accuracy is None:
        return None
    return {
        "mean_over_all_flips": result.mean_interval().text(6),
        "accuracy": str(result.accuracy),
        "not_measured": f"{int((~result.exact).sum())} flips; {result.accuracy.exceeding_told}",
    }


def _statistic(result: FlipSensitivity, statistic: Any) -> str:
    value = result.quantile(statistic) if isinstance(statistic, float) else getattr(result, statistic)
    return as_text(value, result.at_most(statistic), 6)


def _sizes(result: FlipSensitivity) -> str:
    return "size of change" if result.measure.signed else result.measure.kind


def _largest(result: FlipSensitivity, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The largest flips: their numbers, positions and symbols (of a group, lists of all of them), and limits."""
    for k in map(int, np.argsort(-result.norms, kind="stable")[:count]):
        flip: dict[str, Any] = {"position": int(result.positions[k]), "symbol": int(result.symbols[k])}
        if result.asked.flips.groups is not None:
            both = result.flips.part(slice(k, k + 1)).groups()
            flip = {"position": list(both["positions"][0]), "symbol": list(both["symbols"][0])}
        if not result.resolved[k]:
            flip["at_most"] = float(result.norms[k] + result.resolution[k])
        yield k, flip


def _joined(numbers: int | list[int], names: Sequence[str] = ()) -> Text:
    """The numbers, or what has these names by number, with blanks between; -1 is the symbol of a deletion."""
    if numbers == -1:
        return Text("(deleted)")
    parts: list[int] = np.atleast_1d(numbers).tolist()
    return Text(printable(" ".join(names[one] if one < len(names) else f"{one}" for one in parts)))
