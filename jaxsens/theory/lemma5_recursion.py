"""Lemma 5's induction, row by row: from bounds on the changes of y^(k) to bounds on those of y^(k+1). All in logs.

One symbol i is exchanged. D = |Delta y_i|, and delta_j = |Delta y_j| for every other row j: bounds on both, over all
words and all i. Row j sees nu_j keys. Of one head, with scores s, weights a, values v, average b, and a prime for the
flipped word,

    b' - b = sum_m a'_m (v'_m - v_m) + sum_m (a'_m - a_m) v_m .

* No weight is above w_j = 1 / (1 + (nu_j - 1) e^(-2A)) <= e^(2A) / nu_j, at any scores in [-A, A].
* First sum, the published one: sum over m /= i of a'_m V |Delta z_m|, at most V times the largest |Delta z_m| that is
  visible, and at most V w_j times their sum; and V w_j |Delta z_i| for the flipped key.
* Second sum, which the published proof leaves out. First all scores but s_i move, then s_i.
  Along the first move, d/dt b_t = sum_m a_m Delta s_m (v_m - b_t), of which |Delta s_m| <= Lambda_q |Delta z_j| +
  Lambda_k |Delta z_m|. A weighted average of |v_m - b_t| is at most R: its square is at most the average of |v_m|^2.
  So the query's part is at most R Lambda_q |Delta z_j|, and the keys' part at most R Lambda_k times the largest
  |Delta z_m|, or 2 R Lambda_k w_j times their sum.
  In the second move only a_i changes against the rest, b = a_i v_i + (1 - a_i) r: by (a'_i - a_i)(v_i - r), which is at
  most 2 R w_j min(1, |Delta s_i|), since d a_i / d s_i = a_i (1 - a_i) <= w_j.
* Both averages lie in a ball of radius R around 0 (b and b' of either word): never more than 2 R.

No exponential of a change occurs, so nothing has to be small: the bounds hold for every n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.theory.lemma5_constants import LayerConstants
from jaxsens.theory.lipschitz import log, plus, times

LOG2 = math.log(2)


@dataclass(frozen=True, eq=False)
class LayerBound:
    """Bounds on the changes of y^(k) under an exchange of any one symbol, of any word.

    Attributes:
        log_own: log D_k: of the flipped row itself, whichever it is.
        log_rows: log delta_j: of row j, when another row is flipped; -inf where it cannot change.
    """

    log_own: float
    log_rows: Float[np.ndarray, " n"]

    @property
    def log_others(self) -> float:
        """log of the largest delta_j."""
        return float(self.log_rows.max())


def visible_counts(mask: str, n: int) -> Float[np.ndarray, " n"]:
    """nu_j: how many keys row j sees."""
    j = np.arange(1, n + 1, dtype=np.float64)
    return {"none": np.full(n, float(n)), "future": j, "past": j[::-1], "strict-future": j - 1}.get(
        mask, (j - 1)[::-1]
    )


def next_layer(
    layer: LayerConstants, now: LayerBound, log_f_next: float, score_term: bool = True
) -> LayerBound:
    """Bounds on y^(k+1) from bounds on y^(k). O(heads n).

    Args:
        layer: the layer's constants.
        now: the bounds so far.
        log_f_next: log F_{k+1}: no change is above 2 F_{k+1}.
        score_term: False leaves the second sum out, as the published proof does: what results is no bound. It is here
            to show that.
    """
    n = len(now.log_rows)
    seen = visible_counts(layer.mask, n)
    to_itself = not layer.mask.startswith("strict")
    others = seen - to_itself > 0
    dz = np.minimum(times(layer.log_lambda, now.log_rows), LOG2 + layer.log_F_z)
    own_dz = min(float(times(layer.log_lambda, now.log_own)), LOG2 + layer.log_F_z)
    largest, total = _over_visible(layer.mask, dz)
    log_w = -np.logaddexp(0.0, times(log(np.maximum(seen - 1, 0)), -2 * layer.A))
    v, r = layer.log_values[:, None], layer.log_radius[:, None]
    flipped = np.where(others, log_w, -np.inf)

    change = plus(times(v, np.minimum(largest, times(log_w, total))), times(v, flipped, own_dz))
    if score_term:
        keys = times(layer.log_key, np.minimum(largest, times(LOG2, log_w, total)))
        elsewhere = times(r, plus(np.where(seen > 0, times(layer.log_query, dz), -np.inf), keys))
        moved = np.minimum(
            plus(times(layer.log_query, dz), times(layer.log_key, own_dz)), LOG2 + log(layer.A)
        )
        change = plus(change, elsewhere, times(LOG2, r, flipped, np.minimum(0.0, moved)))
        change = np.minimum(change, LOG2 + r)
    rows = np.minimum(times(layer.log_map, plus(now.log_rows, *change)), LOG2 + log_f_next)

    # The flipped row: its query moves by own_dz, and every score in the row with it.
    nearest = np.maximum(largest, own_dz) if to_itself else largest
    own = times(v, plus(largest, times(log_w, own_dz) if to_itself else -np.inf))
    if score_term:
        moved = plus(times(layer.log_query, own_dz), times(layer.log_key, nearest))
        moved = np.minimum(np.minimum(moved, LOG2 + log(layer.A)), LOG2)
        own = np.minimum(plus(own, times(r, moved)), LOG2 + r)
    own = np.where(seen > 0, own, -np.inf)
    log_own = float(np.max(times(layer.log_map, plus(now.log_own, *own))))
    return LayerBound(min(log_own, LOG2 + log_f_next), rows)


def _over_visible(mask: str, logs: Float[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """log of the largest entry and of the sum of entries that each row sees; O(n)."""
    if mask == "none":
        return np.full(len(logs), logs.max()), np.full(len(logs), np.logaddexp.reduce(logs))
    backwards = mask in ("past", "strict-past")
    ordered = logs[::-1] if backwards else logs
    largest, total = np.maximum.accumulate(ordered), np.logaddexp.accumulate(ordered)
    if mask.startswith("strict"):
        largest, total = (np.concatenate([[-np.inf], part[:-1]]) for part in (largest, total))
    return (largest[::-1], total[::-1]) if backwards else (largest, total)
