"""The protocol of models whose attention is visible: what they do in each row, and how rows attend to each other.

A layer is two maps of single rows around attention:

    (q_j, k_j, v_j) = project(x_j, j)      b_j = sum_w p_jw v_w      y_j = merge(x_j, b_j)

Residuals, normalisation, biases, rotary embeddings and gated maps are part of the two maps, so they may be any JAX
functions. Only attention mixes rows, and it has a fixed form: softmax(scores / tau) over the visible keys.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.programs import as_arrays, cached, compiled_for
from jaxsens.core.models.parts.masks import MASKS, AnyMask, KeyMask, Span, TypedMask, mask_of
from jaxsens.core.models.parts.weighting import SinkSoftmax, Softmax, Weighting, sink_score
from jaxsens.core.models.transformer.trace import in_blocks, rows_at_once, some_rows

MaskRule = Callable[[Int[Array, "*b"], Int[Array, "*b"]], Bool[Array, "*b"]]
"""Returns whether each query position sees each key position; the two arrays broadcast. Both are 0-based."""

SOFTMAX = Softmax()

Tokens: TypeAlias = Int[Array, " n"]
Index: TypeAlias = Int[Array, ""]
"""A symbol, a position or a head, 0-based."""

Row: TypeAlias = Float[Array, " width"]
Outputs: TypeAlias = Float[Array, " outputs"]
AllRows: TypeAlias = Float[Array, "n width"]
SomeRows: TypeAlias = Float[Array, "m width"]
Places: TypeAlias = Int[Array, " m"]
"""The positions of `SomeRows`."""

Vector: TypeAlias = Float[Array, " head_width"]
Queries: TypeAlias = Float[Array, "m head_width"]
Keys: TypeAlias = Float[Array, "k head_width"]
Number: TypeAlias = Float[Array, ""]
ScoreTable: TypeAlias = Float[Array, "m k"]
Attended: TypeAlias = Float[Array, "heads value_width"]
SomeAttended: TypeAlias = Float[Array, "m heads value_width"]
"""Of one row, and of some."""


@dataclass(frozen=True)
class Attention:
    """How the rows of one layer attend to each other.

    Attributes:
        heads: the number of query heads.
        key_heads: the number of heads of keys and values, a divisor of `heads`: query head h reads key head
            h // (heads / key_heads). None for as many as query heads.
        mask: a name of `jaxsens.core.models.parts.masks.MASKS`, a window of that module, or a hashable `MaskRule`
            (a module-level function, not a lambda made for each call).
        weighting: `Softmax(...)`, `SinkSoftmax(...)` or `Sigmoid(...)`, with its temperature; forward passes take any.
        scale: the factor of dot products; None for 1 / sqrt(head_width).
        cap: scores s become cap tanh(s / cap), before position scores are added; None for no cap.

    Raises:
        InputError: listing every error.

    >>> Attention(heads=4, key_heads=2, mask="future").key_heads
    2
    """

    heads: int
    key_heads: int | None = None
    mask: AnyMask | MaskRule = "none"
    weighting: Weighting = SOFTMAX
    scale: float | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        with collecting("Attention") as problems:
            heads = inputs.count("heads", self.heads, problems, least=1)
            keys = inputs.optional_count("key_heads", self.key_heads, problems)
            if heads and keys and heads % keys:
                problems.add("key_heads", keys, f"a divisor of heads = {heads}")
            if isinstance(self.mask, str):
                inputs.choice("mask", self.mask, MASKS, problems)
            elif not (isinstance(self.mask, TypedMask) or callable(self.mask)):
                problems.add("mask", self.mask, "a name of MASKS, or a function of query and key positions")
            if not isinstance(self.weighting, Weighting):
                problems.add("weighting", self.weighting, "a weighting, such as Softmax()")
            if self.scale is not None and not (inputs.is_real(self.scale) and math.isfinite(self.scale)):
                problems.add("scale", self.scale, "a finite number, or None")
            if self.cap is not None and not (inputs.is_real(self.cap) and 0 < self.cap < math.inf):
                problems.add("cap", self.cap, "a finite number above 0, or None")

    def sees(self, queries: Int[Array, "*b"], keys: Int[Array, "*b"]) -> Bool[Array, "*b"]:
        """Returns whether each query position sees each key position; the two arrays broadcast."""
        return self._keys.sees(queries, keys)

    @property
    def one_sided(self) -> bool:
        """Whether it is known that no row sees keys on one of its sides."""
        return self._keys.one_sided

    def rows_that_see(self, keys: Span, n: int) -> Span:
        """Returns the rows outside of which none sees a key of the span. A mask of your own may connect all."""
        return self._keys.rows_that_see(keys, n)

    @property
    def _keys(self) -> KeyMask | TypedMask:
        if isinstance(self.mask, str | TypedMask):
            return mask_of("attention", self.mask)
        return KeyMask(self.mask, earlier=True, later=True)


class Layered(abc.ABC):
    """A model whose attention is visible, for engines that look into it. Derive a frozen dataclass from it.

    The pair `(layered, parameters)` is a model for `flip_sensitivity`, `explain`, sweeps, `attention_statistics` and
    `worst_input`, and `layered(parameters, tokens)` is its forward pass. `parameters` is any pytree of arrays; it is
    the first argument of every method, so that weights are arguments of compiled programs. Every method is about one
    row, one pair of rows or one layer; jaxsens batches them. All positions and layers are 0-based. An instance must be
    hashable and must not hold arrays.

    Attributes:
        layers: the number of layers.
        readout: the row that is read: "last", a position, "last other than 3" for that of the last symbol other than
            3, or "mean" for the mean of `read` over all rows. The argument `readout` of jaxsens' functions overrides
            it.
        alphabet_size: the number of symbols that flips may insert; None if callers must say.
        vocabulary_size: the number of symbols that the model reads; None if unknown.
        stacked: whether `apart` takes layers out of stacks, so that to stack them again is no copy.
        mesh: the devices over which some parameters are split; None if each device has all.
        pools: whether `read_mean` is overridden: the output of "mean" is then no mean of outputs.
    """

    layers: int
    readout: int | str = "last"
    alphabet_size: int | None = None
    vocabulary_size: int | None = None
    stacked: ClassVar[bool] = False
    mesh: Mesh | None = None
    pools: bool = False

    @abc.abstractmethod
    def attention(self, layer: int) -> Attention:
        """Returns how the rows of a layer attend to each other."""

    def attention_of(self, parameters: Any, layer: int) -> Attention:
        """Returns what `attention` does. jaxsens' own models may have a temperature among the parameters."""
        del parameters
        return self.attention(layer)

    def weighting_of(self, parameters: Any, layer: int, head: Index, /) -> Weighting:
        """Returns the weighting of one head. Override it if the score of a sink is a parameter: return
        `self.attention(layer).weighting.at_sink(score)` of a learned `SinkSoftmax`."""
        del head
        return self.attention_of(parameters, layer).weighting

    @abc.abstractmethod
    def embed(self, parameters: Any, symbol: Index, position: Index, /) -> Row:
        """Returns the first layer's input row for a symbol at a position."""

    @abc.abstractmethod
    def project(
        self, parameters: Any, layer: int, row: Row, position: Index, /
    ) -> tuple[
        Float[Array, "heads head_width"],
        Float[Array, "key_heads head_width"],
        Float[Array, "key_heads value_width"],
    ]:
        """Returns a row's queries, keys and values in a layer, after normalisation and rotation, if any."""

    @abc.abstractmethod
    def merge(self, parameters: Any, layer: int, row: Row, attended: Attended, /) -> Row:
        """Returns a layer's output row from its input row and what its heads attended to."""

    @abc.abstractmethod
    def read(self, parameters: Any, row: Row, /) -> Outputs:
        """Returns the output from the last layer's row: the final normalisation and the head, if any.

        A number counts as a vector of one output.
        """

    def score(self, parameters: Any, layer: int, head: Index, query: Vector, key: Vector, /) -> Number:
        """Returns the score of a query and a key. Override it only if it is not a scaled dot product: it is then
        evaluated for each pair, without matrix products."""
        del parameters, head
        scale = self.attention(layer).scale
        return jnp.vdot(query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)

    def position_score(self, layer: int, head: Index, query: Index, key: Index, /) -> Number | float | None:
        """Returns what two positions add to the score before the temperature, as ALiBi does; None for nothing.

        -inf hides the key from the query, but a mask does so at a lower cost.
        """
        del layer, head, query, key

    def placed_score(
        self, parameters: Any, layer: int, head: Index, query: Index, key: Index, /
    ) -> Number | float | None:
        """Returns what `position_score` does; override this instead if it depends on parameters, as T5's does."""
        del parameters
        return self.position_score(layer, head, query, key)

    def at_length(self, n: int) -> Layered:
        """Returns the model for inputs of length n. Override it if rows depend on n."""
        del n
        return self

    def apart(self, parameters: Any) -> Any:
        """Returns the parameters with arrays of its own for each layer: layers that differ in these alone are traced
        once. Override it if some of the arrays hold several layers."""
        return parameters

    def fetched(self, parameters: Any, layer: int) -> Any:
        """Returns the parameters for all maps of a layer's rows. It is called once for each layer and block of flips:
        a model that keeps them elsewhere, or in another form, gathers and converts those of the layer here."""
        del layer
        return parameters

    def read_mean(self, parameters: Any, rows: AllRows) -> Outputs:
        """Returns the output of the readout "mean" from the last layer's rows: the mean of what `read` returns."""
        return jnp.mean(jax.vmap(lambda row: self.read(parameters, row))(rows), axis=0)

    def __call__(self, parameters: Any, tokens: Tokens) -> Outputs:
        """Returns the output on one input, in O(layers n^2 width) operations."""
        return forward(self, as_arrays(parameters), jnp.asarray(tokens), self.readout)

    @property
    def scored_in_pairs(self) -> bool:
        """Whether `score` is overridden, so that scores are not dot products."""
        return type(self).score is not Layered.score


