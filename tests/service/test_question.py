"""What a request may ask, and that everything else is refused by name."""

from __future__ import annotations

import json
import random

import pytest

import jaxsens
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.service.question import read_json, read_question
from jaxsens.service.routes import openapi
from tests.refusals import refused
from tests.service.malformed import SOUND, malformed


def asked(raw: bytes):
    return read_question(read_json(raw), ["tiny"])


def test_a_question_is_written_as_it_is_read():
    question = asked(json.dumps(SOUND).encode())
    assert read_question(question.table(), ["tiny"]) == question
    assert question.flips == jaxsens.Substitute(3)
    assert asked(b'{"model": "tiny", "tokens": "a text"}').table() == {
        "model": "tiny",
        "tokens": "a text",
        "measure": {"kind": "l2"},
        "engine": {"kind": "auto"},
    }


def test_a_log_probability_reads_logits_without_being_told():
    question = read_question(
        {"model": "tiny", "tokens": "a", "measure": {"kind": "log-probability", "token": 3}}, ["tiny"]
    )
    assert question.reads == "logits"


def test_many_malformed_bodies_are_refused_with_the_name_of_the_field():
    draw, refused = random.Random(1), 0
    for _ in range(1000):
        raw, field = malformed(draw)
        said = ""
        try:
            asked(raw)
        except jaxsens.InputError as error:
            said = str(error)
        refused += bool(said)
        assert not said or field in said, raw
    assert refused > 700


def test_a_question_has_at_most_1024_inputs():
    assert len(read_question({"model": "tiny", "tokens": [[0]] * 1024}, ["tiny"]).tokens) == 1024
    refused("tokens", read_question, {"model": "tiny", "tokens": [[0]] * 1025}, ["tiny"])


def test_the_description_has_every_kind_that_json_can_ask_for_and_their_fields():
    schemas = openapi([], ["tiny"])["components"]["schemas"]["Measurement"]["properties"]
    for base in (Flips, Measure, AskedEngine):
        listed = {one["properties"]["kind"]["const"]: one for one in schemas[base.argument]["anyOf"][1:]}
        assert {*listed} == {*base.kinds} - {"function", "comparison"}
        for name, schema in listed.items():
            if not {*schema["required"]} - {"kind"} and name != "pairs":  # nothing but its kind is sound
                read_question({**SOUND, base.argument: {"kind": name}}, ["tiny"])
            wrong = {"kind": name, "nothing": 3}
            with pytest.raises(jaxsens.InputError, match=r"nothing: unknown key"):
                read_question({**SOUND, base.argument: wrong}, ["tiny"])
