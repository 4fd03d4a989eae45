"""Everything that keeps a formula out of a fragment is said at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from jaxsens import logic
from jaxsens.core.base.errors import InputError
from tests.formal.logic.random_formulas import formulas
from tests.lanes import examples
from tests.refusals import refusal, refused


def named(text, within=None, alphabet=None):
    return [
        (str(found.subformula), found.reason)
        for found in logic.violations(logic.parse(text), within, alphabet)
    ]


def test_every_violation_is_listed_with_its_reason():
    assert named("X Q_2 & #L[Q_1] = #R[Q_3] | last", "past", "01") == [
        ("Q_2", "the alphabet '0', '1' has no '2'"),
        ("X Q_2", "X is not in the fragment past, which has Y, S, #L"),
        ("Q_3", "the alphabet '0', '1' has no '3'"),
        ("#L[Q_1] = #R[Q_3]", "#R is not in the fragment past, which has Y, S, #L"),
        ("last", "last depends on the word's length, which the fragment past does not know"),
    ]


@pytest.mark.parametrize(
    ("text", "within", "excluded"),
    [
        ("Y Q_a & X Q_a", "LTL[Y,X]", []),
        ("Y Q_a & X Q_a", "LTL[ Y ]", ["X Q_a"]),
        ("Q_a S Y Q_a", "LTL[S,U]", ["Y Q_a"]),
        ("Q_a S Y Q_a U Q_b", "LTL[Y,S]", ["Y Q_a U Q_b"]),
        ("odd & Y Q_a", "LTL[Y]", ["odd"]),
        ("odd & last & Y Q_a", "LTL[Y,predicates]", []),
        ("odd(#L[Q_a]) & last & #R[Q_a] >= 1", "counting", []),
        ("odd(#L[Q_a]) & last & #R[Q_a] >= 1", "counting-left", ["last", "#R[Q_a] >= 1"]),
        ("odd(#L[Y Q_a])", "LTL[Y]", ["odd(#L[Y Q_a])"] * 2),
        ("Q_a & !Q_b", "Boolean", []),
        ("Q_a S Q_b & X #R[Q_a] = 1 & prime", "everything", []),
    ],
)
def test_fragments_have_what_their_names_say(text, within, excluded):
    assert [part for part, _ in named(text, within)] == excluded


@settings(deadline=None, max_examples=examples(150))
@given(formulas)
def test_the_past_fragment_is_what_structure_calls_past(formula):
    assert (logic.violations(formula, "past") == ()) == logic.is_past(formula)
    assert logic.violations(formula, "everything") == ()


def test_a_refusal_holds_all_violations():
    with refusal("formula") as caught:
        logic.validate(logic.parse("X Q_2 & Y Q_3"), "LTL[Y]", "01")
    assert str(caught.value).count("\n  - ") == 3
    refused("formula", logic.validate, logic.parse("X Q_1"), "LTL[Y]")
    logic.validate(logic.parse("Y Q_1"), "LTL[Y]", "01")


@pytest.mark.parametrize("name", ["", "LTL", "LTL[]", "LTL[Z]", "LTL[Y;X]", "future"])
def test_an_unknown_fragment_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match="give one of everything, past, counting"):
        logic.fragment(name)
