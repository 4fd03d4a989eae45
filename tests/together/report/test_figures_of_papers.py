"""The figure of docs/figures.md, and the texts of reports: each is there, and each is used."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from jaxsens.core.report import texts
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import TINY, quiet


def test_the_figure_of_the_guide_is_made_in_ten_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "docs" / "figures.md").read_text("utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 10
    text = TINY.replace("[4, 6]", "[4, 6, 8]")
    sweep = parse_sweep_config(text)
    assert run_sweep(sweep, Path("results/quickstart"), sweep.points, quiet()).exit_code == 0
    with mpl.rc_context():
        exec(compile(code, "figures.md", "exec"), {})
        pyplot.close()
    pdf = Path("figure.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


FOLDER = Path(texts.__file__).parents[2]
FAMILIES = ("flip-", "heading-", "networks-")
"""The beginnings of names that the code makes."""


def test_every_text_is_used_and_every_used_text_is_there():
    sources = "".join(file.read_text("utf-8") for file in FOLDER.rglob("*.py"))
    named = set(re.findall(r"""["']([a-z0-9-]+)["']""", sources))
    assert {name for name in texts._texts() if not name.startswith(FAMILIES)} - named == set()
    assert set(re.findall(r'\btext\("([^"]+)"', sources)) - set(texts._texts()) == set()


def test_places_are_filled_in():
    told = texts.text("missing", missing=2, planned=5, which="softmax n = 64 (seeds 1, 2)")
    assert told.startswith("2 of 5 planned points are missing: softmax n = 64 (seeds 1, 2). Run")
