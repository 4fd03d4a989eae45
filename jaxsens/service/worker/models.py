"""The models that are served: by names given at the start, loaded when they are first needed, and kept."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.results.request import weights_of
from jaxsens.pretrained.folder import hub_command
from jaxsens.pretrained.load import load_pretrained


class ServedModels:
    """Models by name and by the output that is read of them.

    Args:
        given: by name, a folder that `load_pretrained` reads, or "package.module:make", a function without arguments
            that returns a model.
        dtype: of the parameters of models from folders.
    """

    def __init__(self, given: Mapping[str, str], dtype: str) -> None:
        self.given, self._dtype = dict(given), dtype
        self._loaded = dict[tuple[str, str], tuple[Any, str]]()
        self._loading = threading.RLock()

    def get(self, name: str, output: str) -> tuple[Any, str]:
        """Returns a model and the digest of its weights.

        Raises:
            InputError: if it cannot be loaded, or has no such output.
        """
        with self._loading:
            given = self.given[name]
            published = Path(given).is_dir()
            key = name, output if published else ""
            if key not in self._loaded:
                options: Any = {"output": output, "dtype": self._dtype}
                model = load_pretrained(given, **options) if published else _made(name, given)
                self._loaded[key] = model, weights_of(as_model(model))
            return self._loaded[key]

    def descriptions(self) -> list[dict[str, Any]]:
        """Loads the models, and returns what clients read of them, as JSON values.

        Raises:
            InputError: if one cannot be loaded.
        """
        models = {name: self.get(name, "hidden")[0] for name in self.given}
        return [
            {
                "name": name,
                "loaded": True,
                "family": getattr(model, "family", type(model).__name__),
                "texts": isinstance(model, LayeredModel) and hasattr(model, "encode"),
                "labels": _labels(self.given[name]),
            }
            for name, model in models.items()
        ]


def _labels(given: str) -> list[str]:
    """Returns the names of a classifier's labels, which its config has whatever output is read."""
    try:
        named = json.loads((Path(given) / "config.json").read_text("utf-8"))
        classifier = any("Classification" in one for one in named.get("architectures") or ())
        return [str(name) for name in named["id2label"].values()] if classifier else []
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []


def check_given(given: Mapping[str, str], problems: Problems) -> None:
    """Adds an error for each model that is neither a folder nor a function's name."""
    if not given:
        problems.note("--model", "give at least one, as NAME=FOLDER or NAME=package.module:make")
    for name, place in given.items():
        module, _, function = place.partition(":")
        named = all(part.isidentifier() for part in (*module.split("."), *function.split(".")))
        if not (name and name.replace("-", "").replace(".", "").replace("_", "").isalnum()):
            problems.add(
                "--model", f"{name}={place}", "a name of letters, digits, dots and hyphens before the ="
            )
        elif not (place and Path(place).is_dir()) and not named:
            remedy = f"a folder that is there, or package.module:make{hub_command(place)}"
            problems.add("--model", f"{name}={place}", remedy)


def _made(name: str, given: str) -> Any:
    """Returns the model that a function makes. Importing its module runs it."""
    module, _, function = given.partition(":")
    try:
        return attrgetter(function)(importlib.import_module(module))()
    except Exception as error:
        raise InputError(f"serve: --model = {name}={given}: {type(error).__name__}: {error}") from error
