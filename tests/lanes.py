"""Which cases of a test are quick, and how many examples it draws: see "Other conventions" in CONTRIBUTING.md."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations

import pytest

EXPLORED = int(os.environ.get("JAXSENS_EXPLORE", "1"))
"""How many times as many examples a test draws. Above 1 they are other ones each time."""


def examples(count: int) -> int:
    """How many examples a test draws that draws `count` in the README's command."""
    return count * EXPLORED


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Marks `long` all cases of the tests marked `quick(count)` but so many; of `quick(count, tried)` the rest `slow`.

    Quick and long cases together are `tried` then.
    """
    tests: dict[str, tuple[tuple[int, ...], list[pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("quick")
        if mark is not None and item.get_closest_marker("slow") is None:
            tests.setdefault(item.nodeid.partition("[")[0], (mark.args, []))[1].append(item)
    for (count, *tried), cases in tests.values():
        chosen = spread([values(case) for case in cases], *(tried or [count]))
        for k in sorted(set(range(len(cases))) - set(chosen[:count])):
            cases[k].add_marker("slow" if tried and k not in chosen else "long")


def values(case: pytest.Item) -> set[str]:
    """What the parameters of a case are."""
    callspec = getattr(case, "callspec", None)
    return set() if callspec is None else {f"{name} = {value!r}" for name, value in callspec.params.items()}


def spread(cases: list[set[str]], count: int) -> list[int]:
    """So many of the cases, in order: each next one has the most values, and then pairs, that none before it has.

    Of equals it is the first.
    """
    pairs = [set(combinations(sorted(case), 2)) for case in cases]
    chosen: list[int] = []
    seen: set[str] = set()
    together: set[tuple[str, str]] = set()
    for _ in range(min(count, len(cases))):
        left = [k for k in range(len(cases)) if k not in chosen]
        best = max(left, key=lambda k: (len(cases[k] - seen), len(pairs[k] - together), -k))
        chosen.append(best)
        seen |= cases[best]
        together |= pairs[best]
    return chosen
