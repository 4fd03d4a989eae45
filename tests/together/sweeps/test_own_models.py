"""`jaxsens.sweep`: models that functions make, measured side by side, in the folder of `jaxsens sweep`."""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base import stopping
from jaxsens.core.sweeps import points as sweep_points
from tests.commands import run
from tests.core.sweeps.tiny import draw_nothing, fake_flip_sensitivity, tiny_sweep
from tests.refusals import refusal, refused

LENGTHS = (8, 16, 32)
SMALL = jaxsens.TransformerConfig(2, width=4, heads=1, layers=1, feed_forward=0)


def attention(parameters, tokens):
    """One head that reads at the last position, with scores multiplied by a number."""
    embedding, key, scale = parameters
    rows = embedding[tokens]
    return jax.nn.softmax(scale * (rows @ key)) @ rows


def maker(scale):
    def make(n, seed):
        embedding, key = (np.random.default_rng(seed).normal(size=shape) for shape in ((2, 5), (5,)))
        return attention, tuple(jnp.asarray(one, jnp.float32) for one in (embedding, key, scale(n)))

    return make


SOFT, LOG = maker(lambda n: 0.01), maker(lambda n: 0.4 * math.log(n))


def words(n, seed):
    return np.random.default_rng(seed + n).integers(0, 2, size=(3, n))


def config(n, seed):
    return SMALL


def wider(n, seed):
    return SMALL.replace(width=6)


@pytest.mark.long
def test_the_numbers_are_those_of_a_loop_and_the_exponents_say_which_model_escapes_the_law(tmp_path):
    found = jaxsens.sweep({"softmax": SOFT, "log n": LOG}, LENGTHS, seeds=2, inputs=words, flips=2)
    table = found.points.set_index(["variant", "n", "seed"])
    assert len(table) == 12
    for name, make in (("softmax", SOFT), ("log n", LOG)):
        loop = [jaxsens.flip_sensitivity(make(n, 1), words(n, 1), 2) for n in LENGTHS]
        for n, measured in zip(LENGTHS, loop, strict=True):
            row = table.loc[name, n, 1]
            assert (row["mean"], row["max"], row["flips"]) == (measured.mean, measured.max, 3 * (n - 1))
    exponents = found.exponents.set_index(["variant", "statistic"])
    soft, log = exponents.loc["softmax", "max"], exponents.loc["log n", "max"]
    assert soft["exponent"] == pytest.approx(-1, abs=0.05)
    assert soft["settled"]
    assert soft["growth"] == "falls about as 1/n"
    assert abs(log["exponent"] + 1) > 0.2
    page = found.report(tmp_path / "report").read_text()
    assert "falls about as 1/n" in page
    assert "models that functions of the user" in page
    assert "bounded" not in re.sub(
        r"(?s)<p>.*?</p>", "", page.partition("The variants")[2].partition("</table>")[0]
    )
    assert "softmax: max falls about as 1/n (exponent" in repr(found)
    assert "<table" in found._repr_html_()


def test_a_config_gives_the_words_and_the_numbers_of_a_sweep_of_the_package(faked):
    of_package = tiny_sweep()
    found = jaxsens.sweep({"softmax": config}, of_package.lengths, seeds=2)
    with_end = [point for point in of_package.points if point.variant == "softmax"]
    ours = found.metadata
    assert [one.statistics["mean"] for one in ours] == [
        sweep_points.compute("mean", fake_flip_sensitivity(one.model(), one.tokens()).norms)
        for one in with_end
    ]
    assert found.plan.variants[0].bounded is True


def test_the_folder_is_that_of_the_command_line(faked, monkeypatch, tmp_path, capsys):
    draw_nothing(monkeypatch)
    found = jaxsens.sweep({"a b": config}, LENGTHS, seeds=2, out=tmp_path)
    code, told, _ = run(capsys, "status", tmp_path, "--json")
    assert (code, json.loads(told)["state"], json.loads(told)["points"]) == (0, "finished", 6)
    assert run(capsys, "report", tmp_path)[0] == 0
    assert len((tmp_path / "points.csv").read_text().splitlines()) == 1 + len(found.points)
    assert (tmp_path / "sweep.toml").read_text() == (
        f'# jaxsens.sweep({{"a b": {__name__}:config}}, [8, 16, 32], seeds=[0, 1], flips=Substitute(), measure=L2(), '
        "engine=Auto())\n"
    )
    assert "jaxsens.sweep(" in (tmp_path / "report.html").read_text()


