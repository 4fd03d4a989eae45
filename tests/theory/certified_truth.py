"""The largest effect of a flip over all words, by trying all words, and the models the certified bound is tried on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsens import Softmax, Transformer
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.positions import Sinusoidal
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.score_positions import PartialAlibi, RelativeBias, Rotary
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.theory.certified.bound import CertifiedBound, certified_bound
from jaxsens.theory.certified.intervals import Ball
from tests.small_models import random_parameters, small

CLOSE = 1e-9
ROUNDING = CLOSE, 1e-13
"""The enumeration subtracts rounded outputs: what it may exceed a bound by, relative and absolute."""


def sizes(changes: np.ndarray, norm: str) -> np.ndarray:
    return np.linalg.norm(changes, {"l1": 1, "l2": 2, "linf": np.inf}[norm], axis=-1)


def truth(
    model: Transformer,
    n: int,
    symbols: list[int],
    at_readout: list[int] | None = None,
    norm: str = "l2",
    fixed: Mapping[int, int] | None = None,
) -> np.ndarray:
    """The largest sensitivity to a flip at each position over all words, NaN at the readout and at fixed positions."""
    r, held = readout_row(model.config.readout, n), {} if fixed is None else fixed
    sets = [at_readout or symbols if p == r else symbols for p in range(n)]
    sets = [[held[p]] if p in held else one for p, one in enumerate(sets)]
    outputs = np.asarray(model(np.array(list(itertools.product(*sets)))), np.float64)
    outputs = outputs.reshape(*map(len, sets), -1)
    found = np.zeros(n)
    for p in range(n):
        if p == r or p in held:
            found[p] = np.nan
            continue
        sides = np.moveaxis(outputs, p, 0)
        for a, b in itertools.combinations(range(len(sides)), 2):
            found[p] = max(found[p], sizes(sides[a] - sides[b], norm).max())
    return found


def undercut(model: Transformer, n: int, bound: CertifiedBound | None = None, **options: Any) -> float:
    """By which factor the true maximum exceeds the bound, at the worst position: sound if at most 1.

    `bound` is the bound with these options, where it is known already.
    """
    symbols = list(range(model.config.alphabet_size))
    at_readout, norm = options.get("readout_symbols"), options.get("measure", "l2")
    actual = truth(model, n, symbols, at_readout, norm, options.get("fixed"))
    bound = bound or certified_bound(model, n, **options)
    assert np.array_equal(np.isnan(bound.by_position), np.isnan(actual))
    assert bound.value == np.nanmax(bound.by_position, initial=0.0)
    relative, absolute = ROUNDING
    return float(np.nanmax((actual - absolute) / (bound.by_position * (1 + relative) + 1e-300), initial=0.0))


def scaled_model(seed: int, queries: float = 1.0, values: float = 1.0, **changes: Any) -> Transformer:
    """A random model, two symbols unless said otherwise; its queries and values are multiplied by these numbers.

    With small ones the bound lies below the diameter of the outputs, so that it is the bound which is tested.
    """
    config = small(**{"alphabet_size": 2, **changes})
    parameters = random_parameters(config, seed)
    layers = tuple(
        dataclasses.replace(layer, query=layer.query * queries, value=layer.value * values)
        for layer in parameters.layers
    )
    return Transformer(config, parameters=dataclasses.replace(parameters, layers=layers))


MASKS = ("none", "future", "past", "strict-future", "strict-past", SlidingWindow(2), SlidingWindow(3))
POSITIONS: tuple[Any, ...] = (
    "none",
    "sinusoidal",
    "rotary",
    "alibi",
    ("alternating", "fraction"),
    ("partial-rotary", RelativeBias(4, 3)),
    PartialAlibi(1.0),
    (Sinusoidal(base=50.0), "alibi", Rotary(base=30.0)),
)
TEMPERATURES: tuple[Any, ...] = (
    "softmax",
    "temperature-log",
    Softmax(Schedule(coefficient=0.7, power=0.5, log_power=1.0), by="query"),
    Softmax(Schedule(coefficient=2.0, power=-1.0)),
)


def drawn(seed: int, layers: int, **fixed: Any) -> tuple[Transformer, dict[str, Any]]:
    """A model and options drawn from every kind the bound serves, with this many layers."""
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    changes = {
        "layers": layers,
        "heads": one(1, 2, *([tuple(int(h) for h in rng.integers(1, 3, layers))] if layers else [])),
        "mask": one(*MASKS),
        "positions": one(*POSITIONS),
        "weighting": one(*TEMPERATURES),
        "activation": one("relu", "gelu", "silu", "tanh"),
        "feed_forward": one(0, 5, 5),
        "layer_norm": one("none", "none", "pre", "post"),
        "scores": one("dot-product", "dot-product", "additive"),
        "readout": one("last", 0, 1, "mean"),
        "logits": one(None, None, 2),
        **fixed,
    }
    model = scaled_model(seed, one(1.0, 0.3, 0.05), one(1.0, 0.3, 0.05), **changes)
    options: dict[str, Any] = {"measure": one("l2", "l1", "linf"), "classes": one(None, 1, 3)}
    if model.config.readout != "mean":
        options["readout_symbols"] = one(None, [2], [0, 1, 2])
    if options.get("readout_symbols") is None:
        options["fixed"] = one(None, {0: 2}, {2: 1}, {1: 0, 3: 2})
    return model, options


def inside(actual: np.ndarray, held: Ball) -> bool:
    """Whether what was computed lies in what is certified, but for rounding."""
    return bool(((held.lo <= actual + CLOSE) & (actual - CLOSE <= held.hi)).all())
