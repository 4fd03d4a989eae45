"""How the logit bound A of Lemma 5 grows with the length, and what remains of the lemma then.

Lemma 5 bounds every attention weight by exp(2A) / n. A is bounded where position embeddings and 1/tau(n) are. Where one
of these grows, so does A: like 1/tau(n), or like the square of the embeddings. If exp(2A) is at least n, one key may
have a fixed share of the weight at every length, and the lemma forbids nothing. 2A = log n suffices: with scores c log
n on the ones, "some symbol is 1" has the output n^c / (n^c + n - 1) on a word with a single 1, which tends to 1/2 for
c = 1 and to 1 for c = 2, and the output 0 on a word without a 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.inputs import is_count, plain_numbers
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.text import html_facts
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.weighting import SOFTMAXES
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.core.models.transformer.trace import over_row_blocks, scores_of_rows
from jaxsens.theory.lemma5 import Lemma5, lemma5, why_not
from jaxsens.theory.lipschitz import log
from jaxsens.theory.rules import softmax_config

FLAT = 0.02
"""Below this log-log slope A counts as constant. A bounded position embedding moves A by less, because it may reach its
largest entry only at some lengths."""


@dataclass(frozen=True, eq=False)
class LogitGrowth:
    """The logit bound, the logits that occur, and Lemma 5's bounds, at several lengths.

    Attributes:
        lengths: sorted.
        A: the bound of `lemma5`, by norms: half of the largest spread of one row's logits. One row for each length.
        attained: half of the largest spread found in any row of any word tried: no valid A can be smaller.
        log_bound: log of Lemma 5's bound on the output's change (`Lemma5.log_bound`), at each length.
        log_closed_form: log of H^L C^(2L) D / n; inf where there is none (masks).
        log_trivial: log of the trivial bound on any change.
        form: "constant", "power" (A ~ n^exponent) or "logarithm" (A ~ exponent log n + a constant), whichever fits the
            largest A of any layer best.
        exponent: the fitted exponent; 0 for a constant.
        attained_form, attained_exponent: the same for the largest attained spread.
        bounded: whether the model meets the lemma's hypotheses at every length: bounded position embeddings and
            bounded 1/tau(n).
        verdict: the conclusion, in one line.
    """

    lengths: tuple[int, ...]
    A: Float[np.ndarray, "lengths layers"]
    attained: Float[np.ndarray, "lengths layers"]
    log_bound: Float[np.ndarray, " lengths"]
    log_closed_form: Float[np.ndarray, " lengths"]
    log_trivial: Float[np.ndarray, " lengths"]
    form: str
    exponent: float
    attained_form: str
    attained_exponent: float
    bounded: bool
    verdict: str

    def _repr_html_(self) -> str:
        rows = {
            f"n = {n}": f"A at most {self.A[k].max():.4g}, {self.attained[k].max():.4g} attained"
            for k, n in enumerate(self.lengths)
        }
        return html_facts("Growth of the scores", rows, self.verdict)


def logit_growth(model: Transformer, lengths: Sequence[int], *, words: int = 4, seed: int = 0) -> LogitGrowth:
    """Computes A of every layer at every length, measures the logits that occur, and states what Lemma 5 forbids.

    Args:
        model: a jaxsens transformer, softmax in every layer.
        lengths: at least three different ones, of at least 2.
        words: how many words of uniformly drawn symbols are tried at each length, in addition to the word that repeats
            the first symbol. Each costs a forward pass, O(n^2).
        seed: of the draw.

    Raises:
        InputError: naming every argument that cannot be used, and a model with a part that has no rule here.
    """
    problems = Problems("logit_growth")
    config = softmax_config(model, problems, why_not, SOFTMAXES)
    ordered = _lengths(lengths, config, problems)
    if config is not None and not config.layers:
        problems.add("model", "no layers", "at least one layer: without attention there are no logits")
    inputs.count("words", words, problems)
    inputs.seed(seed, problems)
    problems.raise_if_any()
    found = [lemma5(model, n) for n in ordered]
    bounds = np.array([[layer.logit_bound for layer in one.constants] for one in found])
    attained = np.array([_attained(model, n, words, seed) for n in ordered])
    n = np.array(ordered, np.float64)
    form, exponent = _form(n, bounds.max(axis=1))
    attained_form, attained_exponent = _form(n, attained.max(axis=1))
    # The hypotheses of the lemma, as the config's terms state them for all n.
    bounded = model.config.bounded and model.config.bounded_temperature
    if bounded:
        form, exponent = "constant", 0.0
    return LogitGrowth(
        lengths=ordered,
        A=bounds,
        attained=attained,
        log_bound=np.array([one.log_bound for one in found]),
        log_closed_form=np.array([one.log_closed_form for one in found]),
        log_trivial=np.array([one.log_trivial for one in found]),
        form=form,
        exponent=exponent,
        attained_form=attained_form,
        attained_exponent=attained_exponent,
        bounded=bounded,
        verdict=_verdict(found, bounds.max(), form, exponent, bounded),
    )


def _verdict(found: list[Lemma5], largest: float, form: str, exponent: float, bounded: bool) -> str:
    masks = [layer.mask for layer in found[-1].constants]
    window = next((mask for mask in masks if isinstance(mask, SlidingWindow)), None)
    if window is not None:
        return f"mask {window}: a row sees at most {window.width} keys at every n, Lemma 5 forbids nothing"
    masked = any(mask != "none" for mask in masks)
    rate = "O((log n)^(L-1)/n) at rows that see about n keys" if masked else "O(1/n)"
    if bounded:
        return f"A stays below {_above(largest)} at these lengths and bounded at all: Lemma 5 gives {rate}"
    if form == "constant":
        return f"A stays below {_above(largest)} at these lengths, but the model's terms do not bound it at all lengths"
    if form == "power":
        if exponent < 0:
            return f"A falls like n^{exponent:.2f}: Lemma 5 gives {rate}"
        return f"A grows like n^{exponent:.2f}: exp(2A)/n grows, Lemma 5 forbids nothing"
    power = 2 * exponent - 1
    if power >= 0:
        return f"A grows like {exponent:.2f} log n: exp(2A)/n is about n^{power:.2f}, Lemma 5 forbids nothing"
    return f"A grows like {exponent:.2f} log n: Lemma 5 gives O(n^{power:.2f}), up to powers of log n, not O(1/n)"


def _above(x: float) -> str:
    """x rounded up to three digits."""
    if not 0 < x < math.inf:
        return f"{x:.3g}"
    step = 10.0 ** (math.floor(math.log10(x)) - 2)
    return f"{math.ceil(x / step) * step:.4g}"


def _form(n: np.ndarray, a: np.ndarray) -> tuple[str, float]:
    """Which of c, c n^p and b log n + c fits A best, judged by the largest relative error, and p or b."""
    if not np.all(a > 0) or not np.all(np.isfinite(a)):
        return ("constant", 0.0) if np.all(a == 0) else ("power", math.inf if np.isinf(a).any() else 0.0)
    x = log(n)
    p, c = np.polyfit(x, log(a), 1)
    if abs(p) < FLAT:
        return "constant", 0.0
    b, d = np.polyfit(x, a, 1)
    power = float(np.abs(np.exp(p * x + c) / a - 1).max())
    logarithm = float(np.abs((b * x + d) / a - 1).max())
    return ("logarithm", float(b)) if b > 0 and logarithm < power else ("power", float(p))


def _attained(model: Transformer, n: int, words: int, seed: int) -> np.ndarray:
    """Half of the largest spread of a row's visible logits in each layer, over the words tried."""
    config = model.config
    drawn = np.random.default_rng([seed, n]).integers(0, config.alphabet_size, (words, n))
    tried = np.concatenate([np.zeros((1, n), int), drawn]).astype(np.int32)
    with numerics(config.dtype):
        spreads = [np.asarray(_spreads(config, model.parameters, jnp.asarray(word))) for word in tried]
    return np.max(spreads, axis=0).astype(np.float64) / 2


