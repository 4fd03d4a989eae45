"""Every family and option beside what transformers computed, without it; the pages of published models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Output
from jaxsens.pretrained.families.classifiers import KINDS
from jaxsens.pretrained.load import load_pretrained
from tests.pretrained.folders import write_folder, write_pooling
from tests.pretrained.test_large import folder_in_bfloat16
from tools.pretrained_recorded import Recorded, recorded

RECORDED = {(one.family, one.name): one for one in recorded()}
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


@pytest.mark.quick(8, 110)
@pytest.mark.parametrize(("family", "name"), RECORDED)
def test_hidden_states_and_logits_are_those_of_the_library(family, name, tmp_path):
    case: Recorded = RECORDED[family, name]
    case.write(tmp_path)
    for dtype, tolerance in TOLERANCE.items():
        hidden = np.asarray(load_pretrained(tmp_path, dtype=dtype)(case.ids))
        assert error(hidden[case.rows], case.hidden) <= tolerance, (dtype, "hidden")
        if case.logits.size:
            output: Output = "labels" if name in KINDS else "logits"
            logits = np.asarray(load_pretrained(tmp_path, output=output, dtype=dtype)(case.ids))
            first = case.encoder and name == "ForSequenceClassification"
            own = logits[:1] if first else logits[-1:]
            assert error(own, case.logits) <= tolerance, (dtype, output)


def test_every_family_is_recorded():
    assert {family for family, _ in RECORDED} == set(FAMILIES)


DOCS = Path(__file__).resolve().parents[2] / "docs"
SENTENCE = "The committee did not approve the budget, because the treasurer was absent."


@pytest.mark.long
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    sentence, changed, large = re.findall(
        r"(?ms)^```python\n(.*?)^```$", (DOCS / "pretrained.md").read_text("utf-8")
    )
    assert SENTENCE in sentence
    folder = tmp_path / "all-MiniLM-L6-v2"
    folder.mkdir()
    write_folder(folder, "bert")
    write_pooling(folder, pooling_mode_mean_tokens=True)
    (tmp_path / "Meta-Llama-3-8B").mkdir()
    folder_in_bfloat16(tmp_path / "Meta-Llama-3-8B", "llama")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(sentence.replace(SENTENCE, "the cat sat on a mat"), "docs/pretrained.md", "exec"), names)
    assert re.search(
        r"(?m)^FlipSensitivity\(n=8, .*\n.*position +token +replacement", capsys.readouterr().out
    )
    assert Path("sentence.png").stat().st_size > 0
    exec(compile(changed, "docs/pretrained.md", "exec"), names)
    exec(compile(large, "docs/pretrained.md", "exec"), names)
    assert names["result"].max > 0


def test_every_family_has_a_row():
    page = (DOCS / "reference" / "families.md").read_text("utf-8")
    listed = re.findall(r"(?m)^\| `([\w-]+)` \|", page)
    assert listed == ["model_type", *FAMILIES]
