"""What `flip_sensitivity` flips, and by what: its arguments, checked, and the flips that they ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens import inputs
from jaxsens.errors import InputError, Problems, collecting
from jaxsens.memory import TOKEN_BYTES, check_fits
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.edits import DELETE, GROUPS, REPLACE, Edit
from jaxsens.sensitivity.flips import (
    DELETED,
    Flips,
    Lists,
    Sample,
    flips_at_each,
    flips_of_groups,
    flips_of_lists,
    places,
)
from jaxsens.sensitivity.nearest import nearest_symbols
from jaxsens.strict import naming_arguments


@dataclass(frozen=True)
class Neighbours:
    """The `k` symbols nearest to the one that stands at a position. Made by `neighbours`."""

    k: int


@dataclass(frozen=True)
class Masking:
    """A model's mask symbol; None for the one that the model names. Made by `masking`."""

    symbol: int | None


@dataclass(frozen=True)
class Deletion:
    """No symbol: the word without the position. Made by `deletion`."""


@dataclass(frozen=True)
class Insertion:
    """Symbols that are inserted before a position; None for those of the model's alphabet. Made by `insertion`."""

    symbols: tuple[int, ...] | None


@dataclass(frozen=True)
class Repetition:
    """`times` further copies of the symbol at a position. Made by `repetition`."""

    times: int


Candidates = (
    Mapping[int, Sequence[int]]
    | Sequence[int]
    | Neighbours
    | Masking
    | Deletion
    | Insertion
    | Repetition
    | Sample
)
"""What `flip_sensitivity(candidates=...)` takes."""


@naming_arguments
def neighbours(k: int = 8) -> Neighbours:
    """Makes `flip_sensitivity` insert at every position the `k` symbols most like the one that stands there.

    Two symbols are alike if their rows in the model's table of input embeddings point the same way: by the cosine. By
    distance, rows of small norm would be near to all others, and norms of trained embeddings tell how rare a symbol is
    rather than what it means. Of symbols that are equally near, those of smaller ids come first. Neither the symbol
    itself nor those that the model reserves (special and unused ones) are among them.

    O(symbols width) operations for each different symbol of the inputs, in float32.

    Raises:
        InputError: if k is no whole number of at least 1.
    """
    with collecting("neighbours") as problems:
        k = inputs.count("k", k, problems, least=1)
    return Neighbours(k)


@naming_arguments
def masking(symbol: int | None = None) -> Masking:
    """Makes `flip_sensitivity` insert the mask symbol at every position: one flip a position.

    The change is then what the model loses if it is told that a word is unknown. For a model trained with masks it is
    not what another word would do: every mask moves the output, by about as much for every word.

    Args:
        symbol: the mask symbol; by default the one that the model names (`LayeredModel.mask`).

    Raises:
        InputError: for a symbol that is no id.
    """
    with collecting("masking") as problems:
        symbol = inputs.optional_count("symbol", symbol, problems, least=0)
    return Masking(symbol)


def deletion() -> Deletion:
    """Makes `flip_sensitivity` delete every position, one at a time, and compare with the output on the shorter word.

    Symbols behind the deleted one move forward by one position, which changes their position embeddings: the change has
    a part that is not due to the deleted symbol. The model must read its output in the last row, the first one or the
    mean, and "vmap" measures it, with one forward pass a flip on words of length n - 1. Results have -1 as the symbol.
    """
    return Deletion()


