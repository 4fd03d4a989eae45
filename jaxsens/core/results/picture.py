"""A result by position, with the strings of its symbols and what was measured in words; and the text with its tokens
coloured by sensitivity, as HTML that needs no other file and no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base.programs import RESOLVED, SMALLEST, resolved
from jaxsens.core.flips.flip_table import DELETED, DELETED_NAME
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.models.transformer.layered import row_read
from jaxsens.core.results.measured import MeasuredFlips, strings_of

if TYPE_CHECKING:
    import jinja2

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


MOST_NAMED = 6
"""Up to this many symbols are named where it is said what was inserted."""


def view_of(result: MeasuredFlips) -> ResultView:
    """Returns a result by position, with the strings of its symbols, as pictures show it."""
    few = len(result.alphabet) <= MOST_NAMED
    inserted = strings_of(result, np.array(result.alphabet)).tolist() if few else ()
    named = map(repr, inserted) if few else (f"{len(result.alphabet):,} symbols",)
    return ResultView(
        inputs=[_input_view(result.of_input(k)) for k in range(len(result.tokens))],
        names=result.names,
        measure=result.measure,
        estimated=result.estimated is not None,
        readout=result.readout,
        flips=len(result),
        population=result.population,
        exact=int(result.exact.sum()),
        unresolved=result.unresolved,
        engine=result.engine.name,
        flipped_input=_flipped_input(result.asked.flips, result.alphabet),
        flipped_by=result.asked.flips.description(", ".join(named)),
        model=result.run.model,
        scale=result.run.scale,
    )


def _flipped_input(flips: Flips, alphabet: Sequence[int]) -> str:
    """Returns what an input with a flip to one of these symbols is, in words."""
    if copies := flips.copies:
        return f"the text with {'another token' if copies == 1 else f'{copies} copies of a token'} before the position"
    if flips.groups is not None:
        return "the text with other tokens at the positions of a group"
    replaced = ["with another token at the position"] if any(one != DELETED for one in alphabet) else []
    deleted = ["without the position"] if DELETED in alphabet else []
    return f"the text {' or '.join([*replaced, *deleted])}"


def _input_view(result: MeasuredFlips) -> InputView:
    """Returns the summary of the flips of one input. Values that are not finite, as a partial result may have, are left
    out."""
    flip, positions, symbols = result.flips.places()  # a flip counts at each position of its group
    finite = np.isfinite(result.values[flip])
    flip, positions, symbols = flip[finite], positions[finite], symbols[finite]
    n, tokens, measured = result.n, result.tokens[0], result.exact[flip]
    pieces = text_pieces(
        spaced(strings_of(result, tokens).tolist()) if result.pieces is None else result.pieces[0]
    )
    values, resolution = result.values[flip], result.resolution[flip]
    resolution = np.where(resolved(values, resolution), 0.0, resolution)
    values = values.astype(np.float64)
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


By = Literal["largest", "mean"]

MOST_IN_NOTEBOOK, MOST_ON_PAGE = 1_500, 20_000
"""The number of positions that are shown, of all inputs together."""

TOP = 10
"""The number of positions in the table."""


@dataclass(frozen=True)
class ShownToken:
    """A token in the picture.

    Attributes:
        text: what is coloured.
        space: what stands between it and the token before: nothing, a space, or a line break.
        strength: 0 to 1, or None if it was not flipped.
        kind: of its bar: "up", or "down" for a negative change.
        exact: whether its value was measured; only told apart if some are estimates.
        blurred: whether its value is not resolved, so that it has no colour.
        title: what is shown on hover.
    """

    text: str
    space: str
    strength: float | None
    kind: str
    exact: bool
    blurred: bool
    title: str


def page(view: ResultView, by: By | None = None, title: str | None = None) -> str:
    """Returns a whole page, or without a title what a notebook shows: the first positions only if there are many.

    Args:
        view: the result by position.
        by: what colours show: the value of largest size at each position, or the mean; None for the largest, and the
            mean of decisions.
        title: of the page.
    """
    parts = shown_parts(view, by, MOST_IN_NOTEBOOK if title is None else MOST_ON_PAGE)
    picture = page_template("jaxsens.core.results", "picture.html")
    return picture.render(whole=title is not None, title=title or "", view=view, **parts)


@cache
def page_template(package: str, name: str) -> jinja2.Template:
    """Returns a page of a package's folder templates/, which escapes what it is given."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def shown_parts(view: ResultView, by: By | None, most: int) -> dict[str, Any]:
    """Returns what a page, a notebook and a picture show, of `most` positions at most. `by` is as for `page`.

    explained: what colours stand for.
    premises: the model, what was flipped, and the size of the output, a sentence each.
    inputs: paragraphs: a `heading`, which may be empty, `tokens`, and how many positions are `left_out` after them.
    hidden_inputs: how many inputs are left out.
    steps: the colours of the legend.
    unflipped, blurred: whether there are tokens that were not flipped, or are not resolved.
    numbers: whether symbols are numbers only.
    facts: how many flips there are, and how they were measured.
    top: rows of the table of the most sensitive positions: a token in its context, what replaces it, and the value.
    """
    by = by or ("mean" if view.measure.indicator else "largest")
    sizes = [np.abs(_values_by(one, by)[0][one.flipped]) for one in view.inputs]
    paragraphs, left, scale = list[dict[str, Any]](), most, float(np.concatenate(sizes).max(initial=0.0))
    for k, one in enumerate(view.inputs):
        taken = min(left, len(one.tokens))
        heading = f"Input {k}, n = {len(one.tokens)}" if len(view.inputs) > 1 else ""
        if taken:
            tokens = list(_tokens(view, k, by, scale, taken))
            paragraphs.append({"heading": heading, "tokens": tokens, "left_out": len(one.tokens) - taken})
        left -= taken
    which = "the mean" if by == "mean" else "the largest in size" if view.measure.signed else "the largest"
    shown = [token for one in paragraphs for token in one["tokens"]]
    flipped, every = sum(map(len, sizes)), sum(len(one.tokens) for one in view.inputs)
    premises = [] if view.model is None else [f"Model: {view.model}."]
    by_what = view.flipped_by and f", {view.flipped_by}"
    premises.append(f"Flipped: {flipped:,} of {every:,} positions{by_what}.")
    if view.scale is not None:  # beside which changes are seen
        of = " of input 0" if len(view.inputs) > 1 else ""
        unflipped = number(view.scale, view.measure.signed)
        premises.append(f"Without a flip, {view.measure.unflipped} = {unflipped}{of}.")
    return {
        "explained": f"Colour and bar: {which} {view.measure.symbol} over the flips of a position, "
        f"{view.measure.unit}. x is the text, and x′ {view.flipped_input}",
        "premises": premises,
        "inputs": paragraphs,
        "hidden_inputs": len(view.inputs) - len(paragraphs),
        "steps": _steps(view, scale),
        "unflipped": any(token.strength is None for token in shown),
        "blurred": any(token.blurred for token in shown),
        "numbers": view.names is None,
        "facts": _facts(view),
        "top": _most_sensitive(view, by),
    }


