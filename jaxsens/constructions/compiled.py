"""A constructed transformer: an ordinary model that also knows what it computes and how far it is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from jaxsens.constructions.conditions import Read
from jaxsens.constructions.exactness import exact_length
from jaxsens.constructions.network import Head, Network
from jaxsens.errors import InputError
from jaxsens.models.config import TransformerConfig
from jaxsens.models.parameters import TransformerParameters
from jaxsens.models.transformer import Transformer
from jaxsens.models.weighting import Softmax, Weighting
from jaxsens.precision import DTYPES


@dataclass(frozen=True)
class Promise:
    """What a constructed transformer computes, by which theorem, and what it is made of.

    Attributes:
        text: the formula, as it is printed, or the construction's name.
        condition: the condition it was compiled in.
        autoregressive: whether every layer is future-masked and nothing in it depends on n.
        theorem: the statement of Yang et al. (2024) that gives the network.
        table_row: the row of their table of results: which logic.
        exact: whether it is promised to equal the formula, at every position of every word up to `exact_length`.
        temperature: tau(n), of every head.
        components: the position embeddings.
        bounded: whether all of these stay bounded as n grows.
        layers, heads, width, feed_forward: sizes; `heads` is the sum over layers, `feed_forward` the largest layer's.
        idle_heads: layers that need no attention: the model has one head of zeros in each, which `heads` leaves out.
        exact_length: the n up to which rounding is predicted to change nothing, in float32 and in float64.
    """

    text: str
    condition: str
    autoregressive: bool
    theorem: str
    table_row: str
    exact: bool
    temperature: str = "1"
    components: tuple[str, ...] = ()
    bounded: bool = True
    layers: int = 0
    heads: int = 0
    width: int = 0
    feed_forward: int = 0
    idle_heads: int = 0
    exact_length: tuple[tuple[str, int], ...] = ()

    def exact_to(self, dtype: str) -> int:
        """The length up to which rounding in this dtype, "float32" or "float64", is predicted to change no output."""
        known = dict(self.exact_length)
        if dtype not in tuple(known):
            raise InputError(f"exact_to: dtype = {dtype!r}: one of {', '.join(known)}")
        return known[dtype]

    def __str__(self) -> str:
        exact = ", ".join(f"{n} in {dtype}" for dtype, n in self.exact_length)
        heads = _counted(self.heads, "head") + (f" and {self.idle_heads} idle" if self.idle_heads else "")
        return "\n".join(
            (
                f"{self.text}",
                f"  condition    {self.condition}{', autoregressive' if self.autoregressive else ''}",
                f"  by           {self.theorem} (table row {self.table_row})",
                f"  temperature  {self.temperature}",
                f"  embeddings   {', '.join(self.components) or 'none'} ({'' if self.bounded else 'un'}bounded)",
                f"  size         {_counted(self.layers, 'layer')}, {heads}, width {self.width}, "
                f"at most {self.feed_forward} hidden units",
                f"  exact to     {exact if self.exact else 'nothing is promised'}",
            )
        )


class CompiledTransformer(Transformer):
    """A transformer with hand-made weights over named symbols.

    Attributes:
        alphabet: the symbols; token t is alphabet[t].
        output: the coordinate that holds 1 where the formula is true and 0 where it is not.
        outputs: the coordinates that `flip_sensitivity` measures by default; None for all.
        exact_outputs: those that are promised to be 0 or 1 exactly: the output, or none in the control.
        heads: what the heads of every layer do, and how far each may be from hard attention.
        promise: what it computes.
        exact_length: `promise.exact_length` of its own dtype, beyond which `flip_sensitivity` warns; None where nothing
            is promised.
    """

    def __init__(
        self,
        config: TransformerConfig,
        parameters: TransformerParameters,
        alphabet: tuple[str, ...],
        output: int,
        outputs: tuple[int, ...] | None,
        heads: tuple[tuple[Head, ...], ...],
        promise: Promise,
    ) -> None:
        super().__init__(config, parameters=parameters)
        self.alphabet = alphabet
        self.output = output
        self.outputs = outputs
        self.exact_outputs: tuple[int, ...] = (output,) if promise.exact else ()
        self.heads = heads
        self.promise = promise
        self.exact_length = promise.exact_to(config.dtype) if promise.exact else None

    def encode(self, word: Sequence[str]) -> Int[np.ndarray, " n"]:
        """The tokens of a word: a string of one-letter symbols, or a sequence of symbols.

        Raises:
            InputError: naming everything in it that is no symbol of the alphabet.
        """
        if not isinstance(word, Iterable):
            raise InputError(
                f"encode: word = {word!r}: a text, or a list of symbols of {list(self.alphabet)}"
            )
        given = list(word)
        numbers = {symbol: token for token, symbol in enumerate(self.alphabet)}
        unknown = dict.fromkeys(
            repr(each) for each in given if not (isinstance(each, str) and each in numbers)
        )
        if unknown:
            raise InputError(
                f"encode: word has {', '.join(unknown)}: give symbols of the alphabet {list(self.alphabet)}; tokens go "
                "to the model as they are"
            )
        return np.array([numbers[symbol] for symbol in given], np.int32)

    def accepts(self, word: Sequence[str] | Int[np.ndarray, "*batch n"]) -> Any:
        """Whether the output at the last position of a word, or of its tokens, is nearer to 1 than to 0.

        A bool; of a batch of tokens an array of them.

        Raises:
            InputError: for what is neither a word over the alphabet nor tokens.
        """
        try:
            given = np.asarray(word)
        except ValueError:  # rows of different lengths
            given = np.asarray(None)
        tokens = given if given.dtype.kind in "iu" else self.encode(word)  # pyright: ignore[reportArgumentType]
        near = np.asarray(self(tokens))[..., self.output] > 0.5
        return bool(near) if near.ndim == 0 else near


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def designated(network: Network, output: int, read: Read) -> tuple[int, ...] | None:
    """The coordinates measured by default."""
    if read == "everything":
        return None
    return (output,) if read == "output" else network.read_by_rounding(output)


def make(
    network: Network,
    weighting: Weighting,
    dtype: Literal["float32", "float64"],
    output: int,
    outputs: tuple[int, ...] | None,
    promise: Promise,
) -> CompiledTransformer:
    """The model of a finished network; fills in what the promise says of its size."""
    # The control's scores are bounded: plain products keep their digits, and every engine can measure it.
    centred = dtype == "float32" and promise.exact
    idle_mask = "future" if promise.autoregressive else "none"
    config, parameters = network.build(weighting, dtype, centred_scores=centred, idle_mask=idle_mask)
    heads = [head for layer in network.heads for head in layer]
    told = replace(
        promise,
        temperature=_temperature(weighting),
        components=tuple(term.label for term in network.terms),
        bounded=config.bounded,
        layers=config.layers,
        heads=len(heads),
        width=config.width,
        idle_heads=sum(not layer for layer in network.heads),
        feed_forward=max((config.layer(k).feed_forward for k in range(config.layers)), default=0),
        exact_length=tuple(
            (kind, exact_length(heads, network.sums, promise.condition, promise.autoregressive, kind))
            for kind in DTYPES
        ),
    )
    return CompiledTransformer(config, parameters, network.alphabet, output, outputs, network.heads, told)


def _temperature(weighting: Weighting) -> str:
    if not isinstance(weighting, Softmax):
        return f"none: {type(weighting).__name__}"
    inverse = str(weighting.inverse_temperature)
    if inverse == "1":
        return "1"
    return f"1/{inverse}" if weighting.by == "length" else f"1/{inverse.replace('n', 'i')}"
