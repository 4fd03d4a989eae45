"""Weighting functions, which turn a row of scores into a row of attention weights.

They are softmax at temperature tau and leftmost, rightmost and average hardmax (Yang et al. 2026, definitions 2 and 3),
sparsemax (Martins and Astudillo, 2016), alpha-entmax, softmax with a sink, softmax whose temperature depends on a row's
entropy, and sigmoid attention. The hard ones are exactly hard: weights are 0, 1 or 1/|ties|. docs/weightings.md lists
them, and docs/attention-variants.md derives what Lemma 5 says of each.

alpha-entmax (Peters, Niculae and Martins, 2019, eq. 5) gives key j the weight [z_j - tau]_+^(1/(alpha - 1)) with
z = (alpha - 1) s and the tau at which the weights sum to 1. alpha = 2 is sparsemax (Martins and Astudillo, 2016), and
softmax is the limit at alpha = 1. Here the largest z of every row is 0, so tau lies in [-1, 0): at tau = -1 the best
key alone has the weight 1. A key with z <= -1 never has any, so `FLOOR` can replace such a score, which keeps sums
finite.
"""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import InputError, Problems, collecting, no_rule
from jaxsens.core.base.inputs import choice
from jaxsens.core.base.strict import checked_by, later, with_fields
from jaxsens.core.models.parts.choices import Part, quotients, weighted_sums
from jaxsens.core.models.parts.schedules import SCHEDULES, Schedule

FLOOR = -2.0


def entmax_shares(z: Float[Array, "*rows keys"], alpha: float) -> Float[Array, "*rows keys"]:
    """Returns alpha-entmax weights, up to rounding, of rows whose largest score is 0; -inf marks invisible keys.

    tau comes from the sorted scores at alpha = 1.5 and 2, where it has a closed form for each support, and from
    bisection otherwise. A Newton step then removes most of its rounding, and gives it the derivative that the implicit
    equation sum_j [z_j - tau]_+^(1/(alpha - 1)) = 1 gives; sorting and bisection are not differentiated.

    O(keys log keys) a row, or one power a key for each bit of the dtype.
    """
    z, power = jnp.maximum(z, FLOOR), 1 / (alpha - 1)
    fixed = jax.lax.stop_gradient(z)
    match alpha:
        case 2.0:
            start = sparsemax_threshold(fixed)
        case 1.5:
            start = _of_entmax_15(fixed)
        case _:
            start = _bisected(fixed, power)
    above = z - start
    slope = jnp.sum(jnp.where(above > 0, jnp.maximum(above, 0) ** (power - 1), 0), axis=-1, keepdims=True)
    slope = jax.lax.stop_gradient(jnp.where(slope > 0, power * slope, 1))
    tau = start + (jnp.sum(_weights(above, power), axis=-1, keepdims=True) - 1) / slope
    return _weights(z - tau, power)


def _weights(above: Float[Array, "*rows keys"], power: float) -> Float[Array, "*rows keys"]:
    """[x]_+^power; the derivative at 0 and below is 0. NaN stays NaN."""
    inside = ~(above <= 0)
    return jnp.where(inside, jnp.where(inside, above, 1) ** power, 0)


def sparsemax_threshold(z: Float[Array, "*rows keys"]) -> Float[Array, "*rows 1"]:
    """Returns tau of sparsemax for rows whose largest score is 0.

    The support is the longest prefix of the sorted scores with 1 + k z_(k) > sum_{m <= k} z_(m).
    """
    ordered, rank = _ordered(jnp.maximum(z, FLOOR))
    inside = 1 + rank * ordered > jnp.cumsum(ordered, axis=-1)
    size = jnp.maximum(jnp.sum(inside, axis=-1, keepdims=True), 1)
    return (jnp.sum(jnp.where(inside, ordered, 0), axis=-1, keepdims=True) - 1) / size


def _of_entmax_15(z: Float[Array, "*rows keys"]) -> Float[Array, "*rows 1"]:
    """Peters et al. (2019), algorithm 2: with M and S the mean and the sum of squared deviations of the k best scores,
    tau = M - sqrt((1 - S) / k), for the largest k whose tau is at most z_(k)."""
    ordered, rank = _ordered(z)
    mean = jnp.cumsum(ordered, axis=-1) / rank
    deviations = jnp.cumsum(ordered**2, axis=-1) - rank * mean**2
    tau = mean - jnp.sqrt(jnp.maximum(1 - deviations, 0) / rank)
    size = jnp.maximum(jnp.sum(tau <= ordered, axis=-1, keepdims=True), 1)
    return jnp.take_along_axis(tau, size - 1, axis=-1)


