"""The largest weighted average over all words: attention's support function, by fractional programming.

A row of attention gives key m, when it holds symbol tau, the unnormalised weight e in [e_lo, e_hi] and the payload
v. Over all words the average sum e v / sum e is at most t if and only if

    F(t) = sum_m max_tau max(e_hi (v - t), e_lo (v - t)) <= 0 ,

for the positions' symbols may be chosen one by one. F is convex and falls at least as fast as Z_lo = sum_m min_tau
e_lo, so for *any* t, t + max(F(t), 0) / Z_lo is an upper bound: a few steps of Newton's method make it nearly equal
to the root, and no step needs to be trusted. Where e_lo = e_hi the root is attained: the bound is the exact
supremum.

Words with a number of occurrences of one symbol s between k1 and k2 have at most (Lagrange)

    F(t) = min over mu of sum_m max_tau (f_m,tau(t) - mu [tau = s]) + max(mu k1, mu k2) ,

and any mu gives a sound bound. The best one is the k-th largest of the gains f_m,s - max of the others; the
quantile of a fixed sample of the keys is near enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxsens.precision import numerics
from jaxsens.theory.certified.intervals import MARGIN

STEPS = 4
"""Newton steps before the closing one; the bound is then within a per mille of the root, as tests see it."""

RENEWED = 3
"""Steps before these at which a multiplier for counts is chosen anew; two less follow then."""

ON_HOST = 2**17
"""Below this many products NumPy is used: compiling would take longer."""


@dataclass(frozen=True)
class Counts:
    """The words in which the symbol of index `kind` occurs from `least` to `most` times, of n positions."""

    kind: int
    least: int
    most: int
    n: int

    @property
    def restricts(self) -> bool:
        """Whether any word is left out."""
        return self.least > 0 or self.most < self.n


TOGETHER = 64
"""How many payloads of one row are worked on at once."""

SAMPLE = 96
"""How many keys the multiplier's quantile is taken from."""

HALVINGS = 10
"""Halvings of the gains' range in which that quantile is searched."""


