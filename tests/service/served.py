"""Services in processes of their own, and models for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np

import jaxsens

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "tokenfortests"


def tiny() -> jaxsens.Transformer:
    """A transformer over three symbols."""
    config = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=1, feed_forward=16)
    return jaxsens.Transformer(config, seed=0)


def another_tiny() -> jaxsens.Transformer:
    return jaxsens.Transformer(tiny().config, seed=1)


def slow(seconds: float = 0.03) -> Any:
    """A function that takes its time for every flip: ask for it with batches of one flip."""

    def slept(value: Any) -> Any:
        time.sleep(seconds)
        return np.asarray(value)

    def model(tokens: Any) -> Any:
        first = (tokens * jnp.arange(1.0, 1.0 + tokens.shape[0])).sum()
        return jax.pure_callback(
            slept, jax.ShapeDtypeStruct((), first.dtype), first, vmap_method="sequential"
        )

    return model


def slower() -> Any:
    return slow(seconds=0.3)


class Panic(BaseException):
    """What a library in Rust raises: no `Exception`."""


def panics() -> Any:
    """A model that raises one wherever it is called."""

    def model(tokens: Any) -> Any:
        raise Panic("called `Option::unwrap()` on a `None` value")

    return model


def huge() -> Any:
    """A model whose changes are finite and their sum is not; it warns, as libraries do."""

    def model(parameters: Any, tokens: Any) -> Any:
        warnings.warn("a library's own", stacklevel=1)
        return parameters["factor"] * tokens[0]

    return model, {"factor": np.asarray(1.5e308)}


SLOWLY = {"model": "slow", "engine": "vmap", "flips": 3, "readout": None, "placement": {"batch_size": 1}}
"""A question about the slow model, without its tokens."""

MODELS = {name: f"tests.service.served:{name}" for name in ("tiny", "slow", "slower")}


class Served:
    """A service in a process, with a client of HTTP."""

    def __init__(
        self,
        store: Path,
        port: int,
        models: dict[str, str],
        options: tuple[str, ...] = (),
        env: Any = None,
        token: tuple[str, ...] = ("--token", TOKEN),
    ) -> None:
        self.store, self.port = store, port
        given = [part for name, place in models.items() for part in ("--model", f"{name}={place}")]
        where = ["--store", str(store), "--port", str(port), *token, "--compilation-cache", "off"]
        self.log = store.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jaxsens", "serve", *given, *where, *options],
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **(env or {})},
            )
        self.address = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(
            base_url=self.address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
        )

    def until_ready(self, seconds: float = 90.0) -> Served:
        until = time.monotonic() + seconds
        while True:
            try:
                if self.http.get("/readyz").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            if time.monotonic() > until or self.process.poll() is not None:
                raise TimeoutError(self.log.read_text())
            time.sleep(0.05)

    def ask(self, **question: Any) -> httpx.Response:
        return self.http.post("/v1/measurements", json=question)

    def ended(self, job: str, seconds: float = 60.0) -> dict[str, Any]:
        ended = ("finished", "failed", "cancelled")
        return self.until(job, lambda found: found["state"] in ended, seconds=seconds, wait=5)

    def until(self, job: str, wanted: Any, seconds: float = 60.0, wait: int = 0) -> dict[str, Any]:
        until, found = time.monotonic() + seconds, {}
        while time.monotonic() < until:
            found = self.http.get(f"/v1/measurements/{job}", params={"wait": wait}).json()
            if wanted(found):
                return found
            time.sleep(0.02)
        raise TimeoutError(found)

    def result(self, job: str) -> jaxsens.FlipSensitivity:
        with jaxsens.service.Client(self.address, TOKEN) as client:
            return client.result(job)

    def workers(self) -> list[int]:
        listed = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(line) for line in listed.stdout.split()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(
    store: Path, models: dict[str, str] | None = None, *options: str, env: Any = None
) -> Iterator[Served]:
    served = Served(store, free_port(), MODELS if models is None else models, options, env)
    try:
        yield served.until_ready()
    finally:
        served.stop(signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
