"""Rejects work that cannot fit in this machine's memory before it starts, and says how much it needs.

Estimates are lower bounds: rejected work could not have run. Accepted work may still be too large if other programs use
much of the memory.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from jaxsens.core.base.errors import Problems

TOKEN_BYTES = 48
"""Bytes needed for one position, to choose and count its flips. A fourth of them remain: its id, and its list."""

FLIP_BYTES = 64
"""Bytes needed to enumerate one flip. Half of them remain: position, symbol, input and norm."""

_LIMIT = Path("/sys/fs/cgroup/memory.max")


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Returns the bytes of memory of this machine, or the limit of the container if that is smaller."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_LIMIT.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # No such limit, or "max".
        return whole


def check_fits(
    argument: str, value: object, needed: float, what: str, remedy: str, problems: Problems
) -> bool:
    """Returns whether `needed` bytes fit in this machine's memory; if not, adds an error for the argument.

    `what` is a noun in the singular, such as "the list of its flips".
    """
    have = machine_memory()
    if needed <= have:
        return True
    problems.add(
        argument, value, f"{what} takes {in_words(needed)}, and this machine has {in_words(have)}; {remedy}"
    )
    return False


def in_words(count: float) -> str:
    """Returns a number of bytes with a unit, such as 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 999.5:  # three digits, without an exponent
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} PiB"
