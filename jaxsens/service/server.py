"""The server process: its parts put together, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError
from jaxsens.service.guard import LOCAL, Connection, Guard, most_connections
from jaxsens.service.jobs import Jobs
from jaxsens.service.pool import WorkerProcess, device_environments
from jaxsens.service.routes import Routes
from jaxsens.service.store import Store


async def serve(
    folder: Path,
    host: str,
    port: int,
    names: Collection[str],
    token: str,
    limits: Mapping[str, Any],
    settings: Mapping[str, Any],
    reports: Path | None = None,
) -> None:
    """Serves until a signal asks for an end: then it accepts nothing more, and ends its workers.

    The folder is the store's. Further names are those under which the service is called, such as that of a proxy; the
    limits are those of `Jobs`, and the settings those of `Worker`. Raises InputError for a store that cannot be used, a
    model that cannot be loaded, or a port that is taken.
    """
    os.umask(0o077)  # what people ask is theirs: workers inherit it
    with closing(Store(folder)) as store, _listening(host, port) as listener:
        workers = [WorkerProcess(settings, environment) for environment in device_environments()]
        jobs = Jobs(store, workers, **limits)
        app = Guard(Routes(jobs, settings["models"], reports), token, (*LOCAL, host, *names), port)
        Connection.most = most_connections()
        config = uvicorn.Config(
            app,
            log_config=None,  # its own closes every handler of this process, and absl's closes standard error with it
            log_level="error",  # a warning for every malformed head would let strangers fill the disk
            access_log=False,
            http=Connection,
            ws="none",
            backlog=128,  # so many are accepted in one step
            lifespan="off",
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        server = _Server(config)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        acts = [act(worker) for worker in workers for act in (jobs.run, jobs.hand_out)]
        tasks = [asyncio.ensure_future(one) for one in (*acts, _until_stopped())]
        done, _ = await asyncio.wait([serving, *tasks], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await jobs.close()
        await serving
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # raises what ended the service, unless that was a signal


async def _until_stopped() -> None:
    while stopping.requested_signal() is None:
        await asyncio.sleep(0.1)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone: the process handles them as every command of jaxsens does."""
        yield


def _listening(host: str, port: int) -> socket.socket:
    several = ":" in host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=several)
    except OSError as error:
        where = f"--host {host} --port {port}"
        raise InputError(f"serve: {where}: {error.strerror}; give another --port") from error
    # Connections inherit it. Without it each answer on a kept connection waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
