"""Checks a restriction's certificate from the model alone. It shares no code with what builds restrictions.

The checker goes through the layers in plain NumPy, in float64 whatever the model's dtype. From the certificate it takes
only the cases and the winners claimed; it recomputes every vector, every score and every bound on rounding. For every
case it asks two questions. Do the conditions settle the row's own value and those of the winners? Can any other key, in
any of its cases that the conditions allow, come within rounding of the best winner? If the answers are yes and no, the
row is constant in each case, so it depends only on the inputs in the conditions: this is what the certificate claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from jaxsens import stopping
from jaxsens.errors import Faults, no_rule
from jaxsens.models.transformer import Transformer, check_length
from jaxsens.models.weighting import AverageHard, LeftmostHard, RightmostHard, Softmax, Sparsemax
from jaxsens.theory.hard_attention.checker_arithmetic import (
    Attention,
    Rows,
    attention_rows,
    embedded_rows,
    finished_rows,
    visible_keys,
)
from jaxsens.theory.hard_attention.restriction import FREE, Case, Restriction

ERRORS_APART = 4.0
"""Scores this many errors apart are ordered for certain: two scores, each within one error of its exact value, in the
model's program and in this one."""

LISTED = 50
"""How many errors are listed. Of the others, the number is given."""

_BLOCK = 2**22


@dataclass(frozen=True)
class Verdict:
    """What the checker found.

    Attributes:
        accepted: whether the restriction does what it says.
        faults: what is wrong, in words; empty if accepted.
        cases: how many cases were verified.
        comparisons: how many scores were compared.
    """

    accepted: bool
    faults: tuple[str, ...]
    cases: int
    comparisons: int


@dataclass
class _Faults:
    """The errors found so far."""

    listed: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= LISTED:
            self.listed.append(text)

    def all(self) -> tuple[str, ...]:
        more = self.count - len(self.listed)
        return (*self.listed, f"and {more} more") if more else tuple(self.listed)


@dataclass
class _Table:
    """The possible values of the rows after some layer: entries, grouped into cases.

    Attributes:
        rows: the entries.
        case: the case of each entry.
        holds: the conditions of each case.
        of_row: the cases of each row.
        entries: the entries of each case.
    """

    rows: Rows
    case: np.ndarray
    holds: list[dict[int, int]]
    of_row: dict[int, list[int]]
    entries: list[np.ndarray]

    @classmethod
    def of(cls, rows: Rows, case: list[int], owners: list[int], holds: list[dict[int, int]]) -> _Table:
        of_row: dict[int, list[int]] = {}
        for number, owner in enumerate(owners):
            of_row.setdefault(owner, []).append(number)
        cases = np.array(case, np.int64)
        order = np.argsort(cases, kind="stable")
        entries = np.split(order, np.searchsorted(cases[order], np.arange(1, len(holds))))
        return cls(rows, cases, holds, of_row, entries)

    def settled(self, row: int, known: dict[int, int]) -> int | None:
        """The case of a row that holds whenever `known` does, if there is one."""
        for number in self.of_row.get(row, ()):
            if self.holds[number].items() <= known.items():
                return number
        return None

    def contradicting(self) -> dict[tuple[int, int], np.ndarray]:
        """For each condition, the entries of cases that ask for another symbol at the same input."""
        asking: dict[int, list[tuple[int, int]]] = {}
        for number, holds in enumerate(self.holds):
            for i, symbol in holds.items():
                asking.setdefault(i, []).append((symbol, number))
        found = {}
        for i, pairs in asking.items():
            for symbol in {s for s, _ in pairs}:
                cases = [number for s, number in pairs if s != symbol]
                found[i, symbol] = np.flatnonzero(np.isin(self.case, cases))
        return found


def check(restriction: Restriction, model: Transformer, free_fraction: float | None = None) -> Verdict:
    """Checks whether a restriction's certificate holds for a model, and so what the restriction says about the output.

    Args:
        restriction: from `restrict`, or from any other source.
        model: the model it is meant for.
        free_fraction: also requires this share of free positions.

    Returns:
        The verdict, with every error found. O(cases n |cases a row| d heads) for each layer.

    Raises:
        InputError: if the model is not a jaxsens Transformer, or has a part that the checker has no rule for.
    """
    given = Faults("check")
    if not isinstance(model, Transformer):
        given.add("model", type(model).__name__, "a jaxsens Transformer")
    given.raise_if_any()
    faults = _Faults()
    if not _usable(restriction, model, faults):
        return Verdict(False, faults.all(), 0, 0)
    with np.errstate(all="ignore"):  # what overflows is refused
        return _judged(restriction, model, free_fraction, faults)


