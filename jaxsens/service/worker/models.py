"""The models that are served: by names given at the start, loaded when they are first needed, and kept."""

from __future__ import annotations

import importlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.placement.program import bytes_of
from jaxsens.core.results.request import weights_of
from jaxsens.pretrained.folder import hub_command
from jaxsens.pretrained.load import load_pretrained


class ServedModels:
    """Models by name and by the output that is read of them.

    Args:
        given: by name, a folder that `load_pretrained` reads, or "package.module:make", a function without arguments
            that returns a model.
        dtype: of the parameters of models from folders.
        memory: bytes that loaded models may take together; those used longest ago are dropped beyond it. None for no
            limit.
    """

    def __init__(self, given: Mapping[str, str], dtype: str, memory: int | None) -> None:
        self.given, self._dtype, self._memory = dict(given), dtype, memory
        self._loaded: OrderedDict[tuple[str, str], tuple[Any, str, int]] = OrderedDict()
        self._loading = threading.RLock()

    def get(self, name: str, output: str) -> tuple[Any, str]:
        """Returns a model and the digest of its weights.

        Raises:
            InputError: if it cannot be loaded, or has no such output.
        """
        with self._loading:
            key = name, output if Path(self.given[name]).is_dir() else ""
            if key not in self._loaded:
                model = self._load(name, output)
                subject = as_model(model)
                self._loaded[key] = model, weights_of(subject), bytes_of(subject.parameters)
            self._loaded.move_to_end(key)
            self._drop()
            return self._loaded[key][:2]

    def told(self) -> list[dict[str, Any]]:
        """Returns what is said of the models to clients, as JSON values."""
        told = []
        with self._loading:
            for name, place in self.given.items():
                held = [one for (named, _), one in self._loaded.items() if named == name]
                told.append({"name": name, "loaded": bool(held)})
                for model, *_ in held[-1:]:
                    told[-1] |= {
                        "family": getattr(model, "family", type(model).__name__),
                        "texts": isinstance(model, LayeredModel) and hasattr(model, "encode"),
                        "labels": _labels(place),
                    }
        return told

    def _load(self, name: str, output: str) -> Any:
        given = self.given[name]
        if Path(given).is_dir():
            return load_pretrained(given, output=output, dtype=self._dtype)  # pyright: ignore[reportArgumentType]
        return _made(name, given)

    def _drop(self) -> None:
        """Drops the models used longest ago until the others fit, and with them their programs."""
        dropped = False
        while self._memory is not None and len(self._loaded) > 1:
            if sum(size for _, _, size in self._loaded.values()) <= self._memory:
                break
            self._loaded.popitem(last=False)
            dropped = True
        if dropped:
            jax.clear_caches()


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
