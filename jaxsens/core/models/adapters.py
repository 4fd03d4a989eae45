"""Adapters that turn every kind of model into a pure function of (parameters, tokens) and its parameters, and texts
into ids.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.inputs import plain_numbers
from jaxsens.core.base.programs import as_arrays, cached
from jaxsens.core.base.strict import with_fields
from jaxsens.core.models.model_problems import check_is_model
from jaxsens.core.models.torch_model import TorchModel
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import NetworkConfig, TransformerConfig
from jaxsens.core.models.transformer.layered import Attention, Layered, LayeredModel, forward
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.core.models.transformer.module import check_runs
from jaxsens.core.models.transformer.parameters import stacked


def as_texts(tokens: Any) -> Any:
    """Returns an array or a pandas column of texts as a list, and the ids of what a tokenizer of transformers returns;
    anything else unchanged.

    Raises:
        InputError: if the tokenizer has padded the texts.
    """
    if isinstance(tokens, Mapping) and "input_ids" in tokens:
        seen = np.asarray(tokens.get("attention_mask", 1))
        if seen.dtype == object or not seen.all():
            remedy = "no padding, which the model would read: give the texts, or one text at a time"
            raise InputError.of("tokens", "attention_mask with 0", remedy, subject="flip_sensitivity")
        return tokens["input_ids"]
    column: Any = tokens
    kind = getattr(getattr(column, "dtype", None), "kind", "")
    listed = column.tolist() if kind in ("O", "T", "U") else tokens
    return listed if _are_texts(listed) else tokens


def _are_texts(tokens: Any) -> bool:
    return isinstance(tokens, list | tuple) and bool(tokens) and all(isinstance(one, str) for one in tokens)


def encoded(model: Any, tokens: Any) -> Any:
    """Returns the ids of a text, or of each text of a list, if the model encodes texts; others as `as_texts` does."""
    encode, tokens = (
        getattr(model, "encode", None) if isinstance(model, LayeredModel) else None,
        as_texts(tokens),
    )
    if encode is None:
        return tokens
    if isinstance(tokens, str):
        return encode(tokens)
    return [encode(one) for one in tokens] if _are_texts(tokens) else tokens


def pieces_of(
    model: Any, given: Any, words: Int[np.ndarray, "batch n"]
) -> tuple[tuple[str, ...], ...] | None:
    """Returns what stands for each symbol in the texts that were given, or in what the model decodes of ids; None for a
    model that encodes no text."""
    pieces = getattr(model, "pieces", None) if isinstance(model, LayeredModel) else None
    if pieces is None:
        return None
    rows = [given] if isinstance(given, str) else given if isinstance(given[0], str) else words.tolist()
    return tuple(tuple(pieces(row)) for row in rows)


def name_of(model: Any) -> str | None:
    """Returns the name that a model has; that of a function, or of the model's class; None for a lambda."""
    if isinstance(model, tuple) and model:
        return name_of(model[0])
    own = getattr(model, "name", None) or getattr(model, "__name__", None)
    if isinstance(own, str):
        return None if own == "<lambda>" else own
    return type(model).__name__


RANDOM_OUTPUT = (
    "model: two calls on the same input differ; switch off randomness (model.eval(), deterministic=True, "
    "eqx.nn.inference_mode(model))"
)


