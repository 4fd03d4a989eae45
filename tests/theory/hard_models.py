"""Small hard-attention models, and what they do on all completions of a restriction, by running them."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens import Transformer, TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.masks import visible
from jaxsens.core.models.parts.weighting import weights
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.parameters import initialise
from jaxsens.core.models.transformer.trace import scores
from jaxsens.theory.hard_attention.restriction import FREE, Restriction


def hard(seed: int = 0, **changes: Any) -> Transformer:
    """A random float64 model over two symbols, hard in every layer."""
    sizes = {"alphabet_size": 2, "width": 6, "heads": 2, "head_width": 2, "layers": 2, "feed_forward": 5}
    chosen = {"weighting": "leftmost-hard", "dtype": "float64", **sizes, **changes}
    return Transformer(TransformerConfig(**chosen), seed=seed)


def last_one(layers: int = 2, **changes: Any) -> Transformer:
    """Every head attends to the last 1 up to its row, by a tie: keys are [symbol is 1], the future is masked.

    Values tell positions apart.
    """
    chosen = {"weighting": "rightmost-hard", "mask": "future", **changes}
    model = hard(layers=layers, heads=1, positions=("constant", "index"), **chosen)
    width = model.config.width
    parameters = initialise(model.config, 0)
    embedding, components = np.array(parameters.embedding), np.zeros((2, width))
    embedding[:, :2], components[0, 0], components[1, 2] = 0, 1.0, 0.1
    embedding[1, 1] = 1.0
    query, key = np.zeros((1, width, 2)), np.zeros((1, width, 2))
    query[0, 0, 0], key[0, 1, 0] = 1.0, 1.0
    made = []
    for layer in parameters.layers:
        output, w2 = np.array(layer.output), np.array(layer.w2)
        output[:, :, :2], w2[:, :2] = 0, 0
        made.append(dataclasses.replace(layer, query=query, key=key, output=output, w2=w2))
    built = dataclasses.replace(parameters, embedding=embedding, components=components, layers=tuple(made))
    return Transformer(model.config, parameters=built)


def almost_tied() -> Transformer:
    """One layer whose two keys' scores, 1 and 1 + 2^-52, are nearer than rounding may move them."""
    model = hard(layers=1, heads=1, positions=("constant",))
    parameters = initialise(model.config, 0)
    embedding, components = np.array(parameters.embedding), np.zeros((1, 6))
    embedding[:, :2], components[0, 0] = 0, 1.0
    embedding[0, 1], embedding[1, 1] = 1.0, 1.0 + 2.0**-52
    query, key = np.zeros((1, 6, 2)), np.zeros((1, 6, 2))
    query[0, 0, 0], key[0, 1, 0] = 1.0, 1.0
    layer = parameters.layers[0]
    output, w2 = np.array(layer.output), np.array(layer.w2)
    output[:, :, :2], w2[:, :2] = 0, 0
    made = dataclasses.replace(layer, query=query, key=key, output=output, w2=w2)
    built = dataclasses.replace(parameters, embedding=embedding, components=components, layers=(made,))
    return Transformer(model.config, parameters=built)


def looked_up(
    embedding: list[list[float]], query: float, keys: tuple[float, ...] = (1.0, 0.0, 0.0), **changes: Any
) -> Transformer:
    """One strict-future layer of width 3 without positions: scores are query times the embedding's product with keys.

    The output is the winner's embedding on top of the last symbol's, which has 1 in its second coordinate.
    """
    sizes = {"width": 3, "heads": 1, "head_width": 3, "layers": 1, "feed_forward": 0}
    model = hard(positions="none", mask="strict-future", **{**sizes, **changes})
    parameters, dtype = initialise(model.config, 0), model.config.dtype
    queries, key = np.zeros((1, 3, 3), dtype), np.zeros((1, 3, 3), dtype)
    queries[0, 1, 0], key[0, :, 0] = query, keys
    same = np.eye(3, dtype=dtype)[None]
    layer = dataclasses.replace(parameters.layers[0], query=queries, key=key, value=same, output=same)
    built = dataclasses.replace(parameters, embedding=np.array(embedding, dtype), layers=(layer,))
    return Transformer(model.config, parameters=built)


def completions(restriction: Restriction) -> np.ndarray:
    """All words under a restriction."""
    choices = [restriction.symbols if value == FREE else (value,) for value in restriction.values.tolist()]
    return np.array(list(product(*choices)), np.int32)


def run_all(function: Any, words: np.ndarray) -> Any:
    """`function` of batches of one size, so that few programs are compiled."""
    parts = []
    for start in range(0, len(words), 64):
        part = words[start : start + 64]
        padded = np.concatenate([part, np.repeat(part[:1], 64 - len(part), axis=0)])
        cut = partial(_first, size=len(part))
        parts.append(jax.tree.map(cut, function(padded)))
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def _first(array: Any, size: int) -> np.ndarray:
    return np.asarray(array)[:size]


def really_depends(model: Transformer, restriction: Restriction) -> set[int]:
    """The free inputs whose change alone changes some bit of the output, over all completions."""
    words = completions(restriction)
    outputs = run_all(model, words)
    found = set()
    for i in np.flatnonzero(restriction.free):
        rest = np.delete(words, i, axis=1)
        order = np.lexsort(rest.T[::-1])
        groups = outputs[order].reshape(-1, len(restriction.symbols), outputs.shape[1])
        if (groups != groups[:, :1]).any():
            found.add(int(i))
    return found


def real_winners(model: Transformer, words: np.ndarray) -> list[np.ndarray]:
    """Of each layer, (words, heads, n): the key that wins each head's row, -1 where none is visible."""
    with numerics(model.config.dtype):
        return run_all(lambda part: _winners(model.config, model.parameters, jnp.asarray(part)), words)


@partial(jax.jit, static_argnums=0)
def _winners(config: TransformerConfig, parameters: Any, words: Any) -> list[Any]:
    n = words.shape[1]
    every = jnp.arange(n)

    def one(tokens: Any) -> list[Any]:
        found = []
        for k, trace in enumerate(layers.trace(config, parameters, tokens)[0]):
            layer = config.layer(k)
            s = scores(layer, parameters.layers[k], trace.queries, trace.keys, every, every, n)
            seen = jnp.broadcast_to(visible(layer.mask, every[:, None], every[None, :]), s.shape)
            won = weights(layer.weighting, s, seen)
            found.append(jnp.where(won.sum(-1) > 0, jnp.argmax(won, axis=-1), -1))
        return found

    return jax.vmap(one)(words)


def assert_true(model: Transformer, restriction: Restriction) -> None:
    """The output depends on `depends_on` alone, and in every word exactly the keys named win: by running all words."""
    assert really_depends(model, restriction) <= set(restriction.depends_on)
    words = completions(restriction)
    for k, won in enumerate(real_winners(model, words)):
        matched: dict[int, np.ndarray] = {}
        for case in restriction.certificate.layers[k]:
            holds = np.ones(len(words), bool)
            for i, symbol in case.conditions:
                holds &= words[:, i] == symbol
            matched[case.row] = matched.get(case.row, np.zeros(len(words), int)) + holds
            for head, keys in enumerate(case.keys):
                assert set(won[holds, head, case.row].tolist()) <= (set(keys) or {-1})
        assert all((count == 1).all() for count in matched.values())
