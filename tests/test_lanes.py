"""Quick cases have every value of every parameter before a combination of values comes twice."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes import mark_long, spread


def test_as_many_cases_as_two_parameters_have_pairs_have_all_pairs():
    cases = [{f"a = {a}", f"b = {b}", f"c = {c}"} for a, b, c in product(range(3), range(3), range(3))]
    pairs = {pair for case in cases for pair in combinations(sorted(case), 2)}
    found = {pair for k in spread(cases, 12) for pair in combinations(sorted(cases[k]), 2)}
    assert found == pairs


@pytest.mark.parametrize(("asked", "lanes"), [((2,), "qllq"), ((1, 2), "qssl")])
def test_all_but_the_chosen_cases_are_long_or_slow(asked, lanes):
    marked: list[str] = ["quick"] * 4

    def case(k: int) -> Any:
        return SimpleNamespace(
            nodeid=f"a test[{k}]",
            get_closest_marker=lambda name: SimpleNamespace(args=asked) if name == "quick" else None,
            callspec=SimpleNamespace(params={"a": k // 2, "b": k % 2}),
            add_marker=lambda lane: marked.__setitem__(k, lane),
        )

    mark_long(case(k) for k in range(4))
    assert "".join(lane[0] for lane in marked) == lanes
