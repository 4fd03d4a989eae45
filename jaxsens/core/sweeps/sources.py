"""Where a point's model comes from: a `[model]` table becomes a `ModelSource`.

A source holds everything that determines the model (`expanded`), tells what the sweep needs to know of it without a
point, and builds it for a length and a seed. A key of the table says which kind of source it is: `kind` for networks
with random weights, `python` for a function of the user's, or a key that a package brings: the name of an entry point
of `jaxsens.model_sources` that leads to a `SourceKind`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from jaxsens.core.base.errors import InputError, Problem, Problems, no_rule
from jaxsens.core.base.registry import entries, load
from jaxsens.core.base.strict import field_names
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.models.config_tables import NetworkConfig, build, config_type, plain, read_config
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import check_runs, check_size
from jaxsens.core.sweeps.inputs import GivenWords, Symbols, TextFile

EVERY = "every coordinate"


def coordinates(outputs: Iterable[int]) -> str:
    """Coordinates of an output, in words."""
    return f"coordinates {', '.join(map(str, outputs))}"


Weights = Literal["random", "constructed", "trained", "own", "published"]
"""Where a model's weights come from: the point's seed, mathematics, training, a function of the user's, or a folder."""

SEEDED = ("random", "own")
"""Weights that depend on the seed."""


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model that can be built, and what a sweep needs to know of it before. Compared and hashed by identity.

    It answers for networks of the package. A source of other models gives `alphabet` and `outputs`, or derives from it.

    Attributes:
        weights: where the weights come from. Only "random" ones, and "own" models, depend on the point.
        network: the config of the model; None for one that is no network of the package.
        expanded: everything that determines the model, as JSON values; the place of a checkpoint on the disk does not.
        build: makes the model of a length and a seed; the same one for every point unless the weights are random.
        given_names: the names of its symbols 0, 1, 2 ...; empty where they have none.
        end_first: whether it reads the end-of-sequence symbol first, not last.
        designated: in words, which coordinates of the output are measured if the sweep does not say.
        exact_length: the longest input that it is exact for in its dtype; None if that is not known.
        training: of a trained model, after which `step` of how many `steps` it was written; None for others.
        alphabet, outputs: the symbols and the number of outputs of a model without a `network`; of size 0 if nothing
            says the symbols.
        flips: what is flipped by default.
        example_at: a length and a seed for which it can be built.
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
    alphabet: Symbols = field(default=Symbols(0, None))
    outputs: int = 1
    flips: Flips = field(default=Substitute())
    example_at: tuple[int, int] = (2, 0)

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weights):
            raise no_rule("a sweep", "origin of weights", self.weights, get_args(Weights))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols: the numbers themselves where they have none."""
        return self.given_names or tuple(map(str, range(self.symbols.alphabet_size)))

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads; of size 0 if nothing says it."""
        if self.network is None:
            return self.alphabet
        return Symbols(self.network.alphabet_size, self.network.end_of_sequence, self.end_first)

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
    def weighting(self) -> Weighting | None:
        """That of the attention of its first layer; None where there is none, or it is not known."""
        return self.network.layer(0).weighting if isinstance(self.network, TransformerConfig) else None

    @property
    def output_size(self) -> int:
        """The number of coordinates of its output."""
        return self.outputs if self.network is None else self.network.logits or self.network.width

    @property
    def example(self) -> Any:
        """A model, for checks that need one."""
        return self.build(*self.example_at)

    def expanded_at(self, n: int, seed: int) -> dict[str, Any]:
        """Everything that determines the model of a length and a seed, as JSON values."""
        return self.expanded

    @property
    def readout(self) -> int | str:
        """Where it reads its output: "last", a position, or "mean"."""
        return getattr(self.network, "readout", "last")

    def check_length(self, n: int, problems: Problems) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        readout = self.readout
        if isinstance(self.network, TransformerConfig):
            check_runs(self.network, n, problems)
        elif isinstance(readout, int) and readout >= n:
            problems.add("tokens", f"length {n}", f"longer than the readout position {readout}")

    def texts(
        self, table: TextFile, folder: Path, lengths: Sequence[int], problems: Problems
    ) -> GivenWords | None:
        """The texts of a file below `folder`, as words of these lengths, or None after noting why there are none."""
        remedy = "texts are read by published models: give a file of words"
        problems.add("inputs.texts", table.texts, remedy)


# Reading tables


