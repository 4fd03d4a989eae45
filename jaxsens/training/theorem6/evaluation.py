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
from jaxsens.core.sweeps.jobs.job import Record
from jaxsens.core.sweeps.jobs.progress import Reporter
from jaxsens.core.sweeps.points import Point
from jaxsens.core.sweeps.sources import ModelSource
from jaxsens.core.sweeps.tables import RecordTable, TablePoint
from jaxsens.formal.languages import Dyck, Language, language
from jaxsens.training.checkpoints import LanguageSymbols, LearnerSource
from jaxsens.training.config import Task
from jaxsens.training.evaluation import accuracy, cross_entropy
from jaxsens.training.steps import with_boundary

EVALUATION_FORMAT = 1
"""Raised when the meaning of an `Evaluation` table, or of the numbers behind it, changes."""


FOUND: dict[Task, tuple[str, ...]] = {
    "prediction": ("cross_entropy", "excess", "standard_error", "choice", "choice_error"),
    "recognition": ("accuracy", "accuracy_error", "margin", "margin_error"),
}
LINES = ("optimum", "unigram", "chance", "bound", "choice_bound")
EVALUATION_COLUMNS = (
    *("variant", "n", "seed", "task", "words"),
    *(*FOUND["prediction"], *LINES, *FOUND["recognition"]),
)
"""The columns of evaluation.csv. Those of the other task are empty."""


@dataclass(frozen=True)
class Lines:
    """What the cross-entropy of the symbol after n symbols is compared with, in nats. O(n) to compute.

    Attributes:
        optimum: the least possible.
        unigram: the least of a prediction that does not depend on the prefix: chance, in Theorem 6.
        chance: of guessing uniformly among all outcomes.
        bound: of Theorem 6 for k kinds of brackets: optimum + P0 (1 - p) log k; None for languages without brackets.
        choice_bound: P0 (1 - p) log k itself.
    """

    optimum: float
    unigram: float
    chance: float
    bound: float | None
    choice_bound: float | None

    @classmethod
    def of(cls, learned: Language, n: int) -> Lines:
        """The lines of a language at one length."""
        dyck = learned if isinstance(learned, Dyck) and learned.kinds > 1 else None
        return cls(
            optimum=learned.optimal_cross_entropy(n),
            unigram=learned.unigram_cross_entropy(n),
            chance=learned.chance_cross_entropy(n),
            bound=None if dyck is None else dyck.theorem6_bound(n),
            choice_bound=None if dyck is None else dyck.theorem6_gap(n),
        )


@dataclass(frozen=True)
class EvaluationRecord(Record):
    """How well a model does its task, over `words` words of n symbols.

    Attributes:
        key: of the `TablePoint`.
        variant, n, seed: which model, how many symbols, and what draws the words.
        task: "prediction" of the symbol after the word, or "recognition" of the word.
        language: the name and options of what it learned.
        longest_trained: the largest number of symbols it was trained on; None for weights that were set by hand.
        steps: of its training; None for weights that were set by hand.
        cross_entropy: in nats: the optimum, which is exact, and the `excess`, the mean over the prefixes of the
            divergence from the law of the next symbol to its prediction; `standard_error` is of both.
        choice: the part of it that chooses the kind of a closing bracket, after prefixes that end in a closing bracket
            and are not balanced; None for languages without brackets. `choice_error` is its standard error.
        accuracy: the share of words, half of them in the language, that is labelled right.
        margin: the mean of the right label's logit minus the other's.
        accuracy_error, margin_error: their standard errors.
        optimum, unigram, chance, bound, choice_bound: of predictions, see `Lines`.
    """

    kind: ClassVar[str] = "evaluation of a trained model"
    key: str
    variant: str
    n: int
    seed: int
    task: Task
    language: dict[str, Any]
    longest_trained: int | None
    steps: int | None
    words: int
    cross_entropy: float | None = None
    excess: float | None = None
    standard_error: float | None = None
    choice: float | None = None
    choice_error: float | None = None
    optimum: float | None = None
    unigram: float | None = None
    chance: float | None = None
    bound: float | None = None
    choice_bound: float | None = None
    accuracy: float | None = None
    accuracy_error: float | None = None
    margin: float | None = None
    margin_error: float | None = None

    @property
    def learned(self) -> Language:
        """The language."""
        return language(**self.language)

    def summary(self) -> str:
        """The cross-entropy or the accuracy."""
        name = FOUND[self.task][0]
        return f"{name.replace('_', '-')} {getattr(self, name):.4g}"


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
        source = _learner(point)
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
        point, source, n = item.point, _learner(item.point), _symbols(item.point)
        evaluate = cross_entropy if source.task == "prediction" else accuracy
        result = evaluate(point.model(), source.language, n, self.words, point.seed)
        numbers: dict[str, Any] = dict(zip(FOUND[source.task], astuple(result)[2:], strict=True))
        if source.task == "prediction":
            numbers |= vars(Lines.of(source.language, n))
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


def _learner(point: Point) -> LearnerSource:
    if not isinstance(point.source, LearnerSource):
        raise TypeError(f"{point}: no trained model")
    return point.source


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
