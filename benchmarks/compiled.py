"""Compiles the programs of a measurement, for devices that need not be at hand, and reads off what memory they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxsens.core.base.programs import PLATFORMS, SOONER, compiling_for, host_mesh, numerics, platform_of
from jaxsens.core.choose import PlannedRun
from jaxsens.core.engines.engine import Engine
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.program import FlipRequest, Quantity, bytes_of, placed, preparation_of, spec_on


class Program(NamedTuple):
    """An engine and its parameters, which may be abstract, for the flips of an input of length n of a model in a dtype.

    `row` is the number of positions of a flip, and `quantity` the method of the engine that computes a block of them.
    """

    engine: Engine
    parameters: Any
    n: int
    flips: int
    dtype: str
    row: int = 1
    quantity: Quantity = "measured"

    @classmethod
    def of(cls, run: PlannedRun) -> Program:
        """Returns what is compiled to measure the flips of a run."""
        quantity: Quantity = "changes" if run.choice.name == "first-order" else "measured"
        flips = run.n, run.flips, run.model.dtype, run.kind.row, quantity
        return cls(run.engine, run.parameters, *flips)


@dataclass(frozen=True)
class CompiledProgram:
    """A program of a measurement.

    Attributes:
        name: "prepare" or "flips".
        seconds: to trace and compile it on this machine.
        arguments: bytes of what it is given, on each device.
        temporary: bytes of temporary memory, on each device.
        batch: flips of a block; 0 where there are none.
        on_host: whether the host runs it, because it needs float64 and the devices do not compute in it.
    """

    name: str
    seconds: float
    arguments: int
    temporary: int
    batch: int = 0
    on_host: bool = False


def compile_for(mesh: Mesh, budget: int, program: Program) -> tuple[CompiledProgram, ...]:
    """Compiles what a measurement would on the devices of a mesh, within a memory budget of each.

    An engine whose arithmetic the devices lack is compiled for the host.

    Args:
        mesh: the devices.
        budget: bytes for arguments, tables and temporary memory together.
        program: what measures the flips of one input.

    Raises:
        InputError: if one flip at a time does not fit the budget.
    """
    engine, platform, n = program.engine, platform_of(mesh), program.n
    with numerics("float64" if engine.wide else program.dtype):
        wide = jnp.result_type(float) == jnp.float64
        host = wide and not platform.float64
        if host:
            mesh, platform = host_mesh(), PLATFORMS["cpu"]
        elsewhere = engine.prepares_in_float64 and not platform.float64
        parameters = engine.with_tables(program.parameters, n)
        parameters = jax.tree.map(partial(_abstract, wide=True), parameters) if wide else parameters
        prepare = preparation_of(engine.shared)
        tokens = jax.ShapeDtypeStruct((1, n), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
        where = host_mesh() if elsewhere else mesh
        with numerics("float64") if engine.prepares_in_float64 else numerics(str(jnp.result_type(float))):
            first, prepared = _prepared(prepare, parameters, tokens, where)
        given = jax.tree.map(partial(_abstract, wide=wide), (parameters, prepared[0]))
        where, began = Placement(mesh, memory_budget=budget), time.perf_counter()
        given = program.quantity, engine.shared, given, n, prepared[1].size, program.row
        wanted = FlipRequest(*given, where)
        room = wanted.room(program.flips)
        batch = max(1, min(engine.preferred_batch(n, platform), -(-room // mesh.size)))
        made, _ = wanted.fitting(batch, lambda batch: -(-room // batch))
        seconds = time.perf_counter() - began
    flips = CompiledProgram("flips", seconds, wanted.held(made), made.bytes, made.batch, on_host=host)
    return CompiledProgram(*first, on_host=host or elsewhere), flips


def _prepared(
    prepare: Callable[..., Any], parameters: Any, tokens: Any, mesh: Mesh
) -> tuple[tuple[str, float, int, int], Any]:
    """Compiles the preparation for one device of a mesh, or for all over which parameters are split; returns what is
    told of it, and its results' shapes."""
    split = any(spec_on(leaf, mesh) != PartitionSpec() for leaf in jax.tree.leaves(parameters))
    where = mesh if split else Mesh(mesh.devices.flatten()[:1], ("flips",))
    given = jax.tree.map(lambda leaf: placed(leaf, spec_on(leaf, mesh), where), (parameters, *tokens))
    began = time.perf_counter()
    with compiling_for(platform_of(mesh).name):
        lowered = jax.jit(prepare).lower(*given)
    analysis = lowered.compile(SOONER).memory_analysis()
    temporary = 0 if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    told = "prepare", time.perf_counter() - began, bytes_of(given, where), int(temporary)
    return told, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lowered.out_info)


def _abstract(leaf: Any, wide: bool) -> jax.ShapeDtypeStruct:
    """Returns an array as a device gets it: in float64 if that is `wide`, else in 32 bits."""
    dtype = np.dtype(leaf.dtype)
    if wide and jnp.issubdtype(dtype, jnp.floating):
        dtype = np.dtype(np.float64)
    where = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype), sharding=where)
