"""Frozen, validated configs of the baselines: LSTM, simple RNN, convolution."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.strict import OptionalPositive, Positive, checked_by, config, later
from jaxsens.core.models.parts.initialisation import FAN_IN
from jaxsens.core.models.transformer.config import Drawn, Dtype, NetworkConfig, ReadoutPlace


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

    With x_i the layer's input, h_0 = c_0 = 0 and s the logistic function:
    c_i = s(f) c_(i-1) + s(g) tanh(u), h_i = s(o) tanh(c_i), where g, f, u, o = x_i W + h_(i-1) U + b, each with
    its own W, U and b. Attributes as in `RecurrentConfig`.
    """

    kind: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4


@config
class RNNConfig(RecurrentConfig):
    """L layers of the simple recurrent network (Elman, 1990): h_i = tanh(x_i W + h_(i-1) U + b), h_0 = 0.

    Attributes as in `RecurrentConfig`.
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