@dataclass(frozen=True)
class Model:
    """A model ready to be measured.

    Attributes:
        apply: pure, hashable: (parameters, tokens (n,)) -> output.
        parameters: a pytree of arrays.
        call: the model as the user would call it, with state and randomness: tokens -> output.
        config: the config of a jaxsens transformer, which engines with closed forms need; otherwise None.
        alphabet_size: the number of symbols that flips may insert; None if unknown.
        vocabulary_size: the number of symbols that the model reads; None if unknown.
        readout: "last", a 0-based position, "mean", or None if unspecified; "auto" until it is determined.
        outputs: the output coordinates that the model designates to be measured; None for all.
        exact_length: the longest input on which the model promises to be exact in its dtype; None without a promise.
        exact_outputs: the output coordinates that the model promises to be exactly 0 or 1.
        given_layers: the user's model whose attention is visible, whose parameters are `parameters`; otherwise None.
        max_length: the length of the longest input; None without a limit.
        reserved: the symbols that are not inserted unless they are asked for, sorted.
        special: the symbols that are not flipped unless their positions are asked for, sorted.
        mask: the symbol that stands for an unknown one; None if the model has none, or does not say.
        unread: symbols that no input may have, and why.
        embeddings: returns the rows of the symbols' embeddings (symbols, width), without positions; None if unknown.
        output_of: returns the number and the name of an output, of either; None if outputs have no names.
        token_names: returns how to write each of some symbols, as a list of strings; None if only numbers are known.
        torch: the model if PyTorch runs it, outside JAX; otherwise None.
    """

    apply: Callable[[Any, Any], Any]
    parameters: Any
    call: Callable[[Any], Any]
    config: TransformerConfig | None = None
    alphabet_size: int | None = None
    vocabulary_size: int | None = None
    readout: int | str | None = "auto"
    outputs: tuple[int, ...] | None = None
    exact_length: int | None = None
    exact_outputs: tuple[int, ...] = ()
    given_layers: Layered | None = None
    max_length: int | None = None
    reserved: tuple[int, ...] = ()
    special: tuple[int, ...] = ()
    mask: int | None = None
    unread: Mapping[int, str] = field(default_factory=dict)
    embeddings: Callable[[], np.ndarray] | None = None
    output_of: Callable[[int | str], tuple[int, str]] | None = None
    token_names: Callable[[Sequence[int]], list[str]] | None = None
    torch: TorchModel | None = None

    @property
    def layered(self) -> Layered | None:
        """The model as one whose attention is visible, for engines that look into it; None for any other."""
        return self.given_layers if self.config is None else layered_transformer(self.config)

    @property
    def mesh(self) -> Mesh | None:
        """The devices over which its parameters are split; None if each device has all."""
        return None if self.given_layers is None else self.given_layers.mesh

    def check_length(self, n: int, problems: Problems) -> None:
        """Adds an error if the model cannot read inputs of length n, or a forward pass does not fit in memory."""
        if self.config is not None:
            check_runs(self.config, n, problems)
        if self.max_length is not None and n > self.max_length:
            problems.add("n", n, f"the model reads at most {self.max_length} symbols; give a shorter input")

    def check_readable(self, name: str, symbols: Int[np.ndarray, "*shape"], problems: Problems) -> None:
        """Adds an error for each symbol that no input may have."""
        for symbol, reason in self.unread.items():
            if np.any(symbols == symbol):
                problems.add(name, symbol, reason)

    def position_read(self, n: int) -> int | None:
        """Returns the readout position of an input of length n, which is not flipped by default, or None: the last one
        if it depends on the symbols."""
        if isinstance(self.readout, str) and self.readout != "mean":
            return n - 1
        return None if self.readout == "mean" or self.readout is None else int(self.readout)

    def reading(self, readout: Any, n: int, problems: Problems) -> Model:
        """Returns the model with another readout: "last", "mean", a 0-based position, or None; "auto" keeps its own.

        Adds an error for any other, and for one that the model, or an input of length n, does not have.
        """
        own = isinstance(readout, str) and readout == "auto"
        place = int(readout) if inputs.is_integer(readout) else None
        named = readout is None or (isinstance(readout, str) and readout in ("auto", "last", "mean"))
        if place is None and not named:
            problems.add("readout", readout, 'a 0-based position, "last", "mean", None, or "auto"')
        elif place is not None and place < 0:
            instead = '"last"' if place == -1 else f"n - {-place}"
            problems.add("readout", place, f"positions count from the front, from 0: give {instead}")
        elif place is not None and n and place >= n:
            problems.add("readout", place, f"a position from 0 to {n - 1}")
        elif not own and self.given_layers is None and self.readout not in ("auto", readout):
            remedy = "for another, use config.replace(readout=...)"
            problems.add(
                "readout", readout, f"this model's config sets its readout to {self.readout!r}; {remedy}"
            )
        elif self.given_layers is not None and readout is None:
            problems.add("readout", None, 'this model returns rows; give "last", a position or "mean"')
        elif not own:
            changed: dict[str, Any] = {"readout": plain_numbers(readout)}
            if self.given_layers is not None:
                apply = LayeredApply(self.given_layers, changed["readout"])
                changed |= {"apply": apply, "call": partial(apply, self.parameters)}
            return dataclasses.replace(self, **changed)
        return self

    def names_of(self, *symbols: Int[np.ndarray, "*shape"]) -> dict[int, str] | None:
        """Returns how to write every symbol of these arrays; None for a model that knows numbers only."""
        if self.token_names is None:
            return None
        ids = np.unique(np.concatenate([one.ravel() for one in symbols]))
        known = ids[ids >= 0].tolist()
        return dict(zip(known, self.token_names(known), strict=True))

    @cached_property
    def dtype(self) -> str:
        """ "float64" if any parameter is float64, otherwise "float32": the setting that the arithmetic needs.

        Models from elsewhere may hold hidden constants, so they are also "float64" if JAX is set to 64 bits.
        """
        if self.config is None and jnp.result_type(float) == "float64":
            return "float64"
        if self.torch is not None:
            return self.torch.dtype
        wide = any(getattr(leaf, "dtype", None) == np.float64 for leaf in jax.tree.leaves(self.parameters))
        return "float64" if wide else "float32"


