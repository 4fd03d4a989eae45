"""How long the rest of a sweep takes: seconds a point as a function of n, fitted on the points that are done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cost:
    """What a point cost. `first` says that it was its variant's first of this n, and so was compiled for."""

    variant: str
    n: int
    first: bool
    seconds: float


_GOOD_FIT = 0.1  # root mean square of the relative errors


class CostModel:
    """seconds = a + b n^2 + c n^3 for each variant, none of them negative, and one time of compilation for all.

    The engines cost between n^2 and n^3. Fitted by non-negative least squares on relative errors, so that cheap
    points count as much as dear ones; on points that did not compile, where there are some.
    """

    def __init__(self) -> None:
        self._costs: list[Cost] = []

    def add(self, cost: Cost) -> None:
        """Takes in a finished point."""
        self._costs.append(cost)

    def left(self, rest: Sequence[tuple[str, int, bool]]) -> float | None:
        """Seconds that the points (variant, n, first) of `rest` will take together.

        None where that would be a guess: points of one length say nothing of longer ones.
        """
        if not rest:
            return 0.0
        warm = [cost for cost in self._costs if not cost.first] or self._costs
        longest = max(n for _, n, _ in rest)
        if not _is_enough(warm, longest):
            return None
        fits: dict[str | None, np.ndarray] = {None: _fit(warm)}
        for variant in {variant for variant, _, _ in rest}:
            own = [cost for cost in warm if cost.variant == variant]
            fits[variant] = _fit(own) if _is_enough(own, longest) else fits[None]
        compiled = [
            c.seconds - _seconds(fits.get(c.variant, fits[None]), c.n) for c in self._costs if c.first
        ]
        compiling = max(float(np.median(compiled)), 0.0) if compiled else 0.0
        return sum(_seconds(fits[variant], n) + first * compiling for variant, n, first in rest)


def _is_enough(costs: Sequence[Cost], longest: int) -> bool:
    """Whether these say what a point of length `longest` costs."""
    lengths = {cost.n for cost in costs}
    return bool(lengths) and (len(lengths) > 1 or max(lengths) >= longest)


def _fit(costs: Sequence[Cost]) -> np.ndarray:
    """a, b, c. A cubic term is taken only where a square does not do: a few points fit either, and a needless
    cubic says hours where minutes are left."""
    from scipy.optimize import nnls

    seconds = np.array([max(cost.seconds, 1e-6) for cost in costs])
    powers = _powers(cost.n for cost in costs)
    scale = powers.max(axis=0)
    relative = powers / scale / seconds[:, None]
    coefficients = np.zeros(3)
    for terms in (2, 3):
        coefficients[:terms], error = nnls(relative[:, :terms], np.ones(len(costs)))
        if error <= _GOOD_FIT * np.sqrt(len(costs)):
            break
    return coefficients / scale


def _seconds(coefficients: np.ndarray, n: int) -> float:
    return float((_powers([n]) @ coefficients)[0])


def _powers(lengths: Iterable[int]) -> np.ndarray:
    n = np.array([*lengths], dtype=np.float64)
    return np.stack([np.ones_like(n), n**2, n**3], axis=1)