LAST_OTHER = "last other than "
"""What the readout at the last symbol other than one begins with; the symbol follows."""


def row_read(readout: int | str, word: Int[Any, "*batch n"]) -> Any:
    """Returns the position of the row that is read of a word, or of each of some words, or None for the mean.

    Only "last other than 3" depends on the word: it is the position of its last symbol that is not 3, or 0.
    """
    if isinstance(readout, str) and readout.startswith(LAST_OTHER):
        other = word != int(readout.removeprefix(LAST_OTHER))
        return (np.arange(word.shape[-1]) * other).max(axis=-1)
    return readout_row(readout, word.shape[-1])


def readout_row(readout: int | str, n: int) -> int | None:
    """Returns the position of the row that is read, or None for the mean over all rows.

    Raises:
        InputError: if there is no such row among n.
    """
    if readout == "mean":
        return None
    row = n - 1 if readout == "last" else int(readout)
    if not 0 <= row < n:
        raise InputError.of("readout", row, f"a position from 0 to {n - 1}")
    return row


Projections = tuple[
    Float[Array, "heads m head_width"],
    Float[Array, "heads m head_width"],
    Float[Array, "heads m value_width"],
]
"""Queries, keys and values of some rows, one for each query head."""


@dataclass(frozen=True)
class ModelLayer:
    """One layer of a model with its parameters, for inputs of length n: its maps of many rows at once.

    Attributes:
        model: the model, at that length.
        parameters: its parameters.
        k: the number of the layer.
        n: the length.
    """

    model: Layered
    parameters: Any
    k: int
    n: int

    @property
    def attention(self) -> Attention:
        """How its rows attend to each other."""
        return self.model.attention_of(self.parameters, self.k)

    def weighting(self, head: Index | None = None) -> Weighting:
        """How a head's scores become weights; without `head`, those of all heads at once."""
        if head is not None:
            return self.model.weighting_of(self.parameters, self.k, head)
        weighting = self.attention.weighting
        if not isinstance(weighting, SinkSoftmax):
            return weighting
        scores = jax.vmap(lambda head: sink_score("attention", self.weighting(head)))
        return weighting.at_sink(scores(jnp.arange(self.attention.heads))[:, None, None])

    def projected(self, rows: SomeRows, positions: Places) -> Projections:
        """Returns queries, keys and values of some rows; keys and values with one copy for each query head that reads
        them.

        Raises:
            InputError: if their shapes are not those that `attention` announces.
        """
        model, k, attention = self.model, self.k, self.attention
        parts = over_rows(lambda row, i: model.project(self.parameters, k, row, i), rows, positions)
        if not isinstance(parts, tuple | list) or len(parts) != 3:
            place = f"{type(model).__name__}.project in layer {k}"
            raise InputError(f"{place}: return queries, keys and values, as three arrays")
        heads = attention.heads, *[attention.key_heads or attention.heads] * 2
        announced = f"attention({k}) has heads = {attention.heads}, key_heads = {attention.key_heads}"
        with collecting(type(model).__name__) as problems:
            for name, part, count in zip(("queries", "keys", "values"), parts, heads, strict=True):
                if part.ndim != 3 or part.shape[1] != count:
                    problems.add(f"{name} in layer {k}", part.shape[1:], f"({count}, width): {announced}")
            width, of_keys = parts[0].shape[-1], parts[1].shape[1:]
            if not problems and width != of_keys[-1] and not model.scored_in_pairs:
                problems.add(f"keys in layer {k}", of_keys, f"as wide as the queries, {width}")
        q, keys, values = (jnp.moveaxis(part, 1, 0) for part in parts)
        copies = attention.heads // heads[1]
        return q, jnp.repeat(keys, copies, axis=0), jnp.repeat(values, copies, axis=0)

    def scores(
        self, head: Index, queries: Queries, keys: Keys, rows: Places, columns: Int[Array, " k"]
    ) -> ScoreTable:
        """Returns one head's scores, with position scores, divided by the temperature; masked keys are not marked."""
        s = self.unplaced_scores(head, queries, keys)

        def placed(query: Array, key: Array) -> Number | float | None:
            return self.model.placed_score(self.parameters, self.k, head, query, key)

        if placed(rows[0], columns[0]) is not None:
            table = jax.vmap(lambda i: jax.vmap(lambda j: jnp.asarray(placed(i, j), s.dtype))(columns))
            s = s + table(rows)
        return self.tempered(s, rows)

    def unplaced_scores(self, head: Index, queries: Queries, keys: Keys) -> ScoreTable:
        """Returns one head's scores, without position scores and temperature: scaled dot products, or the model's."""
        if self.model.scored_in_pairs:

            def pair(q: Array, k: Array) -> Array:
                return self.model.score(self.parameters, self.k, head, q, k)

            s = jax.vmap(lambda q: jax.vmap(lambda k: pair(q, k))(keys))(queries)
        else:
            scale = self.attention.scale
            scale = queries.shape[-1] ** -0.5 if scale is None else scale
            s = (queries * jnp.asarray(scale, queries.dtype)) @ keys.T
        cap = self.attention.cap
        return s if cap is None else cap * jnp.tanh(s / cap)

    @property
    def bilinear(self) -> bool:
        """Whether scores are linear in the query and in the key, so that changes of a score are scores of a change."""
        return not self.model.scored_in_pairs and self.attention.cap is None

    def tempered(self, scores: ScoreTable, rows: Places) -> ScoreTable:
        """Returns scores, or changes of scores, of some rows divided by the temperature."""
        return self.attention.weighting.tempered(scores[None], rows, self.n)[0]

    def attended(
        self,
        queries: Float[Array, "heads m head_width"],
        keys: Float[Array, "heads n head_width"],
        values: Float[Array, "heads n value_width"],
        rows: Places,
    ) -> SomeAttended:
        """Returns what some rows, whose queries are given, attend to, one head at a time."""
        attention, columns = self.attention, jnp.arange(self.n)
        seen = attention.sees(rows[:, None], columns[None, :])

        def one_head(parts: tuple[Array, ...]) -> Float[Array, "m value_width"]:
            head, q, k, v = parts
            shares, total = self.weighting(head).shares(self.scores(head, q, k, rows, columns), seen)
            return (shares @ v) / total

        return jax.lax.map(one_head, (jnp.arange(attention.heads), queries, keys, values)).swapaxes(0, 1)

    def merged(self, rows: SomeRows, attended: SomeAttended) -> SomeRows:
        """Returns the layer's output rows from its input rows and what they attended to."""
        return over_rows(lambda row, b: self.model.merge(self.parameters, self.k, row, b), rows, attended)

    def output(self, x: AllRows) -> AllRows:
        """Returns the output rows. Scores are computed in blocks of rows, one head at a time.

        Raises:
            InputError: if `model.merge` returns rows of another shape.
        """
        n = self.n
        q, keys, values = self.projected(x, jnp.arange(n))

        def rows(block: Places) -> SomeAttended:
            return self.attended(q[:, block], keys, values, block)

        b = in_blocks(rows, n, rows_at_once(n, False), axis=0)
        y = self.merged(x, b)
        if y.shape != x.shape:
            place = f"{type(self.model).__name__}.merge in layer {self.k}"
            raise InputError(
                f"{place}: it returns a row of shape {y.shape[1:]}; rows have shape {x.shape[1:]}"
            )
        return y


