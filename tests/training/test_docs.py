"""What docs/learned.md shows runs and is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.training.config import TrainConfig

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
