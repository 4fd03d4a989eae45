"""What the arithmetic of a model resolves on an input: its unflipped forward pass, warnings about rounding, and how far
rounding puts the output off, for which the model is run again, in float64 and with its numbers moved.

Engines that subtract two outputs lose what is smaller than the rounding of either. That depends on the model: a cold
softmax turns a rounding of its scores into another choice of keys, and a mean of many values is better than each. So
it is measured.

- A network of layers is run in float64 at the unflipped input, and `DRAWS` times more with every parameter and constant
  moved by a rounding, as a difference may be small by luck. Of many short inputs a part is run (`SHARE_PASSED`), and
  `MOVED_INPUTS` of them with moved numbers: what is seen there, relative to the output, is taken for all.
- Of a user's function nothing is known, and its flips may round in other ways than its input. Every rounding of it is
  moved at each flip where that is cheap, else at a sample of the flips of all inputs, of which the largest is taken.
- One that computes in less than float64 whatever its parameters are, calls Python, or draws random numbers, is run in
  its own dtype with every rounding moved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import InputError, PrecisionWarning
from jaxsens.core.base.nudged import DRAWS as NUDGES
from jaxsens.core.base.nudged import nudged, salts
from jaxsens.core.base.programs import (
    SOONER,
    as_arrays,
    cached,
    compiled,
    numerics,
    on_host,
    power_within,
    program_key,
    room_for,
)
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.engine import LARGEST_PASS, Engine, FlipBlock
from jaxsens.core.engines.vmap import HALF_UNIT, VmapEngine, innermost, output_vector, program_size
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import LayeredApply, Model, TorchApply, TransformerApply, in_float64
from jaxsens.core.models.transformer.layers import apply_operations
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.program import Ready, computed, inputs_at_once, of_first, prepared_on
from jaxsens.core.placement.run import ErrorBounds
from jaxsens.core.results.measured import MeasuredFlips

UNRESOLVED = 1.0
"""A `PrecisionWarning` is issued if the largest score times eps exceeds this.

A score s is rounded by about eps |s|. At 1, rounding alone changes the ratio of two softmax weights by a factor of e,
so it decides between keys with close scores. The weights are still right if one key is far ahead of the others, so
there is no warning below 1. The limit is reached at a score of 8.4e6 in float32 and 4.5e15 in float64."""

FACTOR = 4.0
"""A change is taken to be off by this many times the rounding seen in the output: it has the rounding of two outputs,
and that of the flipped input's may be larger."""

DRAWS = 4
"""The numbers are moved so often, each time in another way."""

SHARE_PASSED = 1 / 32
"""The share of the flips' number that is run in float64, at unflipped inputs."""

MOVED_INPUTS = 16
"""The inputs that are run with moved numbers, and at least in float64."""

MOST_MOVED = 2**20
"""The numbers of a float32 model up to which it is run with moved parameters too. Of `MANY_OUTPUTS` of a larger one,
some show the rounding."""

MANY_OUTPUTS = 16

MOST_EQUATIONS = 400
"""The equations of a program up to which it is taken for a function of which nothing is known: some three layers. What
moves its roundings is compiled, in a second for each hundred of them."""

MOST_NUDGED_EQUATIONS = 4000
"""The equations of a program up to which its roundings are moved at the unflipped inputs."""

CHEAP = 5e7
"""The operations that are spent at most on moving the roundings of all flips: some milliseconds."""

SHARE_NUDGED = 1 / 256
"""Beyond that, the share of the flips whose roundings are moved, but of two at least: a tenth of the time of all."""


class ForwardPass(NamedTuple):
    """The unflipped run of a model: the output on the first input, the largest |log-normaliser| of each layer of a
    jaxsens transformer on any input, and the first inputs as the engine prepared them."""

    output: Float[np.ndarray, " outputs"]
    largest: Float[np.ndarray, " layers"]
    first: Ready


