"""Enumerates the flips of inputs: all of them or a random sample.

A flip (b, i, s) replaces the i-th symbol of input b by s. Hahn (2020, Lemma 5) changes x_i with i < n, where x_n is the
end-of-sequence symbol and y_n is read out. The readout position reaches the output through the skip connection, changes
it by O(1) in every model, and would hide the scaling of the rest. Flips of groups (`Joint`) replace several symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

DELETED = -1
"""What stands for the symbol of a flip that deletes its position."""

DELETED_NAME = "(deleted)"
"""How to write it where symbols are written as strings."""

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
class Joint:
    """Positions that are flipped together, and the symbols that flips insert there.

    Attributes:
        groups: the positions of each group, sorted. No two groups share one, and groups are sorted by their first.
        insertions: (insertions, largest), what flips insert at the positions of a group, in their order; -1 beyond the
            last. Rows are different and sorted.
    """

    groups: tuple[tuple[int, ...], ...]
    insertions: Int[np.ndarray, "insertions largest"]

    def members(self, beyond: int) -> Int[np.ndarray, "groups largest"]:
        """Returns the positions of each group, and `beyond` after the last."""
        found = np.full((len(self.groups), self.insertions.shape[1]), beyond, np.int32)
        for k, group in enumerate(self.groups):
            found[k, : len(group)] = group
        return found

    def columns(
        self, positions: Int[np.ndarray, " flips"], insertion: Int[np.ndarray, " flips"]
    ) -> dict[str, list[tuple[int, ...]]]:
        """Returns the positions and the symbols of flips, each a tuple, from their first position and insertion."""
        groups = [self.groups[k] for k in self.group_at(positions)]
        symbols = [tuple(row) for row in self.insertions.tolist()]
        pairs = zip(groups, insertion, strict=True)
        return {"positions": groups, "symbols": [symbols[k][: len(group)] for group, k in pairs]}

    def by_position(
        self, positions: Int[np.ndarray, " flips"], insertion: Int[np.ndarray, " flips"]
    ) -> tuple[Int[np.ndarray, " places"], Int[np.ndarray, " places"], Int[np.ndarray, " places"]]:
        """Returns the flip, the position and the symbol of every place that flips replace, by flip."""
        members = self.members(DELETED)[self.group_at(positions)]
        flip, place = np.nonzero(members != DELETED)
        return flip, members[flip, place], self.insertions[insertion][flip, place]

    def group_at(self, positions: Int[np.ndarray, " flips"]) -> Int[np.ndarray, " flips"]:
        """Returns the number of the group that begins at each of the positions."""
        return np.searchsorted([group[0] for group in self.groups], positions)


@dataclass(frozen=True, eq=False)
class FlipTable:
    """Flat arrays with one entry per flip, sorted by input, position, symbol. `populations` is the number of flips of
    each input, drawn or not; `alphabet` the symbols that flips may insert, sorted.

    Of flips of groups, which `joint` describes, the position and the symbol are the first of those that are flipped,
    and `insertion` is the row of `joint.insertions`, by which they are sorted next.
    """

    inputs: Int[np.ndarray, " flips"]
    positions: Int[np.ndarray, " flips"]
    symbols: Int[np.ndarray, " flips"]
    populations: Int[np.ndarray, " batch"]
    alphabet: tuple[int, ...] = ()
    joint: Joint | None = None
    insertion: Int[np.ndarray, " flips"] | None = None

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

    @cached_property
    def edits(self) -> tuple[Int[np.ndarray, " flips"], Int[np.ndarray, " flips"]]:
        """What an engine is told of each flip: position and symbol, or for groups the group and the insertion."""
        if self.joint is None or self.insertion is None:
            return self.positions, self.symbols
        return self.joint.group_at(self.positions), self.insertion

    def part(self, kept: Int[np.ndarray, " kept"] | Bool[np.ndarray, " flips"] | slice) -> FlipTable:
        """Returns some of the flips, of the same inputs."""
        insertion = None if self.insertion is None else self.insertion[kept]
        columns = self.inputs[kept], self.positions[kept], self.symbols[kept]
        return FlipTable(*columns, self.populations, self.alphabet, self.joint, insertion)

    def of_input(self, k: int) -> FlipTable:
        """Returns the flips of input k, as those of input 0."""
        found = self.part(slice(*np.searchsorted(self.inputs, [k, k + 1])))
        return replace(found, inputs=found.inputs - k, populations=self.populations[k : k + 1])

    def said(self, flip: int) -> str:
        """Returns how a message names a flip."""
        symbol, position = int(self.symbols[flip]), int(self.positions[flip])
        what = "a deletion" if symbol == DELETED else f"symbol {symbol}"
        return f"{what} at position {position} of input {int(self.inputs[flip])}"

    def replaced(
        self, words: Int[np.ndarray, "batch n"], chosen: Int[np.ndarray, " chosen"]
    ) -> Int[np.ndarray, "batch n"]:
        """Returns the inputs with the symbols of all of some flips at once, which must be flips of different places."""
        found, inputs, positions = words.copy(), self.inputs[chosen], self.positions[chosen]
        if self.joint is None or self.insertion is None:
            found[inputs, positions] = self.symbols[chosen]
        else:
            flip, place, symbols = self.joint.by_position(positions, self.insertion[chosen])
            found[inputs[flip], place] = symbols
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
    return FlipTable(place // n, place % n, symbols, each.reshape(tokens.shape).sum(axis=1))


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
    insertions, insertion = np.unique(every[:, 2:], axis=0, return_inverse=True)
    joint, insertion = Joint(groups, insertions.astype(np.int32)), insertion.ravel()
    populations = np.bincount(every[:, 0], minlength=batch)
    if drawn is not None:
        chosen = drawn.of(len(every))
        every, insertion = every[chosen], insertion[chosen]
    firsts = np.array([group[0] for group in groups])
    return FlipTable(
        every[:, 0], firsts[every[:, 1]], every[:, 2], populations, joint=joint, insertion=insertion
    )
