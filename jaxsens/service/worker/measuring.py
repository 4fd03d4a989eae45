"""What a worker process does with questions: says what they would cost, and measures them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.files import only_inside
from jaxsens.core.base.programs import numerics
from jaxsens.core.choose import PlannedRun
from jaxsens.core.engines.options import MANY_CALLS
from jaxsens.core.engines.request import Request
from jaxsens.core.explain import planned_run
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.models.adapters import as_inputs, as_model
from jaxsens.core.models.texts import encoded
from jaxsens.core.results.request import fingerprint
from jaxsens.service.worker.models import ServedModels
from jaxsens.service.worker.question import Question

_PLANS = 256
"""The shapes of questions whose costs are kept."""


class Desk:
    """Answers questions about served models. `admit` may run in another thread than `measure`.

    Args:
        models: that are served.
        most_tokens: the longest input that is accepted.
    """

    def __init__(self, models: ServedModels, most_tokens: int) -> None:
        self.models, self._most_tokens = models, most_tokens
        self._plans: OrderedDict[tuple[str, int], PlannedRun] = OrderedDict()
        self._measured: set[tuple[str, int]] = set()

    def admit(self, question: Question) -> dict[str, Any]:
        """Returns what is known of a question without measuring, as JSON values: its name `id`, and
        `about`: the inputs' length n, flips, and an estimate of seconds, of seconds to compile what this process has
        not compiled, and of bytes.

        Raises:
            InputError: for what `flip_sensitivity` would reject before it runs the model.
        """
        model, weights = self.models.get(question.model, question.reads)
        subject = as_model(model)
        asked = Request(question.flips, question.measure, question.engine, question.readout)
        with collecting("flip_sensitivity") as problems:
            words = as_inputs(subject, encoded(model, question.tokens), problems)
            n = words.shape[1]
            if n > self._most_tokens:
                limit = f"at most {self._most_tokens} here (--most-tokens); measure it with `jaxsens measure`"
                problems.add("tokens", f"{n} symbols", limit)
            reading, selection, *_ = asked.validated(subject, words, problems)
        flips, run = selection.number(), self._plan(question, n)
        compiled = (question.shape(), n) in self._measured
        about = {"n": n, "inputs": len(words), "flips": flips, "bytes": run.memory}
        about |= {
            "seconds": run.seconds_of(len(words), flips),
            "compiling": 0.0 if compiled else run.compiling,
        }
        with numerics(subject.dtype):
            digest = fingerprint(reading, n, weights)
        # All that a result depends on.
        told = json.dumps([question.shape(), digest, words.tolist(), version("jaxsens")], sort_keys=True)
        return {"id": hashlib.sha256(told.encode()).hexdigest()[:24], "about": about}

    def _plan(self, question: Question, n: int) -> PlannedRun:
        """Returns how inputs of this length are measured. The first question of a shape stands for all."""
        key = question.shape(), n
        if (run := self._plans.get(key)) is None:
            model, _ = self.models.get(question.model, question.reads)
            engine = question.engine.shared_by(MANY_CALLS)
            request = Request(question.flips, question.measure, engine, question.readout)
            try:
                self._plans[key] = run = planned_run(model, n, request)
            except InputError as error:
                raise type(error)(*error.problems, subject="flip_sensitivity") from error
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return run

    def measure(
        self, question: Question, job: str, place: Path, progress: Callable[[int, int], object]
    ) -> dict[str, Any]:
        """Measures a question, saves its result, and returns its statistics.

        Args:
            question: what is asked.
            job: its name when it was asked.
            place: where the result is stored, as Parquet.
            progress: is called with (flips done, flips in all) after every step; what it raises ends the measurement.

        Raises:
            InputError: for what cannot be measured, and if the model or jaxsens are others than when it was asked.
            OSError: if the result cannot be written.
        """
        if self.admit(question)["id"] != job:
            raise InputError.of(
                "model",
                question.model,
                "its weights, or jaxsens, are others than when this was asked; ask again",
                subject="flip_sensitivity",
            )
        model, _ = self.models.get(question.model, question.reads)
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            result = flip_sensitivity(  # pyright: ignore[reportCallIssue]
                model,
                question.tokens,
                question.flips,
                question.measure,
                readout=question.readout,  # pyright: ignore[reportArgumentType]
                engine=question.engine.shared_by(MANY_CALLS),
                placement=question.placement.placement(),
                progress=progress,
            )
        result = replace(result, run=replace(result.run, model=question.model))  # as it is served
        with only_inside(place.parent.parent):
            result.save(place)
        self._measured.add((question.shape(), result.n))
        own = [str(one.message) for one in noted if one.category.__module__.startswith("jaxsens")]
        numbers = {"mean": result.mean, "max": result.max}
        return {
            "flips": len(result),
            **{name: value if np.isfinite(value) else None for name, value in numbers.items()},
            "unresolved": result.unresolved,
            "engine": {"name": result.engine.name, "reason": result.engine.reason},
            "estimated": result.estimated is not None,
            "warnings": list(dict.fromkeys(own)),
        }