def average_sup(
    e_hi: Float[np.ndarray, "rows kinds n"],
    e_lo: Float[np.ndarray, "rows kinds n"],
    payload: Float[np.ndarray, "p rows_or_1 kinds n"],
    counts: Counts | None = None,
) -> Float[np.ndarray, "p rows"]:
    """An upper bound on the average of each payload in each row, over all words; 0 in a row that sees no key.

    Args:
        e_hi, e_lo: bounds of the unnormalised weights; 0 where the key is not visible, NaN where the symbol cannot
            stand there. e_hi is positive wherever a key is visible, also where exp underflows.
        payload: upper bounds of what is averaged.
        counts: only words with such counts.

    O(p rows kinds n) operations for each of `STEPS` + 1 evaluations.
    """
    limits, sample, restricted, kind = _restriction(counts)
    if e_hi.size * payload.shape[0] < ON_HOST:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return _average_sup(np, e_hi, e_lo, payload, limits, sample, restricted, kind)
    if len(e_hi) == 1 and payload.shape[1] == 1:
        # One row of weights, many payloads: these take the place of rows.
        number = len(payload)
        filled = np.zeros((-(-number // TOGETHER) * TOGETHER, *payload.shape[2:]))
        filled[:number] = payload[:, 0]
        filled = filled.reshape(-1, TOGETHER, *payload.shape[2:])
        with numerics("float64"):
            found = np.asarray(_compiled(e_hi, e_lo, filled, limits, sample, restricted, kind))
        return found.reshape(-1, 1)[:number]
    with numerics("float64"):
        return np.asarray(_compiled(e_hi, e_lo, payload, limits, sample, restricted, kind))


def direction_range(
    e_hi: Float[np.ndarray, "rows kinds n"],
    e_lo: Float[np.ndarray, "rows kinds n"],
    u: Float[np.ndarray, "p rows width"],
    values: Float[np.ndarray, "kinds n width"],
    counts: Counts | None = None,
) -> tuple[Float[np.ndarray, "p rows"], Float[np.ndarray, "p rows"]]:
    """Bounds of the average of u.v in each row: (lower, upper), but for the rounding of u.v."""
    limits, sample, restricted, kind = _restriction(counts)
    if e_hi.size * len(u) < ON_HOST:
        payload = (u @ values.reshape(-1, values.shape[-1]).T).reshape(*u.shape[:2], *values.shape[:2])
        return -average_sup(e_hi, e_lo, -payload, counts), average_sup(e_hi, e_lo, payload, counts)
    with numerics("float64"):
        ends = _ranges(e_hi, e_lo, u, values, limits, sample, restricted, kind)
        lower, upper = (np.asarray(end) for end in ends)
    return lower, upper


@partial(jax.jit, static_argnums=(6, 7))
def _ranges(
    e_hi: Any, e_lo: Any, u: Any, values: Any, limits: Any, sample: Any, restricted: bool, kind: int
) -> Any:
    def one(direction: Any) -> Any:
        payload = jnp.einsum("rc,kmc->rkm", direction, values)
        both = jnp.stack([-payload, payload])
        found = _average_sup(jnp, e_hi, e_lo, both, limits, sample, restricted, kind)
        return -found[0], found[1]

    return jax.lax.map(one, u)


def _restriction(counts: Counts | None) -> tuple[np.ndarray, np.ndarray, bool, int]:
    """The limits of counts, the keys that the multiplier is taken from, whether any word is left out, and the kind."""
    if counts is None or not counts.restricts:
        return np.zeros(2), np.zeros(1, int), False, 0
    sample = np.random.default_rng(0).choice(counts.n, size=min(SAMPLE, counts.n), replace=False)
    return np.array([counts.least, counts.most], float), np.sort(sample), True, counts.kind


@partial(jax.jit, static_argnums=(5, 6))
def _compiled(
    e_hi: Any, e_lo: Any, payload: Any, limits: Any, sample: Any, restricted: bool, kind: int
) -> Any:
    def one(v: Any) -> Any:
        return _average_sup(jnp, e_hi, e_lo, v[None], limits, sample, restricted, kind)[0]

    return jax.lax.map(one, payload)


def _average_sup(
    xp: Any, e_hi: Any, e_lo: Any, payload: Any, limits: Any, sample: Any, restricted: bool, kind: int
) -> Any:
    seen = e_hi > 0
    largest = xp.max(xp.where(seen, payload, -np.inf), axis=(-2, -1))
    smallest = xp.min(xp.where(seen, payload, np.inf), axis=(-2, -1))
    empty = ~xp.any(seen, axis=(-2, -1))
    largest, smallest = xp.where(empty, 0.0, largest), xp.where(empty, 0.0, smallest)
    least = xp.sum(xp.min(xp.where(e_lo >= 0, e_lo, np.inf), axis=-2), axis=-1) * (1 - MARGIN)
    most = xp.sum(xp.max(xp.where(e_hi >= 0, e_hi, 0.0), axis=-2), axis=-1)
    total = xp.sum(xp.where(seen, e_hi, 0.0), axis=(-2, -1))
    t = xp.sum(xp.where(seen, e_hi * payload, 0.0), axis=(-2, -1)) / xp.where(total > 0, total, 1.0)
    kinds, n = e_hi.shape[-2:]

    def terms(t: Any, at: Any) -> tuple[list[Any], list[Any]]:
        f, weights = [], []
        for tau in range(kinds):
            above = payload[..., tau, at] - t[..., None]
            e = xp.where(above > 0, e_hi[..., tau, at], e_lo[..., tau, at])
            f.append(e * above)
            weights.append(e)
        return f, weights

    def step(t: Any, mu: Any) -> tuple[Any, Any]:
        best, slope = _choose(xp, *terms(t, slice(None)), kind if restricted else None, mu)
        value, fall = xp.sum(best, axis=-1), xp.sum(slope, axis=-1)
        if restricted:
            value = value + xp.maximum(mu * limits[0], mu * limits[1])
        moved = t + xp.where(fall > 0, value / xp.where(fall > 0, fall, 1.0), 0.0)
        return xp.clip(moved, smallest, largest), mu

    def renewed(t: Any, mu: Any) -> tuple[Any, Any]:
        return step(t, _multiplier(xp, terms(t, sample)[0], kind, limits / n))

    state = t, xp.zeros_like(t)
    if restricted:
        state = _repeat(xp, RENEWED, renewed, state)
    t, mu = _repeat(xp, STEPS - 2 * restricted, step, state)
    f, weights = terms(t, slice(None))
    value = xp.sum(_choose(xp, f, weights, None, mu)[0], axis=-1)
    if restricted:
        counted = xp.sum(_choose(xp, f, weights, kind, mu)[0], axis=-1)
        value = xp.minimum(value, counted + xp.maximum(mu * limits[0], mu * limits[1]))
    rounding = MARGIN * (most * (largest - smallest) + 2 * n * abs(mu))
    excess = xp.maximum(value, 0.0) + rounding
    bound = t + xp.where(least > 0, excess / xp.where(least > 0, least, 1.0), np.inf)
    return xp.where(empty, 0.0, xp.minimum(bound + MARGIN * abs(bound), largest))


def _repeat(xp: Any, times: int, step: Any, state: Any) -> Any:
    if xp is np:
        for _ in range(times):
            state = step(*state)
        return state
    # A loop, not copies of its body: the compiler fuses the body's operations, and is done sooner.
    return jax.lax.fori_loop(0, times, lambda _, carried: step(*carried), state)


def _choose(xp: Any, f: list[Any], slopes: list[Any], kind: int | None, mu: Any) -> tuple[Any, Any]:
    """Every key's best symbol: its term of F and its weight."""
    best, slope = None, None
    for tau, candidate in enumerate(f):
        term = candidate - mu[..., None] if tau == kind else candidate
        if best is None:
            best, slope = term, slopes[tau]
            continue
        better = (term > best) | xp.isnan(best)
        best, slope = xp.where(better, term, best), xp.where(better, slopes[tau], slope)
    return best, slope


def _multiplier(xp: Any, f: list[Any], kind: int, shares: Any) -> Any:
    """The multiplier for counts of at least and at most these shares of all keys; 0 where neither binds."""
    others = None
    for tau, candidate in enumerate(f):
        if tau != kind:
            others = candidate if others is None else xp.fmax(others, candidate)
    gain = f[kind] - others
    gain = xp.where(xp.isfinite(gain), gain, 0.0)
    size = gain.shape[-1]
    fewest, most = xp.round(shares[0] * size), xp.round(shares[1] * size)
    # Too many gains above 0 make it positive, too few negative; it is the gain that so many keys reach.
    many, few = xp.sum(gain > 0, axis=-1) > most, xp.sum(gain >= 0, axis=-1) < fewest
    target = xp.maximum(xp.where(many, most, fewest), 1.0)[..., None]
    low, high = xp.min(gain, axis=-1, keepdims=True), xp.max(gain, axis=-1, keepdims=True)
    for _ in range(HALVINGS):  # a sort would take most of the time
        middle = (low + high) / 2
        enough = xp.sum(gain >= middle, axis=-1, keepdims=True) >= target
        low, high = xp.where(enough, middle, low), xp.where(enough, high, middle)
    found = xp.min(xp.where(gain >= low, gain, high), axis=-1)
    return xp.where(many | few, found, 0.0)


def total_range(
    e_hi: Float[np.ndarray, "rows kinds n"],
    e_lo: Float[np.ndarray, "rows kinds n"],
    counts: Counts | None = None,
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """Bounds, over all words, of the sum of a row's unnormalised weights: (lower, upper)."""
    high = np.where(np.isnan(e_hi), -np.inf, e_hi)
    low = np.where(np.isnan(e_lo), np.inf, e_lo)
    upper, lower = high.max(axis=1).sum(axis=-1), low.min(axis=1).sum(axis=-1)
    if counts is not None and counts.restricts:
        upper = np.minimum(upper, _counted(high, counts))
        lower = np.maximum(lower, -_counted(-low, counts))
    return lower * (1 - MARGIN), upper * (1 + MARGIN)


def _counted(f: np.ndarray, counts: Counts) -> np.ndarray:
    """The largest sum of f over words with such counts, by one multiplier a row."""
    others = np.delete(f, counts.kind, axis=1).max(axis=1)
    own = f[:, counts.kind]
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isfinite(own) & np.isfinite(others), own - others, 0.0)
    # The k-th largest gain is the best multiplier for a count of at most k: no word does better than with it.
    ordered = np.sort(gain, axis=-1)[:, ::-1]
    at = [min(max(k, 1), counts.n) - 1 for k in (counts.most, counts.least)]
    mu = np.maximum(ordered[:, at[0]], 0) * (counts.most < counts.n) + np.minimum(ordered[:, at[1]], 0) * (
        counts.least > 0
    )
    best = np.maximum(own - mu[:, None], others).sum(axis=-1) + np.maximum(
        mu * counts.least, mu * counts.most
    )
    size = np.where(np.isfinite(f), abs(f), 0.0).sum(axis=(1, 2)) + 2 * counts.n * abs(mu)
    return best + MARGIN * size
