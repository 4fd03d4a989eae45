"""A result by position, with the strings of its symbols and what was measured in words: what pictures show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base.programs import RESOLVED, SMALLEST, resolved
from jaxsens.core.flips.flip_table import DELETED, DELETED_NAME
from jaxsens.core.measures import Measure
from jaxsens.core.models.transformer.layered import row_read

Piece = tuple[str, str]
"""What stands before a token, mostly blanks, and its own text."""

PART = "◦"
"""What is shown of a token without a character of its own, as all but the last of a character's several tokens are."""

_CONTEXT = 3
"""Tokens on either side of one in its context."""


def spaced(names: Sequence[str]) -> list[str]:
    """Returns names with blanks between them, unless some say themselves where words begin, as " the" does."""
    own_spaces = any(name[:1].isspace() for name in names)
    return [name if own_spaces or not k else f" {name}" for k, name in enumerate(names)]


def text_pieces(parts: Sequence[str]) -> list[Piece]:
    """Returns the pieces of a text from its parts, which hold white space where it stands."""
    split = ((part, part.lstrip()) for part in parts)
    return [
        (part[: len(part) - len(text)] if text else "", alone(text or part) if part else PART)
        for part, text in split
    ]


def alone(name: str) -> str:
    """Returns a token by itself, so that it can be pointed at: what cannot be seen as signs; a line break also breaks
    the line. ##man, which continues a word, is another token than man."""
    if any(one.isprintable() and one != " " for one in name):
        return name.lstrip(" ")
    signs = {"\n": "↵\n", "\t": "⇥"}
    return "".join(signs.get(one, "␣" if one.isspace() else PART) for one in name) or "∅"


def in_context(pieces: Sequence[Piece], position: int) -> tuple[str, str, str]:
    """Returns a token with a few tokens before and after it, as text; … where there are more."""
    first, last = max(0, position - _CONTEXT), position + _CONTEXT + 1
    before = "".join(space + text for space, text in pieces[first:position]) + pieces[position][0]
    after = "".join(space + text for space, text in pieces[position + 1 : last])
    more = "…" if last < len(pieces) else ""
    return ("…" if first else "") + before.lstrip(), pieces[position][1], after + more


