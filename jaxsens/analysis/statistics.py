"""Scores and attention weights of every layer on one input, a block of rows at a time; and their statistics: how
sharp the weights of every row are, and how much of them the keys get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, check_fits, collecting
from jaxsens.core.base.programs import compiled, numerics, versions
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.engines.one_key.run import summed_over_blocks
from jaxsens.core.models.adapters import Model, as_inputs, as_model, encoded
from jaxsens.core.models.parts.weighting import Weighting, weights
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.layered import Attention, Layered, embedded_rows, layer_of, row_read
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.core.models.transformer.trace import scores_of_rows, transformer_layer, weighting_of

if TYPE_CHECKING:
    import pandas as pd


SCORES = 2**20
"""The largest number of scores of all heads that are in memory at once, unless a single row has more."""

RowScores: TypeAlias = Callable[
    [Int[Array, " m"]], tuple[Float[Array, "heads m n"], Bool[Array, "*heads m n"]]
]
"""Returns the scores of some rows of one layer with all keys, as the weighting function takes them, with its
temperature; and which keys these rows see."""

Reduction: TypeAlias = Callable[[Weighting, RowScores, int, int, Any], dict[str, Array]]
"""Returns arrays with an entry a head, from a layer's weighting and scores, heads, n, and a hashable option."""


def visible_attention(
    model: Model, function: str
) -> tuple[TransformerConfig | Layered, list[LayerConfig | Attention]]:
    """Returns what says how the model's rows attend, and each layer's heads and weighting.

    Raises:
        InputError: for a model whose attention is not visible; `function` is what was called.
    """
    found = model.given_layers if model.config is None else model.config
    if found is None:
        raise InputError.note(
            "model",
            "its attention is not visible. Give a jaxsens transformer, a published model "
            "(jaxsens.load_pretrained), or a pair (layered, parameters) of a jaxsens.Layered of your own",
            subject=function,
        )
    one = found.layer if isinstance(found, TransformerConfig) else found.attention
    return found, [one(k) for k in range(found.layers)]


def reduced_layers(
    function: str,
    model: Model,
    attending: TransformerConfig | Layered,
    word: Int[np.ndarray, " n"],
    names: Sequence[str],
    reduction: Reduction,
    option: Any = None,
) -> dict[str, Float[np.ndarray, "layers heads n"]]:
    """Returns the named arrays of the `reduction` of every layer's scores on one input; heads that a layer lacks are
    NaN.

    O(n width + `SCORES`) memory in addition to the result. Attention is computed for the layers' outputs, in
    O(n^2 width) operations each, and again for the reduction.

    Raises:
        InputError: if the reduction's array `finite` is False anywhere.
    """
    with numerics(model.dtype):
        parameters = jax.tree.map(jnp.asarray, model.parameters)
        layers = jax.device_get(_reduced(attending, reduction, option, parameters, jnp.asarray(word)))
    for k, layer in enumerate(layers):
        if not layer["finite"].all():
            why = f"attention scores, or weights, of layer {k} are not finite; use float64, or smaller parameters"
            raise InputError.note("model", why, subject=function)
    shape = len(layers), max((len(layer["finite"]) for layer in layers), default=0), len(word)
    found = {name: np.full(shape, np.nan, layers[0][name].dtype if layers else None) for name in names}
    for k, layer in enumerate(layers):
        for name in names:
            found[name][k, : len(layer[name])] = layer[name]
    return found


@compiled(static=3)
def _reduced(
    attending: TransformerConfig | Layered,
    reduction: Reduction,
    option: Any,
    parameters: Any,
    tokens: Int[Array, " n"],
) -> list[dict[str, Array]]:
    of_kind = _of_transformer if isinstance(attending, TransformerConfig) else _of_layered
    layers = of_kind(attending, parameters, tokens)
    return [reduction(weighting, rows, heads, len(tokens), option) for heads, weighting, rows in layers]


def _of_transformer(
    config: Any, parameters: TransformerParameters, tokens: Int[Array, " n"]
) -> Iterator[tuple[int, Weighting, RowScores]]:
    x = layers.embed(config, parameters, tokens)
    for k in range(config.layers):
        layer, own = config.layer(k), parameters.layers[k]
        # Nothing reads the last layer's output, so one of its rows is enough.
        traced, x = transformer_layer(layer, own, x, only=0 if k == config.layers - 1 else None)

        def rows(block: Array, layer: Any = layer, own: Any = own, traced: Any = traced) -> Any:
            return scores_of_rows(layer, own, traced.queries[:, block], traced.keys, block)

        yield layer.heads, weighting_of(layer, own), rows


