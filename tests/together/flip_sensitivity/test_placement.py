"""Placement: meshes, batches, memory, progress and interruption change where flips are measured, never the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import jaxsens
from jaxsens import Placement
from jaxsens.core.base.programs import PLATFORMS, compiling_for, numerics
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.difference.folded import FoldedEngine
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.measures import L2
from jaxsens.core.placement import program, run
from tests.core.flip_sensitivity.conformance import engine_of
from tests.core.flip_sensitivity.formula import EXPECTED, FLIPS, POSITIONS, Formula, mesh_of, spread
from tests.refusals import refused
from tests.small_models import small, word


@pytest.mark.quick(4)
@pytest.mark.parametrize("batch_size", [1, 3, 7, 1000])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_every_flip_gets_its_own_value_on_any_mesh_in_any_batch(devices, batch_size):
    # 22 flips an input: uneven for every mesh and batch here, and fewer than a device each at times.
    norms, declined = spread(Formula(L2(), None), Placement(mesh_of(devices), batch_size))
    np.testing.assert_array_equal(norms, EXPECTED)
    assert not declined


@pytest.mark.quick(2)
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(("every", "share"), [(4, 3 / 11), (2, 6 / 11), (1, 1)])
def test_declined_flips_go_to_the_fallback(devices, every, share):
    seen = []
    norms, declined = spread(
        Formula(L2(), None, every), Placement(mesh_of(devices)), lambda *counts: seen.append(counts)
    )
    np.testing.assert_array_equal(norms, EXPECTED)
    assert declined["Formula"] >= round(share * len(FLIPS))
    assert_counts_up(seen)


def assert_counts_up(seen: list[tuple[int, int]]) -> None:
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {len(FLIPS)}
    assert seen[-1][0] == len(FLIPS)


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b")),
        Mesh(np.array(jax.devices()[:6]).reshape(3, 2)[::-1], ("rows", "columns")),
        jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Explicit, AxisType.Explicit)),
        jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto, AxisType.Auto)),
    ],
    ids=["two axes", "six devices in another order", "explicit axes", "automatic axes"],
)
def test_a_mesh_of_the_callers_own(mesh):
    np.testing.assert_array_equal(spread(Formula(L2(), None), Placement(mesh, 3))[0], EXPECTED)


# With the engines


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("engine", ["vmap", "difference"])
def test_engines_give_the_same_on_1_2_and_8_devices(engine):
    model, tokens = jaxsens.Transformer(small(layers=1 if engine == "vmap" else 2)), word(13)
    found = {
        devices: jaxsens.flip_sensitivity(
            model, tokens, engine=engine, placement=jaxsens.Placement(mesh_of(devices), batch_size=3)
        ).norms
        for devices in (1, 2, 8)
    }
    # A batch of one size runs the same program whatever the mesh.
    np.testing.assert_array_equal(found[2], found[1])
    np.testing.assert_allclose(found[8], found[1], rtol=1e-12)
    other = jaxsens.flip_sensitivity(
        model, tokens, engine=engine, placement=jaxsens.Placement(mesh_of(1), batch_size=1000)
    )
    np.testing.assert_allclose(other.norms, found[1], rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(("size", "kind"), [(2, AxisType.Auto), (8, AxisType.Auto), (2, AxisType.Explicit)])
def test_the_result_does_not_depend_on_a_mesh_set_around_the_call(size, kind):
    tokens = word(9)

    def measured() -> tuple[np.ndarray, float]:
        model = jaxsens.Transformer(small(layers=1))
        jax.jit(model)(jnp.asarray(tokens))  # the mesh of a trace cannot be taken away
        return jaxsens.flip_sensitivity(model, tokens).norms, jaxsens.theory.worst_input(model, 3).value

    alone = measured()
    with jax.set_mesh(jax.make_mesh((size,), ("data",), axis_types=(kind,))):
        inside = measured()
    np.testing.assert_allclose(inside[0], alone[0], rtol=1e-12)
    np.testing.assert_allclose(inside[1], alone[1], rtol=1e-12)


# Interruption


def test_ctrl_c_keeps_no_flip_that_was_declined_and_not_yet_measured():
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    work, so_far = (Formula(L2(), None, every=4), Placement(mesh_of(1), 1000)), run.Finished()
    spread(*work)  # a program that has run measures all flips at once
    with pytest.raises(KeyboardInterrupt):
        spread(*work, stop, so_far)
    finished = ~np.isnan(so_far.values[:, 0])
    np.testing.assert_array_equal(finished, POSITIONS % 4 != 0)
    np.testing.assert_array_equal(so_far.values[finished, 0], EXPECTED[finished])


# Memory


def values_of(engine: Engine) -> Any:
    """The program of a block's values alone, without their resolutions."""
    return jax.jit(lambda *given: engine.measured(*given)[0])


