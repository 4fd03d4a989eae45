"""Results on many texts, by token, by position and by label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.strict import typed_arguments
from jaxsens.core.results.result import FlipSensitivity

By = Literal["token", "position", "label"]
PARTS = 10
"""Positions are counted in tenths of the input: inputs of a corpus have different lengths."""

COLUMNS = ("positions", "norms", "resolved")
"""The columns of a result that a table is made of."""


@dataclass(frozen=True)
class CorpusRow:
    """What the flips of a corpus do at one token, in one part of the inputs, or in the inputs of one label.

    Attributes:
        by: "token", "position" or "label".
        key: the token, the part, such as "0.2-0.3" of the length, or the label.
        texts: the number of inputs with such flips.
        places: the number of flipped positions.
        mean: the mean size of a change over the inputs, each with the mean of its own flips; in the measure's units.
        error: the standard error of that mean, from the spread between inputs; NaN for a single one.
        largest: the largest size of a change.
        text, position: where that is: the number of the input, and the position in it.
        unresolved: how many of the flips the arithmetic does not resolve.
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

    Inputs are the independent units: each counts once in a mean, whatever its length, and standard errors are those
    between inputs. Positions and labels are in their own order. O(flips log flips).

    Args:
        results: those of `flip_sensitivity` on a list of texts, or of several calls. Inputs are numbered through.
        by: what rows are made for.
        labels: the label of each input, for "label".

    Raises:
        InputError: for results of other measures or models, flips of groups, which have no single token, and labels
            that are not one for each input.
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
            problems.add(
                f"results[{k}]", one, "flips of single positions; those of groups have no single token"
            )
        if (
            one.asked.compared()["measure"] != first.compared()["measure"]
            or one.asked.measure.program != first.measure.program
        ):
            remedy = f"that of results[0] is {first.measure!r}; measure them alike"
            problems.add(f"results[{k}]: measure", one.measure, remedy)
        if one.asked.weights != first.weights:
            problems.add(
                f"results[{k}]: model", one.run.model, "results[0] has other weights; one model a table"
            )


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
