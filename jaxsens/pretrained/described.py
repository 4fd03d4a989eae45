"""A transformer from elsewhere, given by its architecture and its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.programs import DTYPES, numerics
from jaxsens.core.base.strict import did_you_mean, naming_arguments
from jaxsens.core.models.torch_model import as_numpy
from jaxsens.core.models.transformer.parameters import Stack
from jaxsens.pretrained.families.architecture import (
    ACTIVATIONS,
    Architecture,
    Disentangled,
    Output,
    PositionSlopes,
    PublishedTransformer,
)
from jaxsens.pretrained.families.family import Family, Place, Tensor
from jaxsens.pretrained.families.weights import HeldReader, parameters_of
from jaxsens.pretrained.model import DescribedModel

_OUTER = ("embedding", "positions", "token_types", "score_bias", "embedding_norm", "embedding_map")
_MAPS: tuple[str, ...] = ("query", "key", "value", "output", "router", "gate", "up", "down")
_NORMS = ("query_norm", "key_norm", "attention_norm", "map_norm")
_OF_LAYERS = ("kernel", "weight", "scale", "bias", "embedding")
"""What Flax, Equinox and PyTorch call the arrays of linear maps, norms and embeddings."""


@naming_arguments
def from_weights(
    architecture: Architecture,
    weights: Mapping[str, Any],
    *,
    output: Output = "hidden",
    readout: int | str | None = None,
    dtype: str = "float32",
) -> DescribedModel:
    """Returns a transformer from elsewhere as a model whose attention is visible.

    Every engine but difference serves it. `docs/foreign.md` describes models in Flax, Equinox and PyTorch.

    >>> weights = {"embedding": module.embed, "layers": layers, "final_norm": module.norm}  # doctest: +SKIP
    >>> model = jaxsens.from_weights(Architecture(...), weights, readout="mean")  # doctest: +SKIP

    Args:
        architecture: the model's shape and choices.
        weights: the dictionary of arrays that `PublishedTransformer` describes, but with all token types and all
            positions, those before `position_offset` included, and scales before `scale_offset` is added. Instead of
            a table, a linear map or a norm, it may have a layer of Flax, Equinox or PyTorch, or such a layer's arrays:
            "kernel" (inputs first, with any axes of heads) or "weight" (outputs first), "scale" or "weight", and
            "bias". The head is read for output="logits" only.
        output: what is read from a row: "hidden", the row after the last layer and the final normalisation, (width,);
            or "logits", (outputs or symbols,).
        readout: the row that is read: "last", "mean" or a position; None for the last row if the future is masked,
            otherwise the first.
        dtype: "float32" or "float64", to which the weights are converted.

    Raises:
        InputError: listing every error: of the architecture, or else each array that is missing, not known, of another
            shape, no real number or not finite, and each norm with another epsilon than the architecture's.
    """
    with collecting("from_weights") as problems:
        if not isinstance(architecture, Architecture):
            problems.add("architecture", architecture, "a jaxsens.pretrained.Architecture")
        if not isinstance(weights, Mapping):
            problems.add("weights", weights, "a dictionary of arrays")
        inputs.choice("output", output, ("hidden", "logits"), problems)
        inputs.choice("dtype", dtype, DTYPES, problems)
        if readout is not None:
            readout = inputs.config_readout("readout", readout, problems)
    with collecting("from_weights: architecture") as problems:
        _check(architecture, problems)
    weights = {name: part for name, part in weights.items() if (output, name) != ("hidden", "head")}
    wanted = {one.place: one for one in _tensors(architecture, output)}
    with collecting("from_weights") as problems:
        given = dict(_arrays(weights, (), wanted, architecture.epsilon, problems))
        arrays = _checked(given, wanted, dtype, problems)
    with numerics(dtype):
        held = {Tensor(place, (), array.shape): array for place, array in arrays.items()}
        parameters = parameters_of(held, architecture.layers, HeldReader(dtype))
    return DescribedModel(PublishedTransformer(architecture, output, pooling=readout), parameters)


def _check(a: Architecture, problems: Problems) -> None:
    """Adds the errors of fields that do not fit together."""
    if a.heads % a.key_heads:
        problems.add("key_heads", a.key_heads, f"a divisor of heads = {a.heads}")
    for name in ("windows", "scales", "rotary"):
        if len(getattr(a, name)) not in (0, a.layers):
            problems.add(name, getattr(a, name), f"one for each of layers = {a.layers}, or ()")
    if a.head_activation is not None:
        inputs.choice("head_activation", a.head_activation, ACTIVATIONS, problems)
    if a.outputs and a.tied:
        problems.add("outputs", a.outputs, "0, or tied=False: a tied head has an output for each symbol")
    if isinstance(a.score_bias, Disentangled):
        remedy = "None, PositionSlopes or RelativeBias: others are read from folders"
        problems.add("score_bias", a.score_bias, remedy)
    if isinstance(a.score_bias, PositionSlopes) and len(a.score_bias.slopes) != a.heads:
        problems.add("score_bias", a.score_bias, f"a slope for each of heads = {a.heads}")
    for angles in {one for one in a.rotary if one is not None}:
        if angles.width % 2 or angles.width > a.head_width:
            problems.add("rotary", angles, f"an even width of at most head_width = {a.head_width}")


def _tensors(a: Architecture, output: Output) -> Iterator[Tensor]:
    """Yields the arrays that a model has: the tensors of a family that calls them by their places, inputs first."""
    final = a.norms != "after" if a.final_norm is None else a.final_norm
    outer = [*_OUTER, *["final_norm"] * final, *["output_map"] * (a.head_activation is None)]
    parts = [*_MAPS, *_NORMS, *["attention_after", "map_after"] * (a.norms == "both")]
    head = {"transform": "", "norm": ""} if a.head_activation else {}
    names = dict.fromkeys(outer, ""), "", dict.fromkeys(parts, "")
    own: dict[str, Any] = {"head_parts": head, "head_biases": ("",), "expert": dict.fromkeys(_MAPS, "")}
    family = Family("", "", lambda _: a, *names, "", inputs_first=True, **own)
    yield from family.tensors(a)
    if output == "logits":
        yield from family.head(a)
        if not a.tied:
            yield Tensor(("head", "matrix"), (), (a.embedding_width or a.width, a.outputs or a.symbols))


def _arrays(
    given: Any, place: Place, wanted: Mapping[Place, Tensor], epsilon: float, problems: Problems
) -> Iterator[tuple[Place, np.ndarray]]:
    """Yields the arrays that are given, by their places and with axes as there."""
    given = dict(enumerate(given)) if isinstance(given, list | tuple | Stack) else given
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        array = as_numpy(given) if hasattr(given, "detach") else np.asarray(given)
        of_experts = (*place, 0) in wanted and array.ndim
        yield from (((*place, e), part) for e, part in enumerate(array)) if of_experts else [(place, array)]
    elif isinstance(given, Mapping):
        for name, part in given.items():
            inner = _inner(place, name, wanted)
            for where, array in () if part is None else _arrays(part, inner, wanted, epsilon, problems):
                yield where, _turned(where, name, array)
    else:
        own = {name: getattr(given, name) for name in _OF_LAYERS if getattr(given, name, None) is not None}
        if not own:
            problems.add(_told(place), given, "an array, or a layer of Flax, Equinox or PyTorch")
        other = getattr(given, "eps", getattr(given, "epsilon", epsilon))
        if other != epsilon:
            problems.add((_told(place), "epsilon"), other, f"the architecture's is {epsilon}")
        yield from _arrays(own, place, wanted, epsilon, problems)


def _inner(place: Place, name: Any, wanted: Mapping[Place, Tensor]) -> Place:
    """Returns the place of a part by its name here, or in a layer of a library."""
    if place in wanted and name in ("weight", "embedding"):
        return place
    scale = "matrix" if (*place, "matrix") in wanted else "scale"
    shift = "shift" if (*place, "shift") in wanted else "bias"
    renamed: dict[Any, Any] = {"kernel": "matrix", "weight": scale, "bias": shift}
    return (*place, renamed.get(name, name))


def _turned(place: Place, name: Any, array: np.ndarray) -> np.ndarray:
    """Returns an array that a library calls by a name, with inputs first and heads in one axis."""
    if (name, place[-1]) == ("weight", "matrix"):
        return array.T
    if name == "kernel" and array.ndim > 2:
        return array.reshape(-1, array.shape[-1]) if "output" in place else array.reshape(len(array), -1)
    return array.reshape(-1) if (name, place[-1]) == ("bias", "bias") else array


def _checked(
    given: Mapping[Place, np.ndarray], wanted: Mapping[Place, Tensor], dtype: str, problems: Problems
) -> dict[Place, np.ndarray]:
    """Returns the parameters, and adds an error for each that is not as the architecture says."""
    missing = [_told(place) for place in wanted if place not in given]
    for name in missing:
        problems.note((name,), "missing")
    for name in (_told(place) for place in given if place not in wanted):
        problems.note((name,), f"the architecture has no such array{did_you_mean(name, missing)}")
    found: dict[Place, np.ndarray] = {}
    for place, tensor in wanted.items():
        shape = tensor.shape[::-1] if tensor.transposed else tensor.shape
        array = given.get(place, np.zeros(shape))
        if array.shape != shape:
            problems.add((_told(place), "shape"), array.shape, f"the architecture says {shape}")
        elif not jnp.issubdtype(array.dtype, jnp.floating):
            problems.add((_told(place), "dtype"), str(array.dtype), "give floating-point numbers")
        else:
            with np.errstate(over="ignore"):
                stored = array.astype(dtype)
            if not np.isfinite(stored).all():
                problems.note((_told(place),), f"numbers that are not finite in {dtype}")
            taken = tensor.taken(stored.T if tensor.transposed else stored)
            found[place] = taken + stored.dtype.type(tensor.plus) if tensor.plus else taken
    return found


def _told(place: Place) -> str:
    return ".".join(map(str, place))
