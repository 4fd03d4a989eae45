"""Every method as one thing: a function from the positions to flip to the norms of the output's change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from benchmarks.options import ESTIMATES, FEED_FORWARD, HEADS, REFERENCE, WIDTH, Case, tokens

Measure = Callable[[Int[np.ndarray, " flips"] | None], Float[np.ndarray, " flips"]]
"""Sorted positions (None: all but the last) -> ||y(x) - y(x')|| in l2, x' with the bit at each position turned."""


@dataclass(frozen=True)
class Method:
    """What is measured, and a remark for the table, such as how many threads it was given."""

    measure: Measure
    remark: str = ""


def model(layers: int, dtype: str = "float32") -> Any:
    """The jaxsens transformer that all methods share. In float64 it has the parameters of the float32 one, exactly."""
    import jax

    import jaxsens
    from jaxsens.core.base.programs import numerics

    def config(kind: Literal["float32", "float64"]) -> Any:
        return jaxsens.TransformerConfig(
            alphabet_size=2, width=WIDTH, heads=HEADS, layers=layers, feed_forward=FEED_FORWARD, dtype=kind
        )

    single = jaxsens.Transformer(config("float32"), seed=0)
    if dtype == "float32":
        return single
    with numerics("float64"):
        widened = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), single.parameters)
    return jaxsens.Transformer(config("float64"), parameters=widened)


def build(case: Case) -> Method:
    """The method of a case, with its model and input in memory. Nothing of JAX's is compiled yet."""
    match case.method:
        case "vmap" | "incremental" | "difference" as engine:
            return Method(_jaxsens(case, engine))
    if case.method == REFERENCE:
        return Method(_jaxsens(case, "difference", "float64"))
    if case.method in ESTIMATES:
        return Method(_estimate(case, *ESTIMATES[case.method]))
    from benchmarks import torch_methods

    forward, words = torch_methods.forward_pass(model(case.layers), tokens(case.n))
    at_once = 1 if case.method == "torch" else int(case.method.removeprefix("captum-"))
    remark = torch_methods.settle_threads(forward, words, at_once)
    if case.method == "torch":
        return Method(torch_methods.one_at_a_time(forward, words), remark)
    return Method(torch_methods.ablation(forward, words, at_once), remark)


def _jaxsens(
    case: Case, engine: Literal["vmap", "incremental", "difference"], dtype: str = "float32"
) -> Measure:
    import jaxsens

    transformer, words = model(case.layers, dtype), tokens(case.n)

    def measure(positions: Int[np.ndarray, " flips"] | None) -> Float[np.ndarray, " flips"]:
        wanted = None if positions is None else [int(p) for p in positions]
        flips = jaxsens.Substitute(positions=wanted)
        return jaxsens.flip_sensitivity(transformer, words, flips, engine=engine, progress=False).norms

    return measure


def _estimate(case: Case, sketch: int | None, scalar: bool) -> Measure:
    """The first-order estimate alone, of all flips, without those that are measured exactly to check it."""
    from jaxsens.core.base.programs import numerics
    from jaxsens.core.flips.flip_table import Candidates
    from jaxsens.core.measures import L2, LogProbability
    from jaxsens.core.models.adapters import as_model
    from jaxsens.core.placement.placement import Placement
    from jaxsens.first_order.estimate import Blocks, first_order_engine
    from jaxsens.first_order.first_order import FirstOrder

    subject, words = as_model(model(case.layers)), tokens(case.n)[None].astype(np.int32)
    asked = FirstOrder(sketch=sketch)
    # As if outputs were logits.
    engine, where = first_order_engine(subject, asked, LogProbability(0) if scalar else L2()), Placement()
    with numerics("float32"):
        blocks = Blocks(engine, subject, case.n, asked, where.budget())

    def measure(positions: Int[np.ndarray, " flips"] | None) -> Float[np.ndarray, " flips"]:
        chosen = np.arange(case.n - 1) if positions is None else positions
        which = np.where(np.isin(np.arange(case.n), chosen) & (words < 2), 0, -1)
        flips = Candidates.of(words, [[0, 1]], which).table()
        with numerics("float32"):
            return np.abs(blocks.estimated(words, flips, where))

    return measure
