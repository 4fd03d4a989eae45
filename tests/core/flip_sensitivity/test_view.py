"""Results by position, with strings: tables, plots and pictures say what was measured, for every kind of result."""

from __future__ import annotations

import dataclasses
import html
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

import jaxsens
from jaxsens import FlipSensitivity
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.core.results import picture
from jaxsens.core.results.measured import Provenance
from jaxsens.core.results.picture import spaced, text_pieces
from jaxsens.core.results.plot import picture_bytes, safe_label
from jaxsens.core.results.statistics import Estimated
from tests.made_results import made
from tests.refusals import refused

NAMES = {0: "[CLS]", 1: "un", 2: "##do", 3: "<b>", 4: "a"}


def shown(values: Any = (3.0, 1.0, 2.0, 0.5), **changed: Any) -> FlipSensitivity:
    """A result on [CLS] un ##do <b>: position 1 has two flips, 2 and 3 one each, 0 none."""
    fields = {
        "positions": [1, 1, 2, 3],
        "symbols": [3, 4, 4, 4],
        "tokens": np.array([[0, 1, 2, 3]], np.int32),
        "alphabet": (3, 4),
        "readout": 0,
        "names": NAMES,
    }
    return made(values, **{**fields, **changed})


def signed(values: Any = (1.0, -3.0, -2.0, 0.5)) -> FlipSensitivity:
    return shown(values, measure=jaxsens.Function(lambda y: y[0]))


def estimated() -> FlipSensitivity:
    known = np.array([3.0, np.nan, np.nan, 0.5])
    return shown(estimated=Estimated(np.array([2.0, 1.0, 2.0, 0.5]), np.array([1, 0, 0, 2], np.int8), known))


def tokens_of(page: str) -> list[tuple[str, str, str]]:
    """Class, title and text of every token of the text."""
    text = "".join(re.findall(r'<p class="text.*?</p>', page, re.DOTALL))
    found = re.findall(r'<span class="(.*?)"[^>]*? title="(.*?)">(.*?)</span>', text, re.DOTALL)
    return [(kind, html.unescape(title), html.unescape(shown)) for kind, title, shown in found]


@pytest.mark.parametrize(
    ("flips", "said"),
    [
        (jaxsens.Neighbours(2), "each to the 2 symbols most like its own."),
        (jaxsens.Mask(4), "each to '<b>', 'a'."),
        (jaxsens.Delete(), "each deleted."),
        (jaxsens.Insert(), "each with one of '<b>', 'a' inserted before it."),
        (jaxsens.Repeat(2), "each repeated 2 times."),
        (jaxsens.Substitute({1: [3, 4]}), "to symbols chosen for each of them."),
        (jaxsens.Pairs([(1, 3)]), "to symbols chosen for each of them."),
        (jaxsens.Substitute(), "each to '<b>', 'a'."),
        (jaxsens.Substitute(groups=[(1, 2)]), "in groups to '<b>', 'a'."),
    ],
)
def test_a_page_says_the_model_what_was_flipped_by_what_and_the_size_of_the_output(flips, said):
    result = shown()
    asked, run = (
        dataclasses.replace(result.asked, flips=flips),
        Provenance("float64", {}, "some/encoder", 12.34),
    )
    page = html.unescape(dataclasses.replace(result, asked=asked, run=run)._repr_html_())
    assert f"Model: some/encoder. Flipped: 3 of 4 positions, {said}" in page
    assert "Without a flip, ‖y(x)‖₂ = 12.3." in page


