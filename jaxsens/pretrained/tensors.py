"""Which tensors of a folder become which parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsens.errors import InputError, Problems
from jaxsens.pretrained.weights import WIDTHS, StoredTensor

Place = tuple[str | int, ...]
"""The path of a parameter in the tree of parameters, such as ("layers", 0, "query", "matrix")."""


QUANTISED = "quantised weights are not served; get the model's weights in bfloat16, float16 or float32"


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


def matched(
    wanted: Sequence[Tensor],
    stored: Mapping[str, StoredTensor],
    prefix: str,
    harmless: Iterable[str],
    problems: Problems,
) -> dict[Tensor, StoredTensor]:
    """Returns the stored tensor of each parameter.

    Args:
        wanted: the parameters.
        stored: the tensors of the folder, by name.
        prefix: what may stand before the names of tensors.
        harmless: regular expressions of names that need not be used.
        problems: collects the errors: tensors that are missing, of another shape or dtype, or unknown.
    """
    names = {tensor: [part for one in tensor.names for part in (prefix + one, one)] for tensor in wanted}
    found = {
        tensor: stored[name]
        for tensor, own in names.items()
        if (name := next((one for one in own if one in stored), None)) is not None
    }
    known = re.compile("|".join(harmless) or "(?!)")
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
        ("unknown", unknown, "a forward pass by config.json does not read them; another architecture may"),
    ):
        if listed:
            first = " and ".join(sorted(listed)[:2])
            count = f"{len(listed)} tensors are" if len(listed) > 1 else "a tensor is"
            problems.messages.append(
                f"{count} {kind}: {first}{', among others' * (len(listed) > 2)}: {remedy}"
            )
    return found


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
