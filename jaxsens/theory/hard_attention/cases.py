"""The cases of every row after a layer, from the cases before it: a decision tree over the free inputs.

To know a head's winner, ask for the inputs of the best key that can still win, then of the next one, until the best
key that is left is known. The row depends on the inputs asked for, and the answers are its cases. So a head with k free
keys above a fixed one makes k + 1 cases, not 2^k.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Int

from jaxsens.theory.hard_attention.contest import Conditions, Contest, Level
from jaxsens.theory.hard_attention.restriction import FREE, RestrictionRefused
from jaxsens.theory.hard_attention.values import RESTRICT, HardModel
from jaxsens.theory.rules import visible_keys

MOST_SCORES = 2**31
"""Layers with more pairs of possible query and possible key than this are refused: they would take minutes."""

MOST_CANDIDATES = 2**23
"""The most keys that can still win which are listed in one layer, over all queries and heads."""


def first_level(model: HardModel, values: Int[np.ndarray, " n"], symbols: tuple[int, ...]) -> Level:
    """The rows before the first layer: a free row has a case for each symbol, a fixed row has one case."""
    owner: list[int] = []
    held: list[int] = []
    conditions: list[Conditions] = []
    for i, value in enumerate(values.tolist()):
        for symbol in symbols if value == FREE else (value,):
            owner.append(i)
            held.append(symbol)
            conditions.append(((i, symbol),) if value == FREE else ())
    positions = np.array(owner)
    x, errors = model.embedded(positions, np.array(held))
    return Level(positions, np.arange(len(owner)), x, errors, positions, tuple(conditions), ())


def needed_rows(model: HardModel) -> list[Int[np.ndarray, " _"]]:
    """The rows of every layer that the readout can depend on: of the last layer, the readout's row alone."""
    config, n = model.config, model.n
    row = n - 1 if config.readout == "last" else int(config.readout)
    wanted = np.zeros(n, bool)
    wanted[row] = True
    found = [np.flatnonzero(wanted)]
    for k in reversed(range(1, config.layers)):
        start, stop = visible_keys(RESTRICT, config.layer(k).mask, n)
        for row in found[-1]:
            wanted[start[row] : stop[row]] = True
        found.append(np.flatnonzero(wanted))
    return found[::-1]


@dataclass
class _Made:
    """What the trees of a layer have found: entries as own entry and winning entry of each head, -1 for none."""

    owner: list[int]
    own: list[int]
    won: list[tuple[int, ...]]
    case: list[int]
    case_owner: list[int]
    conditions: list[Conditions]
    winners: list[tuple[tuple[int, ...], ...]]


def next_level(
    contest: Contest, rows: Int[np.ndarray, " some"], symbols: tuple[int, ...], most_values: int
) -> Level:
    """The cases of `rows` after the contest's layer.

    Raises:
        RestrictionRefused: if a row has more than `most_values` possible values, or there are too many scores.
    """
    queries = contest.queries_of(rows)
    check_scores(contest, len(queries))
    candidates = _candidates(contest, queries)
    made = _Made([], [], [], [], [], [], [])
    level = contest.level
    for start in np.flatnonzero(level.leads[queries]):
        entries = [int(queries[start])]
        for query in queries[start + 1 :]:
            if level.case[query] != level.case[entries[0]]:
                break
            entries.append(int(query))
        _Tree(contest, candidates, symbols, most_values, made, entries).grow(
            dict(level.conditions[level.case[entries[0]]])
        )
    return _computed(contest, made)


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
            found.setdefault((int(part[row]), int(head)), []).append(
                (float(block.scores[head, row, entry]), int(entry))
            )
    # Among equal scores first the one that the tie rule prefers: then its input is asked for before the others'.
    sign = 1 if contest.leftmost else -1
    for listed in found.values():
        listed.sort(key=lambda pair: (-pair[0], sign * int(contest.level.owner[pair[1]])))
    return found