@pytest.mark.long
def test_a_measurement_knows_its_model_and_the_size_of_its_output(tmp_path):
    def network(tokens):
        return jnp.stack([3.0 + 0 * tokens[0], 4.0 + tokens[1] / 8])

    found = jaxsens.flip_sensitivity(network, [0, 0, 1], 2)
    assert (found.run.model, found.run.scale) == ("network", 5.0)
    found.save(tmp_path / "r.parquet")
    loaded = jaxsens.load_result(tmp_path / "r.parquet")
    assert (loaded.run.model, loaded.run.scale) == ("network", 5.0)
    assert (
        jaxsens.flip_sensitivity(network, [0, 0, 1], 2, jaxsens.Function(lambda y: -y[1])).run.scale == -4.0
    )
    assert jaxsens.flip_sensitivity(network, [0, 0, 1], 2, "kl").run.scale is None
    both = jaxsens.flip_sensitivity(network, [[0, 0, 1], [0, 1, 1]], 2)
    assert [one.run.scale for one in (both, both.of_input(0), both.of_input(1))] == [5.0, 5.0, None]
    plain = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, layers=1, feed_forward=4))
    found = jaxsens.flip_sensitivity(plain, [0, 1, 1])
    assert found.run.model == "Transformer"
    assert found.run.scale == pytest.approx(np.linalg.norm(plain(np.array([0, 1, 1]))), rel=1e-6)


