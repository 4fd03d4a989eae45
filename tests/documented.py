"""The code blocks of guides, which tests run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def documented(page: str) -> dict[str, Any]:
    """What the first code block of a page of docs/ defines."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, f"docs/{page}", "exec"), names)
    return names


@cache
def example() -> dict[str, Any]:
    """What docs/layered.md defines: a decoder, and random weights for it."""
    return documented("layered.md")
