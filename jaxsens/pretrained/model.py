"""A published model with its weights and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.vmap import compiled_output
from jaxsens.core.models.adapters import LayeredApply
from jaxsens.core.models.transformer.layered import LayeredModel, rows_of
from jaxsens.pretrained.families.architecture import Architecture, PublishedTransformer, widened
from jaxsens.pretrained.tokenizer import FolderTokenizer


@dataclass(frozen=True, eq=False)
class DescribedModel(LayeredModel):
    """A transformer with its architecture and weights, made by `jaxsens.from_weights`: a model for every function of
    jaxsens. `model(ids)` returns the output of every row.

    Attributes:
        layered, parameters: the forward pass, and its weights, a dictionary of arrays of `dtype`.

    >>> jaxsens.flip_sensitivity(jaxsens.from_weights(architecture, weights), [3, 1, 4])  # doctest: +SKIP
    """

    layered: PublishedTransformer
    parameters: Any

    @property
    def architecture(self) -> Architecture:
        """The shape and the choices of the model."""
        return self.layered.architecture

    @property
    def dtype(self) -> str:
        """What is computed in: "float64" if the weights are, otherwise "float32"."""
        return "float64" if self.parameters["embedding"].dtype == np.float64 else "float32"

    @property
    def max_length(self) -> int:
        return self.architecture.longest

    @property
    def unread(self) -> Mapping[int, str]:
        one = self.architecture.unread
        return {} if one is None else {one: "it changes all rows, says the architecture; give another symbol"}

    def embeddings(self) -> Float[np.ndarray, "symbols width"]:
        """Returns the embeddings of the symbols, without positions, token types and normalisation."""
        with numerics(self.dtype):
            return np.asarray(widened(self.parameters["embedding"]))

    def __call__(self, ids: Sequence[int] | ArrayLike) -> Float[Array, "n outputs"]:
        """Returns every row's output: (n, width), or (n, symbols) of logits, or (n, labels). Compiled once per length.

        Raises:
            InputError: for an input that is no list of ids, too long, with ids that the model does not read, or with
                padding in a family that does not count it.
        """
        checked = self._checked("model", ids)
        with collecting("model") as problems:
            if not checked:
                problems.add("ids", checked, "give at least one")
            if len(checked) > self.max_length:
                problems.add("ids", f"{len(checked)} ids", f"the model reads at most {self.max_length}")
            for symbol in sorted(self.unread.keys() & set(checked)):
                problems.add("ids", symbol, self.unread[symbol])
        with numerics(self.dtype):
            return _rows(self.layered, self.parameters, jnp.asarray(checked, jnp.int32))

    def _checked(self, subject: str, ids: Any, name: str = "ids") -> list[int]:
        with collecting(subject) as problems:
            found = inputs.whole_numbers(ids)
            if found is not None and found.ndim == 1 and found.size:
                inputs.check_ids(name, found, self.architecture.symbols, problems)
            elif (given := inputs.array_of(ids)).shape != (0,) or given.dtype == object:
                problems.add(name, ids, "a list of whole numbers, such as the output of `encode`")
        return [] if found is None else [int(one) for one in found]


@dataclass(frozen=True, eq=False)
class PretrainedModel(DescribedModel):
    """A published model, made by `jaxsens.load_pretrained`: a model for every function of jaxsens.

    `model(ids)` returns the output of every row; `flip_sensitivity(model, model.encode(text))` measures that of the
    row that `readout` selects: by default the last one of a decoder, and the first of an encoder, [CLS], or what the
    folder's 1_Pooling/config.json names.
    No special tokens are added to ids: `encode` adds them to a text.

    >>> model = jaxsens.load_pretrained("all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> model(model.encode("the cat sat")).shape  # doctest: +SKIP

    Attributes:
        layered, parameters: the forward pass, and its weights, a dictionary of arrays of `dtype`.
        tokenizer, family, folder: the folder's, its `model_type`, and where it was read from.
        name: its name at the hub if the folder is in the hub's cache, otherwise the path that was given.
        padding: the id that the family leaves out when it counts positions; None if it counts all.
        labels: the names of a classifier's labels, by the number of the output; empty for other outputs.
    """

    tokenizer: FolderTokenizer
    family: str
    folder: Path
    name: str
    padding: int | None = None
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        a, output = self.architecture, self.layered.output
        kept = ", weights='bfloat16'" if self.parameters["embedding"].dtype == np.uint16 else ""
        return (
            f"PretrainedModel({self.family!r}, layers={a.layers}, width={a.width}, symbols={a.symbols}, "
            f"max_length={a.longest}, output={output!r}, dtype={self.dtype!r}{kept}, folder={str(self.folder)!r})"
        )

    @property
    def description(self) -> str:
        """The family, the shape and the output, in a line."""
        a, output = self.architecture, self.layered.output
        what = {"hidden": "hidden rows", "logits": "logits", "labels": "scores of labels"}[output]
        return f"{self.family}, {a.layers} layers, width {a.width}; {what}"

    @property
    def special(self) -> tuple[int, ...]:
        """The ids that the tokenizer marks as special, such as those of [CLS] and [MASK], sorted."""
        return tuple(one for one in self.tokenizer.special if one < self.architecture.symbols)

    @property
    def mask(self) -> int | None:
        """The id of the mask that the model was trained with; None if its tokenizer has none."""
        found = self.tokenizer.mask
        return found if found in self.special else None

    @cached_property
    def unread(self) -> dict[int, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The ids that no input may have, and why: padding where it is not counted, and a mask that scales all rows."""
        found: dict[int, str] = {}
        if self.padding is not None:
            found[self.padding] = f"padding, which {self.family} does not count as a position; leave it out"
        if self.architecture.unread is not None:
            found[self.architecture.unread] = (
                f"a mask scales the embeddings of all symbols of the input in {self.family} with token_dropout, which "
                "no map of single rows does; give another symbol"
            )
        return found

    @cached_property
    def reserved(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The ids that stand for no text, sorted: special ones, unused ones, and those the tokenizer does not know."""
        return self.tokenizer.reserved(self.architecture.symbols)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the ids of a text.

        Args:
            text: the text.
            special: whether to add the special tokens with which the tokenizer surrounds a text, such as [CLS] and
                [SEP].

        Raises:
            InputError: if the text has no tokens, more than `max_length`, or one that the model has no row for.
        """
        with collecting("encode") as problems:
            if not isinstance(text, str):
                problems.add("text", text, "a text, that is a str")
            elif not inputs.is_unicode(text):
                problems.add("text", text, inputs.UNPAIRED)
            inputs.choice("special", special, (True, False), problems)
        ids = self.tokenizer.encode(text, special)
        with collecting("encode") as problems:
            if not ids:
                problems.add("text", text, "it has no tokens")
            if beyond := [one for one in ids if one >= self.architecture.symbols]:
                symbol, largest = self.tokenizer.piece(beyond[0]), self.architecture.symbols - 1
                remedy = f"{symbol!r} has the id {beyond[0]}; the model reads ids up to {largest}"
                problems.add("text", text, remedy)
            if len(ids) > self.max_length:
                problems.add("text", text, f"{len(ids)} tokens; the model reads at most {self.max_length}")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of some ids, special tokens included.

        Raises:
            InputError: for ids that the model does not read.
        """
        return self.tokenizer.decode(self._checked("decode", ids))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Returns how to write each of some ids: a piece of text, such as " the" or "##ing", or "[CLS]".

        Raises:
            InputError: for ids that the model does not read.
        """
        return [self.tokenizer.piece(one) for one in self._checked("tokens", ids)]

    def pieces(self, given: str | Sequence[int]) -> list[str]:
        """Returns what stands for each symbol in a text, or of ids in what `decode` writes: joined, they are the text.

        White space is part of the piece after it. Of a character that has several symbols, all but the last have "".
        The special symbols around a text are named.

        Raises:
            InputError: for ids that the model does not read.
        """
        if isinstance(given, str) and inputs.is_unicode(given):
            return self.tokenizer.pieces(given)
        return self.tokenizer.decoded(self._checked("pieces", given, "given"))

    def token_id(self, text: str) -> int:
        """Returns the id of a text that is one token. Within a text, a token often begins with a space.

        Raises:
            InputError: if it is not one token, or the tokenizer does not know it.
        """
        with collecting("token_id") as problems:
            if not isinstance(text, str) or not text:
                problems.add("text", text, "a text of one token")
        ids = self.encode(text, special=False)
        with collecting("token_id") as problems:
            if len(ids) != 1:
                pieces = ", ".join(map(repr, self.tokens(ids)))
                remedy = f"one token; these are {len(ids)}: {pieces}. A token within a text often begins with a space"
                problems.add("text", text, remedy)
            elif ids[0] == self.tokenizer.unknown and text != (name := self.tokenizer.vocabulary[ids[0]]):
                why = f"a word that the tokenizer knows; it reads {name}, as any it does not"
                problems.add("text", text, why)
        return ids[0]

    def output_of(self, wanted: int | str) -> tuple[int, str]:
        """Returns the number and the name of an output: of the label, or of the token, of a name or number.

        Raises:
            InputError: if there is none.
        """
        if self.labels:
            known = dict(enumerate(self.labels))
            number = self.labels.index(wanted) if wanted in self.labels else wanted
            if number not in known:
                remedy = f"the labels are {', '.join(self.labels)}"
                raise InputError.of("token", wanted, remedy, subject="measure")
            return int(number), known[int(number)]
        number = self.token_id(wanted) if isinstance(wanted, str) else wanted
        # A number beyond the logits is refused by the measure.
        return number, self.tokens([number])[0] if number < self.architecture.symbols else ""


@partial(jax.jit, static_argnums=0)
def _rows(model: PublishedTransformer, parameters: Any, ids: Array) -> Array:
    return rows_of(model, parameters, ids)


def scores_of(model: Any, ids: Any, readout: int | str | None) -> np.ndarray:
    """Returns the scores of an input by a classifier, a `LayeredModel` with a `dtype`, read as in a result."""
    with numerics(model.dtype):
        own = LayeredApply(model.layered, model.layered.readout if readout is None else readout)
        return compiled_output(own, model.parameters, np.asarray(ids, np.int32))
