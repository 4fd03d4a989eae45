"""What every engine must pass: the models and words, and the comparison with the reference in wider arithmetic.

Programs are compiled whole, one for each engine and shape. Run operation by operation, a case takes half as long once
every operation has been compiled for its shapes, of which there are thousands; that pays from a hundred cases on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens import TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.engines.incremental import incremental_engine
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model, TransformerApply
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from jaxsens.core.models.parts.score_positions import PartialAlibi, PartialRotary, RelativeBias
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer.parameters import TransformerParameters, parameters_from_numpy
from tests import reference
from tests.small_models import KINDS, POSITIONS_TRIED, WEIGHTINGS_TRIED, random_parameters, small
from tests.tolerances import CANCELLING, CARRIED, CHOSEN, SUBTRACTED, Tolerance

ENGINES = ("vmap", "incremental", "difference")

# Equal symbols, and an end-of-sequence symbol at the end.
WORD = (0, 2, 1, 0, 1, 3)


@dataclass(frozen=True)
class Case:
    """A config in float64, a word, and by how much the query matrices of its random parameters are multiplied."""

    config: TransformerConfig
    word: tuple[int, ...] = WORD
    sharpness: float = 1.0
    seed: int = 0
    norm: str = "l2"
    outputs: tuple[int, ...] | None = None
    flips: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        """Lists every flip there is: of the readout and of the end-of-sequence symbol, and to it, too."""
        pairs = [
            (position, symbol)
            for position, token in enumerate(self.word)
            for symbol in range(self.config.vocabulary_size)
            if symbol != token
        ]
        object.__setattr__(self, "flips", pairs)

    def parameters(self, dtype: str = "float64") -> TransformerParameters:
        """NumPy parameters, rounded to `dtype`."""
        return sharpened(random_parameters(self.config, self.seed, len(self.word)), self.sharpness, dtype)


def sharpened(parameters: TransformerParameters, factor: float, dtype: str = "float64") -> Any:
    """The parameters with query matrices times `factor`, rounded to `dtype` and given in float64."""
    layers = tuple(dataclasses.replace(k, query=np.asarray(k.query) * factor) for k in parameters.layers)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf).astype(dtype).astype(np.float64),
        dataclasses.replace(parameters, layers=layers),
    )


def engine_of(
    name: str, config: TransformerConfig, norm: str = "l2", outputs: tuple[int, ...] | None = None
) -> Engine | None:
    """The engine of a name, or None if it does not serve the config."""
    measure = Measure.kinds[norm]()
    if name == "vmap":
        return VmapEngine(measure, outputs, TransformerApply(config))
    if name == "incremental":
        apply = TransformerApply(config)
        model = Model(apply, None, lambda tokens: None, config, readout=config.readout)
        return incremental_engine(model, measure, outputs, Substitute())
    return None if difference.refusal(config) else DifferenceEngine(measure, outputs, config)


def measured(
    engine: Engine, parameters: Any, word: Any, flips: list[tuple[int, int]], dtype: str
) -> tuple[Any, float]:
    """The norms of flips of one word, and the share that the engine declines and its fallback measures, as placement
    does it."""
    norms, runner = by_one(engine, parameters, word, flips, dtype), engine.fallback
    declined = float(np.isnan(norms).mean())
    while runner is not None and np.isnan(norms).any():
        found = by_one(runner, parameters, word, flips, dtype)
        norms, runner = np.where(np.isnan(norms), found, norms), runner.fallback
    return norms.astype(dtype), declined


@cache
def programs(engine: Engine) -> tuple[Any, Any]:
    """What the engine prepares and measures, compiled once for each dtype and each shape of what is given."""
    return jax.jit(engine.prepare), jax.jit(lambda *given: engine.measured(*given)[0])


def by_one(engine: Engine, parameters: Any, word: Any, flips: list[tuple[int, int]], dtype: str) -> Any:
    """The norms of flips of one word; NaN where the engine declines, as it does all that it does not resolve."""
    dtype = "float64" if engine.wide else dtype
    prepare, norms = programs(engine)
    with numerics(dtype):
        tokens, pairs = jnp.asarray(word, jnp.int32), jnp.asarray(flips, jnp.int32)
        prepared_in = "float64" if engine.prepares_in_float64 else dtype
        with numerics(prepared_in):
            prepared = prepare(parameters_from_numpy(parameters, prepared_in), tokens)
        if prepared_in != dtype:
            prepared = jax.tree.map(_narrow, prepared)
        if not engine.resolves(prepared):
            return np.full(len(flips), np.nan)
        given = parameters_from_numpy(parameters, dtype)
        return np.asarray(norms(given, prepared, FlipBlock(pairs[:, :1], pairs[:, 1:])))


def _narrow(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32)


def tolerance_of(name: str, config: TransformerConfig, cancelling: bool = False) -> Tolerance:
    """How far the engine may be from the reference; `cancelling`: in models drawn at random."""
    if name in ("vmap", "incremental"):
        return SUBTRACTED[config.dtype]
    return (CHOSEN if config.exact_rows else CANCELLING if cancelling else CARRIED)[config.dtype]


def truth(case: Case, parameters: Any) -> tuple[np.ndarray, float]:
    """The reference's norms in the widest type, and the size that absolute tolerances are of."""
    outputs = None if case.outputs is None else list(case.outputs)
    norms = reference.flip_norms(
        case.config, parameters, case.word, case.norm, outputs, case.flips, np.longdouble
    )
    levels = reference.levels(case.config, parameters, case.word)
    size = max(1.0, *(float(np.abs(level).max()) for level in levels)) * max(1.0, case.sharpness)
    return np.array(list(norms.values())), size