def layer_of(model: Layered, parameters: Any, k: int, n: int) -> ModelLayer:
    """Returns a layer of a model, with what its maps read of the parameters at hand."""
    return ModelLayer(model, model.fetched(parameters, k), k, n)


def over_rows(one: Callable[..., Any], *rows: Array, most: int | None = None) -> Any:
    """Returns a map of single rows for all of them, `most` at a time, or as many as suit the platform for the width of
    the first argument.

    Unlike `jax.lax.map`, it traces the map once, whatever remains.
    """
    some = jax.vmap(one)
    return in_blocks(
        lambda block: some(*(some_rows(each, block) for each in rows)),
        len(rows[0]),
        most or compiled_for().mapped_rows(rows[0].shape[-1]),
        axis=0,
    )


def forward(model: Layered, parameters: Any, tokens: Tokens, readout: int | str) -> Outputs:
    """Returns the output on one input: the plain forward pass, which is the specification of the model."""
    n = tokens.shape[0]
    row = row_read(readout, tokens)
    if row is None:
        return model.at_length(n).read_mean(parameters, _last_rows(model, parameters, tokens))
    return model.at_length(n).read(parameters, _last_rows(model, parameters, tokens)[row])


def rows_of(model: Layered, parameters: Any, tokens: Tokens) -> Float[Array, "n outputs"]:
    """Returns the output of every row."""
    read = model.at_length(tokens.shape[0]).read
    return jax.vmap(lambda y: read(parameters, y))(_last_rows(model, parameters, tokens))


