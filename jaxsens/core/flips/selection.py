"""The flips of a measurement: what `jaxsens.core.flips.flips` asks for, of a model and its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, Written, no_rule
from jaxsens.core.base.memory import TOKEN_BYTES, check_fits
from jaxsens.core.flips.flip_table import (
    DELETED,
    FlipTable,
    Lists,
    Sample,
    flips_at_each,
    flips_of_groups,
    flips_of_lists,
)
from jaxsens.core.flips.flips import Delete, Flips, Insert, Mask, Neighbours, Pairs, Repeat, Substitute
from jaxsens.core.flips.positions import positions_at
from jaxsens.core.models.subjects.adapters import Measurable
from jaxsens.core.models.transformer.layered import LAST_OTHER, row_read

_BLOCK = 2**24
"""The number of cosines held at once."""

_DECIMALS = 6
"""The digits of cosines that are compared: those that float32 keeps, whatever the order of its sums."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The flips that a call asks for.

    Attributes:
        asked: what is flipped.
        lists: the symbols to insert, `DELETED` for a deletion.
        rows: (batch, n), the number of the list of each place; -1 for a place that is not flipped.
    """

    asked: Flips
    lists: Lists
    rows: Int[np.ndarray, "batch n"]

    @cached_property
    def alphabet(self) -> tuple[int, ...]:
        """The symbols that flips may insert, sorted; -1 for a deletion."""
        used = np.isin(np.arange(len(self.lists.counts)), self.rows)
        return tuple(np.unique(self.lists.symbols[np.repeat(used, self.lists.counts)]).tolist())

    @property
    def drawn(self) -> Sample | None:
        """The sample to draw of the flips; None for all."""
        return None if self.asked.sample is None else Sample(self.asked.sample, self.asked.seed)

    @property
    def _with_own(self) -> bool:
        """Whether a flip may have the symbol that stands at its position: inserted, it changes the word."""
        return self.asked.edit == "insert"

    def number(self, words: Int[np.ndarray, "batch n"], own: bool = True) -> int:
        """Returns the number of flips; at most that, if those that put back the present symbol count too: not `own`."""
        counts = self.lists.counts
        if self.asked.groups is not None:
            each = [counts[self.rows[:, group[0]]].sum() for group in self.asked.groups]
        elif own:
            each = flips_at_each(words, self.lists, self.rows, self._with_own)
        else:
            each = counts[self.rows[self.rows >= 0]]
        found = int(np.sum(each))
        return found if self.drawn is None else min(found, self.drawn.count)

    def entries(self, words: Int[np.ndarray, "batch n"]) -> int:
        """Returns the length of the list of flips; for groups, that of all positions that they flip."""
        if self.asked.groups is None:
            return self.number(words)
        return int(self.lists.counts[self.rows[self.rows >= 0]].sum())

    def flips(self, words: Int[np.ndarray, "batch n"]) -> FlipTable:
        """Returns the flips.

        Raises:
            InputError: if there are none.
        """
        groups = self.asked.groups
        if groups is None:
            found = flips_of_lists(words, self.lists, self.rows, self.drawn, self._with_own)
        else:
            found = flips_of_groups(words, self.lists, self.rows, groups, self.drawn)
        if not len(found):
            remedy = (
                "nothing to flip. The readout position, and special and unknown symbols, are excluded by default; give "
                f"a longer input, or positions, as in flips=jaxsens.{type(self.asked).__name__}(positions=[0])"
            )
            raise InputError.of("tokens", Written(f"shape {words.shape}"), remedy)
        return replace(found, alphabet=self.alphabet)


class _Inserted(NamedTuple):
    """What may be inserted: lists, and the number of each place's (one number for all, or (batch, n))."""

    lists: Lists
    rows: Any


_NOTHING = _Inserted(Lists.of([[]]), 0)


def default_flips(subject: Measurable) -> Flips:
    """Returns what is flipped by default: all symbols of the model's alphabet, or the 8 neighbours of each symbol in a
    model that encodes text, whose alphabet has tens of thousands."""
    return (
        Neighbours() if subject.token_names is not None and subject.embeddings is not None else Substitute()
    )


