"""evaluation.csv: the evaluations that a training's config asks for, and no others."""

from __future__ import annotations

from pathlib import Path

from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import CrossEntropy, Recognition
from jaxsens.training.records import Records, Row, Value

_KEYS = ("step", "n", "words")
COLUMNS = {
    "prediction": (*_KEYS, "cross_entropy", "excess", "standard_error", "choice", "choice_standard_error"),
    "recognition": (*_KEYS, "accuracy", "accuracy_standard_error", "margin", "margin_standard_error"),
}
"""The columns of evaluation.csv, by task."""


class EvaluationTable:
    """The evaluations of a training so far, by step and then in the order of the config's lengths.

    Rows that the config does not ask for are dropped: of other steps, lengths or numbers of words, which a config had
    that the training was begun with.

    Args:
        path: of evaluation.csv.
        config: of the training.
        last: rows of later steps are dropped. Without it all rows are.

    Raises:
        InputError: if the file is there and no such table.
    """

    def __init__(self, path: Path, config: TrainConfig, last: int | None) -> None:
        self.config = config
        self._records = Records(path, COLUMNS[config.task], last)
        self.dropped = self._records.keep(self._asked_for)

    def missing(self, step: int) -> tuple[int, ...]:
        """The lengths that are to be evaluated at a step and are not."""
        if not self._due(step):
            return ()
        words = self.config.evaluation.words
        return tuple(n for n in self.config.evaluation.lengths if not self._records.has(step, n, words))

    def add(self, step: int, result: CrossEntropy | Recognition) -> None:
        """Adds what was found at a step."""
        self._records.add(step, result.n, result.words, *_values(result))
        self._records.rows.sort(key=self._place)

    def write(self) -> None:
        """Writes the file, atomically."""
        self._records.write()

    def _due(self, step: int) -> bool:
        every = self.config.evaluation.every
        return every > 0 and (step % every == 0 or step == self.config.optimiser.steps)

    def _asked_for(self, row: Row) -> bool:
        evaluation, (step, n, words) = self.config.evaluation, row[:3]
        return self._due(int(step)) and n in map(str, evaluation.lengths) and words == str(evaluation.words)

    def _place(self, row: Row) -> tuple[int, int]:
        return int(row[0]), self.config.evaluation.lengths.index(int(row[1]))


def _values(result: CrossEntropy | Recognition) -> tuple[Value, ...]:
    if isinstance(result, CrossEntropy):
        return (
            result.mean,
            result.excess,
            result.standard_error,
            result.choice,
            result.choice_standard_error,
        )
    return result.accuracy, result.accuracy_standard_error, result.margin, result.margin_standard_error