def _judged(
    restriction: Restriction, model: Transformer, free_fraction: float | None, faults: _Faults
) -> Verdict:
    if (
        free_fraction is not None
        and np.sum(restriction.values == FREE) < free_fraction * restriction.n - 1e-9
    ):
        faults.add(f"{restriction.free_fraction:.4f} of the positions are free, less than {free_fraction}")
    table = _first_table(restriction, model)
    cases = comparisons = 0
    largest = float(np.finfo(model.config.dtype).max)
    for k, claimed in enumerate(restriction.certificate.layers):
        before = faults.count
        made, compared = _Layer(restriction, model, k, table, faults).verify(claimed)
        cases, comparisons = cases + len(claimed), comparisons + compared
        if made is not None and not made.rows.largest <= largest:
            faults.add(f"layer {k}: numbers may exceed {largest:.4g}, the largest of {model.config.dtype}")
        if made is None or faults.count > before:
            break  # what follows would rest on it
        table = made
    else:
        _check_dependence(restriction, model, table, faults)
    return Verdict(faults.count == 0, faults.all(), cases, comparisons)


def _usable(restriction: Restriction, model: Transformer, faults: _Faults) -> bool:
    config, values = model.config, restriction.values
    if not isinstance(values, np.ndarray) or values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        faults.add("values are no array of whole numbers, one a position")
        return False
    unreadable = Faults("length")
    check_length(config, len(values), unreadable)
    for message in unreadable.messages:
        faults.add(message)
    for k in range(config.layers):
        match weighting := config.layer(k).weighting:
            case LeftmostHard() | RightmostHard():
                pass
            case AverageHard() | Softmax() | Sparsemax():
                faults.add(f"layer {k} of the model is not leftmost-hard or rightmost-hard")
            case _:
                raise no_rule("check", "weighting", weighting, (LeftmostHard, RightmostHard))
    if config.readout == "mean" or config.centred_scores:
        faults.add("the model reads out the mean, or has centred scores: neither can be certified")
    elif not 0 <= _readout(restriction, model) < len(values):
        faults.add(f"the readout position is not among the {len(values)} positions")
    if len(restriction.certificate.layers) != config.layers:
        faults.add(
            f"{len(restriction.certificate.layers)} layers are certified, the model has {config.layers}"
        )
    if ((values < FREE) | (values >= config.vocabulary_size)).any():
        faults.add(f"values are symbols below {config.vocabulary_size}, or {FREE}")
    symbols = restriction.symbols
    if (
        not symbols
        or len(set(symbols)) < len(symbols)
        or not set(symbols) <= set(range(config.vocabulary_size))
    ):
        faults.add(f"symbols = {symbols} are not different symbols of the model")
    return faults.count == 0


def _readout(restriction: Restriction, model: Transformer) -> int:
    readout = model.config.readout
    return restriction.n - 1 if readout == "last" else int(readout)


def _first_table(restriction: Restriction, model: Transformer) -> _Table:
    owners: list[int] = []
    held: list[int] = []
    holds: list[dict[int, int]] = []
    for i, value in enumerate(restriction.values.tolist()):
        for symbol in restriction.symbols if value == FREE else (value,):
            owners.append(i)
            held.append(symbol)
            holds.append({i: symbol} if value == FREE else {})
    rows = embedded_rows(model, restriction.n, np.array(owners), np.array(held))
    return _Table.of(rows, list(range(len(owners))), owners, holds)


def _check_dependence(restriction: Restriction, model: Transformer, table: _Table, faults: _Faults) -> None:
    readout = _readout(restriction, model)
    if readout not in table.of_row:
        return faults.add(f"the readout row {readout} is not certified in the last layer")
    found = {i for number in table.of_row[readout] for i in table.holds[number]}
    missing = sorted(found - set(restriction.depends_on))
    if missing:
        faults.add(f"the output may depend on the inputs {missing}, which depends_on lacks")
    fixed = [i for i in restriction.depends_on if not 0 <= i < restriction.n or restriction.values[i] != FREE]
    if fixed:
        faults.add(f"depends_on holds {fixed}, which are no free positions")
    if len(set(restriction.depends_on)) < len(restriction.depends_on):
        faults.add("depends_on holds a position twice")
    return None


def _is_partition(cases: list[dict[int, int]], symbols: tuple[int, ...]) -> bool:
    """Whether the cases are the leaves of a decision tree, so that exactly one holds whatever the inputs are.

    All cases of a tree name the input at its root. Partitions that are not a tree are not accepted: finding them could
    take exponential time.
    """
    if any(not case for case in cases):
        return len(cases) == 1
    if not cases:
        return False
    common = set(cases[0]).intersection(*cases[1:])
    if not common:
        return False
    root = min(common)
    return all(
        _is_partition(
            [{i: s for i, s in case.items() if i != root} for case in cases if case[root] == symbol], symbols
        )
        for symbol in symbols
    )


