"""Objects of a call: they print as the call that makes them, and tables, names and shorthands make the same ones."""

from __future__ import annotations

import json
import tomllib
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
    InputError,
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
from jaxsens.asked.engines import AskedEngine
from jaxsens.asked.flips import Flips
from jaxsens.asked.measures import Measure
from jaxsens.asked.value import read
from jaxsens.base.errors import Problems

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
    LogProbability("no"),
    Auto(),
    Vmap(),
    Incremental(),
    Difference(),
    FirstOrder(sketch=4, verify=8, seed=1),
)


WRONG: Any = jaxsens  # for values that types exclude


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
    assert made(Flips, "delete") == Delete()
    assert made(Measure, "linf") == LInf()
    assert made(AskedEngine, "first-order") == FirstOrder()


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


def test_a_table_of_a_file_makes_the_object():
    table = tomllib.loads("""
        flips = {kind = "substitute", symbols = {3 = [1]}}
        measure = {kind = "decision", threshold = "median", outputs = [0]}
        engine = {kind = "first-order", verify = 8}
    """)
    assert made(Flips, table["flips"], file=True) == Substitute({3: [1]})
    assert made(Measure, table["measure"], file=True) == Decision("median", outputs=[0])
    assert made(AskedEngine, table["engine"], file=True) == FirstOrder(verify=8)


@pytest.mark.parametrize(
    ("base", "value", "said"),
    [
        (Flips, "delet", "flips = 'delet': one of substitute, .*; did you mean \"delete\""),
        (Flips, {"kind": "delet"}, 'did you mean "delete"'),
        (Flips, {"kind": 3}, "flips.kind = 3: one of substitute"),
        (Flips, {"kind": "neighbours", "k": 0}, "flips.k = 0: a whole number of at least 1"),
        (Flips, {"kind": "neighbours", "j": 0}, "flips.j: unknown key"),
        (Flips, L1(), r"flips = L1\(\): one of substitute, .*, or an object such as jaxsens.Neighbours\(8\)"),
        (Flips, 1, r"flips.symbols = 1: .*to insert this one alone, give \[1\]"),
        (
            Flips,
            [0.5],
            r"flips.symbols = \[0.5\]: the number of symbols, a sequence of symbol ids, or a mapping",
        ),
        (Flips, [(-1, [0])], "flips.symbols"),
        (Flips, [("x", ["y"])], "flips.symbols"),
        (Flips, [(1, ["y"])], r"symbols\[1\]"),
        (Flips, {-1: [0]}, "position = -1: 0-based positions"),
        (Measure, 2, r"measure = 2: one of l2, .*, or an object such as jaxsens.L1\(outputs=\[0\]\)"),
        (Measure, L1, "measure = <class"),
        (Measure, Delete(), r"measure = Delete\(\): one of l2"),
        (AskedEngine, "fast", "engine = 'fast': one of auto, vmap"),
        (AskedEngine, None, "engine = None: one of auto, vmap"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_answers_there_are(base, value, said):
    with pytest.raises(InputError, match=said):
        made(base, value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Substitute(groups=[(0, 1)], positions=[0]), r"positions = \[0\]: not with groups"),
        (lambda: Substitute({0: [1]}, positions=[0]), r"positions = \[0\]: not with a mapping"),
        (
            lambda: Substitute({0: [1], 1: [0, 1]}, groups=[(0, 1)]),
            r"groups = \(0, 1\): as many symbols for each",
        ),
        (lambda: Substitute({0: [1], 1: [0]}, groups=[(0,)]), "symbols: position = 1: it is in no group"),
        (lambda: Substitute(groups=[(0, 1), (1, 2)]), "groups: position = 1: each position in one group"),
        (lambda: Substitute(seed=1), "seed = 1: only with sample"),
        (lambda: Substitute(sample=0), "sample = 0: a whole number of at least 1, or None"),
        (lambda: Substitute(positions=[-1]), "positions = -1: positions count from the front"),
        (lambda: Pairs([]), r"flips = \[\]: pairs of a 0-based position and a symbol id"),
        (lambda: Pairs([(0, -1)]), "flips: symbol = -1"),
        (lambda: WRONG.Mask("x"), "symbol = 'x': a whole number of at least 0, or None"),
        (lambda: L2(outputs=[0, 0]), r"outputs = \[0, 0\]: each coordinate once"),
        (lambda: WRONG.Decision("mean"), "threshold = 'mean': a finite number, or \"median\""),
        (lambda: FirstOrder(verify=0, sketch=-1), "(?s)FirstOrder: 2 errors.*sketch = -1.*verify = 0"),
    ],
)
def test_an_object_checks_itself(make, said):
    with pytest.raises(InputError, match=said):
        make()
