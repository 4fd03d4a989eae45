"""`jaxsens.load_sweep` and `SweepResult`: what is said of sweeps of every kind, and figures and tables for papers."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

import jaxsens
from jaxsens.core.report.page import exponent_table
from jaxsens.core.report.panels import ZERO_LABEL, variant_styles
from jaxsens.core.report.report import build_report
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.report.synthetic import clashes, points, power, six_variants, sweep_data, y_labels
from tests.core.sweeps.tiny import TINY, fake_flip_sensitivity, measured_by, quiet
from tests.refusals import refused

LENGTHS = (8, 16, 32, 64, 128)


def swept(folder, monkeypatch, law, lengths, seeds):
    """A sweep of points whose flips all change the output by `law(n, seed)`: a value, or also how far it may be off."""
    text = TINY.replace("[4, 6]", str([*lengths])).replace("seeds = 2", f"seeds = {seeds}")
    sweep = parse_sweep_config(
        text.replace(', "leftmost-hard"', "").replace('"mean", "max", "q90"', '"mean"')
    )
    order = iter(sweep.points)

    def measured(model, tokens, **options):
        made, point = fake_flip_sensitivity(model, tokens, **options), next(order)
        value, resolution = np.atleast_1d([*np.ravel(law(point.n, point.seed)), 0.0])[:2]
        return dataclasses.replace(
            made, values=np.full(len(made), value), resolution=np.full(len(made), resolution)
        )

    measured_by(monkeypatch, measured)
    run_sweep(sweep, folder, sweep.points, quiet())
    return jaxsens.load_sweep(folder)


def noise(n, seed, spread=1.0):
    return float(np.exp(spread * np.random.default_rng([n, seed]).normal()))


INVERSE = "falls about as 1/n (exponent −1.00 [−1.00, −1.00]"
FEW = "has too few values for a trend (no seed has 3 values for a slope"
SWEEPS = {
    "1/n": (lambda n, seed: (1 + 0.2 * seed) / n, f"{INVERSE})"),
    "flat": (lambda n, seed: 1 + 0.2 * seed, "stays about constant (exponent 0.00 [0.00, 0.00])"),
    "grows": (lambda n, seed: (1 + 0.2 * seed) * n**0.5, "grows (exponent 0.50 [0.50, 0.50])"),
    "slow": (lambda n, seed: (1 + 0.2 * seed) * n**-0.3, "falls (exponent −0.30 [−0.30, −0.30])"),
    "log n / n": (
        lambda n, seed: math.log(n) / n,
        "falls (exponent −0.70 [−0.70, −0.70]; not settled: local slopes from −0.58 to −0.78)",
    ),
    "falls, then flat": (
        lambda n, seed: 1 / n + 0.05,
        "falls (exponent −0.40 [−0.40, −0.40]; not settled: local slopes from −0.64 to −0.18)",
    ),
    "noise": (
        noise,
        "shows no clear trend (exponent 0.42 [−0.71, 1.54]; not settled: local slopes from 1.40 to −1.05)",
    ),
    "little noise": (
        lambda n, seed: noise(n, seed, 0.01),
        "stays about constant (exponent 0.00 [−0.01, 0.02])",
    ),
    "seeds differ": (lambda n, seed: n ** (seed - 1.0), "shows no clear trend (exponent 0.00 [−2.48, 2.48])"),
    "all zero": (lambda n, seed: 0.0, "is exactly 0"),
    "zero from 32 on": (
        lambda n, seed: float(n < 32),
        "is exactly 0 (exactly 0 from n = 32 on; no seed has 3 values for a slope; 9 zeros and 6 others left out of "
        "15 values)",
    ),
    "zero from 128 on": (
        lambda n, seed: (n < 128) / n,
        "is exactly 0 (exponent −1.00 [−1.00, −1.00]; not settled: exactly 0 from n = 128 on; 3 zeros left out of 15 "
        "values)",
    ),
    "zero for most seeds from 64 on": (
        lambda n, seed: (n < 64 or seed == 0) / n,
        "is exactly 0 (exponent −1.00 [−1.00, −1.00]; not settled: exactly 0 for most seeds from n = 64 on; 4 zeros "
        "left out of 15 values)",
    ),
    "zero at 16": (
        lambda n, seed: (n != 16) / n,
        f"{INVERSE}; not settled: exactly 0 at n = 16; 3 zeros left out of 15 values)",
    ),
    "zero for one seed": (lambda n, seed: (seed > 0) / n, f"{INVERSE}; 5 zeros left out of 15 values)"),
    "one length": (lambda n, seed: 1 / n, f"{FEW})"),
    "two lengths": (lambda n, seed: 1 / n, f"{FEW})"),
    "one seed": (lambda n, seed: 1 / n, "falls about as 1/n (exponent −1.00)"),
    "one point": (lambda n, seed: 1 / n, f"{FEW})"),
    "none resolved": (lambda n, seed: (1e-9, 1e-7), f"{FEW}; 15 unresolved left out of 15 values)"),
    "the longest not resolved": (
        lambda n, seed: (1 / n, float(n > 64)),
        f"{INVERSE}; 3 unresolved left out of 15 values)",
    ),
    "one value not resolved": (
        lambda n, seed: (1 / n, float((n, seed) == (32, 1))),
        f"{FEW}; 1 unresolved and 14 others left out of 15 values)",
    ),
    "sixty powers of ten": (lambda n, seed: float(n) ** -50, "falls (exponent −50.00 [−50.00, −50.00])"),
}
SIZES = {"one length": ([8], 3), "two lengths": ([8, 16], 3), "one seed": (LENGTHS, 1), "one point": ([8], 1)}


@pytest.mark.quick(3)
@pytest.mark.parametrize("case", SWEEPS)
def test_what_is_said_of_a_sweep_and_that_every_length_of_it_is_drawn(case, tmp_path, monkeypatch):
    (law, said), (planned, seeds) = SWEEPS[case], SIZES.get(case, (LENGTHS, 3))
    result = swept(tmp_path, monkeypatch, law, planned, seeds)
    assert repr(result).splitlines()[1:] == [f"softmax: mean {said}"]
    report = build_report(result)
    (bullet,), (fit,) = report.sections[0].bullets, result.fits
    for text in (said, bullet, " ".join(exponent_table(result.fits).rows[0])):
        assert fit.growth.value in text
        assert fit.note in text
    row = result.exponents.iloc[0]
    assert (row["growth"], row["settled"]) == (
        fit.growth.value,
        "not settled" not in said and not fit.vanishing and not np.isnan(row["exponent"]),
    )
    assert row["points"] + row["zeros"] + row["unresolved"] <= row["values"] == len(result.points)
    assert "nan" not in bullet + result.to_latex()
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    assert result.plot(axes=axes) is axes
    lengths = {
        round(x) for line in axes.lines if line.get_marker() == "o" for x in np.asarray(line.get_xdata())
    }
    assert lengths == {*planned}
    assert clashes(figure) == []


def test_a_model_that_gives_nan_is_a_failure_and_not_a_value():
    models = {"broken": lambda n, seed: lambda tokens: jnp.log(jnp.mean(tokens) - (n < 12))}
    with pytest.warns(UserWarning, match="1 of 2 points failed"):
        result = jaxsens.sweep(models, [8, 16], seeds=1, flips=2, inputs=lambda n, seed: np.ones(n, int))
    assert [str(one.item) for one in result.failures] == ["broken n=8 seed=0"]
    assert result.points["n"].tolist() == [16]


@pytest.fixture(scope="module")
def six():
    return sweep_data(six_variants())


def test_a_plot_is_one_panel_with_the_variants_labels_and_title_that_are_given(six):
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    six.plot("max", right, variants=["unbounded", "softmax"], labels={"softmax": "ours"}, title="Largest")
    assert not left.has_data()
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["unbounded", "ours"]
    assert right.get_title(loc="center") == "Largest"
    assert not any("10^" in label for label in y_labels(right))
    assert not any(right.spines[side].get_visible() for side in ("top", "right"))
    assert right.get_ylabel() == "largest change of the output,\n‖y(x) − y(x′)‖₂"
    drawn = {line.get_color() for line in right.lines if line.get_marker() != "None"}
    styles = variant_styles([*dict.fromkeys(six_variants()["variant"])])
    assert drawn == {styles["softmax"].colour, styles["unbounded"].colour}
    assert all(axes.get_title(loc) == "" for axes in [six.plot(axes=left)] for loc in ("left", "center"))
    assert ZERO_LABEL in y_labels(left)


def test_a_plot_without_axes_makes_a_figure_that_pyplot_shows(six):
    axes = six.plot()
    assert axes.figure.number in pyplot.get_fignums()
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("statistic", {"statistic": "q17"}),
        ("axes", {"axes": Figure()}),
        ("variants", {"variants": ["softmax", "hard"]}),
        ("variants", {"variants": "softmax"}),
        ("labels", {"labels": {"hard": "a"}}),
        ("labels.softmax", {"labels": {"softmax": 3}}),
        ("title", {"title": 3}),
    ],
)
def test_a_plot_of_what_there_is_not_is_refused(six, path, options):
    refused(path, six.plot, **options)


def test_the_latex_table_has_a_row_for_each_exponent_with_names_escaped():
    result = sweep_data(points({"50% of_a & b": {"mean": power(-1), "max": power(0, 0.0)}}))
    assert result.to_latex().splitlines() == [
        r"\begin{tabular}{llrcl}",
        r"\toprule",
        r"model & statistic & exponent of $n$ & 95\,\% interval & settled \\",
        r"\midrule",
        r"50\% of\_a \& b & mean & $-1.00$ & $[-1.00, -1.00]$ & yes \\",
        r"50\% of\_a \& b & max & --- & --- & is exactly 0 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.long
def test_a_report_has_figures_in_the_format_and_width_of_a_paper(tmp_path):
    result = sweep_data(points({"a": {"mean": power(-1)}}))
    for format in ("pdf", "svg", "png"):
        page = result.report(tmp_path, format=format, width="one").read_text("utf-8")
        assert f'href="figures/sensitivity.{format}"' in page
    figures = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    pdf, svg, png = (figures[f"sensitivity.{format}"] for format in ("pdf", "svg", "png"))
    assert b"/FontFile2" in pdf  # TrueType, as Type 42 is in a PDF
    assert b"/Type3" not in pdf
    assert b"/MediaBox [ 0 0 234 " in pdf  # 3.25 inches
    assert b">input length n (symbols)</text>" in svg
    assert png.startswith(b"\x89PNG")
    refused("format", result.report, tmp_path, format="jpg")
    refused("width", result.report, tmp_path, width="three")
    refused("directory", result.report, tmp_path / "report.html")
