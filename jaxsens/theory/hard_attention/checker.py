"""Checks a restriction's certificate from the model alone. It shares no code with what builds restrictions.

The checker goes through the layers in plain NumPy, in float64 whatever the model's dtype. From the certificate it takes
only the cases and the winners claimed; it recomputes every vector, every score and every bound on rounding. For every
case it asks two questions. Do the conditions settle the row's own value and those of the winners? Can any other key, in
any of its cases that the conditions allow, come within rounding of the best winner? If the answers are yes and no, the
row is constant in each case, so it depends only on the inputs in the conditions: this is what the certificate claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from jaxsens.core.base import inputs, stopping
from jaxsens.core.base.errors import Problems, collecting, no_rule
from jaxsens.core.base.strict import typed_arguments
from jaxsens.core.models.parts.weighting import AverageHard, LeftmostHard, RightmostHard, Softmax, Sparsemax
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.theory.hard_attention.checker_arithmetic import LayerAttention, Rows, embedded_rows, visible_keys
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
        problems: what is wrong, in words; empty if accepted.
        cases, comparisons: how many cases were verified, and how many scores compared.

    >>> Verdict(False, ("row 3: its value is not settled",), 8, 40).accepted
    False
    """

    accepted: bool
    problems: tuple[str, ...]
    cases: int
    comparisons: int


@dataclass(frozen=True)
class _Table:
    """The possible values of the rows after some layer: entries, grouped into cases.

    Attributes:
        rows: the entries, by case.
        case: the number of each entry's case.
        cases: of all rows.
    """

    rows: Rows
    case: np.ndarray
    cases: Sequence[Case]

    @cached_property
    def of_row(self) -> dict[int, list[tuple[int, dict[int, int]]]]:
        """The cases of each row: their numbers and conditions."""
        found: dict[int, list[tuple[int, dict[int, int]]]] = {}
        for number, case in enumerate(self.cases):
            found.setdefault(case.row, []).append((number, dict(case.conditions)))
        return found

    def settled(self, row: int, known: dict[int, int]) -> np.ndarray:
        """The entries of the case of a row that holds whenever `known` does; none if there is no such case."""
        for number, holds in self.of_row.get(row, ()):
            if holds.items() <= known.items():
                return np.arange(*np.searchsorted(self.case, (number, number + 1)))
        return np.zeros(0, np.int64)

    def contradicting(self) -> dict[tuple[int, int], np.ndarray]:
        """For each condition, the entries of cases that ask for another symbol at the same input."""
        asking: dict[int, list[tuple[int, int]]] = {}
        for number, case in enumerate(self.cases):
            for i, symbol in case.conditions:
                asking.setdefault(i, []).append((symbol, number))
        return {
            (i, symbol): np.flatnonzero(np.isin(self.case, [number for s, number in pairs if s != symbol]))
            for i, pairs in asking.items()
            for symbol in {s for s, _ in pairs}
        }


