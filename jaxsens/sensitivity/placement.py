"""Running an engine over many flips: blocks sized to a memory budget, and a host loop that shows progress.

Placement wraps an engine and knows no attention. A compiled program works through a range of blocks whose ends are
arguments, so one compilation serves chunks of any length, and the host picks chunks of about a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.errors import InputError
from jaxsens.sensitivity.engine import Engine

Progress = Callable[[int, int], None]
"""Called with (flips done, flips in all) after every chunk."""

DEFAULT_MEMORY = {"cpu": 2**31, "gpu": 2**33, "tpu": 2**33}
"""Bytes of temporary memory a compiled program may take where no budget is given."""

_CHUNK_SECONDS = 1.0


@dataclass(frozen=True)
class _Program:
    """A compiled range of blocks: (parameters, prepared, positions, symbols, norms, start, stop) -> norms."""

    run: Any
    batch: int
    blocks: int
    bytes: int


def measure(
    engine: Engine,
    parameters: Any,
    tokens: Int[np.ndarray, "batch n"],
    inputs: Int[np.ndarray, " flips"],
    positions: Int[np.ndarray, " flips"],
    symbols: Int[np.ndarray, " flips"],
    batch_size: int | None = None,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> Float[np.ndarray, " flips"]:
    """The norm of every flip, in the order given; `inputs` must be sorted.

    Args:
        batch_size: flips at a time; by default what the engine prefers, less if the memory budget asks for it.
        memory_budget: bytes of temporary memory the compiled program may take.

    Raises:
        InputError: if not even one flip at a time fits the budget.
    """
    total = len(inputs)
    pieces: list[np.ndarray] = []
    done = 0
    for b in np.unique(inputs):
        chosen = slice(*np.searchsorted(inputs, [b, b + 1]))
        row = jnp.asarray(tokens[b])
        prepared = _prepare(engine, parameters, row)
        count = chosen.stop - chosen.start
        program = _program(engine, parameters, prepared, tokens.shape[1], count, batch_size, memory_budget)

        def report(flips: int, before: int = done) -> None:
            if progress is not None:
                progress(before + flips, total)

        pieces.append(_run(program, parameters, prepared, positions[chosen], symbols[chosen], report))
        done += count
    return np.concatenate(pieces) if pieces else np.zeros(0)


@partial(jax.jit, static_argnums=0)
def _prepare(engine: Engine, parameters: Any, tokens: Array) -> Any:
    return engine.prepare(parameters, tokens)


def _run(
    program: _Program,
    parameters: Any,
    prepared: Any,
    positions: np.ndarray,
    symbols: np.ndarray,
    report: Callable[[int], None],
) -> np.ndarray:
    count, size = len(positions), program.batch * program.blocks
    # Flips beyond the last are repeats of it: same shapes, results dropped.
    filled = np.minimum(np.arange(size), count - 1)
    places = jnp.asarray(positions[filled].reshape(program.blocks, program.batch))
    substitutes = jnp.asarray(symbols[filled].reshape(program.blocks, program.batch))
    norms = None
    start, step = 0, 1
    while start < program.blocks:
        stop = min(start + step, program.blocks)
        began = time.perf_counter()
        norms = program.run(parameters, prepared, places, substitutes, norms, start, stop)
        norms.block_until_ready()
        seconds = max(time.perf_counter() - began, 1e-6)
        step = max(1, min(8 * step, int((stop - start) * _CHUNK_SECONDS / seconds)))
        start = stop
        report(min(start * program.batch, count))
    return np.asarray(norms).reshape(-1)[:count]


def _program(
    engine: Engine,
    parameters: Any,
    prepared: Any,
    n: int,
    flips: int,
    batch_size: int | None,
    memory_budget: int | None,
) -> _Program:
    platform = jax.default_backend()
    budget = DEFAULT_MEMORY.get(platform, 2**31) if memory_budget is None else memory_budget
    wanted = engine.preferred_batch(n, platform) if batch_size is None else batch_size
    batch = max(1, min(wanted, flips))
    leaves, structure = jax.tree.flatten((parameters, prepared))
    avals = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    key = (engine, structure, avals, bool(jax.config.jax_enable_x64))  # pyright: ignore[reportAttributeAccessIssue]
    while True:
        program = _compiled(key, batch, -(-flips // batch))
        if program.bytes <= budget or batch_size is not None:
            return program
        if batch == 1:
            raise InputError(
                f"memory_budget = {budget} bytes: one flip of an input of length {n} takes {program.bytes} bytes"
            )
        batch = max(1, min(batch - 1, int(batch * budget / program.bytes)))


@lru_cache(maxsize=256)
def _compiled(key: Any, batch: int, blocks: int) -> _Program:
    engine, structure, avals, _ = key
    parameters, prepared = jax.tree.unflatten(structure, avals)

    def one_block(parameters: Any, prepared: Any, positions: Array, symbols: Array) -> Array:
        return engine.norms(parameters, prepared, positions, symbols)

    flips = jax.ShapeDtypeStruct((batch,), jnp.asarray(0).dtype)
    result = jax.eval_shape(one_block, parameters, prepared, flips, flips)

    def run(
        parameters: Any,
        prepared: Any,
        positions: Array,
        symbols: Array,
        norms: Array,
        start: Array,
        stop: Array,
    ) -> Array:
        def body(k: Array, norms: Array) -> Array:
            return norms.at[k].set(one_block(parameters, prepared, positions[k], symbols[k]))

        return jax.lax.fori_loop(start, stop, body, norms)

    many = jax.ShapeDtypeStruct((blocks, batch), flips.dtype)
    end = jax.ShapeDtypeStruct((), flips.dtype)
    norms = jax.ShapeDtypeStruct((blocks, batch), result.dtype)
    compiled = jax.jit(run).lower(parameters, prepared, many, many, norms, end, end).compile()
    analysis = compiled.memory_analysis()

    def call(
        parameters: Any, prepared: Any, places: Any, substitutes: Any, norms: Any, start: int, stop: int
    ) -> Any:
        if norms is None:
            norms = jnp.zeros((blocks, batch), result.dtype)
        ends = (jnp.asarray(start, flips.dtype), jnp.asarray(stop, flips.dtype))
        return compiled(parameters, prepared, places, substitutes, norms, *ends)

    return _Program(call, batch, blocks, 0 if analysis is None else int(analysis.temp_size_in_bytes))