def forward_pass(
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    engine: Engine,
    parameters: Any,
    placement: Placement,
) -> ForwardPass:
    """Prepares the first inputs as the engine does, and of a jaxsens transformer every one; keeps the first ones.

    So this compiles nothing that a measurement does not need. Call it within `numerics(model.dtype)`.

    Raises:
        InputError: if the output on one of the inputs is not finite.
    """
    first: Any = None  # there is at least one input
    largest = np.zeros(0 if model.config is None else model.config.layers)
    with computed(engine, placement) as there:
        size = inputs_at_once(engine, parameters, tokens.shape, there)
        for start in range(0, size if model.config is None else len(tokens), size):
            ready = prepared_on(there.local, engine, parameters, tokens[start : start + size])
            bad = np.flatnonzero(~np.all(np.isfinite(ready.output), axis=1))
            if len(bad):
                where = f"its output on input {start + bad[0]} is not finite in {model.dtype}"
                remedy = "look for NaN in its parameters, or use float64 or smaller weights"
                raise InputError.note("model", f"{where}; {remedy}")
            # An engine of a package may not see the scores.
            sizes = ready.sizes.max(axis=0) if ready.sizes.size else 0
            first, largest = first or ready, np.maximum(largest, sizes) if len(largest) else largest
    return ForwardPass(first.output[0], largest, first)


def unreliable(model: Model, n: int, passed: ForwardPass, widens: bool) -> str | None:
    """Returns why a result for inputs of length n may be an effect of rounding; None if no reason is known.

    Either the model is exact only up to a smaller length, or its dtype cannot resolve its attention scores. With
    `widens`, float64 is assumed: the engine measures in float64 what float32 does not resolve. Only scores of keys with
    weight matter, so the check uses the log-normaliser of each row, which is within log n of the largest score; in the
    last layer only the readout row's. Hard weightings are skipped, as is a constructed model up to its
    `exact_length`.
    """
    config, limit = model.config, model.exact_length
    if limit is not None and n > limit:
        wider = (
            'with dtype="float64", which is exact for longer inputs, or ' if model.dtype == "float32" else ""
        )
        return (
            f"n = {n}: in {model.dtype} this model is exact only up to n = {limit}. Rounding affects which key its "
            f"attention chooses, so the result may be an effect of rounding; build the model {wider}under another "
            "condition"
        )
    if config is None or limit is not None:
        return None
    largest, dtype = passed.largest, "float64" if widens else model.dtype
    error = largest * np.finfo(dtype).eps
    if not np.any(error > UNRESOLVED):
        return None
    layer = int(np.argmax(error))
    remedy = "smaller query and key weights, or a higher temperature"
    if dtype == "float32":
        remedy = f'dtype="float64", or {remedy}'
        if difference.refusal(config) is None:
            remedy = f'engine="difference", which measures in float64 what float32 cannot, {remedy}'
    return (
        f"n = {n}: attention scores of layer {layer} reach {largest[layer]:.2g}, where {dtype} has an error of "
        f"{error[layer]:.2g}. A difference of 1 is a factor of e between attention weights, so the result "
        f"may be an effect of rounding; use {remedy}"
    )


def warn_if_unresolved(result: MeasuredFlips, stacklevel: int) -> None:
    """Issues one `PrecisionWarning` that counts the flips whose change is below the rounding of its arithmetic.

    There is none if all of these are exactly 0: no path may lead from such a flip to the output, and of a model of
    which all changes are 0 an `UnchangedWarning` says so.
    """
    blurred = ~result.resolved
    count, zeros = int(blurred.sum()), int((blurred & (result.norms == 0)).sum())
    if not count or count == zeros:
        return
    largest = np.max(result.resolution[blurred])
    exact = f", {zeros} of them as exactly 0" if zeros else ""
    warnings.warn(
        f"n = {result.n}: {count} of {len(result)} flips change the output by less than its arithmetic resolves"
        f"{exact}. Their change is at most its value plus `result.resolution`, up to {largest:.2g}. "
        '`result.resolved` tells them apart; statistics that they affect are printed as "at most", and fits leave '
        "them out",
        PrecisionWarning,
        stacklevel=stacklevel,
    )


