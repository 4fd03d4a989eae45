"""Everything that families of published transformers differ by, and their shared forward pass, row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import no_rule, rule_for
from jaxsens.core.base.strict import Count, Positive, checked_by, config
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.layered import SOFTMAX, Attended, Attention, Index, Layered, Outputs, Row
from jaxsens.core.models.transformer.parameters import Stack
from jaxsens.pretrained.families.rotation import RotaryAngles, turned

Output = Literal["hidden", "logits", "labels"]
"""What is read from a row of the last layer: the row itself, what the language-model head makes of it, or the scores of
a classifier's labels."""

NormKind = Literal["layer", "rms"]

Norms = Literal["before", "after", "both", "inside"]
"""Where rows are normalised: before each of a layer's two maps, after each residual, before and after each map, or
after each map alone, inside the residual."""

HeadNorms = Literal["none", "heads", "whole"]
"""Which queries and keys are normalised: none, those of each head, or those of all heads together."""

Activation = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]

_erf: Activation = partial(jax.nn.gelu, approximate=False)
_tanh: Activation = partial(jax.nn.gelu, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _erf,
    "gelu_python": _erf,
    "gelu_new": _tanh,
    "gelu_pytorch_tanh": _tanh,
    "gelu_python_tanh": _tanh,
    "gelu_accurate": _tanh,
    "gelu_bloom": lambda x: x * (1 + jnp.tanh(0.79788456 * x * (1 + 0.044715 * x * x))) / 2,
    "gelu_fast": _tanh,  # its constant is sqrt(2 / pi) to ten digits
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""The activations under the names that `config.json` uses: Gaussian error linear units with erf, with tanh, or with a
sigmoid, and others."""


@dataclass(frozen=True)
class PositionSlopes:
    """What ALiBi adds to a score: slope_h times the position of the key (Press et al. 2022).

    It differs from -slope_h (i - j) by a number that all keys of a row share, which softmax does not see.

    Attributes:
        slopes: of each head.
        scale: a factor of the product.
        bfloat16: whether slopes, positions and products are rounded to bfloat16, as Falcon does.
    """

    slopes: tuple[float, ...]
    scale: float = 1.0
    bfloat16: bool = False

    def added(self, head: Index, key: Index, dtype: Any) -> Array:
        """Returns what is added to the score of a key."""
        narrow = jnp.bfloat16 if self.bfloat16 else dtype
        product = jnp.asarray(self.slopes, narrow)[head] * key.astype(narrow)
        return product.astype(dtype) * jnp.asarray(self.scale, dtype)


@dataclass(frozen=True)
class Disentangled:
    """The scores of DeBERTa (He et al. 2021): (q_i . k_j + q_i . K[c] + k_j . Q[c]) scale, with c the place of i - j.

    K and Q, (2 span, head_width), are of each layer and head; either may be missing.

    Attributes:
        parts: "key" if there is K, "query" if there is Q.
        span: half the number of places.
        buckets: of each distance from 0 on; on the other side, its negative. Places are span + bucket.
        shared: whether K and Q are made by the maps of keys and queries, not by maps of their own.
        normalised: whether the rows that they are made of are normalised first.
    """

    parts: tuple[str, ...]
    span: int
    buckets: tuple[int, ...]
    shared: bool
    normalised: bool

    def place(self, behind: Int[Array, "*b"]) -> Int[Array, "*b"]:
        """The place of a key this number of positions behind the query; ahead of it, if negative."""
        bucket = jnp.asarray(self.buckets, jnp.int32)[jnp.abs(behind)] * jnp.sign(behind)
        return jnp.clip(bucket + self.span, 0, 2 * self.span - 1)


@dataclass(frozen=True)
class Experts:
    """Maps among which a router chooses for each row: those with the largest of softmax(row @ router).

    Every expert is computed for every row, and those that are not chosen count 0: a map costs as much as if all were.

    Attributes:
        number: how many there are.
        chosen: how many are chosen.
        renormalised: whether the shares of the chosen ones are divided by their sum.
        layers: the layers that have them; the others have one map.
        hidden: the width between the two matrices of an expert.
        shared: that of one more expert, which every row has, by a share of its own; 0 for none.
    """

    number: int
    chosen: int
    renormalised: bool
    layers: tuple[int, ...]
    hidden: int
    shared: int = 0


@dataclass(frozen=True)
class Classifier:
    """The head of a classifier: a map of a row as wide as it, if there is one, and a map to the scores of labels.

    Attributes:
        activation: of the first map, before its norm; None without that map.
        readout: the row that it reads; None for that of its family. Of "mean", it reads the mean of rows.
    """

    activation: str | None
    readout: str | None = None


@config
class Architecture:
    """A transformer's shape and choices. `jaxsens.from_weights` makes a model of it and of weights.

    Attributes:
        width: the width of a row, `hidden_size`.
        layers: the number of layers.
        heads: the number of query heads.
        hidden: the width between the two matrices of the per-row map.
        symbols: the number of symbols, `vocab_size`.
        longest: the length of the longest input.
        key_heads: the number of heads of keys and values; 0 for as many as query heads.
        head_width: the width of queries, keys and values; 0 for width // heads.
        norm: "layer" normalisation, or "rms", root mean square normalisation.
        epsilon: what is added to the variance, or to the mean square.
        norms: where rows are normalised: "before" each of a layer's two maps, "after" each residual, on "both" sides of
            each map, or "inside": after each map, before the residual.
        activation: a name of `ACTIVATIONS`.
        gated: whether the activation is multiplied by a second map, as in SwiGLU.
        causal: whether the future is masked.
        windows: the width of each layer's sliding window, None for none; () for none at all.
        scales: the factor of each layer's dot products; None, or () for all, for 1 / sqrt(head_width).
        rotary: the angles of each layer's rotary positions; None for none; () for none at all.
        learned_positions: whether rows begin with a learned embedding of their position.
        position_offset: the number of the first learned position, for families that leave out some.
        token_types: the number of token types; 0 for none. Every symbol has the first.
        embedding_norm: whether embeddings are normalised.
        head_norms: which queries and keys are normalised, before they are turned: "none", those of each of the "heads",
            or the "whole" of all heads together.
        attention_bias: whether queries, keys and values have biases.
        output_bias: whether the map after attention has one.
        map_bias: whether the per-row map has biases.
        tied: whether the head's matrix is the embedding.
        outputs: the number of logits; 0 for one for each symbol.
        head_activation: the activation within the head; None if the head is linear.
        transform_bias: whether the linear map before it has a bias.
        norm_scale: whether norms have a scale.
        norm_shift: whether norms have a shift; None if those of layer normalisation do.
        scale_offset: what is added to the stored scales of norms: 1 in Gemma.
        final_norm: whether the last rows are normalised; None if rows are not normalised after residuals.
        first_bare: whether attention in the first layer reads rows that are not normalised.
        parallel: whether attention and the per-row map read the same row, and both are added to it.
        shared_norm: whether they read it with the same normalisation.
        embedding_width: the width of an embedding; None for that of a row.
        embedding_scale: the factor of embeddings.
        branch_scale: the factor of what attention and the per-row map add to a row.
        score_bias: what positions add to scores, alone or with contents.
        score_cap: scores s become cap tanh(s / cap).
        clip: queries, keys and values are cut off at this size, after a norm of the whole.
        logit_scale: the factor of logits.
        logit_cap: logits z become cap tanh(z / cap).
        logit_bias: whether the head's map to logits has a bias, in a family where it may.
        experts: the experts of the per-row map.
        unread: a symbol that no input may have, because it changes all rows.

    Raises:
        InputError: listing every field of the wrong kind.

    >>> sizes = dict(symbols=50, longest=512, width=64, layers=4, heads=4, hidden=256)
    >>> Architecture(**sizes, causal=True, activation="relu").head_width
    16
    """

    width: Positive
    layers: Positive
    heads: Positive
    hidden: Positive
    symbols: Positive
    longest: Positive
    causal: bool
    activation: Annotated[str, checked_by(inputs.choice, options=ACTIVATIONS)]
    key_heads: Count = 0
    head_width: Count = 0
    norm: NormKind = "layer"
    epsilon: float = 1e-5
    norms: Norms = "before"
    gated: bool = False
    windows: tuple[int | None, ...] = ()
    scales: tuple[float | None, ...] = ()
    rotary: tuple[RotaryAngles | None, ...] = ()
    learned_positions: bool = False
    position_offset: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    head_norms: HeadNorms = "none"
    attention_bias: bool = True
    output_bias: bool = True
    map_bias: bool = True
    tied: bool = True
    outputs: Count = 0
    head_activation: str | None = None
    transform_bias: bool = True
    norm_scale: bool = True
    norm_shift: bool | None = None
    scale_offset: float = 0.0
    final_norm: bool | None = None
    first_bare: bool = False
    parallel: bool = False
    shared_norm: bool = False
    embedding_width: int | None = None
    embedding_scale: float = 1.0
    branch_scale: float = 1.0
    score_bias: PositionSlopes | RelativeBias | Disentangled | None = None
    score_cap: float | None = None
    clip: float | None = None
    logit_scale: float = 1.0
    logit_cap: float | None = None
    logit_bias: bool = True
    experts: Experts | None = None
    unread: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)
        object.__setattr__(self, "head_width", self.head_width or self.width // self.heads)


@dataclass(frozen=True)
class PublishedTransformer(Layered):
    """The forward pass of every family, for inputs of length n.

    The parameters are a dictionary. A linear map is {"matrix": (in, out)} with or without "bias": (out,); a norm is
    {"scale": (width,)} with or without "shift": (width,)::

        embedding: (symbols, width)
        token_types: (1, width), if there are token types: the first of them
        positions: (longest, width), if positions are learned
        embedding_norm: if embeddings are normalised
        embedding_map, output_map: linear maps from an embedding's width to a row's, and back, if there are any
        score_bias: (buckets, heads), if distances add learned numbers to scores
        layers: a sequence, or a `Stack`, of each layer's
            query, key, value, output: linear maps
            query_norm, key_norm: norms of queries and keys, if there are any
            key_table, query_table: (heads, places, head_width), K and Q times the scale, if scores are `Disentangled`
            attention_norm, map_norm: norms before the two maps, after residuals, or inside them
            attention_after, map_after: norms of what the maps add, if rows are normalised on both sides
            up, down, and gate if gated: linear maps; of experts, with an axis in front; and router: a linear map
        final_norm: the norm of the last rows, if there is one
        head, for logits: matrix unless tied; a bias, and transform (a linear map) with norm, if there are
        classifier, for labels: dense (a linear map) and norm, if there are; and out, a linear map
        dense, for hidden rows: a list of linear maps, if there are

    Attributes:
        architecture: the shape and choices.
        output: "hidden", "logits" or "labels".
        n: the length of the input, if the rotary angles depend on it; otherwise 0.
        pooling: the readout that the model's folder names; None for that of its family.
        mesh: the devices over which the matrices of layers are split, along their inputs; None if they are not.
        classifier, weighting: the head of a classifier, for labels; how scores become attention weights.
        dense: the activations of the maps of a hidden row, None for none, that follow a sentence encoder's pooling.
    """

    architecture: Architecture
    output: Output = "hidden"
    n: int = 0
    pooling: int | str | None = None
    mesh: Mesh | None = None
    classifier: Classifier | None = None
    weighting: Weighting = SOFTMAX
    dense: tuple[str | None, ...] = ()
    stacked: ClassVar[bool] = True

    @property
    def layers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of layers."""
        return self.architecture.layers

    @property
    def readout(self) -> int | str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the folder's pooling, or of its classifier; else the last row if the future is masked, otherwise the
        first, of [CLS]."""
        own = self.classifier.readout if self.pooling is None and self.classifier else self.pooling
        if own is not None:
            return own
        return "last" if self.architecture.causal else 0

    @property
    def alphabet_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of symbols."""
        return self.architecture.symbols

    @property
    def vocabulary_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of symbols."""
        return self.architecture.symbols

    def attention(self, layer: int) -> Attention:
        a = self.architecture
        window = a.windows[layer] if a.windows else None
        if window is None:
            mask = "future" if a.causal else "none"
        else:
            mask = SlidingWindow(window) if a.causal else TwoSidedWindow(window)
        scale = a.scales[layer] if a.scales else None
        return Attention(a.heads, a.key_heads, mask, self.weighting, scale, a.score_cap)

    def at_length(self, n: int) -> PublishedTransformer:
        a = self.architecture
        windows = tuple(None if window is None or window >= n else window for window in a.windows)
        depends = any(angles is not None and angles.depends_on_length for angles in a.rotary)
        a = dataclasses.replace(a, windows=windows)
        return dataclasses.replace(self, architecture=a, n=n if depends else 0)

    def apart(self, parameters: Any) -> Any:
        return {**parameters, "layers": [parameters["layers"][k] for k in range(self.layers)]}

    def fetched(self, parameters: Any, layer: int) -> Any:
        """The parameters with the whole matrices of a layer in the current arithmetic: gathered from the devices over
        which they are split, and converted from bfloat16."""
        a, own = self.architecture, dict(parameters["layers"][layer])
        inputs = {"output": a.heads * a.head_width, "down": a.hidden}
        if a.experts is not None and layer in a.experts.layers:
            inputs |= {"down": a.experts.hidden, "shared_down": a.experts.shared}
        for name, part in own.items():
            if isinstance(part, dict) and "matrix" in part:
                matrix = self._whole(part["matrix"], inputs.get(name, a.width))
                own[name] = {**part, "matrix": widened(matrix)}
        return {**parameters, "layers": {layer: own}}

    def _whole(self, matrix: Array, inputs: int) -> Array:
        """Returns a matrix of all devices, which split it if they divide its inputs. Programs that run on each device
        by itself have a part of its rows."""
        if self.mesh is None or inputs % self.mesh.size:
            return matrix
        if matrix.shape[-2] < inputs:
            return jax.lax.all_gather(matrix, self.mesh.axis_names, axis=matrix.ndim - 2, tiled=True)
        # All of it on each device: sums over parts would round in another way.
        return jax.lax.with_sharding_constraint(matrix, self._everywhere)

    @property
    def _everywhere(self) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def embed(self, parameters: Any, symbol: Index, position: Index) -> Row:
        a, row = self.architecture, widened(parameters["embedding"][symbol])
        if a.embedding_scale != 1.0:
            row = row * jnp.asarray(a.embedding_scale, row.dtype)
        mapped = "embedding_map" in parameters
        if mapped and not a.embedding_norm:  # else the sum is normalised first
            row = linear(parameters["embedding_map"], row)
        if a.token_types:
            row = row + parameters["token_types"][0]
        if a.learned_positions:
            row = row + parameters["positions"][position]
        if a.embedding_norm:
            row = self._normed(parameters["embedding_norm"], row)
            row = linear(parameters["embedding_map"], row) if mapped else row
        return row

    def project(self, parameters: Any, layer: int, row: Row, position: Index) -> tuple[Array, Array, Array]:
        a, own = self.architecture, parameters["layers"][layer]
        bare = a.norms not in ("before", "both") or (a.first_bare and layer == 0)
        z = row if bare else self._normed(own.get("attention_norm"), row)
        parts = (linear(own[name], z) for name in ("query", "key", "value"))
        q, k, v = parts
        if a.head_norms == "whole":
            q, k = self._normed(own["query_norm"], q), self._normed(own["key_norm"], k)
        if a.clip is not None:
            q, k, v = (jnp.clip(part, -a.clip, a.clip) for part in (q, k, v))
        q, k, v = (part.reshape(-1, a.head_width) for part in (q, k, v))
        if a.head_norms == "heads":
            q, k = self._normed(own["query_norm"], q), self._normed(own["key_norm"], k)
        angles = a.rotary[layer] if a.rotary else None
        if angles is not None:
            q, k = (turned(angles, x, position, self.n) for x in (q, k))
        if self.scored_in_pairs:  # a position is exact below 2^24
            q, k = (jnp.concatenate([x, jnp.full_like(x[:, :1], position)], axis=-1) for x in (q, k))
        return q, k, v

    @property
    def scored_in_pairs(self) -> bool:
        """Whether scores are no dot products: those of `Disentangled`, where queries and keys end with a position."""
        return isinstance(self.architecture.score_bias, Disentangled)

    def score(self, parameters: Any, layer: int, head: Index, query: Array, key: Array) -> Array:
        """The scaled dot product, and what `Disentangled` adds: products with all places, then one for each pair."""
        kind, own = self.architecture.score_bias, parameters["layers"][layer]
        if not isinstance(kind, Disentangled):
            return super().score(parameters, layer, head, query, key)
        place, query, key = kind.place((query[-1] - key[-1]).astype(jnp.int32)), query[:-1], key[:-1]
        score = super().score(parameters, layer, head, query, key)
        for part, content in (("key", query), ("query", key)):
            if part in kind.parts:
                products = own[f"{part}_table"][head] @ content
                score = score + products.at[place].get(mode="promise_in_bounds")
        return score

    def prepared(self, parameters: Any) -> Any:
        """Returns the parameters with each layer's K and Q, of `Disentangled` scores, in place of what makes them."""
        a, kind = self.architecture, self.architecture.score_bias
        if not isinstance(kind, Disentangled):
            return parameters
        rest, stack, runs = dict(parameters), Stack.of(parameters["layers"]), []
        rows = rest.pop("distances")
        rows = self._normed(rest.pop("distance_norm"), rows) if kind.normalised else rows
        factor = a.head_width**-0.5 if a.scales[0] is None else a.scales[0]
        for run in stack.runs:
            own = dict(run)
            for part in kind.parts:
                made = own[part] if kind.shared else own.pop(f"distance_{part}")
                table = factor * (rows @ widened(made["matrix"]) + made["bias"][..., None, :])
                table = table.reshape(*table.shape[:-1], a.heads, a.head_width).swapaxes(-3, -2)
                own[f"{part}_table"] = table if self.mesh is None else jax.device_put(table, self._everywhere)
            runs.append(own)
        return {**rest, "layers": Stack(tuple(runs), stack.lengths)}

    def placed_score(
        self, parameters: Any, layer: int, head: Index, query: Index, key: Index
    ) -> Array | None:
        """What the positions add to a score: a slope times the key's, or the number of their distance's bucket."""
        del layer
        match self.architecture.score_bias:
            case None | Disentangled():
                return None
            case PositionSlopes() as alibi:
                return alibi.added(head, key, parameters["embedding"].dtype)
            case RelativeBias() as relative:
                return parameters["score_bias"][relative.bucket(key - query), head]
            case other:
                known = ("PositionSlopes", "RelativeBias", "Disentangled")
                raise no_rule("attention", "score_bias", other, known)

    def merge(self, parameters: Any, layer: int, row: Row, attended: Attended) -> Row:
        a, own = self.architecture, parameters["layers"][layer]
        branch = linear(own["output"], attended.reshape(-1))
        if a.parallel:
            name = "attention_norm" if a.shared_norm else "map_norm"
            return row + branch + self._mapped(own, layer, self._normed(own.get(name), row))
        match a.norms:
            case "before":
                row = self._added(row, branch)
                return self._added(row, self._mapped(own, layer, self._normed(own.get("map_norm"), row)))
            case "after":
                row = self._normed(own.get("attention_norm"), self._added(row, branch))
                return self._normed(own.get("map_norm"), self._added(row, self._mapped(own, layer, row)))
            case "both":
                row = self._added(row, self._normed(own["attention_after"], branch))
                mapped = self._mapped(own, layer, self._normed(own["map_norm"], row))
                return self._added(row, self._normed(own["map_after"], mapped))
            case "inside":
                row = self._added(row, self._normed(own["attention_norm"], branch))
                return self._added(row, self._normed(own["map_norm"], self._mapped(own, layer, row)))
            case other:
                raise no_rule("merge", "norms", other, ("before", "after", "both", "inside"))

    def _added(self, row: Row, branch: Row) -> Row:
        scale = self.architecture.branch_scale
        return row + (branch if scale == 1.0 else branch * jnp.asarray(scale, branch.dtype))

    def read(self, parameters: Any, row: Row) -> Outputs:
        row = self._finished(parameters, row)
        match self.output:
            case "hidden":
                for activation, own in zip(self.dense, parameters.get("dense", ()), strict=True):
                    row = linear(own, row) if activation is None else _activated(activation, linear(own, row))
                return row
            case "logits":
                return self._logits(parameters, row)
            case "labels" if self.classifier is not None:
                return self._scores(parameters["classifier"], self.classifier, row)
            case _:
                raise no_rule("read", "output", self.output, ("hidden", "logits", "labels"))

    @property
    def pools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a classifier reads the mean of rows."""
        return self.classifier is not None and self.classifier.readout == "mean"

    def read_mean(self, parameters: Any, rows: Float[Array, "n width"]) -> Outputs:
        """The mean of outputs; of a classifier that pools rows, the scores of their mean."""
        if self.classifier is None or not self.pools:
            return super().read_mean(parameters, rows)
        mean = jnp.mean(jax.vmap(lambda row: self._finished(parameters, row))(rows), axis=0)
        return self._scores(parameters["classifier"], self.classifier, mean)

    def _finished(self, parameters: Any, row: Row) -> Row:
        """Returns a row after the final normalisation, in an embedding's width."""
        a = self.architecture
        if a.norms != "after" if a.final_norm is None else a.final_norm:
            row = self._normed(parameters.get("final_norm"), row)
        return linear(parameters["output_map"], row) if "output_map" in parameters else row

    def _scores(self, own: Any, classifier: Classifier, row: Row) -> Outputs:
        if classifier.activation is not None:
            row = _activated(classifier.activation, linear(own["dense"], row))
        return linear(own["out"], self._normed(own["norm"], row) if "norm" in own else row)

    def _logits(self, parameters: Any, row: Array) -> Array:
        a, head = self.architecture, parameters.get("head", {})
        if a.head_activation is not None:
            row = _activated(a.head_activation, linear(head["transform"], row))
            row = self._normed(head["norm"], row)
        matrix = widened(parameters["embedding"].T if a.tied else head["matrix"])
        logits = linear({**head, "matrix": matrix}, row)
        if a.logit_scale != 1.0:
            logits = logits * jnp.asarray(a.logit_scale, logits.dtype)
        return logits if a.logit_cap is None else a.logit_cap * jnp.tanh(logits / a.logit_cap)

    def _mapped(self, own: Any, layer: int, z: Array) -> Array:
        """Returns the per-row map, or the chosen experts' by their shares."""
        experts = self.architecture.experts
        if experts is None or layer not in experts.layers:
            return self._map(own, z)
        shares = jax.nn.softmax(linear(own["router"], z))
        largest, chosen = jax.lax.top_k(shares, experts.chosen)
        if experts.renormalised:
            largest = largest / jnp.sum(largest)
        maps = {name: own[name] for name in ("gate", "up", "down")}
        mapped = jax.vmap(self._map, in_axes=(0, None))(maps, z)
        mapped = jnp.zeros_like(shares).at[chosen].set(largest) @ mapped
        if not experts.shared:
            return mapped
        shared = {name: own[f"shared_{name}"] for name in maps}
        return mapped + jax.nn.sigmoid(linear(own["shared_router"], z)) * self._map(shared, z)

    def _map(self, own: Any, z: Array) -> Array:
        up = linear(own["up"], z)
        if self.architecture.gated:
            return linear(own["down"], _activated(self.architecture.activation, linear(own["gate"], z)) * up)
        return linear(own["down"], _activated(self.architecture.activation, up))

    def _normed(self, own: Any, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        """Returns x, normalised along its last axis; `own` is None for a norm without parameters."""
        own = own or {}
        epsilon = jnp.asarray(self.architecture.epsilon, x.dtype)
        if self.architecture.norm == "layer":
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon)
        normed = normed * own["scale"] if "scale" in own else normed
        return normed + own["shift"] if "shift" in own else normed


def widened(own: Array) -> Array:
    """Returns an array in the current arithmetic if its numbers are the 16 bits of bfloat16; any other as it is."""
    if own.dtype != jnp.uint16:
        return own
    return jax.lax.bitcast_convert_type(own, jnp.bfloat16).astype(jnp.result_type(float))


def linear(own: Any, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """Returns x @ matrix, plus the bias if there is one."""
    y = x @ own["matrix"]
    return y + own["bias"] if "bias" in own else y


def _activated(name: str, x: Array) -> Array:
    return rule_for("the forward pass", "activation", name, ACTIVATIONS)(x)
