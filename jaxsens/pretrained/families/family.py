"""What a family of published models says about itself: its options, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from jaxsens.pretrained.families.architecture import Architecture
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.tensors import Place, Tensor

_STACKED = ("query", "key", "value")


@dataclass(frozen=True)
class Family:
    """A family of published models.

    Attributes:
        name: its `model_type`.
        prefix: what stands before the names of tensors if the model was saved with a head.
        architecture: returns the architecture from the options of config.json, adding errors to theirs.
        outer: the names of what is in no layer: "embedding", and "positions", "token_types", "embedding_norm" and
            "final_norm" if there are; without ".weight" and ".bias".
        layer: what the names of a layer's tensors begin with; "{}" stands for its number.
        parts: what follows of the names of its linear maps and norms, by their names in `PublishedTransformer`.
        head_matrix: the names of the language-model head's matrix.
        buffers: regular expressions of tensors that are no parameters, such as position ids.
        heads: regular expressions of tensors of heads, which read the last rows.
        language_model: the class that saves the language-model head, for messages.
        head_parts: the names of the head's "transform" and "norm", if it has them.
        head_biases: the names of the head's bias, if it has one.
        stacked: whether matrices are stored as (inputs, outputs), and those of queries, keys and values side by side
            as one.
    """

    name: str
    prefix: str
    architecture: Callable[[Options], Architecture]
    outer: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]
    head_matrix: tuple[str, ...]
    buffers: tuple[str, ...]
    heads: tuple[str, ...]
    language_model: str
    head_parts: Mapping[str, str] = field(default_factory=dict)
    head_biases: tuple[str, ...] = ()
    stacked: bool = False

    def tensors(self, a: Architecture) -> Iterator[Tensor]:
        """Yields the tensors up to the last rows, with the final normalisation."""
        last = a.position_offset + a.longest
        for place, stored, rows in (
            ("embedding", a.symbols, None),
            ("positions", last, (a.position_offset, last)),
            ("token_types", a.token_types, (0, 1)),
        ):
            if place in self.outer:
                yield Tensor((place,), (f"{self.outer[place]}.weight",), (stored, a.width), rows=rows)
        for place in ("embedding_norm", "final_norm"):
            if place in self.outer:
                yield from _norm((place,), self.outer[place], a.width, a.norm == "layer")
        queries, keys = a.heads * a.head_width, a.key_heads * a.head_width
        maps = {
            "query": (a.width, queries, a.attention_bias),
            **dict.fromkeys(("key", "value"), (a.width, keys, a.attention_bias)),
            "output": (queries, a.width, a.output_bias),
            **dict.fromkeys(("gate", "up"), (a.width, a.hidden, a.map_bias)),
            "down": (a.hidden, a.width, a.map_bias),
        }
        for k in range(a.layers):
            for part, name in self.parts.items():
                place, name = ("layers", k, part), f"{self.layer.format(k)}.{name}"
                if part in maps:
                    yield from self._map(place, name, *maps[part])
                elif part in ("attention_norm", "map_norm"):
                    yield from _norm(place, name, a.width, a.norm == "layer")
                elif a.head_norms:
                    yield from _norm(place, name, a.head_width, a.norm == "layer")

    def head(self, a: Architecture) -> Iterator[Tensor]:
        """Yields the tensors of the language-model head, without its matrix."""
        if self.head_parts:
            yield from self._map(("head", "transform"), self.head_parts["transform"], a.width, a.width, True)
            yield from _norm(("head", "norm"), self.head_parts["norm"], a.width, True)
        if self.head_biases:
            yield Tensor(("head", "bias"), self.head_biases, (a.symbols,))

    def _map(self, place: Place, name: str, inputs: int, outputs: int, bias: bool) -> Iterator[Tensor]:
        """The tensors of a linear map, stored as PyTorch does, (outputs, inputs), unless `stacked`."""
        columns, stored = None, outputs
        if self.stacked and place[-1] in _STACKED:
            j = _STACKED.index(str(place[-1]))
            columns, stored = (j * outputs, (j + 1) * outputs), 3 * outputs
        shape = (inputs, stored) if self.stacked else (stored, inputs)
        yield Tensor((*place, "matrix"), (f"{name}.weight",), shape, not self.stacked, columns)
        if bias:
            yield Tensor((*place, "bias"), (f"{name}.bias",), (stored,), columns=columns)


def _norm(place: Place, name: str, width: int, shift: bool) -> Iterator[Tensor]:
    """The tensors of a normalisation. Old files call them gamma and beta."""
    yield Tensor((*place, "scale"), (f"{name}.weight", f"{name}.gamma"), (width,))
    if shift:
        yield Tensor((*place, "shift"), (f"{name}.bias", f"{name}.beta"), (width,))
