"""What is compiled for a plan is what a measurement compiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxsens
from jaxsens.core.base.programs import PLATFORMS
from jaxsens.core.explain import planned_run
from jaxsens.core.placement.program import Wanted
from jaxsens.core.sweeps.planning.compiled import compile_for
from tests.refusals import refusal
from tests.small_models import small


def mesh_of(count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]), ("flips",))


@pytest.mark.parametrize(
    ("engine", "flips"),
    [
        ("vmap", jaxsens.Substitute()),
        ("vmap", jaxsens.Delete()),
        ("vmap", jaxsens.Insert((0,))),
        ("incremental", None),
        ("difference", None),
    ],
)
def test_a_plan_finds_the_program_and_the_bytes_of_the_measurement(monkeypatch, engine, flips):
    """On eight devices: on one a measurement makes smaller batches, so that results do not depend on its cores."""
    model, found = jaxsens.Transformer(small(layers=2, dtype="float32")), []
    fitting = Wanted.fitting

    def noted(wanted: Any, batch: int, rows: Any, memory: Any) -> Any:
        program, lanes = fitting(wanted, batch, rows, memory)
        found.append((program.batch, program.bytes, wanted.held(program, memory)))
        return program, lanes

    monkeypatch.setattr(Wanted, "fitting", noted)
    tokens = np.append(np.arange(36) % 3, 3)
    jaxsens.flip_sensitivity(model, tokens, flips, engine=engine, placement=jaxsens.Placement(mesh_of(8)))
    measured = found.copy()
    run = planned_run(model, len(tokens), flips, engine=engine)
    programs = compile_for(mesh_of(8), 2**31, run.program)
    assert (programs[-1].batch, programs[-1].temporary, programs[-1].arguments) in measured
    assert programs[0].name == "prepare"
    assert not any(one.on_host for one in programs)


@pytest.mark.parametrize("flips", [jaxsens.Substitute(groups=[(0, 1), (3, 5)]), None])
@pytest.mark.needs("first_order")
def test_groups_and_estimates_are_compiled_too(flips):
    model = jaxsens.Transformer(small(layers=1, dtype="float32"))
    run = planned_run(model, 9, flips, engine="auto" if flips else "first-order")
    _, program = compile_for(mesh_of(1), 2**31, run.program)
    assert program.temporary > 0


def test_a_program_that_is_too_large_is_refused_with_the_numbers_of_the_measurement():
    model, tokens, budget = jaxsens.Transformer(small(layers=1)), np.arange(64) % 4, 20_000
    said = []
    run = planned_run(model, 64, engine="vmap")
    for call in (
        lambda: compile_for(mesh_of(1), budget, run.program),
        lambda: jaxsens.flip_sensitivity(
            model, tokens, engine="vmap", placement=jaxsens.Placement(mesh_of(1), memory_budget=budget)
        ),
    ):
        with refusal("memory_budget") as caught:
            call()
        said.append(str(caught.value).split(" takes ")[1].split(" bytes")[0])
    assert said[0] == said[1]


def test_what_a_platform_does_not_compute_in_float64_is_planned_for_the_host(monkeypatch):
    monkeypatch.setitem(PLATFORMS, "cpu", dataclasses.replace(PLATFORMS["cpu"], float64=False))
    run = planned_run(jaxsens.Transformer(small(layers=2)), 12, engine="vmap")
    assert [one.on_host for one in compile_for(mesh_of(2), 2**31, run.program)] == [True, True]