def _ordered(z: Float[Array, "*rows keys"]) -> tuple[Float[Array, "*rows keys"], Float[Array, " keys"]]:
    return jnp.sort(z, axis=-1)[..., ::-1], jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)


def _bisected(z: Float[Array, "*rows keys"], power: float) -> Float[Array, "*rows 1"]:
    """The sum of the weights falls in tau, from at least 1 at -1 to 0 at 0."""

    def halve(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        low, step = carry
        total = jnp.sum(_weights(z - (low + step), power), axis=-1, keepdims=True)
        return jnp.where(total >= 1, low + step, low), step / 2

    start = jnp.full((*z.shape[:-1], 1), -1, z.dtype), jnp.asarray(0.5, z.dtype)
    return jax.lax.fori_loop(0, jnp.finfo(z.dtype).nmant + 1, halve, start)[0]


Keys: TypeAlias = Float[Array, "*rows keys"]
"""A number for each key of some rows: scores, shares or weights."""

Seen: TypeAlias = Bool[Array, "*rows keys"]
"""Whether each row sees each key."""

Shares: TypeAlias = tuple[Keys, Float[Array, "*rows 1"]]
"""What keys' weights are proportional to, and what divides it."""

Places: TypeAlias = Int[Array, " m"]
"""The positions of queries, 0-based."""

OfHeads: TypeAlias = Float[Array, "heads m k"]
"""Scores of heads, queries and keys."""


def _finite_numbers(name: str, value: Any, problems: Problems) -> tuple[float, ...]:
    """Checks a tuple, or a list of a config file, of at least one finite number."""
    if not isinstance(value, tuple | list) or not value or not all(map(_is_finite, value)):
        problems.add(name, value, "finite numbers, at least one")
        return ()
    return tuple(float(one) for one in value)


@dataclass(frozen=True)
class Weighting(Part):
    """A weighting function. A member defines everything a forward pass needs: `shares`, `hard`, its temperature."""

    @property
    @abc.abstractmethod
    def hard(self) -> bool:
        """Whether the weights jump when scores tie, so that equal keys must get bitwise equal scores."""

    @property
    def temperature(self) -> str:
        """tau as a function of n, "1/n", or of the query's position i; "hard" for hard attention, or "none"."""
        if not isinstance(self, Tempered):
            return "hard" if self.hard else "none"
        inverse = str(self.inverse_temperature)
        factors = re.search(r"[\dn] ", inverse)  # or terms
        formula = "1" if inverse == "1" else f"1/({inverse})" if factors else f"1/{inverse}"
        formula = formula if self.by == "length" else re.sub(r"\bn\b", "i", formula)
        return f"{formula} and by entropy" if isinstance(self, AdaptiveSoftmax) else formula

    @abc.abstractmethod
    def shares(self, scores: Keys, visible: Seen) -> Shares:
        """Returns shares, to which the keys' weights are proportional, and the divisor that turns them into weights.

        Invisible keys have shares of 0. A row without visible keys has shares of 0 and a divisor of 1. Every share is a
        sum of non-negative terms, so nothing cancels. The divisor need not be the sum of the shares: weights may sum to
        less than 1, as with a sink, or to anything, as those of sigmoid attention.
        """

    def tempered(self, scores: OfHeads, query_positions: Places, n: int) -> OfHeads:
        """Returns the scores divided by the temperature of each query's row (0-based), if there is a temperature."""
        del query_positions, n
        return scores

    def log_normaliser(self, scores: Keys, visible: Seen) -> Float[Array, "*rows"]:
        """Returns log sum_j exp(s_j) over the visible keys, which tells how large scores are even if no weight depends
        on it; 0 for a row that sees none, and if `hard`."""
        return _log_sum(scores, visible)


@dataclass(frozen=True)
class Tempered(Weighting):
    """A weighting, continuous in the scores, whose scores are first multiplied by 1/tau.

    `inverse_temperature` is 1/tau as a function of the length. `by` selects that length: "length" is n, the input's;
    "query" is the 1-based position of the query, as required for a decoder that does not know n.
    """

    inverse_temperature: Schedule = Schedule()
    by: Literal["length", "query"] = "length"
    hard: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        with collecting(type(self).__name__) as problems:
            if not isinstance(self.inverse_temperature, Schedule):
                problems.add(
                    "inverse_temperature", self.inverse_temperature, "a Schedule, such as SCHEDULES['log']"
                )
            choice("by", self.by, ("length", "query"), problems)
            self._check(problems)

    def _check(self, problems: Problems) -> None:
        """Adds the errors in the fields of the member."""

    @property
    def bounded(self) -> bool:
        """Whether 1/tau stays bounded as n grows, as Hahn's Lemma 5 requires."""
        return self.inverse_temperature.bounded

    def log_share(self, n: int) -> float:
        """Returns the log of the order of what one of n keys contributes, as a part of what the row attends to or, if
        that is less than 1, of 1. Scores are taken to be of order 1: -log n, unless what is added to them is large."""
        return -math.log(n)

    def inverse_temperatures(self, query_positions: Places, n: int, dtype: jnp.dtype) -> Float[Array, " m"]:
        """Returns 1/tau of each query's row, 0-based, in an input of length n."""
        return self._of_rows(self.inverse_temperature, query_positions, n, dtype)

    def _of_rows(
        self, schedule: Callable[[np.ndarray | int], np.ndarray], rows: Places, n: int, dtype: jnp.dtype
    ) -> Float[Array, " m"]:
        if self.by == "length":
            return jnp.full(rows.shape, schedule(n), dtype)
        return jnp.asarray(schedule(np.arange(1, n + 1)), dtype)[rows]

    def tempered(self, scores: OfHeads, query_positions: Places, n: int) -> OfHeads:
        return scores * self.inverse_temperatures(query_positions, n, scores.dtype)[:, None]


@dataclass(frozen=True)
class Softmax(Tempered):
    """softmax(s / tau): the weight of key j is proportional to exp(s_j / tau).

    >>> Softmax(SCHEDULES["log"]).inverse_temperature.log_power
    1.0
    """

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        """Returns exp(s_j - max s) of tempered scores, and their sum."""
        unnormalised, _ = _powers(scores, visible)
        total = jnp.sum(unnormalised, axis=-1, keepdims=True)
        return unnormalised, jnp.where(total > 0, total, 1)


@dataclass(frozen=True)
class SinkSoftmax(Tempered):
    """Softmax with a sink: the weight of key j is exp(s_j / tau) / (exp(logit) + sum_w exp(s_w / tau)).

    The sink is a key that every row sees, with the value 0 and a score that no symbol moves: a row's weights sum to
    less than 1. With the logit 0 this is softmax off by one (Miller, "Attention is off by one", 2023). The temperature
    does not apply to the logit. A row that sees no key has weights of 0.

    A `learned` sink has a score in every head, which is a parameter of the layer (`LayerParameters.sink`) and starts at
    `logit`, as in gpt-oss (arXiv 2508.10925). Its weights are those of `at_sink`.
    """

    logit: float = 0.0
    learned: bool = later(False)

    def _check(self, problems: Problems) -> None:
        if not _is_finite(self.logit):
            problems.add("logit", self.logit, "a finite number")
        if not isinstance(self.learned, bool):
            problems.add("learned", self.learned, "true or false")

    @property
    def score(self) -> Any:
        """The sink's score: a number, or what `at_sink` was given.

        Raises:
            InputError: for a learned sink without its parameter, as in a model that has none.
        """
        if self.learned:
            raise InputError.of(
                "learned",
                True,
                "its score is a parameter, which layers of a jaxsens transformer have; "
                "in other models give a fixed logit",
                subject="SinkSoftmax",
            )
        return self.logit

    def at_sink(self, scores: Float[Any, "*rows"]) -> SinkSoftmax:
        """Returns it with the scores that the parameters hold: (heads, 1, 1) of all heads, or () of one."""
        return with_fields(self, learned=False, logit=scores)  # they may be traced

    def log_share(self, n: int) -> float:
        """Returns -log n, or less the sink's largest score if that is less: the sink then takes nearly everything."""
        return min(super().log_share(n), -float(np.max(self.score)))

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        """Returns exp(s_j - m) and their sum with the sink's, where m is the largest of the scores and the sink's."""
        unnormalised, largest = _powers(scores, visible, self.score)
        return unnormalised, jnp.sum(unnormalised, axis=-1, keepdims=True) + jnp.exp(self.score - largest)

    def log_normaliser(self, scores: Keys, visible: Seen) -> Float[Array, "*rows"]:
        """Returns log (exp(score) + sum_j exp(s_j)) over the visible keys; 0 for a row that sees none."""
        total = jnp.logaddexp(_log_sum(scores, visible)[..., None], jnp.asarray(self.score, scores.dtype))
        return jnp.where(jnp.any(visible, axis=-1), total[..., 0], 0)


@dataclass(frozen=True)
class AdaptiveSoftmax(Tempered):
    """Softmax at a temperature that depends on the row's entropy (Velickovic et al. 2024, arXiv 2410.01104, figure 6).

    With H the Shannon entropy, in nats, of softmax(s / tau), the weights are softmax(beta s / tau), where beta is
    max(1, polynomial(H)) if H exceeds `least_entropy`, and 1 otherwise: rows are sharpened, never flattened, and rows
    that are sharp already are left alone. The paper adds 1e-9 within the logarithm of the entropy; this does not.

    Attributes:
        polynomial: the coefficients, of the highest power first. The paper fitted the default.
        least_entropy: in nats. The polynomial must not exceed 1 there, or weights would jump.
    """

    polynomial: Annotated[tuple[float, ...], checked_by(_finite_numbers)] = (
        -0.037,
        0.481,
        -2.3,
        4.917,
        -1.791,
    )
    least_entropy: float = 0.5

    def _check(self, problems: Problems) -> None:
        polynomial = _finite_numbers("polynomial", self.polynomial, problems)
        object.__setattr__(self, "polynomial", polynomial)  # a list would not be hashable
        if not _is_finite(self.least_entropy) or self.least_entropy < 0:
            problems.add("least_entropy", self.least_entropy, "a finite number of at least 0")
        elif not problems and np.polyval(polynomial, self.least_entropy) > 1:
            remedy = (
                "coefficients whose polynomial is at most 1 at least_entropy, or weights would jump there"
            )
            problems.add("polynomial", polynomial, remedy)

    @property
    def bounded(self) -> bool:
        """Whether beta/tau stays bounded as n grows, and with it the entropy: the polynomial must not grow."""
        leading = np.trim_zeros(self.polynomial, "f")
        return self.inverse_temperature.bounded and (len(leading) <= 1 or leading[0] < 0)

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        """Returns the shares of softmax, of tempered scores times beta."""
        return Softmax().shares(self._sharpened(scores, visible), visible)

    def log_normaliser(self, scores: Keys, visible: Seen) -> Float[Array, "*rows"]:
        """Returns log sum_j exp(beta s_j) over the visible keys; 0 for a row that sees none."""
        return _log_sum(self._sharpened(scores, visible), visible)

    def _sharpened(self, scores: Keys, visible: Seen) -> Keys:
        shares, total = Softmax().shares(scores, visible)
        p = shares / total
        entropy = -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1)), axis=-1, keepdims=True)
        beta = jnp.polyval(jnp.asarray(self.polynomial, scores.dtype), entropy)
        return scores * jnp.where(entropy > self.least_entropy, jnp.maximum(beta, 1), 1)


