"""Every text of reports is there and used."""

from __future__ import annotations

import re
from pathlib import Path

from jaxsens.core.report import data as texts

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
