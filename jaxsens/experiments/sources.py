"""Where a point's model comes from: a `[model]` table becomes one of a few typed sources.

A source holds everything that determines the model (`expanded`), tells what the sweep needs to know of it without a
seed, and builds it for a seed. A key of the table says which kind of source it is: `formula`, `construction`,
`checkpoint`, or `kind` for networks with random weights. A further kind is one more class and one more line in
`_READERS`, `_described` and `keys_of`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaxsens.constructions.catalogue import construction
from jaxsens.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.constructions.compiled import CompiledTransformer
from jaxsens.constructions.compiler import compile_formula
from jaxsens.constructions.conditions import Read
from jaxsens.errors import Faults, InputError
from jaxsens.experiments.words import Symbols
from jaxsens.logic import parse, symbols
from jaxsens.models.baselines_config import Dtype
from jaxsens.models.config import TransformerConfig
from jaxsens.models.config_tables import CONFIGS, NetworkConfig, build, plain, read_config
from jaxsens.models.transformer import check_runs
from jaxsens.strict import did_you_mean, field_names, join, messages, read_fields

EVERY = "every coordinate"

Constructed = CompiledTransformer | ReferenceTransformer
"""Models that mathematics gives the weights of."""

Weights = Literal["random", "constructed", "trained"]
"""Where a model's weights come from: the point's seed, mathematics, or training."""

COMMON = ("condition", "autoregressive", "dtype", "read")
"""The keys that every constructed model has, with the same meaning."""


class ModelSource(abc.ABC):
    """What all sources have in common.

    Attributes:
        weights: where the weights come from. Only "random" ones depend on the seed of a point.
    """

    weights: ClassVar[Weights]

    @property
    @abc.abstractmethod
    def network(self) -> NetworkConfig:
        """The config of the model."""

    def expanded(self) -> dict[str, Any]:
        """Everything that determines the model, as JSON values."""
        return plain(self)

    @abc.abstractmethod
    def build(self, seed: int) -> Any:
        """The model, a Flax NNX module."""

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads."""
        return Symbols(self.network.alphabet_size, self.network.end_of_sequence)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols 0, 1, 2 ...: these numbers if it gives none."""
        return tuple(map(str, range(self.network.alphabet_size)))

    @property
    def bounded(self) -> bool:
        """Whether its position embeddings stay bounded as n grows; True if it has none."""
        return not isinstance(self.network, TransformerConfig) or self.network.bounded

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured if the sweep does not say."""
        return EVERY

    @property
    def output_size(self) -> int:
        """The number of coordinates of its output."""
        return self.network.logits or self.network.width

    @property
    def exact_length(self) -> int | None:
        """The longest input that it is exact for in its dtype; None if that is not known."""
        return None

    def check_length(self, n: int, faults: Faults) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        readout = getattr(self.network, "readout", "last")
        if isinstance(self.network, TransformerConfig):
            check_runs(self.network, n, faults)
        elif isinstance(readout, int) and readout >= n:
            faults.add("tokens", f"length {n}", f"longer than the readout position {readout}")


@dataclass(frozen=True)
class Network(ModelSource):
    """A network with random weights drawn by the point's seed."""

    config: NetworkConfig
    weights: ClassVar[Weights] = "random"

    @property
    def network(self) -> NetworkConfig:
        """The config."""
        return self.config

    def expanded(self) -> dict[str, Any]:
        """The config with every default written out, as JSON values."""
        return plain(self.config)

    def build(self, seed: int) -> Any:
        """The model, a Flax NNX module."""
        return build(self.config, seed=seed)


