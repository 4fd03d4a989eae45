"""The paper's table of results, measured: does a construction's sensitivity fall, and up to which n is it exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxsens.constructions.compiled import CompiledTransformer, Promise, Read
from jaxsens.constructions.conditions import Condition
from jaxsens.errors import collecting
from jaxsens.experiments.constructions_cases import CASES, Case, Dtype
from jaxsens.inputs import is_count
from jaxsens.models.transformer import Transformer
from jaxsens.precision import DTYPES
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.stopping import check

CAP = 4000
"""The longest words that exactness is tried on by default: a forward pass of one word takes seconds there."""

LENGTHS = (32, 70, 150, 320)
"""Where sensitivity is measured by default."""

SHORTER = (100, 777, 2000)
"""Where exactness is tried below the cap: no powers of two, which hide rounding (trap T9)."""

_OUTPUT: tuple[Read, ...] = ("output",)
_CONTROL: tuple[Read, ...] = ("before-rounding", "everything")

REFINEMENTS = 4
"""How often the interval from the longest exact length tried to the shortest inexact one is halved."""


@dataclass(frozen=True)
class TablePlan:
    """What to measure.

    Attributes:
        cases: whose networks.
        lengths: where flip sensitivity is measured: even, at least 8, three or more of them.
        cap: the longest words that exactness is tried on.
    """

    cases: tuple[Case, ...] = CASES
    lengths: tuple[int, ...] = LENGTHS
    cap: int = CAP

    def __post_init__(self) -> None:
        with collecting("constructions table") as faults:
            if len(set(self.lengths)) < 3 or not all(is_count(n, 8) and n % 2 == 0 for n in self.lengths):
                faults.add("lengths", self.lengths, "three or more even numbers of at least 8")
            if not is_count(self.cap, 8):
                faults.add("cap", self.cap, "a whole number of at least 8")

    @property
    def rows(self) -> tuple[tuple[Case, Condition, Read], ...]:
        """The rows of the table, in its order.

        The control has two: its rounded output hardly moves, so what the rounding reads is measured, and everything.
        """
        return tuple(
            (case, condition, read)
            for case in self.cases
            for condition in case.conditions
            for read in (_OUTPUT if condition.promises else _CONTROL)
        )

    @property
    def tried(self) -> tuple[int, ...]:
        """The lengths that exactness is tried on, the cap last."""
        return (*(n for n in SHORTER if n < self.cap), self.cap)


@dataclass(frozen=True)
class Exactness:
    """Up to which length a network equalled its formula at every position of every word tried.

    Attributes:
        longest: the longest length up to which every length tried was exact; 0 if none was.
        inexact: the shortest length tried that was not; None if all were.
        predicted: `promise.exact_to` of the dtype.
    """

    longest: int
    inexact: int | None
    predicted: int


@dataclass(frozen=True)
class TableRow:
    """One network, measured.

    Attributes:
        name: of the case.
        promise: what the network is.
        read: which coordinates were measured.
        at: the position that was read.
        lengths, maxima, means: flip sensitivity over all flips of the case's word, in float64.
        exactness: by dtype; empty for the control, which promises nothing.
    """

    name: str
    promise: Promise
    read: Read
    at: str
    lengths: tuple[int, ...]
    maxima: tuple[float, ...]
    means: tuple[float, ...]
    exactness: Mapping[str, Exactness]

    def __str__(self) -> str:
        which = f"{self.promise.condition}{', autoregressive' if self.promise.autoregressive else ''}"
        return f"{self.name}, {which}: {self.maxima[-1]:.3g} at n = {self.lengths[-1]}"


def plan_of(name: str | None = None, cap: int | None = None) -> TablePlan:
    """The plan of the whole table, or of the cases of one name.

    Raises:
        InputError: for a name that is not measured, or a cap that cannot be used; both at once.
    """
    cases = tuple(case for case in CASES if name in (None, case.name))
    with collecting("constructions table") as faults:
        if not cases:
            faults.add("name", name, f"one of {', '.join(case.name for case in CASES)} is measured")
        if cap is not None and not is_count(cap, 8):
            faults.add("cap", cap, "a whole number of at least 8")
    return TablePlan(cases, cap=CAP if cap is None else cap)


def measure_table(plan: TablePlan) -> Iterator[TableRow]:
    """The rows of the table, each as it is done. With the default plan a row takes up to a minute on two cores."""
    for case, condition, read in plan.rows:
        check()
        yield measure_row(case, condition, read, plan)


def measure_row(case: Case, condition: Condition, read: Read, plan: TablePlan) -> TableRow:
    """One row of the table."""
    model = case.build(condition, "float64", read)
    maxima, means = _sensitivity(case, model, plan.lengths)
    exact = {dtype: exactness(case, condition, dtype, plan.tried) for dtype in DTYPES if condition.promises}
    return TableRow(case.name, model.promise, read, case.at, plan.lengths, maxima, means, exact)


def _sensitivity(
    case: Case, model: CompiledTransformer, lengths: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The largest and the mean flip sensitivity of the case's word at each length."""
    # A readout is part of the config, and parameters do not depend on it.
    config = model.config if case.at == "last" else model.config.replace(readout=0)
    read = Transformer(config, parameters=model.parameters)
    outputs = "all" if model.outputs is None else model.outputs
    # Forward passes compile in a third of the other engine's time; changes of 1/n in float64 survive subtraction.
    results = [
        flip_sensitivity(read, case.tokens(n), outputs=outputs, engine="vmap", progress=False)
        for n in lengths
    ]
    return tuple(result.max for result in results), tuple(result.mean for result in results)


def exactness(case: Case, condition: Condition, dtype: Dtype, lengths: tuple[int, ...]) -> Exactness:
    """Tries these increasing lengths, and closes in on the first inexact one from below."""
    model = case.build(condition, dtype)
    predicted = model.promise.exact_to(dtype)
    inexact = next((n for n in lengths if not exact_at(case, model, n)), None)
    if inexact is None:
        return Exactness(lengths[-1], None, predicted)
    longest = max((n for n in lengths if n < inexact), default=0)
    for _ in range(REFINEMENTS):
        between = (longest + inexact) // 2 | 1  # odd: no power of two
        if not longest < between < inexact:
            break
        if exact_at(case, model, between):
            longest = between
        else:
            inexact = between
    return Exactness(longest, inexact, predicted)


def exact_at(case: Case, model: CompiledTransformer, n: int) -> bool:
    """Whether the output is the formula's truth value, to the last digit, at every position of adversarial words."""
    words = case.adversarial(n)
    for word, expected in zip(words, case.truth(words), strict=True):
        check()
        found = np.asarray(model.activations(jnp.asarray(word)))[:, model.output]  # one word at a time
        if not np.array_equal(found, expected):
            return False
    return True
