"""The checker says yes to what is true only: certificates that were tampered with are refused, with the reason."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxsens.theory
from jaxsens import Transformer
from jaxsens.core.models.parts.positions import Learned
from jaxsens.theory.hard_attention.checker import check
from jaxsens.theory.hard_attention.restrict import restrict
from jaxsens.theory.hard_attention.restriction import FREE, Case, Certificate, Restriction, RestrictionRefused
from tests.refusals import refused
from tests.theory.hard_models import almost_tied, assert_true, hard, last_one, looked_up, really_depends

N = 24


@pytest.fixture(scope="module")
def model() -> Transformer:
    return last_one()


@pytest.fixture(scope="module")
def restriction(model) -> Restriction:
    """Of a model that looks for the last 1 up to each row, so that every claim in it is needed."""
    return restrict(model, N, 0.5)


def with_case(restriction: Restriction, layer: int, number: int, *cases: Case) -> Restriction:
    layers = [list(each) for each in restriction.certificate.layers]
    layers[layer][number : number + 1] = cases
    return dataclasses.replace(restriction, certificate=Certificate(tuple(tuple(each) for each in layers)))


def with_value(restriction: Restriction, position: int, value: int) -> Restriction:
    values = restriction.values.copy()
    values[position] = value
    return dataclasses.replace(restriction, values=values)


def case_with_conditions(restriction: Restriction, layer: int = 0) -> tuple[int, Case]:
    """The last case of a layer with conditions and a winner."""
    cases = restriction.certificate.layers[layer]
    number = max(i for i, case in enumerate(cases) if case.conditions and case.keys[0])
    return number, cases[number]


def recased(r: Restriction, **changes: Any) -> Restriction:
    """Changes the last case with conditions and a winner."""
    number, case = case_with_conditions(r)
    return with_case(r, 0, number, dataclasses.replace(case, **changes))


def conditions(r: Restriction) -> tuple[tuple[int, int], ...]:
    return case_with_conditions(r)[1].conditions


def fixed(r: Restriction, which: int = 0) -> int:
    return int(np.flatnonzero(~r.free)[which])


def left_open(r: Restriction) -> int:
    """A free position that the conditions leave open."""
    return int(next(i for i in np.flatnonzero(r.free) if i not in dict(conditions(r))))


def unseen_winner(r: Restriction) -> Restriction:
    number, case = next(
        (i, case) for i, case in enumerate(r.certificate.layers[0]) if case.row < N - 2 and case.keys[0]
    )
    assert fixed(r, -1) > case.row
    return with_case(r, 0, number, dataclasses.replace(case, keys=((fixed(r, -1),),)))


def certified(r: Restriction, *layers: tuple[Case, ...]) -> Restriction:
    return dataclasses.replace(r, certificate=Certificate(layers))


def a_one(r: Restriction, which: int) -> int:
    """The position of a fixed 1."""
    return int(np.flatnonzero(r.values == 1)[which])


def depending(r: Restriction, *positions: int) -> Restriction:
    return dataclasses.replace(r, depends_on=positions)


TAMPERED: dict[str, tuple[Callable[[Restriction], Restriction], str]] = {
    "other_winner": (lambda r: recased(r, keys=((fixed(r),),)), "can win too|not visible"),
    "no_winner": (lambda r: recased(r, keys=((),)), "no winner is named"),
    "winner_left_open": (
        lambda r: recased(r, keys=((left_open(r),),)),
        "do not settle the value of the winner",
    ),
    "unseen_winner": (unseen_winner, "not visible"),
    "lost_case": (lambda r: with_case(r, 0, case_with_conditions(r)[0]), "overlap or leave words out"),
    "doubled_case": (
        lambda r: with_case(r, 0, case_with_conditions(r)[0], *[case_with_conditions(r)[1]] * 2),
        "overlap or leave words out",
    ),
    "dropped_condition": (
        lambda r: recased(r, conditions=conditions(r)[1:]),
        "overlap or leave words out|settle",
    ),
    "condition_on_fixed": (
        lambda r: recased(r, conditions=(*conditions(r), (fixed(r), int(r.values[fixed(r)])))),
        "not on free inputs",
    ),
    "foreign_symbol": (lambda r: recased(r, conditions=((conditions(r)[0][0], 2),)), "not on free inputs"),
    "lost_row": (
        lambda r: certified(
            r, tuple(case for case in r.certificate.layers[0] if case.row != 3), *r.certificate.layers[1:]
        ),
        "not certified below",
    ),
    "lost_readout": (
        lambda r: certified(r, *r.certificate.layers[:-1], ()),
        "readout row 23 is not certified",
    ),
    "lost_layer": (
        lambda r: certified(r, *r.certificate.layers[:1]),
        "1 layers are certified, the model has 2",
    ),
    "fixed_symbol_changed": (lambda r: with_value(r, a_one(r, -1), 0), "can win too"),
    "fixed_symbol_moved": (
        lambda r: with_value(with_value(r, int(np.flatnonzero(r.free)[0]), 1), a_one(r, -1), FREE),
        "settle|not on free inputs|can win",
    ),
    "fixed_symbol_freed": (lambda r: with_value(r, a_one(r, 0), FREE), "settle|can win"),
    "strange_value": (lambda r: with_value(r, 0, 7), "symbols below 3"),
    "smaller_dependence": (lambda r: depending(r, *r.depends_on[:-1]), "which depends_on lacks"),
    "dependence_on_fixed": (lambda r: depending(r, *r.depends_on, fixed(r)), "no free positions"),
    "dependence_twice": (lambda r: depending(r, *r.depends_on, *r.depends_on), "twice"),
    "more_symbols": (lambda r: dataclasses.replace(r, symbols=(0, 1, 2)), "leave words out"),
    "doubled_symbols": (lambda r: dataclasses.replace(r, symbols=(0, 0)), "not different symbols"),
}


def test_what_the_builder_made_is_accepted(model, restriction):
    verdict = check(restriction, model, 0.5)
    assert verdict.accepted
    assert verdict.problems == ()
    assert verdict.cases == sum(len(each) for each in restriction.certificate.layers)
    assert verdict.comparisons > 0


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_refused_with_its_reason(model, restriction, name):
    tamper, reasons = TAMPERED[name]
    verdict = check(tamper(restriction), model)
    assert not verdict.accepted
    assert any(part in problem for part in reasons.split("|") for problem in verdict.problems), (
        verdict.problems
    )


def test_too_few_free_positions_and_the_certificate_of_another_model_are_refused(model, restriction):
    verdict = check(restriction, model, 0.99)
    assert not verdict.accepted
    assert "less than 0.99" in verdict.problems[0]
    assert not check(restriction, hard(0, heads=1)).accepted
    assert not check(restriction, hard(0, heads=1, weighting="softmax")).accepted
    assert not check(restriction, hard(0, heads=1, readout="mean")).accepted


def test_all_problems_are_counted_and_most_are_listed(model, restriction):
    cases = tuple(dataclasses.replace(case, keys=((),)) for case in restriction.certificate.layers[0])
    broken = dataclasses.replace(
        restriction, certificate=Certificate((cases * 3, *restriction.certificate.layers[1:]))
    )
    problems = check(broken, model).problems
    assert len(problems) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_what_is_accepted_after_random_tampering_is_true(seed):
    """Some changes do no harm: then the checker may say yes, and running every word must agree with it."""
    model = hard(seed, positions="none" if seed == 1 else "sinusoidal")
    restriction = restrict(model, 6, 0.5, settle=False)
    generator = np.random.default_rng(seed)
    accepted = 0
    for _ in range(60):
        changed = restriction
        kind = generator.integers(0, 4)
        if kind == 0:
            changed = with_value(changed, int(generator.integers(0, 6)), int(generator.integers(-1, 2)))
        elif kind == 1:
            depends = tuple(i for i in changed.depends_on if generator.random() < 0.5)
            changed = dataclasses.replace(changed, depends_on=depends)
        else:
            layer = int(generator.integers(0, 2))
            number = int(generator.integers(0, len(changed.certificate.layers[layer])))
            case = changed.certificate.layers[layer][number]
            keys = tuple((int(generator.integers(0, 6)),) for _ in case.keys)
            if kind == 2:
                case = dataclasses.replace(case, keys=keys)
            else:
                case = dataclasses.replace(case, conditions=case.conditions[:-1])
            changed = with_case(changed, layer, number, case)
        if check(changed, model).accepted:
            accepted += 1
            assert_true(model, changed)
    assert 0 < accepted < 60


def test_scores_that_rounding_may_turn_round_have_no_certain_winner():
    model = almost_tied()
    restriction = restrict(model, 6, 0.5, fixed={0: 0, 1: 1}, settle=False)
    assert_true(model, restriction)
    cases = restriction.certificate.layers[0]
    # Another program of this model may choose the first 0 or the first 1.
    assert {case.keys for case in cases} == {((0, 1),)}
    assert check(restriction, model).accepted
    for kept in (0, 1):
        bold = tuple(dataclasses.replace(case, keys=((kept,),)) for case in cases)
        verdict = check(dataclasses.replace(restriction, certificate=Certificate((bold,))), model)
        assert any("can win too" in problem for problem in verdict.problems)


def fixed_winner(values: list[int], winner: int, depends: tuple[int, ...]) -> Restriction:
    """The hand-made claim that one position wins the last row's only head, in one layer."""
    words = product(*((0, 1) for _ in depends))
    cases = [Case(len(values) - 1, tuple(zip(depends, word, strict=True)), ((winner,),)) for word in words]
    return Restriction(np.array(values), (0, 1), depends, 0, {}, Certificate((tuple(cases),)))


