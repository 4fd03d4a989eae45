"""Position embeddings. Each is a named, typed value that says whether it stays bounded as inputs grow.

Hahn's Lemma 5 requires bounded position embeddings; Yang et al. (2026) escape it with unbounded ones. Positions in
formulas are 1-based, i = 1..n. Values are computed in float64 on the host and rounded once.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.inputs import is_count, keep_plain
from jaxsens.core.models.parts.choices import Part

Turned: TypeAlias = Float[Array, "*heads rows head_width"]
"""Queries or keys."""

Places: TypeAlias = Int[Array, " m"]
KeyPlaces: TypeAlias = Int[Array, "*k"]
"""The positions of queries and of keys, 0-based."""

Entries: TypeAlias = Float[Array, "heads entries"]
ScoreTable: TypeAlias = Float[Array, "heads m k"]


@dataclass(frozen=True)
class ComponentFunction:
    """One coordinate p_n(i) of a position embedding, as a function of position and length.

    `integer` says that its values are whole numbers; `function` then also maps integers to integers exactly.
    """

    formula: str
    bounded: bool
    function: Callable[[np.ndarray, int], np.ndarray]
    integer: bool = False


COMPONENTS: dict[str, ComponentFunction] = {
    "constant": ComponentFunction("1", True, lambda i, n: np.ones_like(i), integer=True),
    "inverse": ComponentFunction("1/(i+1)", True, lambda i, n: 1 / (i + 1)),
    "reciprocal": ComponentFunction("1/i", True, lambda i, n: 1 / i),
    "reverse-reciprocal": ComponentFunction("1/(n-i+1)", True, lambda i, n: 1 / (n - i + 1)),
    "reciprocal-length": ComponentFunction("1/n", True, lambda i, n: np.full_like(i, 1 / n)),
    "alternating": ComponentFunction("(-1)^i", True, lambda i, n: 1 - 2 * (i % 2), integer=True),
    "odd": ComponentFunction("[i odd]", True, lambda i, n: i % 2, integer=True),
    "first": ComponentFunction("[i = 1]", True, lambda i, n: (i == 1).astype(i.dtype), integer=True),
    "last": ComponentFunction("[i = n]", True, lambda i, n: (i == n).astype(i.dtype), integer=True),
    "fraction": ComponentFunction("i/n", True, lambda i, n: i / n),
    "fraction-square": ComponentFunction("(i/n)^2", True, lambda i, n: (i / n) ** 2),
    "fraction-over-length": ComponentFunction("i/n^2", True, lambda i, n: i / n / n),
    "index": ComponentFunction("i", False, lambda i, n: i, integer=True),
    "square": ComponentFunction("i^2", False, lambda i, n: i**2, integer=True),
    "cube": ComponentFunction("i^3", False, lambda i, n: i**3, integer=True),
    "length": ComponentFunction("n", False, lambda i, n: np.full_like(i, n), integer=True),
    "log-length": ComponentFunction("log n", False, lambda i, n: np.full_like(i, np.log(n))),
    "length-index": ComponentFunction("n i", False, lambda i, n: n * i, integer=True),
    "length-square": ComponentFunction("n i^2", False, lambda i, n: n * i**2, integer=True),
}
"""The component vectors of the papers, by name."""

LIMBS = 3
"""The number of float32 numbers that hold any whole component's value: 24 bits each, values below 2^63."""

LIMB_LENGTH = 2**21
"""Inputs with limbs must be shorter than this, so that all whole components, up to n^3, stay below 2^63."""


@dataclass(frozen=True)
class PositionTerm(Part):
    """A position embedding. A member is an `AddedTerm`, a `CoordinateTerm`, a `ScoreTerm`, or `Learned`."""

    @property
    @abc.abstractmethod
    def bounded(self) -> bool:
        """Whether it stays bounded over all positions and lengths (a hypothesis of Hahn's Lemma 5)."""

    def check(self, problems: Problems) -> None:
        """Adds the errors in the values of its fields."""
        del problems

    def check_length(self, n: int, problems: Problems) -> None:
        """Adds an error if it cannot be used for an input of length n."""
        del n, problems


@dataclass(frozen=True)
class AddedTerm(PositionTerm):
    """A fixed vector for each position, added to the symbol's embedding."""

    @abc.abstractmethod
    def values(self, n: int, width: int) -> Float[np.ndarray, "n width"]:
        """The n vectors, float64."""


