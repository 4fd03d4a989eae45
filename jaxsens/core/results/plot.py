"""Matplotlib figures: sensitivity against position, and the text with its tokens coloured by sensitivity, which
`picture` shows as HTML; and the fonts that draw a text: Matplotlib's own, and those of this machine where it lacks
characters.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.patches import Rectangle

from jaxsens.core.base.errors import collecting, shortened
from jaxsens.core.base.text import printable
from jaxsens.core.results.picture import By, ResultView, ShownToken, shown_parts

_OWN = "DejaVu Sans"
_UNDRAWN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
"""Categories of characters that need no glyph."""


def families(texts: Iterable[str], stacklevel: int = 3) -> list[str]:
    """Returns the fonts that draw texts: Matplotlib's own, and those of this machine that have what it lacks.

    Warns of characters that no font here has, by script: Matplotlib draws boxes for them.
    """
    missing = {one for text in texts for one in printable(text) if unicodedata.category(one) not in _UNDRAWN}
    fonts = [_OWN]
    for name, file in _files().items():
        if own := missing & _characters(file) if missing else set():
            fonts += [name] if name != _OWN else []
            missing -= own
    if missing:
        scripts = sorted({unicodedata.name(one, "UNNAMED").split()[0].capitalize() for one in missing})
        warnings.warn(
            f"no font here draws {shortened(''.join(sorted(missing)), 40)!r} ({', '.join(scripts)}): pictures show "
            "boxes; install a font that does, such as Noto, or write HTML, which the reader's fonts draw",
            UserWarning,
            stacklevel=stacklevel,
        )
    return fonts


@contextmanager
def drawing(texts: Iterable[str], settings: Mapping[str, Any]) -> Iterator[None]:
    """Lets Matplotlib draw texts in the block, with these settings, in the fonts of `families`. Warns as it does."""
    used: Any = {"font.family": families(texts, stacklevel=6), **settings}
    with warnings.catch_warnings(), rc_context(used):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@cache
def _files() -> dict[str, str]:
    """Returns the files of this machine's upright fonts, by family, Matplotlib's own first."""
    upright = [one for one in fontManager.ttflist if one.style == "normal" and one.weight == 400]
    named = {one.name: one.fname for one in upright if not one.name.startswith("Last Resort")}
    return dict(sorted(named.items(), key=lambda item: (item[0] != _OWN, item[0])))


@cache
def _characters(file: str) -> frozenset[str]:
    return frozenset(map(chr, get_font(file).get_charmap()))


LARGEST, MEAN, DOWN, GREY = "#D55E00", "#000000", "#0072B2", "#767676"
"""Of Okabe and Ito's palette, which colour-blind readers can tell apart. Markers and dashes differ as well."""

MOST_LABELS = 60
"""Up to this many positions, tokens are written below the axis, where it is wide enough."""

LABEL_INCHES = 0.12
"""The width that a position needs for its token: given axes may be narrower than those made here."""

MOST_INPUTS = 12
"""The number of inputs that a figure has room for."""


def draw_profile(view: ResultView, axes: Any = None) -> list[Axes]:
    """Draws the largest and the mean value of every position, one set of axes an input, below each other.

    Args:
        view: the result by position.
        axes: axes to draw in, one for each input; new ones by default.

    Raises:
        InputError: for other axes than one for each input, or more inputs than a figure has room for.
    """
    from matplotlib import pyplot

    count, panels = len(view.inputs), list(np.ravel(np.asarray(axes, object)))
    with collecting("plot") as problems:
        if axes is None and count > MOST_INPUTS:
            remedy = f"a figure has room for {MOST_INPUTS}: result.of_input(k).plot(), or axes=[one for each input]"
            problems.add("result", f"{count} inputs", remedy)
        elif axes is not None and (len(panels) != count or not all(isinstance(one, Axes) for one in panels)):
            problems.add("axes", axes, f"{count} matplotlib Axes, one for each input")
    if axes is None:
        longest = max(len(one.tokens) for one in view.inputs)
        size = (min(14.0, max(6.0, 0.22 * longest)), 2.9 * count + 0.3)
        _, made = pyplot.subplots(count, squeeze=False, figsize=size, layout="constrained")
        panels = list(made[:, 0])
    for k, one in enumerate(panels):
        _draw(one, view, k)
    return panels