@dataclass(frozen=True)
class Sigmoid(Tempered):
    """The weight of key j is sigmoid(s_j / tau + bias + log_bias log n): no other key enters, and nothing normalises.

    With `bias` 0 and `log_bias` 0 the weights of a row sum to about n/2; with `log_bias` -1 to about 1, as of softmax
    (Ramapuram et al. 2024, arXiv 2409.04431). With `by` "query" the logarithm is that of the query's 1-based position.
    """

    bias: float = 0.0
    log_bias: float = 0.0

    def _check(self, problems: Problems) -> None:
        for name in ("bias", "log_bias"):
            if not _is_finite(getattr(self, name)):
                problems.add(name, getattr(self, name), "a finite number")

    def log_share(self, n: int) -> float:
        """Returns -log n, or bias + log_bias log n if less: the log of a small weight."""
        return min(super().log_share(n), self.bias + self.log_bias * math.log(n))

    def biases(self, query_positions: Places, n: int, dtype: jnp.dtype) -> Float[Array, " m"]:
        """Returns what is added to the scores of each query's row, 0-based, in an input of length n."""
        return self._of_rows(
            lambda length: self.bias + self.log_bias * np.log(length), query_positions, n, dtype
        )

    def tempered(self, scores: OfHeads, query_positions: Places, n: int) -> OfHeads:
        biases = self.biases(query_positions, n, scores.dtype)[:, None]
        return super().tempered(scores, query_positions, n) + biases

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        shares = jnp.where(visible, jax.nn.sigmoid(scores), 0)
        return shares, jnp.ones((*shares.shape[:-1], 1), shares.dtype)


