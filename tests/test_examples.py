"""The scripts in examples/, each on something tiny."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from jaxsens.analysis import critical_temperatures
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.evaluation import accuracy
from tests.pretrained.folders import write_folder

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


TINY = "--functions first mean --lengths 3 4 --width 4 --batch 16 --steps 300 --learning-rate 3e-2"


@pytest.mark.long
def test_sharpness_trains_measures_and_writes_a_table_and_a_figure(tmp_path):
    printed = run("sharpness.py", tmp_path / "out", *TINY.split())
    table = (tmp_path / "out" / "sharpness.md").read_text(encoding="utf-8")
    assert table in printed
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:6]]
    assert [row[:2] for row in cells] == [["first", "3"], ["first", "4"], ["mean", "3"], ["mean", "4"]]
    fitted = [row for row in cells if row[3]]
    assert fitted
    for function, n, _, rise, blowup, sensitivity, _ in fitted:
        # The average sensitivity of the function itself: 1 of the first symbol, 1/n of the mean.
        assert float(sensitivity) == pytest.approx(1 if function == "first" else 1 / int(n), rel=0.2)
        assert float(rise) > 0
        assert float(blowup) > 0
    assert (tmp_path / "out" / "sharpness.png").stat().st_size > 1000


GENERALISATION = """
title = "tiny"
claim = "Short words suffice."
seeds = 2
bins = [[1, 4], [5, 9]]
lengths_per_bin = 2
words = 8
[data]
lengths = [2, 2]
batch = 4
steps_per_call = 2
[optimiser]
steps = 4
[[language]]
label = "ends-in-b"
name = "formula"
formula = "Q_b"
alphabet = "ab"
[[language]]
label = "more-b"
task = "recognition"
name = "formula"
formula = "#L[Q_b] > #L[Q_a]"
alphabet = "ab"
[[model]]
label = "rnn"
kind = "rnn"
width = 3
"""


@pytest.mark.long
def test_generalisation_trains_every_language_with_every_seed_and_tabulates_the_shares_of_right_words(
    tmp_path,
):
    (tmp_path / "tiny.toml").write_text(GENERALISATION)
    out = tmp_path / "out"
    printed = run("generalisation.py", tmp_path / "tiny.toml", "--out", out)
    found = pd.read_csv(out / "accuracy.csv").set_index(["language", "model", "seed", "least", "largest"])
    assert len(found) == 2 * 2 * 2
    trained = [load_checkpoint(out / "models" / name / "rnn" / "seed=1") for name in ("more-b", "ends-in-b")]
    recognised = [accuracy(trained[0], trained[0].language, n, 8, 2**31).accuracy for n in (7, 9)]
    assert found.loc["more-b", "rnn", 1, 5, 9]["accuracy"] == pytest.approx(np.mean(recognised))
    assert found.loc["more-b", "rnn", 1, 5, 9]["words"] == 16
    shares = [share_of_right_sets(trained[1], n) for n in (2, 4)]
    assert found.loc["ends-in-b", "rnn", 1, 1, 4]["accuracy"] == pytest.approx(np.mean(shares))
    table = (out / "accuracy.md").read_text().splitlines()
    means = found.loc["ends-in-b", "rnn", :, 1, 4]["accuracy"].mean()
    assert table[:3] == ["# tiny", "", "Short words suffice."]
    assert table[6].startswith(f"| ends-in-b | rnn | {means:.3f} [")
    assert table[6] in printed
    assert (out / "accuracy.png").stat().st_size > 1000


def test_labels_that_would_lead_out_of_the_folder_are_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "tiny.toml").write_text(GENERALISATION.replace('"more-b"', '"../elsewhere"'))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run("generalisation.py", tmp_path / "tiny.toml", "--out", tmp_path / "out")
    assert "'../elsewhere'" in caught.value.stderr
    assert not (tmp_path / "out").exists()


def share_of_right_sets(trained, n: int) -> float:
    """By a loop over the beginnings of every prefix, each of which the model reads by itself."""
    right = []
    for word in trained.language.sample_prefixes(8, n, np.random.default_rng((2**31, 2, n))):
        places = []
        for i in range(n + 1):
            law = trained.language.last_probabilities(word[:i])
            read = np.concatenate([[2], word[:i]]).astype(np.int32)
            predicted = np.asarray(jax.nn.softmax(trained.model(read)))
            places.append(all((predicted > law[law > 0].min() / 2) == (law > 0)))
        right.append(all(places))
    return float(np.mean(right))


PHASE = runpy.run_path(str(EXAMPLES / "phase.py"))
LENGTHS = (8, 16, 32)
SHIPPED = (
    (EXAMPLES.parent / "configs" / "atlas" / "phase2026.toml")
    .read_text("utf-8")
    .replace("lengths = [16, 32, 64, 128, 256, 512]", f"lengths = {[*LENGTHS]}")
    .replace("seeds = 5", "seeds = 2")
    .replace("count = 4", 'count = 1\n\n[measure]\nengine = "vmap"')
    .replace("width = 32", "width = 8")
)
HEAD, *_VARIANTS = SHIPPED.split("[[variant]]")
VARIANTS = {text.split('"')[1]: f"[[variant]]{text}" for text in _VARIANTS}
TEXT = "".join([HEAD, *(VARIANTS[name] for name in ("log-0", "log-1", "n-0.5"))])


def swept(folder: Path, text: str, points: int | None = None) -> Path:
    sweep = parse_sweep_config(text)
    run_sweep(sweep, folder, sweep.points[:points], Console(quiet=True))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("phase"), TEXT)


def test_the_diagram_has_the_slopes_of_the_sweep_and_the_line_of_its_scores(folder):
    slopes, points, predicted = PHASE["diagram"](folder)
    fits = slopes.query("low != low")
    assert sorted(fits.query("family == 'log n'")["a"]) == [0, 1]
    assert sorted(fits.query("family == 'n'")["a"]) == [0, 0.5]
    assert len(slopes) == 4 * (1 + 2)
    point = next(p for p in parse_sweep_config(TEXT).points if (p.n, p.seed) == (32, 1))
    beta = critical_temperatures(point.model(), point.tokens()[0]).beta
    assert len(beta) == 1
    rows = points.query("n == 32 and seed == 1")
    assert rows["critical"].to_numpy() == pytest.approx(np.sort(beta.ravel())[(beta.size - 1) // 2])
    relative = dict(zip(rows["variant"], rows["relative"], strict=True))
    assert relative["n-0.5"] / relative["log-0"] == pytest.approx(32**0.5)
    by_seed = points.query("variant == 'log-0'").pivot(index="n", columns="seed", values="critical")
    exponent, low, high = predicted["n"]
    assert exponent == pytest.approx(np.polyfit(np.log(LENGTHS), np.log(by_seed), 1)[0].mean())
    assert low <= exponent <= high


def test_a_sweep_without_the_statistic_or_a_variant_to_show_has_no_diagram(folder, tmp_path):
    with pytest.raises(SystemExit, match="with q90 measured"):
        PHASE["diagram"](folder, "q90")
    hard = f"{HEAD}[[variant]]\nname = 'hard'\nmodel = {{ weighting = 'leftmost-hard' }}\n"
    with pytest.raises(SystemExit, match="softmax variants by length"):
        PHASE["diagram"](swept(tmp_path, hard, 1))


@pytest.mark.long
def test_the_script_prints_the_line_and_writes_slopes_and_a_figure(folder):
    exponent, low, high = PHASE["diagram"](folder)[2]["n"]
    assert f"(n)^{exponent:.2f} [{low:.2f}, {high:.2f}]" in run("phase.py", folder)
    assert len(pd.read_csv(folder / "phase.csv")) == 4 * (1 + 2)
    assert (folder / "phase.png").stat().st_size > 1000


def test_the_critical_temperature_is_that_of_the_scores_themselves_whatever_comes_first(folder, tmp_path):
    """The scores of a first layer do not depend on the temperature."""
    other = swept(tmp_path, HEAD + VARIANTS["log-1"], 1)
    where = "variant == 'log-1' and n == 8 and seed == 0"
    critical = [PHASE["diagram"](each)[1].query(where)["critical"] for each in (folder, other)]
    np.testing.assert_allclose(*critical, rtol=1e-4)


@pytest.mark.long
def test_a_published_model_has_a_diagram_as_a_transformer_has(tmp_path):
    write_folder(tmp_path / "bert", "bert")
    schedule = '{ type = "Schedule", log_power = 1.0 }'
    text = f"""
lengths = [5, 6, 7]
seeds = 1
[model]
pretrained = "../bert"
layers = 1
[measure]
flips = {{ kind = "neighbours", k = 1, sample = 1 }}
[[variant]]
name = "log-1"
model = {{ weighting = {{ type = "Softmax", inverse_temperature = {schedule} }} }}
"""
    folder = tmp_path / "out"
    sweep = parse_sweep_config(text, folder=folder)
    run_sweep(sweep, folder, sweep.points, Console(quiet=True))
    rows = PHASE["diagram"](folder)[1].query("n == 7")
    word = next(p for p in sweep.points if p.n == 7).tokens()[0]
    beta = critical_temperatures(sweep.variants[0].source.example, word).beta[0] * np.log(7)
    assert rows["critical"].to_numpy() == pytest.approx(
        np.quantile(beta, 0.5, method="inverted_cdf"), rel=1e-4
    )