def _of_layered(
    model: Any, parameters: Any, tokens: Int[Array, " n"]
) -> Iterator[tuple[int, Weighting, RowScores]]:
    n = len(tokens)
    model, everywhere = model.at_length(n), jnp.arange(n)
    x = embedded_rows(model, parameters, tokens, everywhere)
    for k in range(model.layers):
        layer = layer_of(model, parameters, k, n)
        queries, keys, _ = layer.projected(x, everywhere)

        def rows(block: Array, layer: Any = layer, queries: Array = queries, keys: Array = keys) -> Any:
            def one_head(given: tuple[Array, ...]) -> Array:
                head, q, key = given
                return layer.scores(head, q[block], key, block, everywhere)

            attention = layer.attention
            scores = jax.lax.map(one_head, (jnp.arange(attention.heads), queries, keys))
            return scores, attention.sees(block[:, None], everywhere[None, :])

        yield layer.attention.heads, layer.weighting(), rows
        if k < model.layers - 1:
            x = layer.output(x)


def over_blocks(
    rows: RowScores,
    heads: int,
    n: int,
    of_block: Callable[[Array, Array, Array], tuple[dict[str, Array], dict[str, Array]]],
) -> dict[str, Array]:
    """Reduces a layer's scores, a block of rows at a time.

    `of_block` returns arrays (heads, m, ...), and arrays to be added up, from the scores of m rows, the keys that they
    see, and which of the rows are new: blocks may overlap.
    """

    def block(where: Array, new: Array, kept: dict[str, Array]) -> dict[str, Array]:
        by_row, by_key = of_block(*rows(where), new)
        new_rows = {name: kept[name].at[:, where].set(values) for name, values in by_row.items()}
        return new_rows | {name: kept[name] + values for name, values in by_key.items()}

    of_one = jax.eval_shape(lambda where, new: of_block(*rows(where), new), jnp.arange(1), jnp.ones(1, bool))
    start = {name: jnp.zeros((heads, n, *one.shape[2:]), one.dtype) for name, one in of_one[0].items()}
    start |= {name: jnp.zeros(one.shape, one.dtype) for name, one in of_one[1].items()}
    return summed_over_blocks(block, n, max(1, SCORES // (heads * n)), start)


OF_ROWS = ("largest", "entropy", "first", "total")
"""The statistics with one value a row."""

OF_KEYS = ("received", "read")
"""The statistics with one value a key."""


@dataclass(frozen=True, eq=False)
class AttentionStatistics:
    """What is known of the attention weights w_ij of query i on key j, on one input, for every layer and head.

    Arrays are (layers, heads, n). If layers differ in their number of heads, the missing ones are NaN. A row that sees
    no key, such as the first under the mask "strict-future", has no weights: its statistics are NaN, and means over
    rows leave it out. So it is with a row whose weights, of a sink or a sigmoid, all round to 0.

    Attributes:
        largest: by row, the largest weight.
        entropy: by row, in nats: -sum_j p_j log p_j for the weights divided by their sum, p_j = w_ij / sum_k w_ik. It
            is 0 if a single key has all the weight, and log(m) if m keys share it equally.
        first: by row, the weight on the first key; 0 where a mask hides it.
        total: by row, the sum of the weights: 1 up to rounding, if the weighting normalises them.
        received: by key, the mean weight on it over the rows that see it (the importance of Gu et al. 2024,
            2410.10781, whose "sink" is a first key that gets more than a threshold); NaN for a key that no row sees.
            `received[..., i]` is the mass on a flipped key i.
        read: by key, its weight in the row that is read; if that is the mean, the mean over the rows that see any key.
        readout, tokens: the row that is read ("last", a position, or "mean"), and the input.
        dtype, versions: of the arithmetic; of jaxsens, jax and numpy, and the device.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=2, heads=2))
    >>> attention_statistics(model, [0, 1, 1, 0]).largest.shape
    (2, 2, 4)
    """

    largest: Float[np.ndarray, "layers heads n"]
    entropy: Float[np.ndarray, "layers heads n"]
    first: Float[np.ndarray, "layers heads n"]
    total: Float[np.ndarray, "layers heads n"]
    received: Float[np.ndarray, "layers heads n"]
    read: Float[np.ndarray, "layers heads n"]
    readout: int | str
    tokens: Int[np.ndarray, " n"]
    dtype: str
    versions: dict[str, str]

    @property
    def n(self) -> int:
        """The length of the input."""
        return len(self.tokens)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.largest)

    def mean(self, statistic: str) -> Float[np.ndarray, "layers heads"]:
        """Returns the mean of "largest", "entropy", "first" or "total" over the rows that see any key; NaN if none do.

        Raises:
            InputError: for another name.
        """
        with collecting("AttentionStatistics.mean") as problems:
            inputs.choice("statistic", statistic, OF_ROWS, problems)
        return mean_of_known(getattr(self, statistic))

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table with a row for each layer and head, both 0-based: the means over rows of the statistics that
        rows have."""
        import pandas as pd

        layer, head = np.indices(self.largest.shape[:2]).reshape(2, -1)
        means = {name: self.mean(name).ravel() for name in OF_ROWS}
        return pd.DataFrame({"layer": layer, "head": head, **means})

    def __repr__(self) -> str:
        means = ", ".join(f"{name}={mean_of_known(self.mean(name).ravel()):.4g}" for name in OF_ROWS[:3])
        heads = self.largest.shape[1]
        return f"AttentionStatistics(n={self.n}, {self.layers} layers, {heads} heads; means: {means})"


def mean_of_known(values: Float[np.ndarray, "*shape n"]) -> Float[np.ndarray, "*shape"]:
    """Returns the mean over the last axis in float64, without NaNs; NaN where there is nothing else."""
    known = ~np.isnan(values)
    sums = np.sum(np.where(known, values, 0), axis=-1, dtype=np.float64)
    count = known.sum(axis=-1)
    return np.divide(sums, count, out=np.full(sums.shape, np.nan), where=count > 0)


@naming_arguments
def attention_statistics(
    model: Any, tokens: Any, *, readout: int | Literal["auto", "last", "mean"] = "auto"
) -> AttentionStatistics:
    """Returns the largest weight, the entropy, the weight on the first key and so on, of every layer, head and row.

    Exactly hard weightings have weights of 0, 1 or 1/m for m ties. Arithmetic is in the model's dtype. O(layers n^2
    width) operations, those of two forward passes, and O(layers heads n) memory.

    Args:
        model: a model whose attention is visible: a jaxsens transformer, a published model, a pair
            (`jaxsens.Layered`, parameters).
        tokens: integers (n,), one input; for a model that encodes text, also a text.
        readout: the row whose weights `read` holds: a 0-based position, "last", "mean", or "auto" for the model's own.

    Raises:
        InputError: naming each unusable argument; for attention that is not visible, and weights that are not finite.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> attention_statistics(model, [0, 1, 1, 0]).largest.shape
    (1, 4, 4)
    """
    tokens, model = encoded(model, tokens), as_model(model)
    attending, per_layer = visible_attention(model, "attention_statistics")
    with collecting("attention_statistics") as problems:
        words = as_inputs(model, tokens, problems, one=True)
        n = words.shape[1]
        model = model.reading(readout, n, problems)
        if readout is None and not problems:
            problems.add("readout", readout, 'a 0-based position, "last", "mean" or "auto"')
        if not problems:
            heads = sum(layer.heads for layer in per_layer)
            needed = len(OF_ROWS + OF_KEYS) * n * np.dtype(model.dtype).itemsize * heads
            what, remedy = "the table of every row's statistics", "give a shorter input"
            check_fits("tokens", f"length {n}", needed, what, remedy, problems)
    place: Any = model.readout
    read = row_read(place, words[0])
    if read is not None:
        read = int(read)
        place = place if place == "last" else read
    given = "attention_statistics", model, attending, words[0], OF_ROWS + OF_KEYS
    parts = reduced_layers(*given, _statistics, read)
    # Without weight on any key there is nothing to take a statistic of.
    weightless = parts["total"] == 0
    parts |= {name: np.where(weightless, np.nan, parts[name]) for name in OF_ROWS}
    return AttentionStatistics(
        **parts, readout=place, tokens=words[0], dtype=model.dtype, versions=versions()
    )


def _statistics(
    weighting: Weighting, rows: RowScores, heads: int, n: int, read: int | None
) -> dict[str, Float[Array, "heads n"]]:
    def of_block(s: Array, seen: Array, new: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        w = weights(weighting, s, seen)
        total = jnp.sum(w, axis=-1)
        shares = w / jnp.where(total == 0, 1, total)[..., None]
        # Rounding may leave -0 or a little less where a single key has all the weight. Without weight it is 0.
        entropy = jnp.maximum(-jnp.sum(xlogy(shares, shares), axis=-1), 0)
        readers = jnp.broadcast_to(seen & new[:, None], w.shape)
        by_row = {"largest": jnp.max(w, axis=-1), "entropy": entropy, "first": w[..., 0], "total": total}
        return by_row, {
            "received": jnp.sum(jnp.where(new[:, None], w, 0), axis=1),
            "readers": jnp.sum(readers, axis=1).astype(w.dtype),
            "seeing": jnp.sum(jnp.any(readers, axis=2), axis=1).astype(w.dtype),
        }

    kept = over_blocks(rows, heads, n, of_block)
    readers, seeing, received = kept.pop("readers"), kept.pop("seeing"), kept.pop("received")
    if read is None:
        weight = received / jnp.maximum(seeing, 1)[:, None]
    else:
        weight = weights(weighting, *rows(jnp.asarray([read])))[:, 0]
    received = jnp.where(readers > 0, received / readers, jnp.nan)
    return {**kept, "received": received, "read": weight, "finite": jnp.isfinite(kept["total"])}
