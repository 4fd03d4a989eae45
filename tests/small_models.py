"""Small float64 transformers for tests that compare with tests/reference.py: many choices, few parameters."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import jax
import numpy as np

from jaxsens import Softmax, TransformerConfig
from jaxsens.core.models.parts.masks import MASKS
from jaxsens.core.models.parts.positions import COMPONENTS, Learned, Sinusoidal
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.score_positions import PartialRotary, RelativeBias, Rotary
from jaxsens.core.models.parts.weighting import WEIGHTINGS, Entmax, Sigmoid, SinkSoftmax
from jaxsens.core.models.transformer.parameters import TransformerParameters, initialise

WEIGHTINGS_TRIED: dict[str, Any] = {
    **WEIGHTINGS,
    "by-query": Softmax(Schedule(coefficient=0.7, power=0.5, log_power=1.0), by="query"),
    "cooling": Softmax(Schedule(coefficient=2.0, power=-1.0)),
    "sink by-query": SinkSoftmax(Schedule(log_power=1.0, offset=0.5), by="query", logit=1.5),
    "learned sink": SinkSoftmax(Schedule(log_power=1.0, offset=0.5), logit=0.7, learned=True),
    "entmax-1.2 by-query": Entmax(Schedule(power=0.5, least=2.0), by="query", alpha=1.2),
    "sigmoid by-query": Sigmoid(Schedule(power=0.5), by="query", bias=0.3, log_bias=-0.5),
}
# One of each kind; the other weightings are softmaxes with another power in the same formula.
KINDS = (
    "softmax",
    "temperature-log",
    "by-query",
    "leftmost-hard",
    "rightmost-hard",
    "average-hard",
    "sparsemax",
)
WEIGHTINGS_AND_MASKS = [
    *product(KINDS, MASKS),
    *((name, "none") for name in WEIGHTINGS_TRIED if name not in KINDS),
]
POSITIONS_TRIED: dict[str, Any] = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": Learned(max_length=12),
    "rotary": "rotary",
    "alibi": "alibi",
    "partial rotary": PartialRotary(base=30.0),
    "partial alibi": "partial-alibi",
    "relative bias": RelativeBias(buckets=8, max_distance=5),
    "bounded components": tuple(name for name, component in COMPONENTS.items() if component.bounded),
    "unbounded components": tuple(name for name, component in COMPONENTS.items() if not component.bounded),
    "several": (Sinusoidal(base=50.0), "alternating", Rotary(base=30.0), "alibi", "length", Learned(12)),
}


def small(**changes: Any) -> TransformerConfig:
    """A small float64 config: two heads, two layers, an alphabet of three symbols and the end-of-sequence symbol."""
    sizes = {"alphabet_size": 3, "width": 6, "heads": 2, "head_width": 4, "layers": 2, "feed_forward": 5}
    return TransformerConfig(**{**sizes, "dtype": "float64", **changes})


def random_parameters(config: TransformerConfig, seed: int = 0, length: int = 6) -> TransformerParameters:
    """NumPy parameters, biases and normalisation random too; components are scaled to 1 at n = `length`."""
    rng = np.random.default_rng(seed)

    def around(leaf: Any) -> np.ndarray:
        return np.asarray(leaf, np.float64) + 0.3 * rng.normal(size=leaf.shape)

    parameters = jax.tree.map(around, initialise(config, seed))
    if parameters.components is not None:
        # Components up to n^3 would bury everything else.
        terms = config.coordinate_terms
        largest = np.array([np.abs(term.values(length)).max() or 1.0 for term in terms])
        parameters = dataclasses.replace(parameters, components=parameters.components / largest[:, None])
    return parameters


def word(n: int, seed: int = 0, alphabet: int = 3) -> np.ndarray:
    """n - 1 symbols at random, and the end-of-sequence symbol behind."""
    return np.append(np.random.default_rng(seed).integers(0, alphabet, n - 1), alphabet)


def tying(scores: str, **changes: Any) -> tuple[TransformerConfig, TransformerParameters]:
    """A model in which equal symbols have exactly equal keys in every layer, but values that differ.

    The last coordinate holds the position at first, no key reads it, and attention writes nowhere else. There are 15
    layers: each hard weighting under each mask.
    """
    pairs = list(product(("leftmost-hard", "rightmost-hard", "average-hard"), MASKS))
    config = small(
        layers=len(pairs),
        weighting=tuple(weighting for weighting, _ in pairs),
        mask=tuple(mask for _, mask in pairs),
        **{"scores": scores, "positions": "index", "feed_forward": 0, **changes},
    )
    parameters = random_parameters(config)
    embedding, components = np.array(parameters.embedding), np.zeros((1, config.width))
    embedding[:, -1], components[0, -1] = 0, 0.1
    tied = []
    for layer in parameters.layers:
        key, output = np.array(layer.key), np.array(layer.output)
        key[:, -1, :] = 0
        output[:, :, :-1] = 0
        output *= 0.1  # keeps scores small: a saturated tanh would make near ties of keys that differ
        tied.append(dataclasses.replace(layer, key=key, output=output))
    built = dataclasses.replace(parameters, embedding=embedding, components=components, layers=tuple(tied))
    return config, built
