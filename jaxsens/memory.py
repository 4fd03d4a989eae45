"""What cannot fit this machine's memory is refused before any of it is made, with the figure.

Estimates are lower bounds: what they refuse could not have run. What they let through may still be too large for the
memory that other programs leave.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from jaxsens.errors import Faults

TOKEN_BYTES = 24
"""A position of an input: its id as given and as measured, and the count of its flips."""

FLIP_BYTES = 64
"""A flip: what enumerating it takes. Position, symbol, input and norm, which stay, are half of it."""

_LIMIT = Path("/sys/fs/cgroup/memory.max")


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Bytes of this machine's memory, or of what the container it looks like may take."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_LIMIT.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # No such limit, or "max".
        return whole


def check_fits(argument: str, value: object, needed: float, what: str, remedy: str, faults: Faults) -> bool:
    """Notes an argument for which `what` would take more bytes than this machine has; whether it fits.

    `what` is a noun in the singular, such as "the list of its flips".
    """
    have = machine_memory()
    if needed <= have:
        return True
    faults.add(
        argument, value, f"{what} takes {in_words(needed)}, and this machine has {in_words(have)}; {remedy}"
    )
    return False


def in_words(count: float) -> str:
    """Bytes with a unit: 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} PiB"