def temporary(engine: Engine, config: jaxsens.TransformerConfig, n: int, flips: int) -> tuple[int, int]:
    """Bytes that the compiled values of a block of flips take: temporary ones, and those of its arguments."""
    with numerics(config.dtype):
        tokens, block = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((n,), (flips, 1)))
        parameters = jaxsens.Transformer(config).parameters
        prepared = jax.eval_shape(engine.prepare, parameters, tokens)
        lowered = values_of(engine).lower(parameters, prepared, FlipBlock(block, block))
        analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes, analysis.argument_size_in_bytes


@pytest.mark.long
@pytest.mark.parametrize("kind", [DifferenceEngine, FoldedEngine])
def test_preparing_grows_no_faster_than_n_once_scores_come_in_blocks(kind):
    config = small(feed_forward=20)
    engine = kind(L2(), None, config)
    sizes = []
    with numerics("float64"):
        parameters = jaxsens.Transformer(config).parameters
        for n in (2**13, 2**15):
            tokens = jax.ShapeDtypeStruct((n,), jnp.int32)
            analysis = jax.jit(engine.prepare).lower(parameters, tokens).compile().memory_analysis()
            assert analysis is not None
            sizes.append(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)
    assert sizes[1] / sizes[0] < 2.2**2, sizes


@pytest.mark.quick(1, 5)
@pytest.mark.parametrize(
    "options", [{}, {"mask": "future"}, {"weighting": ("softmax", "average-hard", "softmax")}]
)
@pytest.mark.parametrize("name", ["vmap", "incremental", "difference"])
def test_scores_come_in_blocks_on_an_accelerator_too(monkeypatch, name, options):
    """With 2^16 scores a flip, four flips of 1024 symbols hold less than four arrays n x n; `cost` knows how much."""
    monkeypatch.setattr("jaxsens.core.models.transformer.trace.SCORES_IN_MEMORY", 2**16)
    config, n = small(layers=3, readout="mean", **options), 1024
    engine = engine_of(name, config)
    if engine is None:
        assert (name, config.exact_rows) == ("incremental", True)
        return
    with compiling_for("gpu"):
        found, _ = temporary(engine, config, n, 4)
    assert found < 4 * 8 * n**2
    if name != "vmap":
        tokens = jax.ShapeDtypeStruct((n,), jnp.int32)
        with numerics("float64"):
            cost = engine.cost(jaxsens.Transformer(config).parameters, tokens, PLATFORMS["gpu"])
        estimate = 4 * cost.block_bytes / engine.preferred_batch(n, PLATFORMS["gpu"])
        assert 1 / 3 < estimate / found < 3, (estimate, found)


@pytest.mark.long
def test_the_budget_is_kept_or_refused():
    # A length no other test has: programs that were compiled before would not be seen.
    model, tokens = jaxsens.Transformer(small(layers=1)), word(61)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        compile_ = jax.stages.Lowered.compile

        def noted(lowered: Any, *arguments: Any, **options: Any) -> Any:
            compiled = compile_(lowered, *arguments, **options)
            found = compiled.memory_analysis()
            asked.append(
                sum(getattr(found, f"{kind}_size_in_bytes") for kind in ("argument", "output", "temp"))
            )
            return compiled

        patch.setattr(jax.stages.Lowered, "compile", noted)
        free = jaxsens.flip_sensitivity(model, tokens, engine="vmap", placement=jaxsens.Placement(mesh_of(1)))
        budget = asked[-1] // 2
        tight = jaxsens.flip_sensitivity(
            model, tokens, engine="vmap", placement=jaxsens.Placement(mesh_of(1), memory_budget=budget)
        )
    # The program that ran, the last one compiled, is within the budget: by XLA's count, and with all that it is given.
    assert 0 < asked[-1] <= budget
    np.testing.assert_allclose(tight.norms, free.norms, rtol=1e-10)


