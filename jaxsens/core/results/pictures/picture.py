"""The text with its tokens coloured by sensitivity, as HTML that needs no other file and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import jinja2
import numpy as np
from jaxtyping import Bool, Float

from jaxsens.core.results.pictures.view import PART, InputView, ResultView, alone, in_context

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


@dataclass(frozen=True)
class ShownInput:
    """A paragraph: its heading, which may be empty, its tokens, and how many positions are left out after them."""

    heading: str
    tokens: Sequence[ShownToken]
    left_out: int


@dataclass(frozen=True)
class ShownFlip:
    """A row of the table of the most sensitive positions: the token in its context, what replaces it, and the value."""

    place: str
    before: str
    token: str
    after: str
    replacement: str
    value: str
    exact: bool


@dataclass(frozen=True)
class ShownParts:
    """What a page, a notebook and a picture show.

    Attributes:
        explained: what colours stand for.
        premises: the model, what was flipped, and the size of the output, a sentence each.
        inputs: the paragraphs.
        hidden_inputs: how many inputs are left out.
        steps: the colours of the legend.
        unflipped, blurred: whether there are tokens that were not flipped, or are not resolved.
        numbers: whether symbols are numbers only.
        facts: how many flips there are, and how they were measured.
        top: the most sensitive positions.
    """

    explained: str
    premises: Sequence[str]
    inputs: Sequence[ShownInput]
    hidden_inputs: int
    steps: Sequence[ShownToken]
    unflipped: bool
    blurred: bool
    numbers: bool
    facts: str
    top: Sequence[ShownFlip]

    @property
    def legend(self) -> list[ShownToken]:
        """The legend, as tokens."""
        tokens = [*self.steps]
        nothing = "no change is resolved" if self.blurred else "no flip changes anything"
        if not self.steps:
            tokens.append(ShownToken(nothing, "", 0.0, "up", False, False, ""))
        if self.unflipped:
            tokens.append(ShownToken("not flipped", "   ", None, "up", False, False, ""))
        if self.blurred:
            tokens.append(ShownToken("not resolved", "   ", 0.0, "up", False, True, ""))
        return tokens


def page(view: ResultView, by: By | None = None, title: str | None = None) -> str:
    """Returns a whole page, or without a title what a notebook shows: the first positions only if there are many.

    Args:
        view: the result by position.
        by: what colours show: the value of largest size at each position, or the mean; None for the largest, and the
            mean of decisions.
        title: of the page.
    """
    parts = shown_parts(view, by, MOST_IN_NOTEBOOK if title is None else MOST_ON_PAGE)
    picture = page_template("jaxsens.core.results.pictures", "picture.html")
    return picture.render(whole=title is not None, title=title or "", view=view, **vars(parts))


@cache
def page_template(package: str, name: str) -> jinja2.Template:
    """Returns a page of a package's folder templates/, which escapes what it is given."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def shown_parts(view: ResultView, by: By | None, most: int) -> ShownParts:
    """Returns what is shown, of `most` positions at most. `by` is as for `page`."""
    by = by or ("mean" if view.measure.indicator else "largest")
    sizes = [np.abs(_values_by(one, by)[0][one.flipped]) for one in view.inputs]
    paragraphs, left, scale = [], most, float(np.concatenate(sizes).max(initial=0.0))
    for k, one in enumerate(view.inputs):
        taken = min(left, len(one.tokens))
        heading = f"Input {k}, n = {len(one.tokens)}" if len(view.inputs) > 1 else ""
        if taken:
            tokens = list(_tokens(view, k, by, scale, taken))
            paragraphs.append(ShownInput(heading, tokens, len(one.tokens) - taken))
        left -= taken
    return ShownParts(
        explained=_explained(view, by),
        premises=_premises(view),
        inputs=paragraphs,
        hidden_inputs=len(view.inputs) - len(paragraphs),
        steps=_steps(view, scale),
        unflipped=any(token.strength is None for one in paragraphs for token in one.tokens),
        blurred=any(token.blurred for one in paragraphs for token in one.tokens),
        numbers=view.names is None,
        facts=_facts(view),
        top=_most_sensitive(view, by),
    )