def _draw(axes: Axes, view: ResultView, k: int) -> None:
    one = view.inputs[k]
    places = np.arange(len(one.tokens))
    few = len(places) <= MOST_LABELS
    size = 6.0 if few else 2.0
    largest = np.where(np.isnan(one.largest_at_most), one.largest, np.nan)
    name = "largest" if (one.count > 1).any() else "change"
    drawn = [(largest, "o", LARGEST, name)]
    if view.measure.signed:
        axes.axhline(0, color=GREY, linewidth=0.8)
        base = np.where(np.isnan(largest), np.nan, 0.0)
        ends = np.fmin(one.low, 0) + base, np.fmax(one.high, 0) + base
        axes.vlines(places, *ends, color=GREY, linewidth=1, alpha=0.5)
        rising, falling = np.where(largest >= 0, largest, np.nan), np.where(largest < 0, largest, np.nan)
        drawn = [(rising, "^", LARGEST, f"{name}, increase"), (falling, "v", DOWN, f"{name}, decrease")]
    elif few:
        axes.vlines(places, 0, largest, color=LARGEST, linewidth=1, alpha=0.4)
    for values, marker, colour, label in drawn:
        for exact, filled, said in ((True, colour, label), (False, "white", f"{label} (estimate)")):
            chosen = (one.measured == exact) & np.isfinite(values)
            if chosen.any():
                axes.plot(places[chosen], values[chosen], marker, color=colour, markerfacecolor=filled,
                          markersize=size, label=said)  # fmt: skip
    blurred = np.isfinite(one.largest_at_most)
    if blurred.any():  # where no more is known: a floor of rounding is never drawn as a value
        at, most, label = places[blurred], one.largest_at_most[blurred], "below resolution: at most"
        if view.measure.signed:
            axes.vlines(at, -most, most, color=GREY, linewidth=1, linestyle="dotted", label=label)
        else:
            look: dict[str, Any] = {"color": GREY, "markerfacecolor": "none", "clip_on": False}
            axes.plot(at, most, "v", markersize=size, label=label, **look)
    mean = np.where((one.count > 1) & np.isnan(one.mean_at_most), one.mean, np.nan)
    if np.isfinite(mean).any():
        style: dict[str, Any] = (
            {"linestyle": "none", "marker": "_"} if few else {"linestyle": "-", "linewidth": 0.6}
        )
        axes.plot(places, mean, color=MEAN, markersize=8, label="mean", **style)
    unflipped = np.flatnonzero(~one.flipped)
    if len(unflipped):
        bottom = axes.get_xaxis_transform()
        axes.plot(unflipped, np.full(len(unflipped), 0.02), "x", color=GREY, markersize=0.7 * size,
                  transform=bottom, label="not flipped", clip_on=False)  # fmt: skip
    inches = axes.get_window_extent().width / axes.get_figure(root=True).dpi  # pyright: ignore[reportOptionalMemberAccess]
    _label(axes, view, k, places if few and inches >= LABEL_INCHES * len(places) else None)


def _label(axes: Axes, view: ResultView, k: int, labelled: np.ndarray | None) -> None:
    one = view.inputs[k]
    axes.set_ylabel(view.measure.symbol)
    axes.set_xlim(-0.7, len(one.tokens) - 0.3)
    if not view.measure.signed:
        axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    if len(view.inputs) > 1:
        axes.set_title(f"input {k}", loc="left", fontsize="medium", fontweight="bold")
    if labelled is not None:
        texts = [safe_label(text) for _, text in one.pieces]
        long = max(map(len, texts)) > 2
        axes.set_xticks(labelled, texts, rotation=90 if long else 0, fontfamily=families(texts))
    else:
        axes.set_xlabel("position")
    look: dict[str, Any] = {"frameon": False, "borderaxespad": 0.2, "columnspacing": 1}
    if axes.get_legend_handles_labels()[1] != ["change"]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small", **look)


def safe_label(text: str) -> str:
    """Returns a label that Matplotlib does not take for mathematics, of at most 20 characters, `printable`."""
    text = printable(text)
    short = text if len(text) <= 20 else f"{text[:19]}…"
    return short.replace("\n", "").replace("$", r"\$")


MOST_IN_PICTURE = 3_000
"""The number of positions that are shown, of all inputs together."""

_WIDTH, _MARGIN, _SIZE = 560.0, 18.0, 11.0
"""In points: the width of the picture, its margin, and the size of its text."""

_RESOLUTION = 200
"""Dots per inch, for which widths of text are measured and a PNG is made."""

_LEFT_OUT = "which this picture leaves out."

_BREAK = re.compile("\r\n|[\r\n]")