@naming_arguments
def insertion(symbols: Sequence[int] | None = None) -> Insertion:
    """Makes `flip_sensitivity` insert one symbol more before every position, and compare with the output on the longer
    word.

    A flip (i, s) of a word x_0 .. x_{n-1} gives x_0 .. x_{i-1} s x_i .. x_{n-1}, of length n + 1. The symbol x_i and
    those behind it move back by one position, and a temperature schedule sees n + 1. Nothing is inserted behind the
    last position: that symbol would be read in place of it. An insertion of s before an s gives the same word as one
    behind it; both are flips.

    The model must read its output in the last row, the first one or the mean, and "vmap" measures it, with one forward
    pass a flip on words of length n + 1. Nothing is inserted before position 0 if it is read, and by default none
    before the special symbols with which a word begins. `repetition` inserts the symbol that stands at the position.

    Args:
        symbols: ids to insert; by default all of the model's alphabet but those that it reserves.

    Raises:
        InputError: for symbols that are no ids.
    """
    if symbols is None:
        return Insertion(None)
    with collecting("insertion") as problems:
        found = inputs.symbols(symbols, None, problems)
    return Insertion(tuple(np.sort(found).tolist()))


@naming_arguments
def repetition(times: int = 1) -> Repetition:
    """Makes `flip_sensitivity` repeat the symbol of every position `times` more times, one position at a time.

    A flip of position i gives x_0 .. x_{i-1} x_i x_i .. x_{n-1}, of length n + times. It inserts copies of x_i before
    x_i, so that the last row is again that of the last symbol: with positions=[n - 1] the change is what Barbero et al.
    (2024, "Transformers need glasses!", arXiv 2406.04267) call representational collapse as n grows, the distance of
    the last row of a word from that of the word with its last symbol repeated.

    Positions, readouts and engine are those of `deletion`, but that the readout position is repeated too; position 0
    is not if it is read. Results have the repeated symbol as the symbol.

    Args:
        times: the number of copies added.

    Raises:
        InputError: if `times` is no whole number of at least 1.
    """
    with collecting("repetition") as problems:
        times = inputs.count("times", times, problems, least=1)
    return Repetition(times)


_GIVEN = (
    "a sequence of symbol ids, a mapping of positions to such sequences, jaxsens.neighbours(k), jaxsens.masking(), "
    "jaxsens.deletion(), jaxsens.insertion(), jaxsens.repetition(times), or jaxsens.sample(count)"
)


def edit_of(candidates: Any) -> Edit:
    """Returns what a flip does, of candidates as `flip_sensitivity` takes them."""
    match candidates:
        case Deletion():
            return DELETE
        case Insertion():
            return Edit("insert", 1)
        case Repetition(times):
            return Edit("insert", times)
    return REPLACE


@dataclass(frozen=True, eq=False)
class Wanted:
    """The arguments of `flip_sensitivity` that say what is flipped, as given."""

    alphabet_size: Any = None
    symbols: Any = None
    positions: Any = None
    flips: Any = None
    candidates: Any = None
    groups: Any = None

    @property
    def drawn(self) -> Sample | None:
        """The sample to draw; None for all flips."""
        given = (self.positions, self.candidates)
        return next((one for one in given if isinstance(one, Sample)), None)

    @property
    def listed(self) -> bool:
        """Whether the positions are given."""
        return self.positions is not None and not isinstance(self.positions, Sample)

    @property
    def named(self) -> bool:
        """Whether the positions are given, if only those to sample from."""
        drawn = self.drawn
        return self.listed or (drawn is not None and drawn.positions is not None)

    @property
    def edit(self) -> Edit:
        """What a flip does."""
        return GROUPS if self.groups is not None else edit_of(self.candidates)

    def check_conflicts(self, problems: Problems) -> None:
        """Adds the errors of arguments that exclude each other."""
        given = [
            name
            for name in ("flips", "candidates", "symbols", "alphabet_size")
            if getattr(self, name) is not None
        ]
        if len(given) > 1 and given != ["symbols", "alphabet_size"]:  # of which `inputs.alphabet` knows
            remedy = f"not with {', '.join(given[1:])}: each of them says what is inserted; give one of them"
            problems.add(given[0], getattr(self, given[0]), remedy)
        if isinstance(self.positions, Sample) and isinstance(self.candidates, Sample):
            problems.add("candidates", self.candidates, "not with positions, which is a sample already")
        mapped = isinstance(self.candidates, Mapping)
        excluded = {
            "flips": (self.flips is not None, ("positions", "groups")),
            "candidates": (mapped and self.named, ("positions",)),
            "groups": (self.groups is not None and self.named, ("positions",)),
        }
        for name, (applies, others) in excluded.items():
            for other in others:
                if applies and getattr(self, other) is not None:
                    remedy = f"not with {name}, which say the positions; leave it out"
                    problems.add(other, getattr(self, other), remedy)
        if self.groups is not None and isinstance(self.candidates, Deletion | Insertion | Repetition):
            edit = type(self.candidates).__name__.lower()
            problems.add("groups", self.groups, f"not with {edit}(), which edits one position at a time")


