"""A result on many texts, told by token, by position and by label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxsens.base import inputs
from jaxsens.base.errors import collecting
from jaxsens.base.strict import typed_arguments
from jaxsens.sensitivity.results.result import FlipSensitivity

By = Literal["token", "position", "label"]
PARTS = 10
"""Positions are counted in tenths of the input: inputs of a corpus have different lengths."""


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
    result: FlipSensitivity, by: By = "token", labels: Sequence[str] | None = None
) -> list[CorpusRow]:
    """Returns what the flips of a result on many inputs do by token, position or label, the largest mean first.

    Inputs are the independent units: each counts once in a mean, whatever its length, and standard errors are those
    between inputs. Positions and labels are in their own order. O(flips log flips).

    Args:
        result: a result of `flip_sensitivity` or `concat`.
        by: what rows are made for.
        labels: the label of each input, for "label".

    Raises:
        InputError: for flips of groups, which have no single token, and labels that are not one for each input.
    """
    count = len(result.tokens)
    with collecting("corpus_table") as problems:
        inputs.choice("by", by, ("token", "position", "label"), problems)
        if result.flips.joint is not None:
            problems.add("result", result, "flips of single positions; those of groups have no single token")
        wrong = labels is None or len(labels) != count or not all(isinstance(one, str) for one in labels)
        if by == "label" and wrong:
            problems.add("labels", labels, f"a list of {count} texts, the label of each input")
    names = _names(result, by, labels)
    keys, number = np.unique(names, return_inverse=True)
    rows = [_row(result, by, str(key), np.flatnonzero(number == k)) for k, key in enumerate(keys)]
    return sorted(rows, key=lambda row: -row.mean) if by == "token" else rows


def _names(result: FlipSensitivity, by: By, labels: Sequence[str] | None) -> np.ndarray:
    """Returns the key of every flip."""
    if by == "label":
        return np.array(labels, object)[result.inputs].astype(str)
    if by == "token":
        ids, known = result.tokens[result.inputs, result.positions], result.names or {}
        return np.array([known.get(int(one), str(one)) for one in ids], dtype=str)
    lengths = np.array([result.length(k) for k in range(len(result.tokens))])
    part = (PARTS * result.positions) // lengths[result.inputs]
    return np.array([f"{k / PARTS:.1f}-{(k + 1) / PARTS:.1f}" for k in range(PARTS)])[part]


def _row(result: FlipSensitivity, by: By, key: str, flips: np.ndarray) -> CorpusRow:
    owners, sizes = result.inputs[flips], result.norms[flips]
    texts, number = np.unique(owners, return_inverse=True)
    means = np.bincount(number, sizes) / np.bincount(number)
    first = int(flips[np.argmax(sizes)])
    places = np.unique(np.stack([owners, result.positions[flips]]), axis=1).shape[1]
    return CorpusRow(
        by,
        key,
        len(texts),
        places,
        float(means.mean()),
        float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan,
        float(result.norms[first]),
        int(result.inputs[first]),
        int(result.positions[first]),
        int((~result.resolved[flips]).sum()),
    )


def common(rows: Iterable[CorpusRow], least: int) -> list[CorpusRow]:
    """Returns the rows of keys in at least so many inputs: rarer ones say little."""
    return [row for row in rows if row.texts >= least]
