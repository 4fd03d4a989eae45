"""The code blocks of guides, which tests run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURED = "\n\n\nweights = random_weights(0)\n"
"""Where the first code block of docs/layered.md has defined what it measures."""


def block(page: str) -> str:
    """The first code block of a page of docs/."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return text.split("```python\n")[1].split("```")[0]


def documented(page: str, code: str | None = None) -> dict[str, Any]:
    """What the first code block of a page of docs/ defines, or so much of it as is given."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code or block(page), f"docs/{page}", "exec"), names)
    return names


@cache
def example() -> dict[str, Any]:
    """What docs/layered.md defines: a decoder, and random weights for it. What is measured of it there is left out."""
    definitions, rest = block("layered.md").split(MEASURED)
    assert "flip_sensitivity" in rest
    return documented("layered.md", definitions)
