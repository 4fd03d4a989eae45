"""The code blocks of docs/first-order.md, which tests run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def documented(block: int) -> dict[str, Any]:
    """What a code block of docs/first-order.md defines, counted from 1."""
    text = (ROOT / "docs" / "first-order.md").read_text("utf-8")
    code = text.split("```python\n")[block].split("```")[0]
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "docs/first-order.md", "exec"), names)
    return names


@cache
def example() -> dict[str, Any]:
    """What the second code block defines: a decoder, and random weights for it."""
    return documented(2)
