"""The example of docs/pretrained.md runs, and its table lists the families."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jaxsens.pretrained.families import FAMILIES
from tests.pretrained.folders import write_folder, write_pooling
from tests.pretrained.test_large import folder_in_bfloat16

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "pretrained.md").read_text("utf-8")


@pytest.mark.long
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    sentence, large, changed = re.findall(r"(?ms)^```python\n(.*?)^```$", DOCS)
    folder = tmp_path / "all-MiniLM-L6-v2"
    folder.mkdir()
    write_folder(folder, "bert")
    write_pooling(folder, pooling_mode_mean_tokens=True)
    (tmp_path / "Meta-Llama-3-8B").mkdir()
    folder_in_bfloat16(tmp_path / "Meta-Llama-3-8B", "llama")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(sentence, "docs/pretrained.md", "exec"), names)
    assert re.search(r"\w+ -> (dog|the)\n$", capsys.readouterr().out)
    exec(compile(changed, "docs/pretrained.md", "exec"), names)
    exec(compile(large, "docs/pretrained.md", "exec"), names)
    assert names["result"].max > 0


def test_every_family_has_a_row():
    listed = re.findall(r"(?m)^\| `([\w-]+)` \|", DOCS)
    assert listed == ["model_type", *FAMILIES]
