"""Everything that families of published transformers differ by, and their shared forward pass, row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.base.errors import no_rule, rule_for
from jaxsens.models.parts.masks import SlidingWindow
from jaxsens.models.transformer.layered import Attended, Attention, Index, Layered, Outputs, Row
from jaxsens.pretrained.families.rotation import RotaryAngles, turned

Output = Literal["hidden", "logits"]
"""What is read from a row of the last layer: the row itself, or what the language-model head makes of it."""

NormKind = Literal["layer", "rms"]

Activation = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]

_erf: Activation = partial(jax.nn.gelu, approximate=False)
_tanh: Activation = partial(jax.nn.gelu, approximate=True)


def _quick(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _erf,
    "gelu_python": _erf,
    "gelu_new": _tanh,
    "gelu_pytorch_tanh": _tanh,
    "gelu_python_tanh": _tanh,
    "gelu_accurate": _tanh,
    "gelu_fast": _tanh,  # its constant is sqrt(2 / pi) to ten digits
    "quick_gelu": _quick,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""The activations under the names that `config.json` uses: Gaussian error linear units with erf, with tanh, or with a
sigmoid, and others."""


@dataclass(frozen=True)
class Architecture:
    """A transformer's shape and choices.

    Attributes:
        width: the width of a row, `hidden_size`.
        layers: the number of layers.
        heads: the number of query heads.
        key_heads: the number of heads of keys and values.
        head_width: the width of queries, keys and values.
        hidden: the width between the two matrices of the per-row map.
        symbols: the number of symbols, `vocab_size`.
        longest: the length of the longest input.
        norm: layer normalisation, or root mean square normalisation.
        epsilon: what is added to the variance, or to the mean square.
        norm_first: whether rows are normalised before each of the two maps of a layer; otherwise after each residual.
        activation: a name of `ACTIVATIONS`.
        gated: whether the activation is multiplied by a second map, as in SwiGLU.
        causal: whether the future is masked.
        windows: the width of each layer's sliding window, None for none.
        scales: the factor of each layer's dot products; None for 1 / sqrt(head_width).
        rotary: the angles of rotary positions; None for learned ones.
        position_offset: the number of the first learned position, for families that leave out some.
        token_types: the number of token types; 0 for none. Every symbol has the first.
        embedding_norm: whether embeddings are normalised.
        head_norms: whether each head's queries and keys are normalised.
        attention_bias: whether queries, keys and values have biases.
        output_bias: whether the map after attention has one.
        map_bias: whether the per-row map has biases.
        tied: whether the head's matrix is the embedding.
        head_activation: the activation within the head; None if the head is linear.
    """

    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    symbols: int
    longest: int
    norm: NormKind
    epsilon: float
    norm_first: bool
    activation: str
    gated: bool
    causal: bool
    windows: tuple[int | None, ...]
    scales: tuple[float | None, ...]
    rotary: RotaryAngles | None = None
    position_offset: int = 0
    token_types: int = 0
    embedding_norm: bool = False
    head_norms: bool = False
    attention_bias: bool = True
    output_bias: bool = True
    map_bias: bool = True
    tied: bool = True
    head_activation: str | None = None


