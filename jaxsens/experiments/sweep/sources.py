"""Where a point's model comes from: a `[model]` table becomes a `ModelSource`.

A source holds everything that determines the model (`expanded`), tells what the sweep needs to know of it without a
point, and builds it for a length and a seed. A key of the table says which kind of source it is: `formula`,
`construction`, `checkpoint`, `pretrained`, `python` for a function of the user's, or `kind` for networks with random
weights. A further kind is one more function and one more line in `_READERS` and `keys_of`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jaxsens.asked.flips import Flips
from jaxsens.base.errors import InputError, Problems
from jaxsens.base.strict import did_you_mean, field_names, join, later, messages, read_fields
from jaxsens.constructions.catalogue import construction
from jaxsens.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.constructions.compiled import CompiledTransformer
from jaxsens.constructions.compiler import compile_formula
from jaxsens.constructions.conditions import Read
from jaxsens.experiments.sweep.published import PublishedModel, PublishedTable, read_published
from jaxsens.experiments.sweep.words import Symbols
from jaxsens.logic import parse, symbols
from jaxsens.models.config_tables import build, config_type, plain, read_config
from jaxsens.models.networks.config import Dtype, NetworkConfig
from jaxsens.models.networks.given import check_size
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.module import check_runs

EVERY = "every coordinate"


def coordinates(outputs: Iterable[int]) -> str:
    """Coordinates of an output, in words."""
    return f"coordinates {', '.join(map(str, outputs))}"


Weights = Literal["random", "constructed", "trained", "own", "published"]
"""Where a model's weights come from: the point's seed, mathematics, training, a function of the user's, or a folder."""

SEEDED = ("random", "own")
"""Weights that depend on the seed."""

COMMON = ("condition", "autoregressive", "dtype", "read", "reweighted")
"""The keys that every constructed model has, with the same meaning."""

_READ: Mapping[Read, str] = {
    "output": "the coordinate of the result",
    "before-rounding": "what the last rounding reads",
    "everything": EVERY,
}


