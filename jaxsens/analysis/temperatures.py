"""Critical inverse temperatures of a model's rows of attention: at which one a row's maximal score wins half of the
weight, and which rows are sharp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsens.analysis import statistics
from jaxsens.core.base.errors import InputError, check_fits, collecting, no_rule
from jaxsens.core.base.inputs import checked_number
from jaxsens.core.base.programs import compiled, numerics, versions
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.models.adapters import as_inputs, as_model, encoded
from jaxsens.core.models.parts.weighting import SOFTMAXES, Weighting

if TYPE_CHECKING:
    import pandas as pd


MOST_STEPS = 200
"""Newton's method ends far earlier: each step but the first and last few adds about 1/gap of the competitors that are
on their way out."""


def critical_inverse_temperature(
    scores: ArrayLike, visible: ArrayLike | None = None
) -> Float[np.ndarray, "*rows"]:
    """Returns the inverse temperature of each row at which softmax gives its maximal score half of the weight.

    It is shift-invariant, and divided by c if scores are multiplied by c > 0. docs/tutorials/temperature.md has
    the definition and the source. In float64, O(rows n) operations a step, some 10 to 40 steps.

    Args:
        scores: (..., n); a score of -inf is that of no key.
        visible: which keys count, broadcast to the scores; all if None.

    Returns:
        (...); inf if several keys have the maximum, as they keep sharing it, also those within the smallest normal
        number of it; 0 if a row has one key, or two that differ; NaN for a row without keys.

    Raises:
        InputError: for scores that are NaN or inf, or an unusable `visible`.

    >>> round(float(critical_inverse_temperature([0.0, 0.0, 1.0])), 3)
    0.693
    """
    function = "critical_inverse_temperature"
    try:
        s = np.asarray(scores, np.float64)
        seen = np.broadcast_to(True if visible is None else np.asarray(visible, bool), s.shape)
    except (TypeError, ValueError, OverflowError):
        remedy = "numbers (..., n), and visible of a shape that broadcasts to theirs"
        raise InputError.of("scores", scores, remedy, function) from None
    if not s.ndim or not s.shape[-1] or np.isnan(s).any() or np.isposinf(s).any():
        remedy = "numbers (..., n) with n of at least 1, finite or -inf"
        raise InputError.of("scores", scores, remedy, function)
    with numerics("float64"):
        return np.asarray(critical_of_rows(jnp.asarray(s), jnp.asarray(seen)))


@compiled(static=0)
def critical_of_rows(
    scores: Float[Array, "*rows n"], visible: Bool[Array, "*rows n"]
) -> Float[Array, "*rows"]:
    """`critical_inverse_temperature` within a program, in the dtype of the scores; NaN scores give NaN.

    With g_1 the nearest key's gap, g_2 the next, and b = beta g_2, Newton's method on

        f(b) = log sum_(k >= 2) exp(-b g_k / g_2) - log(1 - exp(-b g_1 / g_2)),

    whose parts both keep their digits when g_1 is far below g_2. f is convex and falls, so from log 2, on the left of
    its zero since two keys are within g_2, every step goes towards the zero and none goes past it.
    """
    counted = visible & (scores != -jnp.inf)
    best = jnp.max(jnp.where(counted, scores, -jnp.inf), axis=-1, keepdims=True)
    below = jnp.where(counted, best - scores, 0)
    maximum = jnp.argmax(jnp.where(counted, scores, -jnp.inf), axis=-1, keepdims=True)
    others = counted & (jnp.arange(scores.shape[-1]) != maximum)
    nearest = jnp.argmin(jnp.where(others, below, jnp.inf), axis=-1, keepdims=True)
    rest = others & (jnp.arange(scores.shape[-1]) != nearest)
    first = jnp.take_along_axis(below, nearest, axis=-1)[..., 0]
    second = jnp.min(jnp.where(rest, below, jnp.inf), axis=-1)
    tied = jnp.any(others & (below == 0), axis=-1)
    searched = jnp.isfinite(second) & ~tied
    unit, close = jnp.where(searched, second, 1), jnp.where(searched, first, 1)
    numbers = jnp.finfo(scores.dtype)
    excess = jnp.minimum((below - unit[..., None]) / unit[..., None], numbers.max)
    log_close = jnp.log(close) - jnp.log(unit)  # the quotient itself may underflow

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        b, _, k = state
        shares = jnp.where(rest, jnp.exp(-b[..., None] * excess), 0)
        total = jnp.sum(shares, axis=-1)
        log_x = jnp.log(b) + log_close
        x = jnp.exp(log_x)
        small = x < numbers.eps  # where 1 - exp(-x) is x
        lost = jnp.where(small, log_x, jnp.log(-jnp.expm1(jnp.where(small, -1, -x))))
        f = jnp.log(total) - b - lost
        fall = 1 + jnp.sum(shares * excess, axis=-1) / total
        fall += jnp.where(small, 1, x / jnp.expm1(jnp.where(small, 1, x))) / b
        move = jnp.where(searched, f / fall, 0)
        return b + move, jnp.any(move > 4 * numbers.eps * b), k + 1

    start = jnp.full(scores.shape[:-1], jnp.log(2), scores.dtype), jnp.asarray(True), jnp.asarray(0)
    b, _, _ = jax.lax.while_loop(lambda state: state[1] & (state[2] < MOST_STEPS), step, start)
    beta = jnp.where(tied, jnp.inf, jnp.where(searched, b / unit, 0))
    unknown = ~jnp.any(counted, axis=-1) | jnp.any(jnp.isnan(below), axis=-1)
    return jnp.where(unknown, jnp.nan, beta)


NAME = "critical_temperatures"


@dataclass(frozen=True, eq=False)
class CriticalTemperatures:
    """The critical inverse temperature of every layer, head and row on one input.

    If layers differ in their number of heads, the missing ones are NaN.

    Attributes:
        beta: by row, what the scores that the model uses, its temperature included, would have to be multiplied by for
            the largest weight to be half of the keys' weight (`jaxsens.analysis.critical_inverse_temperature`). 1:
            the row is at the transition. Less: one key has more than half. More: no key has half. 0: a row of one
            key, or of two that differ. inf: several keys have the maximum. NaN: the row sees no key.
        tokens: the input.
        dtype, versions: of the arithmetic; of jaxsens, jax, numpy, and the device. Gaps below the scores' rounding are
            noise: of keys that tie in exact arithmetic, beta is inf or very large.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=2, heads=2))
    >>> critical_temperatures(model, [0, 1, 1, 0]).quantile(0.5).shape
    (2, 2)
    """

    beta: Float[np.ndarray, "layers heads n"]
    tokens: Int[np.ndarray, " n"]
    dtype: str
    versions: dict[str, str]

    @property
    def n(self) -> int:
        """The length of the input."""
        return len(self.tokens)

    def quantile(self, q: float) -> Float[np.ndarray, "layers heads"]:
        """Returns a quantile of beta over the rows that see at least three keys, as fewer are decided in advance.

        It is a value that occurs, so that infinite ones do no harm; NaN for a head without such rows.
        """
        q = checked_number("CriticalTemperatures.quantile", least=0, most=1, q=q)
        found = np.full(self.beta.shape[:2], np.nan)
        for place in np.ndindex(found.shape):
            rows = self.beta[place]
            rows = rows[rows > 0]
            if rows.size:
                found[place] = np.quantile(rows, q, method="inverted_cdf")
        return found

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table with a row for each layer and head, both 0-based: the median of beta, and the share of rows,
        of those that see at least three keys, in which one key has more than half of the weight."""
        import pandas as pd

        layer, head = np.indices(self.beta.shape[:2]).reshape(2, -1)
        share = statistics.mean_of_known(np.where(self.beta > 0, self.beta < 1, np.nan))
        columns = {"median": self.quantile(0.5).ravel(), "concentrated": share.ravel()}
        return pd.DataFrame({"layer": layer, "head": head, **columns})

    def __repr__(self) -> str:
        layers, heads, n = self.beta.shape
        medians = [f"{value:.3g}" for value in self.quantile(0.5).ravel()]
        shown = ", ".join([*medians[:4], *["..."] * (len(medians) > 4)])
        return f"CriticalTemperatures(n={n}, {layers} layers, {heads} heads; medians of beta: {shown})"


