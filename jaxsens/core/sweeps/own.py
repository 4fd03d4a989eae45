"""Models and words that functions of the user's make, `make(n, seed)` and `inputs(n, seed)`, as parts of a sweep.

A point of such a sweep is known by its model's fingerprint: SHA-256 of the parameters and of the function that is
computed (`jaxsens.core.results.request`). So every model is made once before anything is measured,
and once more when its point is measured. A folder whose models have changed is then one of other points.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import NO_VALUE, TOKEN_BYTES, InputError, Problem, Problems, check_fits
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.stopping import check
from jaxsens.core.checks.check import traced_model
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.flips.selection import default_flips
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.core.models.config_tables import build
from jaxsens.core.models.transformer.config import NetworkConfig
from jaxsens.core.models.transformer.module import Network
from jaxsens.core.results.request import fingerprint
from jaxsens.core.sweeps.inputs import OwnWords, Symbols
from jaxsens.core.sweeps.jobs.job import one_line
from jaxsens.core.sweeps.sources import EVERY, ModelSource, coordinates

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnSource(ModelSource):
    """The models that a function of the user's makes. `sha256` is that of each model, its parameters and its function,
    by length and seed; None where it cannot be made."""

    sha256: Mapping[tuple[int, int], str | None]

    def expanded_at(self, n: int, seed: int) -> dict[str, Any]:
        return {**self.expanded, "sha256": self.sha256[n, seed]}


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
) -> OwnSource | None:
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
        problems.note((), _for_a_sweep(error, *example))
        return None
    return OwnSource(
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


def _for_a_sweep(error: InputError, n: int, seed: int) -> str:
    """What is wrong with a model. A sweep has no `readout`: the model itself returns the row that is read."""
    message = one_line(error)
    message = message if message.startswith("make(") else f"make(n={n}, seed={seed}): {message}"
    if any(one.path == ("readout",) for one in error.problems):
        message += "; in a sweep return the row: lambda tokens: model(tokens)[-1]"
    return message


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
