"""The fonts that draw a text: Matplotlib's own, and those of this machine where it lacks characters."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from jaxsens.base.errors import shortened

_OWN = "DejaVu Sans"
_UNDRAWN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
"""Categories of characters that need no glyph."""


@contextmanager
def drawing(texts: Iterable[str], settings: Any = None) -> Iterator[None]:
    """Lets Matplotlib draw texts in the block, with fonts of this machine for what its own one lacks.

    Warns of characters that no font here has, by script: Matplotlib draws boxes for them.
    """
    from matplotlib import rc_context

    missing = {one for text in texts for one in text if unicodedata.category(one) not in _UNDRAWN}
    missing -= _characters(_OWN)
    families = [_OWN]
    for name in _names() if missing else ():
        if found := missing & _characters(name):
            families.append(name)
            missing -= found
    if missing:
        scripts = sorted({unicodedata.name(one, "UNNAMED").split()[0].capitalize() for one in missing})
        warnings.warn(
            f"no font here draws {shortened(''.join(sorted(missing)), 40)!r} ({', '.join(scripts)}), which pictures show "
            "as boxes; install a font that has them, such as Noto, or write HTML, which the reader's fonts draw",
            UserWarning,
            stacklevel=4,
        )
    with warnings.catch_warnings(), rc_context({"font.family": families, **(settings or {})}):
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@cache
def _names() -> list[str]:
    """Returns the families of this machine's upright fonts."""
    from matplotlib.font_manager import fontManager

    upright = {one.name for one in fontManager.ttflist if one.style == "normal"}
    return sorted(name for name in upright if not name.startswith("Last Resort"))


@cache
def _characters(family: str) -> frozenset[str]:
    """Returns the characters that a family's font has."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(map(chr, get_font(findfont(family)).get_charmap()))
