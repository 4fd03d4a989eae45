"""Chooses the engine that measures a model, with a reason.

`auto` takes the engine with the lowest estimated time for the calls that share its programs, unless only one is
accurate enough. The estimate counts operations and compilation at the rates of the platform
(`jaxsens.core.base.programs`). It ignores the speed and load of this machine, so a call gets the same engine on every
machine of a platform, and the points of a sweep agree wherever and in whichever order they were measured.

Subtracting two outputs gives a change that is a fraction r of the output with a relative error of eps / r. For softmax
with bounded position embeddings and temperature, as in Hahn's Lemma 5, r is of order 1/n, and `vmap` or `incremental`
suffices while n eps is at most `ROUNDING`. Where a change may be far smaller (`Work.lost_digits`), it has to be carried
through the layers.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxsens.core.base.errors import FLIP_BYTES, DurationWarning, EngineRefusal
from jaxsens.core.base.programs import Platform, abstract_of, cached, compiled_for, numerics, program_key
from jaxsens.core.base.text import duration
from jaxsens.core.engines import incremental
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.difference import folded
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.difference.folded import FoldedEngine
from jaxsens.core.engines.engine import Cost, Engine, EngineChoice
from jaxsens.core.engines.incremental import IncrementalEngine, incremental_engine
from jaxsens.core.engines.options import MANY_CALLS, AskedEngine, Auto, Difference, Incremental, Vmap
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flips import Flips, Rewrite
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model
from jaxsens.core.models.parts.weighting import Tempered, learns_sink
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.trace import weighting_of
from jaxsens.core.placement.program import bytes_of

ROUNDING = 1e-3
"""The accepted relative rounding error in a change of order 1/n: three digits up to n = 8000 in float32."""

RESOLVED_TO = 1.6e-4
"""Up to this product of n and eps, two outputs of most models of soft attention differ by more than a hundred times
their rounding. Beyond, flips are measured again in float64."""

WIDE = "in float64, which takes less time here than a second program for what float32 does not resolve"
DEEP = "; from three layers on it takes longer than a forward pass a flip, and has more digits"
FOR = {1: "one call, compilation included", MANY_CALLS: "many calls that share their programs"}
ROUNDING_NOTE = "subtracting two outputs rounds a change of order 1/n by less than 0.1 %"

_PATIENCE = 30.0
"""Seconds from which on a measurement is long."""

_SURELY_SHORT = 10**6
"""Flips times length up to which no time is estimated: estimating takes about as long as measuring."""


def choose(
    model: Model,
    requested: AskedEngine,
    flips: Flips,
    measure: Measure,
    n: int,
    inputs: int = 1,
    *,
    count: int | None = None,
    platform: Platform | None = None,
) -> PlannedRun:
    """Returns what runs: the engine that is requested, for `Auto` the best, with the reason and the cost.

    Args:
        requested: the engine's options. Those of `Auto` say how many such calls share their programs.
        inputs: the number of inputs of length n.
        count: the number of flips, of all inputs together; None for every other symbol at every position not read.
        platform: by default the one that programs are compiled for.

    Raises:
        EngineRefusal: if the engine does not support the model, what is measured, or what flips do.
    """
    config = model.config
    if count is None:
        symbols = 1 if config is None else config.alphabet_size - 1
        read = config is not None and readout_row(config.readout, n) is not None
        count = inputs * (n - read) * symbols
    work = Work(model, n, inputs, count, platform or compiled_for())
    forward = VmapEngine(measure, measure.coordinates(model.outputs), model.apply, rewrite=flips.rewrite)

    def planned(engine: Engine, why: str = "asked for", name: str = requested.kind) -> PlannedRun:
        return PlannedRun(model, n, inputs, work.flips, work.platform, engine, EngineChoice(name, why), flips)

    if isinstance(requested, Vmap):
        return planned(forward)
    candidate = incremental_engine(model, measure, forward.outputs, flips)
    match requested:
        case Incremental():
            if candidate is None:
                raise _refusal(requested, incremental.refusal(model))
            return planned(candidate)
        case Auto() if flips.plain:
            return planned(*_best(work, forward, candidate, requested.tier))
        case Auto():
            return planned(*_best_rewriting(work, forward, candidate, requested.tier, flips.does))
        case _ if not flips.plain:
            raise EngineRefusal(
                f'engine = "{requested.kind}": it replaces one symbol at a time, and cannot serve flips that '
                f'{flips.does}; use engine="auto"'
            )
        case Difference():
            refusal = difference.refusal(config)
            if config is None or refusal is not None:
                raise _refusal(requested, refusal)
            engine, how = _difference(work, config, forward)
            return planned(engine, f"asked for{how}")
        case _:
            return requested.planned(planned(requested.runner(model, measure)))


def of_process(
    model: Model,
    requested: AskedEngine,
    flips: Flips,
    measure: Measure,
    n: int,
    before: AskedEngine | None = None,
    counts: bool = True,
) -> AskedEngine:
    """Returns the options of a call in Python, whose arguments are those of `choose`: `Auto` counts one call for the
    first request of a process for a program, and `MANY_CALLS` for later ones. What remains of a call goes on as
    `before`. Explaining a call does not count."""
    if requested != Auto() or model.config is None:
        return requested
    if before is not None:
        return before if isinstance(before, Auto) else requested
    requests = _requests(model.apply, flips.rewrite, measure, n, model.dtype)
    options = requested.shared_by(MANY_CALLS) if requests else requested
    if counts:
        requests[:] = [None]
    return options


@cached
def _requests(apply: Any, rewrite: Rewrite, measure: Measure, n: int, dtype: str) -> list[None]:
    """Returns a list that is empty until such a call is made."""
    del apply, rewrite, measure, n, dtype
    return []


@dataclass(frozen=True)
class Work:
    """What is measured on a platform: so many flips, in all, of so many inputs of length n."""

    model: Model
    n: int
    inputs: int
    flips: int
    platform: Platform

    def seconds(self, engine: Engine, calls: float = math.inf) -> float:
        """Returns the seconds of one of so many calls that share the compilation."""
        return self.cost_of(engine).seconds(self.platform, self.inputs, self.flips, calls)

    def cost_of(self, engine: Engine) -> Cost:
        """Returns the cost of an engine, and of the one that measures again what it resolves of few flips."""
        dtype = "float64" if engine.wide else self.model.dtype
        cost = _cost(engine, *self._shapes, self.n, dtype, self.platform)
        if self.resolves(engine) or (wider := engine.wider) is None:
            return cost
        return replace(cost, then=self.cost_of(wider))

    @cached_property
    def _shapes(self) -> tuple[Any, tuple[Any, ...]]:  # of the model, for the costs of every engine
        return program_key(self.model.parameters, self.n)[:2]

    def resolves(self, engine: Engine) -> bool:
        """Returns whether an engine is expected to resolve most flips."""
        config = self.model.config
        if config is None or (engine.subtracts and self.model.exact_outputs):
            return True
        # Two outputs of hard attention that agree leave it open whether a choice moved; a difference engine sees that.
        if config.exact_rows:
            return not engine.subtracts
        if self.lost_digits is not None:
            return False
        if engine.subtracts:
            return self.n * float(jnp.finfo(self.model.dtype).eps) <= RESOLVED_TO
        return config.layers < 4

    @cached_property
    def lost_digits(self) -> str | None:
        """Why subtracting two outputs of a jaxsens transformer would be too inaccurate, or None if it is not."""
        model, config, eps = self.model, self.model.config, float(jnp.finfo(self.model.dtype).eps)
        if config is None:
            return None
        kinds = [config.layer(k).weighting for k in range(config.layers)]
        if any(map(learns_sink, kinds)):
            layers = enumerate(model.parameters.layers)
            kinds = [weighting_of(config.layer(k), layer) for k, layer in layers]
        soft = [kind for kind in kinds if isinstance(kind, Tempered)]
        if model.outputs is not None:
            return "the designated output may change by far less than a part 1/n"
        if not all(kind.bounded for kind in soft):
            return "1/temperature grows with n, and most changes fall faster than 1/n"
        if soft and not config.bounded:
            return "position embeddings are unbounded, and changes may fall faster than 1/n"
        if any(kind.hard for kind in kinds):
            return "a flip that moves no choice of hard attention changes exactly nothing"
        if self.n * eps > ROUNDING:
            return f"two {model.dtype} outputs of inputs this long differ by little more than rounding"
        least = min(soft, key=lambda kind: kind.log_share(self.n), default=None)
        if least is not None and least.log_share(self.n) < math.log(eps / ROUNDING):
            weights = f"weights of order 1e{least.log_share(self.n) / math.log(10):.0f}"
            return f"{type(least).__name__} has {weights}, and two {model.dtype} outputs differ as little"
        return None


@dataclass(frozen=True)
class PlannedRun(Work):
    """Work with the engine that does it, why it was chosen, and what kind of flips are measured."""

    engine: Engine
    choice: EngineChoice
    kind: Flips

    @cached_property
    def parameters(self) -> Any:
        """The parameters as the engine takes them."""
        return self.model.parameters

    @cached_property
    def cost(self) -> Cost:
        """What the engine does, and the one that measures again what it resolves of few flips."""
        return self.cost_of(self.engine)

    @property
    def arguments(self) -> int:
        """Bytes of what all flips share, the model included."""
        with numerics(self.model.dtype):
            return bytes_of((self.parameters, self.prepared)) * (2 if self.engine.wide else 1)

    @cached_property
    def prepared(self) -> Any:
        """What the engine prepares, abstract."""
        with numerics(self.model.dtype):
            word = jax.ShapeDtypeStruct((self.n,), jnp.int32)
            return jax.eval_shape(self.engine.prepare, self.parameters, word)

    def block_bytes(self, most: int) -> int:
        """Bytes of temporary memory for a block of the fastest size, but of at most so many flips."""
        fastest = self.engine.preferred_batch(self.n, self.platform)
        return self.cost.block_bytes * min(fastest, max(1, most)) // fastest

    @property
    def memory(self) -> int:
        """Bytes: the model, what all flips share, the table of flips, and one block of flips."""
        block = min(self.block_bytes(self.flips), self.platform.memory)
        return bytes_of((self.model.parameters, self.prepared)) + self.flips * FLIP_BYTES + block

    def seconds_of(self, inputs: int, flips: int) -> float:
        """Returns the seconds of so many inputs, and their flips in all, at this machine's rates."""
        return self.cost.seconds(here(self.platform), inputs, flips)

    @property
    def compiling(self) -> float:
        """The seconds in which the programs are compiled."""
        return self.cost.compilation(self.platform)