@dataclass(frozen=True)
class PublishedTransformer(Layered):
    """The forward pass of every family, for inputs of length n.

    The parameters are a dictionary. A linear map is {"matrix": (in, out)} with or without "bias": (out,); a norm is
    {"scale": (width,)} with or without "shift": (width,).

        embedding: (symbols, width)
        token_types: (1, width), if there are token types: the first of them
        positions: (longest, width), if positions are learned
        embedding_norm: if embeddings are normalised
        layers: for each layer
            query, key, value, output: linear maps
            query_norm, key_norm: norms of each head, if there are any
            attention_norm, map_norm: norms
            up, down, and gate if gated: linear maps
        final_norm: the norm of the last rows, if rows are normalised first
        head, for logits: matrix unless tied; a bias, and transform (a linear map) with norm, if there are

    Attributes:
        architecture: the shape and choices.
        output: "hidden" or "logits".
        n: the length of the input, if the rotary angles depend on it; otherwise 0.
        pooling: the readout that the model's folder names; None for that of its family.
    """

    architecture: Architecture
    output: Output = "hidden"
    n: int = 0
    pooling: int | str | None = None

    @property
    def layers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of layers."""
        return self.architecture.layers

    @property
    def readout(self) -> int | str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the folder's pooling; else the last row if the future is masked, otherwise the first, of [CLS]."""
        if self.pooling is not None:
            return self.pooling
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
        """The layer's heads, mask and scale."""
        a = self.architecture
        window = a.windows[layer]
        mask = "none" if not a.causal else "future" if window is None else SlidingWindow(window)
        return Attention(a.heads, key_heads=a.key_heads, mask=mask, scale=a.scales[layer])

    def at_length(self, n: int) -> PublishedTransformer:
        """The model for inputs of length n: with its rotary angles, and without windows as wide as the input."""
        a = self.architecture
        windows = tuple(None if window is None or window >= n else window for window in a.windows)
        depends = a.rotary is not None and a.rotary.depends_on_length
        return dataclasses.replace(
            self, architecture=dataclasses.replace(a, windows=windows), n=n if depends else 0
        )

    def embed(self, parameters: Any, symbol: Index, position: Index) -> Row:
        """The symbol's embedding, plus the first token type's and the position's, normalised."""
        row = parameters["embedding"][symbol]
        if self.architecture.token_types:
            row = row + parameters["token_types"][0]
        if self.architecture.rotary is None:
            row = row + parameters["positions"][position]
        return self._normed(parameters["embedding_norm"], row) if self.architecture.embedding_norm else row

    def project(self, parameters: Any, layer: int, row: Row, position: Index) -> tuple[Array, Array, Array]:
        """Queries, keys and values of one row."""
        a, own = self.architecture, parameters["layers"][layer]
        z = self._normed(own["attention_norm"], row) if a.norm_first else row
        q, k, v = (
            linear(own[name], z).reshape(heads, a.head_width)
            for name, heads in (("query", a.heads), ("key", a.key_heads), ("value", a.key_heads))
        )
        if a.head_norms:
            q, k = self._normed(own["query_norm"], q), self._normed(own["key_norm"], k)
        if a.rotary is not None:
            q, k = (turned(a.rotary, x, position, self.n) for x in (q, k))
        return q, k, v

    def merge(self, parameters: Any, layer: int, row: Row, attended: Attended) -> Row:
        """Output projection, residuals, normalisation and the per-row map of one row."""
        own = parameters["layers"][layer]
        row = row + linear(own["output"], attended.reshape(-1))
        if self.architecture.norm_first:
            return row + self._mapped(own, self._normed(own["map_norm"], row))
        row = self._normed(own["attention_norm"], row)
        return self._normed(own["map_norm"], row + self._mapped(own, row))

    def read(self, parameters: Any, row: Row) -> Outputs:
        """The row after the final normalisation, or the logits of the language-model head."""
        if self.architecture.norm_first:
            row = self._normed(parameters["final_norm"], row)
        match self.output:
            case "hidden":
                return row
            case "logits":
                return self._logits(parameters, row)
            case _:
                raise no_rule("read", "output", self.output, ("hidden", "logits"))

    def _logits(self, parameters: Any, row: Array) -> Array:
        head, activation = parameters.get("head", {}), self.architecture.head_activation
        if activation is not None:
            row = _activated(activation, linear(head["transform"], row))
            row = self._normed(head["norm"], row)
        matrix = parameters["embedding"].T if self.architecture.tied else head["matrix"]
        return linear({**head, "matrix": matrix}, row)

    def _mapped(self, own: Any, z: Array) -> Array:
        up = linear(own["up"], z)
        if self.architecture.gated:
            return linear(own["down"], _activated(self.architecture.activation, linear(own["gate"], z)) * up)
        return linear(own["down"], _activated(self.architecture.activation, up))

    def _normed(self, own: Any, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
        """Returns x, normalised along its last axis."""
        epsilon = jnp.asarray(self.architecture.epsilon, x.dtype)
        if self.architecture.norm == "layer":
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * own["scale"]
        return normed + own["shift"] if "shift" in own else normed


def linear(own: Any, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """Returns x @ matrix, plus the bias if there is one."""
    y = x @ own["matrix"]
    return y + own["bias"] if "bias" in own else y


def _activated(name: str, x: Array) -> Array:
    return rule_for("the forward pass", "activation", name, ACTIVATIONS)(x)