@dataclass
class _Tree:
    """The decision tree of one case of one row: `entries` are its possible vectors below."""

    contest: Contest
    candidates: dict[tuple[int, int], list[tuple[float, int]]]
    symbols: tuple[int, ...]
    most_values: int
    made: _Made
    entries: list[int]

    def grow(self, known: dict[int, int]) -> None:
        """Adds the cases of the row in which the inputs of `known` hold its symbols."""
        won: list[list[list[int]]] = []
        for entry in self.entries:
            of_heads: list[list[int]] = []
            for head in range(self.contest.heads):
                asked, winners = self._decide(entry, head, known)
                if asked is not None:
                    for symbol in self.symbols:
                        self.grow({**known, asked: symbol})
                    return
                of_heads.append(winners)
            won.append(of_heads)
        self._add(known, won)

    def _decide(self, query: int, head: int, known: dict[int, int]) -> tuple[int | None, list[int]]:
        """The input to ask for next, or None and the entries that can win."""
        level = self.contest.level
        alive: list[tuple[float, int, int | None]] = []
        for score, entry in self.candidates.get((query, head), ()):
            missing, possible = None, True
            for i, symbol in level.conditions[level.case[entry]]:
                held = known.get(i)
                if held is None:
                    missing = i if missing is None else missing
                elif held != symbol:
                    possible = False
                    break
            if possible:
                alive.append((score, entry, missing))
        # A known case scores at least its worst entry. One that is not listed cannot win, so it is worse than any here.
        listed: dict[int, list[float]] = {}
        for score, entry, missing in alive:
            if missing is None:
                listed.setdefault(int(level.case[entry]), []).append(score)
        whole = (min(of) for case, of in listed.items() if len(of) == self.contest.case_sizes[case])
        floor = max(whole, default=-np.inf)
        margin = self.contest.margins[head, query]
        missing_of = {entry: missing for score, entry, missing in alive if score >= floor - margin}
        known_entries = {entry for entry, missing in missing_of.items() if missing is None}
        left = self.contest.after_ties(head, query, list(missing_of), known_entries)
        for entry in left:
            asked = missing_of[entry]
            if asked is not None:
                return asked, []
        return None, left

    def _add(self, known: dict[int, int], won: list[list[list[int]]]) -> None:
        made, level = self.made, self.contest.level
        owner = int(level.owner[self.entries[0]])
        case = len(made.conditions)
        for entry, of_heads in zip(self.entries, won, strict=True):
            for choice in product(*(winners or [-1] for winners in of_heads)):
                made.owner.append(owner)
                made.own.append(entry)
                made.won.append(choice)
                made.case.append(case)
        made.case_owner.append(owner)
        made.conditions.append(tuple(sorted(known.items())))
        made.winners.append(
            tuple(
                tuple(sorted({int(level.owner[e]) for of_heads in won for e in of_heads[head]}))
                for head in range(self.contest.heads)
            )
        )
        if len(made.owner) >= self.most_values and made.owner[-self.most_values] == owner:
            self._refuse(owner)

    def _refuse(self, owner: int) -> None:
        made, model, k = self.made, self.contest.model, self.contest.k
        cases = zip(made.conditions, made.case_owner, strict=True)
        inputs = {i for conditions, row in cases if row == owner for i, _ in conditions}
        text = (
            f"restrict: position {owner} may have {self.most_values} values or more after layer {k}, depending on "
            f"at least {len(inputs)} free inputs: give a larger n, a smaller free_fraction, or a larger most_values"
        )
        if model.config.dtype == "float32":
            margin = float(self.contest.margins[:, self.entries].max())
            text += f"; in float32 scores that differ by less than {margin:.2g} count as undecided, in float64 fewer do"
        raise RestrictionRefused(text)


def _computed(contest: Contest, made: _Made) -> Level:
    """The level of what the trees found, with the vectors computed."""
    level, found = contest.level, contest.found
    own = np.array(made.own)
    won = np.array(made.won, np.int64).reshape(len(own), contest.heads).T
    head = np.arange(contest.heads)[:, None]
    none = (won < 0)[..., None]
    b = np.where(none, 0, found.values[head, won])
    b_errors = np.where(none, 0, found.value_errors[head, won])
    x, errors = contest.model.finished(contest.k, level.x[own], level.errors[own], b, b_errors)
    if not np.isfinite(x).all():
        raise RestrictionRefused(
            f"restrict: the activations after layer {contest.k} are not finite: give smaller parameters"
        )
    return Level(
        np.array(made.owner),
        np.array(made.case),
        x,
        errors,
        np.array(made.case_owner),
        tuple(made.conditions),
        tuple(made.winners),
    )