@dataclass(frozen=True, eq=False)
class Selection:
    """The flips that a call asks for.

    Attributes:
        lists: the symbols to insert, `DELETED` for a deletion.
        rows: (batch, n), the number of the list of each place; -1 for a place that is not flipped.
        edit: what a flip does.
        drawn: the sample to draw of the flips; None for all.
        groups: the positions that are flipped together; None if each is flipped alone.
        symbols, positions: these arguments, checked; None if all symbols of an alphabet are inserted, or the positions
            are those that are flipped by default.
        candidates: what `resume=` compares of `candidates` or `flips`; None if the other fields say all of it.
    """

    lists: Lists
    rows: Int[np.ndarray, "batch n"]
    edit: Edit
    drawn: Sample | None = None
    groups: tuple[tuple[int, ...], ...] | None = None
    symbols: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    candidates: str | None = None

    @cached_property
    def alphabet(self) -> tuple[int, ...]:
        """The symbols that flips may insert, sorted; -1 for a deletion."""
        used = np.isin(np.arange(len(self.lists.counts)), self.rows)
        return tuple(np.unique(self.lists.symbols[np.repeat(used, self.lists.counts)]).tolist())

    @property
    def _with_own(self) -> bool:
        """Whether a flip may have the symbol that stands at its position: inserted, it changes the word."""
        return self.edit.kind == "insert"

    def number(self, words: Int[np.ndarray, "batch n"], own: bool = True) -> int:
        """Returns the number of flips; at most that, if those that put back the present symbol count too: not `own`."""
        counts = self.lists.counts
        if self.groups is not None:
            each = [counts[self.rows[:, group[0]]].sum() for group in self.groups]
        elif own:
            each = flips_at_each(words, self.lists, self.rows, self._with_own)
        else:
            each = counts[self.rows[self.rows >= 0]]
        found = int(np.sum(each))
        return found if self.drawn is None else min(found, self.drawn.count)

    def entries(self, words: Int[np.ndarray, "batch n"]) -> int:
        """Returns the length of the list of flips; for groups, that of all positions that they flip."""
        if self.groups is None:
            return self.number(words)
        return int(self.lists.counts[self.rows[self.rows >= 0]].sum())

    def flips(self, words: Int[np.ndarray, "batch n"]) -> Flips:
        """Returns the flips.

        Raises:
            InputError: if there are none.
        """
        if self.groups is None:
            found = flips_of_lists(words, self.lists, self.rows, self.drawn, self._with_own)
        else:
            found = flips_of_groups(words, self.lists, self.rows, self.groups, self.drawn)
        if not len(found):
            raise InputError(
                f"tokens of shape {words.shape}: nothing to flip. The readout position, and special and unknown "
                "symbols, are excluded by default; give a longer input, or positions=..."
            )
        return found


