"""Walks above 0, heights, and Hahn's Theorem 6 for DYCK."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import chisquare

from jaxsens import InputError
from jaxsens.formal.languages.dyck import innermost_open, uniform_walks
from jaxsens.languages import Dyck
from tests.formal.languages.cases import DYCK, LONGEST_PREFIX
from tests.refusals import refusal


def walks(n: int, up: float) -> np.ndarray:
    """P(height after t steps, none below 0) for t = 0..n, step by step; rows t, columns heights."""
    table = np.zeros((n + 1, n + 2))
    table[0, 0] = 1
    for t in range(n):
        table[t + 1, 1:] += up * table[t, :-1]
        table[t + 1, :-1] += (1 - up) * table[t, 1:]
    return table


@pytest.mark.parametrize("up", [0.2, 0.45, 0.5, 0.7])
@pytest.mark.parametrize("n", [0, 1, 2, 9, 300])
def test_heights_have_the_law_of_walks_followed_step_by_step(up, n):
    reached = walks(n, up)[n]
    heights, law = Dyck(open_probability=up).height_law(n)
    assert reached.sum() == pytest.approx(reached[heights].sum(), rel=1e-14)
    np.testing.assert_allclose(law, reached[heights] / reached.sum(), rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("up", [0.3, 0.5, 0.6])
def test_heights_after_a_hundred_thousand_steps_agree_with_ballot_numbers_by_log_gamma(up):
    n = 100_000
    h, law = Dyck(open_probability=up).height_law(n)
    d = (n - h) / 2
    logs = np.log(h + 1) - np.log(n + 1) + gammaln(n + 2) - gammaln(d + 1) - gammaln(n - d + 2)
    logs += (n - d) * np.log(up) + d * np.log1p(-up)
    weights = np.exp(logs - logs.max())
    np.testing.assert_allclose(law, weights / weights.sum(), rtol=1e-7, atol=1e-12)


def test_long_walks_are_uniform_on_the_way_too():
    n, end = 60, 4
    steps = uniform_walks(np.full(20_000, end), n, np.random.default_rng(0))
    heights = np.cumsum(steps, axis=1)
    assert (heights >= 0).all()
    assert (heights[:, -1] == end).all()
    there = walks(n, 0.5)
    for t in (15, 30, 50):
        # ways to a height in t steps, times ways on: walks back from the end never below 0
        back = np.zeros(n + 2)
        back[end] = 1
        for _ in range(n - t):
            back = np.append(back[1:], 0) + np.insert(back[:-1], 0, 0)
        expected = there[t] * back[: n + 2]
        observed = np.bincount(heights[:, t - 1], minlength=n + 2)
        assert not observed[expected == 0].any()
        common = expected / expected.sum() * len(steps) >= 5
        scale = observed[common].sum() / expected[common].sum()
        assert chisquare(observed[common], expected[common] * scale).pvalue > 1e-6


@pytest.mark.parametrize(("up", "n"), [(0.5, 5000), (0.95, 100_000)])
def test_long_prefixes_match_as_a_stack_does(up, n):
    dyck = Dyck(3, up)
    prefixes = dyck.sample_prefixes(3, n, np.random.default_rng(0))
    kinds = dyck.closing_choice(prefixes).kind
    for prefix, kind in zip(prefixes.tolist(), kinds.tolist(), strict=True):
        stack = [-1]
        for symbol in prefix:
            if symbol < dyck.kinds:
                stack.append(symbol)
            else:
                assert stack.pop() == symbol - dyck.kinds
        assert stack[-1] == kind
        wrong = np.array(prefix)
        last = int(np.flatnonzero(wrong >= dyck.kinds)[-1])
        wrong[last] = dyck.kinds + (wrong[last] - dyck.kinds + 1) % dyck.kinds
        with pytest.raises(InputError, match=f"first {last + 1} symbols"):
            dyck.last_probabilities(wrong)


def test_brackets_match_at_heights_that_16_bits_do_not_hold():
    deep = 66_000
    found = innermost_open(np.repeat([[True, False]], deep, axis=1))[0]
    expected = np.concatenate([np.arange(deep), np.arange(deep - 2, -2, -1)])
    np.testing.assert_array_equal(found, expected)


def test_near_misses_of_many_kinds_mismatch_every_two():
    tokens, labels = Dyck(4).sample_labelled(2400, 2, np.random.default_rng(0))
    pairs, counts = np.unique(tokens[~labels], axis=0, return_counts=True)
    assert pairs.tolist() == [[a, 4 + b] for a in range(4) for b in range(4) if a != b]
    assert chisquare(counts).pvalue > 1e-6


def hard_prefixes(name: str, n: int):
    """Of all prefixes: probability, law, and where the bracket to close stands if the choice is hard, or None."""
    dyck, machine = DYCK[name]
    prefixes = machine.prefixes(n)
    total = float(sum(weight for weight, _ in prefixes.values()))
    for prefix, (weight, state) in prefixes.items():
        stack = []
        for i, symbol in enumerate(prefix):
            if symbol < dyck.kinds:
                stack.append(i)
            else:
                stack.pop()
        hard = bool(stack) and prefix[-1] >= dyck.kinds
        yield prefix, float(weight) / total, machine.law(state, dyck.outcomes), stack[-1] if hard else None


@pytest.mark.parametrize("name", sorted(DYCK))
def test_p0_is_the_probability_of_all_hard_prefixes_together(name):
    dyck, _ = DYCK[name]
    for n in range(LONGEST_PREFIX[name] + 1):
        p0 = sum(weight for _, weight, _, where in hard_prefixes(name, n) if where is not None)
        assert dyck.closing_choice_probability(n) == pytest.approx(p0, abs=1e-12)


@pytest.mark.parametrize("name", sorted(DYCK))
def test_the_bound_of_theorem_6_is_the_best_of_all_predictors_blind_to_one_exchange(name):
    dyck, _ = DYCK[name]
    for n in range(LONGEST_PREFIX[name] - 1):
        alike = defaultdict(lambda: np.zeros(dyck.outcomes))
        for prefix, weight, law, where in hard_prefixes(name, n):
            seen = prefix if where is None else (*prefix[:where], "any kind", *prefix[where + 1 :])
            alike[seen] += weight * law
        best = 0.0
        for joint in alike.values():
            here = joint[joint > 0]
            best -= here @ np.log(here / here.sum())
        assert dyck.theorem6_bound(n) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("name", sorted(DYCK))
def test_the_choosing_part_is_zero_at_the_optimum_and_the_gap_for_a_prediction_that_cannot_tell(name):
    dyck, _ = DYCK[name]
    n = LONGEST_PREFIX[name] - 2
    found = list(hard_prefixes(name, n))
    tokens = np.array([prefix for prefix, *_ in found])
    weights = np.array([weight for _, weight, *_ in found])
    laws = np.array([law for _, _, law, _ in found])
    choice = dyck.closing_choice(tokens)
    assert choice.hard.tolist() == [where is not None for *_, where in found]
    kinds = [prefix[where] for prefix, _, _, where in found if where is not None]
    assert choice.kind[choice.hard].tolist() == kinds
    logs = np.log(laws, out=np.full_like(laws, -np.inf), where=laws > 0)
    np.testing.assert_allclose(dyck.closing_choice_loss(tokens, logs), 0, atol=1e-15)
    cannot_tell = dyck.closing_choice_loss(tokens, np.zeros_like(laws))
    assert weights @ cannot_tell == pytest.approx(dyck.theorem6_gap(n), abs=1e-13)


@pytest.mark.parametrize("name", ["2dyck", "dyck-3"])
def test_the_cross_entropy_is_the_choosing_part_and_what_is_left_when_kinds_are_merged(name):
    dyck, _ = DYCK[name]
    tokens = dyck.sample_prefixes(200, 9, np.random.default_rng(0))
    laws = dyck.last_probabilities(tokens)
    logits = np.random.default_rng(1).normal(size=laws.shape)
    logs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    hard = dyck.closing_choice(tokens).hard
    closing = slice(dyck.kinds, 2 * dyck.kinds)
    whole = -(laws * logs).sum(axis=-1)[hard]
    merged = -(laws * logs).sum(axis=-1, where=~np.isin(np.arange(dyck.outcomes), np.r_[closing]))[hard]
    merged -= laws[hard, closing].sum(axis=-1) * np.logaddexp.reduce(logs[hard, closing], axis=-1)
    part = dyck.closing_choice_loss(tokens, logits)
    np.testing.assert_allclose(part[hard], whole - merged, rtol=1e-10)
    assert not part[~hard].any()


def test_a_right_kind_that_is_held_impossible_costs_infinitely_much():
    dyck = Dyck()
    logs = np.array([[0, 0, -np.inf, 0, 0], [0, 0, 0, -np.inf, 0.0]])
    assert dyck.closing_choice_loss(np.array([[0, 1, 3], [0, 1, 3]]), logs).tolist() == [np.inf, 0]


def test_predictions_of_the_wrong_shape_are_refused():
    with refusal("log_probabilities' shape"):
        Dyck().closing_choice_loss(np.zeros((2, 3), int), np.zeros((2, 4)))
