"""Which keys can win a hard attention head, whatever the free inputs are; and the cases of every row after a layer,
from the cases before it: a decision tree over the free inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import no_rule
from jaxsens.core.models.parts.weighting import LeftmostHard, RightmostHard
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.theory.hard_attention.restriction import FREE, Case, RestrictionRefused
from jaxsens.theory.hard_attention.values import RESTRICT, HardModel, Inexact, Projections
from jaxsens.theory.rules import score_terms, visible

BLOCK_SCORES = 2**22
"""How many scores, one a head and pair of query and key, are held at a time."""

EXACT_GRID, EXACT_SIZE = 2.0**6, 2.0**11
"""Sums of products of multiples of 1/64, no larger in size than this, are exact in float32 in any order."""


@dataclass(frozen=True)
class Level:
    """The possible values of every row after some layers.

    Attributes:
        cases: of all rows, ordered by row, with the winners of the layer's heads; no heads before the first layer.
        case: the case of each entry, by its number; entries are ordered by case.
        vectors: of the entries: (entries, width).
    """

    cases: tuple[Case, ...]
    case: Int[np.ndarray, " entries"]
    vectors: Inexact

    @cached_property
    def owner(self) -> Int[np.ndarray, " entries"]:
        """The row of each entry."""
        return np.array([case.row for case in self.cases])[self.case]

    @cached_property
    def rows(self) -> Int[np.ndarray, " rows"]:
        """The rows that have entries."""
        return np.unique(self.owner)

    @cached_property
    def starts(self) -> Int[np.ndarray, " rows"]:
        """Where the entries of each of `rows` begin."""
        return np.searchsorted(self.owner, self.rows)

    @cached_property
    def leads(self) -> Bool[np.ndarray, " entries"]:
        """Whether an entry is the first of its case."""
        return np.concatenate([[True], self.case[1:] != self.case[:-1]])

    @cached_property
    def sizes(self) -> Int[np.ndarray, " cases"]:
        """How many entries each case has."""
        return np.bincount(self.case)

    @cached_property
    def rivals(self) -> dict[tuple[int, int], Int[np.ndarray, " some"]]:
        """For every condition, the entries whose case contradicts it."""
        holders: dict[int, dict[int, list[int]]] = {}
        for entry in range(len(self.case)):
            for i, symbol in self.conditions(entry):
                holders.setdefault(i, {}).setdefault(symbol, []).append(entry)
        return {
            (i, symbol): np.array([e for other in of if other != symbol for e in of[other]], np.int64)
            for i, of in holders.items()
            for symbol in of
        }

    @cached_property
    def inputs(self) -> dict[int, set[int]]:
        """The free inputs that each row's value depends on."""
        found: dict[int, set[int]] = {}
        for case in self.cases:
            found.setdefault(case.row, set()).update(i for i, _ in case.conditions)
        return found

    def conditions(self, entry: int) -> tuple[tuple[int, int], ...]:
        """The (input, symbol) pairs of an entry's case."""
        return self.cases[self.case[entry]].conditions


class Block(NamedTuple):
    """What some queries make of all entries, `q` queries at a time.

    Attributes:
        scores: float64; -inf for keys that the query does not see or whose case contradicts the query's.
        eligible: whether the entry can win.
        undecided: (q, rows): whether the row's case is open, given the query's.
        free_rivals: how many rows with an open case can win.
    """

    scores: Float[np.ndarray, "heads q entries"]
    eligible: Bool[np.ndarray, "heads q entries"]
    undecided: Bool[np.ndarray, "q rows"]
    free_rivals: Int[np.ndarray, "heads q"]


