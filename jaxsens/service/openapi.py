"""The description of the routes, made of the same dataclasses that read configs and command lines."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import version
from typing import Any

import pydantic

from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.sweeps.placement_table import PlacementTable
from jaxsens.service.store import ENDED, WAITING
from jaxsens.service.worker.question import OUTPUTS

_ERROR = {
    "400": "unusable: names the field, its value and the remedy",
    "401": "no token, or another",
    "413": "too long, or would take too much: says the estimate",
    "429": "too much waits: try again after Retry-After seconds",
    "503": "no worker is ready",
    "507": "the store takes no more",
}


def openapi(models: Collection[str]) -> dict[str, Any]:
    """Returns the description, of OpenAPI 3.1. models: the names of the served models."""
    job, one = _reference("Job"), "/v1/measurements/{id}"
    result = {
        "result.parquet": ("application/vnd.apache.parquet", "the result, as jaxsens.load_result reads it"),
        "result.json": ("application/json", "the flips in columns"),
        "picture.svg": ("image/svg+xml", "the text, coloured"),
        "page": ("text/html", "the same as a page"),
        "call.py": ("text/x-python", "the Python program that measures the same"),
        "events": ("text/event-stream", "the job, whenever it has changed, until it has ended"),
    }
    asked = _route("Measure, or return the job that asked the same", "202", job)
    body = {"application/json": {"schema": _reference("Measurement")}}
    paths: dict[str, Any] = {
        "/v1/measurements": {
            "post": {**asked, "requestBody": {"required": True, "content": body}},
            "get": _route("The jobs asked for last", "200", {"type": "array", "items": job}),
        },
        one: {
            "get": _route("A job", "200", job),
            "delete": _route("Cancel a job, or forget one that has ended", "200", job),
        },
        **{
            f"{one}/{name}": {"get": _route(about, "200", {}, media)}
            for name, (media, about) in result.items()
        },
        "/v1/models": {"get": _route("The served models", "200", {"type": "array"})},
    }
    for path, methods in paths.items():
        if "{id}" in path:
            where = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            methods["parameters"] = [where]
    return {
        "openapi": "3.1.0",
        "info": {"title": "jaxsens", "version": version("jaxsens")},
        "paths": paths,
        "components": {
            "schemas": {"Measurement": _measurement(models), "Job": _JOB},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_JOB = {
    "type": "object",
    "required": ["id", "state", "about", "question", "done", "total"],
    "properties": {
        "id": {"type": "string"},
        "state": {"enum": [*WAITING, *ENDED]},
        "about": {"type": "object", "description": "n, inputs, flips, and an estimate of seconds and bytes"},
        "found": {"type": "object", "description": "statistics of what was measured"},
        "question": {"type": "object"},
        "done": {"type": "integer"},
        "total": {"type": "integer"},
        "message": {"type": "string", "description": "why it failed"},
    },
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
        base.question: {"anyOf": [{"enum": [*kinds(base)]}, *kinds(base).values()]}
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


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _route(
    about: str, status: str, schema: dict[str, Any], media: str = "application/json"
) -> dict[str, Any]:
    refused = {status: {"description": why} for status, why in _ERROR.items()}
    answer = {"description": about, "content": {media: {"schema": schema}}}
    return {"summary": about, "responses": {status: answer, **refused}}
