"""Flips whose change float64 does not resolve, measured by two forward passes in numbers of hundreds of bits.

The numbers are MPFR's, which have any number of digits and no smallest size to speak of. The model's own program is
evaluated, as traced (`jaxsens.sensitivity.digits.wide`), so this is the specification, and serves every model that JAX
runs. A scalar operation takes about 0.2 microseconds, so only a budget of them is spent: the same on every machine.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsens.base import stopping
from jaxsens.base.precision import numerics, resolved
from jaxsens.sensitivity.digits.doubt import output_program
from jaxsens.sensitivity.digits.wide.numbers import Precise
from jaxsens.sensitivity.digits.wide.program import Program, traced
from jaxsens.sensitivity.engines.edits import Edit, edited
from jaxsens.sensitivity.engines.engine import Engine
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.subjects.adapters import Measurable

BITS = (256, 1152)
"""The numbers of bits, in turn. 1152 are enough for changes of 1e-300 of the output."""

GUARD = 60
"""So many of the last bits are taken to be rounding: a pass of 10^18 operations, or scores of 10^18."""

COST = 4.0
"""What a flip costs, in operations of 256 bits for each of its program's: with 1152 bits one takes three times that."""

BUDGET = 2.0e7
"""The operations of 256 bits that a call spends: some 5 seconds."""

HOW = "two forward passes in numbers of 256 bits or more"
"""How results name these flips' method."""


class Refined(NamedTuple):
    """Flips that were measured once more: their indices, values and resolutions."""

    flips: Int[np.ndarray, " refined"]
    values: Float[np.ndarray, "refined 2"]


def refined(
    engine: Engine,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    edit: Edit,
    values: Float[np.ndarray, "flips 2"],
) -> Refined:
    """Measures the unresolved flips, the largest first, until the budget is spent.

    Args:
        engine: whose measure it is.
        subject: the model.
        words: the inputs.
        flips: all flips.
        edit: what a flip does to a word.
        values: what was measured of each flip, with its resolution.
    """
    unresolved = np.flatnonzero(np.isfinite(values[:, 0]) & ~resolved(values[:, 0], values[:, 1]))
    nothing = Refined(np.zeros(0, int), np.zeros((0, 2)))
    if not len(unresolved):
        return nothing
    program = output_program(subject, words.shape[1])
    longer = program if not edit.longer else output_program(subject, words.shape[1] + edit.longer)
    measure = None if program is None else _measure(engine, program)
    if program is None or longer is None or measure is None:
        return nothing
    each = COST * max(program.operations, 1.0)
    count = int(BUDGET / each) - len(np.unique(flips.inputs[unresolved]))
    if count < 1:
        return nothing
    upper = np.abs(values[unresolved, 0]) + values[unresolved, 1]
    chosen = np.sort(unresolved[np.argsort(-upper, kind="stable")[:count]])
    found = values[chosen].astype(np.float64)
    for bits in BITS:
        left = np.flatnonzero(~resolved(found[:, 0], found[:, 1]))
        programs = program, longer, measure
        found[left] = _measured(programs, subject, words, flips, edit, chosen[left], bits)
    return Refined(chosen, found)


def _measured(
    programs: tuple[Program, Program, Program],
    subject: Measurable,
    words: np.ndarray,
    flips: FlipTable,
    edit: Edit,
    chosen: Int[np.ndarray, " chosen"],
    bits: int,
) -> Float[np.ndarray, "chosen 2"]:
    """Returns what is measured of flips, in arithmetic of so many bits, and a bound of its rounding.

    The programs are those of the output on an input and on a flipped one, and of what is measured of both.
    """
    program, flipped, measure = programs
    arithmetic, found = Precise(bits), np.zeros((len(chosen), 2))
    parameters = jax.tree.map(partial(_lifted, arithmetic), subject.parameters)
    before: dict[int, Any] = {}
    for row, (flip, word) in enumerate(zip(chosen, edited(words, flips, edit, chosen), strict=True)):
        stopping.check()
        b = int(flips.inputs[flip])
        if b not in before:
            before = {b: program.evaluate(arithmetic, parameters, words[b])}
        new = flipped.evaluate(arithmetic, parameters, word)
        value = float(measure.evaluate(arithmetic, before[b], new).item())
        size = max(float(np.max(np.abs(before[b]), initial=0)), float(np.max(np.abs(new), initial=0)))
        rounded = np.finfo(np.float64).eps * abs(value)  # as it is given in float64
        found[row] = value, max(size, 1.0) * 2.0 ** (GUARD - bits) + rounded
    return found


def _lifted(arithmetic: Precise, leaf: Any) -> Any:
    """Returns an array of numbers in the arithmetic, so that it is converted once; others as they are."""
    return arithmetic.lift(leaf) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf


def _measure(engine: Engine, program: Program) -> Program | None:
    """Returns the program of what the engine measures of two outputs; None where it has a primitive without a rule."""

    def number(y: Any, new: Any) -> Any:
        return engine.measure.between(engine.chosen(y), engine.chosen(new))

    output = program.jaxpr.out_avals[0]
    with numerics(str(output.dtype)):
        shape = jax.ShapeDtypeStruct(output.shape, output.dtype)
        found = traced(number, shape, shape)
    return None if found.unsupported is not None else found
