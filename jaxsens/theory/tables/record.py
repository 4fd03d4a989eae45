"""What is kept of the bounds of a point: the record, its columns in bounds.csv, and its parts in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jaxsens.core.base.errors import shortened
from jaxsens.core.sweeps.job import Record

PARTS = {
    "worst": "worst input",
    "certified": "certified bound",
    "lemma5": "closed form of Lemma 5",
    "matter": "restriction",
}
"""The parts of an answer: by the name used in a record's notes, and in words."""

BOUND_COLUMNS = (
    *("variant", "n", "seed", "worst", "worst_exact", "certified", "ratio"),
    *("log_lemma5", "logit_bound", "matter", "free"),
)
"""The columns of bounds.csv."""


@dataclass(frozen=True)
class BoundRecord(Record):
    """The answers for one (variant, n, seed). A part that was not asked for, or cannot be had, is None: see `notes`.

    Attributes:
        key, variant, n, seed: of the `TablePoint`.
        worst: the largest sensitivity found, of any input and flip.
        worst_exact: whether every input was tried, so that no sensitivity is larger.
        worst_word: the input. The flip replaces the symbol at `worst_position` by `worst_symbol`.
        certified: no input and flip has a larger sensitivity than this.
        log_lemma5: the natural logarithm of Lemma 5's closed form; the closed form itself may overflow.
        logit_bound: A, the bound on every attention logit in the exponent of this closed form.
        matter: how many free inputs the output may depend on under the restriction; its certificate was checked.
        free: how many inputs the restriction leaves free.
        notes: why a part is missing, by its name.
        seconds, versions: of each part; of Python and the packages that matter.
    """

    kind: ClassVar[str] = "bounds of a point"
    key: str
    variant: str
    n: int
    seed: int
    worst: float | None = None
    worst_exact: bool = False
    worst_word: tuple[int, ...] = ()
    worst_position: int | None = None
    worst_symbol: int | None = None
    certified: float | None = None
    log_lemma5: float | None = None
    logit_bound: float | None = None
    matter: int | None = None
    free: int | None = None
    notes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """certified / worst: how far apart the two sides are."""
        return self.certified / self.worst if self.certified is not None and self.worst else None

    def summary(self) -> str:
        """One line for the progress."""
        parts = []
        if self.worst is not None:
            parts.append(f"worst {self.worst:.3g}")
        if self.certified is not None:
            parts.append(f"certified {self.certified:.3g}")
        if self.matter is not None:
            parts.append(f"{self.matter} of {self.free} free inputs matter")
        notes = {PARTS.get(name, name): shortened(note, 160) for name, note in self.notes.items()}
        reasons = [f"no {name} ({note})" for name, note in notes.items()]
        return ", ".join(parts) or "; ".join(reasons) or "nothing is asked for"