def _most_sensitive(view: ResultView, by: By) -> list[ShownFlip]:
    """Returns the most sensitive positions, the first of equals first, each with its largest flip."""
    sizes = [np.nan_to_num(np.abs(_values_by(one, by)[0]), nan=-1) for one in view.inputs]
    places = [(k, i) for k, one in enumerate(view.inputs) for i in range(len(one.tokens))]
    rows = []
    for j in np.argsort(-np.concatenate(sizes), kind="stable")[:TOP]:
        k, i = places[j]
        one = view.inputs[k]
        if one.flipped[i]:
            where = f"{i}" if len(view.inputs) == 1 else f"{k}: {i}"
            replacement = alone(view.name(int(one.symbol[i])))
            value = _bounded_number(one.largest[i], one.largest_at_most[i], view.measure.signed)
            context = in_context(one.pieces, i)
            rows.append(ShownFlip(where, *context, replacement, value, bool(one.measured[i])))
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
        value = float(values[i])
        flipped = bool(one.flipped[i])
        strength = (abs(value) / scale if scale else 0.0) if flipped else None
        title = _title(view, k, i, read == i)
        kind = "down" if value < 0 else "up"
        yield ShownToken(text, space, strength, kind, bool(one.measured[i]), bool(blurred[i]), title)


def _title(view: ResultView, k: int, i: int, read: bool) -> str:
    one = view.inputs[k]
    lines = [f"{view.name(int(one.tokens[i]))!r} at position {i}"]
    if read:
        lines.append("the model reads its output here")
    if not one.flipped[i]:
        return "\n".join([*lines, "not flipped"])
    how = "" if not view.estimated else " (measured)" if one.measured[i] else " (estimate)"
    instead = view.name(int(one.symbol[i]))
    largest = _bounded_number(one.largest[i], one.largest_at_most[i], view.measure.signed)
    lines.append(f"largest: {largest} with {instead!r}{how}")
    if one.count[i] > 1:
        lines.append(
            f"mean of {one.count[i]} flips: {_bounded_number(one.mean[i], one.mean_at_most[i], view.measure.signed)}"
        )
    return "\n".join(lines)


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


def _explained(view: ResultView, by: By) -> str:
    which = "the mean" if by == "mean" else "the largest in size" if view.measure.signed else "the largest"
    return (
        f"Colour and bar: {which} {view.measure.symbol} over the flips of a position, "
        f"{view.measure.unit}. x is the text, and x′ "
        f"{view.flipped_input}"
    )


def _premises(view: ResultView) -> list[str]:
    """Returns the model, what was flipped and by what, and the size of the output beside which changes are seen."""
    flipped, every = (
        sum(int(one.flipped.sum()) for one in view.inputs),
        sum(len(one.tokens) for one in view.inputs),
    )
    sentences = [] if view.model is None else [f"Model: {view.model}."]
    sentences.append(
        f"Flipped: {flipped:,} of {every:,} positions{view.flipped_by and ', '}{view.flipped_by}."
    )
    if view.scale is not None:
        of = " of input 0" if len(view.inputs) > 1 else ""
        sentences.append(
            f"Without a flip, {view.measure.unflipped} = {number(view.scale, view.measure.signed)}{of}."
        )
    return sentences


def _facts(view: ResultView) -> str:
    part = "" if view.flips == view.population else f" of {view.population:,}"
    read = {
        None: "",
        "mean": "; the output is the mean over positions",
        "last": "; read at the last position",
    }
    position = "; read at " + ("position " * isinstance(view.readout, int)) + str(view.readout)
    where = read.get(view.readout, position)
    how = f", engine {view.engine}"
    if view.estimated:
        how = f": {view.exact:,} measured, the others estimated to first order"
    blurred = f"; {view.unresolved:,} flips are not resolved by the arithmetic" if view.unresolved else ""
    partial = any(text == PART for one in view.inputs for _, text in one.pieces)
    blurred += f"; {PART} is a token without a character of its own" if partial else ""
    return f"{view.flips:,}{part} flips{how}{where or ''}{blurred}"
