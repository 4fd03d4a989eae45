"""The `[evaluation]` table of a sweep: cross-entropy or accuracy of each trained model, a record a point.

A record is about words of the model's language, without the boundary symbol: in a sweep of `jaxsens theorem6` they have
n symbols, in others n - 1, for there the boundary symbol counts in n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Int
from pydantic import ConfigDict

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.inputs import count
from jaxsens.core.base.strict import STRICT, checked_by
from jaxsens.core.models.parts.initialisation import generator
from jaxsens.core.placement.placement import Placement
from jaxsens.core.sweeps.inputs import RandomWords, Symbols
from jaxsens.core.sweeps.points import Point
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sources import ModelSource
from jaxsens.core.sweeps.tables import RecordTable, TablePoint
from jaxsens.formal.languages import Language
from jaxsens.training.checkpoints import LanguageSymbols, LearnerSource
from jaxsens.training.config import Task
from jaxsens.training.evaluation import (
    EVALUATION_COLUMNS,
    FOUND,
    EvaluationRecord,
    accuracy,
    cross_entropy,
    lines,
)
from jaxsens.training.steps import with_boundary

EVALUATION_FORMAT = 1
"""Raised when the meaning of an `Evaluation` table, or of the numbers behind it, changes."""


@dataclass(frozen=True)
class Evaluation(RecordTable):
    """The `[evaluation]` table: how well trained models predict or recognise words of their languages.

    Attributes:
        words: words a length and seed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    columns, record, task = EVALUATION_COLUMNS, EvaluationRecord, "cross-entropy and accuracy"
    words: Annotated[int, checked_by(count, least=2)] = 64

    def check(self, sources: Mapping[str, ModelSource], keys: Mapping[str, Any], problems: Problems) -> None:
        for name, source in sources.items():
            where = f'variant "{name}"'
            if isinstance(source, LearnerSource):
                lengths = [n - 1 for n in keys.get("lengths", ())]
                check_members(where, source.task, source.language, lengths, problems)
            else:
                remedy = "has learned no language: give it a checkpoint, or leave [evaluation] out"
                problems.note("evaluation", f"{where} {remedy}")

    def sections(self, data: Any, results: Sequence[EvaluationRecord]) -> list[Any]:
        from jaxsens.training.theorem6.report import evaluation_sections

        return evaluation_sections(data, results)

    def expanded(self, point: Point) -> dict[str, Any]:
        source: Any = point.source  # a learner, as `check` refuses others
        return {
            "format": EVALUATION_FORMAT,
            "model": source.expanded_at(point.n, point.seed),
            "task": source.task,
            "language": dict(source.language.settings),
            "n": _symbols(point),
            "seed": point.seed,
            "words": self.words,
        }

    def answer(
        self, item: TablePoint, reporter: Reporter, shared: dict[Any, Any], placement: Placement
    ) -> EvaluationRecord:
        point, n = item.point, _symbols(item.point)
        source: Any = point.source
        evaluate = cross_entropy if source.task == "prediction" else accuracy
        result = evaluate(point.model(), source.language, n, self.words, point.seed)
        numbers: dict[str, Any] = dict(zip(FOUND[source.task], astuple(result)[2:], strict=True))
        if source.task == "prediction":
            numbers |= lines(source.language, n)
        return EvaluationRecord(
            key=item.key,
            variant=point.variant,
            n=n,
            seed=point.seed,
            task=source.task,
            language=dict(source.language.settings),
            longest_trained=source.longest_trained,
            steps=None if source.training is None else source.training["step"],
            words=self.words,
            **numbers,
        )


def check_members(
    where: str, task: Task, learned: Language, lengths: Sequence[int], problems: Problems
) -> None:
    """Notes numbers of symbols for which the language has no words that a model could recognise."""
    without = [n for n in lengths if not learned.has_members(n)] if task == "recognition" else []
    if without:
        remedy = f"lengths for which {learned.name} has words, which {where} is to recognise"
        problems.add("lengths", without, remedy)


def _symbols(point: Point) -> int:
    return point.n if isinstance(point.inputs, LanguageWords) else point.n - 1


@dataclass(frozen=True)
class LanguageWords(RandomWords):
    """`count` words of n symbols of each model's language, with the boundary symbol, which does not count in n.

    They are prefixes to predict after, or labelled words to recognise. They depend on the seed and the length: models
    of one task and language read the same.
    """

    def tokens(self, symbols: Symbols, n: int, seed: int) -> Int[np.ndarray, "count n1"]:
        if not isinstance(symbols, LanguageSymbols):
            raise TypeError(f"{symbols}: of no language")
        task, learned = symbols.task, symbols.language
        draw = generator(seed, f"theorem6.{task}.n={n}")
        if task == "prediction":
            words = learned.sample_prefixes(self.count, n, draw)
        else:
            words, _ = learned.sample_labelled(self.count, n, draw)
        return with_boundary(words, learned, task)

    def expanded(self, symbols: Symbols, n: int, seed: int) -> dict[str, Any]:
        each = symbols.table() if isinstance(symbols, LanguageSymbols) else {}  # not all have one language
        return {"kind": "language", "count": self.count, **each}
