"""The tensors in safetensors files, and what a family of published models calls them. Nothing is ever unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from jaxsens.core.base.errors import Problems
from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.pretrained.families.architecture import Architecture, Disentangled, Output
from jaxsens.pretrained.families.options import QUANTISED, Options

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The bytes of a number, by the dtypes that are read."""

_WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What torch's wrappers put anywhere into the names of tensors."""

_POSITIONS = r"(.*\.)?((position|token_type)_ids|rotary_emb(eddings)?\.inv_freq)$"
"""Tensors that are no parameters: positions, and the angles that follow from them."""

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
        """Returns the tensor, converted to float32 or float64."""
        return self.converted(self.view(), dtype)

    def view(self) -> np.ndarray:
        """Returns the tensor's place in its file: nothing is read until it is used. NumPy has no bfloat16: such a
        number is the upper half of a float32, here as 16 bits."""
        with self.file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            first = json.loads(stream.read(size))[self.name]["data_offsets"][0]
        kind = "<u2" if self.dtype == "BF16" else f"<f{WIDTHS[self.dtype]}"
        return np.memmap(self.file, kind, "r", 8 + size + first, self.shape)

    def converted(self, numbers: np.ndarray, dtype: str) -> np.ndarray:
        """Returns some of the tensor's numbers in float32 or float64."""
        if self.dtype == "BF16":
            wide: Any = numbers.astype(np.uint32) << 16
            numbers = wide.view(np.float32)
        return np.asarray(numbers).astype(dtype)


def stored_tensors(files: list[Path], index: dict[str, str], problems: Problems) -> dict[str, StoredTensor]:
    """Returns the tensors of some files by name, without what torch's wrappers put into it. Only headers are read.

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
        for written, one in tensors.items():
            if not index or index.get(one.name) == file.name:
                name = _WRAPPERS.sub("", written)
                twice += [name] * (name in found)
                found[name] = one
    if twice:
        names = [file.name for file in files]
        problems.add("folder", names, f"{twice[0]} is twice in these files; remove those that are too many")
    written = {one.name for one in found.values()}
    missing = [name for name, file in index.items() if name not in written and Path(file).name in readable]
    if missing:
        remedy = "tensors that are not in the files it names; download the model again"
        problems.add("model.safetensors.index.json: weight_map", missing[:5], remedy)
    return found


def _header(file: Path, problems: Problems) -> dict[str, StoredTensor] | None:
    """Returns a file's tensors, those under their other names too of which `save_model` left out all but one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            found = {
                name: StoredTensor(file, name, one.get_dtype(), tuple(one.get_shape()))
                for name, one in slices.items()
            }
            shared = (opened.metadata() or {}).items()
            return {name: found[kept] for name, kept in shared if kept in found} | found
    except (SafetensorError, OSError, ValueError) as error:
        remedy = f"not readable as safetensors ({error}); it may be truncated: download it again"
        with suppress(OSError), file.open("rb") as stream:
            if stream.read(len(_LFS)) == _LFS:
                remedy = "it is Git LFS's pointer to the weights, not the weights: run `git lfs pull` in the folder"
        problems.add("folder", str(file), remedy)
        return None


Place = tuple[str | int, ...]
"""The path of a parameter in the tree of parameters, such as ("layers", 0, "query", "matrix")."""


@dataclass(frozen=True)
class Piece:
    """The outputs of a map that is stored with others as one: some of each of several equal groups.

    Attributes:
        groups: how many groups there are.
        size: the outputs of a group.
        first, stop: those that are taken of each.
    """

    groups: int
    size: int
    first: int
    stop: int

    def taken(self, outputs: np.ndarray) -> np.ndarray:
        """Returns the piece of stored outputs, along the first axis."""
        grouped = outputs.reshape(self.groups, self.size, *outputs.shape[1:])[:, self.first : self.stop]
        return grouped.reshape(-1, *outputs.shape[1:])


@dataclass(frozen=True)
class Tensor:
    """A parameter, and the stored tensor that holds it.

    Attributes:
        place: the parameter's path. A number at its end is the place along a first axis, of experts or heads.
        names: the tensor's names, the usual one first; one of them is enough.
        shape: the stored shape.
        transposed: whether it is stored as (out, in), and becomes (in, out).
        piece: the outputs that are taken; None for all.
        rows: the first row of the stored matrix that is taken, and the one after the last; None for all.
        plus: what is added to each number.
    """

    place: Place
    names: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False
    piece: Piece | None = None
    rows: tuple[int, int] | None = None
    plus: float = 0.0

    def taken(self, stored: np.ndarray) -> np.ndarray:
        """Returns the parameter's numbers in the stored tensor, without `plus`. Only a piece is copied."""
        if self.piece is not None:
            first = stored.ndim == 1 or self.transposed
            stored = self.piece.taken(stored if first else stored.T)
            stored = stored if first else stored.T
        if self.rows is not None:
            stored = stored[self.rows[0] : self.rows[1]]
        return stored.T if self.transposed else stored