def assert_conforms(name: str, case: Case, dtype: str = "float64", cancelling: bool = False) -> None:
    """That the engine `name` gives the reference's norm of every flip of a case."""
    config, parameters = case.config.replace(dtype=dtype), case.parameters(dtype)
    engine = engine_of(name, config, case.norm, case.outputs)
    if engine is None:
        raise LookupError(f"the engine {name} does not serve {config}")
    found, _ = measured(engine, parameters, case.word, case.flips, dtype)
    expected, size = truth(case, parameters)
    tolerance = tolerance_of(name, config, cancelling)
    np.testing.assert_allclose(
        found,
        expected,
        rtol=tolerance.relative,
        atol=tolerance.absolute * size,
        err_msg=f"{name} {dtype} {case}",
    )


LEARNED = WEIGHTINGS_TRIED["learned sink"]
NEWER_TYPES = ("SinkSoftmax", "AdaptiveSoftmax", "Sigmoid", "Entmax")
STEEP = ("temperature-linearithmic", "temperature-cubic", "cooling")
NEWER = tuple(name for name, kind in WEIGHTINGS_TRIED.items() if type(kind).__name__ in NEWER_TYPES)
MIXED = ("temperature-log", "average-hard", "softmax")

CASES: dict[str, Case] = {
    **{
        f"weighting {name}": Case(small(weighting=WEIGHTINGS_TRIED[name]))
        for name in (*KINDS, *STEEP, *NEWER)
    },
    **{f"mask {name}": Case(small(mask=name)) for name in ("future", "past", "strict-future", "strict-past")},
    "mask window": Case(small(mask=SlidingWindow(3))),
    "mask window of one": Case(small(mask=SlidingWindow(1)), word=(0, 2, 1, 0, 1, 1)),
    "windows, three layers": Case(small(layers=3, mask=(SlidingWindow(2), SlidingWindow(3), "future"))),
    "windows, mean, hard": Case(
        small(
            layers=3, mask=SlidingWindow(2), weighting=("average-hard", "softmax", "softmax"), readout="mean"
        )
    ),
    "mask two-sided window": Case(small(mask=TwoSidedWindow(1))),
    "two-sided windows, three layers": Case(
        small(layers=3, mask=(TwoSidedWindow(2), SlidingWindow(3), TwoSidedWindow(1)), readout=2)
    ),
    "two-sided windows, mean, hard": Case(
        small(
            layers=3, mask=TwoSidedWindow(1), weighting=("softmax", "average-hard", "sigmoid"), readout="mean"
        )
    ),
    "two-sided windows, sharpened": Case(
        small(mask=(TwoSidedWindow(0), TwoSidedWindow(9)), weighting="softmax-off-by-one"), sharpness=30
    ),
    "window wider than the word": Case(small(mask=SlidingWindow(50))),
    "sharpened, windows": Case(small(layers=3, mask=SlidingWindow(2)), sharpness=30),
    **{f"positions {name}": Case(small(positions=value)) for name, value in POSITIONS_TRIED.items()},
    "positions by layer": Case(
        small(
            layers=3,
            positions="alternating",
            layer_positions=("rotary", (PartialAlibi(), PartialRotary()), RelativeBias(3, 4, False)),
            mask=("none", SlidingWindow(3), "future"),
        )
    ),
    "rotary in one layer, hard": Case(
        small(layer_positions=("none", "relative-bias"), weighting=("softmax", "average-hard"))
    ),
    "relative bias, hard": Case(small(positions="relative-bias", weighting="leftmost-hard")),
    "sharpened, relative bias": Case(small(positions="relative-bias", layers=3), sharpness=30),
    "sharpened, partial alibi": Case(small(layer_positions=("partial-alibi", "none")), sharpness=30),
    **{f"activation {name}": Case(small(activation=name)) for name in ("gelu", "silu", "tanh")},
    "norm and outputs": Case(small(), norm="l1", outputs=(3, 0)),
    "additive": Case(small(scores="additive")),
    "additive, rotary, hard": Case(small(scores="additive", positions="rotary", weighting="average-hard")),
    "layer norm before": Case(small(layer_norm="pre")),
    "layer norm after": Case(small(layer_norm="post")),
    "layer norm before, hard": Case(small(layer_norm="pre", weighting="leftmost-hard")),
    "no per-position map": Case(small(feed_forward=0)),
    "no per-position map in one layer": Case(small(feed_forward=(0, 5), layer_norm="post")),
    "no layer": Case(small(layers=0)),
    "no layer, mean": Case(small(layers=0, readout="mean")),
    "one layer": Case(small(layers=1)),
    "one layer, hard, mean": Case(small(layers=1, weighting="rightmost-hard", readout="mean")),
    "three layers": Case(small(layers=3, mask=("future", "none", "past"))),
    "three layers, mixed weightings": Case(small(layers=3, weighting=MIXED)),
    "three layers, mixed the other way": Case(small(layers=3, weighting=MIXED[::-1], mask="strict-future")),
    "soft below hard": Case(small(weighting=("softmax", "leftmost-hard"))),
    "hard below soft": Case(small(weighting=("average-hard", "softmax"))),
    "readout in the middle": Case(small(readout=2)),
    "readout first": Case(small(readout=0, mask="past")),
    "readout of the mean": Case(small(readout="mean")),
    "logits": Case(small(logits=3)),
    "logits of the mean, hard": Case(small(logits=3, readout="mean", weighting="average-hard")),
    # Scores times 10 and 30: weights underflow, and under a flip they grow back by huge ratios.
    "sharpened": Case(small(), sharpness=10),
    "sharpened more": Case(small(), sharpness=30),
    "sharpened much more": Case(small(layers=3), sharpness=300),
    "sharpened, future": Case(small(mask="future", layers=3), sharpness=30),
    "sharpened, additive": Case(small(scores="additive"), sharpness=30),
    "sharpened, layer norm": Case(small(layer_norm="pre"), sharpness=30),
    "sharpened, temperature": Case(small(weighting="temperature-linear", mask="past"), sharpness=10),
    # The sink among large scores, below and above them; saturated sigmoids; with masks that hide all keys of a row.
    **{
        f"{name}, sharpened": Case(small(weighting=name, mask=("strict-future", "none")), sharpness=30)
        for name in ("softmax-off-by-one", "sigmoid", "sigmoid-log")
    },
    "large sink, three layers": Case(
        small(
            weighting=(SinkSoftmax(logit=8.0), "softmax", SinkSoftmax(logit=-8.0)), layers=3, layer_norm="pre"
        ),
        sharpness=10,
    ),
    "learned sinks, three layers": Case(
        small(weighting=tuple(SinkSoftmax(logit=c, learned=True) for c in (8.0, 1.0, -8.0)), layers=3),
        sharpness=10,
    ),
    "learned sinks, equal layers of the mean": Case(
        small(weighting=LEARNED, layers=4, readout="mean", mask="past", scores="additive")
    ),
    "learned sinks, one layer, gates": Case(
        small(weighting=LEARNED, layers=1, mask="strict-future", output_gate="headwise")
    ),
    "sink, one layer of the mean": Case(
        small(weighting="softmax-off-by-one", layers=1, readout="mean", mask="past")
    ),
    "sigmoid, three layers, hard": Case(
        small(weighting=("sigmoid-log", "sigmoid", "average-hard"), layers=3, readout=3, positions="rotary")
    ),
    "sigmoid, additive, one layer": Case(small(weighting="sigmoid", layers=1, scores="additive")),
    "headwise gates": Case(small(output_gate="headwise", layer_norm="pre")),
    "elementwise gates": Case(
        small(output_gate="elementwise", layers=3, readout="mean", mask="future"), sharpness=10
    ),
    "gates of one layer, hard": Case(small(output_gate="headwise", layers=1, weighting="leftmost-hard")),
    "gates, soft below hard": Case(small(output_gate="elementwise", weighting=("softmax", "average-hard"))),
    # Symbols repeated without positions: rows tie in every layer.
    **{
        f"ties, {name}": Case(small(weighting=name, positions="none"), word=(1, 0, 1, 1, 0, 3))
        for name in ("leftmost-hard", "rightmost-hard", "average-hard")
    },
    "ties, past": Case(
        small(weighting=("average-hard", "leftmost-hard"), positions="none", mask=("none", "past")),
        word=(1, 1, 1, 1, 1, 1),
    ),
    # The row that sees nothing, read out.
    "all masked": Case(small(mask="strict-future", readout=0)),
    "all masked, hard": Case(small(mask="strict-past", weighting="average-hard")),
    "all masked, sharpened": Case(small(mask="strict-past", layers=3, readout="mean"), sharpness=10),
    "n = 1": Case(small(layers=3, weighting=MIXED, mask=("future", "strict-past", "none")), word=(1,)),
    "n = 2": Case(small(layers=3, weighting=MIXED, mask=("strict-future", "none", "past")), word=(1, 3)),
    "no end of sequence": Case(small(end_symbol=False, alphabet_size=4), word=(3, 0, 1, 2, 2, 0)),
}