@dataclass(frozen=True)
class TransformerApply:
    """`layers.apply` of one config."""

    config: TransformerConfig

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The transformer's output on one input."""
        return layers.apply(self.config, parameters, tokens)

    def with_sizes(self, parameters: Any, tokens: Any) -> tuple[Any, Any]:
        """The output, and the largest |log-normaliser| of each layer."""
        return layers.apply_with_sizes(self.config, parameters, tokens)

    def operations(self, n: int) -> float:
        """Floating-point operations of one call on an input of length n."""
        return layers.apply_operations(self.config, n)


@dataclass(frozen=True)
class LayeredApply:
    """A user's model whose attention is visible, and the row that is read."""

    model: Layered
    readout: int | str

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The output on one input."""
        return forward(self.model, as_arrays(parameters), tokens, self.readout)


def in_float64(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any] | None:
    """Returns a float32 model's function in float64, for parameters in float64; None if there is none.

    What a user's function computes in is its own affair, but for a `Layered`, whose arrays are its parameters.
    """
    match apply:
        case TransformerApply() if apply.config.dtype == "float32":
            return _transformer_in_float64(apply.config)
        case LayeredApply() if apply.model.mesh is None:
            return apply
        case _:
            return None


@cached
def _transformer_in_float64(config: TransformerConfig) -> TransformerApply:
    return TransformerApply(with_fields(config, dtype="float64"))


@dataclass(frozen=True)
class NnxApply:
    """A Flax NNX module, split into its graph and its state."""

    graph: Any

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """Merges the module and calls it."""
        from flax import nnx

        return nnx.merge(self.graph, parameters, copy=True)(tokens)


@dataclass(frozen=True)
class LinenApply:
    """A Flax Linen module; the parameters are its variables."""

    module: Any

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """Applies the module."""
        return self.module.apply(parameters, tokens)


@dataclass(frozen=True)
class TorchApply:
    """A PyTorch module, which JAX calls. It has no parameters that JAX can see."""

    model: TorchModel

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The output on one input."""
        return self.model(tokens)

    def operations(self, n: int) -> float:
        """Floating-point operations of one call on an input of length n."""
        return self.model.operations(n)

    @property
    def batch_symbols(self) -> int:
        """The number of symbols in a batch of inputs, by default."""
        return self.model.batch_symbols