@dataclass(frozen=True)
class HardWeighting(Weighting):
    """Equal weight on some of the keys with the largest score, which members choose in `winners`."""

    hard: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleMethodOverride]

    @abc.abstractmethod
    def winners(self, ties: Seen) -> Seen:
        """Returns the keys that get weight among `ties`, those with the largest score; none if there are none."""

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        masked, best = _masked(scores, visible)
        chosen = self.winners((masked == best) & visible).astype(scores.dtype)
        # A NaN score makes its row NaN, as under softmax; comparisons would not notice it.
        chosen = jnp.where(jnp.isnan(best), jnp.nan, chosen)
        return chosen, jnp.maximum(jnp.sum(chosen, axis=-1, keepdims=True), 1)

    def log_normaliser(self, scores: Keys, visible: Seen) -> Float[Array, "*rows"]:
        del visible
        return jnp.zeros(scores.shape[:-1], scores.dtype)


@dataclass(frozen=True)
class LeftmostHard(HardWeighting):
    """All weight on the first key with the largest score (Yang et al., lhardmax; Hahn's hard attention)."""

    def winners(self, ties: Seen) -> Seen:
        return (jnp.arange(ties.shape[-1]) == jnp.argmax(ties, axis=-1)[..., None]) & ties


@dataclass(frozen=True)
class RightmostHard(HardWeighting):
    """All weight on the last key with the largest score (Yang et al., rhardmax)."""

    def winners(self, ties: Seen) -> Seen:
        keys = ties.shape[-1]
        last = keys - 1 - jnp.argmax(ties[..., ::-1], axis=-1)
        return (jnp.arange(keys) == last[..., None]) & ties


