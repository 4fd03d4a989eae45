"""Where a point's model comes from: a `[model]` table becomes a `ModelSource`; and models and words that functions
of the user's make, `make(n, seed)` and `inputs(n, seed)`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from jaxtyping import Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import NO_VALUE, TOKEN_BYTES, InputError, Problem, Problems, check_fits, no_rule
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.registry import entries, load
from jaxsens.core.base.stopping import check
from jaxsens.core.base.strict import field_names
from jaxsens.core.checks import traced_model
from jaxsens.core.engines.request import default_flips
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import (
    Network,
    NetworkConfig,
    build,
    check_runs,
    check_size,
    config_type,
    plain,
    read_config,
)
from jaxsens.core.results.measured import fingerprint
from jaxsens.core.sweeps.inputs import GivenWords, OwnWords, Symbols, TextFile
from jaxsens.core.sweeps.job import one_line

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
        sha256: of models that a function of the user's makes, that of each model, its parameters and its function, by
            length and seed; None where it cannot be made.
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
    sha256: Mapping[tuple[int, int], str | None] | None = None

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
        return self.expanded | ({} if self.sha256 is None else {"sha256": self.sha256[n, seed]})

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


Made = TypeVar("Made")


def named_source(
    folder: Path, lengths: Sequence[int], seeds: Sequence[int], flips: Flips | None, name: str
) -> tuple[ModelSource | None, Sequence[Problem]]:
    """As `own_source`, of the function that "package.module:make" names, and what is wrong with it. It is imported from
    where Python finds modules, or else from `folder`. Importing a module runs it."""
    if (place := str(folder.resolve())) not in sys.path:
        sys.path.append(place)
    module, _, path = name.partition(":")
    problems = Problems()
    try:
        make = attrgetter(path)(importlib.import_module(module))
    except Exception as error:  # noqa: BLE001 - whatever the module raises
        return None, [Problem((), NO_VALUE, f"cannot be imported: {one_line(error)}")]
    return own_source(make, lengths, seeds, flips, problems), problems


def own_source(
    make: Any, lengths: Sequence[int], seeds: Sequence[int], flips: Flips | None, problems: Problems
) -> ModelSource | None:
    """The source of the models that a function makes, or None after noting why it makes none.

    A point whose model cannot be made fails when it is measured; the source is refused if there is no other.

    Args:
        make: `make(n, seed)` returns a model, as `flip_sensitivity` takes it, or the config of a network with random
            weights, which the seed draws.
        lengths: n, of all points; none if they cannot be read, and nothing is made.
        seeds: of all points.
        flips: what is flipped, which may say how many symbols there are; None for what the models say.
        problems: collects the errors.
    """
    if not callable(make) or not inputs.takes(make, 2):
        problems.add("make", make, "a function make(n, seed) that returns a model")
        return None
    least = max(lengths, default=0)
    if not check_fits(
        "lengths", least, least * TOKEN_BYTES, "an input of this length", "give shorter", problems
    ):
        return None
    digests, failed = _at_every_point(lambda n, seed: _sha256(_made(make, n, seed), n), lengths, seeds)
    if not digests:
        for (n, seed), why in [*failed.items()][:1]:
            problems.note((), f"make(n={n}, seed={seed}): {why}")
        return None

    def built(n: int, seed: int) -> Any:
        again = _made(make, n, seed)
        if _sha256(again, n) != digests.get((n, seed)):
            raise InputError(
                f"make(n={n}, seed={seed}) returns another model each time: let the seed draw all that is random in it"
            )
        return again

    example = next(iter(digests))
    try:
        made = built(*example)
        model = as_model(made)
        with numerics(model.dtype):
            model, shape, _ = traced_model(model, example[0])
    except InputError as error:
        why = one_line(error)
        why = why if why.startswith("make(") else f"make(n={example[0]}, seed={example[1]}): {why}"
        if any(one.path == ("readout",) for one in error.problems):  # a sweep has no `readout`
            why += "; in a sweep return the row: lambda tokens: model(tokens)[-1]"
        problems.note((), why)
        return None
    return ModelSource(
        weights="own",
        network=made.config if isinstance(made, Network) else None,
        expanded={"type": "OwnModel"},
        build=built,
        designated=EVERY if model.outputs is None else coordinates(model.outputs),
        exact_length=model.exact_length,
        alphabet=Symbols(_alphabet_size(model, flips), None),
        outputs=shape[-1] if shape else 1,
        flips=default_flips(model),
        example_at=example,
        sha256={**digests, **dict.fromkeys(failed)},
    )


def _made(make: Callable[[int, int], Any], n: int, seed: int) -> Any:
    model = make(n, seed)
    return build(model, seed=seed) if isinstance(model, NetworkConfig) else model


def _sha256(model: Any, n: int) -> str:
    """What a model is known by. A model that cannot be traced is refused with what `flip_sensitivity` says of it."""
    model = as_model(model)
    with numerics(model.dtype):
        try:
            return fingerprint(model, n)
        except Exception:
            traced_model(model, n)
            raise


def _alphabet_size(model: Model, flips: Flips | None) -> int:
    """The number of symbols: the model's own, or that of those which flips insert, if they are 0 .. k - 1."""
    if model.alphabet_size is not None:
        return model.alphabet_size
    symbols = flips.symbols if isinstance(flips, Substitute) else None
    if isinstance(symbols, int):
        return symbols
    return len(symbols) if symbols is not None and symbols == tuple(range(len(symbols))) else 0


def _at_every_point(
    function: Callable[[int, int], Made], lengths: Sequence[int], seeds: Sequence[int]
) -> tuple[dict[tuple[int, int], Made], dict[tuple[int, int], str]]:
    """What a function of the user's gives for each length and seed, and why it does not for the others."""
    values, failed = {}, {}
    for n, seed in product(lengths, seeds):
        check()
        try:
            values[n, seed] = function(n, seed)
        except Exception as error:  # noqa: BLE001 - the function is the user's: the others are measured
            failed[n, seed] = one_line(error)
    return values, failed


def own_words(
    function: Any, lengths: Sequence[int], seeds: Sequence[int], problems: Problems
) -> OwnWords | None:
    """The words that `function(n, seed)` returns, (n,) or (count, n), or None after noting why it returns none."""
    if not callable(function) or not inputs.takes(function, 2):
        problems.add("inputs", function, "a function inputs(n, seed) that returns words, (n,) or (count, n)")
        return None

    def checked(n: int, seed: int) -> Int[np.ndarray, "count n"]:
        wrong = Problems("words")
        tokens = inputs.tokens(function(n, seed), None, wrong)
        if not wrong and tokens.shape[1] != n:
            wrong.add("tokens", f"shape {tokens.shape}", f"words of {n} symbols")
        wrong.raise_if_any()
        return tokens

    inputs_of, failed = _at_every_point(checked, lengths, seeds)
    if failed and not inputs_of:
        for (n, seed), why in [*failed.items()][:1]:
            problems.note((f"inputs(n={n}, seed={seed})",), why)
        return None
    return OwnWords({**inputs_of, **failed})