@naming_arguments
def critical_temperatures(model: Any, tokens: Any) -> CriticalTemperatures:
    """Returns how far every row of attention is from the temperature at which one key gets half of the weight.

    Weights that underflow count in full; the score of a sink is left out. Arithmetic is in the model's dtype. O(layers
    n^2 width) operations, those of two forward passes and of some 20 softmaxes, and O(layers heads n) memory.

    Args:
        model: a model whose attention is visible and softmax: a jaxsens transformer, a published model, a pair
            (`jaxsens.Layered`, parameters).
        tokens: integers (n,), one input; for a model that encodes text, also a text.

    Raises:
        InputError: naming each unusable argument; for attention that is not visible, a weighting without a temperature
            at which it concentrates, such as hard attention, and scores that are not finite.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> critical_temperatures(model, [0, 1, 1, 0]).beta.shape
    (1, 4, 4)
    """
    tokens, model = encoded(model, tokens), as_model(model)
    attending, layers = statistics.visible_attention(model, NAME)
    for layer in layers:
        if not isinstance(layer.weighting, SOFTMAXES):
            raise no_rule(NAME, "weighting", layer.weighting, SOFTMAXES)
    with collecting(NAME) as problems:
        words = as_inputs(model, tokens, problems, one=True)
        if not problems:
            n = words.shape[1]
            needed, what = sum(layer.heads for layer in layers) * n * 8, "the table of every row"
            check_fits("tokens", f"length {n}", needed, what, "give a shorter input", problems)
    found = statistics.reduced_layers(NAME, model, attending, words[0], ("beta",), _criticals)
    return CriticalTemperatures(found["beta"].astype(np.float64), words[0], model.dtype, versions())


def _criticals(
    weighting: Weighting, rows: statistics.RowScores, heads: int, n: int, option: None
) -> dict[str, Array]:
    def of_block(s: Array, seen: Array, new: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        del new
        seen = jnp.broadcast_to(seen, s.shape)
        # A score of -inf hides a key, as a mask does; a row of nothing else saw keys and lost them.
        known = jnp.any(seen & (s > -jnp.inf), axis=-1) | ~jnp.any(seen, axis=-1)
        finite = jnp.all(~seen | (s < jnp.inf), axis=-1) & known
        return {"beta": critical_of_rows(s, seen), "finite": finite}, {}

    return statistics.over_blocks(rows, heads, n, of_block)
