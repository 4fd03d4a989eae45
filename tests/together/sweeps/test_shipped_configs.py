"""Every config in configs/ can be run as it is, and begins by saying what it is for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.training.generalisation import Generalisation
from jaxsens.training.theorem6.run import load_theorem6_config

CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.toml"))
ATLAS = sorted((CONFIGS[0].parent / "atlas").glob("*.toml"))
SWEEPS = [path for path in CONFIGS if not path.stem.startswith("theorem6")]
EXPERIMENTS = [path for path in CONFIGS if path not in SWEEPS]
SIX = ["softmax", "temperature-log", "temperature-linear", "unbounded", "leftmost-hard", "average-hard"]


def header(path: Path) -> dict[str, str]:
    """The comment a config begins with, by its headings."""
    comment = re.match(r"(?:#.*\n)+", path.read_text("utf-8"))
    assert comment, "a config begins with a comment"
    text = re.sub(r"(?m)^# ?", "", comment[0])
    parts = re.split(r"(?m)^(Claim|Command|Cost|Expect): *", text)
    return {name: " ".join(body.split()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_has_soft_attention_and_a_recurrent_network_for_both_languages(path):
    experiment = load_theorem6_config(path)
    assert len(experiment.lengths) >= 5
    assert len(experiment.seeds) >= 3
    assert sum(n >= experiment.fit_from for n in experiment.lengths) >= 3
    kinds = {
        (entry.language.name, type(entry.train and entry.train.model).__name__) for entry in experiment.model
    }
    assert {name for name, _ in kinds} == {"parity", "dyck"}
    assert ("parity", "NoneType") in kinds
    assert load_theorem6_config(path) == experiment


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_config_loads_and_has_what_a_fit_and_an_interval_need(path):
    sweep = load_sweep_config(path)
    assert len(sweep.lengths) >= 3
    assert len(sweep.seeds) >= 3
    assert {"mean", "max"} <= set(sweep.statistics)
    assert sweep.title
    assert sweep.claim
    assert len({point.key for point in sweep.points}) == len(sweep.points)


@pytest.mark.parametrize("name", ["asymptotic", "gpu", "cluster"])
def test_the_configs_of_random_weights_begin_with_the_same_six_variants(name):
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == name))
    assert [variant.name for variant in sweep.variants][:6] == SIX


def test_the_quickstart_shows_each_factor_by_itself_both_and_neither():
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == "quickstart"))
    assert {one.name for one in sweep.variants if one.source.weights == "random"} < set(SIX)
    planned = {one.name: one for one in sweep.plan.variants if one.weights == "constructed"}
    assert {name: (one.temperature, one.bounded) for name, one in planned.items()} == {
        "parity-temperature": ("1/n^3", True),
        "parity-embeddings": ("1", False),
        "parity-both": ("1/n", False),
        "parity-neither": ("1", True),
    }
    assert [one.source.temperature for one in sweep.variants[:4]] == ["1", "1/log n", "1", "hard"]


def test_the_quickstarts_control_differs_from_its_network_in_the_temperature_alone():
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == "quickstart"))
    network, control = (
        next(one.source for one in sweep.variants if one.name == name).example
        for name in ("parity-temperature", "parity-neither")
    )
    pairs = zip(jax.tree.leaves(network.parameters), jax.tree.leaves(control.parameters), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)
    assert replace(control.config, weighting=network.config.weighting) == network.config
    assert network.config.positions == control.config.positions
    assert control.config.weighting == jaxsens.Softmax()


def test_the_constructions_are_exact_at_every_length_that_is_measured():
    # Lengths for which float64 is not exact would show rounding, not the construction.
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == "constructions"))
    sources = [variant.source for variant in sweep.variants if variant.source.weights == "constructed"]
    exact = [source.exact_length for source in sources if source.exact_length is not None]
    assert len(exact) >= 4  # the controls promise nothing
    assert min(exact) >= sweep.lengths[-1]


@pytest.mark.parametrize(
    ("name", "variant"), [("bhattamishra2023", "lstm"), ("profiles2026", "lstm-uniform")]
)
def test_the_decisions_of_lstms_with_large_weights_are_resolved(name, variant):
    sweep = load_sweep_config(next(path for path in ATLAS if path.stem == name))
    point = [one for one in sweep.points if one.variant == variant and one.n == sweep.lengths[-1]][4]
    result = point.measure.flip_sensitivity(point.model(), point.tokens()[:16], point.seed)
    assert result.resolved.all()  # in float32 some are not


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_begins_with_claim_command_cost_and_what_to_expect(path):
    parts = header(path)
    assert list(parts) == ["Claim", "Command", "Cost", "Expect"]
    assert all(parts.values())
    program, command, config, *_ = parts["Command"].split()
    wanted = "theorem6" if path in EXPERIMENTS else "sweep"
    assert (program, command, config) == ("jaxsens", wanted, f"configs/{path.name}")


@pytest.mark.parametrize("path", ATLAS, ids=lambda path: path.stem)
def test_a_config_of_the_atlas_names_its_paper_and_has_a_page(path):
    comment = re.match(r"(?:#.*\n)+", path.read_text("utf-8"))
    assert comment, "a config begins with a comment"
    for part in ("Paper:", "Claim:", "Command:", "Cost:"):
        assert part in comment[0]
    page = CONFIGS[0].parents[1] / "docs" / "atlas" / f"{path.stem.removesuffix('_gpu')}.md"
    assert f"configs/atlas/{path.name}" in page.read_text("utf-8")
    command = re.search(rf"jaxsens (\w+) configs/atlas/{re.escape(path.name)}", comment[0])
    assert command, "it gives the command that runs this file"
    load = {
        "sweep": load_sweep_config,
        "generalisation": Generalisation.load,
    }
    if command[1] in load:
        assert load[command[1]](path).title