def test_a_stopped_sweep_goes_on_and_grows_without_measuring_again(faked, monkeypatch, tmp_path):
    inner, fake = [], sweep_points.flip_sensitivity

    def stopping_once(model, tokens, **options):
        inner.append(1)
        if len(inner) == 3:
            raise stopping.Stopped(2)
        return fake(model, tokens, **options)

    monkeypatch.setattr(sweep_points, "flip_sensitivity", stopping_once)
    with pytest.raises(jaxsens.SweepInterrupted, match="after 2 points") as stopped:
        jaxsens.sweep({"a": config}, LENGTHS, seeds=2, out=tmp_path)
    assert stopped.value.partial is not None
    assert len(stopped.value.partial.points) == 2
    again = jaxsens.sweep({"a": config}, LENGTHS, seeds=2, out=tmp_path)
    assert faked == [8, 8, 16, 16, 32, 32]
    more = jaxsens.sweep({"a": config, "b": wider}, (*LENGTHS, 64), seeds=[0, 1, 5], out=tmp_path)
    assert len(faked) == len(more.points) == 24
    assert set(more.fits[0].local) >= set(again.fits[0].local) or more.fits


def test_changed_models_and_words_are_refused_in_a_folder_and_change_nothing(faked, tmp_path):
    jaxsens.sweep({"a": config, "b": wider}, LENGTHS, seeds=1, out=tmp_path, inputs=words)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    options: dict[str, Any] = {"seeds": 1, "out": tmp_path, "inputs": words}
    changed = refused("out", jaxsens.sweep, {"a": wider, "b": wider}, LENGTHS, **options)
    assert f"out = {str(tmp_path)!r}: it holds 3 points" in changed
    assert "the models of a, or what JAX makes of them" in changed
    options["inputs"] = lambda n, seed: [0] * n
    assert "it holds 6 points" in refused("out", jaxsens.sweep, {"a": config, "b": wider}, LENGTHS, **options)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}