def picture_bytes(view: ResultView, by: By | None, title: str, kind: Literal["png", "svg"]) -> bytes:
    """Returns the picture as a file: title, what is shown, legend, and the coloured text of every input. The same
    result gives the same bytes.

    Args:
        view: the result by position.
        by: what colours show, as for `picture.page`.
        title: above the text; empty for none.
        kind: "png", with 200 dots per inch, or "svg".
    """
    content, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else {"Software": None}
    parts = shown_parts(view, by, MOST_IN_PICTURE)
    tokens: list[ShownToken] = [token for one in parts["inputs"] for token in one["tokens"]]
    texts = (text for token in tokens for text in (token.space, token.text))
    with drawing([*texts, title, *parts["premises"]], {"svg.hashsalt": "jaxsens"}):
        sheet, framed = _Sheet(), view.estimated
        if title:
            sheet.paragraph([title], size=14, bold=True)
        sheet.paragraph([f"{parts['explained']}.", *parts["premises"]], size=9)
        sheet.tokens(_legend(parts), framed)
        for one in parts["inputs"]:
            if one["heading"]:
                sheet.paragraph([one["heading"]], bold=True)
            sheet.tokens(one["tokens"], framed)
            if one["left_out"]:
                sheet.paragraph([f"… and {one['left_out']:,} more positions, {_LEFT_OUT}"], size=9)
        if parts["hidden_inputs"]:
            sheet.paragraph([f"… and {parts['hidden_inputs']} more inputs, {_LEFT_OUT}"], size=9)
        said = ["Dotted bar: decrease."] if view.measure.signed else []
        said += ["Framed: measured; others are estimates."] if view.estimated else []
        characters = "".join(token.text for token in tokens)
        if any(unicodedata.bidirectional(one) in ("R", "AL") for one in characters):
            said.append("Tokens stand from left to right, those of scripts written to the left as well.")
        sheet.paragraph([f"{parts['facts']}.", *said], size=9)
        sheet.finished().savefig(content, format=kind, dpi=_RESOLUTION, metadata=metadata)
    return content.getvalue()


def _legend(parts: dict[str, Any]) -> list[ShownToken]:
    tokens = [*parts["steps"]]
    if not tokens:
        nothing = "no change is resolved" if parts["blurred"] else "no flip changes anything"
        tokens.append(ShownToken(nothing, "", 0.0, "up", False, False, ""))
    if parts["unflipped"]:
        tokens.append(ShownToken("not flipped", "   ", None, "up", False, False, ""))
    if parts["blurred"]:
        tokens.append(ShownToken("not resolved", "   ", 0.0, "up", False, True, ""))
    return tokens


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
            grey = token.strength is None
            font = slanted if grey else plain
            *above, space = _BREAK.split(token.space.expandtabs(4))
            for _ in above:
                self._begin(leading)
            for k, text in enumerate(_BREAK.split(token.text)):
                if k:
                    self._begin(leading)
                if text:
                    x, width = self._place(text, "" if k else space, font, leading, grey)
                    self._colour(token, x, width, framed and token.exact and not grey)
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
        text = printable(text)  # XML, and so SVG, has no control characters
        width = self._width(text, font)
        if self._x > _MARGIN:
            self._x += self._width(space, font)
            if self._x + width > _WIDTH - _MARGIN:
                self._x, self._y = _MARGIN, self._y + leading
        look: dict[str, Any] = {"color": "0.45" if grey else "black", "va": "baseline", "parse_math": False}
        self._axes.text(self._x, self._y, text, font=font, **look)
        x, self._x = self._x, self._x + width
        return x, width

    def _width(self, text: str, font: FontProperties) -> float:
        dots, _, _ = self._measure.get_text_width_height_descent(text, font, False)
        return dots * 72 / _RESOLUTION

    def _colour(self, token: ShownToken, x: float, width: float, framed: bool) -> None:
        colour, strength = DOWN if token.kind == "down" else LARGEST, token.strength or 0.0
        top, bottom = self._y - 1.1 * _SIZE, self._y + 0.4 * _SIZE
        box = (x, top), width, bottom - top
        self._axes.add_patch(
            Rectangle(*box, facecolor=colour, alpha=0.72 * strength, linewidth=0, zorder=0.5)
        )
        if strength:
            dots = (0, (0.6, 0.6)) if token.kind == "down" else "solid"
            thick = 0.4 * _SIZE * strength
            ends = [x, x + width], [bottom + thick / 2] * 2
            caps: dict[str, Any] = {"solid_capstyle": "butt", "dash_capstyle": "butt"}
            self._axes.plot(*ends, color="black", linewidth=thick, linestyle=dots, **caps)
        if framed or token.blurred:
            dashes = "dashed" if token.blurred else "solid"
            self._axes.add_patch(Rectangle(*box, fill=False, linewidth=0.7, linestyle=dashes))
