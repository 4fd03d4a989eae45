"""The symbols whose embeddings are nearest to that of a symbol."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

_BLOCK = 2**24
"""The number of cosines held at once."""

_DECIMALS = 6
"""The digits of cosines that are compared: those that float32 keeps, whatever the order of its sums."""


def nearest_symbols(
    table: Float[np.ndarray, "symbols width"],
    tokens: Int[np.ndarray, " tokens"],
    k: int,
    allowed: Int[np.ndarray, " allowed"],
) -> Int[np.ndarray, "tokens k"]:
    """Returns for each token the k symbols of `allowed` other than it whose rows have the largest cosine with its row.

    The nearest come first, and of symbols whose cosines agree to six decimals those of smaller ids. A row of zeros has
    the cosine 0 with all others. `allowed` is sorted and has at least k symbols besides each token.
    """
    rows = np.asarray(table, np.float32)
    sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    sizes[sizes == 0] = 1
    nearest = np.empty((len(tokens), k), int)
    step = max(1, _BLOCK // len(rows))
    for first in range(0, len(tokens), step):
        block = tokens[first : first + step]
        # The table is neither scaled nor copied: it is far larger than the cosines.
        cosines = (rows[block] / sizes[block, None] @ rows.T / sizes)[:, allowed]
        cosines = np.round(cosines, _DECIMALS)
        cosines[block[:, None] == allowed] = -np.inf
        least = np.partition(cosines, len(allowed) - k, axis=1)[:, len(allowed) - k]
        for row, (own, limit) in enumerate(zip(cosines, least, strict=True)):
            near = np.flatnonzero(own >= limit)
            nearest[first + row] = allowed[near[np.argsort(-own[near], kind="stable")[:k]]]
    return nearest