@pytest.mark.quick(2)
@pytest.mark.parametrize("result", [shown(), signed(), estimated(), shown(names=None), shown([0.0] * 4)])
def test_the_coloured_text_is_a_picture_too(result, tmp_path):
    result.to_png(tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    result.to_svg(tmp_path / "r.svg", by="mean", title="A $x$ & B")
    first = (tmp_path / "r.svg").read_bytes()
    result.to_svg(tmp_path / "r.svg", by="mean", title="A $x$ & B")
    assert (tmp_path / "r.svg").read_bytes() == first


def test_control_characters_are_escapes_in_a_picture():
    names = {symbol: f"{name}\x1b\0\uffff" for symbol, name in NAMES.items()}
    written = picture_bytes(shown(names=names).view(), None, "\x08title", "svg").decode()
    assert r"un\x1b\x00\uffff" in written
    assert re.findall("[^\\t\\n\\r -\\ud7ff\\ue000-\\ufffd\U00010000-\U0010ffff]", written) == []
    assert safe_label("a\x1b$") == r"a\x1b\$"


@pytest.mark.parametrize(
    ("method", "name", "remedy"),
    [
        ("save", "x.png", "to_png"),
        ("save", "x", ".parquet"),
        ("to_html", "x.PNG", "to_png"),
        ("to_png", "x.svg", "to_svg"),
        ("to_svg", "x.parquet", "save"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_method_for_it(method, name, remedy, tmp_path):
    refused("path", getattr(shown(), method), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_values_that_are_not_finite_and_a_result_without_changes_or_flips_are_shown():
    result = shown([np.nan, 1.0, np.inf, 0.5])
    np.testing.assert_array_equal(result.view().inputs[0].largest, [np.nan, 1, np.nan, 0.5])
    assert tokens_of(result._repr_html_())[2][0] == "t none"
    page = shown([0.0, 0.0, 0.0, 0.0])._repr_html_()
    assert "no flip changes anything" in page
    assert '--v:0.000" title' in page
    nothing = {name: np.zeros(0, int) for name in ("inputs", "positions", "symbols")}
    empty = shown(np.zeros(0), **nothing)
    assert {kind for kind, _, _ in tokens_of(empty._repr_html_())} == {"t none"}
    assert len(empty.plot()) == 1
    pyplot.close("all")


def test_the_table_says_what_stood_there_and_what_was_inserted():
    frame = shown().to_pandas()
    assert list(frame.columns) == [
        "input",
        "position",
        "token",
        "symbol",
        "replacement",
        "norm",
        "resolution",
    ]
    assert list(frame["token"]) == ["un", "un", "##do", "<b>"]
    assert list(frame["replacement"]) == ["<b>", "a", "a", "a"]
    assert list(estimated().to_pandas().columns)[-3:] == ["resolution", "estimate", "exact"]
    assert list(shown(names=None).to_pandas().columns) == [
        "input",
        "position",
        "symbol",
        "norm",
        "resolution",
    ]
    assert isinstance(frame, pd.DataFrame)


def test_strings_are_kept_in_files_and_parts(tmp_path):
    result = dataclasses.replace(
        shown(), names={**NAMES, 4: 'a"\U0001f600\ud800'.encode("utf-8", "replace").decode()}
    )
    result.save(tmp_path / "r.parquet")
    loaded = jaxsens.load_result(tmp_path / "r.parquet")
    assert loaded.names == result.names
    assert loaded.of_input(0).names == result.names
    shown(names=None).save(tmp_path / "n.parquet")
    assert jaxsens.load_result(tmp_path / "n.parquet").names is None


class Named(LayeredModel):
    def tokens(self, ids: Any) -> list[str]:
        return [f"<{one}>" for one in ids]


@pytest.mark.long
def test_a_measurement_keeps_the_strings_of_what_it_read_and_inserted():
    config = jaxsens.TransformerConfig(alphabet_size=6, width=4, heads=1, layers=1, feed_forward=4)
    plain = jaxsens.Transformer(config)
    model = Named(layered_transformer(config), plain.parameters)
    result = jaxsens.flip_sensitivity(model, [5, 1, 1], flips=jaxsens.Pairs([(1, 3)]))
    assert result.names == {k: f"<{k}>" for k in (1, 3, 5)}
    assert jaxsens.flip_sensitivity(plain, [5, 1, 1]).names is None


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["[CLS]", "un", "##do", "it", ".", "[SEP]"], "[CLS] un ##do it . [SEP]"),
        (["The", " cat", "s", ",", " no", "\n", "x"], "The cats, no↵\nx"),
        (["a", "  ", " b"], "a␣␣ b"),
        (["0", "1", "10"], "0 1 10"),
        (["(", ")", "("], "( ) ("),
        (["##", "##a"], "## ##a"),
    ],
)
def test_pieces_are_joined_as_their_strings_say(names, text):
    assert "".join(space + piece for space, piece in text_pieces(spaced(names))) == text


def test_the_picture_shows_every_token_with_its_values():
    cls, un, do, b = tokens_of(shown()._repr_html_())
    assert cls == ("t none", "'[CLS]' at position 0\nthe model reads its output here\nnot flipped", "[CLS]")
    assert un == ("t up", "'un' at position 1\nlargest: 3 with '<b>'\nmean of 2 flips: 2", "un")
    assert (do[2], b[2]) == ("##do", "<b>")
    page = shown()._repr_html_()
    assert '--v:1.000" title="&#39;un&#39;' in page
    assert '--v:0.667" title="&#39;##do&#39;' in page
    assert "‖y(x) − y(x′)‖₂" in page
    assert "not flipped</span>" in page
    assert "4 flips, engine vmap; read at position 0" in page
    assert "<td>##do</td>" in shown(symbols=np.array([2, 4, 4, 4]))._repr_html_()  # another token than "do"


def test_nothing_in_a_token_becomes_markup(tmp_path):
    evil = '"><script>alert(1)</script>&'
    result = shown(names={**NAMES, 3: evil, 4: evil})
    result.to_html(tmp_path / "r.html", title=evil)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "<script" not in page + result._repr_html_()
    assert page.count("&lt;script&gt;") > 3


def test_signs_have_colours_and_bars_of_their_own():
    kinds = [kind for kind, _, _ in tokens_of(signed()._repr_html_())]
    assert kinds == ["t none", "t down", "t down", "t up"]
    page = signed()._repr_html_()
    assert "dotted bar: decrease" in page
    assert [f">{text}</span>" in page for text in ("−3", "−1.5", "0", "+1.5", "+3")] == [True] * 5
    assert "largest: −3 with 'a'" in html.unescape(page)


def test_estimates_are_told_from_measured_values():
    page = estimated()._repr_html_()
    kinds = [kind for kind, _, _ in tokens_of(page)]
    assert kinds == ["t none", "t up exact", "t up", "t up exact"]
    assert "others: estimates" in page
    assert "4 flips: 2 measured, the others estimated to first order" in page
    titles = [title for _, title, _ in tokens_of(page)]
    assert "largest: 3 with '<b>' (measured)" in titles[1]
    assert "largest: 2 with 'a' (estimate)" in titles[2]
    assert "≈ 2<" in page  # in the table
    assert "estimate" not in shown()._repr_html_()


def test_colours_follow_the_mean_if_asked_and_for_decisions(tmp_path):
    shown().to_html(tmp_path / "r.html", by="mean")
    assert '--v:1.000" title="&#39;##do&#39;' in (tmp_path / "r.html").read_text("utf-8")
    page = shown([1.0, 0.0, 1.0, 0.0], measure="decision")._repr_html_()
    assert '--v:0.500" title="&#39;un&#39;' in page
    assert "the mean change of decision" in page


def test_several_inputs_are_paragraphs_on_one_scale():
    both = shown(
        inputs=np.array([0, 0, 1, 1]),
        positions=np.array([1, 2, 0, 1]),
        tokens=np.array([[0, 1, 2, 3], [4, 3, 2, 1]], np.int32),
        readout="last",
    )
    page = both._repr_html_()
    assert page.count('<p class="text') == 2
    assert "Input 1, n = 4" in page
    assert '--v:0.167" title="&#39;&lt;b&gt;&#39;' in page
    assert page.count("the model reads its output here") == 2
    assert "<td>1: 0</td>" in page


def test_a_long_input_is_cut_off_with_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(picture, "MOST_IN_NOTEBOOK", 3)
    monkeypatch.setattr(picture, "MOST_ON_PAGE", 3)
    page = shown()._repr_html_()
    assert len(tokens_of(page)) == 3
    assert "… and 1 more positions, which this picture leaves out; result.to_html(path) shows more" in page
    two = shown(tokens=np.array([[0, 1, 2, 3], [4, 3, 2, 1]], np.int32))
    two.to_html(tmp_path / "r.html")
    assert "… and 1 more inputs, which this picture leaves out." in (tmp_path / "r.html").read_text("utf-8")


def test_a_page_needs_nothing_else(tmp_path):
    shown().to_html(tmp_path / "r.html", title="A & B")
    page = (tmp_path / "r.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>A &amp; B</title>" in page
    assert "prefers-color-scheme: dark" in page
    for outside in ("<script", "http:", "https:", "src=", "@import", "url("):
        assert outside not in page


def test_bad_arguments_of_a_page_are_refused(tmp_path):
    refused("by", shown().to_html, tmp_path / "r.html", by="max")
    refused("title", shown().to_html, tmp_path / "r.html", title=3)
    assert not (tmp_path / "r.html").exists()


@pytest.fixture
def close():
    yield
    pyplot.close("all")


def drawn(axes: Any, label: str) -> Any:
    return next(line for line in axes.get_lines() if line.get_label() == label)


def test_the_plot_has_the_largest_and_the_mean_of_every_position_in_axes_that_may_be_given(close):
    (axes,) = shown().plot()
    np.testing.assert_array_equal(drawn(axes, "largest").get_ydata(), [3, 2, 0.5])
    np.testing.assert_array_equal(drawn(axes, "mean").get_ydata(), [np.nan, 2, np.nan, np.nan])
    np.testing.assert_array_equal(drawn(axes, "not flipped").get_xdata(), [0])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["[CLS]", "un", "##do", "<b>"]
    assert axes.get_ylabel() == "‖y(x) − y(x′)‖₂"
    _, axes = pyplot.subplots()
    assert shown(names={**NAMES, 3: "$x$"}).plot(axes) == [axes]
    axes.figure.canvas.draw()  # a dollar sign is no mathematics
    refused("axes", shown().plot, "here")
    many = shown(tokens=np.zeros((13, 4), np.int32))
    told = refused("result", many.plot)
    assert "13 inputs': a figure has room for 12" in told
    assert told.endswith(", or axes=[one for each input]")


def test_a_plot_with_one_flip_a_position_calls_none_the_largest(close):
    one = shown((3.0, 2.0), positions=[1, 2], symbols=[3, 4])
    legend: Any = one.plot()[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["change", "not flipped"]
    every = shown((3.0, 2.0, 1.0, 1.0), positions=[0, 1, 2, 3], symbols=[3, 3, 3, 4])
    assert every.plot()[0].get_legend() is None
