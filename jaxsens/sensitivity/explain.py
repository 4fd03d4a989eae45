"""Reports what a measurement would do and cost, without running it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxsens.asked.engines import AskedEngine, FirstOrder
from jaxsens.asked.flips import Flips, Substitute
from jaxsens.asked.measures import Decision, Measure
from jaxsens.asked.value import read
from jaxsens.base import inputs
from jaxsens.base.errors import DurationWarning, EngineRefusal, Problems, collecting
from jaxsens.base.memory import FLIP_BYTES, TOKEN_BYTES, check_fits
from jaxsens.base.platforms import Platform, compiled_for
from jaxsens.base.precision import numerics
from jaxsens.base.strict import naming_arguments
from jaxsens.base.told import duration
from jaxsens.sensitivity.checks.output import traced_output
from jaxsens.sensitivity.choice import choose
from jaxsens.sensitivity.engines.edits import SUBSTITUTE, GroupEngine, edit_of
from jaxsens.sensitivity.engines.engine import Engine, EngineChoice, EngineCost
from jaxsens.sensitivity.engines.first_order.engine import FirstOrderEngine
from jaxsens.sensitivity.engines.vmap import VmapEngine
from jaxsens.sensitivity.estimates.estimate import (
    NAME,
    abstract_estimate,
    estimate_cost,
    first_order_engine,
    output_size,
    table_bytes,
)
from jaxsens.sensitivity.flips.selection import default_flips, select
from jaxsens.sensitivity.subjects.adapters import Measurable, measurable
from jaxsens.sensitivity.subjects.texts import encoded

_SHORTER = "give a shorter input; samples of its flips take less"

_PATIENCE = 30.0
"""Seconds from which on a measurement is long."""

_READING = 1e-9
"""Seconds in which a forward pass reads a symbol, at least."""

_ROW_NUMBER = 1e-6
"""Seconds for each number of a transformer's rows: their table of positions is a constant of every program."""

_SURELY_SHORT = 10**6
"""Flips times length up to which no time is estimated: estimating takes about as long as measuring."""


@dataclass(frozen=True)
class Explanation:
    """What `flip_sensitivity` would do with one input of length n.

    Attributes:
        engine: the engine it would run, with the reason.
        n: the input's length.
        flips: the number of flips.
        operations: floating-point operations for all flips; a multiply-add counts as two.
        memory: an estimate in bytes: the values shared by all flips, and one block of flips.
        seconds: the operations at this machine's rate for such work, without compilation; accurate to a factor of about
            three.
        first_order: what the first-order engine would cost instead, and what it would give up; None if it cannot serve
            the model, or runs.
    """

    engine: EngineChoice
    n: int
    flips: int
    operations: float
    memory: int
    seconds: float
    first_order: str | None = None

    def __str__(self) -> str:
        told = (
            f"n = {self.n}: {self.flips} flips by {self.engine}; {self.operations:.2g} operations, "
            f"{self.memory / 2**20:.0f} MiB, about {self.seconds:.2g} s"
        )
        return told if self.first_order is None else f"{told}\n{self.first_order}"


@naming_arguments
def explain(
    model: Any,
    n: int | str,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    readout: int | Literal["auto", "last", "mean"] | None = "auto",
    engine: AskedEngine | Any = "auto",
) -> Explanation:
    """Reports which engine would measure all flips of an input of length n, or of a text, why, and at what cost.

    It measures only the speed of one matrix product, once per process (a few milliseconds).

    Args:
        model: as for `flip_sensitivity`.
        n: the input's length, or for a model that encodes text, such as a published one, a text.
        flips, measure, readout, engine: as for `flip_sensitivity`. Flips that would put back the symbol that stands
            there are counted, except of a text or of an alphabet: there may be fewer.

    Raises:
        InputError: for unusable arguments, an engine that does not support the model, or a model that
            `flip_sensitivity` rejects.
    """
    subject = measurable(model)
    word = encoded(model, n) if isinstance(n, str) else None
    with collecting("explain") as problems:
        n = inputs.length(len(word) if isinstance(word, list) else n, problems)
        if n and check_fits("n", n, n * TOKEN_BYTES, "an input of this length", _SHORTER, problems):
            subject.check_length(n, problems)
        asked, what = read(AskedEngine, engine, problems), read(Measure, measure, problems)
        flipped: Any = default_flips(subject) if flips is None else read(Flips, flips, problems)
        if inputs.readout(readout, subject.readout, n, problems):
            subject = subject.reading(readout)
        known = None if word is None or problems else np.array(word, np.int32)
        count = (
            0 if flipped is None else _count_flips(flipped, subject, 0 if problems else n, known, problems)
        )
    if flipped is None:
        raise TypeError("unusable flips without an error")
    if isinstance(what, Decision) and isinstance(what.threshold, str):
        what = replace(what, threshold=0.0)  # which costs the same
    with numerics(subject.dtype):
        if subject.config is None:
            subject, _, _ = traced_output(subject, n)
        work, replacing = _Work(subject, n, count, compiled_for()), edit_of(flipped) == SUBSTITUTE
        if isinstance(asked, FirstOrder) and replacing:
            return work.estimated(first_order_engine(subject, asked, what))
        runner, choice = choose(subject, asked, flipped, what, n, 1)
        given = _abstract_input(runner, subject, n)
        found = work.by(choice, runner.cost(*given, work.platform), jax.eval_shape(runner.prepare, *given))
        return replace(found, first_order=work.estimated_instead(what)) if replacing else found


