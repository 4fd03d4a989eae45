"""The run: agreement first, then every input, all methods in turn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np
from jaxtyping import Float, Int

from benchmarks.agreement import Disagreement, disagreement, largest_relative_error
from benchmarks.costs import Rates, cost
from benchmarks.options import REFERENCE, SAMPLED, Case, Plan, chosen, unserved
from benchmarks.rows import MIB, Row
from benchmarks.worker import Worker, WorkerFailed

Say = Callable[[str], None]

FEWEST = 8
"""The least number of flips of a sample, however long they take."""

SHORT = 128
"""Length at which methods are checked against each other, or the shortest length if that is less."""

_COMPILING = 300.0  # seconds that a first run may take in addition to the work itself
_PATIENCE = 4.0  # a run may take this much longer than the limit before it is stopped


def check_agreement(plan: Plan, say: Say) -> None:
    """Measures all flips of one short input at every depth by every method.

    Raises:
        Disagreement: naming the methods whose norms are not those of the float64 reference, or which failed.
    """
    n, problems = min(plan.lengths[0], SHORT), []
    for layers in plan.layers:
        say(f"checking that all methods agree: L = {layers}, n = {n}")
        exact = _once(Case(REFERENCE, layers, n))
        for method in plan.methods:
            if unserved(Case(method, layers, n)) is not None:
                continue
            try:
                problem = disagreement(method, _once(Case(method, layers, n)), exact, layers)
            except WorkerFailed as failure:
                problem = f"{method}: {failure}"
            if problem is not None:
                problems.append(f"L = {layers}, n = {n}, {problem}")
    if problems:
        raise Disagreement("the methods do not give the same numbers:\n" + "\n".join(problems))


def _once(case: Case) -> Float[np.ndarray, " flips"]:
    with Worker(case) as worker:
        return worker.run(None, _COMPILING).norms


@dataclass
class _Measurement:
    """A method at work on an input: its process, which flips it takes, and its runs so far."""

    case: Case
    worker: Worker
    positions: Int[np.ndarray, " flips"] | None
    first_seconds: float
    norms: Float[np.ndarray, " flips"]
    seconds: list[float]
    peak: int = 0

    def repeats(self, plan: Plan) -> int:
        """As many as fit twice the limit, at least two and at most those of the plan."""
        affordable = int(2 * plan.limit_seconds / max(self.first_seconds, 1e-9))
        return min(plan.repeats, max(2, affordable))


class Schedule:
    """How long a case will take, from the same method at the next shorter length. Cubic in n, to be safe."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[tuple[str, int], tuple[int, float]] = {}

    def note(self, case: Case, seconds: float) -> None:
        """All flips of a case took so long."""
        self._known[case.method, case.layers] = (case.n, seconds)

    def expected(self, case: Case) -> float | None:
        """Seconds for all flips, or None if nothing is known."""
        known = self._known.get((case.method, case.layers))
        return None if known is None else known[1] * (case.n / known[0]) ** 3

    def positions(self, case: Case) -> Int[np.ndarray, " flips"] | None:
        """The flips to run: None for all of them, a sample where those would take longer than the limit."""
        expected, limit = self.expected(case), self._plan.limit_seconds
        if expected is None or expected <= limit:
            return None
        affordable = int((case.n - 1) * limit / expected)
        return chosen(case.n, max(min(FEWEST, self._plan.sample), min(self._plan.sample, affordable)))


def measure_all(plan: Plan, rates: Rates, say: Say) -> Iterator[list[Row]]:
    """Measures every input; yields the rows of one (L, n) at a time."""
    for layers in plan.layers:
        schedule = Schedule(plan)
        for n in plan.lengths:
            say(f"L = {layers}, n = {n}")
            yield _measure_one(plan, schedule, layers, n, rates, say)