@pytest.mark.parametrize("batch", [None, 4])
def test_what_does_not_fit_is_refused_before_it_is_compiled(batch):
    model, where = jaxsens.Transformer(small(layers=1)), Placement(mesh_of(1), batch, memory_budget=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", lambda *given, **options: pytest.fail("compiled"))
        refused("memory_budget", jaxsens.flip_sensitivity, model, word(62), engine="vmap", placement=where)


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("engine", ["vmap", pytest.param("difference", marks=pytest.mark.long)])
def test_flips_whose_table_does_not_fit_are_measured_in_parts(monkeypatch, engine, devices):
    model, words, done = jaxsens.Transformer(small(layers=1)), np.stack([word(23), word(23, seed=1)]), []
    asked = {"engine": engine, "placement": Placement(mesh_of(devices))}
    whole = jaxsens.flip_sensitivity(model, words, **asked)
    monkeypatch.setattr(program, "_TABLES", 7 * 24 / 2**31)
    parts = jaxsens.flip_sensitivity(model, words, **asked, progress=lambda flips, of: done.append(flips))
    assert done[0] <= 7 * devices < len(whole) / 2  # flips at once, and so of a chunk
    np.testing.assert_allclose(parts.norms, whole.norms, rtol=1e-6)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_needs_float64_is_computed_on_the_host_of_devices_without_it(monkeypatch, dtype):
    """As of a TPU, whose float64 XLA emulates. The mesh has two devices; what is wide runs on one, the host's."""
    model, tokens = jaxsens.Transformer(small(layers=4, dtype=dtype)), word(29)
    asked = {"engine": "difference", "placement": jaxsens.Placement(mesh_of(2))}
    whole = jaxsens.flip_sensitivity(model, tokens, **asked)
    meshes, compiled = [], program.compiled_program

    def noted(*given: Any) -> Any:
        meshes.append((given[4], given[5].size))  # whether 64-bit types are on, and the devices
        return compiled(*given)

    monkeypatch.setattr(program, "compiled_program", noted)
    monkeypatch.setitem(PLATFORMS, "cpu", replace(PLATFORMS["cpu"], float64=False))
    found = jaxsens.flip_sensitivity(model, tokens, **asked)
    assert set(meshes) <= {(True, 1), (False, 2)}
    assert (True, 1) in meshes
    np.testing.assert_allclose(found.norms, whole.norms, rtol=1e-6, atol=1e-12)


# Operations


@pytest.mark.long
def test_a_batch_that_the_compiler_refuses_for_want_of_memory_is_halved(monkeypatch):
    """As that of a TPU does. Other errors are not mended so."""
    model, tokens = jaxsens.Transformer(small(layers=1)), word(59)
    asked, compiled = [], program.compiled_program
    said = "RESOURCE_EXHAUSTED: Ran out of memory on HBM"

    def refusing(*given: Any) -> Any:
        asked.append(given[6][0])
        if given[6][0] > 2:
            raise jax.errors.JaxRuntimeError(said)
        return compiled(*given)

    monkeypatch.setattr(program, "compiled_program", refusing)
    where = jaxsens.Placement(mesh_of(2))
    found = jaxsens.flip_sensitivity(model, tokens, engine="incremental", placement=where)
    assert len(asked) > 1
    assert asked[-1] <= 2 < asked[-2]
    monkeypatch.undo()
    expected = jaxsens.flip_sensitivity(model, tokens, engine="incremental", placement=where)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-10)
    said = "INTERNAL: something else"
    monkeypatch.setattr(program, "compiled_program", refusing)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        jaxsens.flip_sensitivity(model, tokens, engine="incremental", placement=where)


@pytest.mark.long
@pytest.mark.parametrize("kind", [DifferenceEngine, FoldedEngine])
def test_nothing_n_by_n_is_kept_for_a_block_of_flips(kind):
    config = small(feed_forward=20)
    sizes = [temporary(kind(L2(), None, config), config, n, 4) for n in (256, 1024)]
    for short, long in zip(*sizes, strict=True):
        assert long / short < 2.2**2, sizes
    # A single n x n array a flip would be larger.
    assert sizes[-1][0] < 4 * 8 * 1024**2


def test_inputs_of_which_one_fits_at_a_time_are_measured_in_turn_by_each_engine(monkeypatch):
    monkeypatch.setattr(run, "inputs_at_once", lambda *given: 1)
    norms, declined = spread(Formula(L2(), None, every=3), Placement(mesh_of(1)))
    np.testing.assert_array_equal(norms, EXPECTED)
    assert declined["Formula"] == np.sum(POSITIONS % 3 == 0)