@dataclass(frozen=True)
class OwnModels:
    """What is known of the models that a function of the user's makes (`jaxsens.experiments.sweep.own`).

    Attributes:
        sha256: of each model, its parameters and its function, by length and seed; None where it cannot be made.
        example: a length and a seed for which it can be made.
        alphabet_size: the number of symbols; 0 if nothing says it.
        output_size: the number of coordinates of the output.
        flips: what is flipped by default.
    """

    sha256: Mapping[tuple[int, int], str | None]
    example: tuple[int, int]
    alphabet_size: int
    output_size: int
    flips: Flips


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model that can be built, and what a sweep needs to know of it before. Compared and hashed by identity.

    Attributes:
        weights: where the weights come from. Only "random" ones, and "own" models, depend on the point.
        network: the config of the model; None for an "own" model that is none of the package.
        expanded: everything that determines the model, as JSON values; the place of a checkpoint on the disk does not.
        build: makes the model of a length and a seed; the same one for every point unless the weights are random.
        given_names: the names of its symbols 0, 1, 2 ...; empty where they have none.
        end_first: whether it reads the end-of-sequence symbol first, not last.
        designated: in words, which coordinates of the output are measured if the sweep does not say.
        exact_length: the longest input that it is exact for in its dtype; None if that is not known.
        training: of a trained model, after which `step` of how many `steps` it was written; None for others.
        own: what is known of an "own" model; None for others.
        published: the published model; None for others.
    """

    weights: Weights
    network: NetworkConfig | None
    expanded: dict[str, Any]
    build: Callable[[int, int], Any]
    given_names: tuple[str, ...] = ()
    end_first: bool = False
    designated: str = EVERY
    exact_length: int | None = None
    training: dict[str, int] | None = None
    own: OwnModels | None = None
    published: PublishedModel | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols: the numbers themselves where they have none."""
        return self.given_names or tuple(map(str, range(self.symbols.alphabet_size)))

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads; of size 0 if nothing says it."""
        if self.network is not None:
            return Symbols(self.network.alphabet_size, self.network.end_of_sequence, self.end_first)
        if self.published is not None:
            return self.published.symbols
        return Symbols(0 if self.own is None else self.own.alphabet_size, None)

    @property
    def bounded(self) -> bool | None:
        """Whether its position embeddings stay bounded as n grows; True if it has none, None if that is not known."""
        if self.network is None:
            return None
        return not isinstance(self.network, TransformerConfig) or self.network.bounded

    @property
    def temperature(self) -> str:
        """That of its attention, as `TransformerConfig.temperature`; empty where there is none, or it is not known."""
        return self.network.temperature if isinstance(self.network, TransformerConfig) else ""

    @property
    def output_size(self) -> int:
        """The number of coordinates of its output."""
        if self.network is not None:
            return self.network.logits or self.network.width
        if self.published is not None:
            return self.published.outputs
        return 1 if self.own is None else self.own.output_size

    @property
    def example(self) -> Any:
        """A model, for checks that need one."""
        return self.build(*((2, 0) if self.own is None else self.own.example))

    def expanded_at(self, n: int, seed: int) -> dict[str, Any]:
        """Everything that determines the model of a length and a seed, as JSON values."""
        return self.expanded if self.own is None else {**self.expanded, "sha256": self.own.sha256[n, seed]}

    @property
    def readout(self) -> int | str:
        """Where it reads its output: "last", a position, or "mean"."""
        return getattr(self.network, "readout", "last")

    def check_length(self, n: int, problems: Problems) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        readout = self.readout
        if self.published is not None:
            symbols, most = self.published.symbols, self.published.model.max_length
            least = len(symbols.before) + len(symbols.after) + 1
            if not least <= n <= most:
                problems.add("n", n, f"the model reads inputs of {least} to {most} symbols")
        elif isinstance(self.network, TransformerConfig):
            check_runs(self.network, n, problems)
        elif isinstance(readout, int) and readout >= n:
            problems.add("tokens", f"length {n}", f"longer than the readout position {readout}")


# Reading tables

Code = Callable[[str], tuple[ModelSource | None, list[str]]]
"""Imports the function of a name, such as "package.module:make": the source of its models, or what is wrong with it."""


def read_source(
    table: Mapping[str, Any],
    path: str,
    problems: Problems,
    folder: Path = Path(),
    code: Code | None = None,
) -> ModelSource | None:
    """The source that a `[model]` table describes, or None after noting every error below `path`. Files and
    directories that it names are looked for in `folder`. Without `code` no function that it names is imported."""
    readers = {**_READERS, "python": partial(_read_python, code=code)}
    named = [key for key in readers if key in table]
    if len(named) > 1:
        problems.messages.append(f"{path}: {' and '.join(named)} each name a model; give one of them")
        return None
    own = Problems(path)
    source = readers[named[0] if named else "kind"](table, path, own, folder)
    problems.extend(own)
    return None if own else source


def _read_network(
    table: Mapping[str, Any], path: str, problems: Problems, folder: Path
) -> ModelSource | None:
    """A network with random weights drawn by the point's seed."""
    config = read_config(table, path, problems, also=NAMING)
    if config is None:
        return None
    own = Problems(path)
    check_size(config, own)
    problems.extend(own, prefix=f"{path}.")
    if own:
        return None
    return ModelSource("random", config, plain(config), lambda n, seed: build(config, seed=seed))


@dataclass(frozen=True)
class _Constructed:
    """The keys that formulas and constructions share.

    Attributes:
        autoregressive: the future-masked construction, which does not depend on n.
        dtype: of parameters and arithmetic.
        read: which coordinates of the output are measured if the sweep does not say.
        reweighted: another weighting of the finished network, such as "softmax" for temperature 1; None for its own.
    """

    _: dataclasses.KW_ONLY
    autoregressive: bool = False
    dtype: Dtype = "float64"
    read: Read = "output"
    reweighted: str | None = later(None)

    def source(
        self,
        make: Callable[..., Any],
        condition: str | None,
        path: str,
        problems: Problems,
        /,
        **options: Any,
    ) -> ModelSource | None:
        """The source of what `make` makes, or None after noting every reason why it cannot be made.

        `options` are whatever keys a table has, so they may have the names of the other arguments.
        """
        common = {"autoregressive": self.autoregressive, "dtype": self.dtype, "read": self.read}
        try:
            model: CompiledTransformer | ReferenceTransformer = make(condition, **common, **options)
            if self.reweighted is not None and isinstance(model, CompiledTransformer):
                model = model.with_weighting(self.reweighted)
            elif self.reweighted is not None:
                raise InputError(f"_: weighting = {self.reweighted!r}: only compiled networks have another")
        except InputError as error:
            for text in messages(error):
                told = re.sub("^weighting =", "reweighted =", re.sub("^name =", "construction =", text))
                problems.messages.append(join(path, [told]))
            return None
        return ModelSource(
            weights="constructed",
            network=model.config,
            expanded=plain(self),
            build=lambda n, seed: model,
            given_names=getattr(model, "alphabet", ()),
            designated=_READ[self.read],
            exact_length=model.exact_length,
        )


