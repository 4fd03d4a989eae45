"""Small uniform-tieless models in float64: random ones whose positions break all ties, and one made by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxsens import Transformer, TransformerConfig
from jaxsens.core.models.transformer.parameters import LayerParameters, TransformerParameters, initialise

STRUCTURES: dict[str, dict[str, Any]] = {
    "one head": {"layers": 1, "heads": 1},
    "two layers of two heads": {"layers": 2, "heads": 2, "mask": "future", "uniform": ((0, 1),)},
    "three layers": {
        "layers": 3,
        "heads": (2, 1, 2),
        "mask": ("none", "past", "future"),
        "uniform": ((1, 0),),
    },
}
"""With the (layer, head) that is uniform."""


def random_model(structure: str, seed: int, **changes: Any) -> Transformer:
    """Random weights and biases over the alphabet {0, 1}, with bounded position components."""
    settings = {
        "alphabet_size": 2,
        "width": 4,
        "head_width": 3,
        "feed_forward": 5,
        "weighting": "average-hard",
        "positions": ("fraction", "alternating", "inverse"),
        "end_symbol": False,
        "dtype": "float64",
        **STRUCTURES[structure],
        **changes,
    }
    uniform = settings.pop("uniform", ())
    config = TransformerConfig(**settings)
    rng = np.random.default_rng(seed)
    parameters = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64) + 0.2 * rng.normal(size=leaf.shape),
        initialise(config, seed),
    )
    layers = list(parameters.layers)
    for k, head in uniform:
        query = layers[k].query.copy()
        query[head] = 0
        layers[k] = dataclasses.replace(layers[k], query=query)
    return Transformer(config, parameters=dataclasses.replace(parameters, layers=tuple(layers)))


SYMBOL, ONE, FRACTION, FIRST, SECOND = np.eye(5)
"""Coordinates of the models made by hand: [symbol is 1], 1, j/n, and what their layers write."""


def by_hand(*layers: dict[str, np.ndarray], **changes: Any) -> Transformer:
    """One head of width 1 a layer, given by its vectors `query`, `key`, `value` and `output`; those left out are 0.

    Where `into` is given there is a per-position map of one unit, out * relu(into . x).
    """
    config = TransformerConfig(
        **{
            "alphabet_size": 2,
            "width": 5,
            "heads": 1,
            "head_width": 1,
            "layers": len(layers),
            "feed_forward": tuple(int("into" in layer) for layer in layers),
            "weighting": "average-hard",
            "positions": ("constant", "fraction"),
            "end_symbol": False,
            "dtype": "float64",
            **changes,
        }
    )
    zero = np.zeros(5)

    def made(layer: dict[str, np.ndarray]) -> LayerParameters:
        mapped = "into" in layer
        arrays: Any = {
            **{name: layer.get(name, zero).reshape(1, 5, 1) for name in ("query", "key", "value")},
            "output": layer.get("output", zero).reshape(1, 1, 5),
            "w1": layer["into"].reshape(5, 1) if mapped else None,
            "b1": np.zeros(1) if mapped else None,
            "w2": layer["out"].reshape(1, 5) if mapped else None,
            "b2": zero if mapped else None,
        }
        return LayerParameters(**arrays, additive=None, attention_norm=None, feed_forward_norm=None)

    embedded: Any = {"embedding": np.array([zero, SYMBOL]), "components": np.array([ONE, FRACTION])}
    parameters = TransformerParameters(
        **embedded, learned=None, layers=tuple(made(layer) for layer in layers), head=None, head_bias=None
    )
    return Transformer(config, parameters=parameters)


def choosing(gap: float = 1.0, position_gap: float = 0.0) -> dict[str, np.ndarray]:
    """A layer that looks for a 1: a key's score is `gap` [symbol is 1] + `position_gap` j/n, its value the symbol.

    On a word with a single 1 softmax's output differs from 1 by exactly 1 - 1/(1 + (n - 1) e^(-gap/tau)).
    """
    return {"query": ONE, "key": gap * SYMBOL + position_gap * FRACTION, "value": SYMBOL, "output": FIRST}


def chooser(gap: float = 1.0, position_gap: float = 0.0, **changes: Any) -> Transformer:
    return by_hand(choosing(gap, position_gap), **changes)


def with_parameters(model: Transformer, k: int, **changes: np.ndarray) -> Transformer:
    layers = list(model.parameters.layers)
    layers[k] = dataclasses.replace(layers[k], **changes)
    return Transformer(model.config, parameters=dataclasses.replace(model.parameters, layers=tuple(layers)))