def _most_sensitive(view: ResultView, by: By) -> list[dict[str, str | bool]]:
    """Returns the most sensitive positions, the first of equals first, each with its largest flip."""
    sizes = [np.nan_to_num(np.abs(_values_by(one, by)[0]), nan=-1) for one in view.inputs]
    places = [(k, i) for k, one in enumerate(view.inputs) for i in range(len(one.tokens))]
    rows = []
    for j in np.argsort(-np.concatenate(sizes), kind="stable")[:TOP]:
        k, i = places[j]
        one = view.inputs[k]
        if one.flipped[i]:
            before, token, after = in_context(one.pieces, i)
            place = f"{i}" if len(view.inputs) == 1 else f"{k}: {i}"
            row = {"place": place, "before": before, "token": token}
            row |= {"after": after, "replacement": alone(view.name(int(one.symbol[i])))}
            row["value"] = _bounded_number(one.largest[i], one.largest_at_most[i], view.measure.signed)
            rows.append({**row, "exact": bool(one.measured[i])})
    return rows


def _values_by(one: InputView, by: By) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Returns the value of each position that colours show, 0 where it is not resolved, and where that is."""
    mean = by == "mean"
    values, most = (one.mean, one.mean_at_most) if mean else (one.largest, one.largest_at_most)
    return np.where(np.isnan(most), values, 0.0), np.isfinite(most)


def _tokens(view: ResultView, k: int, by: By, scale: float, count: int) -> Iterator[ShownToken]:
    """Yields the first tokens of an input."""
    one, read = view.inputs[k], view.position_read(k)
    (values, blurred), pieces = _values_by(one, by), one.pieces[:count]
    for i, (space, text) in enumerate(pieces):
        value, flipped = float(values[i]), bool(one.flipped[i])
        strength = (abs(value) / scale if scale else 0.0) if flipped else None
        lines = [f"{view.name(int(one.tokens[i]))!r} at position {i}"]
        lines += ["the model reads its output here"] if read == i else []
        how = "" if not view.estimated else " (measured)" if one.measured[i] else " (estimate)"
        if flipped:
            largest = _bounded_number(one.largest[i], one.largest_at_most[i], view.measure.signed)
            lines.append(f"largest: {largest} with {view.name(int(one.symbol[i]))!r}{how}")
        else:
            lines.append("not flipped")
        if one.count[i] > 1:
            mean = _bounded_number(one.mean[i], one.mean_at_most[i], view.measure.signed)
            lines.append(f"mean of {one.count[i]} flips: {mean}")
        kind, title = "down" if value < 0 else "up", "\n".join(lines)
        yield ShownToken(text, space, strength, kind, bool(one.measured[i]), bool(blurred[i]), title)


def number(value: float, signed: bool = False, digits: int = 3) -> str:
    """Returns a value to some digits, with a sign if values have signs."""
    return (
        f"{value:+.{digits}g}".replace("-", "\N{MINUS SIGN}") if signed and value else f"{value:.{digits}g}"
    )


def _bounded_number(value: float, most: float, signed: bool) -> str:
    """Returns a value, or what its size is at most if that is a number."""
    return (
        number(value, signed) if np.isnan(most) else f"at most {number(most)}{' in size' if signed else ''}"
    )


def _steps(view: ResultView, scale: float) -> list[ShownToken]:
    """Returns the colours of the legend; none if every value is 0, or there is none."""
    if not scale:
        return []
    parts = (-1.0, -0.5, 0.0, 0.5, 1.0) if view.measure.signed else (0.0, 0.25, 0.5, 0.75, 1.0)
    texts = [number(part * scale, view.measure.signed, 2) for part in parts]
    return [
        ShownToken(text, "  ", abs(part), "down" if part < 0 else "up", False, False, "")
        for part, text in zip(parts, texts, strict=True)
    ]


def _facts(view: ResultView) -> str:
    part = "" if view.flips == view.population else f" of {view.population:,}"
    place = f"{'position ' * isinstance(view.readout, int)}{view.readout}"
    at = f"; read at {'the last position' if view.readout == 'last' else place}"
    where = {None: "", "mean": "; the output is the mean over positions"}.get(view.readout, at)
    how = f", engine {view.engine}"
    if view.estimated:
        how = f": {view.exact:,} measured, the others estimated to first order"
    blurred = f"; {view.unresolved:,} flips are not resolved by the arithmetic" if view.unresolved else ""
    partial = any(text == PART for one in view.inputs for _, text in one.pieces)
    blurred += f"; {PART} is a token without a character of its own" if partial else ""
    return f"{view.flips:,}{part} flips{how}{where}{blurred}"
