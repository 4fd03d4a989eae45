"""Critical inverse temperatures of a model's rows of attention: which are sharp, and which would have to be cooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.analysis.attention_weights import RowScores, block_rows, layer_scores, visible_attention
from jaxsens.analysis.gaps import checked_gaps, counts_of_rows, critical_of_rows
from jaxsens.core.base.errors import InputError, check_fits, collecting, no_rule
from jaxsens.core.base.inputs import checked_number
from jaxsens.core.base.programs import compiled, numerics, versions
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.engines.one_key.blocks import summed_over_blocks
from jaxsens.core.models.adapters import as_inputs, as_model
from jaxsens.core.models.parts.weighting import SOFTMAXES
from jaxsens.core.models.texts import encoded
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import Layered

if TYPE_CHECKING:
    import pandas as pd

GAPS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The gaps at which competitors are counted unless asked otherwise."""

NAME = "critical_temperatures"

OfRows: TypeAlias = tuple[Float[Array, "heads n"], Int[Array, "heads n gaps"], Bool[Array, "heads n"]]
"""Of a layer's rows: the critical inverse temperature, the counts, and whether the scores are numbers."""


@dataclass(frozen=True, eq=False)
class CriticalTemperatures:
    """The critical inverse temperature of every layer, head and row on one input, and how many competitors rows have.

    If layers differ in their number of heads, the missing ones are NaN, with counts of 0.

    Attributes:
        beta: by row, what the scores that the model uses, its temperature included, would have to be multiplied by for
            the largest weight to be half of the keys' weight (`jaxsens.analysis.critical_inverse_temperature`). 1:
            the row is at the transition. Less: one key has more than half. More: no key has half. 0: a row of one
            key, or of two that differ. inf: several keys have the maximum. NaN: the row sees no key.
        gaps: differences of scores, of the same units.
        counts: by row, how many keys are within each gap of the row's maximum, itself counted.
        tokens: the input.
        dtype: the dtype of the arithmetic. Gaps below the scores' rounding errors are noise: of keys that tie in exact
            arithmetic, beta is inf or very large.
        versions: the versions of jaxsens, jax and numpy, and the device.
    """

    beta: Float[np.ndarray, "layers heads n"]
    gaps: tuple[float, ...]
    counts: Int[np.ndarray, "layers heads n gaps"]
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
        open_rows = (self.beta > 0).sum(-1)
        sharp = ((self.beta > 0) & (self.beta < 1)).sum(-1)
        share = np.divide(sharp, open_rows, out=np.full(sharp.shape, np.nan), where=open_rows > 0)
        columns = {"median": self.quantile(0.5).ravel(), "concentrated": share.ravel()}
        return pd.DataFrame({"layer": layer, "head": head, **columns})

    def __repr__(self) -> str:
        layers, heads, n = self.beta.shape
        medians = ", ".join(f"{value:.3g}" for value in self.quantile(0.5).ravel()[:4])
        more = ", ..." if layers * heads > 4 else ""
        return (
            f"CriticalTemperatures(n={n}, {layers} layers, {heads} heads; medians of beta: {medians}{more})"
        )


@naming_arguments
def critical_temperatures(model: Any, tokens: Any, *, gaps: Sequence[float] = GAPS) -> CriticalTemperatures:
    """Returns how far every row of attention is from the temperature at which one key gets half of the weight.

    From the scores themselves, so that weights that underflow count in full. The score of a sink is left out. The
    source is named at `jaxsens.analysis.critical_inverse_temperature`. Arithmetic is in the model's dtype. O(layers
    n^2 width) operations, those of two forward passes and of some 20 softmaxes, and O(layers heads n gaps) memory.

    Args:
        model: a model whose attention is visible and softmax: a jaxsens transformer, a published model, a pair
            (`jaxsens.Layered`, parameters).
        tokens: integers (n,), one input; for a model that encodes text, also a text.
        gaps: differences of scores within which competitors are counted.

    Raises:
        InputError: naming each unusable argument; for a model whose attention is not visible, for a weighting that has
            no temperature at which it concentrates, such as hard attention, and for scores that are not finite.
    """
    tokens, model = encoded(model, tokens), as_model(model)
    attending = visible_attention(model, NAME)
    of_layer = attending.layer if isinstance(attending, TransformerConfig) else attending.attention
    layers = [of_layer(k) for k in range(attending.layers)]
    for layer in layers:
        if not isinstance(layer.weighting, SOFTMAXES):
            raise no_rule(NAME, "weighting", layer.weighting, SOFTMAXES)
    with collecting(NAME) as problems:
        words = as_inputs(model, tokens, problems, one=True)
        asked = checked_gaps(gaps, problems)
        if not problems:
            needed = sum(layer.heads for layer in layers) * words.shape[1] * (len(asked) + 1) * 8
            check_fits("tokens", f"length {words.shape[1]}", needed, "the table of every row's counts",
                       "give a shorter input, or fewer gaps", problems)  # fmt: skip
    with numerics(model.dtype):
        parameters = jax.tree.map(jnp.asarray, model.parameters)
        found = jax.device_get(_of_layers(attending, asked, parameters, jnp.asarray(words[0])))
    heads = max((len(betas) for betas, _, _ in found), default=0)
    beta = np.full((len(found), heads, words.shape[1]), np.nan)
    counts = np.zeros((*beta.shape, len(asked)), int)
    for k, (betas, counted, finite) in enumerate(found):
        if not finite.all():
            raise InputError.note(
                "model",
                f"scores of layer {k} are not finite; use float64, or smaller weights",
                subject=NAME,
            )
        beta[k, : len(betas)], counts[k, : len(betas)] = betas, counted
    return CriticalTemperatures(beta, asked, counts, words[0], model.dtype, versions())


@compiled(static=2)
def _of_layers(
    attending: TransformerConfig | Layered, gaps: tuple[float, ...], parameters: Any, tokens: Int[Array, " n"]
) -> list[OfRows]:
    n = tokens.shape[0]
    return [_of_rows(rows, heads, n, gaps) for heads, _, rows in layer_scores(attending, parameters, tokens)]


def _of_rows(rows: RowScores, heads: int, n: int, gaps: tuple[float, ...]) -> OfRows:
    dtype = jax.eval_shape(rows, jnp.arange(1))[0].dtype

    def block(where: Array, new: Array, kept: OfRows) -> OfRows:
        del new
        s, seen = rows(where)
        seen = jnp.broadcast_to(seen, s.shape)
        # A score of -inf hides a key, as a mask does; a row of nothing else saw keys and lost them.
        finite = jnp.all(~seen | (s < jnp.inf), axis=-1) & (
            jnp.any(seen & (s > -jnp.inf), axis=-1) | ~jnp.any(seen, axis=-1)
        )
        found = critical_of_rows(s, seen), counts_of_rows(s, seen, gaps), finite
        beta, counts, known = (old.at[:, where].set(one) for old, one in zip(kept, found, strict=True))
        return beta, counts, known

    start = jnp.zeros((heads, n), dtype), jnp.zeros((heads, n, len(gaps)), int), jnp.ones((heads, n), bool)
    return summed_over_blocks(block, n, block_rows(heads, n), start)
