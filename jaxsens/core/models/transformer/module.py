"""The networks as Flax NNX modules: their base class, the transformer, and the network that a `[model]` table
describes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Location, Problem, Problems, check_fits, collecting
from jaxsens.core.base.programs import compiled, numerics
from jaxsens.core.base.registry import entries, load
from jaxsens.core.base.strict import did_you_mean, field_names, is_later
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import NetworkConfig, TransformerConfig
from jaxsens.core.models.transformer.parameters import (
    TransformerParameters,
    initialise,
    on_device,
    parameters_from_numpy,
    shapes,
)

Tree = TypeVar("Tree")
_SIZES = ("alphabet_size", "width", "layers", "heads", "head_width", "feed_forward", "logits", "kernel_width")


def check_size(config: Any, problems: Problems) -> None:
    """Adds an error if the parameters of a network do not fit in this machine's memory. It names the largest size."""
    fields = {name: getattr(config, name, None) or 0 for name in _SIZES}
    sizes = {name: max(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    terms = getattr(config, "position_terms", ())
    sizes["positions"] = max((getattr(term, "max_length", 0) for term in terms), default=0)
    largest = max(sizes, key=lambda name: sizes[name])
    needed, remedy = config.parameter_count * np.dtype(config.dtype).itemsize, "give a smaller one"
    check_fits(largest, sizes[largest], needed, "a network of this size", remedy, problems)


def check_tokens(config: NetworkConfig, tokens: ArrayLike) -> None:
    """Rejects tokens of the wrong type, shape or range. The range is checked only if the values are known.

    Raises:
        InputError: listing every error.
    """
    if not isinstance(tokens, np.ndarray | np.generic | jax.Array | int | float | complex):
        raise InputError.of("tokens", type(tokens).__name__, "give an array, such as numpy.array([0, 1])")
    with collecting("tokens") as problems:
        if inputs.is_masked(tokens):
            problems.add("tokens", tokens, inputs.UNMASKED)
        shape, dtype = np.shape(tokens), getattr(tokens, "dtype", type(tokens))
        if not jnp.issubdtype(dtype, jnp.integer):
            problems.add("tokens", str(dtype), "whole numbers: symbols are 0 .. alphabet_size - 1")
        if not shape or 0 in shape:
            remedy = "an array of shape (n,) or (batch, n), of at least one symbol"
            problems.add("tokens", f"shape {shape}", remedy)
        else:
            config.check_length(shape[-1], problems)
        if not problems and not isinstance(tokens, Tracer):
            # With NumPy, because JAX would first wrap ids beyond 32 bits around.
            inputs.check_ids("tokens", np.asarray(tokens), config.vocabulary_size, problems)


def instead_of(value: object, expected: str) -> str:
    """Says what to pass instead of `value`, which may hold it (a training's record has its network in `.model`).

    >>> instead_of(3, "a Transformer")
    'a Transformer'
    """
    held = getattr(value, "model", None)
    return expected if held is None else f"its .model, a {type(held).__name__}; expected {expected}"


def checked_parameters(expected: Tree, actual: Tree, dtype: str) -> Tree:
    """Returns the given parameters as JAX arrays of `dtype`.

    Args:
        expected: a tree of the same kind whose leaves have the required shapes.
        actual: JAX or NumPy arrays.
        dtype: "float32" or "float64".

    Raises:
        InputError: if the structure or a shape is wrong, listing every such shape.
    """
    problems = Problems("parameters")
    want, have = jax.tree.structure(expected), jax.tree.structure(actual)
    if want != have:
        problems.add("parameters", have, f"the structure of this config, {want}")
        problems.raise_if_any()
    shapes = jax.tree_util.tree_flatten_with_path(expected)[0]
    for (path, shape), leaf in zip(shapes, jax.tree.leaves(actual), strict=True):
        if jnp.shape(leaf) != shape.shape:
            problems.add(jax.tree_util.keystr(path), jnp.shape(leaf), f"shape {shape.shape}")
    problems.raise_if_any()
    with numerics(dtype):
        return parameters_from_numpy(actual, dtype)


Config = TypeVar("Config", bound=NetworkConfig)
Parameters = TypeVar("Parameters")


class Network(nnx.Module, Generic[Config, Parameters]):
    """A network of a config, with its parameters.

    Args:
        config: its shape and choices.
        seed: the seed of random parameters.
        parameters: those to use instead; their shapes must be those of the config.

    Attributes:
        of: of each class derived from it, the class of its configs.
        drawn: the function of (config, seed) that returns random parameters.
        shaped: the function of a config that returns a tree of the shapes of its parameters.
        output_of: the pure function of (config, parameters, tokens) that returns the output on one input.
        rows_of: the one that returns the last layer at every position.

    Raises:
        InputError: naming each unusable argument.
    """

    of: ClassVar[type[Any]]
    drawn: ClassVar[Callable[[Any, int], Any]]
    shaped: ClassVar[Callable[[Any], Any]]

    output_of: ClassVar[Callable[..., Array]]
    rows_of: ClassVar[Callable[..., Array]]

    def __init__(self, config: Config, seed: int = 0, parameters: Parameters | None = None) -> None:
        with collecting(type(self).__name__) as problems:
            if not isinstance(config, self.of):
                problems.add("config", config, f"give a {self.of.__name__}")
            else:
                check_size(config, problems)
            seed = inputs.seed(seed, problems)
        self.config = config
        if parameters is None:
            own = type(self).drawn(config, seed)
        else:
            own = checked_parameters(type(self).shaped(config), parameters, config.dtype)
        self.variables = nnx.data(jax.tree.map(nnx.Param, own))

    @property
    def parameters(self) -> Parameters:
        """The parameters as a pytree of plain arrays."""
        return jax.tree.map(
            lambda variable: variable[...],
            self.variables,
            is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
        )

    def __call__(self, tokens: ArrayLike) -> Float[Array, "*batch outputs"]:
        """Returns the output on each input: (width,), or (logits,) with a linear head. Compiled once per shape."""
        return self._run(self.output_of, "(n)->(d)", tokens)

    def activations(self, tokens: ArrayLike) -> Float[Array, "*batch n width"]:
        """Returns the last layer at every position of each input, before any pooling. Compiled once per shape."""
        return self._run(self.rows_of, "(n)->(n,d)", tokens)

    def _run(self, function: Callable[..., Array], signature: str, tokens: ArrayLike) -> Array:
        check_tokens(self.config, tokens)
        with numerics(self.config.dtype):
            return _of_each(function, signature, self.config, self.parameters, on_device(tokens))


@compiled(static=3)
def _of_each(
    function: Callable[..., Array], signature: str, config: Any, parameters: Any, tokens: Array
) -> Array:
    return jnp.vectorize(partial(function, config, parameters), signature=signature)(tokens)


class Transformer(Network[TransformerConfig, TransformerParameters]):
    """A transformer described by a `TransformerConfig`.

    `model(tokens)` is the readout y_r^(L) (or a linear head's logits); `model.activations(tokens)` is y^(L) at every
    position. Tokens are integers below `config.vocabulary_size`, with an optional leading batch axis.

    Args:
        config: the model's shape and choices.
        seed: the seed of the random parameters; see `jaxsens.core.models.transformer.parameters.initialise`.
        parameters: parameters to use instead; their shapes must match the config.

    Raises:
        InputError: naming each unusable argument.

    >>> import numpy as np
    >>> model = Transformer(TransformerConfig(2, width=8, heads=2), seed=0)
    >>> model(np.array([0, 1, 1, 2])).shape
    (8,)
    """

    of = TransformerConfig
    drawn = staticmethod(initialise)
    shaped = staticmethod(shapes)
    output_of = staticmethod(layers.apply)
    rows_of = staticmethod(layers.activations)


def check_runs(config: TransformerConfig, n: int, problems: Problems) -> None:
    """Adds an error if the model cannot read inputs of length n, or a forward pass does not fit in memory."""
    before = len(problems)
    config.check_length(n, problems)
    if len(problems) == before:
        needed, remedy = activation_bytes(config, n), "give a shorter input"
        check_fits("tokens", f"length {n}", needed, "what a forward pass holds of it", remedy, problems)


def activation_bytes(config: TransformerConfig, n: int) -> int:
    """Returns a lower bound on the bytes of one input's activations: depth 1 needs them only at the readout."""
    layers = config.layers + 1 if config.layers > 1 else 1
    return n * config.width * layers * np.dtype(config.dtype).itemsize


def kinds() -> tuple[str, ...]:
    """Returns what `kind` in a `[model]` table may be: "transformer", or a kind that an installed package brings."""
    return ("transformer", *entries("model_kinds"))


def network(kind: str) -> type[Network[Any, Any]]:
    """Returns the class of a kind of networks.

    Raises:
        InputError: if there is no such kind, or a package brings something else under its name.
    """
    if kind not in kinds():
        raise InputError(Problem(("kind",), kind, f"one of {', '.join(kinds())}"))
    made = Transformer if kind == "transformer" else load("model_kinds", kind)
    if isinstance(made, type) and issubclass(made, Network) and made.of.kind == kind:
        return made
    value = entries("model_kinds")[kind].value
    remedy = f"{value} of its package is no Network with a config of this kind"
    raise InputError(Problem(("kind",), kind, remedy))


def build(config: NetworkConfig, **options: Any) -> Any:
    """Returns the network of a config, a Flax NNX module; the options are `seed` or `parameters`."""
    return network(config.kind)(config, **options)


def config_type(
    table: Mapping[str, Any], path: str | Location, problems: Problems
) -> type[NetworkConfig] | None:
    """Returns the config type named by the key `kind` of a table, by default "transformer"; None after an error."""
    try:
        return network(table.get("kind", "transformer")).of
    except InputError as error:
        problems.include(error.problems, path)
        return None


def read_config(
    table: Mapping[str, Any], path: str | Location, problems: Problems, also: tuple[str, ...] = ()
) -> NetworkConfig | None:
    """Returns the config described by a table with a `kind`, or None after adding all errors below `path`.

    `also` names further keys allowed in such a table, for "did you mean".
    """
    kind = config_type(table, path, problems)
    if kind is None:
        return None
    own, names = Problems(), field_names(kind)
    fields = {key: value for key, value in table.items() if key != "kind"}
    for key in [key for key in fields if key not in names]:
        own.note((key,), f"unknown key{did_you_mean(key, (*also, 'kind', *names))}")
        del fields[key]
    try:
        made = kind(**fields)
        if not own:
            return made
    except InputError as error:
        own.include(error.problems)
    problems.include(own, path)
    return None


def plain(value: Any) -> Any:
    """Returns JSON values for a config: dataclasses as tables with their `type`, tuples as lists.

    Fields made by `strict.later` are left out at their defaults.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        fields = {field.name: plain(one) for field, one in values if not is_later(field, one)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
