"""The largest weighted average over all words: attention's support function, by fractional programming.

docs/bounds.md, "Weighted averages over all words", has F, its multiplier and the sum over heads. No Newton step, and no
multiplier, needs to be trusted: each of them gives a sound bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base.programs import numerics
from jaxsens.theory.certified.intervals import MARGIN, Ball, ball

STEPS = 4
"""Newton steps. The bound is then within a per mille of the root in the tests' cases."""

RENEWED = 3
"""Steps before these, each with a new multiplier, where words are restricted by counts; two fewer follow then."""

ON_HOST = 2**17
"""Up to this many products NumPy computes: compiling would take longer."""

TOGETHER = 64
"""How many payloads of one row are computed at once."""

SAMPLE = 96
"""How many keys the multiplier's quantile is taken from."""

HALVINGS = 10
"""Halvings of the gains' range in the search of that quantile."""

Either = np.ndarray | jax.Array
"""An array of NumPy, or of JAX where the same code is compiled."""


@dataclass(frozen=True)
class Counts:
    """The words in which the first symbol, of index 0, occurs from `least` to `most` times, of n positions."""

    least: int
    most: int
    n: int

    @property
    def restricts(self) -> bool:
        """Whether any word is left out."""
        return self.least > 0 or self.most < self.n


@dataclass(frozen=True)
class Weights:
    """Bounds on the unnormalised weights of rows, each divided by exp(shift). Several heads' have an axis before.

    Attributes:
        hi, lo: the bounds; 0 where a key is not visible, NaN where the symbol cannot stand there. hi is positive
            wherever a key is visible, also where exp underflows.
        shift: inf where scores overflowed, and nothing is known of the row's weights.
        counts: the class of words that is spoken of; None for all words.
    """

    hi: Float[np.ndarray, "*heads rows kinds n"]
    lo: Float[np.ndarray, "*heads rows kinds n"]
    shift: Float[np.ndarray, "*heads rows"]
    counts: Counts | None = None

    @classmethod
    def of_heads(cls, heads: Sequence[Weights]) -> Weights:
        """Those of several heads, for one class of words."""
        hi, lo, shift = (np.stack(part) for part in zip(*((e.hi, e.lo, e.shift) for e in heads), strict=True))
        return cls(hi, lo, shift, heads[0].counts)

    @cached_property
    def total(self) -> tuple[Float[np.ndarray, "*heads rows"], Float[np.ndarray, "*heads rows"]]:
        """`total_range`, computed once."""
        return total_range(self)


def average_sup(e: Weights, payload: Float[np.ndarray, "p rows_or_1 kinds n"]) -> Float[np.ndarray, "p rows"]:
    """An upper bound on the average of each payload in each row, over all words; 0 in a row that sees no key.

    `payload` holds upper bounds on what is averaged. O(p rows kinds n) operations for each of `STEPS` + 1 evaluations.
    """
    return _supports(Weights.of_heads([e]), payload[:, None])[0][:, 0]


def average_range(
    e: Weights, payload: Float[Ball, "heads n kinds p"]
) -> tuple[Float[Ball, "heads rows p"], Float[Ball, "rows p"]]:
    """The range, over all words, of averages of payloads that are themselves known up to a range.

    Of each head in each row, and of the sum over the heads.
    """
    p = payload.shape[-1]
    both = np.concatenate([payload.hi, -payload.lo], axis=-1)
    found = (np.moveaxis(part, 0, -1) for part in _supports(e, both.transpose(3, 0, 2, 1)[:, :, None]))
    each, total = (ball(-x[..., p:], x[..., :p]) for x in found)
    return each, total


def direction_range(
    e: Weights, u: Float[np.ndarray, "p heads rows width"], values: Float[np.ndarray, "heads kinds n width"]
) -> tuple[Float[Ball, "p heads rows"], Float[Ball, "p rows"]]:
    """The range of the average of u.v of each head in each row, and of the sum over the heads.

    The rounding of u.v is for the caller to add.
    """
    if 2 * e.hi.size * len(u) <= ON_HOST:
        each, total = _supports(e, np.einsum("phrc,hkmc->phrkm", np.concatenate([-u, u]), values))
        return ball(-each[: len(u)], each[len(u) :]), ball(-total[: len(u)], total[len(u) :])
    with numerics("float64"):
        found = _compiled_directions(e.hi, e.lo, e.total[1], u, values, *_restriction(e.counts))
        each, total = (ball(*map(np.asarray, ends)) for ends in found)
        return each, total