def select(
    flips: Flips, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> Selection:
    """Returns the flips that are asked for; adds the errors, such as symbols that no input of the model may have.

    Args:
        flips: what is flipped.
        subject: the model, with its readout.
        words: the inputs; (0, 0) if they are not known.
        problems: collects the errors.
    """
    found = _selected(flips, subject, words, problems)
    subject.check_readable("flips.symbols", found.lists.symbols, problems)
    return found


def _selected(
    flips: Flips, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> Selection:
    n = words.shape[1]
    last = max((group[-1] for group in flips.groups or ()), default=-1)
    if n and last >= n:
        problems.add(("flips", "groups", "position"), last, f"positions from 0 to {n - 1}")
    if isinstance(flips, Pairs):
        return _of_pairs(flips, subject, words, problems)
    if isinstance(flips, Substitute) and (lists := flips.by_position) is not None:
        return _of_mapping(flips, lists, subject, words, problems)
    reads = _reads(subject, words)
    read = (
        subject.position_read(n) if reads is None else int(reads[0]) if len({*reads.tolist()}) == 1 else None
    )
    # Insertions before the last position leave the symbol that is read in its place.
    excluded = (0 if subject.readout == 0 else None) if flips.edit == "insert" else read
    where = _places(flips, n, read, excluded, problems)
    _check_length(flips, subject, words, where, problems)
    inserted = _inserted(flips, subject, words, problems)
    kept = _kept(flips, subject, words, where, problems)
    if reads is not None and flips.positions is None and flips.groups is None and flips.edit != "insert":
        kept &= np.arange(n) < reads[:, None]  # what follows the row is padding
    return Selection(flips, inserted.lists, np.where(kept, inserted.rows, -1))


def _reads(subject: Measurable, words: Int[np.ndarray, "batch n"]) -> Int[np.ndarray, " batch"] | None:
    """Returns the position that is read of each word if it depends on its symbols."""
    readout = subject.readout
    if words.size and isinstance(readout, str) and readout.startswith(LAST_OTHER):
        return row_read(readout, words)
    return None


def _places(
    flips: Flips, n: int, read: int | None, excluded: int | None, problems: Problems
) -> Int[np.ndarray, " places"]:
    """Returns the positions that may be flipped, sorted: those given, or all except the one `excluded`, if any."""
    if flips.positions is not None:
        if not n:
            return np.array([one for one in flips.positions if isinstance(one, int)], int)
        try:
            return np.array(positions_at(flips.positions, n, read), int)
        except InputError as error:
            problems.include(error.problems, "flips")
            return np.zeros(0, int)
    everywhere = np.arange(n)
    return everywhere if excluded is None else everywhere[everywhere != excluded]


def _kept(
    flips: Flips,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> Bool[np.ndarray, "batch n"]:
    """Returns which places are flipped: those of groups, or all at `where` but special symbols, unless positions are
    named, and symbols beyond the alphabet, such as the end symbol, unless symbols or positions are. None after errors.
    """
    kept = np.zeros(words.shape, bool)
    if not words.size or problems:
        return kept
    if flips.groups is not None:
        kept[:, [position for group in flips.groups for position in group]] = True
        return kept
    kept[:, where] = True
    special, named = np.isin(words, subject.special), flips.positions is not None
    if isinstance(flips, Insert):  # which leaves the symbol at the position as it is
        return kept if named else kept & ~np.logical_and.accumulate(special, axis=1)
    if not named:
        kept &= ~special
    size = subject.alphabet_size
    if isinstance(flips, Substitute):
        size = None if flips.named is not None else size if flips.symbols is None else flips.symbols
    if size is not None and not flips.listed:
        kept &= words < size  # pyright: ignore[reportOperatorIssue] - a number here
    return kept


def _inserted(
    flips: Flips, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> _Inserted:
    """Returns what may be inserted, if it is said for all positions in the same way."""
    match flips:
        case Substitute():
            return _substituted(flips, subject, problems)
        case Neighbours():
            return _nearest(flips, subject, words, problems)
        case Mask():
            return _masked(flips, subject, problems)
        case Delete():
            return _Inserted(Lists.of([[DELETED]]), 0)
        case Insert():
            return _insertable(flips, subject, problems)
        case Repeat():
            own, rows = np.unique(words, return_inverse=True)
            return _Inserted(Lists.of([[one] for one in own]), rows.reshape(words.shape))
        case _:
            raise no_rule("flip_sensitivity", "flips", type(flips).__name__, Flips.kinds)


def _substituted(flips: Substitute, subject: Measurable, problems: Problems) -> _Inserted:
    if flips.named is not None:
        inputs.check_ids("flips.symbols", np.array(flips.named), subject.vocabulary_size, problems)
        return _Inserted(Lists.of([flips.named]), 0)
    size = flips.symbols if isinstance(flips.symbols, int) else None
    alphabet = inputs.alphabet(size, subject.alphabet_size, problems)
    return _Inserted(Lists.of([alphabet[~np.isin(alphabet, subject.reserved)]]), 0)


def _nearest(
    flips: Neighbours, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> _Inserted:
    if subject.embeddings is None:
        problems.add(
            "flips", flips, "the model does not show its embeddings; give symbols, or {position: symbols}"
        )
        return _NOTHING
    if problems:  # before the work of finding them
        return _NOTHING
    table = subject.embeddings()
    size = len(table) if subject.alphabet_size is None else min(len(table), subject.alphabet_size)
    allowed = np.delete(np.arange(size), [one for one in subject.reserved if one < size])
    if flips.k >= len(allowed):
        problems.add(
            "flips", flips, f"k of at most {len(allowed) - 1}: {len(allowed)} symbols may be inserted"
        )
        return _NOTHING
    different, rows = np.unique(words, return_inverse=True)
    nearest = nearest_symbols(table, different, flips.k, allowed)
    return _Inserted(Lists.of([*nearest]), rows.reshape(words.shape))


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
    found = np.empty((len(tokens), k), int)
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
            found[first + row] = allowed[near[np.argsort(-own[near], kind="stable")[:k]]]
    return found


def _masked(flips: Mask, subject: Measurable, problems: Problems) -> _Inserted:
    symbol = subject.mask if flips.symbol is None else flips.symbol
    if symbol is None:
        problems.add(
            "flips", flips, "the model does not say which symbol is its mask; give its id: jaxsens.Mask(103)"
        )
    else:
        inputs.check_ids("flips: mask", np.array([symbol]), subject.vocabulary_size, problems)
    return _Inserted(Lists.of([[symbol or 0]]), 0)


def _insertable(flips: Insert, subject: Measurable, problems: Problems) -> _Inserted:
    """Returns what an insertion inserts, everywhere."""
    if flips.symbols is not None:
        inputs.check_ids("flips.symbols", np.array(flips.symbols), subject.vocabulary_size, problems)
        return _Inserted(Lists.of([flips.symbols]), 0)
    if subject.alphabet_size is None:
        problems.add(
            "flips",
            flips,
            "the model does not say which symbols there are; give them: jaxsens.Insert([0, 1])",
        )
        return _NOTHING
    every = np.arange(subject.alphabet_size)
    return _Inserted(Lists.of([every[~np.isin(every, subject.reserved)]]), 0)


def _check_length(
    flips: Flips,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> None:
    """Adds the errors of an input that is too short or too long for flips that change its length, and of a readout that
    the edited word does not have."""
    if not flips.longer:
        return
    n = words.shape[1]
    if n and n + flips.longer < 1:
        problems.add("tokens", f"shape {words.shape}", "at least two symbols, of which one may be deleted")
    if n and flips.longer > 0:
        before, after = Problems(), Problems()
        subject.check_length(n, before)
        remedy, m = "repeat it fewer times, or give a shorter input", n + flips.longer
        if check_fits("n", m, m * TOKEN_BYTES, "a word of this length", remedy, after):
            subject.check_length(m, after)
        if not before:
            for one in after:
                problems.add("flips", flips, f"it makes an input of length {n} longer: {one}")
    readout, other = subject.readout, "shorter" if flips.longer < 0 else "longer"
    if isinstance(readout, int) and readout != 0:
        remedy = f'a {other} word has another symbol there: with {flips!r}, give "last", "mean" or 0'
        problems.add("readout", readout, remedy)
    if readout == 0 and flips.positions is not None and 0 in where:
        remedy = "it is read, and the edited word has another symbol there; leave it out"
        if flips.longer < 0:
            remedy = "it is read, and a word without it has nothing to compare; leave it out"
        problems.add(("flips", "positions"), 0, remedy)


def _of_pairs(
    flips: Pairs, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> Selection:
    """Returns the selection of exactly these flips of every input."""
    n, nothing = words.shape[1], Selection(flips, Lists.of([[]]), np.full(words.shape, -1))
    position, symbol = np.array(flips.flips).T
    if n and position.max() >= n:
        problems.add(("flips", "position"), int(position.max()), f"positions from 0 to {n - 1}")
        return nothing
    inputs.check_ids("flips.symbol", symbol, subject.vocabulary_size, problems)
    if not n:
        return nothing
    same = np.argwhere(words[:, position] == symbol)
    if len(same):
        k, which = same[0]
        remedy = f"input {k} has this symbol there already; leave the flip out"
        problems.add("flips", (int(position[which]), int(symbol[which])), remedy)
    by_position = {p: np.unique(symbol[position == p]) for p in np.unique(position).tolist()}
    return Selection(flips, Lists.of([*by_position.values()]), _rows(words, by_position))


def _of_mapping(
    flips: Substitute,
    lists: Mapping[int, tuple[int, ...]],
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    problems: Problems,
) -> Selection:
    """Returns the selection of a mapping of positions to symbols."""
    n, sound = words.shape[1], dict[int, tuple[int, ...]]()
    for position, symbols in lists.items():
        if n and position >= n:
            problems.add(("flips", "position"), position, f"0-based positions below {n}")
            continue
        inputs.check_ids(f"flips[{position}]", np.array(symbols), subject.vocabulary_size, problems)
        sound[position] = symbols
    return Selection(flips, Lists.of([*sound.values()]), _rows(words, sound))


def _rows(words: Int[np.ndarray, "batch n"], lists: Mapping[int, Any]) -> Int[np.ndarray, "batch n"]:
    """Returns the number of the list of each place, of lists by position."""
    rows = np.full(words.shape, -1)
    if words.size:
        rows[:, list(lists)] = np.arange(len(lists))
    return rows
