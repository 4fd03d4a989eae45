"""Position embeddings that enter attention scores: rotations of queries and keys, and terms added to the scores.

And all position embeddings by name.
"""

from __future__ import annotations

import abc
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.inputs import is_count, keep_plain
from jaxsens.core.models.parts.positions import (
    COMPONENTS,
    Component,
    Entries,
    KeyPlaces,
    Learned,
    Limb,
    Places,
    PositionTerm,
    ScoreTable,
    ScoreTerm,
    Sinusoidal,
    Turned,
    angles_of,
    check_base,
)

Indices = TypeVar("Indices", np.ndarray, jax.Array)
"""Whole numbers of NumPy or JAX."""


@dataclass(frozen=True)
class Rotation(ScoreTerm):
    """Rotates pairs of coordinates of queries and keys by angles that grow with the position."""

    # A rotation keeps norms, so scores stay bounded.
    bounded: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleMethodOverride]

    @abc.abstractmethod
    def angles(self, n: int, head_width: int) -> Float[np.ndarray, "n half"]:
        """The angle of each position 1..n and pair (2c, 2c+1), float64."""

    def check_heads(self, heads: int, head_width: int, problems: Problems) -> None:
        del heads
        if head_width % 2:
            problems.add("head_width", head_width, "an even number, since rotary embeddings rotate pairs")

    def turned(self, x: Turned, positions: Int[Array, " rows"], n: int) -> Turned:
        angles = self.angles(n, x.shape[-1])
        cosine = jnp.asarray(np.cos(angles), x.dtype)[positions]
        sine = jnp.asarray(np.sin(angles), x.dtype)[positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        pairs = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
        return pairs.reshape(x.shape)

    def penalty(
        self, heads: int, queries: Places, keys: KeyPlaces, dtype: jnp.dtype, table: Entries | None = None
    ) -> ScoreTable | None:
        del heads, queries, keys, dtype, table


@dataclass(frozen=True)
class Rotary(Rotation):
    """Rotates queries and keys by angles that grow with the position (Su et al., 2021). Bounded."""

    base: float = 10_000.0

    def angles(self, n: int, head_width: int) -> Float[np.ndarray, "n half"]:
        """The angle of position i and pair (2c, 2c+1): i * base^(-2c/head_width), float64."""
        return angles_of(n, head_width, self.base)

    def check(self, problems: Problems) -> None:
        check_base(self, self.base, problems)


@dataclass(frozen=True)
class PartialRotary(Rotation):
    """Rotates the first coordinates of queries and keys and leaves the others alone (Black et al., 2022, GPT-NeoX).

    A rotary embedding of the first w = fraction * head_width coordinates: pair (2c, 2c+1), 2c < w, turns by
    i * base^(-2c/w), and the other pairs by 0. The whole fraction, 1, gives `Rotary`. Bounded.
    """

    fraction: float = 0.5
    base: float = 10_000.0

    def angles(self, n: int, head_width: int) -> Float[np.ndarray, "n half"]:
        """The angle of position i and pair (2c, 2c+1): i * base^(-2c/w), and 0 from 2c = w on; float64."""
        turned = angles_of(n, _share(self.fraction, head_width) or 0, self.base)
        return np.pad(turned, ((0, 0), (0, head_width // 2 - turned.shape[1])))

    def check(self, problems: Problems) -> None:
        check_base(self, self.base, problems)
        _check_fraction(self, self.fraction, problems)

    def check_heads(self, heads: int, head_width: int, problems: Problems) -> None:
        super().check_heads(heads, head_width, problems)
        if head_width % 2 == 0 and (_share(self.fraction, head_width) or 1) % 2:
            remedy = f"a fraction of head_width = {head_width} that is an even number of coordinates"
            problems.add("positions", self, f"{remedy}, since rotary embeddings rotate pairs")


@dataclass(frozen=True)
class ScoreBias(ScoreTerm):
    """A term that is added to scores, and leaves queries and keys as they are."""

    def turned(self, x: Turned, positions: Int[Array, " rows"], n: int) -> Turned:
        del positions, n
        return x


@dataclass(frozen=True)
class DistancePenalty(ScoreBias):
    """A penalty -slope_h |i - j| on the score, with a slope for each head. Unbounded in n."""

    # It grows with the distance, which Lemma 5's bound on the scores excludes.
    bounded: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleMethodOverride]

    @abc.abstractmethod
    def slopes(self, heads: int) -> Float[np.ndarray, " heads"]:
        """The slope of each head, float64."""

    def penalty(
        self, heads: int, queries: Places, keys: KeyPlaces, dtype: jnp.dtype, table: Entries | None = None
    ) -> ScoreTable | None:
        """-slope_h |i - j|."""
        del table
        distance = jnp.abs(queries[:, None] - keys).astype(dtype)
        return -jnp.asarray(self.slopes(heads), dtype)[:, None, None] * distance


@dataclass(frozen=True)
class Alibi(DistancePenalty):
    """A penalty -slope_h |i - j| on the score (Press et al., 2022), slope_h = 2^(-8h/H). Unbounded in n."""

    def slopes(self, heads: int) -> Float[np.ndarray, " heads"]:
        """2^(-8h/H) for h = 1..H, float64."""
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)


@dataclass(frozen=True)
class PartialAlibi(DistancePenalty):
    """ALiBi in a fraction of each layer's heads, the first ones; the other heads have no penalty. Unbounded in n.

    The first G = fraction * H heads have the slopes 2^(-8h/G), h = 1..G, of a layer of G heads with `Alibi`. The whole
    fraction, 1, gives `Alibi`.
    """

    fraction: float = 0.5

    def slopes(self, heads: int) -> Float[np.ndarray, " heads"]:
        """2^(-8h/G) for h = 1..G, then 0, float64."""
        biased = _share(self.fraction, heads) or 0
        return np.pad(2.0 ** (-8.0 * np.arange(1, biased + 1) / biased), (0, heads - biased))

    def check(self, problems: Problems) -> None:
        _check_fraction(self, self.fraction, problems)

    def check_heads(self, heads: int, head_width: int, problems: Problems) -> None:
        del head_width
        if _share(self.fraction, heads) is None:
            problems.add("positions", self, f"a fraction of heads = {heads} that is a whole number of heads")


@dataclass(frozen=True)
class RelativeBias(ScoreBias):
    """A number of each head for each bucket of distances, learned, added to the score (Raffel et al., 2020, T5).

    Every layer has a table of its own, (heads, buckets), in `LayerParameters.relative_bias`; T5 shares one table
    between its layers, which copies of it reproduce. With `bidirectional`, half of the buckets are for keys ahead of
    the query. Of the M buckets of one side, the first E = M // 2 hold the distances 0..E-1; the others share
    logarithmically those below `max_distance`, and the last holds all beyond. Bounded: the table is finite.

    Attributes:
        buckets: the number of buckets, of both sides together.
        max_distance: the distance from which on all keys of a side share its last bucket.
        bidirectional: whether keys ahead have buckets of their own; if not, they share that of the query's own
            position, as in T5's decoder, whose mask hides them.
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    # The table is finite and does not depend on n.
    bounded: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        keep_plain(self, "buckets", "max_distance")

    @property
    def entries(self) -> int:
        return self.buckets

    @property
    def one_side(self) -> int:
        """M, the buckets of one side."""
        return self.buckets // 2 if self.bidirectional else self.buckets

    def by_distance(self) -> Int[np.ndarray, " distances"]:
        """The bucket, of one side, of each distance from 0 to `max_distance`.

        Distance d >= E is in bucket E + floor((M - E) log(d/E) / log(max_distance/E)), at most M - 1. The comparison is
        made between whole numbers, d^(M-E) E^m >= max_distance^m E^(M-E), so that no bucket depends on rounding.
        """
        exact, steps, longest = self.one_side // 2, self.one_side - self.one_side // 2, self.max_distance
        distances = np.arange(longest + 1)

        def first(step: int) -> int:
            """The smallest distance in bucket E + step."""
            least = longest**step * exact**steps
            return bisect_left(range(longest + 1), least, exact, key=lambda d: d**steps * exact**step)

        firsts = [first(step) for step in range(1, steps)]
        return np.minimum(distances, exact) + np.searchsorted(firsts, distances, side="right")

    def bucket(self, ahead: Indices) -> Indices:
        """The entry of the table for a key this number of positions ahead of the query; behind it, if negative."""
        xp: Any = jnp if isinstance(ahead, jax.Array) else np
        behind = xp.abs(ahead) if self.bidirectional else xp.maximum(-ahead, 0)
        buckets = xp.asarray(self.by_distance())[xp.minimum(behind, self.max_distance)]
        return buckets + self.one_side * (ahead > 0) if self.bidirectional else buckets

    def penalty(
        self, heads: int, queries: Places, keys: KeyPlaces, dtype: jnp.dtype, table: Entries | None = None
    ) -> ScoreTable | None:
        if table is None:
            raise TypeError("a relative bias needs its table")
        bucket = self.bucket(keys - queries[:, None])
        bucket = jnp.broadcast_to(bucket, (heads, *bucket.shape[-2:]))
        return jax.vmap(lambda row, which: row[which])(table, bucket).astype(dtype)

    def check(self, problems: Problems) -> None:
        if not isinstance(self.bidirectional, bool):
            problems.add("positions", self, "bidirectional = True or False")
        elif not is_count(self.buckets, 4 if self.bidirectional else 2):
            problems.add("positions", self, f"buckets of at least {4 if self.bidirectional else 2}")
        elif self.bidirectional and self.buckets % 2:
            problems.add("positions", self, "an even number of buckets, half of them for each side")
        elif not is_count(self.max_distance, self.one_side // 2 + 1):
            least = self.one_side // 2
            problems.add(
                "positions", self, f"a max_distance above {least}, the distances with their own bucket"
            )


def _share(fraction: float, total: int) -> int | None:
    """Returns a fraction of a whole number, or None if it is not a whole number of at least 1."""
    part = round(fraction * total)
    return part if part and abs(part - fraction * total) < 1e-9 * total else None


def _check_fraction(term: PartialRotary | PartialAlibi, fraction: object, problems: Problems) -> None:
    if isinstance(fraction, bool) or not (isinstance(fraction, int | float) and 0 < fraction <= 1):
        problems.add("positions", term, "a fraction above 0 and at most 1")


POSITION_TYPES: tuple[type[PositionTerm], ...] = (
    Component,
    Limb,
    Sinusoidal,
    Learned,
    Rotary,
    PartialRotary,
    Alibi,
    PartialAlibi,
    RelativeBias,
)
"""The terms that a config file can describe; a `TransformerConfig` takes `FunctionComponent`s too."""

POSITION_NAMES: dict[str, PositionTerm] = {
    "sinusoidal": Sinusoidal(),
    "learned": Learned(),
    "rotary": Rotary(),
    "partial-rotary": PartialRotary(),
    "alibi": Alibi(),
    "partial-alibi": PartialAlibi(),
    "relative-bias": RelativeBias(),
    **{name: Component(name) for name in COMPONENTS},
}
"""The named position embeddings; "none" is the empty tuple of terms."""
