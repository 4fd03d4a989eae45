"""The tensors in safetensors files, and what a family of published models calls them. Nothing is ever unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsens.base.errors import InputError, Problems
from jaxsens.pretrained.families.architecture import Architecture, Output
from jaxsens.pretrained.families.options import QUANTISED, Options

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The bytes of a number, by the dtypes that are read."""

_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        file: the file.
        name: the tensor's name in it.
        dtype: the name of its dtype, as the format writes it, such as "BF16".
        shape: its shape.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self, dtype: str) -> np.ndarray:
        """Returns the tensor, converted to float32 or float64. Only this tensor is read."""
        from safetensors import safe_open

        if self.dtype == "BF16":  # NumPy has no such type: the upper half of a float32
            stored: Any = self._bytes().astype(np.uint32) << 16
            return stored.view(np.float32).astype(dtype).reshape(self.shape)
        with safe_open(self.file, "np") as opened:
            return np.asarray(opened.get_tensor(self.name)).astype(dtype, copy=False)

    def _bytes(self) -> np.ndarray:
        with self.file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            first, last = json.loads(stream.read(size))[self.name]["data_offsets"]
            stream.seek(8 + size + first)
            return np.frombuffer(stream.read(last - first), "<u2")


def stored_tensors(files: list[Path], index: dict[str, str], problems: Problems) -> dict[str, StoredTensor]:
    """Returns the tensors of some files by name. Only the files' headers are read.

    Args:
        files: the files.
        index: the name of the file of each tensor, if an index says so; otherwise empty.
        problems: collects the errors: unreadable files, and tensors in two files, or not in that of the index.
    """
    found: dict[str, StoredTensor] = {}
    readable: set[str] = set()
    twice: list[str] = []
    for file in files:
        tensors = _header(file, problems)
        if tensors is None:
            continue
        readable.add(file.name)
        own = [one for one in tensors if not index or index.get(one.name) == file.name]
        twice += [one.name for one in own if one.name in found]
        found |= {one.name: one for one in own}
    if twice:
        names = [file.name for file in files]
        problems.add("folder", names, f"{twice[0]} is in two of these files; remove those that are too many")
    missing = [name for name, file in index.items() if name not in found and Path(file).name in readable]
    if missing:
        problems.add(
            "model.safetensors.index.json: weight_map",
            missing[:5],
            "tensors that are not in the files it names; download the model again",
        )
    return found


def _header(file: Path, problems: Problems) -> list[StoredTensor] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            return [
                StoredTensor(file, name, one.get_dtype(), tuple(one.get_shape()))
                for name, one in slices.items()
            ]
    except (SafetensorError, OSError, ValueError) as error:
        remedy = f"not readable as safetensors ({error}); it may be truncated: download it again"
        if _begins_with(file, _LFS):
            remedy = (
                "it is Git LFS's pointer to the weights, not the weights: run `git lfs pull` in the folder"
            )
        problems.add("folder", str(file), remedy)
        return None


def _begins_with(file: Path, text: bytes) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(text)) == text
    except OSError:
        return False


Place = tuple[str | int, ...]
"""The path of a parameter in the tree of parameters, such as ("layers", 0, "query", "matrix")."""


@dataclass(frozen=True)
class Tensor:
    """A parameter, and the stored tensor that holds it.

    Attributes:
        place: the parameter's path.
        names: the tensor's names, the usual one first; one of them is enough.
        shape: the stored shape.
        transposed: whether it is stored as (out, in), and becomes (in, out).
        columns: the first column, and the one after the last, of the stored matrix or vector; None for all.
        rows: the first row of the stored matrix that is taken, and the one after the last; None for all.
    """

    place: Place
    names: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False
    columns: tuple[int, int] | None = None
    rows: tuple[int, int] | None = None

    def taken(self, stored: np.ndarray) -> np.ndarray:
        """Returns the parameter from the stored tensor."""
        if self.columns is not None:
            stored = stored[..., self.columns[0] : self.columns[1]]
        if self.rows is not None:
            stored = stored[self.rows[0] : self.rows[1]]
        return np.ascontiguousarray(stored.T if self.transposed else stored)


