"""The routes of the service, and their description, made of them and of the dataclasses that read configs and command
lines.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from inspect import getdoc
from pathlib import Path
from typing import Any, get_type_hints

import pydantic
import pydantic_core
from prometheus_client import generate_latest
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from jaxsens.core.base.errors import InputError
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.results.picture import page
from jaxsens.core.results.plot import picture_bytes
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.service.guard import refusal
from jaxsens.service.jobs import Jobs
from jaxsens.service.question import Question, read_json, read_question
from jaxsens.service.store import ENDED, StoredJob

_TITLE = "Sensitivity by token"
_LISTED, _LONGEST_WAIT = 100, 60.0
_PAGE = Path(__file__).parent / "page"
_OF_REPORTS = ("*/report.html", "*/*.csv", "*/figures/*")
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; form-action 'none'"
_PAGES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}


async def _sent(file: Path, _request: Request) -> FileResponse:
    """Sends a file of the page."""
    return FileResponse(file)


def as_json(result: FlipSensitivity) -> bytes:
    """Returns the columns of a result: what is not finite is null."""
    told = {"tokens": result.tokens.tolist(), "flips": result.to_pandas().to_dict("list")}
    told |= {"pieces": result.pieces, "readout": result.readout, "dtype": result.dtype}
    return pydantic_core.to_json(told, inf_nan_mode="null")


_FORMS = {
    "result.json": (as_json, "application/json"),
    "picture.svg": (lambda result: picture_bytes(result.view(), None, _TITLE, "svg"), "image/svg+xml"),
    "page": (lambda result: page(result.view(), title=_TITLE).encode(), "text/html"),
}


class Routes(Starlette):
    """The application: what is answered of jobs, of the served models by name, and, if there is a folder of sweeps, of
    their reports."""

    def __init__(self, jobs: Jobs, models: Mapping[str, str], reports: Path | None = None) -> None:
        self._jobs, self._models, self._reports = jobs, models, reports
        one = "/v1/measurements/{id}"
        routes = [
            Route("/v1/measurements", self.measure, methods=["POST"]),
            Route("/v1/measurements", self.measurements),
            Route(one, self.job),
            Route(one, self.cancel, methods=["DELETE"]),
            Route(f"{one}/events", self.events),
            Route(f"{one}/result.parquet", self.parquet),
            *(Route(f"{one}/{name}", partial(self._form, *form)) for name, form in _FORMS.items()),
            Route("/v1/models", self.models),
            Route("/v1/reports", self.reports),
            Route("/reports/{id:path}", self.report),
            Route("/openapi.json", self.description),
            Route("/metrics", self.metrics),
            Route("/healthz", self.healthy),
            Route("/readyz", self.ready),
            *(Route(path, partial(_sent, _PAGE / name)) for path, name in _PAGES.items()),
        ]
        handlers: Any = {
            InputError: lambda request, error: JSONResponse({"error": str(error), **error.json()}, 400),
            OSError: lambda request, error: refusal(507, error.strerror or str(error)),
            HTTPException: lambda request, error: refusal(error.status_code, error.detail, error.headers),
        }
        super().__init__(routes=routes, exception_handlers=handlers)

    # Measurements

    async def measure(self, request: Request) -> Response:
        """Queues a measurement; answers 200 if it has ended already. With ?explain=1 it says only what it costs."""
        question = read_question(read_json(await request.body()), self._models).table()
        if request.query_params.get("explain"):
            return JSONResponse((await self._jobs.look_at(question))["about"])
        job = await self._jobs.accept(question)
        status = 200 if job.state in ENDED else 202
        return JSONResponse(vars(job), status, {"Location": f"/v1/measurements/{job.id}"})

    async def measurements(self, request: Request) -> Response:
        """Lists measurements."""
        jobs = sorted(self._jobs.store.jobs.values(), key=lambda job: -job.number)
        return JSONResponse([vars(job) for job in jobs[:_LISTED]])

    async def job(self, request: Request) -> Response:
        """Says how it is with a job; with ?wait=SECONDS, when it has ended or after so long."""
        job, wait = self._asked(request), request.query_params.get("wait", "0")
        try:
            seconds = min(float(wait), _LONGEST_WAIT)
        except ValueError:
            seconds = -1.0
        if not seconds >= 0:  # NaN too
            remedy = f"seconds, from 0 to {_LONGEST_WAIT:.0f}"
            raise InputError.of("wait", wait, remedy, subject="flip_sensitivity")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for found in self._jobs.watch(job.id):
                    job = found
        return JSONResponse(vars(job))

    async def cancel(self, request: Request) -> Response:
        """Cancels a job, or forgets one that has ended."""
        job = self._asked(request)
        self._jobs.cancel(job)
        return JSONResponse(vars(self._jobs.store.jobs.get(job.id) or job))

    async def events(self, request: Request) -> Response:
        """Tells of a job whenever it has changed."""
        changes = self._jobs.watch(self._asked(request).id)
        told = ({"event": job.state, "data": json.dumps(vars(job))} async for job in changes)
        return EventSourceResponse(told, ping=15)

    # Results

    async def parquet(self, request: Request) -> Response:
        """The result as it was saved."""
        await self._result(request)
        path = self._jobs.store.result(request.path_params["id"])
        return FileResponse(path, media_type="application/vnd.apache.parquet")

    async def _form(self, show: Callable[[FlipSensitivity], bytes], media: str, request: Request) -> Response:
        """What was measured, in one of its forms."""
        result = await self._result(request)
        return Response(await run_in_threadpool(show, result), media_type=media)

    async def _result(self, request: Request) -> FlipSensitivity:
        job = self._asked(request)
        result = await self._jobs.result(job) if job.state == "finished" else None
        if result is None:
            job = self._jobs.store.jobs.get(job.id) or job
            raise HTTPException(404, f"{job.id}: no result; it is {job.state} {job.message}".rstrip())
        return result

    def _asked(self, request: Request) -> StoredJob:
        """Returns the job that a path names."""
        name = request.path_params["id"]
        job = self._jobs.store.jobs.get(name)
        if job is None:
            raise HTTPException(404, f"id = {name!r}: no such measurement")
        return job

    # Reports of sweeps

    async def reports(self, request: Request) -> Response:
        """The names of the sweeps whose reports can be opened at /reports/NAME/report.html."""
        files = await run_in_threadpool(self._files)  # the folder may be on a slow disk
        names = (one.removesuffix("/report.html") for one in files if one.endswith("/report.html"))
        return JSONResponse(sorted(names))

    async def report(self, request: Request) -> Response:
        """The report of a sweep, as `jaxsens report` wrote it, or a table or figure that it links to."""
        name, files = request.path_params["id"], await run_in_threadpool(self._files)
        if name not in files:
            raise HTTPException(404, f"{name!r}: no such report")
        return FileResponse(files[name], headers={"Content-Security-Policy": _REPORT_POLICY})

    def _files(self) -> dict[str, Path]:
        # From the folder's own list: no path that a stranger sends is opened. Neither links nor what lies behind them.
        if self._reports is None:
            return {}
        root = self._reports.resolve()
        found = {one: one.relative_to(root).as_posix() for wanted in _OF_REPORTS for one in root.glob(wanted)}
        readable = (
            one for one in found if one.resolve() == one and one.is_file() and os.access(one, os.R_OK)
        )
        return {found[one]: one for one in readable if found[one].isprintable()}

    # The service itself

    async def models(self, request: Request) -> Response:
        """What is served."""
        ready = [worker.models for worker in self._jobs.workers if worker.ready]
        return JSONResponse(ready[0] if ready else [{"name": one, "loaded": False} for one in self._models])

    async def description(self, request: Request) -> Response:
        """The routes, as OpenAPI."""
        return JSONResponse(openapi(request.app.routes, self._models))

    async def metrics(self, request: Request) -> Response:
        """Counts, for Prometheus."""
        return Response(generate_latest(self._jobs.counts), media_type="text/plain; version=0.0.4")

    async def healthy(self, request: Request) -> Response:
        """Whether the server answers."""
        return JSONResponse({"healthy": True})

    async def ready(self, request: Request) -> Response:
        """Whether a worker has its models loaded."""
        return JSONResponse({"ready": self._jobs.ready}, 200 if self._jobs.ready else 503)


# The description


@cache
def question_schema() -> dict[str, Any]:
    """Returns the schema of a question, with each kind of flips, measure and engine that JSON can give. A kind's
    description is what its docstring says first."""
    hints = get_type_hints(Question, include_extras=True)
    properties = {name: pydantic.TypeAdapter(hint).json_schema() for name, hint in hints.items()}
    for base in (Flips, Measure, AskedEngine):
        kinds: dict[str, Any] = {}
        for name, kind in base.kinds.items():
            if getattr(kind, "portable", True):
                kinds[name] = schema = pydantic.TypeAdapter(kind).json_schema()
                schema["description"] = " ".join((getdoc(kind) or "").partition("\n\n")[0].split())
                schema["properties"] = {"kind": {"const": name}, **schema["properties"]}
                schema["required"] = ["kind", *schema.get("required", ())]
        properties[base.argument] = {"anyOf": [{"enum": [*kinds]}, *kinds.values()]}
    required = ["model", "tokens"]
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


def openapi(routes: Iterable[BaseRoute], models: Collection[str]) -> dict[str, Any]:
    """Returns the description, of OpenAPI 3.1. models: the names of the served models."""
    asks = question_schema()
    asks = {**asks, "properties": {**asks["properties"], "model": {"enum": sorted(models)}}}
    schemas = {"Measurement": asks, "Job": pydantic.TypeAdapter(StoredJob).json_schema()}
    question = {"schema": {"$ref": "#/components/schemas/Measurement"}}
    body = {"requestBody": {"required": True, "content": {"application/json": question}}}
    refused = "refused: {'error': why}; of an unusable field, with the path, value and remedy"
    answers = {"2XX": "what the summary says; a job as the schema Job", "default": refused}
    responses = {status: {"description": text} for status, text in answers.items()}
    named = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    paths: dict[str, Any] = {}
    for route in routes:
        if isinstance(route, Route) and route.path.startswith("/v1/"):
            methods = paths.setdefault(route.path, {"parameters": [named]} if "{id}" in route.path else {})
            for method in (route.methods or set()) - {"HEAD"}:
                endpoint = getattr(route.endpoint, "func", route.endpoint)  # of a form, what `partial` calls
                told = {"summary": getdoc(endpoint), "responses": responses}
                methods[method.lower()] = {**told, **(body if method == "POST" else {})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "jaxsens", "version": version("jaxsens")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
