"""Peak memory of a process, told apart from what it held before the measurement."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Bytes that a stretch of work takes at most, beyond what the process held when this object was made.

    On Linux the kernel's high-water mark is set back by `begin`, so that compiling before it does not count; elsewhere
    it is the largest resident size of the process so far. Make it in a process of its own: `ru_maxrss` never
    falls, and a child inherits its parent's.
    """

    def __init__(self) -> None:
        _trim()
        self.baseline = _resident() or _largest()
        self.resettable = False

    def begin(self) -> None:
        """The work starts now; what was freed before goes back to the system first."""
        _trim()
        try:
            _CLEAR.write_text("5")  # sets VmHWM back to VmRSS
            self.resettable = True
        except OSError:
            self.resettable = False

    def peak(self) -> int:
        """The largest resident size since `begin`, less the baseline; at least 0."""
        mark = _status("VmHWM") if self.resettable else None
        return max(0, (mark or _largest()) - self.baseline)


def _trim() -> None:
    gc.collect()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


def _resident() -> int | None:
    return _status("VmRSS")


def _status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text("ascii").splitlines()
    except OSError:
        return None
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")]
    return values[0] if values else None


def _largest() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
