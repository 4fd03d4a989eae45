"""Attention masks: the keys that a query may see."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import collecting, no_rule, rule_for
from jaxsens.core.models.parts.choices import Part

Position = int | Int[Array, ""]
Span = tuple[Position, Position]
"""The first of some successive positions, and the one after the last: known when compiling, or computed."""


class Sides:
    """What follows from the sides on which a query may see keys: `earlier` and `later`."""

    earlier: bool
    """Whether a query may see a later key, so that a key can change earlier rows."""
    later: bool
    """Whether a query may see an earlier key, so that a key can change later rows."""

    @property
    def one_sided(self) -> bool:
        """Whether no query sees keys on one of its sides."""
        return not (self.earlier and self.later)

    def rows_that_see(self, keys: Span, n: int) -> Span:
        """Returns the rows, of n, outside of which none sees a key of the span."""
        return (0 if self.earlier else keys[0]), (n if self.later else keys[1])


@dataclass(frozen=True)
class KeyMask(Sides):
    """The keys that a query may see, and so the rows that can change when one key does.

    Attributes:
        sees: maps query and key positions, which broadcast, to whether the query sees the key.
        earlier, later: as for `Sides`.
    """

    sees: Callable[[Array, Array], Bool[Array, "*b"]]
    earlier: bool
    later: bool


MASKS: dict[str, KeyMask] = {
    "none": KeyMask(
        lambda queries, keys: jnp.ones(jnp.broadcast_shapes(jnp.shape(queries), jnp.shape(keys)), dtype=bool),
        earlier=True,
        later=True,
    ),
    "future": KeyMask(lambda queries, keys: keys <= queries, earlier=False, later=True),
    "past": KeyMask(lambda queries, keys: keys >= queries, earlier=True, later=False),
    "strict-future": KeyMask(lambda queries, keys: keys < queries, earlier=False, later=True),
    "strict-past": KeyMask(lambda queries, keys: keys > queries, earlier=True, later=False),
}
"""The masks by name. The non-strict ones are those of Yang et al. (2026), section 2. A row that sees no key, as
the first or the last of a strict mask, gets weight 0 on every key, so its head's output is the zero vector."""


class TypedMask(Part, Sides):
    """A mask with parameters: a typed value instead of a name. It behaves as a `KeyMask` does."""

    @abc.abstractmethod
    def sees(self, queries: Int[Array, "*#b"], keys: Int[Array, "*#b"]) -> Bool[Array, "*#b"]:
        """Returns whether each query position sees each key position; the two arrays broadcast."""


WIDEST_WINDOW = 2**30
"""The largest width of a `SlidingWindow`: the sum of a position and a width is an int32."""


def _check_window(mask: TypedMask, field: str, least: int, unlimited: str) -> None:
    """Makes a window's size a plain number, and rejects an unusable one. `unlimited` is the mask without a limit."""
    inputs.keep_plain(mask, field)
    with collecting(type(mask).__name__) as problems:
        size = inputs.count(field, getattr(mask, field), problems, least=least)
        if size > WIDEST_WINDOW:
            problems.add(field, size, f'at most {WIDEST_WINDOW}; "{unlimited}" is the mask without a limit')


def _at_least_0(position: Position) -> Position:
    return max(0, position) if isinstance(position, int) else jnp.maximum(0, position)


def _at_most(n: int, position: Position) -> Position:
    return min(n, position) if isinstance(position, int) else jnp.minimum(n, position)


@dataclass(frozen=True)
class SlidingWindow(TypedMask):
    """The future is masked, and so is what lies `width` or more positions back (Beltagy et al., 2020; Mistral 7B).

    A mask of `TransformerConfig` and of `jaxsens.Attention`. In L layers a flip reaches L (width - 1) rows ahead.

    Attributes:
        width: the number of keys that a row sees, itself included; from 1 to `WIDEST_WINDOW`.

    Raises:
        InputError: for another width.
    """

    width: int
    earlier = False
    later = True

    def __post_init__(self) -> None:
        _check_window(self, "width", 1, "future")

    def sees(self, queries: Int[Array, "*#b"], keys: Int[Array, "*#b"]) -> Bool[Array, "*#b"]:
        return (keys <= queries) & (keys > queries - self.width)

    def rows_that_see(self, keys: Span, n: int) -> Span:
        return keys[0], _at_most(n, keys[1] + self.width - 1)


@dataclass(frozen=True)
class TwoSidedWindow(TypedMask):
    """A row sees the keys at most `reach` positions away (Beltagy et al., 2020, as encoders have it).

    A mask of `TransformerConfig` and of `jaxsens.Attention`. In L layers a flip reaches L reach rows to either side.
    Rules of `jaxsens.theory` refuse it by name.

    Attributes:
        reach: from 0, for the row itself alone, to `WIDEST_WINDOW`.

    Raises:
        InputError: for another reach.
    """

    reach: int

    def __post_init__(self) -> None:
        _check_window(self, "reach", 0, "none")

    @property
    def earlier(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a row sees later keys: unless it sees itself alone."""
        return self.reach > 0

    later = earlier  # pyright: ignore[reportAssignmentType]

    def sees(self, queries: Int[Array, "*#b"], keys: Int[Array, "*#b"]) -> Bool[Array, "*#b"]:
        return jnp.abs(queries - keys) <= self.reach

    def rows_that_see(self, keys: Span, n: int) -> Span:
        return _at_least_0(keys[0] - self.reach), _at_most(n, keys[1] + self.reach)


MASK_TYPES: tuple[type[TypedMask], ...] = (SlidingWindow, TwoSidedWindow)
"""The masks with parameters that a config file can describe."""

AnyMask = str | TypedMask
"""A mask as configs give it: a name of `MASKS`, or a typed value."""


def mask_of(consumer: str, mask: AnyMask) -> KeyMask | TypedMask:
    """Returns the mask that a config names or holds.

    Raises:
        InputError: that `consumer` does not know it.
    """
    match mask:
        case TypedMask():
            return mask
        case str():
            return rule_for(consumer, "mask", mask, MASKS)
        case _:
            raise no_rule(consumer, "mask", mask, (*MASKS, *MASK_TYPES))


def kind_of_mask(mask: AnyMask) -> str | type[TypedMask]:
    """Returns what rules know the mask by: its name, or its class."""
    return type(mask) if isinstance(mask, TypedMask) else mask


def visible(mask: AnyMask, queries: Int[Array, "*q"], keys: Int[Array, "*k"]) -> Bool[Array, "*b"]:
    """Returns whether each key position is visible to each query position; the two arrays broadcast."""
    return mask_of("attention", mask).sees(queries, keys)