@dataclass(frozen=True)
class FormulaModel(_Constructed):
    """The table of a formula compiled under a condition.

    Attributes:
        formula: its text, as `jaxsens.logic` prints it.
        alphabet: the names of the symbols 0, 1, 2 ...
        condition: see `jaxsens.compile_formula`, as for the rest.
    """

    formula: str
    alphabet: tuple[str, ...]
    condition: str = "temperature"


@dataclass(frozen=True)
class ConstructionModel(_Constructed):
    """The table of a construction called by its name.

    Attributes:
        construction: its name, see `jaxsens.construction`, as for the rest.
        condition: None for the construction's own.
    """

    construction: str
    condition: str | None = None


def _read_formula(
    table: Mapping[str, Any], path: str, problems: Problems, folder: Path
) -> ModelSource | None:
    alphabet, given = table.get("alphabet", []), dict(table)
    if isinstance(alphabet, str):
        given["alphabet"] = list(alphabet)
    elif not isinstance(alphabet, list):
        remedy = "a string, each character a symbol, or a list of the symbols' names"
        problems.add(f"{path}.alphabet", alphabet, remedy)
        given["alphabet"] = []
    sound = read_fields(FormulaModel, given, path, problems)
    # The compiler says what is wrong with the rest even where there is no formula, or no alphabet to go with it.
    text, used = sound.get("formula", "true"), ()
    with suppress(InputError):  # A text that cannot be read stays as it is: the compiler explains it.
        formula = parse(text)
        text, used = str(formula), symbols(formula)
    if "alphabet" not in sound or not isinstance(alphabet, str | list):
        sound["alphabet"] = tuple(sorted({"0", "1", *used}))
    own = FormulaModel(**{**sound, "formula": text})
    make = partial(compile_formula, own.formula, own.alphabet)
    return own.source(make, own.condition, path, problems)


def _read_construction(
    table: Mapping[str, Any], path: str, problems: Problems, folder: Path
) -> ModelSource | None:
    named = {key: value for key, value in table.items() if key in ("construction", *COMMON)}
    sound = read_fields(ConstructionModel, named, path, problems)
    options: dict[str, Any] = {}
    for name in sorted(table.keys() - named.keys()):
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if any(isinstance(part, dict | list) for part in (value if isinstance(value, tuple) else (value,))):
            problems.messages.append(
                f"{path}.{name}: no option of a construction is a table or a list of lists"
            )
        else:
            options[name] = value
    if "construction" not in sound:
        return None
    own = ConstructionModel(**sound)
    source = own.source(partial(construction, own.construction), own.condition, path, problems, **options)
    if source is None:
        return None
    # The condition is the one that the model has, also where none was given.
    promise = getattr(source.example, "promise", None)
    condition = own.condition if promise is None else promise.condition
    expanded = {**source.expanded, "condition": condition, "options": plain(options)}
    return dataclasses.replace(source, expanded=expanded)


