"""The Theorem 6 experiment and trained models in sweeps: small ones, trained for real."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxsens import flip_sensitivity, load_checkpoint
from jaxsens.cli import main
from jaxsens.errors import Faults, InputError
from jaxsens.experiments.model_source import read_source
from jaxsens.experiments.sweep_config import parse_sweep_config
from jaxsens.experiments.theorem6_config import load_theorem6_config

TRAINING = """
language = { name = "parity", end_probability = 0.3 }
model = { kind = "rnn", width = 4 }
data = { lengths = [2, 4], distinct = 2, batch = 8, steps_per_call = 2 }
optimiser = { steps = 4, learning_rate = 0.05 }
evaluation = { every = 4, lengths = [3], words = 4 }
checkpoint = { every = 4 }
"""
EXPERIMENT = f"""
title = "tiny"
lengths = [2, 4, 8]
seeds = 2
words = 4
[measure]
engine = "vmap"
[[model]]
name = "trained"
[model.train]
{TRAINING}
[[model]]
name = "exact"
exact = "rnn"
end_probability = 0.3
"""


def run(capsys, *arguments: str | Path) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out + output.err


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A directory that `jaxsens train` wrote."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.toml").write_text(TRAINING, "utf-8")
    assert main(["train", str(folder / "train.toml"), "--out", str(folder / "model")]) == 0
    return folder / "model"


def test_the_experiment_trains_evaluates_and_reports_and_a_second_run_changes_nothing(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(EXPERIMENT, "utf-8")
    out = tmp_path / "out"
    code, _ = run(capsys, "theorem6", tmp_path / "tiny.toml", "--out", out)
    assert code == 0
    entropies = rows(out / "cross_entropy.csv")
    assert {(row["model"], row["n"], row["seed"]) for row in entropies} == {
        (model, str(n), str(seed)) for model in ("trained", "exact") for n in (2, 4, 8) for seed in (0, 1)
    }
    for row in entropies:
        if row["model"] == "exact":
            assert abs(float(row["cross_entropy"]) - float(row["optimum"])) < 1e-6
        assert float(row["optimum"]) < float(row["unigram"]) <= float(row["chance"])
    page = (out / "report.html").read_text("utf-8")
    assert "unigram" in page
    before = {path: path.read_bytes() for path in out.glob("*.csv")}
    assert run(capsys, "theorem6", tmp_path / "tiny.toml", "--out", out)[0] == 0
    assert {path: path.read_bytes() for path in out.glob("*.csv")} == before


def test_every_fault_of_the_experiments_config_is_said_at_once(tmp_path):
    (tmp_path / "bad.toml").write_text(
        EXPERIMENT.replace("words = 4\n[measure]", "words = 0\n[measure]").replace(
            'exact = "rnn"', 'exact = "cnn"'
        )
        + '[[model]]\nname = "exact"\n',
        "utf-8",
    )
    with pytest.raises(InputError) as refusal:
        load_theorem6_config(tmp_path / "bad.toml")
    for part in ("words", "exact", "cnn"):
        assert part in str(refusal.value)


def test_a_checkpoint_is_a_models_source_with_its_fingerprint_in_the_key(trained):
    text = f'lengths = [6]\nseeds = 2\n[model]\ncheckpoint = "{trained}"\n[[variant]]\nname = "rnn"\n'
    points = parse_sweep_config(text).points
    found = load_checkpoint(trained)
    assert found.fingerprint in json.dumps(points[0].expanded)
    assert points[0].source.build(0) is points[1].source.build(1)
    tokens = points[0].tokens()
    boundary = found.language.end
    assert tokens[0, 0] == boundary
    assert boundary not in tokens[0, 1:]
    result = flip_sensitivity(points[0].source.build(0), tokens)
    assert 0 not in result.positions  # the boundary symbol is never flipped


def test_measure_takes_a_checkpoint(trained, capsys):
    code, printed = run(capsys, "measure", trained, "--n", "8")
    assert code == 0
    assert "mean" in printed


def test_a_damaged_checkpoint_is_refused_with_what_is_wrong(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    files = [path for path in sorted((copy / "checkpoints").rglob("*")) if path.is_file()]
    path = next(path for path in files if path.stat().st_size > 200 and "manifest" not in path.name)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(bytes(content))
    faults = Faults("test")
    assert read_source({"checkpoint": str(copy)}, "model", faults, tmp_path) is None
    assert path.name in str(faults.messages)


def test_a_checkpoint_that_is_not_there_and_foreign_keys_are_refused_together(tmp_path):
    faults = Faults("test")
    assert read_source({"checkpoint": "nowhere", "width": 8}, "model", faults, tmp_path) is None
    assert len(faults.messages) == 2
    assert "nowhere" in str(faults.messages)
    assert "width" in str(faults.messages)


def test_training_again_does_nothing_and_a_different_config_is_refused(trained, capsys):
    config = trained.parent / "train.toml"
    before = load_checkpoint(trained).fingerprint
    assert run(capsys, "train", config, "--out", trained)[0] == 0
    assert load_checkpoint(trained).fingerprint == before
    other = trained.parent / "other.toml"
    other.write_text(TRAINING.replace("width = 4", "width = 5"), "utf-8")
    code, printed = run(capsys, "train", other, "--out", trained)
    assert code == 2
    assert "width" in printed


def test_trained_weights_are_the_same_for_the_same_seed(trained, tmp_path, capsys):
    assert run(capsys, "train", trained.parent / "train.toml", "--out", tmp_path / "again")[0] == 0
    one, other = load_checkpoint(trained), load_checkpoint(tmp_path / "again")
    assert one.fingerprint == other.fingerprint
    tokens = np.array([one.language.end, 0, 1, 1])
    np.testing.assert_array_equal(one.model(tokens), other.model(tokens))
