"""The flips of a measurement: what `jaxsens.core.flips.flips` asks for, of a model and its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import TOKEN_BYTES, InputError, Problems, Written, check_fits, no_rule
from jaxsens.core.flips.flip_table import DELETED, Candidates, FlipTable, Lists
from jaxsens.core.flips.flips import Delete, Flips, Insert, Mask, Neighbours, Pairs, Repeat, Substitute
from jaxsens.core.flips.positions import positions_at
from jaxsens.core.models.adapters import Model
from jaxsens.core.models.transformer.layered import LAST_OTHER, row_read

_BLOCK = 2**24
"""The number of cosines held at once."""

_DECIMALS = 6
"""The digits of cosines that are compared: those that float32 keeps, whatever the order of its sums."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The flips that a call asks for.

    Attributes:
        kind: what is flipped.
        tokens: the inputs.
        lists: the symbols to insert, `DELETED` for a deletion.
        rows: (batch, n), the number of the list of each place; -1 for a place that is not flipped.
    """

    kind: Flips
    tokens: Int[np.ndarray, "batch n"]
    lists: Lists
    rows: Int[np.ndarray, "batch n"]

    @property
    def alphabet(self) -> tuple[int, ...]:
        """The symbols that flips may insert, sorted; -1 for a deletion."""
        used = np.isin(np.arange(len(self.lists.counts)), self.rows)
        return tuple(np.unique(self.lists.symbols[np.repeat(used, self.lists.counts)]).tolist())

    @cached_property
    def candidates(self) -> Candidates:
        """The flips before they are listed. An insertion may be of the symbol that stands at its position."""
        return Candidates.of(self.tokens, self.lists, self.rows, self.kind.groups, self.kind.longer > 0)

    def number(self, own: bool = True) -> int:
        """Returns the number of flips; at most that, if those that put back the present symbol count too: not `own`."""
        count = int(self.candidates.counts.sum() + (0 if own else np.sum(self.candidates.own >= 0)))
        return count if self.kind.sample is None else min(count, self.kind.sample)

    def flips(self) -> FlipTable:
        """Returns the flips.

        Raises:
            InputError: if there are none.
        """
        if not self.candidates.counts.any():
            remedy = (
                "nothing to flip. The readout position, and special and unknown symbols, are excluded by default; give "
                f"a longer input, or positions, as in flips=jaxsens.{type(self.kind).__name__}(positions=[0])"
            )
            raise InputError.of("tokens", Written(f"shape {self.tokens.shape}"), remedy)
        return replace(self.candidates.table(self.kind.sample, self.kind.seed), alphabet=self.alphabet)


class _Inserted(NamedTuple):
    """What may be inserted: lists, and the number of each place's (one number for all, or (batch, n))."""

    lists: Lists
    rows: Any


_NOTHING = _Inserted(Lists.of([[]]), 0)


def default_flips(model: Model) -> Flips:
    """Returns what is flipped by default: all symbols of the model's alphabet, or the 8 neighbours of each symbol in a
    model that encodes text, whose alphabet has tens of thousands."""
    return Neighbours() if model.token_names is not None and model.embeddings is not None else Substitute()