def _read_checkpoint(
    table: Mapping[str, Any], path: str, problems: Problems, folder: Path
) -> ModelSource | None:
    """A trained model, from a checkpoint that `jaxsens train` wrote. It is what its fingerprint says:
    `jaxsens.training.checkpoints.TrainedModel.fingerprint`."""
    from jaxsens.training.checkpoints import load_checkpoint  # slow to import, and most sweeps need none

    for key in table.keys() - {"checkpoint"}:
        hint = did_you_mean(key, ("checkpoint",)) or "; a checkpoint is measured as it was trained"
        problems.messages.append(f"{path}.{key}: unknown key{hint}")
    directory = table["checkpoint"]
    if not isinstance(directory, str):
        problems.add(f"{path}.checkpoint", directory, "the name of a directory that `jaxsens train` wrote")
        return None
    try:
        trained = load_checkpoint(folder / directory)
    except InputError as error:
        problems.messages += [f"{path}.checkpoint = {directory!r}: {message}" for message in messages(error)]
        return None
    model, task = trained.model, trained.config.task
    determining = {"fingerprint": trained.fingerprint, "step": trained.step, "task": task}
    return ModelSource(
        weights="trained",
        network=model.config,
        expanded={"type": "CheckpointModel", **determining, "language": trained.language.name},
        build=lambda n, seed: model,
        given_names=trained.language.alphabet,
        end_first=task == "prediction",
        designated=f"the logits of {'the next symbol' if task == 'prediction' else 'the two labels'}",
        training={"step": trained.step, "steps": trained.config.optimiser.steps},
    )


def _read_python(
    table: Mapping[str, Any],
    path: str,
    problems: Problems,
    folder: Path,
    code: Code | None,
) -> ModelSource | None:
    """Models of the user's own, made by a function that the table names."""
    unknown = [
        f"{path}.{key}: unknown key; the function makes the whole model" for key in {*table} - {"python"}
    ]
    problems.messages += sorted(unknown)
    name = table["python"]
    if not isinstance(name, str) or not _PYTHON.fullmatch(name):
        problems.add(f"{path}.python", name, 'a function make(n, seed), as "package.module:make"')
    elif code is None:
        remedy = (
            "only `jaxsens sweep --allow-code` runs code that a config names; give it if you trust that code"
        )
        problems.add(f"{path}.python", name, remedy)
    elif not unknown:
        source, wrong = code(name)
        problems.messages += [f"{path}.python = {name!r}: {message}" for message in wrong]
        return source
    return None


def _read_published(
    table: Mapping[str, Any], path: str, problems: Problems, folder: Path
) -> ModelSource | None:
    """A published model, from a folder."""
    own = Problems(path)
    found = read_published(table, path, own, folder)
    problems.extend(own)
    if found is None:
        return None
    model = found.model
    expanded = {"type": "PublishedModel", **found.expanded}
    return ModelSource("published", None, expanded, lambda n, seed: model, published=found)


_PYTHON = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")

_READERS: dict[str, Callable[[Mapping[str, Any], str, Problems, Path], ModelSource | None]] = {
    "formula": _read_formula,
    "construction": _read_construction,
    "checkpoint": _read_checkpoint,
    "pretrained": _read_published,
    "kind": _read_network,
}
"""How a table is read, by the key that says what it describes; but for `python`."""

NAMING = ("formula", "construction", "checkpoint", "python", "pretrained")
"""The keys of which each names a model by itself."""


# Tables that change another


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A `[model]` table with some keys replaced. If the changes name another kind of model, or another construction,
    the keys of `base` that it does not have are dropped."""
    naming = {*NAMING, "kind"}
    if not naming.isdisjoint(changes) and _described(changes) != _described(base):
        kept = keys_of(changes) - naming
        return {**{key: value for key, value in base.items() if key in kept}, **changes}
    return {**base, **changes}


def keys_of(table: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a table which describes the same kind of model as `table` may have, as far as is known: a
    construction may have options of its own. Empty for an unknown kind."""
    named, _ = _described(table)
    if named == "kind":
        config = config_type(table, "model", Problems(""))
        return frozenset() if config is None else frozenset({"kind", *field_names(config)})
    known = {
        "formula": field_names(FormulaModel),
        "construction": ("construction", *COMMON),
        "pretrained": field_names(PublishedTable),
    }
    return frozenset(known.get(named, (named,)))


def _described(table: Mapping[str, Any]) -> tuple[str, object]:
    """What kind of model a table describes; of constructions and networks, which."""
    named = next((key for key in NAMING if key in table), "kind")
    which = {"construction": table.get("construction"), "kind": table.get("kind", "transformer")}
    return named, which.get(named)
