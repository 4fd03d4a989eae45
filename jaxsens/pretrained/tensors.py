"""Which tensors of a folder become which parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsens.errors import InputError, Problems
from jaxsens.pretrained.weights import WIDTHS, StoredTensor

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


def linear_map(place: Place, name: str, inputs: int, outputs: int, bias: bool = True) -> Iterator[Tensor]:
    """Yields the tensors of a linear map, stored as PyTorch does: (outputs, inputs)."""
    yield Tensor((*place, "matrix"), (f"{name}.weight",), (outputs, inputs), transposed=True)
    if bias:
        yield Tensor((*place, "bias"), (f"{name}.bias",), (outputs,))


def norm(place: Place, name: str, width: int, shift: bool = True) -> Iterator[Tensor]:
    """Yields the tensors of a normalisation. Old files call them gamma and beta."""
    yield Tensor((*place, "scale"), (f"{name}.weight", f"{name}.gamma"), (width,))
    if shift:
        yield Tensor((*place, "shift"), (f"{name}.bias", f"{name}.beta"), (width,))


def matched(
    wanted: Iterable[Tensor], stored: Mapping[str, StoredTensor], prefix: str, problems: Problems
) -> dict[Tensor, StoredTensor]:
    """Returns the stored tensor of each parameter, after checking that it is there, with its shape and a dtype.

    Args:
        wanted: the parameters.
        stored: the tensors of the folder, by name.
        prefix: what may stand before the names of tensors.
        problems: collects the errors.
    """
    found: dict[Tensor, StoredTensor] = {}
    missing: list[str] = []
    for tensor in wanted:
        names = [part for name in tensor.names for part in (prefix + name, name)]
        here = next((stored[name] for name in names if name in stored), None)
        if here is None:
            missing.append(tensor.names[0])
        elif here.dtype not in WIDTHS:
            remedy = (
                "quantised weights are not served; get the model's weights in bfloat16, float16 or float32"
            )
            problems.add(f"{here.file.name}: dtype of {here.name}", here.dtype, remedy)
        elif here.shape != tensor.shape:
            problems.add(
                f"{here.file.name}: shape of {here.name}", here.shape, f"by config.json it is {tensor.shape}"
            )
        else:
            found[tensor] = here
    if missing:
        problems.add(
            "tensors that are missing", _few(missing), "download the model again, or correct config.json"
        )
    return found


def check_unknown(
    stored: Mapping[str, StoredTensor], used: Iterable[str], known: Sequence[str], problems: Problems
) -> None:
    """Adds an error for tensors that are neither used nor known not to matter, by regular expressions."""
    harmless = re.compile("|".join(f"(?:{one})" for one in known) or "(?!)")
    unknown = sorted(name for name in set(stored) - set(used) if not harmless.match(name))
    if unknown:
        remedy = "a forward pass by config.json does not read them; they may belong to another architecture"
        problems.add("tensors that are unknown", _few(unknown), remedy)


def parameters_of(found: Mapping[Tensor, StoredTensor], layers: int, dtype: str) -> dict[str, Any]:
    """Returns the tree of parameters: arrays of JAX in the dtype, read one tensor at a time.

    Call it within `jaxsens.precision.numerics(dtype)`.

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


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
