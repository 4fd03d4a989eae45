"""Enumerates the flips of inputs: all of them or a random sample.

A flip (b, i, s) replaces the i-th symbol of input b by s. Hahn (2020, Lemma 5) changes x_i with i < n, where x_n is the
end-of-sequence symbol and y_n is read out. The readout position reaches the output through the skip connection, changes
it by O(1) in every model, and would hide the scaling of the rest. Flips of groups replace several symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

DELETED = -1
"""What stands for the symbol of a flip that deletes its position."""

DELETED_NAME = "(deleted)"
"""How to write it where symbols are written as strings."""

PADDING = int(np.iinfo(np.int32).max)
"""Fills the positions of groups smaller than the largest. It is beyond every word, where JAX drops an update."""

_SPAN = 2**32
"""More than there are symbols."""


@dataclass(frozen=True)
class Sample:
    """A uniform random sample of the flips, without replacement: the number of flips over all inputs, and the seed."""

    count: int
    seed: int = 0

    def of(self, total: int) -> Int[np.ndarray, " drawn"]:
        """Returns the numbers of the flips drawn of `total`, sorted."""
        if self.count >= total:
            return np.arange(total)
        return np.sort(np.random.default_rng(self.seed).choice(total, size=self.count, replace=False))


def places(n: int, readout: int | None) -> Int[np.ndarray, " places"]:
    """Returns the positions that are flipped by default, sorted: all except the readout position, if any."""
    everywhere = np.arange(n)
    return everywhere if readout is None else everywhere[everywhere != readout]


@dataclass(frozen=True, eq=False)
class FlipTable:
    """The flips of some inputs, a row each, sorted by input, positions, symbols.

    A flip changes k positions: one, or those of a group. Rows of smaller groups end in the position `PADDING` and the
    symbol -1.

    Attributes:
        inputs: the number of the input that each flip belongs to.
        positions, symbols: what `Flips.rewrite` takes.
        populations: the number of flips of each input, drawn or not.
        alphabet: the symbols that flips may insert, sorted.
    """

    inputs: Int[np.ndarray, " flips"]
    positions: Int[np.ndarray, "flips k"]
    symbols: Int[np.ndarray, "flips k"]
    populations: Int[np.ndarray, " batch"]
    alphabet: tuple[int, ...] = ()

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

    def part(self, kept: Int[np.ndarray, " kept"] | Bool[np.ndarray, " flips"] | slice) -> FlipTable:
        """Returns some of the flips, of the same inputs."""
        return replace(
            self, inputs=self.inputs[kept], positions=self.positions[kept], symbols=self.symbols[kept]
        )

    def of_input(self, k: int) -> FlipTable:
        """Returns the flips of input k, as those of input 0."""
        found = self.part(slice(*np.searchsorted(self.inputs, [k, k + 1])))
        return replace(found, inputs=found.inputs - k, populations=self.populations[k : k + 1])

    def places(
        self,
    ) -> tuple[Int[np.ndarray, " places"], Int[np.ndarray, " places"], Int[np.ndarray, " places"]]:
        """Returns the flip, the position and the symbol of every position that a flip changes, by flip."""
        flip, k = np.nonzero(self.positions != PADDING)
        return flip, self.positions[flip, k], self.symbols[flip, k]

    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """Returns the positions and the symbols of every flip, a tuple each, without padding."""
        sizes = np.sum(self.positions != PADDING, axis=1).tolist()
        columns = {"positions": self.positions.tolist(), "symbols": self.symbols.tolist()}
        return {
            name: [tuple(row[:size]) for row, size in zip(rows, sizes, strict=True)]
            for name, rows in columns.items()
        }

    def said(self, flip: int) -> str:
        """Returns how a message names a flip."""
        symbol, position = int(self.symbols[flip, 0]), int(self.positions[flip, 0])
        what = "a deletion" if symbol == DELETED else f"symbol {symbol}"
        return f"{what} at position {position} of input {int(self.inputs[flip])}"

    def edited(
        self, words: Int[np.ndarray, "batch n"], chosen: Int[np.ndarray, " chosen"], longer: int = 0
    ) -> Int[np.ndarray, "chosen m"]:
        """Returns the words that some of the flips make, by NumPy and independently of `Flips.rewrite`.

        `longer` is `Flips.longer`: by how many symbols these words are longer.
        """
        part = self.part(chosen)
        found = words[part.inputs]
        if longer:
            each = zip(found, part.positions[:, 0], part.symbols[:, 0], strict=True)
            if longer < 0:
                return np.array([np.delete(word, position) for word, position, _ in each])
            return np.array([np.insert(word, [position] * longer, symbol) for word, position, symbol in each])
        flip, positions, symbols = part.places()
        found[flip, positions] = symbols
        return found

    def replaced(
        self, words: Int[np.ndarray, "batch n"], chosen: Int[np.ndarray, " chosen"]
    ) -> Int[np.ndarray, "batch n"]:
        """Returns the inputs with the symbols of all of some flips at once, which must be flips of different places."""
        found, part = words.copy(), self.part(chosen)
        flip, positions, symbols = part.places()
        found[part.inputs[flip], positions] = symbols
        return found


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of symbols, one after the other, each of the length that `counts` says."""

    symbols: Int[np.ndarray, " symbols"]
    counts: Int[np.ndarray, " lists"]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int] | Int[np.ndarray, " symbols"]]) -> Lists:
        """Returns the lists, in the order given."""
        arrays = [np.asarray(symbols, np.int64) for symbols in lists]
        whole = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return cls(whole, np.array([len(array) for array in arrays], np.int64))

    @property
    def starts(self) -> Int[np.ndarray, " lists"]:
        """Where each list begins."""
        return np.cumsum(self.counts) - self.counts

    def keys(self) -> Int[np.ndarray, " keys"]:
        """Returns the key (`_key`) of each symbol of each list, once, sorted: by list, then by symbol."""
        return np.unique(_key(np.repeat(np.arange(len(self.counts)), self.counts), self.symbols))


