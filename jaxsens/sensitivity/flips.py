"""Enumerates the single-symbol flips of inputs: all of them or a random sample.

A flip (b, i, s) replaces the i-th symbol of input b by s. Hahn (2020, Lemma 5) changes x_i with i < n, where x_n is the
end-of-sequence symbol and y_n is read out. The readout position reaches the output through the skip connection, changes
it by O(1) in every model, and would hide the scaling of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jaxsens import inputs
from jaxsens.errors import Problems, collecting


@dataclass(frozen=True)
class Sample:
    """A uniform random sample of the flips, without replacement. Made by `sample`."""

    count: int
    seed: int = 0
    positions: tuple[int, ...] | None = None


def sample(count: int, seed: int = 0, positions: Sequence[int] | None = None) -> Sample:
    """Makes `flip_sensitivity` measure `count` flips, drawn uniformly without replacement, instead of all.

    Args:
        count: the number of flips over all inputs together; all flips if there are fewer.
        seed: the seed of the draw.
        positions: draw only flips of these 0-based positions; by default from all that would be measured.

    Raises:
        InputError: naming each unusable argument.
    """
    with collecting("sample") as problems:
        count = inputs.count("count", count, problems, least=1)
        seed = inputs.seed(seed, problems)
        chosen = None if positions is None else inputs.positions(positions, 0, problems)
    return Sample(count, seed, None if chosen is None else tuple(chosen.tolist()))


def places(
    positions: Sequence[int] | Sample | None, n: int, readout: int | None, problems: Problems
) -> Int[np.ndarray, " places"]:
    """Returns the positions that may be flipped, sorted: those given, or all except the readout position, if any."""
    given = positions.positions if isinstance(positions, Sample) else positions
    if given is not None:
        return np.sort(inputs.positions(given, n, problems))
    everywhere = np.arange(n)
    return everywhere if readout is None else everywhere[everywhere != readout]


@dataclass(frozen=True, eq=False)
class Flips:
    """Flat arrays with one entry per flip, sorted by input, position, symbol. `populations` is the number of flips of
    each input, drawn or not."""

    inputs: Int[np.ndarray, " flips"]
    positions: Int[np.ndarray, " flips"]
    symbols: Int[np.ndarray, " flips"]
    populations: Int[np.ndarray, " batch"]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def population(self) -> int:
        """The number of flips, drawn or not."""
        return int(self.populations.sum())

    @property
    def exhaustive(self) -> bool:
        """Whether these are all flips, rather than a sample."""
        return len(self) == self.population


def enumerate_flips(
    tokens: Int[np.ndarray, "batch n"],
    symbols: Int[np.ndarray, " alphabet"],
    positions: Int[np.ndarray, " p"],
    keep: Bool[np.ndarray, "batch n"],
    drawn: Sample | None,
) -> Flips:
    """Returns the flips of `positions` to every symbol of `symbols` other than the one there.

    Args:
        keep: boolean; positions of an input where it is False are not flipped (such as end-of-sequence symbols).
        drawn: draw this sample instead of listing all flips. Cost and memory are then those of the sample.
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
    # The rank counts symbols other than the present one, so skip that one.
    here = tokens.ravel()[place]
    skipped = np.searchsorted(ordered, here)
    rank = rank + (own.ravel()[place] & (rank >= skipped))
    return Flips(place // n, place % n, ordered[rank], each.reshape(tokens.shape).sum(axis=1))
