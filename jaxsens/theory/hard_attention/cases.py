"""The cases of every row after a layer, from the cases before it: a decision tree over the free inputs.

To know a head's winner, ask for the inputs of the best key that can still win, then of the next one, until the best
key that is left is known. The row depends on the inputs asked for, and the answers are its cases. So a head with k free
keys above a fixed one makes k + 1 cases, not 2^k.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Int

from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.theory.hard_attention.contest import Contest, Level
from jaxsens.theory.hard_attention.restriction import FREE, Case, RestrictionRefused
from jaxsens.theory.hard_attention.values import HardModel, Inexact
from jaxsens.theory.rules import visible

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
    level, queries = contest.level, contest.queries_of(rows)
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
        self._add(entries, known, won)

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

    def _add(self, entries: list[int], known: dict[int, int], won: list[list[list[int]]]) -> None:
        owner = self.contest.level.owner
        for entry, of_heads in zip(entries, won, strict=True):
            choices = product(*(winners or [-1] for winners in of_heads))
            self.made += [(len(self.cases), entry, choice) for choice in choices]
        winners = (
            {int(owner[e]) for of_heads in won for e in of_heads[head]} for head in range(self.contest.heads)
        )
        row = int(owner[entries[0]])
        self.cases.append(Case(row, tuple(sorted(known.items())), tuple(tuple(sorted(of)) for of in winners)))
        most = self.most_values
        if len(self.made) >= most and self.cases[self.made[-most][0]].row == row:
            self._refuse(row, entries)

    def _refuse(self, row: int, entries: list[int]) -> None:
        contest = self.contest
        inputs = {i for case in self.cases if case.row == row for i, _ in case.conditions}
        text = (
            f"restrict: position {row} may have {self.most_values} values or more after layer {contest.k}, depending "
            f"on at least {len(inputs)} free inputs: give a larger n, a smaller free_fraction, or a larger most_values"
        )
        if contest.model.config.dtype == "float32":
            margin = float(contest.margins[:, entries].max())
            text += f"; in float32 scores that differ by less than {margin:.2g} count as undecided, in float64 fewer do"
        raise RestrictionRefused(text)

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