@dataclass(frozen=True)
class AverageHard(HardWeighting):
    """Equal weight on every key with the largest score (Yang et al., ahardmax)."""

    def winners(self, ties: Seen) -> Seen:
        return ties


@dataclass(frozen=True)
class Sparsemax(Weighting):
    """The point of the probability simplex nearest to the scores (Martins and Astudillo, 2016, eq. 2)."""

    hard: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleMethodOverride]

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        shifted, best = _below_best(scores, visible)
        shares = jnp.where(visible, jnp.maximum(shifted - sparsemax_threshold(shifted), 0), 0)
        return shares, jnp.ones_like(best)


@dataclass(frozen=True)
class Entmax(Tempered):
    """alpha-entmax: key j has the weight [(alpha - 1) s_j / tau - t]_+^(1/(alpha - 1)), with t such that all sum to 1.

    Peters, Niculae and Martins (2019), eq. 5; between softmax, the limit at alpha = 1, and sparsemax at alpha = 2. The
    threshold t is exact at 1.5 and 2 (their algorithm 2, from sorted scores) and found by bisection otherwise.

    Attributes:
        alpha: above 1 and at most 2.
    """

    alpha: float = 1.5

    def _check(self, problems: Problems) -> None:
        if not _is_finite(self.alpha) or not 1 < self.alpha <= 2:
            remedy = 'above 1 and at most 2; softmax is the limit at 1: weighting = "softmax"'
            problems.add("alpha", self.alpha, remedy)

    def shares(self, scores: Keys, visible: Seen) -> Shares:
        alpha = float(self.alpha)
        shares = jnp.where(visible, entmax_shares((alpha - 1) * _below_best(scores, visible)[0], alpha), 0)
        total = jnp.sum(shares, axis=-1, keepdims=True)
        return shares, jnp.where(total > 0, total, 1)