@cached
def _cost(
    engine: Engine, structure: Any, shapes: tuple[Any, ...], n: int, dtype: str, platform: Platform
) -> Cost:
    with numerics(dtype):
        parameters = abstract_of(structure, shapes)
        return engine.cost(parameters, jax.ShapeDtypeStruct((n,), jnp.int32), platform)


def _refusal(requested: AskedEngine, why: str | None) -> EngineRefusal:
    return EngineRefusal(f'engine = "{requested.kind}": it cannot serve this model: {why}; use engine="vmap"')


def _difference(work: Work, config: TransformerConfig, forward: VmapEngine) -> tuple[Engine, str]:
    """Returns the form of the difference engine for a config that it serves, and what to add to the reason.

    It depends on the flips alone, not on the calls: the engine has one name, and who asks for it gets what `auto` got.
    """
    rows = DifferenceEngine(forward.measure, forward.outputs, config)
    engine, how = rows, DEEP if config.layers >= 3 else ""
    if work.n >= folded.SHORTEST and folded.refusal(config) is None:
        form = FoldedEngine(forward.measure, forward.outputs, config)
        if work.seconds(form) <= work.seconds(rows):
            engine, how = form, "; two layers, folded"
    wider = engine.wider
    if wider is None or work.resolves(engine):
        return engine, how
    # Up to two layers some flips are resolved in float32, which pays where they take longer than a second program.
    alone = replace(work.cost_of(engine), then=None)
    long = alone.seconds(work.platform, work.inputs, work.flips) >= 2 * alone.compilation(work.platform)
    return (engine, how) if long and config.layers < 3 else (wider, f"; {WIDE}{how}")


