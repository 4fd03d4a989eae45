"""Measures a file of texts: reads it, goes on where it was stopped, and tells the result as tables."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import atomic_path, write_text
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.request import Request
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.models.adapters import Model, as_inputs, as_model
from jaxsens.core.models.texts import pieces_of
from jaxsens.core.results.pictures.view import ResultView
from jaxsens.core.results.request import fingerprint
from jaxsens.core.results.result import FlipSensitivity, load_with_metadata
from jaxsens.core.sweeps.jobs.job import write_table as write_csv
from jaxsens.core.sweeps.single import scores_of
from jaxsens.pretrained.corpus_table import CorpusRow, common, corpus_table
from jaxsens.pretrained.model import PretrainedModel
from jaxsens.pretrained.texts import LabelledText

LEAST = 3
"""The number of texts that a token is in at least to be among those that are printed and drawn."""


def encoded_texts(model: PretrainedModel, texts: list[LabelledText], problems: Problems) -> list[list[int]]:
    """Returns the ids of every text; adds an error for each that the model does not read."""
    found = []
    for one in texts:
        try:
            found.append(model.encode(one.text))
        except InputError as error:
            for each in error.problems:
                problems.note("--texts", f"line {one.line}: {each}")
    return found


def check_flips(
    model: PretrainedModel,
    texts: list[LabelledText],
    words: list[list[int]],
    arguments: Mapping[str, Any],
    problems: Problems,
) -> None:
    """Adds an error for each text of which nothing is flipped, and those of what is to be flipped."""
    subject = as_model(model)
    request = Request(**{name: arguments[name] for name in vars(Request()) if name in arguments})
    for n in sorted({len(word) for word in words}):
        own, of_length = Problems(), [k for k, word in enumerate(words) if len(word) == n]
        given = [words[k] for k in of_length]
        _, selection, *_ = request.validated(subject, as_inputs(subject, given, own), own)
        for row, k in enumerate(of_length if not own else ()):
            if not selection.candidates.counts[row].any():
                why = "nothing to flip beside special, unknown and read symbols; remove it"
                problems.note("--texts", f"line {texts[k].line}: text = {texts[k].text!r}: {why}")
        problems.include(own)


def measured_corpus(
    model: PretrainedModel,
    texts: list[LabelledText],
    words: list[list[int]],
    arguments: Mapping[str, Any],
    save: Path | None,
    told: Callable[[int, int], object],
) -> list[FlipSensitivity]:
    """Returns the results of all texts, in their order. Texts of one length are measured together.

    The result of each length n is kept in `save/n=N.parquet`; a folder of the same texts and options is gone on from.

    Raises:
        InputError: if a file there is that of another measurement.
    """
    found: dict[int, FlipSensitivity] = {}
    asked = [f"{name}={value!r}" for name, value in sorted(arguments.items()) if name != "placement"]
    subject = as_model(model)
    for n in sorted({len(word) for word in words}):
        told(len(found), len(words))
        own = [k for k, word in enumerate(words) if len(word) == n]
        ids, path = [words[k] for k in own], None if save is None else save / f"n={n}.parquet"
        given = [texts[k].text for k in own]
        digest = "" if path is None else _digest(subject, n, [*asked, model.layered.output, ids, given])
        if path is not None and path.is_file():
            result, kept = load_with_metadata(path)
            if kept.get("corpus") != digest:
                raise InputError.of(
                    "--save",
                    str(save),
                    f"n={n}.parquet is of other texts or options; remove it, or give another folder",
                    subject="corpus",
                )
        else:
            result = flip_sensitivity(model, ids, progress=False, **arguments)
            pieces = pieces_of(model, given, result.tokens)
            result = dataclasses.replace(result, pieces=pieces)
            if path is not None:
                result.save(path, corpus=digest)
        found |= {k: result.of_input(row) for row, k in enumerate(own)}
    told(len(found), len(words))
    return [found[k] for k in range(len(words))]


def _digest(model: Model, n: int, asked: list[Any]) -> str:
    """Returns the SHA-256 of a model's function on inputs of length n, its parameters, and what is asked."""
    with numerics(model.dtype):
        return hashlib.sha256(json.dumps([*asked, fingerprint(model, n)]).encode()).hexdigest()


def view_of(results: Sequence[FlipSensitivity]) -> ResultView:
    """Returns the results of texts as one picture shows them."""
    views = [one.view() for one in results]
    by, counted = {one.flipped_by for one in views}, ("flips", "population", "exact", "unresolved")
    counts: dict[str, Any] = {name: sum(getattr(one, name) for one in views) for name in counted}
    return dataclasses.replace(
        views[0],
        inputs=[one for view in views for one in view.inputs],
        names={symbol: name for view in views for symbol, name in (view.names or {}).items()},
        **counts,
        engine=", ".join(dict.fromkeys(one.engine for one in views)),
        flipped_by=by.pop() if len(by) == 1 else "",
    )


def labels_of(
    model: PretrainedModel, texts: list[LabelledText], results: Sequence[FlipSensitivity]
) -> list[str]:
    """Returns the label of each text: the file's, or the classifier's where the file has none."""
    found = [one.label for one in texts]
    for k, (label, one) in enumerate(zip(found, results, strict=True)):
        if not label and model.labels:
            found[k] = model.labels[int(np.argmax(scores_of(model, one.tokens[0], one.readout)))]
    return found


def tables_of(results: Sequence[FlipSensitivity], labels: list[str]) -> list[list[CorpusRow]]:
    """Returns the tables by position, by token and, if there are labels, by label."""
    tables = [corpus_table(results, "position"), corpus_table(results, "token")]
    return [*tables, corpus_table(results, "label", labels)] if any(labels) else tables


def printed(table: list[CorpusRow], top: int) -> Table:
    """Returns a table for a terminal, with the columns of `write_table`: all positions and labels, and the `top` tokens
    that are in several texts."""
    by = table[0].by if table else "token"
    frequent = common(table, LEAST) if by == "token" else table
    rare, more = len(table) - len(frequent), len(frequent[top:]) if by == "token" else 0
    hidden = [f"{rare} in fewer than {LEAST} texts"] * (rare > 0) + [f"{more} with smaller means"] * (
        more > 0
    )
    caption = f"not listed: {' and '.join(hidden)}" if hidden else None
    shown = Table(title=f"By {by}", caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    _, *columns = (field.name for field in fields(CorpusRow))
    for column in columns:
        shown.add_column(column, justify="left" if column == "key" else "right")
    for row in frequent[: len(frequent) - more]:
        values = (getattr(row, column) for column in columns)
        shown.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in values))
    return shown


def write_table(tables: list[list[CorpusRow]], path: Path) -> None:
    """Writes all rows to a .csv, .json or .parquet file, atomically."""
    rows = [asdict(row) for table in tables for row in table]
    match path.suffix:
        case ".csv":
            write_csv(path, [field.name for field in fields(CorpusRow)], rows, missing="nan")
        case ".json":
            told = [{**row, "error": None if row["texts"] < 2 else row["error"]} for row in rows]
            write_text(path, json.dumps(told, indent=1))
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            with atomic_path(path) as temporary:
                pq.write_table(pa.Table.from_pylist(rows), temporary)
        case other:
            raise InputError(f"corpus: --table: .csv, .json or .parquet, not {other!r}")
