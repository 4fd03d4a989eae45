"""Tiny sweeps, and a stand-in for the measurement where only what surrounds it is tested."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from jaxsens import FlipSensitivity, InputError
from jaxsens.core.report import page
from jaxsens.core.report.page import ReportFigure
from jaxsens.core.sweeps import points
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import Sweep
from tests.made_results import made

TINY = """
title = "tiny"
lengths = [4, 6]
seeds = 2
variants = ["softmax", "leftmost-hard"]
statistics = ["mean", "max", "q90"]

[model]
alphabet_size = 2
width = 4
heads = 1
layers = 1
feed_forward = 0
"""


def tiny_text(after: str = "", **values: Any) -> str:
    """TINY with other values of these keys, and more keys of the model and tables after it."""
    text = TINY
    for key, value in values.items():
        text, found = re.subn(rf"(?m)^{key} = .*", f"{key} = {json.dumps(value)}", text)
        assert found == 1, key
    return text + after


def tiny_sweep(before: str = "", after: str = "") -> Sweep:
    """The tiny sweep with a replaced part: `before` stands in TINY and becomes `after`."""
    assert before in TINY
    return parse_sweep_config(TINY.replace(before, after) if before else TINY + after)


def problems_of(text: str) -> list[str]:
    """The problems of a config that the message lists, one each."""
    with pytest.raises(InputError) as caught:
        parse_sweep_config(text)
    return [str(one) for one in caught.value.problems]


def quiet() -> Console:
    """A console that keeps what is printed: `console.file.getvalue()`."""
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the pictures of reports, where only what surrounds them is tested."""
    monkeypatch.setattr(ReportFigure, "figure", None)
    monkeypatch.setattr(ReportFigure, "narrow", None)
    monkeypatch.setattr(page, "figure_bytes", lambda figure, format, **options: b"<?xml a picture")


def fake_flip_sensitivity(model: Any, tokens: Any, **options: Any) -> FlipSensitivity:
    """One flip a position but the last, whose norm is made from the model's seedless width, n and the tokens."""
    words = np.asarray(tokens)
    batch, n = words.shape
    inputs = np.repeat(np.arange(batch), n - 1)
    positions = np.tile(np.arange(n - 1), batch)
    symbols = 1 - words[:, :-1].ravel()
    first = float(np.asarray(model.parameters.embedding)[0, 0])
    values = np.abs(first + positions + symbols).astype(np.float32) / n
    given = {"inputs": inputs, "positions": positions, "symbols": symbols, "tokens": words, "readout": "last"}
    versions = {"device": "none", "jaxsens": "test"}
    return made(values, **given, measure=options.get("measure", "l2"), dtype="float32", versions=versions)


def measured_by(
    monkeypatch: pytest.MonkeyPatch, stand_in: Callable[..., FlipSensitivity] = fake_flip_sensitivity
) -> None:
    """Has a stand-in measure the points of sweeps, for which nothing is compiled ahead."""
    monkeypatch.setattr(points, "flip_sensitivity", stand_in)
    monkeypatch.setattr(points, "compile_ahead", lambda *arguments, **options: None)
