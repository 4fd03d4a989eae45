"""The cells of the first pages run, also those of a figure for a paper; every text of reports is there and used."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot

from jaxsens.cli import main
from jaxsens.core.report import texts


@pytest.mark.long
@pytest.mark.parametrize("page", ["first-sweep.md", "your-model.md"])
def test_the_cells_of_a_first_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = (Path(__file__).parents[3] / "docs" / "tutorials" / page).read_text("utf-8"), {}
    with mpl.rc_context():
        for cell in re.findall(r"(?ms)^```\{code-cell\} python\n(.*?)^```$", text):
            code = re.sub(r"\A((?s:---\n.*?\n---\n)|(:.*\n)+)", "", cell)
            if code.startswith("!jaxsens "):
                assert main(code.split()[1:]) == 0
            else:
                exec(compile(code, page, "exec"), names)
        pyplot.close("all")
    assert (b"/Type3" in next(tmp_path.glob("*.pdf")).read_bytes()) == (page == "your-model.md")


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
