"""Sliding windows: masks under which a row sees only the last few keys."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array, Bool, Int


@dataclass(frozen=True)
class SlidingWindow:
    """The future is masked, and so is what lies `width` or more positions back. A `MaskRule`, compared by value.

    Attributes:
        width: the number of keys that a row sees, itself included; at least 1.
    """

    width: int

    def __call__(self, queries: Int[Array, "*b"], keys: Int[Array, "*b"]) -> Bool[Array, "*b"]:
        """Returns whether each query position sees each key position; the two arrays broadcast."""
        return (keys <= queries) & (keys > queries - self.width)