def _measure_one(plan: Plan, schedule: Schedule, layers: int, n: int, rates: Rates, say: Say) -> list[Row]:
    exact, exact_positions = _exact(plan, schedule, layers, n)
    rows, at_work = [], []
    with ExitStack() as workers:
        for method in plan.methods:
            case = Case(method, layers, n)
            empty = Row(method, layers, n, n - 1)
            refused = unserved(case)
            if refused is not None:
                rows.append(dataclasses.replace(empty, note=f"left out: {refused}"))
                continue
            expected = schedule.expected(case)
            if method not in SAMPLED and expected is not None and expected > plan.limit_seconds:
                failed = math.isinf(expected)
                reason = "it failed at a shorter length" if failed else f"about {expected:.0f} s expected"
                rows.append(dataclasses.replace(empty, note=f"left out: {reason}"))
                continue
            say(f"  {method}: first run")
            try:
                at_work.append(_started(workers, case, schedule.positions(case), plan))
            except WorkerFailed as failure:
                rows.append(dataclasses.replace(empty, note=str(failure)))
                schedule.note(case, math.inf)
        ended = _take_turns(at_work, plan, say)
    for row in ended:
        schedule.note(Case(row.method, layers, n), math.inf)
    rows += ended
    for one in at_work:
        if one.seconds:
            row = _row(one, rates, exact, exact_positions)
            schedule.note(one.case, row.seconds or 0.0)
            rows.append(row)
    return rows


def _started(
    workers: ExitStack, case: Case, positions: Int[np.ndarray, " flips"] | None, plan: Plan
) -> _Measurement:
    worker = workers.enter_context(Worker(case))
    first = worker.run(positions, _PATIENCE * plan.limit_seconds + _COMPILING)
    worker.begin_memory()
    return _Measurement(case, worker, positions, first.seconds, first.norms, [])


def _take_turns(at_work: list[_Measurement], plan: Plan, say: Say) -> list[Row]:
    """Timed runs, one of each method in turn, so that a busy minute hits all alike. Returns rows of those that fail."""
    failed = []
    for turn in range(plan.repeats):
        for one in at_work:
            if one.seconds and turn >= one.repeats(plan):
                continue
            try:
                one.seconds.append(one.worker.run(one.positions, _PATIENCE * plan.limit_seconds).seconds)
                one.peak = one.worker.peak()
            except WorkerFailed as failure:
                failed.append(
                    Row(one.case.method, one.case.layers, one.case.n, one.case.n - 1, note=str(failure))
                )
                one.seconds.clear()
        at_work[:] = [one for one in at_work if one.seconds]
        say(
            f"  turn {turn + 1}: "
            + ", ".join(f"{one.case.method} {one.seconds[-1]:.3g} s" for one in at_work)
        )
    return failed


def _exact(
    plan: Plan, schedule: Schedule, layers: int, n: int
) -> tuple[Float[np.ndarray, " flips"], Int[np.ndarray, " flips"]]:
    """Norms in float64, and the positions they belong to; none if even a sample failed."""
    case = Case(REFERENCE, layers, n)
    positions = schedule.positions(case)
    flipped = np.arange(n - 1) if positions is None else positions
    try:
        with Worker(case) as worker:
            ran = worker.run(positions, _PATIENCE * plan.limit_seconds + _COMPILING)
    except WorkerFailed:
        return np.zeros(0), np.zeros(0, int)
    # Compiling is in it: at short lengths too long an estimate, which only makes a sample smaller.
    schedule.note(case, ran.seconds * (n - 1) / len(flipped))
    return ran.norms, flipped


def _row(
    one: _Measurement,
    rates: Rates,
    exact: Float[np.ndarray, " flips"],
    exact_positions: Int[np.ndarray, " flips"],
) -> Row:
    case, flips = one.case, one.case.n - 1
    flipped = np.arange(flips) if one.positions is None else one.positions
    scale = flips / len(flipped)
    _, ours, theirs = np.intersect1d(flipped, exact_positions, return_indices=True)
    seconds, algorithm = scale * median(one.seconds), cost(case)
    limit = algorithm.seconds(rates)
    return Row(
        method=case.method,
        layers=case.layers,
        n=case.n,
        flips=flips,
        measured_flips=len(flipped),
        seconds=seconds,
        fastest=scale * min(one.seconds),
        slowest=scale * max(one.seconds),
        repeats=len(one.seconds),
        flips_per_second=flips / seconds,
        compile_seconds=max(0.0, one.first_seconds - median(one.seconds)),
        peak_mib=one.peak / MIB,
        error=largest_relative_error(one.norms[ours], exact[theirs]) if len(ours) else None,
        checked_flips=len(ours),
        operations=algorithm.operations,
        bytes=algorithm.bytes,
        limit_seconds=limit,
        distance=seconds / limit,
        note=one.worker.remark if scale == 1 else f"extrapolated from {len(flipped)} flips",
    )