@dataclass(frozen=True, eq=False)
class InputView:
    """One input of a result, position by position. Arrays have one entry a position, NaN (symbols: -1) where nothing
    was flipped.

    Attributes:
        tokens: the symbols of the input.
        pieces: what stands in the text for each of them.
        count: the number of its flips at each position that are in the result.
        largest: the value of largest size at each position; signed where a function was measured.
        symbol: the symbol that it inserts.
        measured: whether it was measured rather than estimated.
        mean: the mean of the values at each position.
        low, high: their smallest and largest.
        largest_at_most, mean_at_most: what the sizes of `largest` and `mean` are at most, where the rounding of flips
            that are not resolved may move them by over 1 %; NaN elsewhere.
    """

    tokens: Int[np.ndarray, " n"]
    pieces: Sequence[Piece]
    count: Int[np.ndarray, " n"]
    largest: Float[np.ndarray, " n"]
    symbol: Int[np.ndarray, " n"]
    measured: Bool[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    largest_at_most: Float[np.ndarray, " n"]
    mean_at_most: Float[np.ndarray, " n"]

    @property
    def flipped(self) -> Bool[np.ndarray, " n"]:
        """Whether a position was flipped."""
        return self.count > 0


@dataclass(frozen=True, eq=False)
class ResultView:
    """All inputs of a result.

    Attributes:
        inputs: in order.
        names: how to write each symbol; None if only numbers are known.
        measure: what was measured of the change in the output.
        estimated: whether some values are estimates.
        readout: where the model reads its output, as in the result.
        flips: the number of flips in the result.
        population: the number of all flips.
        exact: the number of flips that were measured.
        unresolved: the number of flips that the arithmetic does not resolve.
        engine: the engine that ran.
        flipped_input: what x′ is, in words.
        flipped_by: by what each position is flipped, in words; empty if unknown.
        model: what the model is called; None if unknown.
        scale: the value of `unflipped` on the first input; None if unknown.
    """

    inputs: Sequence[InputView]
    names: Mapping[int, str] | None
    measure: Measure
    estimated: bool
    readout: int | str | None
    flips: int
    population: int
    exact: int
    unresolved: int
    engine: str
    flipped_input: str
    flipped_by: str
    model: str | None
    scale: float | None

    def name(self, symbol: int) -> str:
        """Returns how to write a symbol: its string, or its number."""
        if symbol == DELETED:
            return DELETED_NAME
        return str(symbol) if self.names is None else self.names.get(symbol, str(symbol))

    def position_read(self, k: int) -> int | None:
        """Returns the position of input k at which the model reads its output, if it is one."""
        row = None if self.readout is None else row_read(self.readout, self.inputs[k].tokens)
        return None if row is None else int(row)


def flipped_input(alphabet: Sequence[int], groups: bool, copies: int = 0) -> str:
    """Returns what an input with a flip is, in words.

    Args:
        alphabet: what flips insert; `DELETED` for a deletion.
        groups: whether flips replace several symbols.
        copies: how many copies of a symbol flips insert before the position.
    """
    if copies:
        return f"the text with {'another token' if copies == 1 else f'{copies} copies of a token'} before the position"
    if groups:
        return "the text with other tokens at the positions of a group"
    replaced = ["with another token at the position"] if any(one != DELETED for one in alphabet) else []
    deleted = ["without the position"] if DELETED in alphabet else []
    return f"the text {' or '.join([*replaced, *deleted])}"


def input_view(
    tokens: Int[np.ndarray, " n"],
    pieces: Sequence[Piece],
    positions: Int[np.ndarray, " flips"],
    symbols: Int[np.ndarray, " flips"],
    values: Float[np.ndarray, " flips"],
    measured: Bool[np.ndarray, " flips"],
    resolution: Float[np.ndarray, " flips"],
) -> InputView:
    """Returns the summary of one input's flips. Values that are not finite, as a partial result may have, are left
    out."""
    n, finite = len(tokens), np.isfinite(values)
    resolution = np.where(resolved(values, resolution), 0.0, resolution)[finite]
    positions, symbols, measured = positions[finite], symbols[finite], measured[finite]
    values = values[finite].astype(np.float64)
    count = np.bincount(positions, minlength=n)
    total = np.bincount(positions, weights=values, minlength=n)
    # The last of a position's flips in this order has the largest size; of equal ones it is the first flip.
    order = np.lexsort((-np.arange(len(values)), np.abs(values), positions))
    ends = np.cumsum(count)[count > 0] - 1
    best = order[ends]
    nothing = np.full(n, np.nan)
    largest, low, high, symbol = nothing.copy(), nothing.copy(), nothing.copy(), np.full(n, -1)
    exact = np.zeros(n, bool)
    where = positions[best]
    largest[where], symbol[where], exact[where] = values[best], symbols[best], measured[best]
    np.fmin.at(low, positions, values)
    np.fmax.at(high, positions, values)
    mean = np.divide(total, count, out=nothing, where=count > 0)
    highest, spread = np.full(n, np.nan), np.bincount(positions, weights=resolution, minlength=n)
    np.fmax.at(highest, positions, np.abs(values) + resolution)
    most = np.abs(mean) + np.divide(spread, count, out=np.full(n, np.nan), where=count > 0)
    ceilings = (_where_it_moves(largest, highest), _where_it_moves(mean, most))
    return InputView(tokens, pieces, count, largest, symbol, exact, mean, low, high, *ceilings)


def _where_it_moves(
    values: Float[np.ndarray, " n"], most: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Returns the largest sizes of values, NaN where they are resolved."""
    sizes = np.abs(values)
    return np.where(most - sizes > np.maximum(RESOLVED * sizes, SMALLEST), most, np.nan)
