"""What a process of a distributed job looks at.

    python -m tests.together.flip_sensitivity.shared_checks PROCESS PROCESSES PORT DIR

Prints `ok NAME` after every check that holds in this process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base import stopping
from jaxsens.core.measures import L2
from jaxsens.core.placement import run
from tests.core.flip_sensitivity.formula import EXPECTED, POSITIONS, Formula, spread
from tests.small_models import small

RANK, COUNT = int(sys.argv[1]), int(sys.argv[2])
FOLDER = Path(sys.argv[4])
WORDS = np.array([[0, 1, 2, 0, 1, 1, 2, 0, 3], [1, 1, 2, 0, 2, 1, 0, 0, 3]], np.int32)


def model(**changes: Any) -> jaxsens.Transformer:
    return jaxsens.Transformer(small(layers=1, feed_forward=0, **changes))


def measured(
    mesh: jax.sharding.Mesh | None = None, batch_size: int | None = 2, **options: Any
) -> jaxsens.FlipSensitivity:
    return jaxsens.flip_sensitivity(
        model(), WORDS, engine="vmap", placement=jaxsens.Placement(mesh, batch_size=batch_size), **options
    )


def shared(**options: Any) -> jaxsens.FlipSensitivity:
    return measured(jaxsens.global_mesh(), **options)


def check_numbers() -> None:
    alone, together = measured(), shared()
    np.testing.assert_array_equal(together.norms, alone.norms)
    np.testing.assert_array_equal(together.positions, alone.positions)
    np.testing.assert_allclose(shared(batch_size=None).norms, alone.norms, rtol=1e-12)


def check_fallback() -> None:
    values, counts = spread(Formula(L2(), None, every=3), jaxsens.Placement(jaxsens.global_mesh(), 2))
    np.testing.assert_array_equal(values, EXPECTED)
    assert sum(counts.values()) == (POSITIONS % 3 == 0).sum()


def check_work_is_shared() -> None:
    seen: list[int] = []
    whole = run._of_all

    def counting(found: np.ndarray, *given: Any) -> tuple[np.ndarray, float]:
        seen.append(found[..., 0].size if found.ndim > 3 else found.size)
        return whole(found, *given)

    run._of_all = counting
    try:
        total = len(shared(batch_size=1))
    finally:
        run._of_all = whole
    assert total / COUNT <= sum(seen) <= total / COUNT + len(WORDS)


def check_estimate() -> None:
    alone, together = (
        jaxsens.flip_sensitivity(
            model(), WORDS, engine=jaxsens.FirstOrder(verify=4), placement=jaxsens.Placement(mesh)
        )
        for mesh in (None, jaxsens.global_mesh())
    )
    np.testing.assert_allclose(together.norms, alone.norms, rtol=1e-9)
    np.testing.assert_array_equal(together.exact, alone.exact)


def check_search() -> None:
    mesh = jaxsens.global_mesh()
    for search in (None, jaxsens.theory.Search(exact=False, restarts=2)):
        alone = jaxsens.theory.worst_input(model(), 5, search=search, engine="vmap")
        together = jaxsens.theory.worst_input(
            model(), 5, search=search, engine="vmap", placement=jaxsens.Placement(mesh)
        )
        np.testing.assert_allclose(together.value, alone.value, rtol=1e-9)


def check_rows() -> None:
    for measure in (jaxsens.analysis.layer_changes, jaxsens.analysis.influence_matrix):
        alone, together = (
            measure(model(), WORDS[0], placement=jaxsens.Placement(mesh, batch_size=3))
            for mesh in (None, jaxsens.global_mesh())
        )
        np.testing.assert_allclose(together.norms, alone.norms, rtol=1e-9, atol=1e-12)


def check_interrupt_in_one() -> None:
    calls = []

    def tell(done: int, total: int) -> None:
        calls.append(done)
        if RANK == COUNT - 1:
            raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        shared(batch_size=1, progress=tell)
    assert len(caught.value.partial) == calls[-1] < len(measured())
    partial = caught.value.partial
    rest = shared(batch_size=1, flips=partial.remaining)
    np.testing.assert_array_equal(partial.joined(rest).norms, measured(batch_size=1).norms)


def check_signal_to_one() -> None:
    calls = []

    def tell(done: int, total: int) -> None:
        calls.append(done)
        if RANK == 0 and len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        shared(batch_size=1, progress=tell)
    assert len(caught.value.partial) == calls[-1] < len(measured())


def check_failure_in_one() -> None:
    def tell(done: int, total: int) -> None:
        if RANK == 0:
            raise ValueError("no room")

    expected = (
        (ValueError, "no room") if RANK == 0 else (RuntimeError, "process 0 of the mesh failed.*no room")
    )
    with pytest.raises(expected[0], match=expected[1]):
        shared(progress=tell)


def check_other_arguments() -> None:
    with pytest.raises(jaxsens.InputError, match="process 1 was called with another model"):
        jaxsens.flip_sensitivity(
            model(), WORDS[RANK % 2], engine="vmap", placement=jaxsens.Placement(jaxsens.global_mesh())
        )


TRAINED = {"language": {"name": "parity"}, "model": {"width": 8, "heads": 1}, "optimiser": {"steps": 10}}


def check_refusals() -> None:
    devices = np.array(jax.devices())
    with pytest.raises(jaxsens.InputError, match="one axis"):
        measured(mesh=jax.sharding.Mesh(devices.reshape(1, -1), ("a", "b")))
    others = np.array([each for each in devices if each.process_index != RANK])
    with pytest.raises(jaxsens.InputError, match="none of this process"):
        measured(mesh=jax.sharding.Mesh(others, ("flips",)))
    with pytest.raises(jaxsens.InputError, match=r"process \d of \d of a distributed job"):
        jaxsens.training.train(jaxsens.training.TrainConfig.from_table(TRAINED), FOLDER / f"train{RANK}")


def check_preemption() -> None:
    # JAX's preemption service takes SIGTERM, and agrees on the step in the background.
    began = time.monotonic()
    if RANK == COUNT - 1:
        os.kill(os.getpid(), signal.SIGTERM)

    def measure_on() -> None:
        while time.monotonic() - began < 30:
            shared(batch_size=1, progress=lambda done, total: time.sleep(0.01))

    # Between two measurements nothing is measured yet that could be handed on.
    with pytest.raises((jaxsens.MeasurementInterrupted, stopping.Stopped)):
        measure_on()


def check_part_of_the_processes() -> None:
    devices = np.array([each for each in jax.devices() if each.process_index in (0, COUNT - 1)])
    mesh = jax.sharding.Mesh(devices[::-1], ("flips",))
    if RANK in (0, COUNT - 1):
        np.testing.assert_array_equal(measured(mesh=mesh).norms, measured().norms)


def check_a_process_dies() -> None:
    def tell(done: int, total: int) -> None:
        if RANK == COUNT - 1:
            print("ok check_a_process_dies", flush=True)
            os._exit(0)

    with pytest.raises(jaxsens.ProcessLost, match="start all processes again"):
        shared(batch_size=1, progress=tell)


def main() -> None:
    """Runs the checks, in the same order in all processes."""
    # Also where this was started in the background, and inherits that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jax.distributed.initialize(f"localhost:{sys.argv[3]}", COUNT, RANK, heartbeat_timeout_seconds=20)
    names = [name for name in globals() if name.startswith("check_")]
    for name in sys.argv[5:] or names:
        began = time.monotonic()
        globals()[name]()
        print(f"ok {name}\n{time.monotonic() - began:.1f} s", flush=True)
    if sys.argv[5:]:
        jax.distributed.shutdown()
    os._exit(0)  # A process is gone, for which the usual end would wait.


if __name__ == "__main__":
    main()
