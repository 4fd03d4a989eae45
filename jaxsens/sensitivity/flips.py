"""Single-symbol flips: which there are, all of them or a random sample.

A flip (b, i, s) puts the symbol s in place of the i-th symbol of input b. Hahn (2020, Lemma 5) exchanges x_i with
i < n, where x_n is the end-of-sequence symbol and y_n is read out: the readout position reaches the output through
the skip connection, changes it by O(1) in every model, and would hide the scaling of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jaxsens import inputs
from jaxsens.errors import Faults, collecting


@dataclass(frozen=True)
class Sample:
    """A uniform random sample of the flips, without replacement. Made by `sample`."""

    count: int
    seed: int = 0
    positions: tuple[int, ...] | None = None


def sample(count: int, seed: int = 0, positions: Sequence[int] | None = None) -> Sample:
    """Asks `flip_sensitivity` for `count` flips drawn uniformly without replacement instead of all.

    Args:
        count: how many flips, over all inputs together; all of them if there are fewer.
        seed: of the draw.
        positions: draw only among flips of these 0-based positions; by default among all that would be measured.

    Raises:
        InputError: naming each argument that cannot be used.
    """
    with collecting("sample") as faults:
        count = inputs.count("count", count, faults, least=1)
        seed = inputs.seed(seed, faults)
        chosen = None if positions is None else inputs.positions(positions, 0, faults)
    return Sample(count, seed, None if chosen is None else tuple(chosen.tolist()))


def places(
    positions: Sequence[int] | Sample | None, n: int, readout: int | None, faults: Faults
) -> Int[np.ndarray, " places"]:
    """The positions that may be flipped, sorted: those given, or all but the one that is read out, if one is."""
    given = positions.positions if isinstance(positions, Sample) else positions
    if given is not None:
        return np.sort(inputs.positions(given, n, faults))
    everywhere = np.arange(n)
    return everywhere if readout is None else everywhere[everywhere != readout]


@dataclass(frozen=True, eq=False)
class Flips:
    """Flat arrays, one entry a flip, sorted by input, position, symbol. `populations`: how many flips each input has,
    drawn or not."""

    inputs: Int[np.ndarray, " flips"]
    positions: Int[np.ndarray, " flips"]
    symbols: Int[np.ndarray, " flips"]
    populations: Int[np.ndarray, " batch"]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def population(self) -> int:
        """How many flips there are, drawn or not."""
        return int(self.populations.sum())

    @property
    def exhaustive(self) -> bool:
        """Whether these are all the flips there are, not a sample."""
        return len(self) == self.population


def enumerate_flips(
    tokens: Int[np.ndarray, "batch n"],
    symbols: Int[np.ndarray, " alphabet"],
    positions: Int[np.ndarray, " p"],
    keep: Bool[np.ndarray, "batch n"],
    drawn: Sample | None,
) -> Flips:
    """The flips of `positions` by every symbol of `symbols` that is not there already.

    Args:
        keep: boolean; positions of single inputs where it is False are left as they are (an end-of-sequence).
        drawn: draw this sample instead of listing all. Cost and memory are then those of the sample.
    """
    n = tokens.shape[1]
    flipped = np.zeros(n, bool)
    flipped[positions] = True
    own = np.isin(tokens, symbols)
    each = np.where(flipped & keep, len(symbols) - own, 0).ravel()
    ends = np.cumsum(each)
    total = int(ends[-1])
    if drawn is None or drawn.count >= total:
        index = np.arange(total)
    else:
        index = np.sort(np.random.default_rng(drawn.seed).choice(total, size=drawn.count, replace=False))
    place = np.searchsorted(ends, index, side="right")
    rank = index - (ends[place] - each[place])
    ordered = np.sort(symbols)
    # The rank counts symbols other than the one in place: step over that one.
    here = tokens.ravel()[place]
    skipped = np.searchsorted(ordered, here)
    rank = rank + (own.ravel()[place] & (rank >= skipped))
    return Flips(place // n, place % n, ordered[rank], each.reshape(tokens.shape).sum(axis=1))
