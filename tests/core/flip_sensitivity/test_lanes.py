"""Threads on one CPU device: how many cores there are changes how long it takes, and nothing else."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jaxsens
from jaxsens.core.placement import run
from jaxsens.core.placement.program import FlipRequest
from tests.core.flip_sensitivity.formula import mesh_of
from tests.small_models import small


@pytest.fixture
def used(monkeypatch):
    """How many threads each measurement has."""
    counts: list[int] = []

    def noted(count: int) -> ThreadPoolExecutor:
        counts.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(run, "ThreadPoolExecutor", noted)
    return counts


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("options", [{"layers": 1, "mask": "future"}, {"layers": 2, "dtype": "float32"}])
@pytest.mark.parametrize("engine", ["vmap", "difference"])
def test_the_numbers_are_bitwise_the_same_on_any_number_of_cores(options, engine, used, monkeypatch):
    model = jaxsens.Transformer(small(**options))
    word = np.append(np.random.default_rng(0).integers(0, 3, 21), 3)
    found = {}
    monkeypatch.setattr(run, "_SHORT", 0.0)
    for count in (1, 2, 3, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=count: range(count))
        found[count] = jaxsens.flip_sensitivity(
            model, word, engine=engine, placement=jaxsens.Placement(mesh_of(1))
        ).norms
    # 42 flips in at least sixteen batches: three each. A single core, and several devices, need no threads.
    assert used == [2, 3, 14]
    jaxsens.flip_sensitivity(model, word, engine=engine, placement=jaxsens.Placement(mesh_of(2)))
    assert used == [2, 3, 14]
    for count in (2, 3, 64):
        np.testing.assert_array_equal(found[count], found[1])


@pytest.mark.long
def test_all_threads_together_stay_within_the_budget(used, monkeypatch):
    # A length no other test has: programs that were compiled before would not be seen.
    model, word = jaxsens.Transformer(small(layers=1)), np.append(np.arange(70) % 3, 3)
    programs, held = [], []

    def noted(wanted, batch, rows):
        programs.append(fitting(wanted, batch, rows)[0])
        held.append(wanted.held(programs[-1]))
        return programs[-1], fitting(wanted, batch, rows)[1]

    fitting = FlipRequest.fitting
    monkeypatch.setattr(FlipRequest, "fitting", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(run, "_SHORT", 0.0)

    def measured(**options) -> np.ndarray:
        where = jaxsens.Placement(mesh_of(1), **options)
        return jaxsens.flip_sensitivity(model, word, engine="vmap", placement=where).norms

    free = measured(batch_size=1)
    assert used[-1] == 8
    single = programs[-1].bytes
    # Fewer threads where not even one flip each would fit; smaller batches before that.
    tight = measured(memory_budget=held[-1] + 3 * single + 1)
    assert used[-1] == 3
    assert programs[-1].batch == 1
    np.testing.assert_array_equal(tight, free)
    room = measured(memory_budget=held[0] + 16 * single)
    assert used[-1] == 8
    assert held[-1] + 8 * programs[-1].bytes <= held[0] + 16 * single
    np.testing.assert_allclose(room, free, rtol=1e-12)
