"""Every option of every family absent, null or of a wrong kind: an architecture, or errors that name options alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from jaxsens.core.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.load import _architecture
from tests.pretrained.oracle import CASES, config_of

ABSENT = object()
WRONG = (ABSENT, None, 0, -1, 1, 2**40, 1.5, True, "x", [], [1], {"a": 1}, float("nan"))
FIRST = {case.family: config_of(case).to_dict() for case in reversed(CASES)}
ESM = {"position_embedding_type": "absolute"}


@pytest.mark.parametrize("family", [*FIRST])
def test_no_option_of_a_wrong_kind_is_a_traceback_or_hides_other_errors(family):
    for whole in (FIRST[family], {**FIRST[family], **ESM}) if family == "esm" else (FIRST[family],):
        for name in whole.keys() - {"model_type"}:
            for value in WRONG:
                table = {**whole, name: value, "vocab_size": "many"}
                if value is ABSENT:
                    del table[name]
                problems = Problems("")
                found = _architecture(FAMILIES[family], table, problems)
                assert (found is None) == bool(problems)
                assert len({*problems}) == len(problems), problems
                assert all(one.path[0] == "config.json" for one in problems), problems
                if name != "vocab_size" and "text_config" not in whole:  # whose table is within that one
                    assert any(one.path[-1] == "vocab_size" for one in problems), (name, value)