@dataclass(frozen=True)
class CoordinateTerm(PositionTerm):
    """A coordinate p_n(i) times a vector of parameters, added to the symbol's embedding."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Its name among a model's coordinates. Random initialisation draws the vector by this name."""

    @abc.abstractmethod
    def values(self, n: int) -> Float[np.ndarray, " n"]:
        """p_n(1), ..., p_n(n), float64."""


@dataclass(frozen=True)
class ScoreTerm(PositionTerm):
    """A position embedding that affects the attention scores of layers instead of the symbol embeddings."""

    @property
    def entries(self) -> int:
        """The size of the table of parameters that each head of a layer has for it; 0 for none."""
        return 0

    def check_heads(self, heads: int, head_width: int, problems: Problems) -> None:
        """Adds an error if a layer with these numbers of heads and widths of queries and keys cannot have it."""
        del heads, head_width, problems

    @abc.abstractmethod
    def turned(self, x: Turned, positions: Int[Array, " rows"], n: int) -> Turned:
        """Returns the transformed queries or keys at 0-based `positions` of an input of length n."""

    @abc.abstractmethod
    def penalty(
        self, heads: int, queries: Places, keys: KeyPlaces, dtype: jnp.dtype, table: Entries | None = None
    ) -> ScoreTable | None:
        """Returns the term added to the scores, or None. `keys`, positions, is (k,), or (heads, m, k) for keys per row.

        `table` is given to terms with `entries` only.
        """


@dataclass(frozen=True)
class Component(CoordinateTerm):
    """One coordinate function added along a parameter vector: x_i += p_n(i) * vector."""

    name: str

    @property
    def label(self) -> str:
        return self.name

    @property
    def bounded(self) -> bool:
        return COMPONENTS[self.name].bounded

    def values(self, n: int) -> Float[np.ndarray, " n"]:
        return np.asarray(
            COMPONENTS[self.name].function(np.arange(1, n + 1, dtype=np.float64), n), np.float64
        )

    def check(self, problems: Problems) -> None:
        if self.name not in COMPONENTS:
            problems.add("positions", self.name, f"one of {', '.join(COMPONENTS)}")


@dataclass(frozen=True)
class FunctionComponent(CoordinateTerm):
    """A coordinate p_n(i) given by any function, such as a numerical predicate. Config files cannot describe it.

    Attributes:
        name: its name, by which random initialisation draws its vector.
        function: maps the positions 1..n (float64) and n to n finite real numbers. It must be hashable. Two components
            are equal if their functions are, so use a frozen dataclass with `__call__`, or a module-level function.
        bounded: whether |p_n(i)| stays bounded over all i and n.

    Raises:
        InputError: if a field is unusable; from `values`, if the function's result is unusable.
    """

    name: str
    function: Callable[[np.ndarray, int], np.ndarray]
    bounded: bool = True  # pyright: ignore[reportIncompatibleMethodOverride]  a field serves as well

    def __post_init__(self) -> None:
        with collecting("FunctionComponent") as problems:
            if not isinstance(self.name, str) or not self.name:
                problems.add("name", self.name, "a non-empty string")
            if not callable(self.function):
                problems.add("function", self.function, "a function of (positions, n)")
            elif not _hashable(self.function):
                problems.add("function", self.function, "a hashable function, such as a frozen dataclass")
            if not isinstance(self.bounded, bool):
                problems.add("bounded", self.bounded, "True or False")

    @property
    def label(self) -> str:
        return self.name

    def values(self, n: int) -> Float[np.ndarray, " n"]:
        values = np.asarray(self.function(np.arange(1, n + 1, dtype=np.float64), n))
        source = f"FunctionComponent {self.name!r}: its function at n = {n}"
        if values.shape != (n,):
            raise InputError(f"{source} returns shape {values.shape}; return one number per position, ({n},)")
        if values.dtype.kind not in "biuf":
            raise InputError(f"{source} returns {values.dtype}; return real numbers")
        if not np.isfinite(values).all():
            i = int(np.argmin(np.isfinite(values))) + 1
            raise InputError(f"{source} is {values[i - 1]} at i = {i}; return finite numbers")
        return values.astype(np.float64)