def warn_if_long(
    chosen: Callable[[], Engine], subject: Measurable, shape: tuple[int, ...], flips: int, stacklevel: int
) -> None:
    """Warns if the flips of inputs of this shape, (batch, n), will take more than half a minute.

    Nothing of the model is run. Call it within `numerics(subject.dtype)`.

    Args:
        chosen: returns the engine that will measure them.
        subject: the model.
        shape: of the inputs.
        flips: their number.
        stacklevel: of the warning.
    """
    batch, n = shape
    if flips * n <= _SURELY_SHORT:
        return
    expected = 0.0 if subject.config is None else n * subject.config.width * _ROW_NUMBER
    if expected <= _PATIENCE:  # tracing so long an input would already take long
        engine, work = chosen(), _Work(subject, n, flips, compiled_for())
        if isinstance(engine, FirstOrderEngine):
            cost, _, _ = work.of_estimate(engine)
        else:
            cost = engine.cost(*_abstract_input(engine, subject, n), work.platform)
        passes = isinstance(engine, VmapEngine)
        expected = work.seconds(replace(cost, prepare=batch * cost.prepare), passes)
    if expected > _PATIENCE:
        warnings.warn(
            f"n = {n}: measuring {flips} flips will take about {duration(expected)} or more, by what it computes; "
            "a sample of the flips, as sample = 1000, takes less, and Ctrl-C keeps what is measured",
            DurationWarning,
            stacklevel=stacklevel + 1,
        )


def _abstract_input(engine: Engine, subject: Measurable, n: int) -> tuple[Any, Any]:
    """Returns what an engine prepares from: the model's parameters, and the shape of an input."""
    parameters = subject.parameters
    if isinstance(engine, GroupEngine):
        parameters = parameters, None, None  # the tables of groups, which `prepare` does not read
    return parameters, jax.ShapeDtypeStruct((n,), jnp.int32)


def _count_flips(
    flips: Flips, subject: Measurable, n: int, known: Int[np.ndarray, " n"] | None, problems: Problems
) -> int:
    """Returns the number of flips of an input of length n, if it is `known`; else at most that. Adds the errors of what
    says them."""
    special = set(subject.special)
    ordinary = next(symbol for symbol in range(len(special) + 1) if symbol not in special)
    word = np.full((1, n) if n else (0, 0), ordinary, np.int32) if known is None else known[None]
    selection = select(flips, subject, word, problems)
    if problems:
        return 0
    needed = n * TOKEN_BYTES + selection.entries(word) * FLIP_BYTES
    check_fits("n", n, needed, "the list of its flips", _SHORTER, problems)
    of_alphabet = (
        isinstance(flips, Substitute) and not isinstance(flips.symbols, tuple) and flips.groups is None
    )
    return selection.number(word, own=known is not None or of_alphabet)


@dataclass(frozen=True)
class _Work:
    """The flips of an input of length n, which are to be measured on a platform."""

    subject: Measurable
    n: int
    flips: int
    platform: Platform

    @property
    def budget(self) -> int:
        """The memory that a block may take, by default."""
        return self.platform.memory

    def by(self, choice: EngineChoice, cost: EngineCost, prepared: Any) -> Explanation:
        """Returns what a cost means on this machine; `prepared` is abstract."""
        kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(prepared))
        memory, operations = (
            kept + min(cost.block_bytes, self.budget),
            cost.prepare + self.flips * cost.per_flip,
        )
        seconds = self.seconds(cost, passes=choice.name == "vmap")
        return Explanation(choice, self.n, self.flips, operations, memory, seconds)

    def seconds(self, cost: EngineCost, passes: bool = False) -> float:
        """Returns the seconds of the operations, or of reading all symbols by forward passes if that takes longer:
        those of a function without matrix products do little else."""
        rate = _matmul_rate(self.subject.dtype) * cost.efficiency
        read = self.flips * self.n if passes else 0
        return max((cost.prepare + self.flips * cost.per_flip) / rate, read * _READING)

    def of_estimate(self, engine: FirstOrderEngine, scalar: bool = False) -> tuple[EngineCost, Any, int]:
        """Returns the cost of an estimate of all outputs, or of one scalar, a block's parameters, and the number of
        combinations."""
        size = output_size(self.subject, self.n)
        count = 1 if scalar else len(engine.outputs or range(size))
        given = engine, self.subject.parameters, self.n, size, count, self.budget, self.platform
        return *estimate_cost(*given), count

    def estimated(self, engine: FirstOrderEngine) -> Explanation:
        """Returns what an estimate of all outputs costs, without the verified flips."""
        cost, pair, count = self.of_estimate(engine)
        choice = EngineChoice(NAME, f"an estimate of {count} output{'s' if count > 1 else ''}")
        found = self.by(choice, cost, abstract_estimate(engine, pair, self.n))
        if engine.of_norm:
            return found
        return replace(found, memory=found.memory + table_bytes(self.flips, count))

    def estimated_instead(self, measure: Measure) -> str | None:
        """Returns what the first-order engine would cost and give up, or None if it cannot serve the model."""
        try:
            engine = first_order_engine(self.subject, FirstOrder(), measure)
            whole, pair, _ = self.of_estimate(engine)
            abstract_estimate(engine, pair, self.n)  # refuses a model without a derivative
        except EngineRefusal:
            return None
        all_outputs, scalar = map(self.seconds, (whole, self.of_estimate(engine, scalar=True)[0]))
        return (
            f'engine="{NAME}" would take about {all_outputs:.2g} s for all outputs, {scalar:.2g} s for a scalar, '
            "besides the verified flips; the other flips would be estimates, whose error it measures on a sample"
        )


@lru_cache(maxsize=4)
def _matmul_rate(dtype: str) -> float:
    """Measures the operations per second of a matrix product on the default device, at the current precision."""
    a = jnp.ones((512, 512), dtype)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        product(a).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * 512**3 / min(seconds)