@dataclass(frozen=True)
class PairApply:
    """A function of (parameters, tokens) with its parameters, a pytree. Only the arrays among them are arguments; every
    other leaf is part of the function."""

    function: Callable[[Any, Any], Any]
    structure: Hashable
    fixed: tuple[Any, ...]

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """Calls the function."""
        given = iter(parameters)
        leaves = [next(given) if leaf is _ARRAY else leaf for leaf in self.fixed]
        return self.function(jax.tree.unflatten(self.structure, leaves), tokens)  # pyright: ignore[reportArgumentType]


class _ArrayPlace:
    """Marks the place of an array leaf in `PairApply.fixed`."""


_ARRAY = _ArrayPlace()


def as_model(model: Any) -> Model:
    """Returns the adapter for any model: a jaxsens model, an NNX module, a Linen module with variables (bound, or as a
    pair (module, variables)), an Equinox module, a pair (function, parameters), called as function(parameters, tokens),
    a pair (`Layered`, parameters) or a `LayeredModel`, a `TorchModel`, or a callable tokens -> array.

    Raises:
        InputError: if it is none of these; the message says what it is instead, and what to write.
    """
    if isinstance(model, Model):
        return model
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        return _from_nnx(nnx, model)
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(model, linen.Module):
        if model.scope is None:
            raise InputError(
                f"model = {type(model).__name__} without variables: pass (module, variables) or module.bind(variables)"
            )
        module, variables = model.unbind()
        return _from_linen(module, variables)
    if (
        linen is not None
        and isinstance(model, tuple)
        and len(model) == 2
        and isinstance(model[0], linen.Module)
    ):
        return _from_linen(*model)
    if isinstance(model, LayeredModel):
        return _from_layered_model(model)
    if isinstance(model, TorchModel):
        model.check()
        return Model(TorchApply(model), (), call=model, vocabulary_size=model.vocabulary_size, torch=model)
    if isinstance(model, Layered):
        raise InputError(
            f"model = {type(model).__name__} without parameters: pass the pair (layered, parameters)"
        )
    check_is_model(model)
    if isinstance(model, tuple) and not callable(model):
        return _from_layered(*model) if isinstance(model[0], Layered) else _from_pair(*model)
    # A callable pytree (an Equinox module, a `jax.tree_util.Partial`), or any other callable, which is a single leaf.
    return _from_pair(operator.call, model, type(model).__name__)


def as_inputs(
    model: Model, tokens: Any, problems: Problems, *, one: bool = False
) -> Int[np.ndarray, "batch n"]:
    """Returns the inputs, after adding the errors of those that the model cannot read; (0, 0) if there are none.

    With `one`, the tokens are those of a single input.
    """
    words = inputs.tokens(tokens, model.vocabulary_size, problems, one=one)
    n = words.shape[1]
    sizes = [size for size in (model.alphabet_size, model.vocabulary_size) if size is not None] or [n]
    if len(words) > 1 < n and n in sizes and inputs.is_one_hot(words, None):
        told = f"tokens: {len(words)} inputs of {n} symbols are measured, each with a single 1"
        warnings.warn(f"{told}: of one input in one-hot rows, give tokens.argmax(-1)", stacklevel=4)
    model.check_readable("tokens", words, problems)
    if n:
        model.check_length(n, problems)
    return words