def rounding_of(
    engine: Engine,
    model: Model,
    tokens: Int[np.ndarray, "inputs n"],
    flips: FlipTable,
    parameters: Any,
    placement: Placement,
) -> tuple[Engine, ErrorBounds | None]:
    """Returns the engine, and a bound of the rounding of each entry of an output that it subtracts; None if the engine
    bounds its own rounding.

    For a PyTorch model, one whose parameters are split, and one that takes long, a few roundings of the output are
    assumed. They are also assumed for an output that every pass gives as the same number, unless the model promises it
    to be exact: 1 + 1e-50 is 1 in each. An engine that bounds its own rounding needs no pass.
    """
    (batch, n), known = tokens.shape, TransformerApply | LayeredApply | TorchApply
    if isinstance(engine, VmapEngine) and not isinstance(innermost(engine.apply), known):  # a user's function
        size = program_size(model.apply, model.parameters, n)
        if size.equations <= MOST_EQUATIONS:
            return _of_function(engine, size.operations, tokens, flips, parameters, placement)
    exact = model.outputs is not None and set(model.outputs) <= set(model.exact_outputs)
    exact = exact and (model.exact_length is None or n <= model.exact_length)
    large = sum(np.size(leaf) for leaf in jax.tree.leaves(model.parameters)) > MOST_MOVED
    passes_in = cache(partial(_passes, model, n))

    def bound(inputs: Any, dtype: str, outputs: np.ndarray) -> np.ndarray:
        outputs = np.asarray(outputs, np.float64)
        sizes, off = np.abs(outputs), np.zeros(outputs.shape)
        eps = max(float(np.finfo(dtype).eps), 0.0 if model.torch is None else model.torch.eps)
        assumed, passes = HALF_UNIT * eps * sizes, passes_in(dtype)
        if passes is None:
            return assumed
        program, of_passes, in_own_dtype = passes
        most = max(MOVED_INPUTS, int(SHARE_PASSED * len(flips) / batch * len(inputs)))
        some = _spread(len(inputs), most)
        shown = large and outputs.shape[1] >= MANY_OUTPUTS and dtype == "float32" and not in_own_dtype
        few = _spread(len(some), 0 if shown else MOVED_INPUTS)
        passed = [one for one in (np.arange(len(some)), few) if len(one)]
        words, counts = tokens[inputs[some]], np.array([*map(len, passed)], np.int32)
        rows = np.stack([np.resize(one, room_for(len(some))) for one in passed])
        step = np.asarray(np.finfo(dtype).eps, of_passes)
        with numerics(of_passes), on_host() if of_passes == "float64" else nullcontext():
            found = np.asarray(program(words[rows].astype(np.int32), step, counts), np.float64)
        true, moved = found[0, : len(some)], found[1:, : len(few)]
        off[some] = np.abs(outputs[some] - true)
        if exact and not np.any(off):
            return off
        off[some[few]] = np.maximum(off[some[few]], np.max(np.abs(moved - true[few]), axis=0, initial=0))
        size = np.max(sizes, axis=1, initial=0)
        size[size == 0] = 1.0
        seen = np.max(off, axis=1, initial=0)
        if len(inputs) > MOVED_INPUTS:
            seen = np.maximum(seen, size * np.max(seen / size))
        # A few entries may be right by luck; all of them are off by as much as the others, relative to their sizes.
        least = seen[:, None] * np.maximum(sizes / size[:, None], 2**-10)
        return FACTOR * np.where(seen[:, None] > 0, np.maximum(off, least), assumed)

    return engine, bound


def _of_function(
    engine: VmapEngine,
    operations: float,
    tokens: Int[np.ndarray, "inputs n"],
    flips: FlipTable,
    parameters: Any,
    placement: Placement,
) -> tuple[Engine, ErrorBounds | None]:
    """`rounding_of` for a user's function that takes so many operations."""
    nudging, affordable = replace(engine, nudges=True), CHEAP / (NUDGES * max(operations, 1.0))
    if len(flips) <= affordable:
        return nudging, None
    sampled, together = replace(nudging, measure=L2()), power_within(affordable)

    @cache
    def largest() -> float:  # at a sample of the flips of all inputs
        count = max(2, int(affordable), int(SHARE_NUDGED * len(flips)))
        some = np.sort(np.random.default_rng(0).permutation(len(flips))[:count])
        bounds = []
        for first in range(0, len(some), together):
            placement.check()  # all of them in one program would leave a signal unheard until it ends
            sample = some[first : first + together]
            filled = np.resize(sample, together)
            words = tokens[flips.inputs[filled]], flips.positions[filled], flips.symbols[filled]
            bounds.append(np.max(_moved_flips(sampled, parameters, *words, np.int32(len(sample)))))
        return float(np.max(bounds))

    def bound(_inputs: Any, _dtype: str, outputs: np.ndarray) -> np.ndarray:
        return np.full(outputs.shape, largest() / len(nudging.outputs or outputs[0]) ** 0.5)

    return engine, bound


