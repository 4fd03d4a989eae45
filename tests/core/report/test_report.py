"""The page of a report: what it says, what it needs, and the files of a sweep that was really run."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
import shutil
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from jaxsens import SweepResult, load_sweep
from jaxsens.core.report.fits import fit_exponents, signed
from jaxsens.core.report.page import run_table, variant_table, write_page
from jaxsens.core.report.panels import NARROW, SHAPES
from jaxsens.core.report.report import build_report
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.report.synthetic import clashes, points, power, six_variants, sweep_data
from tests.core.sweeps.tiny import TINY, draw_nothing
from tests.refusals import refused

VOID = {"source", "meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """A page's text and attributes; raises where a tag is closed that was not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.links: list[str] = []
        self.alternatives: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "srcset", "data")]
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.alternatives += [value or "" for name, value in attrs if name == "alt"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words += data


def page_of(data, drawn: bool = False) -> tuple[str, Page]:
    """The page and what it says; drawings take long and are left out unless they are asked for."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if not drawn:
            draw_nothing(patch)
        text = write_page(build_report(data), Path(folder), "pdf").read_text("utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def drawn():
    two = six_variants().query("variant in ['softmax', 'average-hard']")
    return page_of(sweep_data(two), drawn=True)


@pytest.mark.long
def test_the_page_is_well_formed_and_needs_nothing_but_itself(drawn):
    text, page = drawn
    assert page.open == []
    assert page.references
    assert all(reference.startswith("data:image/svg+xml;base64,") for reference in page.references)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.long
def test_every_figure_is_in_the_page_with_words_for_who_cannot_see_it(drawn):
    _, page = drawn
    assert page.tags.count("img") == len(page.alternatives) == 3
    assert all("softmax" in words for words in page.alternatives)
    for reference in page.references:
        assert base64.b64decode(reference.partition(",")[2]).startswith(b"<?xml")


def test_links_lead_to_the_papers_and_to_files_that_a_report_writes(drawn):
    _, page = drawn
    papers = [link for link in page.links if link.startswith("https://arxiv.org/abs/")]
    assert len(papers) == 2
    written = {"points.csv", "summary.csv", "local_slopes.csv"}
    figures = {link for link in page.links if re.fullmatch(r"figures/[\w-]+\.pdf", link)}
    assert len(figures) == 3
    assert set(page.links) == {*papers, *written, *figures}


def test_the_page_says_what_was_found_with_exponent_and_interval():
    _, page = page_of(sweep_data(six_variants()))
    fit = fit_exponents(six_variants())[0]
    number = r"−(\d\.\d\d)"
    found = re.search(rf"falls about as 1/n for softmax \({number}\)", page.words)
    assert found
    np.testing.assert_allclose(-float(found[1]), fit.exponent, atol=6e-3)
    assert f"[{signed(fit.ci_low, 3)}, {signed(fit.ci_high, 3)}]" in page.words  # in the table
    assert "is exactly 0 for average-hard" in page.words


def test_variants_with_the_same_numbers_to_the_last_bit_are_remarked():
    laws = {"softmax": power(-1), "masked": power(-1), "zero": power(0, 0.0), "null": power(0, 0.0)}
    laws["nearly"] = lambda n, seed: float(np.nextafter(1 / n, 1)) if (n, seed) == (64, 1) else 1 / n
    table = points({name: {"mean": law} for name, law in laws.items()})
    report = build_report(sweep_data(table))
    (remark,) = [text for text in report.sections[0].bullets if "bitwise" in text]
    assert remark.startswith("softmax and masked have bitwise equal numbers at every length and seed. ")


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [NARROW, SHAPES["one"], SHAPES["two"]])
def test_every_figure_fits_a_narrow_screen_and_the_columns_of_a_paper(shape):
    table = points({name: {"mean": power(0), "max": power(0)} for name in ("a", "b", "lstm")})
    report = build_report(sweep_data(table))
    assert len(report.figures) >= 3
    for figure in report.figures:
        assert figure.panels > 1
        drawing = figure.draw(shape)
        assert (
            drawing.get_figwidth() == shape.width or drawing.get_figwidth() < 6 < figure.figure.get_figwidth()
        )
        assert clashes(drawing) == []


def test_a_complete_sweep_has_no_warning_and_an_incomplete_one_says_what_is_missing():
    table = points({"a": {"mean": power(-1)}, "b": {"mean": power(0)}})
    complete = sweep_data(table)
    assert "Incomplete" not in page_of(complete)[1].words
    rest = table.loc[(table["variant"] == "a") & ((table["n"] != 64) | (table["seed"] == 1)), :]
    partial = sweep_data(
        rest, planned=[(point.variant, point.n, point.seed) for point in complete.plan.points]
    )
    words = page_of(partial)[1].words
    assert "Incomplete" in words
    assert (
        "17 of 30 planned points are missing: a n = 64 seed = 0, a n = 64 seed = 2, b n = 16 seed = 0"
        in words
    )


def test_what_a_config_says_is_shown_and_never_taken_for_html():
    text, page = page_of(
        sweep_data(
            points({"a": {"mean": power(-1)}}),
            title="<b>1 & 2</b>",
            claim="a < b",
            config="# <script>alert(1)</script>\n",
        )
    )
    assert "script" not in page.tags
    assert "# <script>alert(1)</script>" in page.words
    assert "<b>1 & 2</b>" in page.words
    assert "<title>&lt;b&gt;1 &amp; 2&lt;/b&gt;</title>" in text
    assert "a < b" in page.words


CONSTRUCTED: dict[str, dict[str, object]] = {
    name: {"weights": "constructed", "outputs": "the coordinate of the result"}
    for name in ("temperature", "unbounded", "control", "rounded")
}


def constructions(variants: dict[str, dict[str, object]] | None = None) -> SweepResult:
    """Random weights, constructions that do not fall, a control that does, and one that is exactly 0."""
    names = ("random", "temperature", "unbounded", "control", "rounded")
    laws = (power(-1), power(0), power(0, 1 - 2.0**-53), power(-1, 0.07), power(0, 0.0))
    table = points({name: {"mean": law, "max": law} for name, law in zip(names, laws, strict=True)})
    return sweep_data(table, variants=CONSTRUCTED if variants is None else variants)


def test_the_page_tells_constructed_weights_from_random_ones_and_what_is_measured():
    data = constructions()
    words = page_of(data)[1].words
    assert (
        "on networks with random weights, which share these and differ in one choice only (random) and on networks "
        "with constructed weights, which do not depend on the seed" in words
    )
    assert "(temperature, unbounded, control and rounded)" in words
    rows = {row[0]: (row[2], *row[4:]) for row in variant_table(data).rows}
    assert rows["random"] == ("random", "bounded", "every coordinate")
    assert rows["control"] == ("constructed", "bounded", "the coordinate of the result")
    assert "constructed weights" not in page_of(sweep_data(six_variants()))[1].words
    only = constructions({**CONSTRUCTED, "random": {"weights": "constructed"}})
    assert "random weights" not in page_of(only)[1].words
    trained = constructions({"control": {"weights": "trained"}})
    assert (
        "and on networks with trained weights, which do not depend on the seed (control), all"
        in page_of(trained)[1].words
    )
    assert {row[0]: row[2] for row in variant_table(trained).rows}["control"] == "trained"


def test_lengths_beyond_which_rounding_counts_are_named():
    def words_of(**exact_lengths: int) -> str:
        return page_of(constructions({name: {"exact_length": n} for name, n in exact_lengths.items()}))[
            1
        ].words

    assert "Rounding" not in words_of(temperature=256)
    words = words_of(temperature=200, control=10**6)
    assert words.count("Rounding may have affected") == 1
    assert "temperature is predicted to be exact up to n = 200" in words


def test_a_random_sample_of_flips_is_never_passed_off_as_all_of_them():
    data = sweep_data(points({"a": {"mean": power(-1)}}))
    assert "for every flip on" in page_of(data)[1].words
    metadata = tuple(dataclasses.replace(point, population=10 * point.population) for point in data.metadata)
    words = page_of(dataclasses.replace(data, metadata=metadata))[1].words
    assert "for a random sample of all flips on" in words
    assert "for every flip on" not in words
    assert "the largest over all flips may be larger" in words
    assert "random samples: 1,473 of 14,730" in words


def test_what_was_run_names_every_engine_and_version_with_how_often():
    data = sweep_data(points({"a": {"mean": power(-1)}}, lengths=(8, 16), seeds=2))
    first, *others = data.metadata
    engine = {**first.engine, "name": "difference"}
    changed = dataclasses.replace(first, engine=engine, versions={"jax": "0.12"})
    mixed = dataclasses.replace(data, metadata=(changed, *others))
    cells = {row[0]: row[1] for row in run_table(mixed).rows}
    assert cells["engine"] == "vmap (serves every model) (×3)\ndifference (serves every model) (×1)"
    assert cells["jax"] == "0.10.2 (×3); 0.12 (×1)"
    assert cells["device"] == "cpu"
    assert cells["points"] == "4 of 4 planned"
    assert cells["computing time"] == "6 s, summed over points"


CONFIG = TINY.replace("[4, 6]", "[4, 6, 9]").replace("leftmost-hard", "unbounded").replace(', "q90"', "")
FIGURES = [f"{name}.svg" for name in ("distance", "local-slopes", "profiles", "sensitivity")]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished sweep directory; tests must not change it."""
    directory = tmp_path_factory.mktemp("swept")
    sweep = parse_sweep_config(CONFIG)
    assert not run_sweep(sweep, directory, sweep.points, Console(file=io.StringIO())).failures
    return directory


@pytest.fixture(scope="module")
def reported(swept, tmp_path_factory):
    """A copy of it with its report; tests must not change it."""
    directory = shutil.copytree(swept, tmp_path_factory.mktemp("reported") / "sweep")
    assert load_sweep(directory).report(directory) == directory / "report.html"
    return directory


def files_below(directory):
    return {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_the_report_adds_its_files_and_nothing_else(swept, reported):
    added = files_below(reported) - files_below(swept)
    assert added == {
        *(f"figures/{name}" for name in FIGURES),
        "report.html",
        "summary.csv",
        "local_slopes.csv",
        "distances.csv",
        "distance_exponents.csv",
    }


@pytest.mark.long
def test_a_report_written_again_has_the_same_bytes(reported, tmp_path):
    again = shutil.copytree(reported, tmp_path / "again")
    (again / "report.html").write_text("old")
    load_sweep(again).report(again)
    assert files_below(again) == files_below(reported)
    assert [
        name for name in files_below(again) if (again / name).read_bytes() != (reported / name).read_bytes()
    ] == []


@pytest.mark.long
def test_a_sweep_without_a_finished_point_is_refused_and_nothing_written(swept, tmp_path):
    sweep_copy = shutil.copytree(swept, tmp_path / "copy")
    shutil.rmtree(sweep_copy / "points")
    before = files_below(sweep_copy)
    refused("directory", load_sweep, sweep_copy)
    assert files_below(sweep_copy) == before