@dataclass(frozen=True)
class Limb(CoordinateTerm):
    """One of the float32 numbers whose sum is exactly a whole component's value.

    Place 0 is the value rounded to float32, place 1 the remainder rounded to float32, and place 2 the rest. Two places
    hold values below 2^48 (i^2 up to n = 2^24, n i^2 up to 2^16); three hold all values. Each is exact in a float32
    model, where a single coordinate i^2 is wrong from i = 4097 on.

    Digits in a fixed base would also be exact, but scores of their differences would not: between j^2 = 2^24 - 1 and
    2^24 all digits change, by 2^24, and float32 loses the difference of 1. Limbs of neighbours differ little in every
    place, so that scores formed from differences of keys (`centred_scores`) stay accurate.

    Attributes:
        of: the name of a whole component in `COMPONENTS`: "square", "length-square", ...
        place: 0, 1 or 2.
    """

    of: str
    place: int

    def __post_init__(self) -> None:
        keep_plain(self, "place")

    @property
    def label(self) -> str:
        """The component's name and the place: "square[0]"."""
        return f"{self.of}[{self.place}]"

    @property
    def bounded(self) -> bool:
        """Whether the component is bounded: the remainder of a rounding grows with the value."""
        return COMPONENTS[self.of].bounded

    def values(self, n: int) -> Float[np.ndarray, " n"]:
        """The limbs of p_n(1), ..., p_n(n) in float64.

        Raises:
            InputError: for n of `LIMB_LENGTH` or more.
        """
        if n >= LIMB_LENGTH:
            raise InputError.of(
                "n", n, f"limbs are exact below n = {LIMB_LENGTH}; use a Component in float64"
            )
        remainder = COMPONENTS[self.of].function(np.arange(1, n + 1, dtype=np.int64), n)
        limb = np.zeros(n, np.int64)
        for _ in range(self.place + 1):
            limb = remainder.astype(np.float32).astype(np.int64)
            remainder = remainder - limb
        return limb.astype(np.float64)

    def check(self, problems: Problems) -> None:
        """Adds an error for a component that is not whole, or a place beyond the last."""
        integers = [name for name, component in COMPONENTS.items() if component.integer]
        if self.of not in integers:
            exists = isinstance(self.of, str) and self.of in COMPONENTS
            why = f"{COMPONENTS[self.of].formula} is not a whole number; limbs are of " if exists else ""
            problems.add("positions", self, f"{why}one of {', '.join(integers)}")
        if not is_count(self.place) or self.place >= LIMBS:
            problems.add("positions", self, f"a place from 0 to {LIMBS - 1}: {LIMBS} limbs hold every value")

    def check_length(self, n: int, problems: Problems) -> None:
        """Adds an error for a length of `LIMB_LENGTH` or more."""
        if n >= LIMB_LENGTH:
            problems.add("tokens", f"length {n}", f"below {LIMB_LENGTH}, up to which limbs are exact")


@dataclass(frozen=True)
class Sinusoidal(AddedTerm):
    """Sines and cosines of i / base^(2c/d), added to the symbol's embedding (Vaswani et al., 2017). Bounded."""

    base: float = 10_000.0
    # Every entry lies in [-1, 1].
    bounded: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleMethodOverride]

    def values(self, n: int, width: int) -> Float[np.ndarray, "n width"]:
        """The n embeddings in float64: column 2c holds sin(i / base^(2c/width)), column 2c+1 the cosine."""
        return _waves(n, width, self.base)

    def check(self, problems: Problems) -> None:
        check_base(self, self.base, problems)


@dataclass(frozen=True)
class Learned(PositionTerm):
    """A table of parameters, with one row per position up to `max_length`. Bounded, because it is finite."""

    max_length: int = 1024
    # The table is finite, and longer inputs are rejected.
    bounded: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        keep_plain(self, "max_length")

    def check(self, problems: Problems) -> None:
        if not is_count(self.max_length, 1):
            problems.add("positions", self, "a max_length of at least 1")

    def check_length(self, n: int, problems: Problems) -> None:
        if n > self.max_length:
            problems.add(
                "tokens", f"length {n}", f"at most the learned embedding's max_length = {self.max_length}"
            )


@lru_cache(maxsize=1)
def _waves(n: int, width: int, base: float) -> Float[np.ndarray, "n width"]:
    """The values of `Sinusoidal`, kept since one call's inputs are of one length."""
    angle = angles_of(n, width, base)
    values = np.empty((n, width))
    values[:, 0::2] = np.sin(angle)
    values[:, 1::2] = np.cos(angle)[:, : width // 2]
    values.flags.writeable = False
    return values


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def check_base(term: PositionTerm, base: object, problems: Problems) -> None:
    """Adds an error for a base that is not a number above 0."""
    if not (isinstance(base, int | float) and base > 0):
        problems.add("positions", term, "a base above 0")


def angles_of(n: int, width: int, base: float) -> Float[np.ndarray, "n half"]:
    """Returns i * base^(-2c/width) for positions i = 1..n and pairs 2c < width, float64."""
    positions = np.arange(1, n + 1, dtype=np.float64)
    return positions[:, None] * base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