def _best_rewriting(
    work: Work, forward: VmapEngine, candidate: IncrementalEngine | None, calls: int, does: str
) -> tuple[Engine, str, str]:
    """Returns what `_best` does for flips that do more than replace one symbol, which two engines serve."""
    # The operations of a model that is not jaxsens' own are counted with its loops run once.
    own = work.model.config is not None
    if candidate is None or (own and work.seconds(forward, calls) <= work.seconds(candidate, calls)):
        return forward, f"one forward pass per flip serves flips that {does}", "vmap"
    return candidate, f"it computes only what flips that {does} change", "incremental"


def _best(
    work: Work, forward: VmapEngine, candidate: IncrementalEngine | None, calls: int
) -> tuple[Engine, str, str]:
    """Returns the accurate engine that is estimated to be fastest, the reason, and its name."""
    model, config = work.model, work.model.config
    if candidate is not None and config is None:
        return candidate, "it computes only what a flip changes", "incremental"
    refusal = difference.refusal(config)
    if config is None or refusal is not None:
        return forward, f"one forward pass per flip suits every model; {refusal}", "vmap"
    if forward.outputs is not None and set(forward.outputs) <= set(model.exact_outputs):
        # Constructed networks are deep and narrow, and changes are exactly 0 or 1, so subtracting is exact.
        reason = "a constructed network's output, exactly 0 or 1; it compiles sooner, and depth costs it less"
        return forward, reason, "vmap"
    accurate, how = _difference(work, config, forward)
    if work.lost_digits is not None:
        return accurate, f"for its digits: {work.lost_digits}{how}", "difference"
    sharing = FOR.get(calls, f"{calls} calls or more that share their programs")
    faster = f"estimated to be faster for {sharing}"
    engines: list[tuple[Engine, str, str]] = [
        (accurate, f"exact, and {faster}{how}", "difference"),
        (forward, f"{faster}; {ROUNDING_NOTE}", "vmap"),
    ]
    if candidate is not None:
        engines.append((candidate, f"{faster}; {ROUNDING_NOTE}", "incremental"))
    return min(engines, key=lambda one: work.seconds(one[0], calls))


