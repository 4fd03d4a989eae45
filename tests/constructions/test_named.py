"""`jaxsens.construction`: everything by its name, and every reason against a request at once."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens.constructions.named import REFERENCES, names


@pytest.mark.parametrize("name", names())
def test_every_name_makes_a_model_that_reads_words(name):
    model = jaxsens.construction(name)
    assert isinstance(model, jaxsens.Transformer)
    assert np.isfinite(np.asarray(model(np.zeros(3, int)))).all()


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
