"""`jaxsens.construction`: everything by its name, and every reason against a request at once."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens.formal.constructions.catalogue import REFERENCES, names
from jaxsens.logic import LIBRARY
from tests.formal.constructions.many_words import activations


@pytest.mark.parametrize("name", names())
def test_every_name_makes_a_model_that_reads_words(name):
    model = jaxsens.construction(name)
    assert isinstance(model, jaxsens.Transformer)
    word = np.zeros(3, int)
    # The formulas' networks are deep, and long in compiling: they are read in NumPy here.
    found = activations(model.config, model.parameters, word[None]) if name in LIBRARY else model(word)
    assert np.isfinite(np.asarray(found)).all()


@pytest.mark.parametrize(
    ("name", "condition", "theorem"),
    [
        ("previous", "temperature", "Theorem 13(c)"),
        ("previous", "unbounded", "Theorem 13(d) with the factor i in place of i^2"),
        ("since", "temperature", "Theorem 16(a)"),
        ("since", "average-hard", "the hard attention that Theorem 16 simulates, with the scores of (b)"),
        ("majority", "average-hard", "the hard attention that Theorem 21 simulates"),
        (
            "dyck-1",
            "average-hard",
            "the hard attention that Corollary 23 simulates, with the scores of Corollary 18(b) for S",
        ),
    ],
)
def test_autoregressive_theorems_have_the_letters_of_the_paper(name, condition, theorem):
    assert jaxsens.construction(name, condition, autoregressive=True).promise.theorem == theorem  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", REFERENCES)
def test_words_are_accepted_as_text_and_as_tokens(name):
    model = jaxsens.construction(name)
    assert model.accepts("100")
    assert not model.accepts("011" if "first" in name else "0110")


@pytest.mark.parametrize(
    ("name", "options", "reasons"),
    [
        ("partiy", {}, ["partiy", "parity"]),
        ("parity", {"foo": 1, "condition": "leftmost-hard"}, ["foo = 1", "average-hard"]),
        ("dyck", {"kinds": 0, "foo": 1, "condition": "leftmost-hard"}, ["kinds = 0", "foo = 1", "leftmost-hard"]),
        ("parity", {"name": "first"}, ["name = 'first'"]),
        ("dyck", {"condition": "unbounded", "autoregressive": True}, ["autoregressive"]),
        (
            "chiang-cholak-parity",
            {"dtype": "float16", "kinds": 2, "read": "x", "sharpness": -1},
            ["dtype = 'float16'", "kinds = 2", "read = 'x'", "sharpness = -1"],
        ),
        ("chiang-cholak-first", {"condition": "temperature", "autoregressive": True}, ["condition", "autoregressive"]),
    ],
)  # fmt: skip
def test_refusals_give_every_reason(name, options, reasons):
    with pytest.raises(jaxsens.InputError) as refusal:
        jaxsens.construction(name, **options)
    for reason in reasons:
        assert reason in str(refusal.value)
