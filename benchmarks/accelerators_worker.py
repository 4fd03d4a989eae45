"""A process of its own, run as `python -m benchmarks.accelerators_worker TARGET MODEL N ENGINE EDIT`: one cell.

MODEL is the number of layers of a transformer of this benchmark, the folder of a published one, or `llama-3-8b`, whose
weights are split over the devices.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

import jaxsens
from benchmarks.compiled import Program, compile_for
from benchmarks.large import LLAMA_3_8B, planned
from benchmarks.options import FEED_FORWARD, HEADS, WIDTH
from benchmarks.topology import mesh_of
from jaxsens.cli.plan import Target, target_called
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import PLATFORMS
from jaxsens.core.engines.request import Request
from jaxsens.core.explain import planned_run


def flips_of(edit: str, n: int, published: bool) -> Any:
    """Returns flips of each kind, all that there are of an own model, the 8 neighbours of each token of another."""
    if edit == "delete":
        return jaxsens.Delete()
    if edit == "insert":
        return jaxsens.Insert((1000,) if published else (0,))
    pairs = [(k, k + 1) for k in range(0, n - 2, 2)] if edit == "groups" else None
    return jaxsens.Neighbours(8, groups=pairs) if published else jaxsens.Substitute(groups=pairs)


def main() -> None:
    """Prints what was compiled, or why it was not, as JSON."""
    name, model, n, engine, edit = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    target, published = target_called(name), not model.isdigit()
    platform = PLATFORMS[target.device.platform]
    if model == "llama-3-8b":
        mesh = mesh_of(target)
        program, arguments = planned(LLAMA_3_8B, mesh, int(n))
        compile_and_tell(target, mesh, program, platform.budget_beside(arguments, target.device.memory))
        return
    if published:
        own: Any = jaxsens.load_pretrained(Path(model))
    else:
        config = jaxsens.TransformerConfig(
            alphabet_size=2, width=WIDTH, heads=HEADS, layers=int(model), feed_forward=FEED_FORWARD
        )
        own = jaxsens.Transformer(config, seed=0)
    flips = flips_of(edit, int(n), published)
    run = planned_run(own, int(n), Request(flips, engine=engine), platform)
    budget = platform.budget_beside(run.arguments, target.device.memory)
    compile_and_tell(target, mesh_of(target), Program.of(run), budget)


def compile_and_tell(target: Target, mesh: Mesh, program: Program, budget: int) -> None:
    """Prints what was compiled, or why it was refused, as JSON."""
    try:
        programs = [asdict(one) for one in compile_for(mesh, budget, program)]
    except InputError as error:
        print(json.dumps({"refused": str(error)}))
        return
    told = {"programs": programs, "memory": target.device.memory, "budget": budget, "count": target.count}
    print(json.dumps(told | {"host": jax.default_backend()}))


if __name__ == "__main__":
    main()
