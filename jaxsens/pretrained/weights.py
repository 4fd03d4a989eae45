"""Tensors in safetensors files: which there are, and one at a time. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxsens.errors import Problems

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