@dataclass(frozen=True)
class Contest:
    """The heads of layer k on the possible values of the rows below."""

    model: HardModel
    k: int
    level: Level

    @cached_property
    def found(self) -> Projections:
        """Queries, keys and values of all entries."""
        return self.model.projections(self.k, self.level.vectors, self.level.owner)

    @cached_property
    def margins(self) -> Float[np.ndarray, "heads entries"]:
        """What the scores of each query must be apart."""
        return self.model.margins(self.k, self.found)

    @cached_property
    def sign(self) -> int:
        """1 where the first of tied keys wins, -1 where the last one does."""
        weighting = self.model.config.layer(self.k).weighting
        if not isinstance(weighting, LeftmostHard | RightmostHard):
            raise no_rule(RESTRICT, "weighting", weighting, (LeftmostHard, RightmostHard))
        return 1 if isinstance(weighting, LeftmostHard) else -1

    @cached_property
    def heads(self) -> int:
        """Heads of this layer."""
        return self.model.config.layer(self.k).heads

    @cached_property
    def _ties(self) -> bool:
        """Whether equal keys make equal scores: not where something depends on the distance."""
        return not score_terms(self.model.config.layer(self.k)).adds

    @cached_property
    def _patterns(self) -> tuple[Int[np.ndarray, "heads entries"], list[np.ndarray]]:
        """Which coordinates of each query can differ from 0: the numbers of patterns, and the patterns."""
        used = (self.found.queries.x != 0) | (self.found.queries.errors > 0)
        if self.model.config.layer(self.k).scores == "additive":
            used = np.ones_like(used)
        kinds, number = np.unique(used.reshape(-1, used.shape[-1]), axis=0, return_inverse=True)
        return number.reshape(used.shape[:2]), list(kinds)

    @cached_property
    def _identities(self) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
        """For a head and a pattern: the number of each entry's key, and the rows whose keys are all equal.

        Keys that are equal bit for bit where the query is not zero get equal scores. For them to be equal in every
        program, whatever its order of additions, they must also be made of equal numbers, or have exact sums.
        """
        numbers, kinds = self._patterns
        found = {}
        for head in range(self.heads):
            for kind in np.unique(numbers[head]):
                used = kinds[kind]
                keys = self.found.keys.x[head][:, used] + 0.0  # -0 is 0
                if not used.any():
                    identity = np.zeros(len(keys), np.int64)
                else:
                    made = np.concatenate([keys, self._made_of(head, used)], axis=1)
                    identity = np.unique(made, axis=0, return_inverse=True)[1].reshape(-1)
                low, high = (f.reduceat(identity, self.level.starts) for f in (np.minimum, np.maximum))
                found[head, int(kind)] = identity, (low == high) & self._ties
        return found

    def _made_of(self, head: int, used: Bool[np.ndarray, " c"]) -> Float[np.ndarray, "entries some"]:
        """What the used coordinates of each entry's key are made of; zeros where their sums are exact in any order."""
        layer, parameters = self.model.config.layer(self.k), self.model.parameters.layers[self.k]
        rotary = score_terms(layer).turns is not None
        x = self.level.vectors.x.astype(np.float64) + 0.0  # -0 is 0
        if layer.layer_norm == "pre":
            return np.column_stack([x, self.level.owner * rotary])
        pairs = np.repeat(used.reshape(-1, 2).any(axis=1), 2) if rotary else used
        matrix = np.asarray(parameters.key, np.float64)[head][:, pairs]
        x = x[:, (matrix != 0).any(axis=1)]
        matrix = matrix[(matrix != 0).any(axis=1)]
        if not rotary and (matrix * EXACT_GRID % 1 == 0).all():
            exact = (x * EXACT_GRID % 1 == 0).all(axis=1)
            x[exact & (np.abs(x) @ np.abs(matrix) <= EXACT_SIZE).all(axis=1)] = 0
        return np.column_stack([x, self.level.owner * rotary])

    def blocks(self, queries: Int[np.ndarray, " q"]) -> Iterator[tuple[Int[np.ndarray, " part"], Block]]:
        """The queries (entries, by number) in parts, each with what it makes of all entries."""
        size = max(1, BLOCK_SCORES // (self.heads * max(1, len(self.level.owner))))
        size = 1 << (size.bit_length() - 1)
        for start in range(0, len(queries), size):
            stopping.check()
            part = queries[start : start + size]
            yield part, self.block(part)

    def block(self, queries: Int[np.ndarray, " q"]) -> Block:
        """What some queries make of all entries. O(heads q entries)."""
        level, found = self.level, self.found
        own, positions = level.owner[queries], level.owner
        scores = self.model.scores(self.k, found.queries.x[:, queries], found.keys.x, own, positions)
        scores = scores.astype(np.float64)
        if not (np.isfinite(scores).all() and np.isfinite(self.margins[:, queries]).all()):
            raise RestrictionRefused(
                f"restrict: some scores of layer {self.k}, or their errors, are not finite: give smaller parameters"
            )
        excluded = np.zeros((len(queries), len(positions)), bool)
        for row, query in enumerate(queries):
            for condition in level.conditions(query):
                excluded[row, level.rivals[condition]] = True
        floors = np.where(excluded, np.inf, scores)
        low = np.minimum.reduceat(floors, level.starts, axis=-1)
        seen = visible(self.model.config.layer(self.k).mask, self.model.n, own, positions)
        low = np.where(seen[:, level.starts], low, -np.inf)
        excluded |= ~seen
        scores = np.where(excluded, -np.inf, scores)
        best = self.preferred(low)
        floor = np.take_along_axis(low, best[..., None], axis=-1)
        margins = self.margins[:, queries, None]
        eligible = (scores >= floor - margins) & ~excluded
        # Entries lose a tie that have the same key as the best guaranteed row, and come after it.
        numbers, possible = self._patterns[0], ~excluded
        single = np.add.reduceat(possible, level.starts, axis=-1, dtype=np.int32) == 1
        last = np.maximum.reduceat(np.where(possible, np.arange(len(positions)), 0), level.starts, axis=-1)
        for (head, kind), (identity, uniform) in self._identities.items():
            rows = np.flatnonzero(numbers[head, queries] == kind)
            if not len(rows):
                continue
            chosen = best[head, rows]
            position, certain = level.rows[chosen], uniform[chosen] | (single[rows, chosen] & self._ties)
            same = identity == identity[last[rows, chosen]][:, None]
            after = self.sign * level.owner > self.sign * position[:, None]
            eligible[head, rows] &= ~(same & after & certain[:, None])
        cases = np.add.reduceat(~excluded & level.leads, level.starts, axis=-1, dtype=np.int32)
        undecided = cases > 1
        reached = np.logical_or.reduceat(eligible, level.starts, axis=-1)
        return Block(scores, eligible, undecided, np.sum(reached & undecided, axis=-1))

    def preferred(self, values: Float[np.ndarray, "*some rows"]) -> Int[np.ndarray, "*some"]:
        """The row, by index, with the largest value; of several, the one that the tie rule prefers."""
        if self.sign > 0:
            return np.argmax(values, axis=-1)
        return values.shape[-1] - 1 - np.argmax(values[..., ::-1], axis=-1)

    def after_ties(self, head: int, query: int, able: list[int], known: set[int]) -> list[int]:
        """Of entries that can win: without those whose key is also that of a row which the tie rule puts first.

        A row counts if its case is known (its entries are in `known`), all entries of the case can win, and they have
        one key.
        """
        if not self._ties or len(able) < 2:
            return able
        level = self.level
        identity, _ = self._identities[head, int(self._patterns[0][head, query])]
        keys: dict[int, list[int]] = {}
        for entry in able:
            if entry in known:
                keys.setdefault(int(level.case[entry]), []).append(int(identity[entry]))
        first: dict[int, float] = {}
        for case, held in keys.items():
            if len(held) == level.sizes[case] and len(set(held)) == 1:
                first[held[0]] = min(first.get(held[0], np.inf), self.sign * level.cases[case].row)
        return [e for e in able if self.sign * level.owner[e] <= first.get(int(identity[e]), np.inf)]


MOST_SCORES = 2**31
"""Layers with more pairs of possible query and possible key than this are refused: they would take minutes."""

MOST_CANDIDATES = 2**23
"""The most keys that can still win which are listed in one layer, over all queries and heads."""


def first_level(model: HardModel, values: Int[np.ndarray, " n"], symbols: tuple[int, ...]) -> Level:
    """The rows before the first layer: a free row has a case for each symbol, a fixed row has one case."""
    held = [(i, symbol) for i, v in enumerate(values.tolist()) for symbol in (symbols if v == FREE else (v,))]
    cases = tuple(Case(i, ((i, symbol),) if values[i] == FREE else (), ()) for i, symbol in held)
    return Level(cases, np.arange(len(held)), model.embedded(*np.array(held).T))


def needed_rows(model: HardModel) -> list[Int[np.ndarray, " _"]]:
    """The rows of every layer that the readout can depend on: of the last layer, the readout's row alone."""
    config, n = model.config, model.n
    found = [np.array([readout_row(config.readout, n)])]
    for k in reversed(range(1, config.layers)):
        seen = visible(config.layer(k).mask, n, found[-1], np.arange(n)).any(axis=0)
        found.append(np.union1d(found[-1], np.flatnonzero(seen)))
    return found[::-1]


def next_level(
    contest: Contest, rows: Int[np.ndarray, " some"], symbols: tuple[int, ...], most_values: int
) -> Level:
    """The cases of `rows` after the contest's layer.

    Raises:
        RestrictionRefused: if a row has more than `most_values` possible values, or there are too many scores.
    """
    level = contest.level
    queries = np.flatnonzero(np.isin(level.owner, rows))
    check_scores(contest, len(queries))
    trees = _Trees(contest, _candidates(contest, queries), symbols, most_values)
    for entries in np.split(queries, np.flatnonzero(level.leads[queries])[1:]):
        trees.grow(entries.tolist(), dict(level.conditions(entries[0])))
    return trees.level()


def check_scores(contest: Contest, queries: int) -> None:
    """Refuses a layer with more than `MOST_SCORES` scores."""
    count = contest.heads * queries * len(contest.level.owner)
    if count > MOST_SCORES:
        raise RestrictionRefused(
            f"restrict: layer {contest.k} has {count:.2g} scores, {queries} possible queries with "
            f"{len(contest.level.owner)} possible keys: at most {MOST_SCORES:.2g} are enumerated; give a smaller "
            "n or free_fraction, or a smaller most_values so that inputs are fixed below"
        )


def _candidates(
    contest: Contest, queries: Int[np.ndarray, " q"]
) -> dict[tuple[int, int], list[tuple[float, int]]]:
    """Of every query and head: the entries that can win, best first, with their scores."""
    found: dict[tuple[int, int], list[tuple[float, int]]] = {}
    total = 0
    for part, block in contest.blocks(queries):
        total += int(np.count_nonzero(block.eligible))
        if total > MOST_CANDIDATES:
            raise RestrictionRefused(
                f"restrict: in layer {contest.k} more than {MOST_CANDIDATES} keys can still win, over all "
                "queries and heads: give a larger n, or a smaller free_fraction to fix more inputs"
            )
        for head, row, entry in zip(*np.nonzero(block.eligible), strict=True):
            listed = found.setdefault((int(part[row]), int(head)), [])
            listed.append((float(block.scores[head, row, entry]), int(entry)))
    # Among equal scores first the one that the tie rule prefers: then its input is asked for before the others'.
    for listed in found.values():
        listed.sort(key=lambda pair: (-pair[0], contest.sign * int(contest.level.owner[pair[1]])))
    return found


@dataclass
class _Trees:
    """The decision trees of a layer's rows, a tree for each case below, and what they have found.

    Attributes:
        candidates: see `_candidates`.
        cases: found so far.
        made: the entries found so far: of which case, own entry below, winning entry of each head (-1 for none).
    """

    contest: Contest
    candidates: dict[tuple[int, int], list[tuple[float, int]]]
    symbols: tuple[int, ...]
    most_values: int
    cases: list[Case] = field(default_factory=list)
    made: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)

    def grow(self, entries: list[int], known: dict[int, int]) -> None:
        """Adds the cases, where the inputs of `known` hold its symbols, of the row whose vectors are `entries`."""
        won: list[list[list[int]]] = []
        for entry in entries:
            of_heads: list[list[int]] = []
            for head in range(self.contest.heads):
                asked, winners = self._decide(entry, head, known)
                if asked is not None:
                    for symbol in self.symbols:
                        self.grow(entries, {**known, asked: symbol})
                    return
                of_heads.append(winners)
            won.append(of_heads)
        owner, heads = self.contest.level.owner, range(self.contest.heads)
        for entry, of_heads in zip(entries, won, strict=True):
            choices = product(*(winners or [-1] for winners in of_heads))
            self.made += [(len(self.cases), entry, choice) for choice in choices]
        winners = ({int(owner[e]) for of_heads in won for e in of_heads[head]} for head in heads)
        row, most = int(owner[entries[0]]), self.most_values
        self.cases.append(Case(row, tuple(sorted(known.items())), tuple(tuple(sorted(of)) for of in winners)))
        if len(self.made) >= most and self.cases[self.made[-most][0]].row == row:
            inputs = {i for case in self.cases if case.row == row for i, _ in case.conditions}
            text = (
                f"restrict: position {row} may have {most} values or more after layer {self.contest.k}, depending on "
                f"at least {len(inputs)} free inputs: give a larger n, a smaller free_fraction, or a larger most_values"
            )
            if self.contest.model.config.dtype == "float32":
                margin = f"{float(self.contest.margins[:, entries].max()):.2g}"
                text += f"; in float32 scores that differ by less than {margin} count as undecided, in float64 fewer do"
            raise RestrictionRefused(text)

    def _decide(self, query: int, head: int, known: dict[int, int]) -> tuple[int | None, list[int]]:
        """The input to ask for next, or None and the entries that can win."""
        level = self.contest.level
        alive: list[tuple[float, int, int | None]] = []
        for score, entry in self.candidates.get((query, head), ()):
            conditions = level.conditions(entry)
            if all(known.get(i, symbol) == symbol for i, symbol in conditions):
                alive.append((score, entry, next((i for i, _ in conditions if i not in known), None)))
        # A known case scores at least its worst entry. One that is not listed cannot win, so it is worse than any here.
        listed: dict[int, list[float]] = {}
        for score, entry, missing in alive:
            if missing is None:
                listed.setdefault(int(level.case[entry]), []).append(score)
        whole = (min(of) for case, of in listed.items() if len(of) == level.sizes[case])
        floor = max(whole, default=-np.inf)
        margin = self.contest.margins[head, query]
        missing_of = {entry: missing for score, entry, missing in alive if score >= floor - margin}
        known_entries = {entry for entry, missing in missing_of.items() if missing is None}
        left = self.contest.after_ties(head, query, list(missing_of), known_entries)
        asked = next((missing_of[entry] for entry in left if missing_of[entry] is not None), None)
        return asked, left

    def level(self) -> Level:
        """The level of what the trees found, with the vectors computed."""
        contest, level, found = self.contest, self.contest.level, self.contest.found
        case, own = np.array([(case, own) for case, own, _ in self.made]).T
        won = np.array([won for *_, won in self.made], np.int64).reshape(len(own), contest.heads).T
        head = np.arange(contest.heads)[:, None]
        none = (won < 0)[..., None]
        b = Inexact(*(np.where(none, 0, part) for part in found.values.at((head, won))))
        vectors = contest.model.finished(contest.k, level.vectors.at(own), b)
        if not np.isfinite(vectors.x).all():
            raise RestrictionRefused(
                f"restrict: the activations after layer {contest.k} are not finite: give smaller parameters"
            )
        return Level(tuple(self.cases), case, vectors)