def _from_nnx(nnx: Any, model: Any) -> Model:
    config = getattr(model, "config", None)
    if not isinstance(config, NetworkConfig):
        config = None
    if isinstance(config, TransformerConfig) and hasattr(type(model), "parameters"):
        own = model.parameters
        return Model(
            TransformerApply(config),
            dataclasses.replace(own, layers=stacked(config, own.layers)),
            call=model,
            config=config,
            alphabet_size=config.alphabet_size,
            vocabulary_size=config.vocabulary_size,
            readout=config.readout,
            outputs=getattr(model, "outputs", None),
            exact_length=getattr(model, "exact_length", None),
            exact_outputs=getattr(model, "exact_outputs", ()),
            embeddings=lambda: np.asarray(own.embedding),
        )
    graph, state = nnx.split(model)
    # Call a copy, so that counters of random streams advance there and not in the user's model.
    copy, judged = nnx.clone(model), []

    def drawn() -> list[Any]:
        return [np.asarray(count) for count in jax.tree.leaves(nnx.state(copy, nnx.RngCount))]

    def call(tokens: Any) -> Any:
        before = drawn()
        output = copy(tokens)
        if not judged and not all(map(np.array_equal, before, drawn())):
            # Rates may be low, and two outputs alike by chance; numbers that are drawn and not used change nothing.
            if not all(np.array_equal(output, copy(tokens)) for _ in range(16)):
                raise InputError(RANDOM_OUTPUT)
            judged.append(True)
        return output

    return Model(
        NnxApply(graph),
        state,
        call=call,
        alphabet_size=getattr(config, "alphabet_size", None),
        vocabulary_size=getattr(config, "vocabulary_size", None),
        readout=getattr(config, "readout", "auto"),
    )


def _from_linen(module: Any, variables: Any) -> Model:
    return Model(LinenApply(module), variables, call=lambda tokens: module.apply(variables, tokens))


def _from_pair(function: Any, parameters: Any, name: str = "(function, parameters)") -> Model:
    leaves, structure = jax.tree.flatten(parameters)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray)]
    fixed = (_ARRAY if isinstance(leaf, jax.Array | np.ndarray) else leaf for leaf in leaves)
    apply = PairApply(function, structure, tuple(fixed))
    _check_hashable(apply, name)
    return Model(apply, arrays, call=partial(function, parameters))


def _from_layered(model: Layered, parameters: Any) -> Model:
    name = type(model).__name__
    with collecting(name) as problems:
        layers = inputs.count("layers", getattr(model, "layers", None), problems)
        inputs.config_readout("readout", model.readout, problems, by_symbol=True)
        for field in ("alphabet_size", "vocabulary_size"):
            inputs.optional_count(field, getattr(model, field), problems)
        for k in range(layers or 0):
            if not isinstance(model.attention(k), Attention):
                problems.add(f"attention({k})", model.attention(k), "an Attention")
    apply = LayeredApply(model, plain_numbers(model.readout))
    _check_hashable(apply, f"({name}, parameters)")
    others = [leaf for leaf in jax.tree.leaves(parameters) if not isinstance(leaf, jax.Array | np.ndarray)]
    if others:
        raise InputError(
            f"model = ({name}, parameters): the parameters hold {others[0]!r}, which is not an array; keep constants "
            f"in fields of {name}"
        )
    return Model(
        apply,
        parameters,
        call=partial(apply, parameters),
        alphabet_size=model.alphabet_size,
        vocabulary_size=model.vocabulary_size,
        readout=apply.readout,
        given_layers=model,
    )


def _from_layered_model(model: LayeredModel) -> Model:
    table, names = model.embeddings, model.tokens
    return dataclasses.replace(
        _from_layered(model.layered, model.parameters),
        max_length=model.max_length,
        reserved=model.reserved,
        special=model.special,
        mask=model.mask,
        unread=model.unread,
        embeddings=table if type(model).embeddings is not LayeredModel.embeddings else None,
        output_of=getattr(model, "output_of", None),
        token_names=names if type(model).tokens is not LayeredModel.tokens else None,
    )


def _check_hashable(apply: Any, model: str) -> None:
    try:
        hash(apply)
    except TypeError:
        raise InputError.of(
            "model",
            model,
            "it is not hashable, which compilation requires; wrap it: lambda t: model(t); "
            "or make it a frozen dataclass",
        ) from None
