"""Chooses the engine that measures a model, with a reason.

`auto` takes the engine with the lowest estimated time, unless only one is accurate enough. The estimate counts
operations and compilation on a reference machine, for the inputs of this call. It ignores the speed and load of this
machine, and what this process compiled before, so a call gets the same engine everywhere, and the points of a sweep
agree wherever and in whichever order they were measured.

Subtracting two outputs gives a change that is a fraction r of the output with a relative error of eps / r. For softmax
with bounded position embeddings and temperature, as in Hahn's Lemma 5, r is of order 1/n, and one forward pass per flip
(`vmap`), or what the flip changes of one (`incremental`), suffices while n eps is at most `ROUNDING`. The change has to
be carried through the layers where it may be far smaller:

- under hard attention, where a flip that changes no choice has no effect, which must not be confused with rounding;
- if a temperature or unbounded embeddings make weights fall faster than any power of n;
- if a sink or the bias of sigmoid attention makes every weight far smaller than 1/n;
- if a constructed model designates its output.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxsens.core.base.errors import EngineRefusal, no_rule
from jaxsens.core.base.platforms import PLATFORMS
from jaxsens.core.base.precision import numerics
from jaxsens.core.engines import incremental
from jaxsens.core.engines import vmap as vmap_engine
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.difference import folded
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.difference.folded import FoldedEngine
from jaxsens.core.engines.engine import Engine, EngineChoice
from jaxsens.core.engines.incremental import incremental_engine
from jaxsens.core.engines.options import AskedEngine, Auto, Difference, Incremental, Vmap
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.models.parts.weighting import Tempered, learns_sink
from jaxsens.core.models.subjects.adapters import Measurable
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layers import apply_operations, readout_position
from jaxsens.core.models.transformer.scores import weighting_of

ROUNDING = 1e-3
"""The accepted relative rounding error in a change of order 1/n: three digits up to n = 8000 in float32."""

RATE = 1e11
"""Operations per second of a large float32 matrix product on the reference machine, two cores of an AMD EPYC."""

MANY = 8
"""The number of inputs assumed to share a compilation where a search measures more than it can tell beforehand."""

FASTER = "estimated to be faster, compilation included"
WIDE = "in float64, which takes less time here than a second program for what float32 does not resolve"
DEEP = "; from three layers on it takes longer than a forward pass a flip, and has more digits"
KEPT = "subtracting two outputs rounds a change of order 1/n by less than 0.1 %"


def choose(
    subject: Measurable, asked: AskedEngine, flips: Flips, measure: Measure, n: int, inputs: int = MANY
) -> tuple[Engine, EngineChoice]:
    """Returns the engine that is asked for (for `Auto` the best) for `inputs` inputs of length n, with the reason.

    Raises:
        EngineRefusal: if the engine does not support the model, what is measured, or what flips do.
    """
    outputs = measure.coordinates(subject.outputs)
    forward = VmapEngine(measure, outputs, subject.apply, rewrite=flips.rewrite)
    if not flips.plain:
        return _by_forward_passes(asked, flips, forward)
    match asked:
        case Auto():
            return _best(subject, forward, n, inputs)
        case Vmap():
            return forward, EngineChoice(asked.kind, "asked for")
        case Incremental():
            shortened = incremental_engine(subject, measure, outputs)
            if shortened is None:
                raise _refused(asked, incremental.refusal(subject))
            return shortened, EngineChoice(asked.kind, "asked for")
        case Difference():
            config, refused = subject.config, _no_difference(subject.config)
            if config is None or refused is not None:
                raise _refused(asked, refused)
            carried, how = _carried(measure, outputs, config, n)
            # Up to two layers float32 resolves the changes of plain models.
            few = config.layers <= 2 and lost_digits(subject, config, n) is None
            if isinstance(carried, DifferenceEngine) and not few:
                carried, how = _begun(carried, how, subject, n, inputs)
            return carried, EngineChoice(asked.kind, f"asked for{how}")
        case _:
            return asked.runner(subject, measure), EngineChoice(asked.kind, "asked for")


def _refused(asked: AskedEngine, why: str | None) -> EngineRefusal:
    return EngineRefusal(f'engine = "{asked.kind}": it cannot serve this model: {why}; use engine="vmap"')


def _no_difference(config: TransformerConfig | None) -> str | None:
    """Returns why the difference engine does not serve a model, or None."""
    return "it is not a jaxsens transformer" if config is None else difference.refusal(config)


def _carried(
    measure: Measure, outputs: tuple[int, ...] | None, config: TransformerConfig, n: int
) -> tuple[DifferenceEngine | FoldedEngine, str]:
    """Returns the form of the difference engine for a config that it serves, and what to add to the reason."""
    if folded.refusal(config) or folded.too_short(n):
        return DifferenceEngine(measure, outputs, config), DEEP if config.layers >= 3 else ""
    return FoldedEngine(measure, outputs, config), "; two layers, folded"


def _best(subject: Measurable, forward: VmapEngine, n: int, inputs: int) -> tuple[Engine, EngineChoice]:
    """Returns the exact engine that is accurate and estimated to be fastest."""
    measure, outputs, config = forward.measure, forward.outputs, subject.config
    shortened = incremental_engine(subject, measure, outputs)
    if shortened is not None and config is None:
        return shortened, EngineChoice("incremental", "it computes only what a flip changes")
    refused = _no_difference(config)
    if config is None or refused is not None:
        return forward, EngineChoice("vmap", f"one forward pass per flip suits every model; {refused}")
    carried, how = _carried(measure, outputs, config, n)
    if outputs is not None and set(outputs) <= set(subject.exact_outputs):
        # Constructed networks are deep and narrow, and changes are exactly 0 or 1, so subtracting is exact.
        reason = "a constructed network's output, exactly 0 or 1; it compiles sooner, and depth costs it less"
        return forward, EngineChoice("vmap", reason)
    digits = lost_digits(subject, config, n)
    if digits is not None:
        begun, how = _begun(carried, how, subject, n, inputs)
        return begun, EngineChoice("difference", f"for its digits: {digits}{how}")
    choices: list[tuple[Engine, EngineChoice]] = [
        (carried, EngineChoice("difference", f"exact, and {FASTER}{how}")),
        (forward, EngineChoice("vmap", f"{FASTER}; {KEPT}")),
    ]
    if shortened is not None:
        choices.append((shortened, EngineChoice("incremental", f"{FASTER}; {KEPT}")))
    return min(choices, key=lambda choice: seconds(choice[0], subject, config, n, inputs))


def _by_forward_passes(asked: AskedEngine, flips: Flips, forward: VmapEngine) -> tuple[Engine, EngineChoice]:
    """Returns the engine for flips that do more than replace one symbol.

    Raises:
        EngineRefusal: if another engine than "vmap" was asked for.
    """
    if not isinstance(asked, Auto | Vmap):
        raise EngineRefusal(
            f'engine = "{asked.kind}": it replaces one symbol at a time, and cannot serve flips that {flips.does}; '
            'use engine="vmap"'
        )
    why = f"one forward pass per flip serves flips that {flips.does}"
    return forward, EngineChoice("vmap", "asked for" if isinstance(asked, Vmap) else why)


def lost_digits(subject: Measurable, config: TransformerConfig, n: int) -> str | None:
    """Returns why subtracting two outputs would be too inaccurate, or None if it is accurate enough."""
    layers = subject.parameters.layers
    kinds = [
        weighting_of(layer, layers[k]) if learns_sink(layer.weighting) else layer.weighting
        for k, layer in enumerate(map(config.layer, range(config.layers)))
    ]
    soft = [kind for kind in kinds if isinstance(kind, Tempered)]
    if subject.outputs is not None:
        return "the designated output may change by far less than a part 1/n"
    if not all(kind.bounded for kind in soft):
        return "1/temperature grows with n, and most changes fall faster than 1/n"
    if soft and not config.bounded:
        return "position embeddings are unbounded, and changes may fall faster than 1/n"
    if any(kind.hard for kind in kinds):
        return "a flip that moves no choice of hard attention changes exactly nothing"
    if n * _eps(subject) > ROUNDING:
        return f"two {subject.dtype} outputs of inputs this long differ by little more than rounding"
    least = min(soft, key=lambda kind: kind.log_share(n), default=None)
    if least is not None and least.log_share(n) < math.log(_eps(subject) / ROUNDING):
        weights = f"weights of order 1e{least.log_share(n) / math.log(10):.0f}"
        return f"{type(least).__name__} has {weights}, and two {subject.dtype} outputs differ as little"
    return None


def _begun(
    engine: DifferenceEngine | FoldedEngine, how: str, subject: Measurable, n: int, inputs: int
) -> tuple[Engine, str]:
    """Returns what a difference engine begins with, and what to add to the reason: float64 if that takes less time."""
    wider = engine.wider
    if wider is not None and _wide_at_once(engine, subject, engine.config, n, inputs):
        return wider, f"; {WIDE}{how}"
    return engine, how


def _wide_at_once(
    engine: Engine, subject: Measurable, config: TransformerConfig, n: int, inputs: int
) -> bool:
    """Returns whether a float32 model of soft attention is measured in float64 from the start.

    Many of its changes go on to float64 anyway, by a program of its own. Hard attention is resolved in float32.
    """
    compiling = compile_seconds(engine, config.layers)
    return not config.exact_rows and seconds(engine, subject, config, n, inputs) < 2 * compiling


def compile_seconds(engine: Engine, layers: int) -> float:
    """Returns the seconds in which an engine's programs are traced and compiled on the reference machine."""
    if engine.compiling is None:
        raise no_rule("the time to compile", "engine", type(engine).__name__)
    return engine.compiling[0] + engine.compiling[1] * layers


def seconds(
    engine: Engine, subject: Measurable, config: TransformerConfig, n: int, inputs: int = MANY
) -> float:
    """Estimates the seconds for all flips of `inputs` inputs of length n on the reference machine, with compilation."""
    flips = (n - (readout_position(config, n) is not None)) * (config.alphabet_size - 1)
    if isinstance(engine, VmapEngine):
        # The same count as `engine.cost`, without tracing the model.
        once = apply_operations(config, n)
        prepare, per_flip, efficiency = once, once, vmap_engine.EFFICIENCY
    else:
        with numerics(subject.dtype):
            cost = engine.cost(subject.parameters, jax.ShapeDtypeStruct((n,), jnp.int32), PLATFORMS["cpu"])
        prepare, per_flip, efficiency = cost.prepare, cost.per_flip, cost.efficiency
    return compile_seconds(engine, config.layers) + inputs * (prepare + flips * per_flip) / (
        RATE * efficiency
    )


def _eps(subject: Measurable) -> float:
    return float(jnp.finfo(subject.dtype).eps)
