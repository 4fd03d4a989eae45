"""Reads a file of texts, measures them and goes on where it was stopped; results on many texts, by token, by position
and by label, as tables and as a picture.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import lines_of, read_text_within
from jaxsens.core.base.inputs import UNPAIRED, is_unicode
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.strict import typed_arguments
from jaxsens.core.base.text import printable
from jaxsens.core.engines.request import Request
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.models.adapters import Model, as_inputs, as_model, pieces_of
from jaxsens.core.results.measured import fingerprint
from jaxsens.core.results.picture import ResultView
from jaxsens.core.results.plot import LARGEST, families, safe_label
from jaxsens.core.results.result import FlipSensitivity, load_with_metadata
from jaxsens.core.sweeps.job import write_table as write_csv
from jaxsens.pretrained.folder import each_key_once
from jaxsens.pretrained.model import PretrainedModel, scores_of

By = Literal["token", "position", "label"]
PARTS = 10
"""Positions are counted in tenths of the input: inputs of a corpus have different lengths."""

COLUMNS = ("positions", "norms", "resolved")
"""The columns of a result that a table is made of."""


@dataclass(frozen=True)
class CorpusRow:
    """What the flips of a corpus do at one token, in one part of the inputs, or in the inputs of one label.

    Attributes:
        by, key: "token", "position" or "label"; the token, the part, such as "0.2-0.3" of the length, or the label.
        texts, places: the numbers of inputs with such flips, and of flipped positions.
        mean: the mean size of a change over the inputs, each with the mean of its own flips; in the measure's units.
        error: the standard error of that mean, from the spread between inputs; NaN for a single one.
        largest: the largest size of a change.
        text, position: where that is: the number of the input, and the position in it.
        unresolved: how many of the flips the arithmetic does not resolve.

    >>> [(row.key, row.mean, row.error) for row in jaxsens.corpus_table(results, "token")]  # doctest: +SKIP
    """

    by: By
    key: str
    texts: int
    places: int
    mean: float
    error: float
    largest: float
    text: int
    position: int
    unresolved: int


@typed_arguments
def corpus_table(
    results: Sequence[FlipSensitivity], by: By = "token", labels: Sequence[str] | None = None
) -> list[CorpusRow]:
    """Returns what the flips of many inputs do by token, position or label, the largest mean first.

    Each input counts once in a mean, and standard errors are those between inputs. Positions and labels are in order.

    Args:
        results: those of `flip_sensitivity` on a list of texts, or of several calls. Inputs are numbered through.
        by: what rows are made for.
        labels: the label of each input, for "label".

    Raises:
        InputError: for results of other measures or models, flips of groups, which have no single token, and labels
            that are not one for each input.

    >>> corpus_table(results, by="position")[0].mean  # doctest: +SKIP
    """
    with collecting("corpus_table") as problems:
        inputs.choice("by", by, ("token", "position", "label"), problems)
        _check_alike(results, problems)
        count = sum(len(one.tokens) for one in results)
        wrong = labels is None or len(labels) != count or not all(isinstance(one, str) for one in labels)
        if by == "label" and wrong:
            problems.add("labels", labels, f"a list of {count} texts, the label of each input")
    starts = np.cumsum([0, *(len(one.tokens) for one in results)])
    owners = np.concatenate([one.inputs + start for one, start in zip(results, starts, strict=False)])
    columns = [np.concatenate([getattr(one, name) for one in results]) for name in COLUMNS]
    if by == "label":
        names = np.array(labels, object)[owners].astype(str)
    else:
        names = np.concatenate([_names(one, by) for one in results])
    keys, number = np.unique(names, return_inverse=True)
    rows = [
        _row(by, str(key), *(column[number == k] for column in (owners, *columns)))
        for k, key in enumerate(keys)
    ]
    return sorted(rows, key=lambda row: -row.mean) if by == "token" else rows


def _check_alike(results: Sequence[FlipSensitivity], problems: Problems) -> None:
    """Adds the errors of results that cannot be in one table."""
    if not len(results):
        problems.add("results", results, "at least one result of flip_sensitivity")
    for k, one in enumerate(results):
        first = results[0].asked
        if one.asked.flips.groups is not None:
            why = "flips of single positions; those of groups have no single token"
            problems.add(f"results[{k}]", one, why)
        own, common = (asked.measure.without_function("") for asked in (one.asked, first))
        if own != common or one.asked.measure.program != first.measure.program:
            remedy = f"that of results[0] is {first.measure!r}; measure them alike"
            problems.add(f"results[{k}]: measure", one.measure, remedy)
        if one.asked.weights != first.weights:
            why = "results[0] has other weights; one model a table"
            problems.add(f"results[{k}]: model", one.run.model, why)


def _names(result: FlipSensitivity, by: By) -> np.ndarray:
    """Returns the key of every flip, by token or position."""
    if by == "token":
        ids, known = result.tokens[result.inputs, result.positions], result.names or {}
        return np.array([known.get(int(one), str(one)) for one in ids], dtype=str)
    part = PARTS * result.positions // result.n
    return np.array([f"{k / PARTS:.1f}-{(k + 1) / PARTS:.1f}" for k in range(PARTS)])[part]


def _row(
    by: By, key: str, owners: np.ndarray, positions: np.ndarray, sizes: np.ndarray, resolved: np.ndarray
) -> CorpusRow:
    texts, number = np.unique(owners, return_inverse=True)
    means = np.bincount(number, sizes) / np.bincount(number)
    first = int(np.argmax(sizes))
    places = np.unique(np.stack([owners, positions]), axis=1).shape[1]
    error = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
    largest = float(sizes[first]), int(owners[first]), int(positions[first])
    unresolved = int((~resolved).sum())
    return CorpusRow(by, key, len(texts), places, float(means.mean()), error, *largest, unresolved)


def common(rows: Iterable[CorpusRow], least: int) -> list[CorpusRow]:
    """Returns the rows of keys in at least so many inputs: rarer ones say little."""
    return [row for row in rows if row.texts >= least]


MOST = 20
"""The number of tokens, and of labels, that a picture has room for."""


def corpus_picture(
    tables: Sequence[Sequence[CorpusRow]], title: str, unit: str, form: Literal["png", "svg"]
) -> bytes:
    """Returns the picture of tables by position, token and label; empty ones are left out."""
    from matplotlib import pyplot

    shown = [table[:MOST] if table[0].by != "position" else table for table in tables if table]
    tall = max(len(table) for table in shown)
    size = (4.6 * len(shown), 1.6 + 0.24 * max(tall, 8))
    figure, axes = pyplot.subplots(1, len(shown), figsize=size, layout="constrained", squeeze=False)
    headings = {"position": "by part of the text", "token": "by token", "label": "by label"}
    for table, one in zip(shown, axes[0], strict=True):
        # Bars from above to below, with standard errors, and the number of texts behind each.
        places = np.arange(len(table))
        errors = [0.0 if np.isnan(row.error) else row.error for row in table]
        one.barh(places, [row.mean for row in table], xerr=errors, color=LARGEST, ecolor="#404040", capsize=2)
        texts = [f"{safe_label(row.key)}  ({row.texts})" for row in table]
        one.set_yticks(places, texts, fontfamily=families(texts))
        one.invert_yaxis()
        one.set_xlim(left=0)
        one.set_title(f"{headings[table[0].by]} (texts)")
        one.set_xlabel(f"mean size of change {unit}")
    figure.suptitle(printable(title), parse_math=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=200)
    pyplot.close(figure)
    return buffer.getvalue()


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
            try:
                result, kept = load_with_metadata(path)
            except InputError as error:
                remedy = f"n={n}.parquet is of no use: remove it, or give another folder ({error})"
                raise InputError.of("--save", str(save), remedy, subject="corpus") from error
            if kept.get("corpus") != digest:
                remedy = f"n={n}.parquet is of other texts or options; remove it, or give another folder"
                raise InputError.of("--save", str(save), remedy, subject="corpus")
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
    hidden = [f"{rare} in fewer than {LEAST} texts"] * (rare > 0)
    hidden += [f"{more} with smaller means"] * (more > 0)
    caption = f"not listed: {' and '.join(hidden)}" if hidden else None
    shown = Table(title=f"By {by}", caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    _, *columns = (field.name for field in fields(CorpusRow))
    for column in columns:
        shown.add_column(column, justify="left" if column == "key" else "right")
    for row in frequent[: len(frequent) - more]:
        values = (getattr(row, column) for column in columns)
        texts = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in values)
        shown.add_row(*(Text(printable(text)) for text in texts))
    return shown


def write_table(tables: list[list[CorpusRow]], path: Path) -> None:
    """Writes all rows to a .csv file, atomically."""
    rows = [asdict(row) for table in tables for row in table]
    write_csv(path, [field.name for field in fields(CorpusRow)], rows, missing="nan")


ENDINGS = (".txt", ".csv", ".tsv", ".jsonl")

_MOST_BYTES = 2**28
_SHOWN = 20


@dataclass(frozen=True)
class LabelledText:
    """A text as it stands in a file, its label (empty for none), and the 1-based number of its first line."""

    text: str
    label: str = ""
    line: int = 0


def read_texts(argument: str, path: Path, problems: Problems) -> list[LabelledText]:
    """Returns the texts of a file, each as it stands there; adds an error for each line that cannot be read so.

    A .txt file has one a line; .csv and .tsv a header with the columns text and, if there are labels, label, and quotes
    by the rules of `csv`; .jsonl an object with these keys a line. Lines end at line feeds and carriage returns only.
    Lines of blanks are left out.
    """
    own = Problems()
    try:
        found = list(_entries(path.suffix.lower(), read_text_within(path, _MOST_BYTES), own))
    except (OSError, ValueError) as error:
        problems.add(argument, str(path), f"a readable UTF-8 file of texts ({error})")
        return []
    for one in found:
        if not is_unicode(one.text + one.label):
            own.note((), f"line {one.line}: {UNPAIRED}")
    problems.include(own[:_SHOWN], argument)
    if len(own) > _SHOWN:
        problems.note(argument, f"{len(own) - _SHOWN} more errors")
    if not own and not found:
        problems.add(argument, str(path), "it has no text")
    return found


def _entries(ending: str, text: str, problems: Problems) -> Iterator[LabelledText]:
    lines = ((number, line) for number, line in enumerate(lines_of(text), 1) if line.strip())
    match ending:
        case ".txt":
            yield from (LabelledText(line, "", number) for number, line in lines)
        case ".csv" | ".tsv":
            longest = csv.field_size_limit(len(text) + 1)
            try:
                yield from _rows(text, "," if ending == ".csv" else "\t", problems)
            finally:
                csv.field_size_limit(longest)
        case ".jsonl":
            for number, line in lines:
                try:
                    found = json.loads(line, object_pairs_hook=each_key_once)
                except (ValueError, RecursionError):
                    found = None
                found = found if isinstance(found, dict) else {}
                own, label = found.get("text"), found.get("label")
                known = label is None or isinstance(label, str | int | float)
                if isinstance(own, str) and own.strip() and known:  # a label may be a number
                    label = json.dumps(label) if isinstance(label, int | float) else label or ""
                    yield LabelledText(own, label.strip(), number)
                else:
                    why = "an object with the text under text, and its label, a text or a number, under label"
                    problems.note((), f"line {number}: {why}")
        case _:
            problems.note((), f"a file that ends with {', '.join(ENDINGS)}, not {ending!r}")


def _rows(text: str, delimiter: str, problems: Problems) -> Iterator[LabelledText]:
    """Yields the texts of a table with a header."""
    rows, names, first = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), [], 1
    try:
        for row in rows:
            if row and not names:
                names = [name.strip().casefold() for name in row]
                if names.count("text") != 1 or names.count("label") > 1:
                    why = f"a header with the column text, and label if there is one, once; it has {row}"
                    problems.note((), f"line {first}: {why}")
                    return
            elif row and len(row) != len(names):
                why = "quote what holds the separator or a line break"
                problems.note((), f"line {first}: {len(row)} fields of {len(names)}; {why}")
            elif row and not row[names.index("text")].strip():
                problems.note((), f"line {first}: a row without a text; remove it")
            elif row:
                found = dict(zip(names, row, strict=True))
                yield LabelledText(found["text"], found.get("label", "").strip(), first)
            first = rows.line_num + 1
    except csv.Error as error:
        why = "quote the whole field, and write each quotation mark within it twice"
        problems.note((), f"line {first}: a stray quotation mark ({error}); {why}")
