"""Position embeddings: each a named, typed value that knows whether it stays bounded as inputs grow.

Hahn's Lemma 5 needs bounded position embeddings; Yang et al. (2024) escape it with unbounded ones. Positions in
formulas are 1-based, i = 1..n. Values are made in float64 on the host and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.errors import Faults


@dataclass(frozen=True)
class ComponentFunction:
    """One coordinate p_n(i) of a position embedding, as a function of position and length."""

    formula: str
    bounded: bool
    function: Callable[[np.ndarray, int], np.ndarray]


COMPONENTS: dict[str, ComponentFunction] = {
    "constant": ComponentFunction("1", True, lambda i, n: np.ones_like(i)),
    "inverse": ComponentFunction("1/(i+1)", True, lambda i, n: 1 / (i + 1)),
    "reciprocal": ComponentFunction("1/i", True, lambda i, n: 1 / i),
    "reverse-reciprocal": ComponentFunction("1/(n-i+1)", True, lambda i, n: 1 / (n - i + 1)),
    "alternating": ComponentFunction("(-1)^i", True, lambda i, n: 1 - 2 * (i % 2)),
    "odd": ComponentFunction("[i odd]", True, lambda i, n: i % 2),
    "first": ComponentFunction("[i = 1]", True, lambda i, n: (i == 1).astype(np.float64)),
    "last": ComponentFunction("[i = n]", True, lambda i, n: (i == n).astype(np.float64)),
    "fraction": ComponentFunction("i/n", True, lambda i, n: i / n),
    "fraction-square": ComponentFunction("(i/n)^2", True, lambda i, n: (i / n) ** 2),
    "index": ComponentFunction("i", False, lambda i, n: i),
    "square": ComponentFunction("i^2", False, lambda i, n: i**2),
    "cube": ComponentFunction("i^3", False, lambda i, n: i**3),
    "length": ComponentFunction("n", False, lambda i, n: np.full_like(i, n)),
    "log-length": ComponentFunction("log n", False, lambda i, n: np.full_like(i, np.log(n))),
    "length-index": ComponentFunction("n i", False, lambda i, n: n * i),
    "length-square": ComponentFunction("n i^2", False, lambda i, n: n * i**2),
}
"""The component vectors of the papers by name, with formula and whether bounded."""


@dataclass(frozen=True)
class Component:
    """One coordinate function added along a parameter vector: x_i += p_n(i) * vector."""

    name: str

    @property
    def bounded(self) -> bool:
        """Whether |p_n(i)| stays bounded over all i and n."""
        return COMPONENTS[self.name].bounded

    def values(self, n: int) -> Float[np.ndarray, " n"]:
        """p_n(1), ..., p_n(n) in float64."""
        return np.asarray(
            COMPONENTS[self.name].function(np.arange(1, n + 1, dtype=np.float64), n), np.float64
        )


@dataclass(frozen=True)
class Sinusoidal:
    """Sines and cosines of i / base^(2c/d), added to the symbol's embedding (Vaswani et al., 2017). Bounded."""

    base: float = 10_000.0

    @property
    def bounded(self) -> bool:
        """True: every entry lies in [-1, 1]."""
        return True

    def values(self, n: int, width: int) -> Float[np.ndarray, "n width"]:
        """The n embeddings in float64: column 2c holds sin(i / base^(2c/width)), column 2c+1 the cosine."""
        angle = _angles(n, width, self.base)
        values = np.empty((n, width))
        values[:, 0::2] = np.sin(angle)
        values[:, 1::2] = np.cos(angle)[:, : width // 2]
        return values


@dataclass(frozen=True)
class Learned:
    """A table of parameters, one row a position up to `max_length`. Bounded, being finite."""

    max_length: int = 1024

    @property
    def bounded(self) -> bool:
        """True: the table is finite, and longer inputs are refused."""
        return True


@dataclass(frozen=True)
class Rotary:
    """Queries and keys turned by angles that grow with the position (Su et al., 2021). Bounded: rotations."""

    base: float = 10_000.0

    @property
    def bounded(self) -> bool:
        """True: a rotation keeps norms, so scores stay bounded."""
        return True

    def angles(self, n: int, head_width: int) -> Float[np.ndarray, "n half"]:
        """The angle of position i and pair (2c, 2c+1): i * base^(-2c/head_width), float64."""
        return _angles(n, head_width, self.base)


@dataclass(frozen=True)
class Alibi:
    """A penalty -slope_h |i - j| on the score (Press et al., 2022), slope_h = 2^(-8h/H). Unbounded in n."""

    @property
    def bounded(self) -> bool:
        """False: the penalty grows with the distance, which Lemma 5's bound on the scores excludes."""
        return False

    def slopes(self, heads: int) -> Float[np.ndarray, " heads"]:
        """2^(-8h/H) for h = 1..H, float64."""
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)


def check_term(term: PositionTerm, faults: Faults) -> None:
    """Notes what is wrong with the values of a typed term."""
    if isinstance(term, Component) and term.name not in COMPONENTS:
        faults.add("positions", term.name, f"one of {', '.join(COMPONENTS)}")
    if isinstance(term, Learned) and (isinstance(term.max_length, bool) or not term.max_length >= 1):
        faults.add("positions", term, "a max_length of at least 1")
    if isinstance(term, Sinusoidal | Rotary) and not (isinstance(term.base, int | float) and term.base > 0):
        faults.add("positions", term, "a base above 0")


PositionTerm = Component | Sinusoidal | Learned | Rotary | Alibi

POSITION_NAMES: dict[str, PositionTerm] = {
    "sinusoidal": Sinusoidal(),
    "learned": Learned(),
    "rotary": Rotary(),
    "alibi": Alibi(),
    **{name: Component(name) for name in COMPONENTS},
}
"""The position embeddings that have a name; "none" is the empty tuple of terms."""


def _angles(n: int, width: int, base: float) -> np.ndarray:
    positions = np.arange(1, n + 1, dtype=np.float64)
    return positions[:, None] * base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
