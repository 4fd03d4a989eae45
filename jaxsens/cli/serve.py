"""`jaxsens serve`: models that stay loaded at an address."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from jaxsens.cli import shared
from jaxsens.cli.measure import DTYPES
from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting

_NEEDED = ("starlette", "uvicorn", "sse_starlette", "prometheus_client")
_LOCAL = ("127.0.0.1", "localhost", "::1")
_SHORTEST_TOKEN = 8

Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class ServeOptions:
    """What is served, where, and to whom.

    Attributes:
        model: A model and its name: NAME=FOLDER of a published model, or NAME=package.module:make, a function without
            arguments that returns a model.
        store: The folder of what was asked and measured. A service that starts again finishes what waits.
        reports: A folder of sweeps: the page opens DIR/NAME/report.html of each. Nothing is written there.
        host: The address to listen at. Others than this machine's own need --token; encryption is a proxy's work.
        port: The port.
        name: A further name under which the service is called, such as that of a proxy.
        token: What clients must know; also from the environment, as JAXSENS_TOKEN, where no list of processes shows it.
        dtype: What models from folders are computed in.
        most_tokens: The longest input.
        most_seconds: The longest measurement, by its estimate.
        most_memory: The most bytes of a measurement, by its estimate.
        most_queued: The most jobs that may wait.
    """

    model: Annotated[Repeated, tyro.conf.arg(metavar="NAME=WHERE", help_behavior_hint="(repeatable)")] = ()
    store: Annotated[shared.Out, shared.default("jaxsens-store")] = Path("jaxsens-store")
    reports: Annotated[shared.OptionalOut, shared.default("none")] = None
    host: Annotated[shared.Text, shared.default("127.0.0.1", "ADDRESS")] = None
    port: shared.Number = 8321
    name: Annotated[Repeated, shared.default("none; repeatable", "NAME")] = ()
    token: Annotated[shared.Text, shared.default("a random one, printed at the start", "TEXT")] = None
    dtype: Annotated[str, shared.default("float32", shared.one_of(DTYPES))] = "float32"
    most_tokens: shared.Number = 4096
    most_seconds: shared.Number = 3600
    most_memory: Annotated[shared.Count, shared.default("no limit")] = None
    most_queued: shared.Number = 1000
    compilation_cache: shared.CacheFolder = None

    def models(self) -> dict[str, str]:
        """Returns where models are, by name."""
        pairs = [one.partition("=") for one in self.model]
        return {name: os.path.abspath(where) if Path(where).is_dir() else where for name, _, where in pairs}

    def secret(self) -> str | None:
        """Returns the token that was given."""
        return self.token or os.environ.get("JAXSENS_TOKEN")

    def check(self, problems: Problems) -> None:
        """Adds the errors that can be found without loading a model."""
        inputs.choice("--dtype", self.dtype, DTYPES, problems)
        shared.check_directory("--store", self.store, problems)
        if self.reports is not None and not self.reports.is_dir():
            problems.add("--reports", str(self.reports), "a folder with a folder for each sweep")
        if not 0 < self.port < 2**16:
            problems.add("--port", self.port, "a number from 1 to 65535")
        for option in ("most_tokens", "most_seconds", "most_memory", "most_queued"):
            inputs.optional_count(shared.flag(option), getattr(self, option), problems)
        token = self.secret()
        if token is not None and not (len(token) >= _SHORTEST_TOKEN and token.isalnum() and token.isascii()):
            remedy = f"give at least {_SHORTEST_TOKEN} letters and digits; without it a random one is printed"
            problems.note("--token", remedy)  # which does not repeat it
        if self.host not in (None, *_LOCAL) and token is None:
            problems.add("--host", self.host, "give --token too: other machines can reach the service")


def serve(asked: Annotated[ServeOptions, tyro.conf.arg(name="")] = ServeOptions()) -> int:  # noqa: B008, RUF100 - frozen
    """Keep models loaded at an address; its page colours texts.

    For example: jaxsens serve --model minilm=all-MiniLM-L6-v2
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise InputError(f'serve: {", ".join(missing)} not installed: pip install "jaxsens[service]"')
    with collecting("serve") as problems:
        from jaxsens.service.worker import check_given

        asked.check(problems)
        check_given(asked.model, problems)
    from jaxsens.service.server import serve as serve_at

    host, token = asked.host or "127.0.0.1", asked.secret() or secrets.token_hex(16)
    here = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    # A token that was given stays out of terminals and logs.
    query = "" if asked.secret() else f"?token={token}"
    print(f"jaxsens: http://{here}:{asked.port}/{query}", file=sys.stderr, flush=True)
    if host not in _LOCAL:
        told = "not encrypted: put a proxy with TLS before it; what passes is read and changed by anyone on the way"
        print(f"jaxsens: http://{host}:{asked.port} is {told}", file=sys.stderr, flush=True)
    memory = asked.most_memory or math.inf
    limits = {"queued": asked.most_queued, "seconds": asked.most_seconds, "memory": memory}
    settings = {"models": asked.models(), "dtype": asked.dtype, "most_tokens": asked.most_tokens}
    settings["cache"] = asked.compilation_cache
    asyncio.run(serve_at(asked.store, host, asked.port, asked.name, token, limits, settings, asked.reports))
    return 0
