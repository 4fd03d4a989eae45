"""The table of Theorem 1 in practice: random hard-attention models, their restrictions, and what is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsens import stopping
from jaxsens.models.config import TransformerConfig
from jaxsens.models.transformer import Transformer
from jaxsens.theory.hard_attention.checker import check
from jaxsens.theory.hard_attention.misclassified import misclassified_pair
from jaxsens.theory.hard_attention.restrict import restrict
from jaxsens.theory.hard_attention.restriction import Restriction, RestrictionRefused

LENGTHS = (64, 128, 256, 512, 1024)

_VARIANTS = (
    {"positions": "sinusoidal", "weighting": "leftmost-hard"},
    {"positions": "sinusoidal", "weighting": "rightmost-hard", "mask": "future"},
    {"positions": "learned", "weighting": "leftmost-hard", "heads": 1},
    {"positions": "rotary", "weighting": "rightmost-hard"},
    {"positions": "alibi", "weighting": "leftmost-hard", "mask": "future"},
    {"positions": "none", "weighting": "rightmost-hard"},
    {"positions": ("fraction", "alternating"), "weighting": "leftmost-hard"},
    {"positions": "index", "weighting": "rightmost-hard", "heads": 1},
    {"positions": "sinusoidal", "weighting": "leftmost-hard", "layer_norm": "pre", "activation": "gelu"},
    {"positions": "sinusoidal", "weighting": "rightmost-hard", "scores": "additive"},
)
MODELS = len(_VARIANTS)
"""How many models there are."""


@dataclass(frozen=True)
class RestrictionRow:
    """One model at one depth and length.

    Attributes:
        model: what is particular about it.
        depth, n: layers, length of the inputs.
        free_fraction: the share of positions left free; NaN where `restrict` refused.
        c: how many free inputs the output may depend on; -1 where refused.
        accepted: the checker's verdict.
        largest_change: the largest change of any output coordinate over the words tried.
        words: how many words were tried: random completions, each with its irrelevant inputs drawn anew.
        pairs: of "parity" and "dyck-1", those for which a misclassified pair was made and run.
        seconds: of `restrict`.
        check_seconds: of `check`.
        refusal: why there is no restriction, if there is none.
    """

    model: str
    depth: int
    n: int
    free_fraction: float
    c: int
    accepted: bool
    largest_change: float
    words: int
    pairs: tuple[str, ...]
    seconds: float
    check_seconds: float
    refusal: str = ""

    def __str__(self) -> str:
        if self.refusal:
            return f"{self.model}, depth {self.depth}, n = {self.n}: refused: {self.refusal}"
        return (
            f"{self.model}, depth {self.depth}, n = {self.n}: {self.free_fraction:.2f} free, {self.c} matter, "
            f"{'accepted' if self.accepted else 'NOT ACCEPTED'} by the checker ({self.seconds:.1f} s)"
        )


def random_model(number: int, depth: int) -> tuple[str, Transformer]:
    """One of ten random hard-attention models over two symbols, float64, and what is particular about it."""
    variant = _VARIANTS[number % MODELS]
    config = TransformerConfig(
        **{"alphabet_size": 2, "width": 16, "heads": 2, "feed_forward": 32, "dtype": "float64", **variant},
        layers=depth,
    )
    return f"{number}: {', '.join(_named(*each) for each in variant.items())}", Transformer(
        config, seed=number
    )


def _named(field: str, value: object) -> str:
    """A setting as it is called in the table."""
    if field == "heads":
        return "1 head"
    if field in ("mask", "layer_norm"):
        return f"{value}-masked" if field == "mask" else f"{value}-norm"
    return " + ".join(value) if isinstance(value, tuple) else str(value)


def restriction_rows(
    numbers: Sequence[int] = tuple(range(MODELS)),
    depths: Sequence[int] = (1, 2),
    lengths: Sequence[int] = LENGTHS,
    free_fraction: float = 0.5,
    completions: int = 4,
    variations: int = 8,
    pairs: bool = True,
    progress: Callable[[RestrictionRow], None] | None = None,
) -> list[RestrictionRow]:
    """Restricts, checks and measures random models at every depth and length.

    Each of `completions` random words under the restriction is run with `variations` words that differ from it in
    irrelevant free positions only, half of them in a single one; `largest_change` is over all of these.
    """
    rows = []
    for number in numbers:
        for depth in depths:
            name, model = random_model(number, depth)
            for n in lengths:
                stopping.check()
                rows.append(_row(name, model, depth, n, free_fraction, completions, variations, pairs))
                if progress is not None:
                    progress(rows[-1])
    return rows


def _row(
    name: str,
    model: Transformer,
    depth: int,
    n: int,
    free_fraction: float,
    completions: int,
    variations: int,
    pairs: bool,
) -> RestrictionRow:
    start = time.perf_counter()
    try:
        restriction = restrict(model, n, free_fraction)
    except RestrictionRefused as error:
        seconds = time.perf_counter() - start
        nan = float("nan")
        return RestrictionRow(name, depth, n, nan, -1, False, nan, 0, (), seconds, 0.0, str(error))
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    verdict = check(restriction, model, free_fraction)
    checking = time.perf_counter() - start
    change, words = largest_change(restriction, model, completions, variations)
    found = []
    for language in ("parity", "dyck-1") if pairs else ():
        try:
            misclassified_pair(model, language, n)
        except RestrictionRefused:
            continue
        found.append(language)
    return RestrictionRow(
        name,
        depth,
        n,
        restriction.free_fraction,
        restriction.c,
        verdict.accepted,
        change,
        words,
        tuple(found),
        seconds,
        checking,
    )


def largest_change(
    restriction: Restriction, model: Transformer, completions: int, variations: int, seed: int = 0
) -> tuple[float, int]:
    """The largest change of the output when irrelevant free inputs change, and how many words were run."""
    generator = np.random.default_rng(seed)
    largest, words = 0.0, 0
    for word in restriction.complete(generator, completions):
        stopping.check()
        output = np.asarray(model(word))
        for number, other in enumerate(restriction.vary(word, generator, variations)):
            if number % 2 and len(restriction.irrelevant):
                other = word.copy()
                i = generator.choice(restriction.irrelevant)
                others = [symbol for symbol in restriction.symbols if symbol != word[i]]
                other[i] = generator.choice(others)
            largest = max(largest, float(np.abs(np.asarray(model(other)) - output).max()))
            words += 1
    return largest, words


def table(rows: Sequence[RestrictionRow]) -> str:
    """The rows as a Markdown table, one line a model and depth, lengths side by side."""
    lengths = sorted({row.n for row in rows})
    head = f"| model | depth | {' | '.join(f'n = {n}' for n in lengths)} | checker | largest change | pairs | seconds |"
    lines = [head, "|---" * (len(lengths) + 6) + "|"]
    for model, depth in dict.fromkeys((row.model, row.depth) for row in rows):
        mine = {row.n: row for row in rows if (row.model, row.depth) == (model, depth)}
        cells = [
            ("refused" if mine[n].refusal else f"{mine[n].free_fraction:.2f}, {mine[n].c}")
            if n in mine
            else ""
            for n in lengths
        ]
        done = [row for row in mine.values() if not row.refusal]
        accepted = sum(row.accepted for row in done)
        change = max((row.largest_change for row in done), default=float("nan"))
        both = sum(len(row.pairs) for row in done)
        slowest = max(row.seconds for row in mine.values())
        lines.append(
            f"| {model} | {depth} | {' | '.join(cells)} | {accepted}/{len(mine)} | {change:g} | "
            f"{both}/{2 * len(mine)} | {slowest:.1f} |"
        )
    return "\n".join(lines)
