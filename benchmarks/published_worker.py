"""A process of its own, run as `python -m benchmarks.published_worker METHOD FOLDER N`: one run for each line it reads.

The text is the beginning of the project's licence; every symbol but the first and the last is replaced by [MASK]. A run
prints its seconds, and what the method measured or estimated of each flip.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jaxsens

ROOT = Path(__file__).resolve().parents[1]
SKETCH = 24
COORDINATE = 7
"""The output whose change is a scalar: some coordinate of the row that is read."""

Run = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Task:
    """A text of n symbols and its flips.

    Attributes:
        folder: of the model.
        ids: the text, (n,).
        positions: those flipped.
        mask: the symbol inserted.
    """

    folder: Path
    ids: np.ndarray
    positions: np.ndarray
    mask: int


def task(folder: Path, n: int) -> tuple[Any, Task]:
    """Returns a model and its task."""
    model = jaxsens.load_pretrained(folder)
    text = (ROOT / "LICENSE").read_text("utf-8")
    plain = [
        symbol for line in text.splitlines() if line.strip() for symbol in model.encode(line, special=False)
    ]
    (first, *_, last) = model.encode("a", special=True)
    ids = np.asarray([first, *plain[: n - 2], last], np.int32)
    (mask,) = model.encode("[MASK]", special=False)
    return model, Task(folder, ids, np.arange(1, len(ids) - 1), mask)


def exact(model: Any, given: Task, engine: str, readout: int | str, scalar: bool) -> Run:
    """Every flip measured."""
    options = _options(given, readout, scalar)
    return lambda: jaxsens.flip_sensitivity(model, given.ids, engine=engine, **options).values


def whole(model: Any, given: Task, readout: int | str, scalar: bool, **asked: Any) -> Run:
    """The first-order engine as users call it, with the flips that it measures."""
    engine, options = jaxsens.FirstOrder(**asked), _options(given, readout, scalar)
    return lambda: _estimates(jaxsens.flip_sensitivity(model, given.ids, engine=engine, **options))


def alone(model: Any, given: Task, readout: int | str, scalar: bool, sketch: int | None) -> Run:
    """The first-order estimate alone."""
    from jaxsens.core.base.errors import Problems
    from jaxsens.core.base.programs import numerics
    from jaxsens.core.flips.flip_table import FlipTable
    from jaxsens.core.models.adapters import as_model
    from jaxsens.core.placement import placement
    from jaxsens.first_order.estimate import Blocks, first_order_engine

    subject, count = as_model(model).reading(readout, 0, Problems()), len(given.positions)
    flips = FlipTable(
        np.zeros(count, int), given.positions[:, None], np.full((count, 1), given.mask), np.array([count])
    )
    asked = jaxsens.FirstOrder(sketch=sketch)
    measure = jaxsens.Function(coordinate) if scalar else jaxsens.L2()
    engine = first_order_engine(subject, asked, measure)
    where = placement.Placement()
    with numerics("float32"):
        blocks = Blocks(engine, subject, len(given.ids), asked, where.budget())

    def run() -> np.ndarray:
        with numerics("float32"):
            return blocks.estimated(given.ids[None], flips, where)

    return run


def gradient(model: Any, given: Task) -> Run:
    """The norm of a plain gradient's estimate of the output's change."""
    import jax

    from benchmarks.linear_rivals import gradient_changes

    compiled = jax.jit(gradient_changes, static_argnums=(0, 2))

    def run() -> np.ndarray:
        symbols = np.full(len(given.positions), given.mask)
        found = compiled(model.layered, model.parameters, 0, given.ids, given.positions, symbols)
        return np.linalg.norm(np.asarray(found, np.float64), axis=1)

    return run


def captum(given: Task, many: int) -> Run:
    """Captum's FeatureAblation of the norm of row 0's change, `many` perturbations a pass, in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]
    from captum.attr import FeatureAblation  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel  # pyright: ignore[reportMissingImports]

    model = AutoModel.from_pretrained(given.folder).eval()
    ids = torch.tensor(given.ids[None].astype(np.int64))
    with torch.no_grad():
        before = model(input_ids=ids).last_hidden_state[:, 0]
    # The symbols that stay are one more feature, whose baseline is themselves.
    features = torch.zeros_like(ids)
    features[0, given.positions] = torch.arange(1, len(given.positions) + 1)
    baseline = ids.clone()
    baseline[0, given.positions] = given.mask

    def changed(words: Any) -> Any:
        with torch.no_grad():
            return torch.linalg.norm(model(input_ids=words).last_hidden_state[:, 0] - before, dim=-1)

    def run() -> np.ndarray:
        found = FeatureAblation(changed).attribute(
            ids, baselines=baseline, feature_mask=features, perturbations_per_eval=many
        )
        return -found[0].numpy()[given.positions]

    return run


def coordinate(output: Any) -> Any:
    """One coordinate of the output."""
    return output[COORDINATE]


def _options(given: Task, readout: int | str, scalar: bool) -> dict[str, Any]:
    flips = jaxsens.Substitute([given.mask], positions=given.positions)
    return {
        "flips": flips,
        "measure": jaxsens.Function(coordinate) if scalar else jaxsens.L2(),
        "readout": readout,
    }


def _estimates(result: Any) -> np.ndarray:
    return result.estimated.estimates


METHODS: dict[str, Callable[[Any, Task], Run]] = {
    "exact": lambda m, t: exact(m, t, "auto", 0, False),
    "exact, vmap": lambda m, t: exact(m, t, "vmap", 0, False),
    "exact, mean readout": lambda m, t: exact(m, t, "auto", "mean", False),
    "exact, scalar": lambda m, t: exact(m, t, "auto", 0, True),
    f"estimate, sketch {SKETCH}": lambda m, t: alone(m, t, 0, False, SKETCH),
    f"estimate, sketch {SKETCH}, 64 verified": lambda m, t: whole(m, t, 0, False, sketch=SKETCH),
    "estimate, all outputs": lambda m, t: alone(m, t, 0, False, None),
    f"estimate, mean readout, sketch {SKETCH}": lambda m, t: alone(m, t, "mean", False, SKETCH),
    "estimate, scalar": lambda m, t: alone(m, t, 0, True, None),
    "gradient": gradient,
    "captum-1": lambda m, t: captum(t, 1),
    "captum-16": lambda m, t: captum(t, 16),
}


def main() -> None:
    """Runs the method once for each line of standard input."""
    warnings.simplefilter("ignore")
    method, folder, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    model, given = task(folder, n)
    run = METHODS[method](model, given)
    for _ in sys.stdin:
        began = time.perf_counter()
        values = run()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "values": np.asarray(values, float).tolist()}), flush=True)


if __name__ == "__main__":
    main()
