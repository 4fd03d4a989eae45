"""Measurements as jobs of Slurm, whose commands are played by scripts."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import jaxsens
from tests.service.served import MODELS, SLOWLY, TOKEN, serving, tiny

SCRIPTS = {
    "sbatch": """
        for last; do :; done
        number=$(( $(ls "$QUEUE" | wc -l) + 100 ))
        echo "$@" >> "$QUEUE.log"
        touch "$QUEUE/$number"
        ( setsid bash -c "$last; rm -f $QUEUE/$number.pid" >/dev/null 2>&1 & echo $! > "$QUEUE/$number.pid" )
        echo "$number;cluster"
    """,
    "squeue": """
        for last; do :; done
        test -e "$QUEUE/$last.pid" && echo "$last R"
        exit 0
    """,
    "scancel": """
        kill -TERM -- "-$(cat "$QUEUE/$1.pid")"
    """,
}


@pytest.mark.long
def test_a_job_of_slurm_measures_and_is_followed_and_cancelled(tmp_path):
    place, queue = tmp_path / "bin", tmp_path / "queue"
    place.mkdir()
    queue.mkdir()
    for name, script in SCRIPTS.items():
        (place / name).write_text(f"#!/bin/bash\n{script}")
        (place / name).chmod(0o755)
    env = {"PATH": f"{place}:{os.environ['PATH']}", "QUEUE": str(queue)}
    options = ("--executor", "slurm", "--slurm=--time=10 --gres=gpu:1")
    with serving(tmp_path / "store", MODELS, *options, env=env) as served:
        with jaxsens.Client(served.address, TOKEN) as client:
            found = client.flip_sensitivity("tiny", [0, 1, 2, 2, 1])
        assert np.array_equal(found.values, jaxsens.flip_sensitivity(tiny(), [0, 1, 2, 2, 1]).values)
        assert "--time=10 --gres=gpu:1" in (tmp_path / "queue.log").read_text()
        job = served.ask(**SLOWLY, tokens=[0, 1] * 60).json()["id"]
        served.until(job, lambda one: one["done"] > 0)
        served.http.delete(f"/v1/measurements/{job}")
        until = time.monotonic() + 120  # a busy machine takes its time to end a process
        while not (part := served.store / "results" / f"{job}.parquet").exists() and time.monotonic() < until:
            time.sleep(0.1)
        assert 0 < len(jaxsens.load_result(part)) < 240
        model = "model = {alphabet_size = 2, width = 4, heads = 1, layers = 1, feed_forward = 4}"
        config = f'lengths = [4, 6, 8]\nvariants = ["softmax"]\n{model}'
        sweep = served.http.post("/v1/sweeps", json={"config": config}).json()["id"]
        ended = served.until(sweep, lambda one: one["state"] in ("finished", "failed"), "sweeps")
        assert (ended["state"], ended["done"]) == ("finished", 3)
