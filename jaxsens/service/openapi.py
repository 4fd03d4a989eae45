"""The description of the routes, made of them and of the dataclasses that read configs and command lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from importlib.metadata import version
from inspect import getdoc
from typing import Any

import pydantic
from starlette.routing import BaseRoute, Route

from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.sweeps.placement_table import PlacementTable
from jaxsens.service.store import StoredJob
from jaxsens.service.worker.question import OUTPUTS

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
