"""The example of docs/pretrained.md runs, and its table lists the families."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxsens.pretrained.families import FAMILIES
from tests.pretrained.folders import write_folder, write_pooling

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "pretrained.md").read_text("utf-8")


@pytest.mark.long
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"(?ms)^```python\n(.*?)^```$", DOCS)
    folder = tmp_path / "all-MiniLM-L6-v2"
    folder.mkdir()
    write_folder(folder, "bert")
    write_pooling(folder, pooling_mode_mean_tokens=True)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/pretrained.md", "exec"), {})
    assert re.search(r"\w+ -> (dog|the)\n$", capsys.readouterr().out)


def test_every_family_has_a_row():
    listed = re.findall(r"(?m)^\| `([\w-]+)` \|", DOCS)
    assert listed == ["model_type", *FAMILIES]
