"""The server process: its parts put together, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from jaxsens.base import stopping
from jaxsens.base.errors import InputError
from jaxsens.service.guard import Guard
from jaxsens.service.jobs import Jobs, Limits
from jaxsens.service.metrics import Metrics
from jaxsens.service.pool import WorkerProcess, device_environments
from jaxsens.service.routes import Routes
from jaxsens.service.slurm import SlurmWorker
from jaxsens.service.store import Store

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Service:
    """What is served, and how.

    Attributes:
        models: by name, a folder or "package.module:make".
        store: the folder of what was asked and measured.
        host, port: where it listens.
        names: further names under which it is called, such as that of a proxy.
        token: that clients need.
        limits: what is accepted.
        worker: what workers are told: `dtype`, `memory`, `most_tokens`, `cache`.
        executor: "local" or "slurm".
        slurm: options of sbatch.
    """

    models: Mapping[str, str]
    store: Path
    host: str = "127.0.0.1"
    port: int = 8321
    names: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    limits: Limits = field(default_factory=Limits)
    worker: Mapping[str, Any] = field(default_factory=dict)
    executor: str = "local"
    slurm: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Where a browser finds the page, without the token."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/"


def serve(service: Service) -> None:
    """Serves until a signal asks for an end: then it accepts nothing more, and workers save what they have measured.

    Raises:
        InputError: for a store that cannot be used, a model that cannot be loaded, or a port that is taken.
    """
    os.umask(0o077)  # what people ask is theirs: workers inherit it
    store = Store(service.store)
    try:
        links = _linked(service)
        with _listening(service) as listener:
            asyncio.run(_served(service, store, links, listener))
    finally:
        store.close()


async def _served(service: Service, store: Store, links: Path, listener: socket.socket) -> None:
    settings = {"models": dict(service.models), "links": str(links), **service.worker}
    metrics = Metrics()
    jobs = Jobs(store, _workers(service, store, settings), service.limits, metrics)
    metrics.follow("waiting", "Jobs that wait or run", lambda: store.waiting()[0])
    metrics.follow("ready", "Workers that are ready", lambda: sum(one.ready for one in jobs.workers))
    app = Guard(
        Routes(jobs, service.models).app(),
        service.token,
        (*_LOCAL, service.host, *service.names),
        service.port,
    )
    config = uvicorn.Config(
        app,
        log_config=None,  # its own closes every handler of this process, and absl's closes standard error with it
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    server = _Server(config)
    async with _running(jobs, server):
        await server.serve(sockets=[listener])
    if jobs.fault is not None:
        raise jobs.fault


@contextlib.asynccontextmanager
async def _running(jobs: Jobs, server: _Server) -> AsyncIterator[None]:
    """Runs the workers, the queue, and what waits for a signal."""

    async def until_stopped() -> None:
        told = False
        while not stopping.requested() and jobs.fault is None:
            ended = [task for task in tasks[:-1] if task.done() and not task.cancelled()]
            jobs.fault = jobs.fault or next((task.exception() for task in ended if task.exception()), None)
            if jobs.ready and not told:
                told = True
                print("jaxsens: models are loaded", file=sys.stderr, flush=True)
            await asyncio.sleep(0.1)
        closing = asyncio.ensure_future(jobs.close())
        server.should_exit = True
        await closing

    tasks = [asyncio.ensure_future(jobs.run(worker)) for worker in jobs.workers]
    tasks += [asyncio.ensure_future(jobs.hand_out()), asyncio.ensure_future(until_stopped())]
    try:
        yield
        await tasks[-1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Server(uvicorn.Server):
    """A server whose process handles signals as every command of jaxsens does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


def _workers(service: Service, store: Store, settings: Mapping[str, Any]) -> list[WorkerProcess]:
    match service.executor:
        case "local":
            return [WorkerProcess(settings, environment) for environment in device_environments()]
        case "slurm":
            return [SlurmWorker(settings, {}, store.folder.resolve() / "slurm", service.slurm)]
        case unknown:
            raise InputError(f"serve: --executor = {unknown!r}: local or slurm")


def _linked(service: Service) -> Path:
    """Returns a folder with a link to the folder of each model that has one: what sweeps may name.

    Links of services before are removed, and nothing else is.
    """
    links = (service.store / "served").resolve()
    links.mkdir(exist_ok=True)
    for old in links.iterdir():
        if old.is_symlink():
            old.unlink()
    for name, given in service.models.items():
        if not Path(given).is_dir():
            continue
        try:
            (links / name).symlink_to(Path(given).resolve())
        except FileExistsError:
            raise InputError(
                f"serve: {links / name} is not a link of the service's: move it elsewhere"
            ) from None
    return links


@contextlib.contextmanager
def _listening(service: Service) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in service.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it each answer on a kept connection waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((service.host, service.port))
            listener.listen(512)
        except OSError as error:
            where = f"--host {service.host} --port {service.port}"
            raise InputError(f"serve: {where}: {error.strerror}; give another --port") from error
        yield listener
