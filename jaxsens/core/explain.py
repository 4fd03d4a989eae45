"""Reports what a measurement would do and cost, without running it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import FLIP_BYTES, TOKEN_BYTES, Problems, check_fits, collecting
from jaxsens.core.base.programs import Platform, numerics
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.base.text import duration, in_words
from jaxsens.core.checks import traced_model
from jaxsens.core.choose import PlannedRun, choose, of_process
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.engines.request import Request
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model, as_inputs, as_model, encoded

_SHORTER = "give a shorter input; samples of its flips take less"


@dataclass(frozen=True)
class Explanation:
    """What `flip_sensitivity` would do with one input of length n.

    Attributes:
        engine: the engine it would run, with the reason.
        n: the input's length.
        flips: the number of flips.
        operations: floating-point operations for all flips; a multiply-add counts as two.
        memory: an estimate in bytes: the model, the values shared by all flips, and one block of flips.
        seconds: the operations at this machine's rate for such work, what goes on in float64, and what tells rounding,
            without compilation; accurate to a factor of about three.
        compiling: the seconds that the programs take to trace and compile on the reference machine, two cores; about 0
            for a call that finds them.
        instead: what an engine that estimates would cost instead, and what it would give up; None if none that is
            installed can serve the model, or it runs.
    """

    engine: EngineChoice
    n: int
    flips: int
    operations: float
    memory: int
    seconds: float
    compiling: float = 0.0
    instead: str | None = None

    def __str__(self) -> str:
        text = (
            f"n = {self.n}: {self.flips} flips by {self.engine}; {self.operations:.2g} operations, "
            f"{in_words(self.memory)}, about {duration(self.seconds)}, and {duration(self.compiling)} for a first call"
        )
        return text if self.instead is None else f"{text}\n{self.instead}"


@naming_arguments
def explain(
    model: Any,
    n: Any,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    readout: int | Literal["auto", "last", "mean"] | None = "auto",
    engine: AskedEngine | Any = "auto",
) -> Explanation:
    """Reports which engine would measure all flips of an input of length n, or of an input, why, and at what cost.

    It measures only the speed of one matrix product, once per process (a few milliseconds).

    Args:
        model: as for `flip_sensitivity`.
        n: the input's length; or the input, integers (n,) or, for a model that encodes text, such as a published one, a
            text. Several inputs are refused.
        flips, measure, readout, engine: as for `flip_sensitivity`. Flips that would put back the symbol that stands
            there are counted, except of an input or of an alphabet: there may be fewer.

    Raises:
        InputError: for unusable arguments, outputs that the model lacks, an engine that does not support the model, or
            a model that `flip_sensitivity` rejects.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, layers=2), seed=0)
    >>> explain(model, 1024).engine.name
    'incremental'
    """
    run = planned_run(model, n, Request(flips, measure, engine, readout))
    others = AskedEngine.kinds.brought if run.kind.plain else ()
    instead = [AskedEngine.kinds[name].instead(run) for name in others if name != run.choice.name]
    costs = run.cost.operations(1, run.flips), run.memory, run.seconds_of(1, run.flips), run.compiling
    return Explanation(run.choice, run.n, run.flips, *costs, "\n".join(filter(None, instead)) or None)


def planned_run(model: Any, n: Any, request: Request, platform: Platform | None = None) -> PlannedRun:
    """Returns what would run on a platform, by default JAX's. Model, n and errors are those of `explain`."""
    source, model = encoded(model, n), as_model(model)
    with collecting("explain") as problems:
        is_length = isinstance(source, str) or not inputs.array_of(source).ndim
        read = _of_length if is_length else partial(as_inputs, one=True)
        words = read(model, source, problems)
        model, selection, measure, engine = request.validated(model, words, problems)
        n = words.shape[1]
        if not problems:
            needed = n * TOKEN_BYTES + selection.number() * FLIP_BYTES * selection.kind.row
            check_fits("n", n, needed, "the list of its flips", _SHORTER, problems)
    flips = selection.kind
    # Of symbols that are named nobody knows which stand in an input of a length.
    count = selection.number(own=not is_length or (flips.of_alphabet and flips.groups is None))
    with numerics(model.dtype):
        model, shape, _ = traced_model(model, n, measure)
        # An unknown threshold costs as much as any other.
        measure = measure.prepared(lambda: np.zeros((2, int(np.prod(shape)))), model.outputs, eps=0.0)
        engine = of_process(model, engine, flips, measure, n, counts=False)
        return choose(model, engine, flips, measure, n, count=count, platform=platform)


def _of_length(model: Model, n: Any, problems: Problems) -> Int[np.ndarray, "1 n"]:
    """Returns an input of length n in place of the one that is not known; (0, 0) after an error."""
    n = inputs.length(n, problems)
    if n and check_fits("n", n, n * TOKEN_BYTES, "an input of this length", _SHORTER, problems):
        model.check_length(n, problems)
    ordinary = np.setdiff1d(np.arange(len(model.special) + 1), model.special)[0]
    return np.full((1, n) if n and not problems else (0, 0), ordinary, np.int32)
