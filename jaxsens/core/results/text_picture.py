"""The text with its tokens coloured by sensitivity, as a Matplotlib figure: what `picture` shows as HTML."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

from jaxsens.core.results.picture import By, ResultView, ShownToken, shown_parts
from jaxsens.core.results.plot import drawing

UP, DOWN = (213 / 255, 94 / 255, 0), (0, 114 / 255, 178 / 255)
"""The colours of the page: of Okabe and Ito's palette, which colour-blind readers can tell apart."""

MOST_IN_PICTURE = 3_000
"""The number of positions that are shown, of all inputs together."""

_WIDTH, _MARGIN, _SIZE = 560.0, 18.0, 11.0
"""In points: the width of the picture, its margin, and the size of its text."""

_RESOLUTION = 200
"""Dots per inch, for which widths of text are measured and a PNG is made."""

_BREAK = re.compile("\r\n|[\r\n]")


def picture_bytes(
    view: ResultView, by: By | None, title: str, kind: Literal["png", "svg"], notes: bool = True
) -> bytes:
    """Returns the picture as a file. The same result gives the same bytes.

    Args:
        view: the result by position.
        by: what colours show, as for `picture.page`.
        title: above the text; empty for none.
        kind: "png", with 200 dots per inch, or "svg".
        notes: whether sentences stand above and below the text.
    """
    content, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else {"Software": None}
    parts = shown_parts(view, by, MOST_IN_PICTURE)
    texts = (text for one in parts.inputs for token in one.tokens for text in (token.space, token.text))
    with drawing([*texts, title, *parts.premises], {"svg.hashsalt": "jaxsens"}):
        figure = text_figure(view, by, title, notes)
        figure.savefig(content, format=kind, dpi=_RESOLUTION, metadata=metadata)
    return content.getvalue()


def text_figure(view: ResultView, by: By | None, title: str, notes: bool = True) -> Figure:
    """Returns the figure: title, what is shown, legend, and the coloured text of every input."""
    parts, sheet = shown_parts(view, by, MOST_IN_PICTURE), _Sheet()
    if title:
        sheet.paragraph([title], size=14, bold=True)
    if notes:
        sheet.paragraph([f"{parts.explained}.", *parts.premises], size=9)
    sheet.tokens(parts.legend, framed=view.estimated)
    for one in parts.inputs:
        if one.heading:
            sheet.paragraph([one.heading], bold=True)
        sheet.tokens(one.tokens, framed=view.estimated)
        if one.left_out:
            sheet.paragraph(
                [f"… and {one.left_out:,} more positions, which this picture leaves out."], size=9
            )
    if parts.hidden_inputs:
        sheet.paragraph([f"… and {parts.hidden_inputs} more inputs, which this picture leaves out."], size=9)
    if not notes:
        return sheet.finished()
    said = ["Dotted bar: decrease."] if view.measure.signed else []
    said += ["Framed: measured; others are estimates."] if view.estimated else []
    characters = "".join(token.text for one in parts.inputs for token in one.tokens)
    if any(unicodedata.bidirectional(one) in ("R", "AL") for one in characters):
        said.append("Tokens stand from left to right, those of scripts written to the left as well.")
    sheet.paragraph([f"{parts.facts}.", *said], size=9)
    return sheet.finished()


class _Sheet:
    """A figure that is filled from top to bottom, in points."""

    def __init__(self) -> None:
        self._figure = Figure(figsize=(_WIDTH / 72, 1), dpi=_RESOLUTION, facecolor="white")
        self._measure = FigureCanvasAgg(self._figure).get_renderer()
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._x, self._y = _MARGIN, _MARGIN

    def paragraph(self, sentences: Iterable[str], size: float = _SIZE, bold: bool = False) -> None:
        """Writes sentences, wrapped at the margin."""
        font = FontProperties(size=size, weight="bold" if bold else "normal")
        self._begin(1.45 * size)
        for word in " ".join(sentences).split():
            self._place(word, " ", font, 1.45 * size)
        self._y += 0.8 * size

    def tokens(self, tokens: Iterable[ShownToken], framed: bool) -> None:
        """Writes tokens on their colours; with `framed`, a frame around those that were measured."""
        plain, slanted = (FontProperties(size=_SIZE, style=style) for style in ("normal", "italic"))
        leading = 2.3 * _SIZE
        self._begin(leading)
        for token in tokens:
            font = slanted if token.strength is None else plain
            *above, space = _BREAK.split(token.space.expandtabs(4))
            for _ in above:
                self._begin(leading)
            for k, text in enumerate(_BREAK.split(token.text)):
                if k:
                    self._begin(leading)
                if text:
                    x, width = self._place(
                        text, "" if k else space, font, leading, grey=token.strength is None
                    )
                    self._colour(token, x, width, framed and token.exact and token.strength is not None)
        self._y += _SIZE

    def finished(self) -> Figure:
        """Returns the figure, cut to what it holds."""
        height = self._y + _MARGIN
        self._figure.set_size_inches(_WIDTH / 72, height / 72)
        self._axes.set_xlim(0, _WIDTH)
        self._axes.set_ylim(height, 0)
        return self._figure

    def _begin(self, leading: float) -> None:
        self._x, self._y = _MARGIN, self._y + leading

    def _place(
        self, text: str, space: str, font: FontProperties, leading: float, grey: bool = False
    ) -> tuple[float, float]:
        """Writes a text after a space, on the next line if this one is full; returns its place and its width."""
        width = self._width(text, font)
        if self._x > _MARGIN:
            self._x += self._width(space, font)
            if self._x + width > _WIDTH - _MARGIN:
                self._x, self._y = _MARGIN, self._y + leading
        self._axes.text(
            self._x,
            self._y,
            text,
            font=font,
            color="0.45" if grey else "black",
            va="baseline",
            parse_math=False,
        )
        x, self._x = self._x, self._x + width
        return x, width

    def _width(self, text: str, font: FontProperties) -> float:
        dots, _, _ = self._measure.get_text_width_height_descent(text, font, False)
        return dots * 72 / _RESOLUTION

    def _colour(self, token: ShownToken, x: float, width: float, framed: bool) -> None:
        colour, strength = DOWN if token.kind == "down" else UP, token.strength or 0.0
        top, bottom = self._y - 1.1 * _SIZE, self._y + 0.4 * _SIZE
        box = (x, top), width, bottom - top
        self._axes.add_patch(
            Rectangle(*box, facecolor=colour, alpha=0.72 * strength, linewidth=0, zorder=0.5)
        )
        if strength:
            dots = (0, (0.6, 0.6)) if token.kind == "down" else "solid"
            thick = 0.4 * _SIZE * strength
            ends = [x, x + width], [bottom + thick / 2] * 2
            self._axes.plot(
                *ends,
                color="black",
                linewidth=thick,
                linestyle=dots,
                solid_capstyle="butt",
                dash_capstyle="butt",
            )
        if framed or token.blurred:
            dashes = "dashed" if token.blurred else "solid"
            self._axes.add_patch(Rectangle(*box, fill=False, linewidth=0.7, linestyle=dashes))
