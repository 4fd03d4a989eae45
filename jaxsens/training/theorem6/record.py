"""What is kept of the evaluation of a trained model: the record, its columns in evaluation.csv, and its levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxsens.core.sweeps.jobs.job import Record
from jaxsens.formal.languages import Dyck, Language, language
from jaxsens.training.config import Task

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
