"""Before anything is timed: do all methods give the same numbers?"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far a norm may be from float64, the absolute part in units of the largest norm.

Float32 outputs are subtracted: their rounding is 1e-7 of some tens, and norms are 0.01 to 1 at n = 128. Each layer
beyond the third may double it: models with random weights amplify a few flips' rounding in every layer."""


class Disagreement(RuntimeError):
    """Methods that should measure the same thing do not; nothing was timed."""


def disagreement(
    method: str, norms: Float[np.ndarray, " flips"], exact: Float[np.ndarray, " flips"], layers: int = 3
) -> str | None:
    """In what `norms` is not the same as the float64 reference, within `RELATIVE` and `ABSOLUTE`, or None."""
    if norms.shape != exact.shape:
        return f"{method}: {norms.shape[0]} flips, where the reference has {exact.shape[0]}"
    allowed = (RELATIVE * exact + ABSOLUTE * np.max(exact)) * 2 ** max(0, layers - 3)
    off = ~(np.abs(norms - exact) <= allowed)
    if not off.any():
        return None
    first = int(np.argmax(off))
    return (
        f"{method}: {int(off.sum())} of {len(exact)} norms differ from float64, first at position {first}: "
        f"{norms[first]:.6g} for {exact[first]:.6g}"
    )


def largest_relative_error(norms: Float[np.ndarray, " flips"], exact: Float[np.ndarray, " flips"]) -> float:
    """max |norm - exact| / exact; where exact is 0, any other number counts as infinitely wrong."""
    difference = np.abs(np.asarray(norms, np.float64) - exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / exact)
    return float(np.max(relative))
