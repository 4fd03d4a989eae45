"""What cannot fit is refused at once, with what it takes, what there is, and the remedy; what fits is not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError
from jaxsens.core.base import errors
from jaxsens.core.sweeps.config import parse_sweep_config
from tests.core.sweeps.tiny import TINY


def function(tokens):
    return jnp.sum(tokens)[None]


@pytest.fixture(autouse=True)
def sixteen_gibibytes(monkeypatch):
    monkeypatch.setattr(errors, "machine_memory", lambda: 2**34)


def test_flips_are_counted_before_they_are_listed(monkeypatch):
    words = np.zeros((3, 50), int)
    monkeypatch.setattr(errors, "machine_memory", lambda: 100_000)
    with pytest.raises(
        InputError, match=r"tokens = 'shape \(3, 50\)': a measurement of 1911 flips takes.*sample"
    ):
        jaxsens.flip_sensitivity(function, words, 14)
    assert len(jaxsens.flip_sensitivity(function, words, flips=jaxsens.Substitute(14, sample=20))) == 20
    assert len(jaxsens.flip_sensitivity(function, words, flips=jaxsens.Substitute(14, positions=[3]))) == 39


def test_a_sweep_of_too_many_points_is_refused():
    text = TINY.replace("seeds = 2", "seeds = 25001")
    with pytest.raises(
        InputError, match="2 models at 2 lengths with 25001 seeds are 100004 points: at most 100000"
    ):
        parse_sweep_config(text)
    assert len(parse_sweep_config(text.replace("25001", "40")).points) == 160


def test_the_machine_s_memory_is_read_and_a_container_s_limit_with_it(monkeypatch, tmp_path):
    monkeypatch.undo()
    errors.machine_memory.cache_clear()
    assert 2**28 < errors.machine_memory() < 2**50
    for text, expected in (("1000000\n", 1_000_000), ("max\n", None)):
        (tmp_path / "limit").write_text(text)
        monkeypatch.setattr(errors, "_LIMIT", tmp_path / "limit")
        errors.machine_memory.cache_clear()
        assert errors.machine_memory() == (expected or errors.machine_memory())
    errors.machine_memory.cache_clear()
