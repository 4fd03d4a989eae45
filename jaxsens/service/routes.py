"""The routes of the service, their description, made of them and of the dataclasses that read configs and command
lines, and what is drawn and said of a stored result.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from functools import cache
from importlib.metadata import version
from inspect import getdoc
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pydantic
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from jaxsens.core.base.errors import InputError
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.results.pictures.picture import page
from jaxsens.core.results.pictures.text_picture import picture_bytes
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.placement_table import PlacementTable
from jaxsens.service.guard import refusal
from jaxsens.service.jobs import Jobs
from jaxsens.service.store import ENDED, StoredJob
from jaxsens.service.worker.question import OUTPUTS, read_json, read_question

_TITLE = "Sensitivity by token"


def as_svg(result: FlipSensitivity) -> bytes:
    """Returns the text with its tokens coloured by sensitivity."""
    return picture_bytes(result.view(), None, _TITLE, "svg")


def as_page(result: FlipSensitivity) -> bytes:
    """Returns the page that `FlipSensitivity.to_html` writes."""
    return page(result.view(), title=_TITLE).encode()


def as_fragment(result: FlipSensitivity) -> bytes:
    """Returns the same as a part of a page."""
    return page(result.view()).encode()


def as_json(result: FlipSensitivity) -> bytes:
    """Returns the columns of a result: what is not finite is null."""
    table = result.to_pandas()
    columns = {name: _plain(table[name].to_numpy()) for name in table.columns}
    told = {
        "tokens": result.tokens.tolist(),
        "pieces": result.pieces,
        "readout": result.readout,
        "dtype": result.dtype,
        "flips": columns,
    }
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _plain(column: np.ndarray) -> list[Any]:
    if np.issubdtype(column.dtype, np.floating):
        return [float(one) if np.isfinite(one) else None for one in column]
    return column.tolist()


_BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Measurement"}}},
}
_ANSWERS = {
    "2XX": {"description": "what the summary says; a job as the schema Job"},
    "default": {
        "description": "refused: {'error': why}; of an unusable field, with the path, value and remedy"
    },
}


def openapi(routes: Iterable[BaseRoute], models: Collection[str]) -> dict[str, Any]:
    """Returns the description, of OpenAPI 3.1. models: the names of the served models."""
    paths: dict[str, Any] = {}
    named = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    for route in routes:
        if not isinstance(route, Route) or not route.path.startswith("/v1/"):
            continue
        methods = paths.setdefault(route.path, {"parameters": [named]} if "{id}" in route.path else {})
        for method in (route.methods or set()) - {"HEAD"}:
            body = {"requestBody": _BODY} if method == "POST" else {}
            methods[method.lower()] = {"summary": getdoc(route.endpoint), "responses": _ANSWERS, **body}
    return {
        "openapi": "3.1.0",
        "info": {"title": "jaxsens", "version": version("jaxsens")},
        "paths": paths,
        "components": {
            "schemas": {
                "Measurement": _measurement(models),
                "Job": pydantic.TypeAdapter(StoredJob).json_schema(),
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


@cache
def kinds(base: Any) -> dict[str, dict[str, Any]]:
    """Returns the schema of each kind of answer to a question that JSON can give, by its name."""
    found = {}
    for name, kind in base.kinds.items():
        if not getattr(kind, "portable", True):
            continue
        schema = pydantic.TypeAdapter(kind).json_schema()
        schema["properties"] = {"kind": {"const": name}, **schema["properties"]}
        schema["required"] = ["kind", *schema.get("required", ())]
        found[name] = schema
    return found


def _measurement(models: Collection[str]) -> dict[str, Any]:
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
    text = {"type": "string", "minLength": 1}
    inputs = [text, ids, {"type": "array", "items": ids, "description": "inputs of one length"}]
    objects = {
        base.argument: {"anyOf": [{"enum": [*kinds(base)]}, *kinds(base).values()]}
        for base in (Flips, Measure, AskedEngine)
    }
    return {
        "type": "object",
        "required": ["model", "tokens"],
        "additionalProperties": False,
        "properties": {
            "model": {"enum": sorted(models)},
            "tokens": {"anyOf": inputs},
            **objects,
            "placement": pydantic.TypeAdapter(PlacementTable).json_schema(),
            "readout": {
                "anyOf": [{"enum": ["auto", "last", "mean", None]}, {"type": "integer", "minimum": 0}]
            },
            "output": {"enum": [*OUTPUTS, None]},
        },
    }


_PAGE = Path(__file__).parent / "page"
_LISTED, _LONGEST_WAIT = 100, 60.0
_FORMS = {
    "result.json": (as_json, "application/json"),
    "picture.svg": (as_svg, "image/svg+xml"),
    "page": (as_page, "text/html"),
    "fragment": (as_fragment, "text/html"),
}


class Routes:
    """What is answered.

    Args:
        jobs: what was asked.
        models: what is served, by name.
    """

    def __init__(self, jobs: Jobs, models: Mapping[str, str]) -> None:
        self._jobs, self._models = jobs, models
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        self._page = template.from_string((_PAGE / "index.html").read_text("utf-8"))

    def app(self) -> Starlette:
        """Returns the application."""
        one = "/v1/measurements/{id}"
        routes = [
            Route("/", self.page),
            Route("/v1/measurements", self.measure, methods=["POST"]),
            Route("/v1/measurements", self.measurements),
            Route(one, self.job),
            Route(one, self.cancel, methods=["DELETE"]),
            Route(f"{one}/events", self.events),
            Route(f"{one}/result.parquet", self.parquet),
            *(Route(f"{one}/{name}", self._form(*form)) for name, form in _FORMS.items()),
            Route("/v1/models", self.models),
            Route("/openapi.json", self.description),
            Route("/metrics", self.metrics),
            Route("/healthz", self.healthy),
            Route("/readyz", self.ready),
            Mount("/page", StaticFiles(directory=_PAGE)),
        ]
        handlers: Any = {
            InputError: lambda request, error: JSONResponse({"error": str(error), **error.json()}, 400),
            OSError: lambda request, error: refusal(507, error.strerror or str(error)),
            HTTPException: lambda request, error: refusal(error.status_code, error.detail, error.headers),
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    # Measurements

    async def measure(self, request: Request) -> Response:
        """Queues a measurement; answers 200 if it has ended already. With ?explain=1 it says only what it costs."""
        body = read_json(await request.body(), "flip_sensitivity")
        question = read_question(body, self._models).table()
        if request.query_params.get("explain"):
            return JSONResponse((await self._jobs.look_at(question))["about"])
        job = await self._jobs.accept(question)
        status = 200 if job.state in ENDED else 202
        return JSONResponse(vars(job), status_code=status, headers={"Location": f"/v1/measurements/{job.id}"})

    async def measurements(self, request: Request) -> Response:
        """Lists measurements."""
        return JSONResponse([vars(job) for job in self._jobs.store.listed(_LISTED)])

    async def job(self, request: Request) -> Response:
        """Says how it is with a job; with ?wait=SECONDS, when it has ended or after so long."""
        job, wait = self._asked(request), request.query_params.get("wait", "0")
        try:
            seconds = min(float(wait), _LONGEST_WAIT)
        except ValueError:
            raise InputError.of(
                "wait", wait, f"seconds, from 0 to {_LONGEST_WAIT:.0f}", subject="flip_sensitivity"
            ) from None
        if seconds > 0:
            job = await self._jobs.ended(job.id, seconds) or job
        return JSONResponse(vars(job))

    async def cancel(self, request: Request) -> Response:
        """Cancels a job, or forgets one that has ended."""
        job = self._asked(request)
        self._jobs.cancel(job)
        return JSONResponse(vars(self._jobs.store.get(job.id) or job))

    async def events(self, request: Request) -> Response:
        """Tells of a job whenever it has changed."""
        job = self._asked(request)

        async def told() -> AsyncIterator[dict[str, str]]:
            async for found in self._jobs.watch(job.id):
                yield {"event": found.state, "data": json.dumps(vars(found))}

        return EventSourceResponse(told(), ping=15)

    # Results

    async def parquet(self, request: Request) -> Response:
        """The result as it was saved."""
        await self._result(request)
        path = self._jobs.store.result(request.path_params["id"])
        return FileResponse(path, media_type="application/vnd.apache.parquet")

    def _form(
        self, show: Callable[[FlipSensitivity], bytes], media_type: str
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            """What was measured, in one of its forms."""
            result = await self._result(request)
            return Response(await run_in_threadpool(show, result), media_type=media_type)

        return handler

    async def _result(self, request: Request) -> FlipSensitivity:
        job = self._asked(request)
        result = await self._jobs.result(job) if job.state == "finished" else None
        if result is None:
            job = self._jobs.store.get(job.id) or job
            raise HTTPException(404, f"{job.id}: no result; it is {job.state} {job.message}".rstrip())
        return result

    def _asked(self, request: Request) -> StoredJob:
        """Returns the job that a path names."""
        name = request.path_params["id"]
        job = self._jobs.store.get(name)
        if job is None:
            raise HTTPException(404, f"id = {name!r}: no such measurement")
        return job

    # The service itself

    async def page(self, request: Request) -> Response:
        """The page for people."""
        questions = {base.argument: kinds(base) for base in (Flips, Measure, AskedEngine)}
        told = {"models": [*self._models], "questions": questions, "version": version("jaxsens")}
        return Response(self._page.render(told), media_type="text/html")

    async def models(self, request: Request) -> Response:
        """What is served."""
        workers = [worker for worker in self._jobs.workers if worker.ready]
        names = [{"name": name, "loaded": False} for name in self._models]
        return JSONResponse(workers[0].models if workers else names)

    async def description(self, request: Request) -> Response:
        """The routes, as OpenAPI."""
        return JSONResponse(openapi(request.app.routes, self._models))

    async def metrics(self, request: Request) -> Response:
        """Counts, for Prometheus."""
        return Response(self._jobs.metrics.text(), media_type="text/plain; version=0.0.4")

    async def healthy(self, request: Request) -> Response:
        """Whether the server answers."""
        return JSONResponse({"healthy": True})

    async def ready(self, request: Request) -> Response:
        """Whether a worker has its models loaded."""
        return JSONResponse({"ready": self._jobs.ready}, status_code=200 if self._jobs.ready else 503)
