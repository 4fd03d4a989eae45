"""Reads stored tensors into the tree of parameters, one at a time: layers that are alike become one stack.

Matrices that are kept in bfloat16 are arrays of 16 bits, uint16, which the forward pass converts where it uses them. Of
bfloat16 numbers, XLA would convert the whole stack before the loop over layers, which takes twice what was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain, groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.models.transformer.parameters import Stack
from jaxsens.pretrained.families.family import Place, StoredTensor, Tensor

NARROW = "bfloat16"
"""The dtype whose numbers are kept as they are stored, and converted to float32 where they are used."""

_INFINITE = 0x7F80
"""The bits of a bfloat16 exponent: all are set in infinities and in what is no number."""


def may_be_narrow(place: Place) -> bool:
    """Returns whether a parameter is kept in bfloat16: a matrix of a layer, of the embedding or of the head."""
    return place in (("embedding",), ("head", "matrix")) or (place[0] == "layers" and "matrix" in place)


Pieces = list[tuple[Tensor, StoredTensor]]
"""Parameters of one shape, and the stored tensor of each."""


class Reader:
    """Reads parameters.

    Attributes:
        dtype: "float32", "float64" or "bfloat16".
        mesh: the devices over which the matrices of layers are split; None for the default device.
    """

    def __init__(self, dtype: str, mesh: Mesh | None = None) -> None:
        self.dtype, self.mesh = dtype, mesh

    def numbers(self, tensor: Tensor, stored: StoredTensor, index: Any = ()) -> np.ndarray:
        """Returns a part of a parameter on the host.

        Raises:
            InputError: if it cannot be read, or holds numbers that are not finite in the dtype.
        """
        where = f"load_pretrained: {stored.file.name}: {stored.name}"
        narrow = self.dtype == NARROW and may_be_narrow(tensor.place)
        dtype = "float32" if self.dtype == NARROW else self.dtype
        try:
            part = tensor.taken(stored.view())[index]
            if not narrow:
                with np.errstate(over="ignore"):
                    part = stored.converted(part, dtype)
                    part = part + part.dtype.type(tensor.plus) if tensor.plus else part
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: not readable ({error}); download the model again") from error
        if not (np.all(part & _INFINITE != _INFINITE) if narrow else np.isfinite(part).all()):
            told = f"it holds numbers that are not finite in {self.dtype}; download the model again"
            raise InputError(f"{where}: {told}")
        return np.ascontiguousarray(part)

    def array(self, pieces: Pieces, lead: tuple[int, ...]) -> Array:
        """Returns pieces of one shape as one array, with axes in front if there are several: of layers, of experts."""
        place, shape = pieces[0][0].place, shape_of(*pieces[0])
        sharding = None if self.mesh is None else self.sharding(place, shape)
        if not lead or not may_be_narrow(place) or (self.mesh is None and self.dtype != NARROW):
            numbers = [self.numbers(*piece) for piece in pieces]
            whole = np.stack(numbers).reshape(*lead, *shape) if lead else numbers[0]
            return jnp.asarray(whole) if sharding is None else jax.device_put(whole, sharding)
        # One piece at a time goes to each device, so that the host never holds a stack.
        if sharding is None:
            return _joined([jnp.asarray(self.numbers(*piece)) for piece in pieces], lead)
        parts = [
            _joined([jax.device_put(self.numbers(*piece, index), device) for piece in pieces], lead)
            for device, index in sharding.addressable_devices_indices_map(shape).items()
        ]
        sharding = self.sharding(place, shape, len(lead))
        return jax.make_array_from_single_device_arrays((*lead, *shape), sharding, parts)

    def sharding(self, place: Place, shape: tuple[int, ...], lead: int = 0) -> NamedSharding:
        """The inputs of a layer's matrix are split if devices divide their number; others are on each device."""
        if self.mesh is None:
            raise RuntimeError("nothing is split without a mesh")
        split = place[0] == "layers" and may_be_narrow(place) and shape[0] % self.mesh.size == 0
        spec = (*[None] * lead, self.mesh.axis_names) if split else ()
        return NamedSharding(self.mesh, PartitionSpec(*spec))


class HeldReader(Reader):
    """Takes parameters that are at hand, in place of stored tensors."""

    def numbers(self, tensor: Tensor, stored: Any, index: Any = ()) -> np.ndarray:
        return np.ascontiguousarray(stored[index])


def parameters_of(found: Mapping[Tensor, Any], layers: int, reader: Reader) -> dict[str, Any]:
    """Returns the tree of parameters: arrays of JAX, whose layers are a `Stack`.

    Call it within `jaxsens.core.base.programs.numerics`. The host holds one tensor at a time, or the stacks of one
    part of the layers if weights are neither narrow nor split.

    Args:
        found: the stored tensor of each parameter.
        layers: the number of layers.
        reader: what reads them.

    Raises:
        InputError: naming a tensor that cannot be read, or that holds numbers that are not finite in the dtype.
    """
    outer = dict[Place, Pieces]()
    inner = [dict[Place, Pieces]() for _ in range(layers)]
    for tensor, stored in found.items():
        place = tensor.place
        within, path = (inner[int(place[1])], place[2:]) if place[0] == "layers" else (outer, place)
        within.setdefault(tuple(part for part in path if isinstance(part, str)), []).append((tensor, stored))
    runs, lengths = [], []
    for _, equal in groupby(
        inner, lambda layer: [(path, len(of), shape_of(*of[0])) for path, of in layer.items()]
    ):
        run = list(equal)
        lead = () if len(run) == 1 else (len(run),)
        runs.append(_nested({path: ([*chain(*(one[path] for one in run))], lead) for path in run[0]}, reader))
        lengths.append(len(run))
    outside = _nested({path: (pieces, ()) for path, pieces in outer.items()}, reader)
    return outside | {"layers": Stack(tuple(runs), tuple(lengths))}


def check_narrow(found: Mapping[Tensor, StoredTensor], problems: Problems) -> None:
    """Adds an error if a matrix that is to be kept in bfloat16 is not stored so."""
    others = [one for tensor, one in found.items() if may_be_narrow(tensor.place) and one.dtype != "BF16"]
    if others:
        wide = f"{others[0].name} is {others[0].dtype}"
        remedy = f'it keeps weights as they are stored, and {wide}; give "float32"'
        problems.add("dtype", NARROW, remedy)


def _nested(leaves: Mapping[Place, tuple[Pieces, tuple[int, ...]]], reader: Reader) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, (pieces, lead) in leaves.items():
        at: Any = tree
        for part in path[:-1]:
            at = at.setdefault(part, {})
        number = isinstance(pieces[0][0].place[-1], int)
        at[path[-1]] = reader.array(pieces, (*lead, len(pieces) // (lead or (1,))[0]) if number else lead)
    return tree


def shape_of(tensor: Tensor, stored: StoredTensor) -> tuple[int, ...]:
    """Returns the shape of a parameter."""
    return tensor.taken(np.broadcast_to(np.uint8(0), stored.shape)).shape


@partial(jax.jit, static_argnums=1)
def _joined(pieces: list[Array], lead: tuple[int, ...]) -> Array:
    return jnp.stack(pieces).reshape(*lead, *pieces[0].shape)
