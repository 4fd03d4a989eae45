"""Files of texts: the one reader of all that measure them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.files import lines_of, read_text_within
from jaxsens.core.base.inputs import UNPAIRED, is_unicode
from jaxsens.pretrained.folder import each_key_once

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
                yield from _object(number, line, problems)
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
                    problems.note(
                        (),
                        f"line {first}: a header with the column text, and label if there is one, once; it has {row}",
                    )
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


def _object(number: int, line: str, problems: Problems) -> Iterator[LabelledText]:
    """Yields the text of a line that holds an object; a label may be a number."""
    try:
        found = json.loads(line, object_pairs_hook=each_key_once)
    except (ValueError, RecursionError):
        found = None
    text, label = (found.get("text"), found.get("label")) if isinstance(found, dict) else (None, None)
    if isinstance(text, str) and text.strip() and (label is None or isinstance(label, str | int | float)):
        label = label or "" if label is None or isinstance(label, str) else json.dumps(label)
        yield LabelledText(text, label, number)
    else:
        problems.note(
            (),
            f"line {number}: an object with the text under text, and its label, a text or a number, under label",
        )
