"""What the baselines are built from: frozen, validated configs of the LSTM, the simple RNN and the convolution."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from jaxsens import inputs
from jaxsens.strict import OptionalPositive, Positive, checked_by, config

Dtype = Literal["float32", "float64"]
"""Of parameters and of all arithmetic."""

ReadoutPlace = Annotated[int | Literal["last", "mean"], checked_by(inputs.config_readout)]
"""Where a network reads its output: "last", a 0-based position, or "mean" over positions."""


@config
class BaselineConfig:
    """What all baselines have in common; build one of its subclasses.

    Attributes:
        alphabet_size: symbols 0 .. alphabet_size - 1.
        width: d, the size of embeddings and of every layer.
        layers: L.
        logits: outputs of a linear head on the output; None returns the output of size d itself.
        end_symbol: whether the embedding has a row for an end-of-sequence symbol, id `alphabet_size`.
        dtype: "float32" or "float64", of parameters and of all arithmetic.

    Raises:
        InputError: listing every error at once.
    """

    alphabet_size: Annotated[int, checked_by(inputs.count, least=2)]
    width: Positive = 64
    layers: Positive = 1
    logits: OptionalPositive = None
    end_symbol: bool = True
    dtype: Dtype = "float32"

    @property
    def end_of_sequence(self) -> int | None:
        """The end-of-sequence symbol's id, `alphabet_size`, or None if the alphabet has none."""
        return self.alphabet_size if self.end_symbol else None

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: the alphabet and the end-of-sequence symbol."""
        return self.alphabet_size + int(self.end_symbol)

    def replace(self, **changes: Any) -> BaselineConfig:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


@config
class RecurrentConfig(BaselineConfig):
    """What LSTM and simple RNN have in common: the readout.

    Attributes:
        readout: "last", a 0-based position, or "mean" over positions.
    """

    gates: ClassVar[int]

    readout: ReadoutPlace = "last"


@config
class LSTMConfig(RecurrentConfig):
    """L layers of long short-term memory (Hochreiter and Schmidhuber, 1997; forget gates by Gers et al., 2000).

    With x_i the layer's input, h_0 = c_0 = 0 and s the logistic function:
    c_i = s(f) c_(i-1) + s(g) tanh(u), h_i = s(o) tanh(c_i), where g, f, u, o = x_i W + h_(i-1) U + b, each with
    its own W, U and b. Attributes as in `RecurrentConfig`.
    """

    gates: ClassVar[int] = 4


@config
class RNNConfig(RecurrentConfig):
    """L layers of the simple recurrent network (Elman, 1990): h_i = tanh(x_i W + h_(i-1) U + b), h_0 = 0.

    Attributes as in `RecurrentConfig`.
    """

    gates: ClassVar[int] = 1


@config
class ConvolutionConfig(BaselineConfig):
    """L layers of one-dimensional convolution with ReLU, then the average over positions and a linear map.

    Hahn (2020) names convolution with average pooling as falling under the same bound as attention: a
    flip reaches at most L (kernel_width - 1) + 1 of n positions, so the average moves by O(1/n).

    Attributes:
        kernel_width: positions a layer looks at, of which (kernel_width - 1) // 2 lie to the left. Stride 1;
            beyond the ends are zeros, so that every layer has n positions.
    """

    kernel_width: Positive = 3

    @property
    def readout(self) -> Literal["mean"]:
        """The average over positions: there is no readout position to leave out of the flips."""
        return "mean"
