"""Kinds of networks that packages bring are measured like those of jaxsens; a kind that is not there is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jaxsens
from jaxsens import InputError
from jaxsens.core.models.transformer.module import network
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import read_plan, read_points, run_sweep
from tests.core.sweeps.tiny import quiet
from tests.refusals import refusal, refused

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxsens.core.models.transformer.config import NetworkConfig
from jaxsens.core.models.transformer.module import Network


@dataclass(frozen=True)
class CountsConfig(NetworkConfig):
    """The share of each symbol, times a matrix."""

    kind: ClassVar[str] = "counts"

    alphabet_size: int
    width: int = 3
    logits: int | None = None
    end_symbol: bool = True
    dtype: str = "float32"
    readout: str = "mean"

    @property
    def parameter_count(self):
        return self.vocabulary_size * self.width


def drawn(config, seed):
    return jax.random.normal(jax.random.key(seed), (config.vocabulary_size, config.width), config.dtype)


class Counts(Network):
    of = CountsConfig
    drawn = staticmethod(drawn)
    shaped = staticmethod(lambda config: drawn(config, 0))
    output_of = staticmethod(lambda config, parameters, tokens: jnp.mean(parameters[tokens], axis=0))
    rows_of = staticmethod(lambda config, parameters, tokens: parameters[tokens])
'''
SWEEP = """
title = "counts"
lengths = [4, 8]
seeds = 2

[model]
alphabet_size = 2
width = 5

[[variant]]
name = "counts"
model = {kind = "counts"}
"""


@pytest.fixture(autouse=True)
def _brought(tmp_path_factory: pytest.TempPathFactory, installed):
    """A package that brings "counts", another that brings what is no network, and one that was not installed."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "counting.py").write_text(MODULE)
    lines = "counts = counting:Counts\nmisnamed = counting:Counts\nnone = counting:drawn"
    installed(folder, "counting", lines, "model_kinds")
    installed(folder, "short", "absent = jaxsens.absent_package.nets:Net", "model_kinds")


def test_a_kind_of_another_package_is_read_from_a_table_and_measured(tmp_path: Path):
    sweep = parse_sweep_config(SWEEP)
    source = sweep.variants[0].source
    assert source.expanded == {
        "type": "CountsConfig",
        "alphabet_size": 2,
        "width": 5,
        "logits": None,
        "end_symbol": True,
        "dtype": "float32",
        "readout": "mean",
    }
    assert run_sweep(sweep, tmp_path, sweep.points, quiet()).exit_code == 0
    points = list(read_points(tmp_path, read_plan(tmp_path)))
    assert len(points) == 4
    for point, result in points:
        table = np.asarray(source.build(point.n, point.seed).parameters, np.float64)
        np.testing.assert_allclose(
            result.values, np.linalg.norm(table[0] - table[1]) / point.n, rtol=1e-5, atol=1e-7
        )


def test_its_model_is_measured_and_its_config_alone_is_not_a_model():
    kind = network("counts")
    model = kind(kind.of(3), seed=1)
    result = jaxsens.flip_sensitivity(model, np.array([0, 1, 2, 0]))
    assert set(result.symbols) == {0, 1, 2}
    refused("model", jaxsens.flip_sensitivity, kind.of(3), np.array([0, 1, 2, 0]))


def test_a_kind_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(InputError) as refusal:
        parse_sweep_config(SWEEP.replace('kind = "counts"', 'kind = "absent"'))
    there = "one of transformer, convolution, counts, lstm, misnamed, none, rnn"
    assert f"model.kind = 'absent': {there}" in str(refusal.value)


@pytest.mark.parametrize("kind", ["misnamed", "none"])
def test_what_is_no_network_of_its_name_is_refused_with_its_place(kind):
    with refusal("variant.counts.model.kind"):
        parse_sweep_config(SWEEP.replace('kind = "counts"', f'kind = "{kind}"'))
