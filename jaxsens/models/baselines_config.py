"""What the baselines are built from: frozen, validated configs of the LSTM, the simple RNN and the convolution."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxsens.errors import Faults
from jaxsens.inputs import is_count, keep_plain
from jaxsens.precision import DTYPES


@dataclass(frozen=True)
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
        InputError: listing every fault at once.
    """

    alphabet_size: int
    width: int = 64
    layers: int = 1
    logits: int | None = None
    end_symbol: bool = True
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        keep_plain(self, *(field.name for field in dataclasses.fields(self)))
        faults = Faults(type(self).__name__)
        self._check(faults)
        faults.raise_if_any()

    def _check(self, faults: Faults) -> None:
        for name, least in (("alphabet_size", 2), ("width", 1), ("layers", 1)):
            _check_count(faults, name, getattr(self, name), least)
        if self.logits is not None and not is_count(self.logits, 1):
            faults.add("logits", self.logits, "a whole number of at least 1, or None")
        if not isinstance(self.end_symbol, bool):
            faults.add("end_symbol", self.end_symbol, "True or False")
        if self.dtype not in DTYPES:
            faults.add("dtype", self.dtype, f"one of {', '.join(DTYPES)}")

    @property
    def end_of_sequence(self) -> int | None:
        """The end-of-sequence symbol's id, `alphabet_size`, or None if the alphabet has none."""
        return self.alphabet_size if self.end_symbol else None

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: the alphabet and the end-of-sequence symbol."""
        return self.alphabet_size + int(self.end_symbol)

    def replace(self, **changes: Any) -> BaselineConfig:
        """A copy with some fields changed; validated anew."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class RecurrentConfig(BaselineConfig):
    """What LSTM and simple RNN have in common: the readout.

    Attributes:
        readout: "last", a 0-based position, or "mean" over positions.
    """

    gates: ClassVar[int]

    readout: int | Literal["last", "mean"] = "last"

    def _check(self, faults: Faults) -> None:
        super()._check(faults)
        if self.readout not in ("last", "mean") and not is_count(self.readout, 0):
            faults.add("readout", self.readout, 'a 0-based position, "last" or "mean"')


@dataclass(frozen=True)
class LSTMConfig(RecurrentConfig):
    """L layers of long short-term memory (Hochreiter and Schmidhuber, 1997; forget gates by Gers et al., 2000).

    With x_i the layer's input, h_0 = c_0 = 0 and s the logistic function:
    c_i = s(f) c_(i-1) + s(g) tanh(u), h_i = s(o) tanh(c_i), where g, f, u, o = x_i W + h_(i-1) U + b, each with
    its own W, U and b. Attributes as in `RecurrentConfig`.
    """

    gates: ClassVar[int] = 4


@dataclass(frozen=True)
class RNNConfig(RecurrentConfig):
    """L layers of the simple recurrent network (Elman, 1990): h_i = tanh(x_i W + h_(i-1) U + b), h_0 = 0.

    Attributes as in `RecurrentConfig`.
    """

    gates: ClassVar[int] = 1


@dataclass(frozen=True)
class ConvolutionConfig(BaselineConfig):
    """L layers of one-dimensional convolution with ReLU, then the average over positions and a linear map.

    Hahn (2020) names convolution with average pooling as falling under the same bound as attention: a
    flip reaches at most L (kernel_width - 1) + 1 of n positions, so the average moves by O(1/n).

    Attributes:
        kernel_width: positions a layer looks at, of which (kernel_width - 1) // 2 lie to the left. Stride 1;
            beyond the ends are zeros, so that every layer has n positions.
    """

    kernel_width: int = 3

    def _check(self, faults: Faults) -> None:
        super()._check(faults)
        _check_count(faults, "kernel_width", self.kernel_width, 1)

    @property
    def readout(self) -> Literal["mean"]:
        """The average over positions: there is no readout position to leave out of the flips."""
        return "mean"


def _check_count(faults: Faults, name: str, value: object, least: int) -> None:
    if not is_count(value, least):
        faults.add(name, value, f"a whole number of at least {least}")
