"""Enumerates the flips of inputs: all of them or a random sample; and the symbols whose embeddings are nearest to
that of a symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from jaxtyping import Bool, Float, Int

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


DELETED = -1
"""What stands for the symbol of a flip that deletes its position."""

DELETED_NAME = "(deleted)"
"""How to write it where symbols are written as strings."""

PADDING = int(np.iinfo(np.int32).max)
"""Fills the positions of groups smaller than the largest. It is beyond every word, where JAX drops an update."""


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

    def part(self, chosen: Int[np.ndarray, " chosen"] | Bool[np.ndarray, " flips"] | slice) -> FlipTable:
        """Returns some of the flips, of the same inputs."""
        return replace(
            self, inputs=self.inputs[chosen], positions=self.positions[chosen], symbols=self.symbols[chosen]
        )

    def of_input(self, k: int) -> FlipTable:
        """Returns the flips of input k, as those of input 0."""
        part = self.part(slice(*np.searchsorted(self.inputs, [k, k + 1])))
        return replace(part, inputs=part.inputs - k, populations=self.populations[k : k + 1])

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

    def description(self, flip: int) -> str:
        """Returns how a message names a flip."""
        symbol, position = int(self.symbols[flip, 0]), int(self.positions[flip, 0])
        what = "a deletion" if symbol == DELETED else f"symbol {symbol}"
        return f"{what} at position {position} of input {int(self.inputs[flip])}"

    def edited(
        self, tokens: Int[np.ndarray, "batch n"], chosen: Int[np.ndarray, " chosen"], longer: int = 0
    ) -> Int[np.ndarray, "chosen m"]:
        """Returns the words that some of the flips make, by NumPy and independently of `Flips.rewrite`.

        `longer` is `Flips.longer`: by how many symbols these words are longer.
        """
        part = self.part(chosen)
        new_tokens = tokens[part.inputs]
        if longer:
            each = zip(new_tokens, part.positions[:, 0], part.symbols[:, 0], strict=True)
            if longer < 0:
                return np.array([np.delete(word, position) for word, position, _ in each])
            return np.array([np.insert(word, [position] * longer, symbol) for word, position, symbol in each])
        flip, positions, symbols = part.places()
        new_tokens[flip, positions] = symbols
        return new_tokens


@dataclass(frozen=True, eq=False)
class Candidates:
    """The flips of some inputs before they are listed: in memory of the places and of what may be inserted, rather than
    of all flips.

    Attributes:
        positions: the positions of each place: one, or those of a group.
        rows: all different rows of symbols, sorted; also those that stand in the inputs.
        keys: each row of each list of rows, once, sorted: the number of the list times `len(rows)`, plus that of the
            row.
        first: where the list of each place of each input begins in `keys`.
        own: where the row in it that would leave the word as it is stands in `keys`; -1 if there is none.
        counts: the number of flips of each place of each input.
        alphabet: the symbols that flips may insert, sorted; -1 for a deletion.
    """

    positions: Int[np.ndarray, "places k"]
    rows: Int[np.ndarray, "rows k"]
    keys: Int[np.ndarray, " keys"]
    first: Int[np.ndarray, "batch places"]
    own: Int[np.ndarray, "batch places"]
    counts: Int[np.ndarray, "batch places"]
    alphabet: tuple[int, ...]

    @classmethod
    def of(
        cls,
        tokens: Int[np.ndarray, "batch n"],
        lists: Sequence[Sequence[int] | Int[np.ndarray, " symbols"]],
        which: Int[np.ndarray, "batch n"],
        groups: Sequence[tuple[int, ...]] | None = None,
        with_own: bool = False,
    ) -> Candidates:
        """Returns the flips of each position to every symbol of its list other than the one there.

        Args:
            tokens: the inputs.
            lists: lists of symbols that are inserted.
            which: the number of each position's list; -1 for a position that is not flipped.
            groups: positions that are flipped together, sorted, by their first: the j-th flip of a group inserts the
                j-th symbol of each of its lists, which are equally long. Second copies of a flip are left out.
            with_own: take the symbol there too: flips insert symbols rather than replace them.
        """
        positions = np.arange(tokens.shape[1])[:, None]
        if groups is not None:
            positions = np.array([*zip_longest(*groups, fillvalue=PADDING)]).T
        padding, k = positions == PADDING, positions.shape[1]
        at = np.where(padding, 0, positions)
        used, number = _distinct(np.where(padding, -1, which[:, at]).reshape(-1, k))
        symbols = np.concatenate([np.asarray(one, np.int64) for one in lists])
        lengths = np.array([*map(len, lists)])
        sizes = np.where(used[:, 0] < 0, 0, lengths[used[:, 0]])
        of = np.repeat(np.arange(len(used)), sizes)
        rank = np.arange(len(of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        starts = (np.cumsum(lengths) - lengths)[np.where(used < 0, used[:, :1], used)]
        inserted = np.where(used[of] < 0, DELETED, symbols[starts[of] + rank[:, None]])
        present = np.where(padding, DELETED, tokens[:, at]).reshape(-1, k)
        rows, row = _distinct(np.concatenate([inserted, present]))
        keys = np.unique(of * len(rows) + row[: len(of)])
        first = np.searchsorted(keys, np.arange(len(used) + 1) * len(rows))
        own_key = number * len(rows) + row[len(of) :]
        own = np.searchsorted(keys, own_key)
        has_own = (np.append(keys, -1)[own] == own_key) & (not with_own)
        shape = len(tokens), len(positions)
        counts = np.diff(first)[number] - has_own
        columns = (column.reshape(shape) for column in (first[number], np.where(has_own, own, -1), counts))
        inserts = np.isin(np.arange(len(lists)), which)
        alphabet = np.unique(symbols[np.repeat(inserts, lengths)]).tolist()
        return cls(positions, rows, keys, *columns, alphabet=tuple(alphabet))

    def table(self, sample: int | None = None, seed: int = 0) -> FlipTable:
        """Returns the flips, or a uniform sample of so many without replacement. Cost and memory are those of the
        sample."""
        counts, own = self.counts.ravel(), self.own.ravel()
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if sample is None or sample >= total:
            flips, cell = np.arange(total), np.repeat(np.arange(len(counts)), counts)
        else:
            flips = np.sort(np.random.default_rng(seed).choice(total, size=sample, replace=False))
            cell = np.searchsorted(ends, flips, side="right")
        at_key = flips + (self.first.ravel() - (ends - counts))[cell]
        at_key += (own[cell] >= 0) & (at_key >= own[cell])
        inputs, place = np.divmod(cell, len(self.positions))
        symbols = self.rows[self.keys[at_key] % len(self.rows)]
        return FlipTable(inputs, self.positions[place], symbols, self.counts.sum(axis=1), self.alphabet)


def _distinct(
    rows: Int[np.ndarray, "rows k"],
) -> tuple[Int[np.ndarray, "distinct k"], Int[np.ndarray, " rows"]]:
    """Returns the different rows, sorted, and the number of each row among them."""
    if rows.shape[1] == 1:  # far faster than rows
        numbers, place = np.unique(rows[:, 0], return_inverse=True)
        return numbers[:, None], place
    distinct, place = np.unique(rows, axis=0, return_inverse=True)
    return distinct, place.ravel()