@dataclass(frozen=True)
class SourceKind:
    """How the `[model]` tables are read that have a certain key, which names a model by itself.

    Attributes:
        read: `read(table, problems, folder)` returns the source that a table describes, or None after noting
            every error. Files that the table names are looked for in `folder`.
        keys: those that a table may have, as far as is known.
        apart: whether tables with another value of the key have other keys, as those of another construction.
        fixed: why a table has no key but this one; empty if it may have others.
        stages: `stages(table, problems)` takes the key out of a table that names several stages of a model, and
            returns the name of each with the keys that lead to it.
    """

    read: Callable[[Mapping[str, Any], Problems, Path], ModelSource | None]
    keys: tuple[str, ...]
    apart: bool = False
    fixed: str = ""
    stages: Callable[[dict[str, Any], Problems], list[tuple[str, dict[str, Any]]]] = lambda table, problems: []


Code = Callable[[str], tuple[ModelSource | None, Sequence[Problem]]]
"""Imports the function of a name, such as "package.module:make": the source of its models, or what is wrong with it."""

_FIRST = ("formula", "construction", "checkpoint", "python")  # in messages


def naming() -> tuple[str, ...]:
    """The keys of which each names a model by itself: `python`, and those that installed packages bring."""
    brought = entries("model_sources")
    return tuple(dict.fromkeys([*(key for key in _FIRST if key in {*brought, "python"}), *brought]))


def source_kind(key: str, code: Code | None = None) -> SourceKind:
    """The kind of sources that a key of `naming` names."""
    if key == "python":
        return SourceKind(partial(_read_python, code=code), ("python",), fixed=_ALONE)
    kind = load("model_sources", key)
    if not isinstance(kind, SourceKind):
        raise InputError(
            f"{entries('model_sources')[key].value} of jaxsens.model_sources: it must be a SourceKind"
        )
    return kind


def read_source(
    table: Mapping[str, Any],
    path: str,
    problems: Problems,
    folder: Path = Path(),
    code: Code | None = None,
) -> ModelSource | None:
    """The source that a `[model]` table describes, or None after noting every error below `path`. Files and
    directories that it names are looked for in `folder`. Without `code` no function that it names is imported."""
    named = [key for key in sorted([*naming(), "kind"], key="python".__eq__) if key in table]
    if len(named) > 1:
        problems.note(path, f"{' and '.join(named)} each name a model; give one of them")
        return None
    own = Problems()
    read = source_kind(named[0], code).read if named and named != ["kind"] else _read_network
    source = read(table, own, folder)
    problems.include(own, path)
    return None if own else source


def _read_network(table: Mapping[str, Any], problems: Problems, folder: Path) -> ModelSource | None:
    """A network with random weights drawn by the point's seed."""
    config = read_config(table, (), problems, also=naming())
    if config is None:
        return None
    check_size(config, problems)
    if problems:
        return None
    return ModelSource("random", config, plain(config), lambda n, seed: build(config, seed=seed))


def _read_python(
    table: Mapping[str, Any], problems: Problems, folder: Path, code: Code | None
) -> ModelSource | None:
    """Models of the user's own, made by a function that the table names."""
    unknown = sorted({*table} - {"python"})
    for key in unknown:
        problems.note((key,), f"unknown key; {_ALONE}")
    name = table["python"]
    if not isinstance(name, str) or not _PYTHON.fullmatch(name):
        problems.add("python", name, 'a function make(n, seed), as "package.module:make"')
    elif code is None:
        remedy = (
            "only `jaxsens sweep --allow-code` runs code that a config names; give it if you trust that code"
        )
        problems.add("python", name, remedy)
    elif not unknown:
        source, wrong = code(name)
        for one in wrong:
            problems.add("python", name, str(one))
        return source
    return None


_PYTHON = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_ALONE = "the function makes the whole model"


# Tables that change another


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A `[model]` table with some keys replaced. If the changes name another kind of model, or another construction,
    the keys of `base` that it does not have are dropped."""
    names = {*naming(), "kind"}
    if not names.isdisjoint(changes) and _described(changes) != _described(base):
        common = keys_of(changes) - names
        return {**{key: value for key, value in base.items() if key in common}, **changes}
    return {**base, **changes}


def keys_of(table: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a table which describes the same kind of model as `table` may have, as far as is known: a
    construction may have options of its own. Empty for an unknown kind."""
    named, _ = _described(table)
    if named != "kind":
        return frozenset(source_kind(named).keys)
    config = config_type(table, "model", Problems())
    return frozenset() if config is None else frozenset({"kind", *field_names(config)})


def _described(table: Mapping[str, Any]) -> tuple[str, object]:
    """What kind of model a table describes; of constructions and networks, which."""
    named = next((key for key in naming() if key in table), "kind")
    if named == "kind":
        return named, table.get("kind", "transformer")
    return named, table[named] if source_kind(named).apart else None
