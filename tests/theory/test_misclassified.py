"""Corollary 2: for every hard-attention model two words that it cannot tell apart and the language can."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsens import compile_formula
from jaxsens.theory.hard_attention import misclassified
from jaxsens.theory.hard_attention.misclassified import misclassified_pair
from jaxsens.theory.hard_attention.restrict import restrict
from jaxsens.theory.hard_attention.restriction import RestrictionRefused
from tests.refusals import refused
from tests.theory.hard_models import hard, last_one


def is_even(word: np.ndarray) -> bool:
    return int(word.sum()) % 2 == 0


def is_balanced(word: np.ndarray) -> bool:
    heights = np.cumsum(1 - 2 * word)
    return heights.min() >= 0 and heights[-1] == 0


MODELS = {
    "random": lambda: hard(0),
    "ties": lambda: hard(1, positions="none", weighting="rightmost-hard"),
    "local": last_one,
    "depth 1": lambda: hard(2, layers=1),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("language", "member"), [("parity", is_even), ("dyck-1", is_balanced)])
def test_the_words_are_told_apart_by_the_language_and_not_by_the_model(name, language, member):
    model = MODELS[name]()
    pair = misclassified_pair(model, language, 48)
    assert member(pair.member)
    assert not member(pair.non_member)
    assert np.flatnonzero(pair.member != pair.non_member).tolist() == [pair.position]
    assert pair.position in pair.restriction.irrelevant
    for word in (pair.member, pair.non_member):
        assert (np.asarray(model(word)) == pair.output).all()
        fixed = ~pair.restriction.free
        assert (word[fixed] == pair.restriction.values[fixed]).all()


def test_the_word_may_end_in_the_end_of_sequence_symbol():
    model = hard(3)
    pair = misclassified_pair(model, "dyck-1", 41, end_symbol=True)
    assert pair.member[-1] == pair.non_member[-1] == 2
    assert is_balanced(pair.member[:-1])
    assert not is_balanced(pair.non_member[:-1])


def test_a_model_that_looks_for_the_first_closing_bracket_needs_brackets_fixed_at_the_ends():
    model = last_one(weighting="leftmost-hard", mask="none")
    # Left to itself the restriction settles all heads by a closing bracket at the start: no word is balanced.
    assert restrict(model, 48, 0.25).values[0] == 1
    pair = misclassified_pair(model, "dyck-1", 48)
    assert pair.restriction.fixed > 0
    assert is_balanced(pair.member)


def test_a_formula_that_says_yes_to_one_says_yes_to_the_other():
    model = compile_formula("Q_0 S Q_1", alphabet="01", condition="leftmost-hard", dtype="float64")
    pair = misclassified_pair(model, "parity", 32)
    assert model.accepts(pair.member) == model.accepts(pair.non_member)


def test_bad_arguments_are_refused():
    for language, n, name in (("dyck-2", 8, "language"), ("dyck-1", 7, "n"), ("parity", 1, "n")):
        refused(name, misclassified_pair, hard(0), language, n)
    refused("model free_fraction seed", misclassified_pair, None, "parity", 8, "a", end_symbol=True, seed=-1)
    refused("end_symbol", misclassified_pair, hard(0, end_symbol=False), "parity", 8, end_symbol=True)
    assert "Softmax" in refused("model", misclassified_pair, hard(0, weighting="softmax"), "parity", 8)


def test_a_length_too_short_is_refused_with_a_remedy():
    with pytest.raises(RestrictionRefused, match="larger n or a smaller free_fraction"):
        misclassified_pair(last_one(), "parity", 2, free_fraction=1.0)


def test_a_wrong_certificate_would_be_noticed(monkeypatch):
    real = misclassified.restrict

    def lying(model, n, *rest, **options):
        found = real(model, n, *rest, **options)
        object.__setattr__(found, "values", np.where(np.arange(n) == n - 1, -1, 1))
        object.__setattr__(found, "depends_on", ())
        return found

    monkeypatch.setattr(misclassified, "restrict", lying)
    with pytest.raises(RuntimeError, match="outputs differ"):
        misclassified_pair(hard(0), "parity", 16)