def _key(lists: Any, symbols: Any) -> Any:
    """Returns one number for a list's number and a symbol, which may be `DELETED`."""
    return lists * _SPAN + (symbols - DELETED)


def enumerate_flips(
    tokens: Int[np.ndarray, "batch n"],
    symbols: Int[np.ndarray, " alphabet"],
    positions: Int[np.ndarray, " p"],
    keep: Bool[np.ndarray, "batch n"],
    drawn: Sample | None,
) -> FlipTable:
    """Returns the flips of `positions` to every symbol of `symbols` other than the one there.

    Args:
        keep: boolean; positions of an input where it is False are not flipped (such as end-of-sequence symbols).
        drawn: draw this sample instead of listing all flips. Cost and memory are then those of the sample.
    """
    flipped = np.zeros(tokens.shape[1], bool)
    flipped[positions] = True
    return flips_of_lists(tokens, Lists.of([symbols]), np.where(flipped & keep, 0, -1), drawn)


def flips_of_lists(
    tokens: Int[np.ndarray, "batch n"],
    lists: Lists,
    rows: Int[np.ndarray, "batch n"],
    drawn: Sample | None,
    with_own: bool = False,
) -> FlipTable:
    """Returns the flips of each place to every symbol of its list other than the one there.

    Args:
        rows: the number of each place's list; -1 for a place that is not flipped.
        drawn: draw this sample instead of listing all flips. Cost and memory are then those of the sample.
        with_own: take the symbol there too: flips insert symbols rather than replace them.
    """
    n, keys, each = tokens.shape[1], lists.keys(), flips_at_each(tokens, lists, rows, with_own).ravel()
    ends, row = np.cumsum(each), np.maximum(rows.ravel(), 0)
    if drawn is None or drawn.count >= ends[-1]:
        index, place = np.arange(ends[-1]), np.repeat(np.arange(tokens.size), each)
    else:
        index = drawn.of(int(ends[-1]))
        place = np.searchsorted(ends, index, side="right")
    # The present symbol is not counted among a place's flips, so it is skipped.
    starts, own_key = np.searchsorted(keys, _key(row, DELETED)), _key(row, tokens.ravel())
    at = np.searchsorted(keys, own_key)
    own = (np.append(keys, -1)[at] == own_key) & (not with_own)
    found = index + (starts - (ends - each))[place]
    found += own[place] & (found >= at[place])
    symbols = keys[found] % _SPAN + DELETED
    columns = place // n, (place % n)[:, None], symbols[:, None]
    return FlipTable(*columns, each.reshape(tokens.shape).sum(axis=1))


def flips_at_each(
    tokens: Int[np.ndarray, "batch n"], lists: Lists, rows: Int[np.ndarray, "batch n"], with_own: bool = False
) -> Int[np.ndarray, "batch n"]:
    """Returns the number of flips of each place: of the symbols of its list, `with_own` or without the one there."""
    keys, row = lists.keys(), np.maximum(rows, 0)
    counts = np.diff(np.searchsorted(keys, _key(np.arange(len(lists.counts) + 1), DELETED)))
    own = np.isin(_key(row, tokens), keys) & (not with_own)
    return np.where(rows >= 0, counts[row] - own, 0)


def flips_of_groups(
    tokens: Int[np.ndarray, "batch n"],
    lists: Lists,
    rows: Int[np.ndarray, "batch n"],
    groups: tuple[tuple[int, ...], ...],
    drawn: Sample | None,
) -> FlipTable:
    """Returns the flips of groups: the j-th inserts the j-th symbol of its list at every position of the group.

    Flips that change no symbol, or the same word in the same way as another, are left out. All lists of a group are of
    equal length. `rows` and `drawn` are those of `flips_of_lists`, but all flips are listed before some are drawn.

    Args:
        groups: sorted positions, sorted by the first.
    """
    batch, largest, starts = len(tokens), max(map(len, groups)), lists.starts
    parts: list[np.ndarray] = []
    for k, group in enumerate(groups):
        place = list(group)
        own = rows[:, place]
        ranks = np.arange(int(lists.counts[own[0, 0]]))
        inserted = lists.symbols[starts[own][:, None, :] + ranks[:, None]]
        changed = (inserted != tokens[:, None, place]).any(axis=2)
        b, j = np.nonzero(changed)
        part = np.full((len(b), 2 + largest), DELETED, np.int64)
        part[:, 0], part[:, 1], part[:, 2 : 2 + len(place)] = b, k, inserted[b, j]
        parts.append(part)
    every = np.unique(np.concatenate(parts), axis=0)
    populations = np.bincount(every[:, 0], minlength=batch)
    if drawn is not None:
        every = every[drawn.of(len(every))]
    members = np.array([(*group, *[PADDING] * (largest - len(group))) for group in groups])
    return FlipTable(every[:, 0], members[every[:, 1]], every[:, 2:], populations)
