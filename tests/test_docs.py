"""What the documentation says is true of the package: its tables, its commands, and that its reference is complete.

The site itself is built by `.ci/run`, which runs the tutorials and follows every link.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

import jaxsens
from tests.site_links import dead_links, from_network, without_words

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(file.read_text("utf-8") for file in sorted((DOCS / "reference").glob("*.md")))


def first_column(page: str, heading: str = "") -> list[str]:
    """The names in the first column of the tables of a page, or of one of its sections."""
    text = (DOCS / page).read_text("utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0] if heading else text
    return re.findall(r"(?m)^\| \[?`([^`]+)`", section)


def test_the_table_of_variants_names_those_of_a_shipped_config():
    config = tomllib.loads((ROOT / "configs" / "asymptotic.toml").read_text("utf-8"))
    assert first_column("configs.md", "Built-in variants") == list(config["variants"])


def test_the_table_of_engines_names_them_all():
    from jaxsens.asked.engines import AskedEngine

    names = [name for name in AskedEngine.kinds if name != "auto"]
    assert first_column("engines.md")[: len(names)] == names


def test_every_shipped_config_is_in_the_guide():
    shipped = {f"configs/{file.name}" for file in (ROOT / "configs").glob("*.toml")}
    assert shipped <= set(first_column("configs.md", "Shipped configs"))


def test_every_public_name_is_in_the_reference_once():
    documented = re.findall(r"^\.\. auto\w+:: jaxsens\.(\w+)$", REFERENCE, re.MULTILINE)
    rooms = {"languages", "logic", "theory"}
    elsewhere = {"language"}  # documented with a room as a whole
    assert sorted(documented) == sorted([*set(jaxsens.__all__) - rooms - elsewhere, "languages", "logic"])


def test_every_public_name_of_the_theory_is_in_the_reference():
    documented = re.findall(r"^\.\. auto\w+:: jaxsens\.theory\.(\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(documented) == sorted(jaxsens.theory.__all__)


def test_every_command_is_in_the_reference(capsys):
    from jaxsens.cli import main

    with pytest.raises(SystemExit):
        main(["--help"])
    listed = set(re.findall(r"• ([a-z0-9]+) ", capsys.readouterr().out))
    assert listed == set(re.findall(r"program-output\} jaxsens ([a-z0-9]+) --help", REFERENCE)) != set()


def test_every_table_of_a_config_is_in_the_reference_and_says_what_each_key_means():
    from jaxsens.experiments.sweep.attention import AttentionTable
    from jaxsens.experiments.sweep.bounds import Bounds
    from jaxsens.experiments.sweep.config import Settings, SweepTables, Variant
    from jaxsens.experiments.sweep.points import Measurement
    from jaxsens.experiments.sweep.words import AllWords, RandomWords, WordFile
    from jaxsens.experiments.theorem6.config import Theorem6Model, Theorem6Tables
    from jaxsens.experiments.trained.generalisation import Generalisation
    from jaxsens.experiments.trained.sharpness import SharpnessExperiment

    sweep = (
        Settings,
        SweepTables,
        Variant,
        Measurement,
        AttentionTable,
        Bounds,
        AllWords,
        RandomWords,
        WordFile,
    )
    for table in (*sweep, Theorem6Tables, Theorem6Model, Generalisation, SharpnessExperiment):
        assert f".. autoclass:: {table.__module__}.{table.__qualname__}\n" in REFERENCE
        told = " ".join(base.__doc__ or "" for base in table.__mro__)
        names = [field.name for field in dataclasses.fields(table)]
        assert [name for name in names if not re.search(rf"\b{name}\b", told)] == [], table


def test_relative_links_lead_somewhere():
    """Also on the hosting's own view of the files, where no site is built."""
    dead = []
    for page in sorted(DOCS.rglob("*.md")):
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text("utf-8"))
        for target in re.findall(r"\]\(([^)#`]+)", text):
            there = [page.parent / (target + end) for end in ("", ".md", ".ipynb")]
            if "://" not in target and not any(place.exists() for place in there):
                dead.append(f"{page.relative_to(DOCS)}: {target}")
    assert dead == []


def test_links_to_missing_files_and_places_are_found(tmp_path):
    (tmp_path / "index.html").write_text('<a href="other.html#there">a</a> <a href="gone.html">b</a>')
    (tmp_path / "other.html").write_text(
        '<p id="there"></p><a href="index.html#nowhere">c</a> <img src="x.png">'
    )
    assert sorted(dead_links(tmp_path)) == [
        "index.html: gone.html", "other.html: index.html#nowhere", "other.html: x.png",
    ]  # fmt: skip


def test_what_a_page_loads_from_the_network_is_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<script src="https://cdn.example/mathjax.js"></script> <link rel="stylesheet" href="//cdn.example/a.css">'
        '<script src="own.js"></script> <a href="https://example.org">a link loads nothing</a>'
    )
    assert from_network(tmp_path) == [
        "index.html: //cdn.example/a.css is loaded from the network",
        "index.html: https://cdn.example/mathjax.js is loaded from the network",
    ]


def test_images_without_words_are_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<img src="a.png" alt="A line that falls"> <img src="b.png"> <img src="c.png" alt="c.png">'
    )
    assert without_words(tmp_path) == [
        "index.html: b.png has no alt text",
        "index.html: c.png has no alt text",
    ]