@compiled(static=1, options=None)
def _moved_flips(
    engine: VmapEngine, parameters: Any, words: Any, positions: Any, symbols: Any, count: Any
) -> Float[Array, " room"]:
    """Returns how far rounding puts the measure of each flip off. XLA's default fusion takes a quarter of the time."""

    def one(word: Array, *flip: Array) -> Array:
        block = FlipBlock(*(part[None] for part in flip))
        return engine.measured(parameters, engine.prepare(parameters, word), block)[1][0]

    return of_first(one, (words, positions, symbols), count)


def _spread(count: int, most: int) -> Int[np.ndarray, " chosen"]:
    """Returns at most so many of the first `count` numbers, evenly spread."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def _passes(model: Model, n: int, dtype: str) -> tuple[Callable[..., Array], str, bool] | None:
    """Returns a program of (words, rounding, numbers of words), with numbers moved by roundings of a dtype; its dtype;
    whether it is the model's. The words are (1 or 2, room, n): those of draw 0, which moves nothing, and, if there are
    any, of the others.

    None where there is no pass (of PyTorch, and of parameters that are split), or it takes long. A jaxsens transformer
    is run in its float64 form, whose positions and temperatures are formulas.
    """
    if model.torch is not None or model.mesh is not None:
        return None
    if model.config is not None:
        if apply_operations(model.config, n) > LARGEST_PASS:
            return None
        engine = VmapEngine(L2(), None, in_float64(model.apply) or model.apply, wide=model.dtype != "float64")
        own = model.parameters
        leaves, structure = jax.tree.flatten((own.components, own.learned))
        with numerics("float64"):
            tables = _moved_tables(engine, n, float(np.finfo(dtype).eps), structure, *leaves)
        shared, own = cast("VmapEngine", engine.shared), replace(own, components=None, learned=None)
        return partial(_outputs_of_transformer, shared, own, tables), "float64", False
    with numerics(model.dtype):
        size = program_size(model.apply, model.parameters, n)
    if size.operations > LARGEST_PASS:
        return None
    if (wide := _pass_of(model.apply, *program_key(model.parameters, n)[:3])) is not None:
        consts, run = wide
        return partial(run, list(consts), jax.tree.leaves(model.parameters)), "float64", False
    if size.equations > MOST_NUDGED_EQUATIONS:
        return None
    return partial(_outputs_nudged, model.apply, model.parameters), model.dtype, True


def _of_draws(one: Callable[[Array | None], Callable[[Array], Array]], words: Array, counts: Array) -> Array:
    """Returns the outputs (draws, words, outputs) of the pass that a function makes for each draw."""
    if len(words) == 1:  # moving the numbers of a large model takes longer than its pass
        return of_first(one(None), (words[0],), counts[0])[None]

    def passes(draw: Array) -> Array:
        k = jnp.minimum(draw, 1)
        return of_first(one(draw), (words[k],), counts[k])

    return jax.lax.map(passes, jnp.arange(1 + DRAWS))


@compiled(static=1)
def _outputs_of_transformer(
    engine: VmapEngine, parameters: Any, tables: Any, words: Array, step: Array, counts: Array
) -> Array:
    def one(draw: Array | None) -> Callable[[Array], Array]:
        own = jax.tree.map(lambda leaf: leaf[0 if draw is None else draw], tables)
        tabled = replace(_moved(parameters, draw, step), tables=own)
        return lambda word: engine.output(tabled, engine.prepare(tabled, word))

    return _of_draws(one, words, counts)


@compiled(static=1)
def _outputs_nudged(apply: Any, parameters: Any, words: Array, step: Array, counts: Array) -> Array:
    del step
    parameters = as_arrays(parameters)

    run = partial(output_vector, apply, parameters)

    def one(draw: Array | None) -> Callable[[Array], Array]:
        return run if draw is None else partial(jax.lax.cond, draw == 0, run, nudged(run, salts()[draw - 1]))

    return _of_draws(one, words, counts)


@cached
def _pass_of(
    apply: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int
) -> tuple[Sequence[Any], Callable[..., Array]] | None:
    """Returns the constants of a model's pass in float64, and the passes, of constants, parameters and what `bound`
    gives; None if not all of it is in float64."""

    def output(leaves: Any, tokens: Array) -> Array:
        return output_vector(apply, jax.tree.unflatten(structure, leaves), tokens)

    with numerics("float64"):
        dtypes = [np.float64 if jnp.issubdtype(own, jnp.floating) else own for _, own in shapes]
        leaves = [jax.ShapeDtypeStruct(shape, kind) for (shape, _), kind in zip(shapes, dtypes, strict=True)]
        try:
            closed = jax.make_jaxpr(output)(leaves, jax.ShapeDtypeStruct((n,), np.int32))
        except Exception:  # noqa: BLE001 - what a user's model raises for float64 parameters alone is no error
            return None
    # A `Layered` may keep its matrices in bfloat16, which are exact in float64.
    layered = in_float64(apply) is not None and closed.out_avals[0].dtype == jnp.float64
    if not (layered or _is_wide(closed.jaxpr)):
        return None

    def _outputs_wide(
        consts: Sequence[Any], leaves: Sequence[Any], words: Array, step: Array, counts: Array
    ) -> Array:
        def one(draw: Array | None) -> Callable[[Array], Array]:
            own, moved = _moved(list(consts), draw, step, narrow=True), _moved(list(leaves), draw, step)
            own = [part.astype(kind.dtype) for part, kind in zip(own, closed.consts, strict=True)]
            return lambda word: jaxpr_as_fun(closed.replace(consts=own))(*moved, word)[0]

        return _of_draws(one, words, counts)

    return closed.consts, jax.jit(_outputs_wide, compiler_options=SOONER)


def _is_wide(jaxpr: Any) -> bool:
    """Returns whether a program computes in float64 alone, calls no Python and draws no random numbers."""
    for one in jaxpr.eqns:
        name = one.primitive.name
        if "callback" in name or "random" in name or "threefry" in name:
            return False
        kinds = [value.aval.dtype for value in one.outvars if hasattr(value.aval, "dtype")]
        narrow = any(jnp.issubdtype(kind, jnp.floating) and kind != jnp.float64 for kind in kinds)
        if narrow or not all(map(_is_wide, jaxprs_in_params(one.params))):
            return False
    return True


def _moved(numbers: Any, draw: Array | None, step: Array, narrow: bool = False) -> Any:
    """Returns numbers in float64, each moved by a rounding, up or down as a hash of its place says.

    Draw 0 moves none. None also moves none, and compiles no code for it.

    `step` is the rounding of the arithmetic; with `narrow`, numbers of fewer digits have their own.
    """
    leaves, structure = jax.tree.flatten(numbers)
    moved = []
    for k, leaf in enumerate(leaves):
        kind = jnp.result_type(leaf)
        if not jnp.issubdtype(kind, jnp.floating):
            moved.append(leaf)
            continue
        if draw is None:
            moved.append(jnp.asarray(leaf, jnp.float64))
            continue
        salt = (draw.astype(jnp.uint32) * np.uint32(0x85EBCA6B) + np.uint32(2 * k)) | np.uint32(1)
        bits = jnp.arange(1, 1 + np.size(leaf), dtype=jnp.uint32) * np.uint32(0x9E3779B1)
        bits = (bits ^ (bits >> 15)) * salt
        sign = 1.0 - 2.0 * ((bits ^ (bits >> 13)) & 1).reshape(np.shape(leaf))
        by = jnp.maximum(step, float(jnp.finfo(kind).eps)) if narrow else step
        moved.append(jnp.asarray(leaf, jnp.float64) * (1 + jnp.where(draw == 0, 0.0, by) * sign))
    return jax.tree.unflatten(structure, moved)


@cached
def _moved_tables(engine: VmapEngine, n: int, step: float, structure: Any, *leaves: Any) -> Any:
    """Returns the tables of positions in float64, with those of each draw behind them, from the components and the
    learned embeddings of positions, which are moved by a rounding."""
    found = []
    for draw in range(1 + DRAWS):
        rng, by = np.random.default_rng(draw), step if draw else 0.0
        signs = [by * rng.choice([-1.0, 1.0], np.shape(leaf)) for leaf in leaves]
        own = [np.asarray(leaf, np.float64) * (1 + sign) for leaf, sign in zip(leaves, signs, strict=True)]
        components, learned = jax.tree.unflatten(structure, own)
        nothing: Any = np.zeros(0)
        positions = TransformerParameters(nothing, components, learned, (), None, None)
        found.append(engine.with_tables(positions, n).tables)
    return jax.tree.map(lambda *draws: np.stack(draws), *found)