def _supports(
    e: Weights, payload: Float[np.ndarray, "p heads rows_or_1 kinds n"]
) -> tuple[Float[np.ndarray, "p heads rows"], Float[np.ndarray, "p rows"]]:
    """Upper bounds on the averages of each head and on their sum."""
    number, of_words = len(payload), (e.total[1], payload, *_restriction(e.counts))
    if e.hi.size * number <= ON_HOST:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            each, total = _heads_sup(np, e.hi, e.lo, *of_words)
            return np.asarray(each), np.asarray(total)
    with numerics("float64"):
        if e.hi.shape[1] > 1 or payload.shape[2] > 1:
            each, total = _compiled(e.hi, e.lo, *of_words)
            return np.asarray(each), np.asarray(total)
        # One row of weights, many payloads: these take the place of rows.
        one_row = payload[:, :, 0]
        filled = np.zeros((-(-number // TOGETHER) * TOGETHER, *one_row.shape[1:]))
        filled[:number] = one_row
        filled = filled.reshape(-1, TOGETHER, *one_row.shape[1:]).swapaxes(1, 2)
        each, total = map(np.asarray, _compiled(e.hi, e.lo, of_words[0], filled, *of_words[2:]))
        each = each.swapaxes(1, 2).reshape(-1, len(e.hi), 1)
        return each[:number], total.reshape(-1, 1)[:number]


def _restriction(counts: Counts | None) -> tuple[Float[np.ndarray, " 2"] | None, Int[np.ndarray, " sample"]]:
    """The limits of counts, None if these leave no word out, and the keys that the multiplier is taken from."""
    if counts is None or not counts.restricts:
        return None, np.zeros(1, int)
    sample = np.random.default_rng(0).choice(counts.n, size=min(SAMPLE, counts.n), replace=False)
    return np.array([counts.least, counts.most], float), np.sort(sample)


@jax.jit
def _compiled(
    e_hi: Any, e_lo: Any, z_hi: Any, payload: Any, limits: Any, sample: Any
) -> tuple[jax.Array, jax.Array]:
    def one(v: jax.Array) -> tuple[Any, Any]:
        each, total = _heads_sup(jnp, e_hi, e_lo, z_hi, v[None], limits, sample)
        return each[0], total[0]

    return jax.lax.map(one, payload)


@jax.jit
def _compiled_directions(
    e_hi: Any, e_lo: Any, z_hi: Any, u: Any, values: Any, limits: Any, sample: Any
) -> tuple[tuple[jax.Array, jax.Array], ...]:
    def one(direction: jax.Array) -> tuple[tuple[Any, Any], ...]:
        payload = jnp.einsum("hrc,hkmc->hrkm", direction, values)
        both = jnp.stack([-payload, payload])
        found = _heads_sup(jnp, e_hi, e_lo, z_hi, both, limits, sample)
        return tuple((-part[0], part[1]) for part in found)

    return jax.lax.map(one, u)


@dataclass(frozen=True)
class _Rows:
    """Rows of weights of each head and their payloads; t and what is returned have the shape (p, heads, rows).

    Attributes:
        xp: NumPy, or jax.numpy where the code is compiled.
        e_hi, e_lo, payload: see `Weights` and `average_sup`.
        limits: the fewest and the most occurrences of the first symbol; None for all words.
        sample: the keys that a multiplier is taken from.
    """

    xp: ModuleType
    e_hi: Float[Either, "heads rows kinds n"]
    e_lo: Float[Either, "heads rows kinds n"]
    payload: Float[Either, "p heads rows_or_1 kinds n"]
    limits: Float[Either, " 2"] | None
    sample: Int[Either, " sample"]

    def terms(self, t: Any, keys: Any = slice(None)) -> list[tuple[Any, Any]]:
        """Of every kind and key: max(e_hi (V - t), e_lo (V - t)), and the weight e that attains it."""
        found = []
        for tau in range(self.e_hi.shape[-2]):
            above = self.payload[..., tau, keys] - t[..., None]
            e = self.xp.where(above > 0, self.e_hi[..., tau, keys], self.e_lo[..., tau, keys])
            found.append((e * above, e))
        return found

    def F(self, t: Any, mu: Any = None) -> tuple[Any, Any]:
        """F(t) of docs/bounds.md, and how fast it falls; within the limits with a multiplier mu, else for all words."""
        return self.largest(self.terms(t), mu)

    def largest(self, terms: list[tuple[Any, Any]], mu: Any = None) -> tuple[Any, Any]:
        """The largest sum of each kind's terms over words, and the sum of what stands beside them."""
        xp, best, slope = self.xp, None, None
        for tau, (term, e) in enumerate(terms):
            term = term if mu is None or tau else term - mu[..., None]
            if best is None:
                best, slope = term, e
                continue
            better = (term > best) | xp.isnan(best)  # a symbol that cannot stand there has NaN
            best, slope = xp.where(better, term, best), xp.where(better, e, slope)
        value = xp.sum(best, axis=-1)
        if mu is not None and self.limits is not None:
            value = value + xp.maximum(mu * self.limits[0], mu * self.limits[1])
        return value, xp.sum(slope, axis=-1)

    def multiplier(self, terms: list[tuple[Any, Any]], limits: Any) -> Any:
        """The multiplier for the counts' limits, by the terms of some keys; 0 where neither limit binds."""
        xp, shares = self.xp, limits / self.e_hi.shape[-1]
        first, *others = (term for term, _ in terms)
        gain = first - reduce(xp.fmax, others)
        gain = xp.where(xp.isfinite(gain), gain, 0.0)
        size = gain.shape[-1]
        fewest, most = xp.round(shares[0] * size), xp.round(shares[1] * size)
        # With too many gains above 0 it is positive, with too few negative: the gain that exactly the limit reaches.
        many, few = xp.sum(gain > 0, axis=-1) > most, xp.sum(gain >= 0, axis=-1) < fewest
        target = xp.maximum(xp.where(many, most, fewest), 1.0)[..., None]
        low, high = xp.min(gain, axis=-1, keepdims=True), xp.max(gain, axis=-1, keepdims=True)
        for _ in range(HALVINGS):  # a sort would take most of the time
            middle = (low + high) / 2
            enough = xp.sum(gain >= middle, axis=-1, keepdims=True) >= target
            low, high = xp.where(enough, middle, low), xp.where(enough, high, middle)
        found = xp.min(xp.where(gain >= low, gain, high), axis=-1)
        return xp.where(many | few, found, 0.0)


def _heads_sup(xp: ModuleType, e_hi: Any, e_lo: Any, z_hi: Any, payload: Any, *words: Any) -> tuple[Any, Any]:
    """Upper bounds on each head's average and on their sum: (p, heads, rows) and (p, rows); `z_hi` is at least Z."""
    rows = _Rows(xp, e_hi, e_lo, payload, *words)
    each = _average_sup(rows)
    return each, each[:, 0] if len(e_hi) == 1 else _sum_sup(rows, each, z_hi)


def _sum_sup(rows: _Rows, each: Any, z_hi: Any) -> Any:
    """sum_h t_h + max over words of sum_h F_h(t_h) / Z_hi, for t_h = `each`, above which no word's average is."""
    xp, share = rows.xp, rows.xp.where(z_hi > 0, 1 / rows.xp.where(z_hi > 0, z_hi, 1.0), 0.0)

    def terms(keys: Any = slice(None)) -> list[tuple[Any, Any]]:
        parts = [term * share[..., None] for term, _ in rows.terms(each, keys)]
        return [(xp.sum(part, axis=-3), xp.sum(abs(part), axis=-3)) for part in parts]

    of_kinds = terms()
    value = rows.largest(of_kinds)[0]
    size = xp.sum(reduce(xp.fmax, [size for _, size in of_kinds]), axis=-1)
    if rows.limits is not None:
        mu = rows.multiplier(terms(rows.sample), rows.limits)
        value = xp.minimum(value, rows.largest(of_kinds, mu)[0])
        size = size + 2 * rows.e_hi.shape[-1] * abs(mu)
    # No word's sum is positive. Where numbers overflowed nothing is gained.
    gained = xp.minimum(xp.where(xp.isfinite(value), value + 4 * MARGIN * size, 0.0), 0.0)
    return xp.sum(each, axis=1) + gained + 4 * MARGIN * (xp.sum(abs(each), axis=1) + abs(gained))


def _average_sup(rows: _Rows) -> Any:
    """t + max(F(t), 0) / Z_lo after some Newton steps: (p, heads, rows)."""
    xp, e_hi, e_lo, payload, n = rows.xp, rows.e_hi, rows.e_lo, rows.payload, rows.e_hi.shape[-1]
    seen = e_hi > 0
    largest = xp.max(xp.where(seen, payload, -np.inf), axis=(-2, -1))
    smallest = xp.min(xp.where(seen, payload, np.inf), axis=(-2, -1))
    empty = ~xp.any(seen, axis=(-2, -1))
    largest, smallest = xp.where(empty, 0.0, largest), xp.where(empty, 0.0, smallest)
    z_lo = xp.sum(xp.min(xp.where(e_lo >= 0, e_lo, np.inf), axis=-2), axis=-1) * (1 - MARGIN)
    z_hi = xp.sum(xp.max(xp.where(e_hi >= 0, e_hi, 0.0), axis=-2), axis=-1)
    total = xp.sum(xp.where(seen, e_hi, 0.0), axis=(-2, -1))
    t = xp.sum(xp.where(seen, e_hi * payload, 0.0), axis=(-2, -1)) / xp.where(total > 0, total, 1.0)

    def newton(t: Any, mu: Any) -> tuple[Any, Any]:
        value, fall = rows.F(t, mu)
        moved = t + xp.where(fall > 0, value / xp.where(fall > 0, fall, 1.0), 0.0)
        return xp.clip(moved, smallest, largest), mu

    if rows.limits is None:
        t, _ = _repeat(xp, STEPS, newton, (t, None))
        value, size = rows.F(t)[0], 0.0
    else:
        limits, state = rows.limits, (t, xp.zeros_like(t))
        state = _repeat(
            xp, RENEWED, lambda t, _: newton(t, rows.multiplier(rows.terms(t, rows.sample), limits)), state
        )
        t, mu = _repeat(xp, STEPS - 2, newton, state)
        value, size = xp.minimum(rows.F(t)[0], rows.F(t, mu)[0]), 2 * n * abs(mu)
    excess = xp.maximum(value, 0.0) + MARGIN * (z_hi * (largest - smallest) + size)
    bound = t + xp.where(z_lo > 0, excess / xp.where(z_lo > 0, z_lo, 1.0), np.inf)
    return xp.where(empty, 0.0, xp.minimum(bound + MARGIN * abs(bound), largest))


def _repeat(xp: ModuleType, times: int, step: Callable[[Any, Any], tuple[Any, Any]], state: Any) -> Any:
    if xp is np:
        for _ in range(times):
            state = step(*state)
        return state
    # A loop and not copies of its body: it compiles sooner, and the body's operations are fused.
    return jax.lax.fori_loop(0, times, lambda _, carried: step(*carried), state)


def total_range(e: Weights) -> tuple[Float[np.ndarray, "*heads rows"], Float[np.ndarray, "*heads rows"]]:
    """Bounds, over all words, on the sum Z of a row's unnormalised weights: (lower, upper)."""
    counts = e.counts
    high = np.where(np.isnan(e.hi), -np.inf, e.hi)
    low = np.where(np.isnan(e.lo), np.inf, e.lo)
    upper, lower = high.max(axis=-2).sum(axis=-1), low.min(axis=-2).sum(axis=-1)
    if counts is not None and counts.restricts:
        upper = np.minimum(upper, _counted_sum(high, counts))
        lower = np.maximum(lower, -_counted_sum(-low, counts))
    return lower * (1 - MARGIN), upper * (1 + MARGIN)


def _counted_sum(
    f: Float[np.ndarray, "*heads rows kinds n"], counts: Counts
) -> Float[np.ndarray, "*heads rows"]:
    """The largest sum of f over words with such counts, by one multiplier a row."""
    own, others = f[..., 0, :], f[..., 1:, :].max(axis=-2)
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isfinite(own) & np.isfinite(others), own - others, 0.0)
    # The best multiplier for a count of at most k is the k-th largest gain.
    ordered = np.sort(gain, axis=-1)[:, ::-1]
    at_most, at_least = (ordered[..., min(max(k, 1), counts.n) - 1] for k in (counts.most, counts.least))
    mu = np.maximum(at_most, 0) * (counts.most < counts.n) + np.minimum(at_least, 0) * (counts.least > 0)
    best = np.maximum(own - mu[..., None], others).sum(axis=-1)
    best = best + np.maximum(mu * counts.least, mu * counts.most)
    size = np.where(np.isfinite(f), abs(f), 0.0).sum(axis=(-2, -1)) + 2 * counts.n * abs(mu)
    return best + MARGIN * size