Fused = Callable[[Architecture, str], Piece | None]
"""Returns the piece that a linear map of a layer is of what is stored under its name; None if it is all."""


def _piece(part: str, groups: int, **sizes: int) -> Piece | None:
    """A part of groups in which parts of these sizes stand one after another; None if it is none of them."""
    ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
    return Piece(groups, sum(sizes.values()), ends[part] - sizes[part], ends[part]) if part in ends else None


def in_thirds(a: Architecture, part: str) -> Piece | None:
    """All queries, then all keys, then all values, as GPT-2's, Phi-3's and ModernBERT's."""
    keys = a.key_heads * a.head_width
    return _piece(part, 1, query=a.heads * a.head_width, key=keys, value=keys)


def by_key_head(a: Architecture, part: str) -> Piece | None:
    """For each head of keys its queries, then its key and its value, as GPT-NeoX's, BLOOM's and Falcon's."""
    queries = a.heads // a.key_heads * a.head_width
    return _piece(part, a.key_heads, query=queries, key=a.head_width, value=a.head_width)


def in_halves(a: Architecture, part: str) -> Piece | None:
    """The gate, then the map that it multiplies, as Phi-3's and ModernBERT's."""
    return _piece(part, 1, gate=a.hidden, up=a.hidden)


@dataclass(frozen=True)
class Family:
    """A family of published models.

    Attributes:
        name: its `model_type`.
        prefix: what stands before the names of tensors if the model was saved with a head; "a|b" is either.
        architecture: returns the architecture from the options of config.json, adding errors to theirs.
        outer: the names of what is in no layer: "embedding", and "positions", "token_types", "embedding_norm",
            "final_norm", "distances" and "distance_norm" if there are; without ".weight" and ".bias".
        layer: what the names of a layer's tensors begin with; "{}" stands for its number.
        parts: what follows of the names of its linear maps and norms, by their names in `PublishedTransformer`;
            "a|b" is either.
        language_model: the class that saves the language-model head, for messages.
        head_matrix: the names of the language-model head's matrix.
        buffers: regular expressions of tensors that are no parameters, beside those of positions in all families.
        heads: regular expressions of tensors of heads, which read the last rows.
        head_parts, head_biases: the names of the head's "transform" and "norm", and of its bias, if it has them.
        fused: how maps are stored that share a name.
        inputs_first: whether matrices are stored as (inputs, outputs), as GPT-2's.
        norm_by_head: whether the norms of queries and keys have numbers of their own for each head.
        outer_bias: whether the maps from and to an embedding's width have biases.
        expert: the names of an expert's "gate", "up" and "down" after that of the layer; "{}" stands for its number.
        newer: the family with the names of its newer head, which it has if the option `legacy` is false.
        counts_padding: whether symbols of padding have positions as others do, though the first positions are left
            out.
        text: the family of the model within it that reads text, whose options are in `text_config`; "" if it is all.
    """

    name: str
    prefix: str
    architecture: Callable[[Options], Architecture]
    outer: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]
    language_model: str
    head_matrix: tuple[str, ...] = ("lm_head.weight",)
    buffers: tuple[str, ...] = ()
    heads: tuple[str, ...] = (r"lm_head\.", r"score\.", r"classifier\.", r"qa_outputs\.")
    head_parts: Mapping[str, str] = field(default_factory=dict)
    head_biases: tuple[str, ...] = ()
    fused: tuple[Fused, ...] = ()
    inputs_first: bool = False
    norm_by_head: bool = False
    outer_bias: bool = True
    expert: Mapping[str, str] = field(default_factory=dict)
    newer: Family | None = None
    text: str = ""
    counts_padding: bool = False

    def options(self, table: Mapping[str, Any], where: str, problems: Problems) -> Options:
        """Returns the options of the part that reads text, which has the library's defaults."""
        inner = table.get("text_config") if self.text else table
        if not isinstance(inner, dict):
            problems.add(f"{where}: text_config", inner, "a table of options")
            inner = {}
        return Options(inner, f"{where}: text_config" if self.text else where, problems, self.name)

    def tensors(self, a: Architecture) -> Iterator[Tensor]:
        """Yields the tensors up to the last rows, with the final normalisation."""
        last, narrow = a.position_offset + a.longest, a.embedding_width or a.width
        buckets = a.score_bias.buckets if isinstance(a.score_bias, RelativeBias) else 0
        distances = a.score_bias if isinstance(a.score_bias, Disentangled) else None
        for place, shape, rows in (
            ("embedding", (a.symbols, narrow), None),
            ("positions", (last * a.learned_positions, self._summed(a)), (a.position_offset, last)),
            ("token_types", (a.token_types, self._summed(a)), (0, 1)),
            ("score_bias", (buckets, a.heads), None),
            ("distances", (2 * distances.span if distances else 0, a.width), None),
        ):
            if place in self.outer and shape[0]:
                names = tuple(f"{one}.weight" for one in self.outer[place].split("|"))
                if place == "embedding" and a.tied:  # either name of the matrix that they share
                    names += self.head_matrix
                yield Tensor((place,), names, shape, rows=rows)
        if "embedding_norm" in self.outer and a.embedding_norm:
            yield from norm_tensors(a, ("embedding_norm",), self.outer["embedding_norm"], (self._summed(a),))
        if "final_norm" in self.outer and a.final_norm is not False:
            yield from norm_tensors(a, ("final_norm",), self.outer["final_norm"], (a.width,))
        if distances and distances.normalised:
            yield from norm_tensors(a, ("distance_norm",), self.outer["distance_norm"], (a.width,))
        if a.embedding_width is not None:
            for place, sizes in (("embedding_map", (narrow, a.width)), ("output_map", (a.width, narrow))):
                if place in self.outer:
                    yield from self.linear((place,), self.outer[place], *sizes, self.outer_bias)
        for k in range(a.layers):
            yield from self._layer(a, k)

    def _summed(self, a: Architecture) -> int:
        """The width of what positions and token types are added to: an embedding's, unless it is widened first."""
        return a.embedding_width or a.width if a.embedding_norm else a.width

    def _layer(self, a: Architecture, k: int) -> Iterator[Tensor]:
        queries, keys = a.heads * a.head_width, a.key_heads * a.head_width
        experts = a.experts if a.experts is not None and k in a.experts.layers else None
        maps = {
            "query": (a.width, queries, a.attention_bias),
            **dict.fromkeys(("key", "value"), (a.width, keys, a.attention_bias)),
            "output": (queries, a.width, a.output_bias),
        }
        maps |= {"router": (a.width, experts.number, False)} if experts else _of_rows(a, a.hidden)
        if experts and experts.shared:
            maps |= {f"shared_{part}": sizes for part, sizes in _of_rows(a, experts.shared).items()}
            maps["shared_router"] = (a.width, 1, False)
        if isinstance(a.score_bias, Disentangled) and not a.score_bias.shared:
            maps |= {f"distance_{part}": (a.width, queries, True) for part in a.score_bias.parts}
        missing = ["attention_norm"] * (a.first_bare and k == 0) + ["map_norm"] * a.shared_norm
        layer = self.layer.format(k)
        for part, names in self.parts.items():
            place, name = ("layers", k, part), "|".join(f"{layer}.{one}" for one in names.split("|"))
            if part in maps:
                pieces = (fused(a, part) for fused in self.fused)
                yield from self.linear(place, name, *maps[part], next(filter(None, pieces), None))
            elif part in ("query_norm", "key_norm"):
                if a.head_norms != "none":
                    yield from self._head_norm(a, place, name)
            elif part not in missing and part.endswith(("_norm", "_after")):
                yield from norm_tensors(a, place, name, (a.width,))
        if experts:
            for part, (inputs, outputs, _) in _of_rows(a, experts.hidden).items():
                for e in range(experts.number):
                    name = f"{layer}.{self.expert[part].format(e)}.weight"
                    place = ("layers", k, part, "matrix", e)
                    yield Tensor(place, (name,), (outputs, inputs), transposed=True)

    def _head_norm(self, a: Architecture, place: Place, name: str) -> Iterator[Tensor]:
        """The tensors of the normalisation of queries or keys: one of all heads, or of each."""
        heads = a.heads if place[-1] == "query_norm" else a.key_heads
        if "{}" in name:  # a norm of its own for each head
            for h in range(heads):
                yield Tensor((*place, "scale", h), (f"{name.format(h)}.weight",), (a.head_width,))
            return
        of_heads = (heads, a.head_width) if self.norm_by_head else (a.head_width,)
        shape = (heads * a.head_width,) if a.head_norms == "whole" else of_heads
        yield from norm_tensors(a, place, name, shape)

    def head(self, a: Architecture) -> Iterator[Tensor]:
        """Yields the tensors of the language-model head, without its matrix."""
        narrow = a.embedding_width or a.width
        if self.head_parts:
            name, bias = self.head_parts["transform"], a.transform_bias
            yield from self.linear(("head", "transform"), name, a.width, narrow, bias)
            yield from norm_tensors(a, ("head", "norm"), self.head_parts["norm"], (narrow,))
        if self.head_biases and a.logit_bias:
            yield Tensor(("head", "bias"), self.head_biases, (a.outputs or a.symbols,))

    def found(
        self,
        a: Architecture,
        stored: Mapping[str, StoredTensor],
        output: Output,
        problems: Problems,
        classifier: Sequence[Tensor] = (),
    ) -> dict[Tensor, StoredTensor]:
        """Returns the stored tensor of each parameter, a classifier's included, after checking all of them."""
        wanted = [*self.tensors(a), *classifier]
        if output == "logits" and not self.head_matrix:
            problems.add("output", output, f"{self.name} has no language-model head; use output='hidden'")
            return {}
        if output == "logits":
            head = list(self.head(a))
            if not a.tied:
                shape = (a.symbols, a.embedding_width or a.width)
                head.append(Tensor(("head", "matrix"), self.head_matrix, shape, transposed=True))
            others = self._other_heads(head, stored)
            if others is not None:
                remedy = f"{others}, not that of {self.language_model}; use output='hidden'"
                problems.add("output", output, remedy)
                return {}
            wanted += head
        return self._matched(wanted, stored, problems)

    def unwrapped(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
        """Returns tensors without what stands before all their names, as a wrapper puts it there, and the family does
        not."""
        names = [f"{one}.weight" for one in self.outer["embedding"].split("|")]
        own = {p + one for one in names for p in (*self.prefix.split("|"), "")} | set(self.head_matrix)
        bare = stored
        while bare and own.isdisjoint(bare):
            if len({name.partition(".")[0] for name in bare}) > 1 or not all("." in name for name in bare):
                return stored
            bare = {name.partition(".")[2]: one for name, one in bare.items()}
        return bare

    def _matched(
        self, wanted: Sequence[Tensor], stored: Mapping[str, StoredTensor], problems: Problems
    ) -> dict[Tensor, StoredTensor]:
        """The stored tensor of each parameter. Notes those that are missing, of another shape or dtype, or unknown."""
        names = {
            tensor: [p + one for one in tensor.names for p in (*self.prefix.split("|"), "")]
            for tensor in wanted
        }
        found = {
            tensor: stored[name]
            for tensor, own in names.items()
            if (name := next((one for one in own if one in stored), None)) is not None
        }
        known = re.compile("|".join((_POSITIONS, *self.buffers, *self.heads)))
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
                first += ", among others" * (len(listed) > 2)
                problems.note((), f"{count} {kind}: {first}: {remedy}")
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
                differs = f"{own.name} is stored and differs from {embedding.name}"
                remedy = f"true, but {differs}; write false to use it"
                problems.add("config.json: tie_word_embeddings", True, remedy)

    def linear(
        self, place: Place, name: str, inputs: int, outputs: int, bias: bool, piece: Piece | None = None
    ) -> Iterator[Tensor]:
        """The tensors of a linear map, stored as PyTorch does, (outputs, inputs), unless `inputs_first`."""
        stored = outputs if piece is None else piece.groups * piece.size
        shape = (inputs, stored) if self.inputs_first else (stored, inputs)
        matrices, biases = ([f"{one}.{kind}" for one in name.split("|")] for kind in ("weight", "bias"))
        yield Tensor((*place, "matrix"), tuple(matrices), shape, not self.inputs_first, piece)
        if bias:
            yield Tensor((*place, "bias"), tuple(biases), (stored,), piece=piece)


def _of_rows(a: Architecture, hidden: int) -> dict[str, tuple[int, int, bool]]:
    """The sizes of a per-row map's parts, and whether they have biases."""
    parts = {"up": (a.width, hidden, a.map_bias), "down": (hidden, a.width, a.map_bias)}
    return {"gate": parts["up"], **parts} if a.gated else parts


def norm_tensors(a: Architecture, place: Place, name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """The tensors of a normalisation. Old files call them gamma and beta."""
    own = name.split("|")
    if a.norm_scale:
        names = tuple(f"{one}.{kind}" for kind in ("weight", "gamma") for one in own)
        yield Tensor((*place, "scale"), names, shape, plus=a.scale_offset)
    if a.norm == "layer" if a.norm_shift is None else a.norm_shift:
        names = tuple(f"{one}.{kind}" for kind in ("bias", "beta") for one in own)
        yield Tensor((*place, "shift"), names, shape)
