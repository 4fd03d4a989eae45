"""Objects of a call: they print as the call that makes them, and tables, names and shorthands make the same ones."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import (
    KL,
    L1,
    L2,
    Auto,
    Cosine,
    Decision,
    Delete,
    Difference,
    FirstOrder,
    Incremental,
    Insert,
    LInf,
    LogProbability,
    Mask,
    Neighbours,
    Pairs,
    Repeat,
    Substitute,
    Vmap,
)
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.registry import read
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from tests.refusals import refused

OBJECTS: tuple[Any, ...] = (
    Substitute(),
    Substitute(2),
    Substitute([4, 3, 3]),
    Substitute({3: [1], 0: [0, 1]}),
    Substitute({3: [1], 0: [0]}, groups=[(3, 0)]),
    Substitute([0, 1], groups=[(9,), (3, 4, 5)], sample=7, seed=2),
    Substitute(positions=["readout", 0.5, "0:16", 3]),
    Neighbours(3, positions=range(2)),
    Mask(103),
    Delete(sample=9),
    Insert([1], positions=[0]),
    Repeat(3),
    Pairs([(3, 17), (0, 2)], sample=1),
    L1(outputs=[2, 0]),
    L2(),
    LInf(outputs="all"),
    Cosine(),
    KL(),
    Decision("median", outputs=[0]),
    Decision(0.5),
    LogProbability(7),
    LogProbability("no", against="yes"),
    Auto(),
    Vmap(),
    Incremental(),
    Difference(),
    FirstOrder(sketch=4, verify=8, seed=1),
)


def base_of(asked: Any) -> Any:
    """The class of the question that an object answers."""
    return next(base for base in (Flips, Measure, AskedEngine) if isinstance(asked, base))


def made(base: Any, value: Any, **options: Any) -> Any:
    """What a value is read as."""
    problems = Problems("test")
    found = read(base, value, problems, **options)
    problems.raise_if_any()
    return found


@pytest.mark.parametrize("asked", OBJECTS, ids=repr)
def test_an_object_prints_as_the_call_that_makes_it_and_its_table_makes_it_again(asked):
    assert (
        eval(repr(asked), vars(jaxsens) | {name: getattr(jaxsens, name) for name in jaxsens.__all__}) == asked
    )
    table = json.loads(json.dumps(asked.table()))
    assert made(base_of(asked), table, file=True) == asked
    assert len({asked, made(base_of(asked), table)}) == 1


def test_the_names_are_those_of_the_kinds():
    for base in (Flips, Measure, AskedEngine):
        for name, kind in base.kinds.items():
            assert kind.kind == name
            assert getattr(jaxsens, kind.__name__) is kind


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (2, Substitute(2)),
        (np.int64(3), Substitute(3)),
        ([4, 3, 4], Substitute([3, 4])),
        (np.array([4, 3]), Substitute([3, 4])),
        (jnp.arange(2), Substitute([0, 1])),
        (range(2), Substitute([0, 1])),
        ({1: [0]}, Substitute({1: [0]})),
    ],
)
def test_a_shorthand_stands_for_substitutions(value, asked):
    assert made(Flips, value) == asked


@pytest.mark.parametrize(
    ("base", "value", "path"),
    [
        (Flips, {"kind": 3}, "flips.kind"),
        (Flips, L1(), "flips"),
        (Flips, 1, "flips.symbols"),
        (Flips, [(-1, [0])], "flips.symbols"),
        (Flips, [(1, ["y"])], "flips.symbols[1]"),
        (Flips, {-1: [0]}, "flips.symbols.position"),
        (Measure, 2, "measure"),
        (Measure, L1, "measure"),
        (AskedEngine, None, "engine"),
    ],
)
def test_what_answers_another_question_is_refused(base, value, path):
    refused(path, made, base, value)


@pytest.mark.parametrize(
    ("paths", "kind", "fields"),
    [
        ("positions", Substitute, {"groups": [(0, 1)], "positions": [0]}),
        ("positions", Substitute, {"symbols": {0: [1]}, "positions": [0]}),
        ("groups", Substitute, {"symbols": {0: [1], 1: [0, 1]}, "groups": [(0, 1)]}),
        ("groups", Substitute, {"symbols": {1: [0]}, "groups": [(1, 2)]}),
        ("symbols.position", Substitute, {"symbols": {0: [1], 1: [0]}, "groups": [(0,)]}),
        *(("groups", Substitute, {"groups": groups}) for groups in (3, [], [1, 2], [()])),
        ("seed", Substitute, {"seed": 1}),
        *(("sample", Substitute, {"sample": count}) for count in (0, 2.5, True)),
        *(
            ("positions", Substitute, {"positions": positions})
            for positions in (["middle"], [1.5], ["1"], [True], [], [[0, 1]], 3, [0, None])
        ),
        *(("flips", Pairs, {"flips": pairs}) for pairs in ([], [1, 2], [(1, 2, 3)], [(1, 0.5)])),
        ("flips.position", Pairs, {"flips": [(-1, 0)]}),
        ("flips.symbol", Pairs, {"flips": [(0, -1)]}),
        ("k sample seed positions", Neighbours, {"k": 0, "sample": -2, "seed": -1, "positions": [-2]}),
        ("sketch verify", FirstOrder, {"verify": 0, "sketch": -1}),
    ],
)
def test_an_object_checks_itself(paths, kind, fields):
    refused(paths, kind, **fields)