def warn_if_long(run: PlannedRun, remaining: int, stacklevel: int) -> None:
    """Warns if so many of the flips of a run will take more than half a minute.

    Nothing of the model is run. Call it within `numerics(model.dtype)`.
    """
    if (n := run.n) * remaining <= _SURELY_SHORT:
        return
    expected = run.seconds_of(run.inputs, remaining)
    if expected > _PATIENCE:
        warnings.warn(
            f"n = {n}: measuring {remaining} flips will take at least about {duration(expected)}; "
            "a sample of the flips (sample = 1000) takes less, and Ctrl-C keeps what is measured",
            DurationWarning,
            stacklevel=stacklevel + 1,
        )


def here(platform: Platform) -> Platform:
    """Returns a platform's row with the rates of this machine, which are measured once, in some milliseconds."""
    wide = _matmul_rate("float64")
    host = wide if platform.name == "cpu" else platform.host_rate
    return replace(platform, rate=_matmul_rate("float32"), wide_rate=wide, host_rate=host)


@lru_cache(maxsize=4)
def _matmul_rate(dtype: str) -> float:
    """Returns the operations per second of a matrix product on the default device."""
    with numerics(dtype):
        a = jnp.ones((512, 512), dtype)
        product = jax.jit(lambda a: a @ a)
        product(a).block_until_ready()
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            product(a).block_until_ready()
            seconds.append(time.perf_counter() - began)
    return 2 * 512**3 / min(seconds)