def _last_rows(model: Layered, parameters: Any, tokens: Tokens) -> AllRows:
    n = tokens.shape[0]
    model = model.at_length(n)
    x = embedded_rows(model, parameters, tokens, jnp.arange(n))
    apart = model.apart(parameters)
    for group in groups_of(model, apart, n, range(model.layers)):
        stack = group.stacked(apart)

        def one(x: Array, k: Index, group: EqualLayers = group, stack: Stack = stack) -> tuple[Array, None]:
            return group.layer(model, apart, n, stack, k).output(x).astype(x.dtype), None

        x, _ = jax.lax.scan(one, x, group.numbers)
    return x


def embedded_rows(model: Layered, parameters: Any, symbols: Places, positions: Places) -> SomeRows:
    """Returns the first layer's input rows for symbols at positions."""
    return jax.vmap(lambda symbol, i: model.embed(parameters, symbol, i))(symbols, positions)


# Layers that are the same program with other parameters: one trace, and one compilation, serves all in a row.

LARGEST_STACK = 2**24
"""The parameters of a group are copied. Layers with more numbers than this are groups of their own."""

Stack: TypeAlias = tuple[Array, ...]
"""What the layers of a group read of the parameters, layer after layer along the first axis of every array."""


@dataclass(frozen=True)
class EqualLayers:
    """Consecutive layers that are alike, or some of them.

    Attributes:
        start: the number of the first layer that is alike.
        reads: for each layer, the numbers of the leaves of the parameters that it reads, in the same order.
        layers: the numbers of those that are meant.
    """

    start: int
    reads: tuple[tuple[int, ...], ...]
    layers: range

    @property
    def numbers(self) -> Int[Array, " layers"]:
        """The places of its layers in the stack."""
        return jnp.arange(self.layers.start - self.start, self.layers.stop - self.start)

    def within(self, layers: range) -> tuple[EqualLayers, ...]:
        """Returns the group of those of its layers that are among some consecutive ones, or nothing."""
        some = range(max(self.layers.start, layers.start), min(self.layers.stop, layers.stop))
        return (replace(self, layers=some),) if some else ()

    def stacked(self, parameters: Any) -> Stack:
        """Returns what all layers that are alike read: a part of a stack would be a copy of it."""
        leaves = jax.tree.leaves(parameters)
        return tuple(jnp.stack([leaves[i] for i in same]) for same in zip(*self.reads, strict=True))

    def layer(self, model: Layered, parameters: Any, n: int, stack: Stack, place: Index) -> ModelLayer:
        """Returns the layer at a place of the stack."""
        leaves, structure = jax.tree.flatten(parameters)
        for i, stacked in zip(self.reads[0], stack, strict=True):
            leaves[i] = stacked[place]
        return layer_of(model, jax.tree.unflatten(structure, leaves), self.start, n)