def test_a_point_whose_model_or_words_cannot_be_made_fails_alone_and_is_measured_once_they_can(
    faked, tmp_path
):
    def picky(n, seed):
        if (n, seed) == (16, 1):
            raise RuntimeError("no such weights")
        return SMALL

    def no_words(n, seed):
        return [0, 1] if (n, seed) == (8, 0) else [[0, 1] * (n // 2)]

    with pytest.warns(UserWarning, match="2 of 6 points failed: .*; .failures has all"):
        found = jaxsens.sweep({"a": picky}, LENGTHS, seeds=2, inputs=no_words, out=tmp_path)
    assert [str(one) for one in found.failures] == [
        "a n=8 seed=0: inputs(n=8, seed=0): words: tokens = 'shape (1, 2)': words of 8 symbols",
        "a n=16 seed=1: RuntimeError: no such weights",
    ]
    mended = jaxsens.sweep(
        {"a": config}, LENGTHS, seeds=2, inputs=lambda n, seed: [[0, 1] * (n // 2)], out=tmp_path
    )
    assert (len(faked), mended.failures) == (6, ())


def test_a_model_that_is_another_at_each_call_fails(faked):
    calls = []

    def unseeded(n, seed):
        calls.append(1)
        return jaxsens.Transformer(SMALL, seed=len(calls))

    told = refused("models.a", jaxsens.sweep, {"a": unseeded}, [4], seeds=1)
    assert "returns another model each time" in told


def test_what_is_wrong_with_every_model_and_argument_is_said_together_before_anything_is_measured(faked):
    def fails(n, seed):
        raise KeyError("weights")

    three: Any = 3
    models = {
        "no function": three,
        "one argument": lambda n: None,
        "no model": lambda n, seed: "weights.npz",
        "fails": fails,
        "rows": lambda n, seed: lambda tokens: jnp.eye(3)[tokens],
        "a/b": config,
        "blank at the end ": config,
    }
    names = ("models: no function: make", "models: one argument: make", "models: a/b: name")
    names += ("models: blank at the end : name",)
    with refusal(*names, *["flips", "measure", "lengths", "seeds", "placement", "out"]):
        jaxsens.sweep(
            models, [16, 8], seeds=0, flips="swap", measure=jaxsens.Function(jnp.sum), out="", placement=three
        )
    with refusal(*names, "models: no model", "models.fails", "models.rows") as caught:
        jaxsens.sweep(models, [8, 16], seeds=1, flips=3)
    assert "in a sweep return the row: lambda tokens: model(tokens)[-1]" in str(caught.value)
    silent: Any = lambda n, seed: jnp.sum  # noqa: E731 - whose models do not say their symbols
    drawn = jaxsens.Substitute(sample=2, seed=3)
    refused("flips.seed flips", jaxsens.sweep, {"a": silent, "b": config}, [8], flips=drawn)
    refused("inputs", jaxsens.sweep, {"a": silent}, [8], flips=[3, 5])
    refused("models", jaxsens.sweep, {}, [8])
    refused("inputs", jaxsens.sweep, {"b": config}, [8], inputs=3)
    with refusal("inputs(n=8, seed=0)"):
        jaxsens.sweep({"b": config}, [8], inputs=lambda n, seed: [][n])
    with pytest.raises(TypeError, match='unknown argument; did you mean "lengths"'):
        jaxsens.sweep({"b": config}, [8], length=3)  # pyright: ignore[reportCallIssue]
    assert faked == []


MODULE = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
import helper_of_{name}
from jaxsens import TransformerConfig
SMALL = TransformerConfig(2, width=4, heads=1, layers=1, feed_forward=0)
def make(n, seed):
    return SMALL
class Wide:
    @staticmethod
    def make(n, seed):
        return SMALL.replace(width=6)
"""
CONFIG = """
lengths = [8, 16, 32]
seeds = 2
[model]
python = "{name}:make"
[[variant]]
name = "itself"
[[variant]]
name = "wide"
model = {{ python = "{name}:Wide.make" }}
"""


@pytest.fixture
def coded(tmp_path, monkeypatch):
    """A config that names functions of a module beside it."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    (tmp_path / f"helper_of_{name}.py").write_text("")
    (tmp_path / "sweep.toml").write_text(CONFIG.format(name=name))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "sweep.toml"


def test_a_config_runs_code_only_if_it_may(faked, monkeypatch, coded, capsys):
    draw_nothing(monkeypatch)
    folder, name = coded.parent, next(coded.parent.glob("own_*.py")).stem
    for arguments in (
        ("sweep", coded, "--out", folder / "out"),
        ("sweep", coded, "--out", folder / "out", "--list"),
        ("measure", "--config", coded, "--n", 8),
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert (
            f"model.python = '{name}:make': only `jaxsens sweep --allow-code` runs code that a config names"
            in err
        )
    assert not (folder / "imported").exists()
    assert not (folder / "out").exists()
    code, _, log = run(capsys, "sweep", coded, "--out", folder / "out", "--allow-code")
    assert (code, len(faked)) == (0, 12), log
    assert (folder / "imported").exists()
    of_python = jaxsens.sweep({"itself": config, "wide": wider}, LENGTHS, seeds=2, out=folder / "out")
    assert (len(faked), len(of_python.points)) == (12, 12)


def test_status_and_report_import_nothing(faked, monkeypatch, coded, capsys):
    draw_nothing(monkeypatch)
    out = coded.parent / "out"
    assert run(capsys, "sweep", coded, "--out", out, "--allow-code", "--shard", "0/2")[0] == 0
    for module in ("imported", *(path.name for path in coded.parent.glob("*own_*.py"))):
        (coded.parent / module).unlink()
    assert run(capsys, "status", out)[0] == 0
    assert run(capsys, "report", out)[0] == 0
    assert not (coded.parent / "imported").exists()


def test_what_is_wrong_with_a_function_that_a_config_names_is_said_once(coded, capsys):
    def told(text):
        coded.write_text(text)
        code, _, err = run(capsys, "sweep", coded, "--out", coded.parent / "out", "--allow-code")
        assert code == 2
        return err

    text = coded.read_text()
    missing = told(re.sub(r"own_\w+:make", "no_such_module:make", text))
    assert missing.count("no_such_module") == 2
    assert "model.python = 'no_such_module:make': cannot be imported: ModuleNotFoundError" in missing
    assert "AttributeError" in told(text.replace(":make", ":mak"))
    assert 'model.python = 3: a function make(n, seed), as "package.module:make"' in told(
        re.sub(r'"own_\w+:make"', "3", text)
    )
    assert "model.width: unknown key; the function makes the whole model" in told(
        text.replace("[[variant]]", "width = 3\n[[variant]]", 1)
    )
    assert "python each name a model" in told(text.replace("[[variant]]", 'formula = "1"\n[[variant]]', 1))


@pytest.mark.parametrize("notebook", [False, True])
def test_a_script_has_a_line_of_progress_and_a_notebook_a_bar_without_a_warning(
    faked, notebook, monkeypatch, capsys
):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # as where it is not installed: rich warns then
    jaxsens.sweep({"a": config}, LENGTHS, seeds=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "6/6" in err
    assert ("━" in err) == notebook
    assert len(err.splitlines()) == 1 or notebook