@typed_arguments
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

    >>> import jaxsens
    >>> config = jaxsens.TransformerConfig(2, width=8, heads=1, weighting="leftmost-hard")
    >>> model = jaxsens.Transformer(config)
    >>> check(jaxsens.theory.restrict(model, 64), model).accepted
    True
    """
    with collecting("check") as given:
        if free_fraction is not None:
            inputs.number("free_fraction", free_fraction, given, least=0, most=1)
    problems: list[str] = []
    cases = comparisons = 0
    if _usable(restriction, model, problems):
        with np.errstate(all="ignore"):  # what overflows is refused
            cases, comparisons = _judged(restriction, model, free_fraction, problems)
    more = (f"and {len(problems) - LISTED} more",) if len(problems) > LISTED else ()
    return Verdict(not problems, (*problems[:LISTED], *more), cases, comparisons)


def _judged(
    restriction: Restriction, model: Transformer, free_fraction: float | None, problems: list[str]
) -> tuple[int, int]:
    free, n = int(np.sum(restriction.values == FREE)), restriction.n
    if free_fraction is not None and free < free_fraction * n - 1e-9:
        problems.append(f"{free / n:.4f} of the positions are free, less than {free_fraction}")
    table = _first_table(restriction, model)
    cases = comparisons = 0
    largest = float(np.finfo(model.config.dtype).max)
    for k, claimed in enumerate(restriction.certificate.layers):
        before = len(problems)
        made, compared = _Layer(restriction, model, k, table, problems).verify(claimed)
        cases, comparisons = cases + len(claimed), comparisons + compared
        if made is not None and not made.rows.largest <= largest:
            why = f"layer {k}: numbers may exceed {largest:.4g}, the largest of {model.config.dtype}"
            problems.append(why)
        if made is None or len(problems) > before:
            break  # what follows would rest on it
        table = made
    else:
        _check_dependence(restriction, model, table, problems)
    return cases, comparisons


def _usable(restriction: Restriction, model: Transformer, problems: list[str]) -> bool:
    config, values = model.config, restriction.values
    if not isinstance(values, np.ndarray) or values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        problems.append("values are no array of whole numbers, one a position")
        return False
    unreadable = Problems("length")
    config.check_length(len(values), unreadable)
    problems += map(str, unreadable)
    for k in range(config.layers):
        match weighting := config.layer(k).weighting:
            case LeftmostHard() | RightmostHard():
                pass
            case AverageHard() | Softmax() | Sparsemax():
                problems.append(f"layer {k} of the model is not leftmost-hard or rightmost-hard")
            case _:
                raise no_rule("check", "weighting", weighting, (LeftmostHard, RightmostHard))
    readout = _readout(config.readout, len(values))
    if readout is None or config.centred_scores:
        problems.append("the model reads out the mean, or has centred scores: neither can be certified")
    elif not 0 <= readout < len(values):
        problems.append(f"the readout position is not among the {len(values)} positions")
    if len(restriction.certificate.layers) != config.layers:
        why = f"{len(restriction.certificate.layers)} layers are certified, the model has {config.layers}"
        problems.append(why)
    if ((values < FREE) | (values >= config.vocabulary_size)).any():
        problems.append(f"values are symbols below {config.vocabulary_size}, or {FREE}")
    symbols, known = restriction.symbols, set(range(config.vocabulary_size))
    if not 0 < len(symbols) == len(known & set(symbols)):
        problems.append(f"symbols = {symbols} are not different symbols of the model")
    return not problems


def _first_table(restriction: Restriction, model: Transformer) -> _Table:
    held = [
        (i, symbol, value == FREE)
        for i, value in enumerate(restriction.values.tolist())
        for symbol in (restriction.symbols if value == FREE else (value,))
    ]
    rows = embedded_rows(model, restriction.n, *np.array([(i, symbol) for i, symbol, _ in held]).T)
    cases = [Case(i, ((i, symbol),) if free else (), ()) for i, symbol, free in held]
    return _Table(rows, np.arange(len(held)), cases)


def _readout(readout: object, n: int) -> int | None:
    """The row that is read out of n; None for the mean of all rows."""
    match readout:
        case "mean":
            return None
        case "last":
            return n - 1
        case int():
            return readout
        case _:
            raise no_rule("check", "readout", str(readout), ("last", "mean", "a position"))


def _check_dependence(
    restriction: Restriction, model: Transformer, table: _Table, problems: list[str]
) -> None:
    readout = _readout(model.config.readout, restriction.n)
    if readout is None or readout not in table.of_row:
        problems.append(f"the readout row {readout} is not certified in the last layer")
        return
    found = {i for _, holds in table.of_row[readout] for i in holds}
    missing = sorted(found - set(restriction.depends_on))
    if missing:
        problems.append(f"the output may depend on the inputs {missing}, which depends_on lacks")
    fixed = [i for i in restriction.depends_on if not 0 <= i < restriction.n or restriction.values[i] != FREE]
    if fixed:
        problems.append(f"depends_on holds {fixed}, which are no free positions")
    if len(set(restriction.depends_on)) < len(restriction.depends_on):
        problems.append("depends_on holds a position twice")


def _is_partition(cases: list[dict[int, int]], symbols: tuple[int, ...]) -> bool:
    """Whether the cases are the leaves of a decision tree, so that exactly one holds whatever the inputs are.

    All cases of a tree name the input at its root. Partitions that are not a tree are not accepted: finding them could
    take exponential time.
    """
    if not cases or not all(cases):
        return len(cases) == 1
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
    problems: list[str]

    @cached_property
    def found(self) -> LayerAttention:
        """The layer on the rows below."""
        return LayerAttention(self.model, self.k, self.restriction.n, self.below.rows)

    def verify(self, claimed: tuple[Case, ...]) -> tuple[_Table | None, int]:
        """The table after the layer, if the claims make sense, and how many scores were compared."""
        if not self._check_form(claimed):
            return None, 0
        below, heads = self.below, self.model.config.layer(self.k).heads
        found, against = self.found, below.contradicting()
        queries = [
            (number, int(entry))
            for number, case in enumerate(claimed)
            for entry in below.settled(case.row, dict(case.conditions))
        ]
        picks: list[tuple[int, int, tuple[int, ...]]] = []
        width = len(below.case)
        size = max(1, _BLOCK // (heads * width))
        for start in range(0, len(queries), size):
            stopping.check()
            part = queries[start : start + size]
            scores = found.scores(np.array([entry for _, entry in part]))
            for row, (number, entry) in enumerate(part):
                case = claimed[number]
                excluded = ~found.seen(case.row)
                for condition in case.conditions:
                    excluded[against.get(condition, np.zeros(0, np.int64))] = True
                won = [self._verify_head(case, h, entry, scores[h, row], excluded) for h in range(heads)]
                picks += [(number, entry, choice) for choice in product(*(each or [-1] for each in won))]
        rows = found.finished(
            np.array([entry for _, entry, _ in picks], np.int64),
            np.array([choice for _, _, choice in picks], np.int64).reshape(len(picks), heads).T,
        )
        made = _Table(rows, np.array([number for number, _, _ in picks], np.int64), claimed)
        return made, heads * len(queries) * width

    def _check_form(self, claimed: tuple[Case, ...]) -> bool:
        """Whether the cases are cases, name known rows and keys, and settle them."""
        before, values = len(self.problems), self.restriction.values
        heads, n = self.model.config.layer(self.k).heads, self.restriction.n
        of_row: dict[int, list[dict[int, int]]] = {}
        for case in claimed:
            where, known = f"layer {self.k}, row {case.row}, case {case.conditions}", dict(case.conditions)
            sound = len(known) == len(case.conditions) and all(
                0 <= i < n and values[i] == FREE and s in self.restriction.symbols for i, s in known.items()
            )
            if not sound:
                self.problems.append(f"{where}: the conditions are not on free inputs, each once")
                continue
            of_row.setdefault(case.row, []).append(known)
            if not len(self.below.settled(case.row, known)):
                self.problems.append(f"{where}: the conditions do not settle the row's own value below")
            if len(case.keys) != heads:
                self.problems.append(f"{where}: winners of {len(case.keys)} heads for {heads}")
            for key in sorted({key for keys in case.keys for key in keys}):
                if not len(self.below.settled(key, known)):
                    why = f"{where}: the conditions do not settle the value of the winner {key}"
                    self.problems.append(why)
        seen: set[int] = set()
        for row, cases in of_row.items():
            if not _is_partition(cases, self.restriction.symbols):
                why = "the cases overlap or leave words out, or are no decision tree"
                self.problems.append(f"layer {self.k}, row {row}: {why}")
            if row in range(n):
                seen |= set(visible_keys(self.model.config.layer(self.k).mask, n, row))
        missing = sorted(seen - set(self.below.of_row))
        if missing:
            why = f"layer {self.k}: rows {missing[:10]} can be seen and are not certified below"
            self.problems.append(why)
        return len(self.problems) == before

    def _verify_head(
        self, case: Case, head: int, query: int, scores: np.ndarray, excluded: np.ndarray
    ) -> list[int]:
        """The entries of the claimed winners, after checking whether any other key can beat or match them."""
        below, keys = self.below, case.keys[head]
        where = f"layer {self.k}, row {case.row}, case {case.conditions}, head {head}"
        known = dict(case.conditions)
        groups = [below.settled(key, known) for key in keys]
        if not groups:
            if not excluded.all():
                self.problems.append(f"{where}: no winner is named, but keys are visible")
            return []
        mine = np.concatenate(groups)
        if excluded[mine].any():
            self.problems.append(f"{where}: a winner named is not visible")
            return []
        floor = max(float(scores[group].min()) for group in groups)
        margin = ERRORS_APART * self.found.margin[head, query]
        able = ~excluded & (scores >= floor - margin)
        able[mine] = False
        others = np.flatnonzero(able)
        if len(others):
            others = others[~self._lose_ties(head, query, others, groups)]
        if len(others):
            rivals = sorted(set(below.rows.positions[others].tolist()))
            self.problems.append(f"{where}: {rivals[:10]} can win too, the winners named are {list(keys)}")
        return mine.tolist()

    def _lose_ties(self, head: int, query: int, others: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
        """Which entries have exactly the key, and so the score, of a winner that the tie rule puts first."""
        lost = np.zeros(len(others), bool)
        positions = self.below.rows.positions
        sign = 1 if isinstance(self.model.config.layer(self.k).weighting, LeftmostHard) else -1
        for group in groups:
            ahead = sign * positions[group[0]] < sign * positions[others]
            same = [self.found.same_key(head, query, int(entry), others) for entry in group]
            lost |= ahead & np.all(same, axis=0)
        return lost