def order_of_sums() -> tuple[list[float], list[float]]:
    """Three numbers in two orders: the same sum in float64, two in float32."""
    generator = np.random.default_rng(0)
    while True:
        a, b, c = generator.random(3).astype(np.float32)
        if (a + b) + c != (c + b) + a and float(a) + float(b) + float(c) == float(c) + float(b) + float(a):
            return [float(a), float(b), float(c)], [float(c), float(b), float(a)]


def test_only_keys_that_are_equal_in_any_order_of_sums_are_ties():
    for embedding in (order_of_sums(), order_of_sums()[::-1]):
        model = looked_up([*embedding, [0.0, 0.0, 0.0]], 1.0, keys=(1.0, 1.0, 1.0), dtype="float32")
        verdict = check(fixed_winner([FREE] * 4, 0, (0, 3)), model)
        assert any("can win too" in problem for problem in verdict.problems)
    model = looked_up([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [0.0] * 3], 1.0, keys=(1.0,) * 3, dtype="float32")
    claim = fixed_winner([FREE] * 4, 0, (0, 3))
    assert check(claim, model).accepted
    assert_true(model, claim)


EXTREMES = {
    "float32 overflow": ("float32", 1e30, 1e20, "may exceed"),
    "float64 overflow": ("float64", 1e160, 1e160, "may exceed"),
    "float32 underflow": ("float32", 1e-30, 1e-20, "can win too"),
    "float64 underflow": ("float64", 1e-200, 1e-200, "can win too"),
    "float64 subnormal": ("float64", 1e-155, 1e-154, "can win too"),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_scores_that_the_dtype_cannot_tell_apart_settle_nothing(name):
    dtype, size, query, reason = EXTREMES[name]
    model = looked_up([[size, 1, 0], [1.1 * size, 1, 1], [4 * size, 0, 2]], query, dtype=dtype)
    # In exact arithmetic the fixed symbol 2 wins. Here all scores tie, and the free input before it wins.
    claim = fixed_winner([FREE, 2, FREE], 1, (2,))
    assert really_depends(model, claim) == {0, 2}
    verdict = check(claim, model)
    assert not verdict.accepted
    assert any(reason in problem for problem in verdict.problems), verdict.problems
    if "overflow" in name:
        with pytest.raises(RestrictionRefused, match="not finite"):
            restrict(model, 3, 0.5, fixed={1: 2}, settle=False)
        return
    built = restrict(model, 3, 0.5, fixed={1: 2}, settle=False)
    assert_true(model, built)
    assert check(built, model).accepted


def test_what_cannot_be_read_is_a_problem_and_no_exception(model, restriction):
    short = hard(0, positions=Learned(max_length=5))
    assert "max_length = 5" in " ".join(check(restriction, short).problems)
    for values in (restriction.values.astype(float), restriction.values[None], restriction.values.tolist()):
        verdict = check(dataclasses.replace(restriction, values=values), model)
        assert verdict.problems == ("values are no array of whole numbers, one a position",)
    refused("model", check, restriction, None)  # pyright: ignore[reportArgumentType]


def test_the_checker_shares_no_code_with_the_builder():
    room = Path(jaxsens.theory.__file__).parent / "hard_attention"
    for name in ("checker.py", "checker_arithmetic.py", "restriction.py"):
        for node in ast.walk(ast.parse((room / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxsens.theory"):
                assert node.module in (
                    "jaxsens.theory.hard_attention.checker_arithmetic",
                    "jaxsens.theory.hard_attention.restriction",
                )
