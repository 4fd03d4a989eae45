"""The plot and the table of a training show what its files say."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from jaxsens.core.base.errors import InputError
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


def test_the_loss_stands_beside_its_optimum_and_evaluations_by_length(tmp_path):
    folder = written(tmp_path, PREDICTED)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    loss, evaluations = figure.axes
    np.testing.assert_array_equal(np.asarray(loss.lines[0].get_xydata()), [[10, 1.5], [20, 1.0]])
    np.testing.assert_array_equal(loss.lines[1].get_ydata(), [0.8, 0.8])
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in evaluations.lines}
    assert drawn["n = 4"] == [0.25, 0.0]
    assert drawn["n = 8"] == [0.5, 0.125]
    assert clashes(figure) == []


def test_both_files_are_written_and_the_summary_is_the_last_evaluation(tmp_path):
    folder = written(tmp_path, PREDICTED)
    assert write_training_plot(folder) == folder / "training.png"
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "training.svg").read_bytes()
    text = told(folder)
    assert "1.125" in text
    assert "1.25" not in text
    assert "choice" not in text


def test_recognition_shows_accuracy(tmp_path):
    folder = written(tmp_path, RECOGNISED)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    assert figure.axes[1].get_ylabel() == "share of words labelled correctly"
    assert "0.75" in told(folder)


def test_without_evaluations_the_last_loss_is_told(tmp_path):
    folder = written(tmp_path, "")
    assert (
        len(training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv")).axes)
        == 1
    )
    write_training_plot(folder)
    assert "20" in told(folder)


def test_a_table_of_evaluations_without_rows_is_as_good_as_none(tmp_path):
    folder = written(tmp_path, PREDICTED.splitlines()[0] + "\n")
    assert write_training_plot(folder) is not None
    assert "loss" in told(folder)


def test_without_metrics_there_is_no_plot_and_the_evaluations_are_still_told(tmp_path):
    for text in (None, "", METRICS.splitlines()[0] + "\n"):
        if text is not None:
            (tmp_path / "metrics.csv").write_text(text)
        assert write_training_plot(tmp_path) is None
        assert training_summary(tmp_path) is None
    (tmp_path / "evaluation.csv").write_text(RECOGNISED)
    assert write_training_plot(tmp_path) is None
    assert "0.75" in told(tmp_path)
    assert not (tmp_path / "training.png").exists()


@pytest.mark.parametrize(
    "text",
    [
        METRICS.replace("loss", "lost"),
        METRICS + "30,8,1.0,0.8,0.1,0.01,7\n",
        METRICS + "30,8,1.0.0,0.8,0.1,0.01\n",
    ],
)
def test_what_is_no_table_of_numbers_is_refused(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(InputError, match=r"metrics\.csv: not a table of numbers"):
        write_training_plot(tmp_path)
