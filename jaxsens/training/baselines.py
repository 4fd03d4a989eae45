"""Baselines: LSTM, simple RNN, and convolution with average pooling, each with its frozen, validated config and as
a Flax NNX module; and a simple RNN for PARITY whose weights are set by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import no_rule, rule_for
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.strict import OptionalPositive, Positive, checked_by, config, later
from jaxsens.core.models.parts import initialisation
from jaxsens.core.models.parts.initialisation import FAN_IN
from jaxsens.core.models.transformer.config import Drawn, Dtype, NetworkConfig, ReadoutPlace
from jaxsens.core.models.transformer.module import Network
from jaxsens.core.models.transformer.parameters import on_device
from jaxsens.formal.languages import Parity


@config
class BaselineConfig(NetworkConfig):
    """Base class of the baselines' configs; use one of its subclasses.

    Attributes:
        alphabet_size: symbols 0 .. alphabet_size - 1.
        width: d, the size of embeddings and of every layer.
        layers: L, the number of layers.
        logits: the number of outputs of a linear head; None returns the output of size d itself.
        end_symbol: whether the embedding has a row for an end-of-sequence symbol, id `alphabet_size`.
        dtype: "float32" or "float64", for parameters and all arithmetic.
        initialisation: how random weights are distributed: "fan-in" (see `initialise`), or
            `jaxsens.core.models.parts.initialisation.Uniform(bound)` or `Normal(deviation)` for all of them alike.

    Raises:
        InputError: listing every error.
    """

    alphabet_size: Annotated[int, checked_by(inputs.count, least=2)]
    width: Positive = 64
    layers: Annotated[int, checked_by(inputs.count, least=1, most=inputs.MOST_LAYERS)] = 1
    logits: OptionalPositive = None
    end_symbol: bool = True
    dtype: Dtype = "float32"
    initialisation: Drawn = later(FAN_IN)

    @property
    def parameter_count(self) -> int:
        """The number of parameters of embeddings and matrices: nearly all."""
        d = self.width
        return (self.vocabulary_size + (self.logits or 0)) * d + self.layers * self._matrices * d * d

    @property
    def _matrices(self) -> int:
        """The number of matrices (width, width) of a layer."""
        raise no_rule("parameter_count", "config", self)


@config
class RecurrentConfig(BaselineConfig):
    """Base class of the LSTM and simple RNN configs, with the readout.

    Attributes:
        readout: "last", a 0-based position, or "mean" over positions.
    """

    gates: ClassVar[int]

    @property
    def _matrices(self) -> int:
        return 2 * self.gates

    readout: ReadoutPlace = "last"


@config
class LSTMConfig(RecurrentConfig):
    """L layers of long short-term memory (Hochreiter and Schmidhuber, 1997; forget gates by Gers et al., 2000).

    With x_i the layer's input, h_0 = c_0 = 0 and s the logistic function: c_i = s(f) c_(i-1) + s(g) tanh(u) and
    h_i = s(o) tanh(c_i), where each of g, f, u, o is x_i W + h_(i-1) U + b. Attributes as in `RecurrentConfig`.

    >>> LSTM(LSTMConfig(2, width=8, layers=2), seed=0)(np.array([0, 1, 1])).shape
    (8,)
    """

    kind: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4


@config
class RNNConfig(RecurrentConfig):
    """L layers of the simple recurrent network (Elman, 1990): h_i = tanh(x_i W + h_(i-1) U + b), h_0 = 0.

    Attributes as in `RecurrentConfig`.

    >>> RNN(RNNConfig(2, width=8, logits=2), seed=0)(np.array([0, 1, 1])).shape
    (2,)
    """

    kind: ClassVar[str] = "rnn"
    gates: ClassVar[int] = 1


@config
class ConvolutionConfig(BaselineConfig):
    """L layers of one-dimensional convolution with ReLU, then the average over positions and a linear map.

    Hahn (2020) notes that the bound for attention also holds for convolution with average pooling: a flip
    reaches at most L (kernel_width - 1) + 1 of n positions, so the average changes by O(1/n).

    Attributes:
        kernel_width: the number of positions in a window, of which (kernel_width - 1) // 2 lie to the left. The stride
            is 1, with zero padding, so that every layer has n positions.

    >>> Convolution(ConvolutionConfig(2, width=8, kernel_width=5), seed=0)(np.array([0, 1, 1])).shape
    (8,)
    """

    kind: ClassVar[str] = "convolution"

    kernel_width: Positive = 3

    @property
    def _matrices(self) -> int:
        return self.kernel_width

    @property
    def readout(self) -> Literal["mean"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The average over positions: no readout position is excluded from the flips."""
        return "mean"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RecurrentLayer:
    """One layer of an LSTM (gates in the order input, forget, update, output) or of a simple RNN (one gate)."""

    input: Float[Array, "gates width width"]
    recurrent: Float[Array, "gates width width"]
    bias: Float[Array, "gates width"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConvolutionLayer:
    """One convolution: a matrix for each place in the window, from left to right, and a bias."""

    kernel: Float[Array, "kernel_width width width"]
    bias: Float[Array, " width"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BaselineParameters:
    """All parameters. `output` and its bias form the linear map after the average pooling; None without one."""

    embedding: Float[Array, "vocabulary width"]
    layers: tuple[RecurrentLayer, ...] | tuple[ConvolutionLayer, ...]
    output: Float[Array, "width width"] | None
    output_bias: Float[Array, " width"] | None
    head: Float[Array, "width logits"] | None
    head_bias: Float[Array, " logits"] | None


def initialise(config: BaselineConfig, seed: int) -> BaselineParameters:
    """Returns random parameters of `config`, in its dtype, drawn as for transformers (see `initialisation`).

    A matrix has independent N(0, 1/m) entries, where m is the number of inputs to one output: 2d for the input and
    recurrent matrices of a recurrent layer, whose products are added, and d for the linear maps. The convolution's
    kernels, which precede a ReLU, have N(0, 2/m) with m = kernel_width d. Embeddings have N(0, 1). Biases are 0, except
    for 1 in an LSTM's forget gates, so that it remembers from the start (Jozefowicz et al., 2015). With another
    `config.initialisation` all matrices and embeddings are drawn from the same distribution.
    """

    def normal(name: str, shape: tuple[int, ...], variance: float) -> Array:
        drawn = initialisation.draw(config.initialisation, seed, name, shape, variance, config.dtype)
        return on_device(drawn)

    d, pooled = config.width, isinstance(config, ConvolutionConfig)

    def recurrent(k: int, gates: int) -> RecurrentLayer:
        bias = np.zeros((gates, d), config.dtype)
        if isinstance(config, LSTMConfig):
            bias[1] = 1
        return RecurrentLayer(
            input=normal(f"layer{k}.input", (gates, d, d), 1 / (2 * d)),
            recurrent=normal(f"layer{k}.recurrent", (gates, d, d), 1 / (2 * d)),
            bias=on_device(bias),
        )

    def convolution(k: int, window: int) -> ConvolutionLayer:
        kernel = normal(f"layer{k}.kernel", (window, d, d), 2 / (window * d))
        return ConvolutionLayer(kernel, on_device(np.zeros(d, config.dtype)))

    with numerics(config.dtype):
        if isinstance(config, ConvolutionConfig):
            layers: Any = tuple(convolution(k, config.kernel_width) for k in range(config.layers))
        elif isinstance(config, RecurrentConfig):
            layers = tuple(recurrent(k, config.gates) for k in range(config.layers))
        else:
            raise no_rule("a baseline", "config", config, (LSTMConfig, RNNConfig, ConvolutionConfig))
        return BaselineParameters(
            embedding=normal("embedding", (config.vocabulary_size, d), 1.0),
            layers=layers,
            output=normal("output", (d, d), 1 / d) if pooled else None,
            output_bias=on_device(np.zeros(d, config.dtype)) if pooled else None,
            head=None if config.logits is None else normal("head", (d, config.logits), 1 / d),
            head_bias=None if config.logits is None else on_device(np.zeros(config.logits, config.dtype)),
        )


def lstm_layer(parameters: RecurrentLayer, x: Float[Array, "n width"]) -> Float[Array, "n width"]:
    """Returns the hidden states h_1 .. h_n of one LSTM layer, in n sequential steps of O(width^2)."""
    driven = jnp.einsum("nd,gde->nge", x, parameters.input) + parameters.bias

    def step(state: tuple[Array, Array], drive: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        gates = drive + jnp.einsum("d,gde->ge", hidden, parameters.recurrent)
        admitted, kept, shown = (jax.nn.sigmoid(gates[gate]) for gate in (0, 1, 3))
        cell = kept * cell + admitted * jnp.tanh(gates[2])
        hidden = shown * jnp.tanh(cell)
        return (hidden, cell), hidden

    zero = jnp.zeros(x.shape[1], x.dtype)
    return jax.lax.scan(step, (zero, zero), driven)[1]


def rnn_layer(parameters: RecurrentLayer, x: Float[Array, "n width"]) -> Float[Array, "n width"]:
    """Returns the hidden states h_1 .. h_n of one simple recurrent layer, in n sequential steps of O(width^2)."""
    driven = x @ parameters.input[0] + parameters.bias[0]

    def step(hidden: Array, drive: Array) -> tuple[Array, Array]:
        hidden = jnp.tanh(drive + hidden @ parameters.recurrent[0])
        return hidden, hidden

    return jax.lax.scan(step, jnp.zeros(x.shape[1], x.dtype), driven)[1]


def convolution_layer(parameters: ConvolutionLayer, x: Float[Array, "n width"]) -> Float[Array, "n width"]:
    """relu(sum_w x_(i + w - left) K_w + b) at every position i, with x = 0 beyond its ends. O(n width^2) per place."""
    window, n = parameters.kernel.shape[0], x.shape[0]
    left = (window - 1) // 2
    padded = jnp.pad(x, ((left, window - 1 - left), (0, 0)))
    total = sum(padded[w : w + n] @ parameters.kernel[w] for w in range(window))
    return jax.nn.relu(total + parameters.bias)


LAYERS: dict[str, Callable[[Any, Array], Array]] = {
    "lstm": lstm_layer, "rnn": rnn_layer, "convolution": convolution_layer,
}  # fmt: skip


def activations(
    config: BaselineConfig, parameters: BaselineParameters, tokens: Int[Array, " n"]
) -> Float[Array, "n width"]:
    """Returns the last layer at every position, before any pooling."""
    x, through = parameters.embedding[tokens], rule_for("a baseline", "kind", config.kind, LAYERS)
    for layer in parameters.layers:
        x = through(layer, x)
    return x


def apply(
    config: BaselineConfig, parameters: BaselineParameters, tokens: Int[Array, " n"]
) -> Float[Array, " outputs"]:
    """Returns the model's output on one input: the readout of `activations`, through any linear maps."""
    y = activations(config, parameters, tokens)
    readout = config.readout
    row = jnp.mean(y, axis=0) if readout == "mean" else y[-1 if readout == "last" else int(readout)]
    if parameters.output is not None and parameters.output_bias is not None:
        row = row @ parameters.output + parameters.output_bias
    if parameters.head is not None and parameters.head_bias is not None:
        row = row @ parameters.head + parameters.head_bias
    return row


Kind = TypeVar("Kind", bound=BaselineConfig)


class Baseline(Network[Kind, BaselineParameters]):
    """Base class of the baselines; use one of its subclasses.

    `model(tokens)` is the output of shape (width,), or (logits,) with a linear head; `model.activations(tokens)` is
    the last layer at every position. Tokens are integers below `config.vocabulary_size`, with an optional leading batch
    axis. `parameters`, if given, replace the random ones; their shapes must match the config.
    """

    drawn = staticmethod(initialise)
    shaped = staticmethod(partial(initialise, seed=0))
    output_of = staticmethod(apply)
    rows_of = staticmethod(activations)


class LSTM(Baseline[LSTMConfig]):
    """The LSTM described by an `LSTMConfig`, with random parameters from `seed` (see `initialise`).

    >>> import numpy as np
    >>> LSTM(LSTMConfig(2, width=8), seed=0)(np.array([0, 1, 1])).shape
    (8,)
    """

    of = LSTMConfig


class RNN(Baseline[RNNConfig]):
    """The simple RNN described by an `RNNConfig`, with random parameters from `seed` (see `initialise`).

    >>> import numpy as np
    >>> RNN(RNNConfig(2, width=8), seed=0)(np.array([0, 1, 1])).shape
    (8,)
    """

    of = RNNConfig


class Convolution(Baseline[ConvolutionConfig]):
    """The convolution described by a `ConvolutionConfig`, with random parameters from `seed` (see `initialise`).

    >>> import numpy as np
    >>> Convolution(ConvolutionConfig(2, width=8), seed=0)(np.array([0, 1, 1])).shape
    (8,)
    """

    of = ConvolutionConfig


_STEEPNESS = 64.0
NEVER = -40.0
"""The logit of an impossible outcome. exp(-40) = 4e-18 is below what float64 resolves next to 1."""


def exact_parity_rnn(end_probability: float = 0.1, dtype: Dtype = "float64") -> RNN:
    """The hand-set RNN of width 2 that predicts the next symbol of PARITY as well as possible, at every length.

    Two saturated units a_1, a_2 in {-1, 1} hold the state s, the parity of the 1s so far, as s = (a_1 - a_2)/2. Let x
    be 1 for the symbol 1 and 0 otherwise. The exclusive or of s and x is [s + x >= 1] - [s + x >= 2], so the state is
    updated by

        a_1 <- tanh(B (s + x - 1/2)),   a_2 <- tanh(B (s + x - 3/2)).

    For B = 64 the arguments are at least 32 from 0, where tanh rounds to 1 or -1 in float32 and in float64. The state
    is therefore exact, and flips with every 1, at any length. The network starts from a_1 = a_2 = 0, which is s = 0;
    the boundary symbol has x = 0 and sets the units. The logits are linear in s: the logarithms of the law of the next
    symbol in the even and in the odd state. In the odd state the end is impossible, and has `NEVER` in place of minus
    infinity. That number decides how far a 1 moves the logits, so only one fact about this distance has a meaning: it
    is the same at every length.

    It reads the boundary symbol, number 2, and then the word, like a model trained for prediction. Its cross-entropy is
    `Parity(end_probability).optimal_cross_entropy(n)` up to rounding.

    Raises:
        InputError: If `end_probability` is not between 0 and 1, or `dtype` is neither "float32" nor "float64".
    """
    p = Parity(end_probability).end_probability
    config = RNNConfig(alphabet_size=2, width=2, layers=1, logits=3, end_symbol=True, dtype=dtype)
    even = [math.log((1 - p) / 2), math.log((1 - p) / 2), math.log(p)]
    odd = [math.log(1 / 2), math.log(1 / 2), NEVER]
    with numerics(dtype):
        array = partial(jnp.array, dtype=dtype)
        change = (array(odd) - array(even)) / 2
        # The first coordinate of the embedding is x; both units see B x + (a_1 - a_2) B/2.
        layer = RecurrentLayer(
            input=_STEEPNESS * array([[[1, 1], [0, 0]]]),
            recurrent=_STEEPNESS / 2 * array([[[1, 1], [-1, -1]]]),
            bias=_STEEPNESS * array([[-0.5, -1.5]]),
        )
        parameters = BaselineParameters(
            embedding=array([[0, 0], [1, 0], [0, 0]]),
            layers=(layer,),
            output=None,
            output_bias=None,
            head=jnp.stack([change, -change]),
            head_bias=array(even),
        )
    return RNN(config, parameters=parameters)
