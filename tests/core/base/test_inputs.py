"""The vocabulary of arguments: what each may be, the form it comes back in, and what is said of an unusable one."""

from __future__ import annotations

import doctest
from functools import partial
from typing import Any

import numpy as np
import pytest

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems


def checked(check: Any, *arguments: Any, **options: Any) -> tuple[Any, list[str]]:
    """What a check returns, and the errors that it notes."""
    problems = Problems("test")
    return check(*arguments, problems=problems, **options), [*map(str, problems)]


def test_the_example_of_the_module_holds():
    assert doctest.testmod(inputs).failed == 0


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (partial(inputs.count, "k"), np.int8(3), 3),
        (partial(inputs.count, "k", least=4), 4, 4),
        (partial(inputs.optional_count, "k"), None, None),
        (partial(inputs.optional_count, "k"), np.uint64(1), 1),
        (partial(inputs.number, "x", above=0), np.float32(0.5), 0.5),
        (partial(inputs.number, "x", least=0, most=1), 1, 1.0),
        (partial(inputs.choice, "exact", options=(None, True, False)), True, True),
        (partial(inputs.outputs, size=3), np.array([2, 0]), (2, 0)),
        (partial(inputs.outputs, size=None), "all", None),
        (partial(inputs.fixed, n=4, vocabulary=3), {np.int64(3): np.uint8(2), 0: 1}, {0: 1, 3: 2}),
        (partial(inputs.fixed, n=4, vocabulary=3), None, {}),
    ],
)
def test_what_is_usable_comes_back_as_pythons_own(check, value, expected):
    found, messages = checked(check, value)
    assert messages == []
    assert found == expected
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def test_ids_come_back_as_arrays_without_repetitions():
    assert checked(inputs.symbols, [2, 0, 2], 3)[0].tolist() == [2, 0]
    assert checked(inputs.alphabet, None, 3)[0].tolist() == [0, 1, 2]
    assert checked(inputs.alphabet, 2, 3)[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (partial(inputs.count, "k"), True, "k = True: a whole number of at least 0"),
        (partial(inputs.count, "k", least=2), 1, "k = 1: a whole number of at least 2"),
        (partial(inputs.optional_count, "k"), 0, "k = 0: a whole number of at least 1, or None"),
        (partial(inputs.number, "x", above=0), np.nan, "x = nan: a number above 0"),
        (partial(inputs.number, "x", above=0, below=np.inf), np.inf, "x = inf: a number above 0"),
        (partial(inputs.number, "x", above=0, most=1), 2, "x = 2: a number above 0 and at most 1"),
        (partial(inputs.number, "x", least=0), True, "x = True: a number of at least 0"),
        (partial(inputs.number, "p", above=0, below=1), 1, "p = 1: a number above 0 and below 1"),
        (partial(inputs.choice, "exact", options=(None, True)), 1, "exact = 1: one of None, True"),
        (inputs.generator, 7, "generator = 7: give numpy.random.default_rng(seed)"),
        (partial(inputs.progress, arguments=2, wanted="(a, b)"), len, "a function that is called with (a, b)"),
        (partial(inputs.symbols, vocabulary=None, least=2), [1, 1], "symbols = [1, 1]: at least 2 different"),
        (partial(inputs.fixed, n=4, vocabulary=3), [(0, 1)], "fixed = [(0, 1)]: a mapping of 0-based positions"),
        (partial(inputs.fixed, n=4, vocabulary=3), {True: 1}, "fixed = {True: 1}: a mapping"),
        (partial(inputs.fixed, n=4, vocabulary=3), {4: 1}, "fixed = {4: 1}: positions from 0 to 3"),
        (partial(inputs.fixed, n=0, vocabulary=3), {4: 3}, "fixed = {4: 3}: the model reads ids 0 to 2"),
    ],
)  # fmt: skip
def test_what_is_not_usable_is_named_with_its_value_and_the_remedy(check, value, message):
    _, messages = checked(check, value)
    assert len(messages) == 1
    assert message in messages[0]


def test_what_depends_on_an_unusable_length_is_not_reported_again():
    problems = Problems("test")
    n = inputs.length("four", problems)
    assert inputs.fixed({9: 1}, n, 2, problems) == {9: 1}
    assert len([*map(str, problems)]) == 1