def groups_of(model: Layered, parameters: Any, n: int, layers: range) -> tuple[EqualLayers, ...]:
    """Returns the groups of some layers of a model, for inputs of length n, from its parameters, which are `apart`.
    Nothing is compiled."""
    leaves, structure = jax.tree.flatten(parameters)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    groups = _groups_of(model, structure, shapes, n, jnp.result_type(float) == jnp.float64)
    return tuple(part for group in groups for part in group.within(layers))


@cached
def _groups_of(
    model: Layered, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> tuple[EqualLayers, ...]:
    """Compares the traces of layers. `wide` (64-bit types are on) is part of the cache key."""
    parameters, groups = jax.tree.unflatten(structure, shapes), []
    for k in range(model.layers):
        reads, program = _traced(ModelLayer(model, parameters, k, n))
        kind, size = (model.attention(k), program), sum(shapes[i].size for i in reads)
        small = model.stacked or (1 + len(groups[-1][2] if groups else ())) * size <= LARGEST_STACK
        if groups and groups[-1][0] == kind and small:
            groups[-1][2].append(reads)
        else:
            groups.append((kind, k, [reads]))
    return tuple(EqualLayers(k, tuple(reads), range(k, k + len(reads))) for _, k, reads in groups)


def _traced(layer: ModelLayer) -> tuple[tuple[int, ...], Any]:
    """Returns the numbers of the leaves that a layer's maps of one row read, and the maps as text, with constants."""
    model, (leaves, structure) = layer.model, jax.tree.flatten(layer.parameters)
    here = jax.ShapeDtypeStruct((), jnp.int32)

    def maps(leaves: list[Any], x: Array, i: Array) -> Any:
        own = layer_of(model, jax.tree.unflatten(structure, leaves), layer.k, layer.n)
        q, key, value = own.projected(x[None], i[None])
        merged = own.merged(x[None], value.swapaxes(0, 1))
        s = own.scores(i, q[0], key[0], i[None], i[None])
        return q, key, value, merged, s, own.weighting(i).shares(s, s == s)

    row = jax.eval_shape(model.embed, layer.parameters, here, here)
    axes = () if model.mesh is None else tuple(model.mesh.shape.items())
    trace = jax.make_jaxpr(maps, axis_env=axes)(leaves, row, here)
    program, arguments = trace.jaxpr, trace.jaxpr.invars
    used = {id(one) for equation in program.eqns for one in equation.invars} | set(map(id, program.outvars))
    reads = tuple(i for i in range(len(leaves)) if id(arguments[i]) in used)
    # Printing names the arguments in their order: those that layers differ in come last.
    first, others = {id(arguments[i]) for i in reads}, arguments[len(leaves) :]
    unread = [one for one in arguments[: len(leaves)] if id(one) not in first]
    named = program.replace(invars=[*(arguments[i] for i in reads), *others, *unread])
    return reads, (str(named), [np.asarray(constant).tobytes() for constant in trace.consts])


@dataclass(frozen=True, eq=False)
class LayeredModel:
    """A `Layered` and its parameters, as one object: a model for every function of jaxsens.

    Derive a class from it for models that know more about their symbols than their number.

    Attributes:
        layered: the model.
        parameters: its parameters, a pytree of arrays.
    """

    layered: Layered
    parameters: Any

    @property
    def max_length(self) -> int | None:
        """The length of the longest input; None without a limit."""
        return None

    @property
    def reserved(self) -> tuple[int, ...]:
        """The symbols that are not inserted unless they are asked for, sorted, such as a tokenizer's special ones."""
        return ()

    @property
    def special(self) -> tuple[int, ...]:
        """The symbols that are not flipped unless their positions are asked for, sorted; all are `reserved`."""
        return ()

    @property
    def mask(self) -> int | None:
        """The symbol that stands for an unknown one, as models trained with masks have; None without one."""
        return None

    @property
    def unread(self) -> Mapping[int, str]:
        """The symbols that no input may have, and why."""
        return {}

    def embeddings(self) -> Float[np.ndarray, "symbols width"] | None:
        """Returns the rows of the symbols' embeddings, without positions; None if there is no such table."""
        return None

    def tokens(self, ids: Sequence[int]) -> list[str] | None:
        """Returns how to write each symbol; None if the model knows symbols by number only."""
        del ids

    def __call__(self, ids: Int[Array, " n"]) -> Float[Array, "n outputs"]:
        """Returns the output of every row, in O(layers n^2 width) operations.

        Raises:
            InputError: if the input is longer than `max_length`.
        """
        n = np.shape(ids)[0]
        if self.max_length is not None and n > self.max_length:
            raise InputError(
                f"ids of length {n}: the model reads at most {self.max_length} symbols; give a shorter input"
            )
        return rows_of(self.layered, as_arrays(self.parameters), jnp.asarray(ids))