def select(flips: Flips, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Selection:
    """Returns the flips that are asked for; adds the errors, such as symbols that no input of the model may have.

    Args:
        flips: what is flipped.
        model: the model, with its readout.
        tokens: the inputs; (0, 0) if they are not known.
        problems: collects the errors.
    """
    selection = _select(flips, model, tokens, problems)
    model.check_readable("flips.symbols", selection.lists.symbols, problems)
    return selection


def _select(flips: Flips, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Selection:
    n = tokens.shape[1]
    last = max((group[-1] for group in flips.groups or ()), default=-1)
    if n and last >= n:
        problems.add(("flips", "groups", "position"), last, f"positions from 0 to {n - 1}")
    if flips.by_position is not None:
        return _of_lists(flips, flips.by_position, model, tokens, problems)
    reads = _reads(model, tokens)
    read = model.position_read(n) if reads is None else int(reads[0]) if len({*reads.tolist()}) == 1 else None
    # Insertions before the last position leave the symbol that is read in its place.
    excluded = (0 if model.readout == 0 else None) if flips.longer > 0 else read
    where = _places(flips, n, read, excluded, problems)
    _check_length(flips, model, tokens, where, problems)
    inserted = _lists(flips, model, tokens, problems)
    flippable = _flippable(flips, model, tokens, where, problems)
    if reads is not None and flips.positions is None and flips.groups is None and flips.longer <= 0:
        flippable &= np.arange(n) < reads[:, None]  # what follows the row is padding
    return Selection(flips, tokens, inserted.lists, np.where(flippable, inserted.rows, -1))


def _reads(model: Model, tokens: Int[np.ndarray, "batch n"]) -> Int[np.ndarray, " batch"] | None:
    """Returns the position that is read of each word if it depends on its symbols."""
    readout = model.readout
    if tokens.size and isinstance(readout, str) and readout.startswith(LAST_OTHER):
        return row_read(readout, tokens)
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


def _flippable(
    flips: Flips,
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> Bool[np.ndarray, "batch n"]:
    """Returns which places are flipped: those of groups, or all at `where` but special symbols, unless positions are
    named, and symbols beyond the alphabet, such as the end symbol, unless symbols or positions are. None after errors.
    """
    flippable = np.zeros(tokens.shape, bool)
    if not tokens.size or problems:
        return flippable
    if flips.groups is not None:
        flippable[:, [position for group in flips.groups for position in group]] = True
        return flippable
    flippable[:, where] = True
    special, named = np.isin(tokens, model.special), flips.positions is not None
    if isinstance(flips, Insert):  # which leaves the symbol at the position as it is
        return flippable if named else flippable & ~np.logical_and.accumulate(special, axis=1)
    if not named:
        flippable &= ~special
    size = model.alphabet_size
    if isinstance(flips, Substitute):
        size = None if flips.named is not None else size if flips.symbols is None else flips.symbols
    if size is not None and not flips.listed:
        flippable &= tokens < size  # pyright: ignore[reportOperatorIssue] - a number here
    return flippable


def _lists(flips: Flips, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> _Inserted:
    """Returns what may be inserted, if it is said for all positions in the same way."""
    match flips:
        case Substitute():
            return _substituted(flips, model, problems)
        case Neighbours():
            return _nearest(flips, model, tokens, problems)
        case Mask():
            return _masked(flips, model, problems)
        case Delete():
            return _Inserted(Lists.of([[DELETED]]), 0)
        case Insert():
            return _insertable(flips, model, problems)
        case Repeat():
            own, rows = np.unique(tokens, return_inverse=True)
            return _Inserted(Lists.of([[one] for one in own]), rows.reshape(tokens.shape))
        case _:
            raise no_rule("flip_sensitivity", "flips", type(flips).__name__, Flips.kinds)


def _substituted(flips: Substitute, model: Model, problems: Problems) -> _Inserted:
    if flips.named is not None:
        inputs.check_ids("flips.symbols", np.array(flips.named), model.vocabulary_size, problems)
        return _Inserted(Lists.of([flips.named]), 0)
    size = flips.symbols if isinstance(flips.symbols, int) else None
    alphabet = inputs.alphabet(size, model.alphabet_size, problems)
    return _Inserted(Lists.of([alphabet[~np.isin(alphabet, model.reserved)]]), 0)


def _nearest(
    flips: Neighbours, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems
) -> _Inserted:
    if model.embeddings is None:
        problems.add(
            "flips", flips, "the model does not show its embeddings; give symbols, or {position: symbols}"
        )
        return _NOTHING
    if problems:  # before the work of finding them
        return _NOTHING
    table = model.embeddings()
    size = len(table) if model.alphabet_size is None else min(len(table), model.alphabet_size)
    allowed = np.delete(np.arange(size), [one for one in model.reserved if one < size])
    if flips.k >= len(allowed):
        problems.add(
            "flips", flips, f"k of at most {len(allowed) - 1}: {len(allowed)} symbols may be inserted"
        )
        return _NOTHING
    different, rows = np.unique(tokens, return_inverse=True)
    nearest = nearest_symbols(table, different, flips.k, allowed)
    return _Inserted(Lists.of([*nearest]), rows.reshape(tokens.shape))


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


def _masked(flips: Mask, model: Model, problems: Problems) -> _Inserted:
    symbol = model.mask if flips.symbol is None else flips.symbol
    if symbol is None:
        problems.add(
            "flips", flips, "the model does not say which symbol is its mask; give its id: jaxsens.Mask(103)"
        )
    else:
        inputs.check_ids("flips: mask", np.array([symbol]), model.vocabulary_size, problems)
    return _Inserted(Lists.of([[symbol or 0]]), 0)


def _insertable(flips: Insert, model: Model, problems: Problems) -> _Inserted:
    """Returns what an insertion inserts, everywhere."""
    if flips.symbols is not None:
        inputs.check_ids("flips.symbols", np.array(flips.symbols), model.vocabulary_size, problems)
        return _Inserted(Lists.of([flips.symbols]), 0)
    if model.alphabet_size is None:
        problems.add(
            "flips",
            flips,
            "the model does not say which symbols there are; give them: jaxsens.Insert([0, 1])",
        )
        return _NOTHING
    every = np.arange(model.alphabet_size)
    return _Inserted(Lists.of([every[~np.isin(every, model.reserved)]]), 0)


def _check_length(
    flips: Flips,
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> None:
    """Adds the errors of an input that is too short or too long for flips that change its length, and of a readout that
    the edited word does not have."""
    if not flips.longer:
        return
    n = tokens.shape[1]
    if n and n + flips.longer < 1:
        problems.add("tokens", f"shape {tokens.shape}", "at least two symbols, of which one may be deleted")
    if n and flips.longer > 0:
        before, after = Problems(), Problems()
        model.check_length(n, before)
        remedy, m = "repeat it fewer times, or give a shorter input", n + flips.longer
        if check_fits("n", m, m * TOKEN_BYTES, "a word of this length", remedy, after):
            model.check_length(m, after)
        if not before:
            for one in after:
                problems.add("flips", flips, f"it makes an input of length {n} longer: {one}")
    readout, other = model.readout, "shorter" if flips.longer < 0 else "longer"
    if isinstance(readout, int) and readout != 0:
        remedy = f'a {other} word has another symbol there: with {flips!r}, give "last", "mean" or 0'
        problems.add("readout", readout, remedy)
    if readout == 0 and flips.positions is not None and 0 in where:
        remedy = "it is read, and the edited word has another symbol there; leave it out"
        if flips.longer < 0:
            remedy = "it is read, and a word without it has nothing to compare; leave it out"
        problems.add(("flips", "positions"), 0, remedy)


def _of_lists(
    flips: Flips,
    lists: Mapping[int, tuple[int, ...]],
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    problems: Problems,
) -> Selection:
    """Returns the selection of flips whose symbols are listed by position."""
    n, sound, pairs = tokens.shape[1], dict[int, tuple[int, ...]](), isinstance(flips, Pairs)
    for position, symbols in lists.items():
        if n and position >= n:
            problems.add(("flips", "position"), position, f"positions from 0 to {n - 1}")
            continue
        name = "flips.symbol" if pairs else f"flips[{position}]"
        inputs.check_ids(name, np.array(symbols), model.vocabulary_size, problems)
        same = np.argwhere(tokens[:, position, None] == symbols) if n and pairs else ()
        for k, which in same[:1]:
            remedy = f"input {k} has this symbol there already; leave the flip out"
            problems.add("flips", (position, symbols[which]), remedy)
        sound[position] = symbols
    rows = np.full(tokens.shape, -1)
    if tokens.size:
        rows[:, list(sound)] = np.arange(len(sound))
    return Selection(flips, tokens, Lists.of([*sound.values()]), rows)
