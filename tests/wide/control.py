"""Rules of primitives that hold programs of their own: loops, branches, and calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.wide.numbers import Array, Equation, Rule, is_float

CALLS: dict[str, str] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""The parameter that holds the program, of primitives that only call it."""

WHILE_TRIPS = 32
"""How often a loop `while` is taken to run, where operations are counted: its condition is known only as it runs.

It is a guess, good for the loops that refine a root by halving or by Newton's method. `fori_loop` between known
bounds is a scan, and counted exactly."""


def held_programs(name: str, params: Any) -> list[tuple[Any, int]]:
    """Returns the programs that a primitive runs, and how often; of branches, each once."""
    if name in CALLS:
        return [(params[CALLS[name]], 1)]
    if name == "scan":
        return [(params["jaxpr"], int(params["length"]))]
    if name == "while":
        return [(params["cond_jaxpr"], WHILE_TRIPS), (params["body_jaxpr"], WHILE_TRIPS)]
    return [(branch, 1) for branch in params["branches"]] if name == "cond" else []


def _call(parameter: str, step: Equation, *values: Array) -> list[Array]:
    return step.run(step.params[parameter], values)


def _cond(step: Equation, which: Array, *values: Array) -> list[Array]:
    branches = step.params["branches"]
    return step.run(branches[max(0, min(int(which), len(branches) - 1))], values)


def _while(step: Equation, *values: Array) -> list[Array]:
    tests, bodies = step.params["cond_nconsts"], step.params["body_nconsts"]
    fixed_test, fixed, carry = values[:tests], values[tests : tests + bodies], list(values[tests + bodies :])
    while bool(step.run(step.params["cond_jaxpr"], [*fixed_test, *carry])[0]):
        carry = step.run(step.params["body_jaxpr"], [*fixed, *carry])
    return carry


def _scan(step: Equation, *values: Array) -> list[Array]:
    """What is scanned has one axis more than in the body: versions of jax say it in different parameters."""
    body = step.params["jaxpr"]
    scanned = sum(
        len(one.shape) > len(own.shape) for one, own in zip(step.operands, body.in_avals, strict=True)
    )
    stacked = sum(
        len(one.shape) > len(own.shape) for one, own in zip(step.results, body.out_avals, strict=True)
    )
    carried = len(step.results) - stacked
    constants = len(values) - carried - scanned
    length = step.params["length"]
    fixed, carry = values[:constants], list(values[constants : constants + carried])
    given = values[constants + carried :]
    collected = [np.empty(out.shape, _held(step, out)) for out in step.results[carried:]]
    for k in reversed(range(length)) if step.params["reverse"] else range(length):
        results = step.run(
            step.params["jaxpr"], [*fixed, *carry, *(np.asarray(x[k], x.dtype) for x in given)]
        )
        carry = results[:carried]
        for whole, one in zip(collected, results[carried:], strict=True):
            whole[k] = one
    return [*carry, *collected]


def _held(step: Equation, out: Any) -> np.dtype:
    return step.arithmetic.held if is_float(out.dtype) else np.dtype(out.dtype)


_LOOPS: dict[str, Callable[..., list[Array]]] = {"cond": _cond, "while": _while, "scan": _scan}

CONTROL: dict[str, Rule] = {
    **{name: partial(_call, parameter) for name, parameter in CALLS.items()},
    **_LOOPS,
}
