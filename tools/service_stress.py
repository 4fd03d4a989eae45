"""What a service must survive, with counts.

python -m tools.service_stress kills ROUNDS | crowd SECONDS | bodies COUNT | memory COUNT
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import jaxsens
from tests.service.served import MODELS, Served, free_port, serving, tiny


def kills(store: Path, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Kills the server or a worker at a random moment, again and again, while questions are asked."""
    draw, port = random.Random(seed), free_port()
    accepted: dict[str, list[int]] = {}
    for _ in range(rounds):
        served = Served(store, port, {"tiny": MODELS["tiny"]})
        served.until_ready()
        victim = draw.choice(("server", "worker"))
        until = time.monotonic() + draw.uniform(0.05, 2.0)
        while time.monotonic() < until:
            tokens = [draw.randrange(3) for _ in range(draw.choice((5, 7, 9)))]
            with suppress(httpx.TransportError):
                answer = served.ask(model="tiny", tokens=tokens)
                if answer.is_success:
                    accepted[answer.json()["id"]] = tokens
        workers = served.workers()
        if victim == "worker" and workers:
            os.kill(workers[0], signal.SIGKILL)
            time.sleep(draw.uniform(0.0, 1.0))
        served.stop(signal.SIGKILL)
    served = Served(store, port, {"tiny": MODELS["tiny"]}).until_ready()
    ended = {job: served.ended(job) for job in accepted}
    model = tiny()
    states = Counter(one["state"] for one in ended.values())
    wrong = sum(
        not np.array_equal(served.result(job).values, jaxsens.flip_sensitivity(model, tokens).values)
        for job, tokens in accepted.items()
        if ended[job]["state"] == "finished"
    )
    served.stop(signal.SIGTERM)
    return {
        "rounds": rounds,
        "accepted": len(accepted),
        "finished": states["finished"],
        "failed": states["failed"],
        "lost": len(accepted) - sum(states.values()),
        "wrong": wrong,
    }


def crowd(store: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Many clients ask at once; another looks how the service is."""
    statuses: Counter[int] = Counter()
    health: list[float] = []
    with serving(store, {"tiny": MODELS["tiny"]}) as served:
        until = time.monotonic() + seconds

        def ask(number: int) -> None:
            draw = random.Random(number)
            with httpx.Client(base_url=served.address, headers=served.http.headers, timeout=60) as http:
                while time.monotonic() < until:
                    tokens = [draw.randrange(3) for _ in range(16)]
                    answer = http.post("/v1/measurements", json={"model": "tiny", "tokens": tokens})
                    statuses[answer.status_code] += 1
                    if answer.status_code == 429:
                        time.sleep(min(1.0, float(answer.headers["Retry-After"])))

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(clients)]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=served.address) as http:
            while time.monotonic() < until:
                began = time.monotonic()
                assert http.get("/healthz").status_code == 200
                health.append(time.monotonic() - began)
                time.sleep(0.05)
        for thread in threads:
            thread.join()
    times = {f"p{q}_ms": round(1000 * float(np.percentile(health, q)), 1) for q in (50, 99, 100)}
    return {"clients": clients, "answers": dict(statuses), "health": len(health), **times}


def bodies(store: Path, count: int) -> dict[str, Any]:
    """Malformed bodies: parts of a sound one replaced by anything, and bytes that are no JSON."""
    from tests.service.malformed import malformed

    statuses: Counter[int] = Counter()
    named = 0
    with serving(store, {"tiny": MODELS["tiny"]}) as served:
        before = resident(served.process.pid)
        draw = random.Random(0)
        for _ in range(count):
            raw, field = malformed(draw)
            answer = served.http.post("/v1/measurements", content=raw)
            statuses[answer.status_code] += 1
            named += field in answer.text
            if answer.status_code == 202:  # what was put in happened to be sound
                served.http.delete(f"/v1/measurements/{answer.json()['id']}")
        after = resident(served.process.pid)
    return {"answers": dict(statuses), "named": named, "server_MB": [before, after]}


def memory(store: Path, count: int) -> dict[str, Any]:
    """The memory of server and worker after 100 measurements and after all."""
    found = {}
    with serving(store, {"tiny": MODELS["tiny"]}) as served:
        draw = random.Random(0)
        for k in range(1, count + 1):
            tokens = [draw.randrange(3) for _ in range(32)]
            served.ended(served.ask(model="tiny", tokens=tokens).json()["id"])
            if k in (100, count // 2, count):
                (worker,) = served.workers()
                found[k] = {"server_MB": resident(served.process.pid), "worker_MB": resident(worker)}
    return found


def resident(process: int) -> float:
    """The resident memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def main(what: str, amount: str) -> None:
    """Runs one of them in a folder of its own, and prints what it found."""
    acts = {
        "kills": lambda store: kills(store, int(amount)),
        "crowd": lambda store: crowd(store, 100, float(amount)),
        "bodies": lambda store: bodies(store, int(amount)),
        "memory": lambda store: memory(store, int(amount)),
    }
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        told = acts[what](Path(folder) / "store")
        print(
            json.dumps(
                {
                    "what": what,
                    **{str(k): v for k, v in told.items()},
                    "seconds": round(time.monotonic() - began),
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
