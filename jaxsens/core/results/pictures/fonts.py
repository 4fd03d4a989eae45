"""The fonts that draw a text: Matplotlib's own, and those of this machine where it lacks characters."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from jaxsens.core.base.errors import shortened

_OWN = "DejaVu Sans"
_UNDRAWN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
"""Categories of characters that need no glyph."""


def families(texts: Iterable[str], stacklevel: int = 3) -> list[str]:
    """Returns the fonts that draw texts: Matplotlib's own, and those of this machine that have what it lacks.

    Warns of characters that no font here has, by script: Matplotlib draws boxes for them.
    """
    missing = {one for text in texts for one in text if unicodedata.category(one) not in _UNDRAWN}
    found = [_OWN]
    for name, file in _files().items():
        if own := missing & _characters(file) if missing else set():
            found += [name] if name != _OWN else []
            missing -= own
    if missing:
        scripts = sorted({unicodedata.name(one, "UNNAMED").split()[0].capitalize() for one in missing})
        warnings.warn(
            f"no font here draws {shortened(''.join(sorted(missing)), 40)!r} ({', '.join(scripts)}): pictures show "
            "boxes; install a font that does, such as Noto, or write HTML, which the reader's fonts draw",
            UserWarning,
            stacklevel=stacklevel,
        )
    return found


@contextmanager
def drawing(texts: Iterable[str], settings: Mapping[str, Any]) -> Iterator[None]:
    """Lets Matplotlib draw texts in the block, with these settings, in the fonts of `families`. Warns as it does."""
    from matplotlib import rc_context

    used: Any = {"font.family": families(texts, stacklevel=6), **settings}
    with warnings.catch_warnings(), rc_context(used):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@cache
def _files() -> dict[str, str]:
    """Returns the files of this machine's upright fonts, by family, Matplotlib's own first."""
    from matplotlib.font_manager import fontManager

    upright = [one for one in fontManager.ttflist if one.style == "normal" and one.weight == 400]
    named = {one.name: one.fname for one in upright if not one.name.startswith("Last Resort")}
    return dict(sorted(named.items(), key=lambda item: (item[0] != _OWN, item[0])))


@cache
def _characters(file: str) -> frozenset[str]:
    """Returns the characters that a font has."""
    from matplotlib.font_manager import get_font

    return frozenset(map(chr, get_font(file).get_charmap()))