@dataclass
class _Layer:
    """The claims about one layer."""

    restriction: Restriction
    model: Transformer
    k: int
    below: _Table
    faults: _Faults

    def verify(self, claimed: tuple[Case, ...]) -> tuple[_Table | None, int]:
        """The table after the layer, if the claims make sense, and how many scores were compared."""
        if not self._check_form(claimed):
            return None, 0
        below, heads = self.below, self.model.config.layer(self.k).heads
        found = attention_rows(self.model, self.restriction.n, self.k, below.rows)
        against = below.contradicting()
        queries: list[tuple[int, int]] = []
        for number, case in enumerate(claimed):
            own = below.settled(case.row, dict(case.conditions))
            if own is not None:  # `_check_form` made sure of it
                queries += [(number, int(entry)) for entry in below.entries[own]]
        picks: list[tuple[int, int, tuple[int, ...]]] = []
        width = len(below.case)
        for part in _parts(queries, max(1, _BLOCK // (heads * width))):
            scores = found.scores(np.array([entry for _, entry in part]))
            for row, (number, entry) in enumerate(part):
                case = claimed[number]
                excluded = ~found.seen(case.row)
                for condition in case.conditions:
                    excluded[against.get(condition, np.zeros(0, np.int64))] = True
                won = [
                    self._verify_head(case, h, entry, scores[h, row], excluded, found) for h in range(heads)
                ]
                picks += [(number, entry, choice) for choice in product(*(each or [-1] for each in won))]
        rows = finished_rows(
            self.model,
            self.k,
            below.rows,
            found,
            np.array([entry for _, entry, _ in picks], np.int64),
            np.array([choice for _, _, choice in picks], np.int64).reshape(len(picks), heads).T,
        )
        made = _Table.of(
            rows,
            [number for number, _, _ in picks],
            [case.row for case in claimed],
            [dict(case.conditions) for case in claimed],
        )
        return made, heads * len(queries) * width

    def _check_form(self, claimed: tuple[Case, ...]) -> bool:
        """Whether the cases are cases, name known rows and keys, and settle them."""
        before, values = self.faults.count, self.restriction.values
        heads, n = self.model.config.layer(self.k).heads, self.restriction.n
        of_row: dict[int, list[dict[int, int]]] = {}
        for case in claimed:
            where, known = f"layer {self.k}, row {case.row}, case {case.conditions}", dict(case.conditions)
            sound = len(known) == len(case.conditions) and all(
                0 <= i < n and values[i] == FREE and s in self.restriction.symbols for i, s in known.items()
            )
            if not sound:
                self.faults.add(f"{where}: the conditions are not on free inputs, each once")
                continue
            of_row.setdefault(case.row, []).append(known)
            if self.below.settled(case.row, known) is None:
                self.faults.add(f"{where}: the conditions do not settle the row's own value below")
            if len(case.keys) != heads:
                self.faults.add(f"{where}: winners of {len(case.keys)} heads for {heads}")
            for key in sorted({key for keys in case.keys for key in keys}):
                if self.below.settled(key, known) is None:
                    self.faults.add(f"{where}: the conditions do not settle the value of the winner {key}")
        seen: set[int] = set()
        for row, cases in of_row.items():
            if not _is_partition(cases, self.restriction.symbols):
                self.faults.add(
                    f"layer {self.k}, row {row}: the cases overlap or leave words out, or are no decision tree"
                )
            seen |= set(self._visible(row))
        missing = sorted(seen - set(self.below.of_row))
        if missing:
            self.faults.add(f"layer {self.k}: rows {missing[:10]} can be seen and are not certified below")
        return self.faults.count == before

    def _visible(self, row: int) -> range:
        n = self.restriction.n
        return visible_keys(self.model.config.layer(self.k).mask, n, row) if row in range(n) else range(0)

    def _verify_head(
        self, case: Case, head: int, query: int, scores: np.ndarray, excluded: np.ndarray, found: Attention
    ) -> list[int]:
        """The entries of the claimed winners, after checking whether any other key can beat or match them."""
        below, keys = self.below, case.keys[head]
        where = f"layer {self.k}, row {case.row}, case {case.conditions}, head {head}"
        known = dict(case.conditions)
        groups = [below.entries[number] for key in keys if (number := below.settled(key, known)) is not None]
        if not groups:
            if not excluded.all():
                self.faults.add(f"{where}: no winner is named, but keys are visible")
            return []
        mine = np.concatenate(groups)
        if excluded[mine].any():
            self.faults.add(f"{where}: a winner named is not visible")
            return []
        floor = max(float(scores[group].min()) for group in groups)
        margin = ERRORS_APART * found.margin[head, query]
        able = ~excluded & (scores >= floor - margin)
        able[mine] = False
        others = np.flatnonzero(able)
        if len(others):
            others = others[~self._lose_ties(head, query, others, groups, found)]
        if len(others):
            rivals = sorted(set(below.rows.positions[others].tolist()))
            self.faults.add(f"{where}: {rivals[:10]} can win too, the winners named are {list(keys)}")
        return mine.tolist()

    def _lose_ties(
        self, head: int, query: int, others: np.ndarray, groups: list[np.ndarray], found: Attention
    ) -> np.ndarray:
        """Which entries have exactly the key, and so the score, of a winner that the tie rule puts first."""
        lost = np.zeros(len(others), bool)
        positions = self.below.rows.positions
        first = isinstance(self.model.config.layer(self.k).weighting, LeftmostHard)
        for group in groups:
            ahead = (
                positions[group[0]] < positions[others] if first else positions[group[0]] > positions[others]
            )
            same = np.ones(len(others), bool)
            for entry in group:
                same &= found.same_key(head, query, int(entry), others)
            lost |= ahead & same
        return lost


def _parts(queries: list[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    for start in range(0, len(queries), size):
        stopping.check()
        yield queries[start : start + size]
