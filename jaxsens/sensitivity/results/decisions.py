"""The sensitivity profile and the influences of a Boolean function, from its flips.

`changed` is 1 for a flip that changes the decision and 0 for one that does not. With several symbols a position has
several flips, and all counts are of flips.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Num


def distribution(
    sensitive: Num[np.ndarray, " batch"], flips: Int[np.ndarray, " batch"]
) -> Float[np.ndarray, " counts"]:
    """Returns the share of inputs with s = 0, 1, 2, ... sensitive flips, up to the most flips of an input.

    Args:
        sensitive: the number of flips of each input that change the decision.
        flips: the number of all flips of each input.
    """
    return np.bincount(sensitive.astype(np.int64), minlength=int(flips.max()) + 1) / len(sensitive)


def influences(
    positions: Int[np.ndarray, " flips"],
    changed: Num[np.ndarray, " flips"],
    lengths: Int[np.ndarray, " batch"],
) -> Float[np.ndarray, " n"]:
    """Returns for each position the mean, over the inputs that have it, of its flips that change the decision; NaN
    where no input is flipped. n is the largest of `lengths`, the lengths of the inputs."""
    n = int(lengths.max())
    flipped = np.bincount(positions, minlength=n) > 0
    changing = np.bincount(positions, weights=changed, minlength=n)
    inputs = (lengths[:, None] > np.arange(n)).sum(axis=0)
    return np.where(flipped, changing / inputs, np.nan)
