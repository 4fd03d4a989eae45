"""The plot and the table of a training show what its files say; what docs/learned.md shows runs."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.training.config import TrainConfig
from jaxsens.training.curves import read_table, training_figure, training_summary, write_training_plot
from tests.core.report.drawn import clashes

METRICS = (
    "step,length,loss,optimum,gradient_norm,learning_rate\n10,4,1.5,0.8,0.1,0.01\n20,8,1.0,0.8,0.1,0.01\n"
)
PREDICTED = (
    "step,n,cross_entropy,excess,standard_error,choice,choice_standard_error\n"
    "10,4,1.25,0.25,0.01,,\n10,8,1.5,0.5,0.01,,\n20,4,1.0,0.0,0.01,,\n20,8,1.125,0.125,0.01,,\n"
)
RECOGNISED = "step,n,accuracy,accuracy_standard_error,margin,margin_standard_error\n20,4,0.75,0.1,1.5,0.1\n"


def written(folder, evaluations):
    (folder / "metrics.csv").write_text(METRICS)
    if evaluations:
        (folder / "evaluation.csv").write_text(evaluations)
    return folder


def told(folder) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(training_summary(folder))
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_plot_has_the_loss_its_optimum_and_evaluations_and_the_summary_is_the_last_of_these(tmp_path):
    folder = written(tmp_path, PREDICTED)
    assert write_training_plot(folder) == folder / "training.png"
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "training.svg").read_bytes()
    text = told(folder)
    assert ["1.125" in text, "1.25" in text, "choice" in text] == [True, False, False]
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    loss, evaluations = figure.axes
    np.testing.assert_array_equal(np.asarray(loss.lines[0].get_xydata()), [[10, 1.5], [20, 1.0]])
    np.testing.assert_array_equal(loss.lines[1].get_ydata(), [0.8, 0.8])
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in evaluations.lines}
    assert drawn["n = 4"] == [0.25, 0.0]
    assert drawn["n = 8"] == [0.5, 0.125]
    assert clashes(figure) == []


def test_recognition_shows_accuracy(tmp_path):
    folder = written(tmp_path, RECOGNISED)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    assert figure.axes[1].get_ylabel() == "share of words labelled correctly"
    assert "0.75" in told(folder)


@pytest.mark.parametrize("evaluations", ["", PREDICTED.splitlines()[0] + "\n"])
def test_without_evaluations_the_last_loss_is_told(tmp_path, evaluations):
    folder = written(tmp_path, evaluations)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    assert len(figure.axes) == 1
    assert "20" in told(folder)


TEXT = (Path(__file__).resolve().parents[2] / "docs" / "learned.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.long
def test_the_example_in_python_runs_in_an_empty_directory_and_gives_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    *lines, last = code.rstrip().splitlines()
    shown, _, result = last.partition("  # ")
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert repr(eval(shown, names)) == result == "True"
    assert {path.name for path in tmp_path.iterdir()} == {"trained"}


def test_the_example_of_a_config_is_one():
    (text,) = blocks("toml")
    config = TrainConfig.from_table(tomllib.loads(text), "the example")
    assert (config.task, config.language.name, config.optimiser.steps) == ("prediction", "parity", 800)


def test_the_temperature_that_is_recommended_is_one_by_query():
    (written,) = re.findall(r"`(\{ type = \"Softmax\".*?\})`", TEXT)
    model = {"width": 8, "heads": 1, **tomllib.loads(f"weighting = {written}")}
    table = {"language": {"name": "parity"}, "model": model, "optimiser": {"steps": 10}}
    read = TrainConfig.from_table(table, "the docs").model
    assert isinstance(read, TransformerConfig)
    assert read.layer(0).weighting == Softmax(SCHEDULES["log"], by="query")