def _masked(scores: Keys, visible: Seen) -> Shares:
    """Returns the scores, with -inf for invisible keys, and each row's largest."""
    masked = jnp.where(visible, scores, -jnp.inf)
    return masked, jnp.max(masked, axis=-1, keepdims=True, initial=-jnp.inf)


def _powers(scores: Keys, visible: Seen, least: Any = -math.inf) -> Shares:
    """Returns exp(s_j - m), 0 for invisible keys, and m: each row's largest score or `least`; 0 if infinite."""
    masked, best = _masked(scores, visible)
    # It cancels in the quotient, and so does its derivative.
    best = jax.lax.stop_gradient(jnp.maximum(best, least))
    best = jnp.where(jnp.isfinite(best), best, 0)
    return jnp.exp(masked - best), best  # 0 for -inf, an invisible key


def _log_sum(scores: Keys, visible: Seen) -> Float[Array, "*rows"]:
    """Returns log sum_j exp(s_j) over the visible keys; 0 for a row that sees none."""
    total = jax.nn.logsumexp(jnp.where(visible, scores, -jnp.inf), axis=-1)
    return jnp.where(jnp.any(visible, axis=-1), total, 0)


def _below_best(scores: Keys, visible: Seen) -> Shares:
    """Returns the scores relative to each row's largest, -inf for invisible keys, and that largest."""
    masked, best = _masked(scores, visible)
    return jnp.where(visible, masked - jnp.where(jnp.isfinite(best), best, 0), -jnp.inf), best


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


SOFTMAXES: tuple[type[Weighting], ...] = (Softmax, SinkSoftmax)
"""The weightings for which rules of softmax hold, given the score of the sink."""


def sink_score(consumer: str, weighting: Weighting) -> Any:
    """Returns the score of a softmax's sink; -inf without one, which is the same.

    Raises:
        InputError: if the weighting is not one of `SOFTMAXES`, in the name of the `consumer`, which has no rule for it.
    """
    match weighting:
        case Softmax():
            return -math.inf
        case SinkSoftmax():
            return weighting.score
        case _:
            raise no_rule(consumer, "weighting", weighting, SOFTMAXES)


def learns_sink(weighting: Weighting) -> TypeGuard[SinkSoftmax]:
    """Returns whether the sinks of a weighting have scores that are parameters."""
    return isinstance(weighting, SinkSoftmax) and weighting.learned


WEIGHTING_TYPES: tuple[type[Weighting], ...] = (
    Softmax,
    SinkSoftmax,
    AdaptiveSoftmax,
    Sigmoid,
    LeftmostHard,
    RightmostHard,
    AverageHard,
    Sparsemax,
    Entmax,
)
"""The weightings that a config file can describe."""

WEIGHTINGS: dict[str, Weighting] = {
    "softmax": Softmax(),
    **{f"temperature-{name}": Softmax(schedule) for name, schedule in SCHEDULES.items()},
    "leftmost-hard": LeftmostHard(),
    "rightmost-hard": RightmostHard(),
    "average-hard": AverageHard(),
    "sparsemax": Sparsemax(),
    "entmax-1.5": Entmax(),
    "softmax-off-by-one": SinkSoftmax(),
    "adaptive-temperature": AdaptiveSoftmax(),
    "sigmoid": Sigmoid(),
    "sigmoid-log": Sigmoid(log_bias=-1.0),
}
"""The named weighting functions."""


def weights(weighting: Weighting, scores: Keys, visible: Seen) -> Keys:
    """Returns the attention weights of each row of scores; they are 0 for invisible keys.

    The scores must already be tempered (`Weighting.tempered`). A row without visible keys gets weight 0 everywhere.
    """
    shares, total = weighting.shares(scores, visible)
    return shares / total


def averages(
    weighting: Weighting,
    scores: Float[Array, "*batch m k"],
    visible: Bool[Array, "*batch m k"],
    values: Float[Array, "*batch k width"],
    exact_rows: bool,
) -> Float[Array, "*batch m width"]:
    """Returns sum_j w_ij v_j with the `weights` of each row, dividing by their total after the sum.

    So the average of 0s and 1s under equal weights is the rounded quotient of two exact counts. Summing n rounded
    shares 1/n instead was off by 4 counts at n = 20 000 in float32.
    """
    shares, total = weighting.shares(scores, visible)
    return quotients(weighted_sums(shares, values, exact_rows), total)