def select(
    wanted: Wanted, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> Selection:
    """Returns the flips that the arguments ask for; adds their errors.

    Args:
        wanted: the arguments.
        subject: the model, with its readout.
        words: the inputs; (0, 0) if they are not known.
        problems: collects the errors.
    """
    wanted.check_conflicts(problems)
    n, read = words.shape[1], subject.position_read(words.shape[1])
    # Insertions before the last position leave the symbol that is read in its place.
    if wanted.edit.kind == "insert":
        read = 0 if subject.readout == 0 else None
    where = places(wanted.positions if wanted.listed else wanted.drawn, n, read, problems)
    if wanted.flips is not None:
        return _of_flips(wanted, subject, words, problems)
    if isinstance(wanted.candidates, Mapping):
        return _of_mapping(wanted, subject, words, problems)
    lists, choice, symbols, candidates = _lists(wanted, subject, words, where, problems)
    groups = _groups(wanted.groups, n, problems)
    kept = _kept(wanted, subject, words, where, groups, problems)
    return Selection(
        lists,
        np.where(kept, choice, -1),
        wanted.edit,
        drawn=wanted.drawn,
        groups=groups,
        symbols=symbols,
        positions=tuple(where.tolist()) if wanted.listed else None,
        candidates=candidates,
    )


def _kept(
    wanted: Wanted,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    groups: tuple[tuple[int, ...], ...] | None,
    problems: Problems,
) -> Any:
    """Returns which places are flipped: those of groups, or all at `where` but special symbols, unless positions are
    named, and symbols beyond the alphabet, such as the end symbol, unless symbols or positions are. None after errors.
    """
    kept = np.zeros(words.shape, bool)
    if not words.size or problems:
        return kept
    if groups is not None:
        kept[:, [position for group in groups for position in group]] = True
        return kept
    kept[:, where[(where >= 0) & (where < words.shape[1])]] = True
    special = np.isin(words, subject.special)
    if isinstance(wanted.candidates, Insertion):  # which leaves the symbol at the position as it is
        return kept if wanted.named else kept & ~np.logical_and.accumulate(special, axis=1)
    if not wanted.named:
        kept &= ~special
    size = subject.alphabet_size if wanted.alphabet_size is None else wanted.alphabet_size
    chosen = wanted.symbols is not None or _is_list(wanted.candidates)
    if size is not None and not chosen and not wanted.listed:
        kept &= words < size
    return kept


def _is_list(candidates: Any) -> bool:
    return candidates is not None and not isinstance(
        candidates, Mapping | Neighbours | Masking | Deletion | Insertion | Repetition | Sample
    )


_Choice = tuple[Lists, Any, tuple[int, ...] | None, str | None]
"""Lists, the number of each place's, and the fields `symbols` and `candidates` of `Selection`."""


def _lists(
    wanted: Wanted,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> _Choice:
    """Returns what may be inserted, if it is said for all positions in the same way."""
    given, vocabulary = wanted.candidates, subject.vocabulary_size
    match given:
        case Neighbours():
            return _nearest(given, subject, words, problems)
        case Masking():
            symbol = subject.mask if given.symbol is None else given.symbol
            if symbol is None:
                remedy = "the model does not say which symbol is its mask; give its id: jaxsens.masking(103)"
                problems.add("candidates", given, remedy)
            else:
                inputs.check_ids("candidates: mask", np.array([symbol]), vocabulary, problems)
            return Lists.of([[symbol or 0]]), 0, None, f"masking({symbol})"
        case Deletion():
            _check_edit(wanted, subject, words, where, problems)
            return Lists.of([[DELETED]]), 0, None, "deletion()"
        case Insertion():
            _check_edit(wanted, subject, words, where, problems)
            return _insertable(given, subject, problems)
        case Repetition(times):
            _check_edit(wanted, subject, words, where, problems)
            own, rows = np.unique(words, return_inverse=True)
            return Lists.of([[one] for one in own]), rows.reshape(words.shape), None, f"repetition({times})"
    if _is_list(given):
        if (found := inputs.whole_numbers(given)) is None or found.ndim != 1 or not found.size:
            problems.add("candidates", given, _GIVEN)
            return Lists.of([[]]), 0, None, None
        alphabet = np.sort(inputs.symbols(given, vocabulary, problems, name="candidates"))
        return Lists.of([alphabet]), 0, tuple(alphabet.tolist()), None
    alphabet = inputs.alphabet(
        wanted.alphabet_size, wanted.symbols, subject.alphabet_size, vocabulary, problems
    )
    if wanted.symbols is not None:
        return Lists.of([alphabet]), 0, tuple(alphabet.tolist()), None
    return Lists.of([alphabet[~np.isin(alphabet, subject.reserved)]]), 0, None, None


def _nearest(
    given: Neighbours, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> _Choice:
    empty = Lists.of([[]]), 0, None, None
    if subject.embeddings is None:
        remedy = "the model does not show its embeddings; give candidates={position: [...]} or a sequence of symbols"
        problems.add("candidates", given, remedy)
        return empty
    if problems:  # before the work of finding them
        return empty
    table = subject.embeddings()
    size = len(table) if subject.alphabet_size is None else min(len(table), subject.alphabet_size)
    allowed = np.setdiff1d(np.arange(size), subject.reserved)
    if given.k >= len(allowed):
        problems.add(
            "candidates", given, f"k of at most {len(allowed) - 1}: {len(allowed)} symbols may be inserted"
        )
        return empty
    different, rows = np.unique(words, return_inverse=True)
    nearest = nearest_symbols(table, different, given.k, allowed)
    return Lists.of([*nearest]), rows.reshape(words.shape), None, f"neighbours({given.k})"


def _insertable(given: Insertion, subject: Measurable, problems: Problems) -> _Choice:
    """Returns what an insertion inserts, everywhere."""
    if given.symbols is not None:
        inputs.check_ids(
            "candidates: insertion: symbol", np.array(given.symbols), subject.vocabulary_size, problems
        )
        return Lists.of([given.symbols]), 0, None, "insertion()"
    if subject.alphabet_size is None:
        remedy = "the model does not say which symbols there are; give them: jaxsens.insertion([0, 1])"
        problems.add("candidates", given, remedy)
        return Lists.of([[]]), 0, None, None
    every = np.arange(subject.alphabet_size)
    return Lists.of([every[~np.isin(every, subject.reserved)]]), 0, None, "insertion()"


def _check_edit(
    wanted: Wanted,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> None:
    """Adds the errors of an input that is too short or too long for an edit that changes its length, and of a readout
    that the edited word does not have."""
    n, edit = words.shape[1], wanted.edit
    name = type(wanted.candidates).__name__.lower() + "()"
    if n and n + edit.longer < 1:
        problems.add("tokens", f"shape {words.shape}", "at least two symbols, of which one may be deleted")
    if n and edit.longer > 0:
        before, after = Problems(""), Problems("")
        subject.check_length(n, before)
        remedy = "repeat it fewer times, or give a shorter input"
        if check_fits(
            "n", n + edit.longer, (n + edit.longer) * TOKEN_BYTES, "a word of this length", remedy, after
        ):
            subject.check_length(n + edit.longer, after)
        if not before:
            problems.extend(after, prefix=f"candidates: {name} makes an input of length {n} longer: ")
    readout = subject.readout
    if isinstance(readout, int) and readout != 0:
        other = "shorter" if edit.longer < 0 else "longer"
        remedy = f'a {other} word has another symbol there: with {name}, give "last", "mean" or 0'
        problems.add("readout", readout, remedy)
    if readout == 0 and 0 in where and wanted.named:
        remedy = "it is read, and the edited word has another symbol there; leave it out"
        if edit.longer < 0:
            remedy = "it is read, and a word without it has nothing to compare; leave it out"
        problems.add("positions", 0, remedy)


def _of_flips(
    wanted: Wanted, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> Selection:
    """Returns the selection of exactly these flips of every input."""
    n, nothing = words.shape[1], Selection(Lists.of([[]]), np.full(words.shape, -1), REPLACE)
    pairs = inputs.whole_numbers(wanted.flips)
    if pairs is None or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        problems.add("flips", wanted.flips, "pairs of a 0-based position and a symbol id: [(3, 17), (5, 2)]")
        return nothing
    position, symbol = pairs.T
    wrong = int(position.min() if position.min() < 0 else position.max())
    if wrong < 0 or (n and wrong >= n):
        problems.add("flips: position", wrong, f"positions from 0 to {n - 1}" if n else "0-based positions")
        return nothing
    inputs.check_ids("flips: symbol", symbol, subject.vocabulary_size, problems)
    if not n:
        return nothing
    same = np.argwhere(words[:, position] == symbol)
    if len(same):
        k, which = same[0]
        remedy = f"input {k} has this symbol there already; leave the flip out"
        problems.add("flips", (int(position[which]), int(symbol[which])), remedy)
    by_position = {p: np.unique(symbol[position == p]) for p in np.unique(position).tolist()}
    return Selection(
        Lists.of([*by_position.values()]),
        _rows(words, by_position),
        REPLACE,
        drawn=wanted.drawn,
        candidates=f"flips, SHA-256 {_digest(by_position)}",
    )


def _of_mapping(
    wanted: Wanted, subject: Measurable, words: Int[np.ndarray, "batch n"], problems: Problems
) -> Selection:
    """Returns the selection of a mapping of positions to symbols."""
    n, lists = words.shape[1], dict[int, np.ndarray]()
    if not wanted.candidates:
        problems.add("candidates", wanted.candidates, "at least one position")
    for position, symbols in wanted.candidates.items():
        if not inputs.is_count(position) or (n and position >= n):
            problems.add(
                "candidates: position", position, f"0-based positions below {n}" if n else "0-based positions"
            )
            continue
        name = f"candidates[{position}]"
        if inputs.symbols(symbols, subject.vocabulary_size, problems, name=name).size:
            lists[int(position)] = np.asarray(inputs.whole_numbers(symbols), np.int64)
    lists = dict(sorted(lists.items()))
    groups = _groups(wanted.groups, n, problems)
    for group in groups or ():
        counts = {p: len(lists[p]) for p in group if p in lists}
        if len(counts) < len(group) or len({*counts.values()}) > 1:
            remedy = f"as many candidates for each of its positions: there are {counts}"
            problems.add("groups", group, remedy)
    alone = set() if groups is None else lists.keys() - {p for group in groups for p in group}
    if alone:
        problems.add(
            "candidates: position", min(alone), "it is in no group; leave it out, or give a group (3,)"
        )
    return Selection(
        Lists.of([*lists.values()]),
        _rows(words, lists),
        wanted.edit,
        drawn=wanted.drawn,
        groups=groups,
        candidates=f"mapping, SHA-256 {_digest(lists)}",
    )


def _rows(words: Int[np.ndarray, "batch n"], lists: Mapping[int, Any]) -> Int[np.ndarray, "batch n"]:
    """Returns the number of the list of each place, of lists by position."""
    rows = np.full(words.shape, -1)
    if words.size:
        rows[:, list(lists)] = np.arange(len(lists))
    return rows


def _digest(lists: Mapping[int, np.ndarray]) -> str:
    text = repr([(position, symbols.tolist()) for position, symbols in lists.items()])
    return hashlib.sha256(text.encode()).hexdigest()


def _groups(value: Any, n: int, problems: Problems) -> tuple[tuple[int, ...], ...] | None:
    """Returns groups of positions, each sorted, sorted by their first; None without the argument."""
    if value is None:
        return None
    wanted = "sequences of 0-based positions, each position in one of them: [(3, 4, 5), (9,)]"
    try:
        found = [inputs.whole_numbers(group) for group in value]
    except TypeError:
        found = [None]
    if not found or any(group is None or group.ndim != 1 or not group.size for group in found):
        problems.add("groups", value, wanted)
        return None
    groups = [tuple(sorted(group.tolist())) for group in found if group is not None]
    every = [position for group in groups for position in group]
    wrong = min(every) if min(every) < 0 else max(every)
    if wrong < 0 or (n and wrong >= n):
        problems.add("groups: position", wrong, f"positions from 0 to {n - 1}" if n else "0-based positions")
        return None
    if len(set(every)) < len(every):
        twice = next(position for position in every if every.count(position) > 1)
        problems.add("groups: position", twice, "each position in one group, and once")
        return None
    return tuple(sorted(groups))