@dataclass(frozen=True)
class CheckpointModel(ModelSource):
    """A trained model, from a checkpoint that `jaxsens train` wrote.

    Attributes:
        fingerprint: SHA-256 of the step, of the config without its evaluations and checkpoints, and of all weights and
            the optimiser's state: `jaxsens.training.checkpoints.TrainedModel.fingerprint`.
        step: after how many steps of training it was written.
        steps: how many the training has in all; with fewer it is not finished.
        task: "prediction" of the next symbol, or "recognition" of words.
        language: the name of what it was trained on.
        alphabet: the language's symbols.
        model: the module.
    """

    fingerprint: str
    step: int
    steps: int
    task: Literal["prediction", "recognition"]
    language: str
    alphabet: tuple[str, ...]
    model: Any = field(compare=False, repr=False)
    weights: ClassVar[Weights] = "trained"

    @property
    def network(self) -> NetworkConfig:
        """The config of the module."""
        return self.model.config

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads. To predict it reads the end-of-sequence symbol first, to recognise it last."""
        return dataclasses.replace(super().symbols, end_first=self.task == "prediction")

    @property
    def names(self) -> tuple[str, ...]:
        """The language's symbols."""
        return self.alphabet

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured if the sweep does not say."""
        return f"the logits of {'the next symbol' if self.task == 'prediction' else 'the two labels'}"

    def expanded(self) -> dict[str, Any]:
        """Everything that determines the model, as JSON values; its place on the disk does not."""
        named = ("fingerprint", "step", "task", "language")
        return {"type": "CheckpointModel", **{name: getattr(self, name) for name in named}}

    def build(self, seed: int) -> Any:
        """The model, the same for every seed."""
        return self.model


@dataclass(frozen=True)
class _Constructed(ModelSource):
    """What formulas and constructions have in common.

    Attributes:
        autoregressive: the future-masked construction, which does not depend on n.
        dtype: of parameters and arithmetic.
        read: which coordinates of the output are measured if the sweep does not say.
    """

    weights: ClassVar[Weights] = "constructed"
    _: dataclasses.KW_ONLY
    autoregressive: bool = False
    dtype: Dtype = "float64"
    read: Read = "output"

    @cached_property
    def model(self) -> Constructed:
        """The model. Made at the first use; raises an `InputError` with every reason why it cannot be."""
        return self._made()

    @abc.abstractmethod
    def _made(self) -> Constructed: ...

    @property
    def common(self) -> dict[str, Any]:
        """The options that formulas and constructions share."""
        return {"autoregressive": self.autoregressive, "dtype": self.dtype, "read": self.read}

    @property
    def network(self) -> NetworkConfig:
        """The config of the model."""
        return self.model.config

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols."""
        return getattr(self.model, "alphabet", super().names)

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured if the sweep does not say."""
        words: Mapping[Read, str] = {
            "output": "the coordinate of the result",
            "before-rounding": "what the last rounding reads",
            "everything": EVERY,
        }
        return words[self.read]

    @property
    def exact_length(self) -> int | None:
        """The longest input that it is exact for in its dtype; None if that is not known."""
        return self.model.exact_length

    def build(self, seed: int) -> Constructed:
        """The model, the same for every seed."""
        return self.model


@dataclass(frozen=True)
class FormulaModel(_Constructed):
    """A formula compiled under a condition.

    Attributes:
        formula: its text, as `jaxsens.logic` prints it.
        alphabet: the names of the symbols 0, 1, 2 ...
        condition: see `jaxsens.compile_formula`, as for the rest.
    """

    formula: str
    alphabet: tuple[str, ...]
    condition: str = "temperature"

    def _made(self) -> Constructed:
        condition: Any = self.condition  # checked there
        return compile_formula(self.formula, self.alphabet, condition, **self.common)


@dataclass(frozen=True)
class ConstructionModel(_Constructed):
    """A construction called by its name.

    Attributes:
        construction: its name, see `jaxsens.construction`, as for the rest.
        condition: None for the construction's own.
        options: the construction's further options, sorted by name.
    """

    construction: str
    condition: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def _made(self) -> Constructed:
        condition: Any = self.condition  # checked there
        return construction(self.construction, condition, **self.common, **dict(self.options))

    def expanded(self) -> dict[str, Any]:
        """Everything that determines the model, as JSON values; with the condition that it has if none was given."""
        promise = getattr(self.model, "promise", None)
        condition = self.condition if promise is None else promise.condition
        return {**plain(self), "condition": condition, "options": plain(dict(self.options))}


# Reading tables


def read_source(
    table: Mapping[str, Any], path: str, faults: Faults, folder: Path = Path()
) -> ModelSource | None:
    """The source that a `[model]` table describes, or None after noting every error below `path`. Files and
    directories that it names are looked for in `folder`."""
    named = [key for key in _READERS if key in table]
    if len(named) > 1:
        faults.messages.append(f"{path}: {' and '.join(named)} each name a model; give one of them")
        return None
    own = Faults(path)
    source = _READERS[named[0] if named else "kind"](table, path, own, folder)
    faults.extend(own)
    return None if own else source


def _read_network(table: Mapping[str, Any], path: str, faults: Faults, folder: Path) -> Network | None:
    config = read_config(table, path, faults, also=("formula", "construction"))
    return None if config is None else Network(config)


def _read_formula(table: Mapping[str, Any], path: str, faults: Faults, folder: Path) -> FormulaModel:
    alphabet, given = table.get("alphabet", []), dict(table)
    if isinstance(alphabet, str):
        given["alphabet"] = list(alphabet)
    elif not isinstance(alphabet, list):
        remedy = "a string, each character a symbol, or a list of the symbols' names"
        faults.add(f"{path}.alphabet", alphabet, remedy)
        given["alphabet"] = []
    sound = read_fields(FormulaModel, given, path, faults)
    # The compiler says what is wrong with the rest even where there is no formula, or no alphabet to go with it.
    text, used = _canonical(sound.get("formula", "true"))
    if "alphabet" not in sound or not isinstance(alphabet, str | list):
        sound["alphabet"] = tuple(sorted({"0", "1"} | used))
    source = FormulaModel(**{**sound, "formula": text})
    _note_refusal(source, path, faults)
    return source


def _canonical(text: str) -> tuple[str, frozenset[str]]:
    """A formula's text as `jaxsens.logic` prints it, and its symbols. A text that cannot be read stays as it is: the
    compiler explains it."""
    try:
        formula = parse(text)
    except InputError:
        return text, frozenset()
    return str(formula), frozenset(symbols(formula))


def _read_construction(
    table: Mapping[str, Any], path: str, faults: Faults, folder: Path
) -> ConstructionModel | None:
    own = ("construction", *COMMON)
    sound = read_fields(ConstructionModel, {key: table[key] for key in own if key in table}, path, faults)
    options: list[tuple[str, Any]] = []
    for name in sorted(table.keys() - {*own}):
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if any(isinstance(part, dict | list) for part in (value if isinstance(value, tuple) else (value,))):
            faults.messages.append(
                f"{path}.{name}: no option of a construction is a table or a list of lists"
            )
        else:
            options.append((name, value))
    if "construction" not in sound:
        return None
    source = ConstructionModel(**{**sound, "options": tuple(options)})
    _note_refusal(source, path, faults)
    return source


def _note_refusal(source: FormulaModel | ConstructionModel, path: str, faults: Faults) -> None:
    """Notes why the model cannot be made, if it cannot."""
    try:
        _ = source.model
    except InputError as error:
        found = messages(error)
        if isinstance(source, ConstructionModel):
            found = [f"construction{text[4:]}" if text.startswith("name = ") else text for text in found]
        faults.messages += [join(path, [message]) for message in found]


def _read_checkpoint(
    table: Mapping[str, Any], path: str, faults: Faults, folder: Path
) -> CheckpointModel | None:
    from jaxsens.training.checkpoints import load_checkpoint  # slow to import, and most sweeps need none

    for key in table.keys() - {"checkpoint"}:
        hint = did_you_mean(key, ("checkpoint",)) or "; a checkpoint is measured as it was trained"
        faults.messages.append(f"{path}.{key}: unknown key{hint}")
    directory = table["checkpoint"]
    if not isinstance(directory, str):
        faults.add(f"{path}.checkpoint", directory, "the name of a directory that `jaxsens train` wrote")
        return None
    try:
        trained = load_checkpoint(folder / directory)
    except InputError as error:
        faults.messages += [f"{path}.checkpoint = {directory!r}: {message}" for message in messages(error)]
        return None
    return CheckpointModel(
        fingerprint=trained.fingerprint,
        step=trained.step,
        steps=trained.config.optimiser.steps,
        task=trained.config.task,
        language=trained.language.name,
        alphabet=trained.language.alphabet,
        model=trained.model,
    )


_READERS: dict[str, Callable[[Mapping[str, Any], str, Faults, Path], ModelSource | None]] = {
    "formula": _read_formula,
    "construction": _read_construction,
    "checkpoint": _read_checkpoint,
    "kind": _read_network,
}
"""How a table is read, by the key that says what it describes."""


# Tables that change another


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A `[model]` table with some keys replaced. If the changes name another kind of model, or another construction,
    the keys of `base` that it does not have are dropped."""
    if any(key in changes for key in _READERS) and _described(changes) != _described(base):
        kept = keys_of(changes) - _READERS.keys()
        return {**{key: value for key, value in base.items() if key in kept}, **changes}
    return {**base, **changes}


def keys_of(table: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a table which describes the same kind of model as `table` may have, as far as is known: a
    construction may have options of its own. Empty for an unknown kind."""
    named, kind = _described(table)
    if named == "formula":
        return frozenset(field_names(FormulaModel))
    if named == "construction":
        return frozenset({"construction", *COMMON})
    if named == "checkpoint":
        return frozenset({"checkpoint"})
    config = CONFIGS.get(kind) if isinstance(kind, str) else None
    return frozenset() if config is None else frozenset({"kind", *field_names(config)})


def _described(table: Mapping[str, Any]) -> tuple[str, object]:
    """What kind of model a table describes; of constructions and networks, which."""
    for key in ("formula", "checkpoint"):
        if key in table:
            return key, None
    if "construction" in table:
        return "construction", table["construction"]
    return "kind", table.get("kind", "transformer")
