"""The phase diagram of a small sweep: what it shows, and that its line is that of the models' scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from jaxsens.analysis import critical_temperatures, phase_diagram
from jaxsens.core.report.panels import figure_bytes
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.pretrained.folders import write_folder
from tests.refusals import refused
from tests.together.sweeps.test_shipped_configs import CONFIGS

LENGTHS = (8, 16, 32)
SHIPPED = (
    (CONFIGS[0].parent / "atlas" / "phase2026.toml")
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
    found = phase_diagram(folder)
    fits = found.slopes.query("low != low")
    assert sorted(fits.query("family == 'log n'")["a"]) == [0, 1]
    assert sorted(fits.query("family == 'n'")["a"]) == [0, 0.5]
    assert len(found.slopes) == 4 * (1 + 2)
    point = next(p for p in parse_sweep_config(TEXT).points if (p.n, p.seed) == (32, 1))
    beta = critical_temperatures(point.model(), point.tokens()[0]).beta
    assert len(beta) == 1
    rows = found.points.query("n == 32 and seed == 1")
    assert rows["critical"].to_numpy() == pytest.approx(np.sort(beta.ravel())[(beta.size - 1) // 2])
    relative = dict(zip(rows["variant"], rows["relative"], strict=True))
    assert relative["n-0.5"] / relative["log-0"] == pytest.approx(32**0.5)
    by_seed = found.points.query("variant == 'log-0'").pivot(index="n", columns="seed", values="critical")
    slopes = np.polyfit(np.log(LENGTHS), np.log(by_seed), 1)[0]
    exponent, low, high = found.predicted["n"]
    assert exponent == pytest.approx(slopes.mean())
    assert low <= exponent <= high
    assert figure_bytes(found.plot(), "png", dpi=40).startswith(b"\x89PNG")
    assert "log n" in repr(found)


def test_the_critical_temperature_is_that_of_the_scores_themselves_whatever_comes_first(folder, tmp_path):
    """The scores of a first layer do not depend on the temperature."""
    other = swept(tmp_path, HEAD + VARIANTS["log-1"], 1)
    where = "variant == 'log-1' and n == 8 and seed == 0"
    critical = [phase_diagram(each).points.query(where)["critical"] for each in (folder, other)]
    np.testing.assert_allclose(*critical, rtol=1e-4)


def test_sweeps_without_a_family_and_unknown_statistics_are_refused(folder, tmp_path):
    assert "'q90'" in refused("directory", phase_diagram, folder, statistic="q90")
    hard = HEAD + '[[variant]]\nname = "hard"\nmodel = { weighting = "leftmost-hard" }\n'
    assert "power of n" in refused("directory", phase_diagram, swept(tmp_path, hard, 1))


@pytest.mark.long
def test_a_published_model_has_a_diagram_as_a_transformer_has(tmp_path):
    (tmp_path / "bert").mkdir()
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
    rows = phase_diagram(folder).points.query("n == 7")
    word = next(p for p in sweep.points if p.n == 7).tokens()[0]
    beta = critical_temperatures(sweep.variants[0].source.example, word).beta[0] * np.log(7)
    assert rows["critical"].to_numpy() == pytest.approx(
        np.quantile(beta, 0.5, method="inverted_cdf"), rel=1e-4
    )