@partial(jax.jit, static_argnums=0)
def _spreads(config: TransformerConfig, parameters: TransformerParameters, tokens: Array) -> Array:
    found = []
    for k, one in enumerate(layers.trace(config, parameters, tokens)[0]):

        def rows(block: Array, k: int = k, one: Any = one) -> Array:
            own = config.layer(k), parameters.layers[k]
            s, seen = scores_of_rows(*own, one.queries[:, block], one.keys, block)
            high = jnp.max(jnp.where(seen, s, -jnp.inf), axis=-1)
            low = jnp.min(jnp.where(seen, s, jnp.inf), axis=-1)
            return jnp.where(jnp.any(seen, axis=-1), high - low, 0)

        found.append(jnp.max(over_row_blocks(rows, config.layer(k).heads, tokens.shape[0])))
    return jnp.stack(found)


def _lengths(lengths: Any, config: TransformerConfig | None, problems: Problems) -> tuple[int, ...]:
    given = [plain_numbers(n) for n in lengths] if np.iterable(lengths) else []
    good = [n for n in given if is_count(n, 2)]
    if len(good) < len(given) or len(set(good)) < 3:
        problems.add("lengths", lengths, "at least three different whole numbers, each at least 2")
    elif config is not None:
        for n in (max(good), min(good)):
            config.check_length(n, problems)
    return tuple(sorted(set(good)))