def parameters_of(found: Mapping[Tensor, StoredTensor], layers: int, dtype: str) -> dict[str, Any]:
    """Returns the tree of parameters: arrays of JAX in the dtype, read one tensor at a time.

    Call it within `jaxsens.base.precision.numerics(dtype)`.

    Raises:
        InputError: naming a tensor that cannot be read, or that holds numbers that are not finite in the dtype.
    """
    tree: dict[str, Any] = {"layers": [{} for _ in range(layers)]}
    for tensor, stored in found.items():
        where = f"load_pretrained: {stored.file.name}: {stored.name}"
        try:
            with np.errstate(over="ignore"):
                array = tensor.taken(stored.read(dtype))
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: not readable ({error}); download the model again") from error
        if not np.isfinite(array).all():
            raise InputError(
                f"{where}: it holds numbers that are not finite in {dtype}; download the model again"
            )
        at: Any = tree
        for part in tensor.place[:-1]:
            at = at[part] if isinstance(part, int) else at.setdefault(part, {})
        at[tensor.place[-1]] = jnp.asarray(array)
    return tree


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

    def found(
        self, a: Architecture, stored: Mapping[str, StoredTensor], output: Output, problems: Problems
    ) -> dict[Tensor, StoredTensor]:
        """Returns the stored tensor of each parameter, after checking all of them."""
        wanted = list(self.tensors(a))
        if output == "logits":
            head = list(self.head(a))
            if not a.tied:
                shape = (a.symbols, a.width)
                head.append(Tensor(("head", "matrix"), self.head_matrix, shape, transposed=True))
            others = self._other_heads(head, stored)
            if others is not None:
                remedy = f"{others}, not that of {self.language_model}; use output='hidden'"
                problems.add("output", output, remedy)
                return {}
            wanted += head
        return self._matched(wanted, stored, problems)

    def _matched(
        self, wanted: Sequence[Tensor], stored: Mapping[str, StoredTensor], problems: Problems
    ) -> dict[Tensor, StoredTensor]:
        """The stored tensor of each parameter. Notes those that are missing, of another shape or dtype, or unknown."""
        names = {
            tensor: [part for one in tensor.names for part in (self.prefix + one, one)] for tensor in wanted
        }
        found = {
            tensor: stored[name]
            for tensor, own in names.items()
            if (name := next((one for one in own if one in stored), None)) is not None
        }
        known = re.compile("|".join((*self.buffers, *self.heads)))
        used = {one for own in names.values() for one in own}
        shapes = {
            f"{one.name} {one.shape} instead of {tensor.shape}"
            for tensor, one in found.items()
            if one.shape != tensor.shape
        }
        missing = {one.names[0] for one in wanted if one not in found}
        dtypes = {f"{one.name} {one.dtype}" for one in found.values() if one.dtype not in WIDTHS}
        unknown = {name for name in stored if name not in used and not known.match(name)}
        for kind, listed, remedy in (
            ("missing", missing, "download the model again, or correct config.json"),
            ("of another shape", shapes, "config.json says so; it belongs to another model"),
            ("of another dtype", dtypes, QUANTISED),
            (
                "unknown",
                unknown,
                "a forward pass by config.json does not read them; another architecture may",
            ),
        ):
            if listed:
                first = " and ".join(sorted(listed)[:2])
                count = f"{len(listed)} tensors are" if len(listed) > 1 else "a tensor is"
                problems.messages.append(
                    f"{count} {kind}: {first}{', among others' * (len(listed) > 2)}: {remedy}"
                )
        return found

    def _other_heads(self, head: list[Tensor], stored: Mapping[str, StoredTensor]) -> str | None:
        """Returns what the folder has instead of the language-model head, or None if it has it.

        A head that is only the embedding's transpose is there, unless the folder has another head.
        """
        own = {name for tensor in head for name in tensor.names} | set(self.head_matrix)
        if not own.isdisjoint(stored):
            return None
        known = re.compile("|".join(self.heads))
        others = sorted({name.split(".")[0] for name in stored if known.match(name) and "pooler" not in name})
        if others:
            return f"the folder has the head {' and '.join(others)}"
        return "the folder has no head" if head else None

    def check_tied(
        self, stored: Mapping[str, StoredTensor], found: Mapping[Tensor, StoredTensor], problems: Problems
    ) -> None:
        """Adds an error if the head's matrix is stored too, and differs from the embedding that it is said to be."""
        (embedding,) = (one for tensor, one in found.items() if tensor.place == ("embedding",))
        for own in (stored[name] for name in self.head_matrix if name in stored):
            same = own.shape == embedding.shape
            if not same or not np.array_equal(own.read("float32"), embedding.read("float32")):
                remedy = (
                    f"true, but {own.name} is stored and differs from {embedding.name}; write false to use it"
                )
                problems.add("config.json: tie_word_embeddings", True, remedy)

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
