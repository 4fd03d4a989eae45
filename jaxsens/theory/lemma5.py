"""Lemma 5 of Hahn (2020), every constant computed: how far one exchanged symbol moves a softmax transformer's output.

Hahn, "Theoretical Limitations of Self-Attention in Neural Sequence Models", TACL 8 (2020), Lemma 5: if attention logits
are bounded by A, exchanging one symbol other than the one read out moves y_n^(L) by at most H^L C^(2L) D / n, where
C = 2 (1 + exp(2A) + L_fact). docs/lemma5.md derives everything for the whole model family: values and output matrices,
residual connections, layer normalisation, temperatures, masks.

Notation. y_j is the input of a layer at row j. z_j is what queries, keys and values are made of: y_j, or LN(y_j) with
pre-normalisation. v_m^h = z_m W_V^h W_O^h is the value of key m in head h as it reaches the residual stream. s_jm is
the score of query j with key m as the softmax sees it: penalties added, divided by the temperature tau_j.

`next_layer` is the induction step, and docs/lemma5.md proves it: no weight of row j exceeds w_j, the flipped key's
value and score are counted apart from the others', and no average moves by more than 2 R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import collecting, no_rule
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.base.text import html_facts
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure, read_norm
from jaxsens.core.models.parts import weighting as weightings
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.module import Transformer, check_runs
from jaxsens.core.models.transformer.parameters import LayerParameters, needed
from jaxsens.theory import rules
from jaxsens.theory.rules import (
    OUTWARD,
    activation_lipschitz,
    alphabet_of,
    exp,
    largest_embedding,
    log,
    log_layer_norm,
    log_output_gain,
    operator_norm,
    plus,
    times,
)

LOG2 = math.log(2)


def why_not(weighting: weightings.Weighting) -> str:
    """Why there is no bound for a layer that is not softmax (docs/attention-variants.md derives each reason)."""
    match weighting:
        case weightings.HardWeighting():
            return "one key may take all the weight, however small the logits are"
        case weightings.Sparsemax() | weightings.Entmax():
            return (
                "one key may keep a fixed share of the weight at every length, however small the logits are"
            )
        case weightings.Sigmoid() if weighting.log_bias > -1:
            return "no weight is divided by n"
        case weightings.Sigmoid() | weightings.AdaptiveSoftmax():
            return "Lemma 5's argument applies to this weighting, but its constants are not worked out here"
        case _:
            return "there is no bound on the weights of another weighting"


@dataclass(frozen=True, eq=False)
class LayerConstants:
    """The constants of one layer at one length. Logarithms are natural; array entries belong to heads and query rows.

    Attributes:
        log_F: F_k, a bound on |y_j^(k)| over all words and positions. F_0 is the largest |embedding + position|.
            F_{k+1} adds the heads' largest values (a weighted average is no longer than its longest term) and
            |W_2| (|W_1| F_in + |b_1|) + |b_2|, because every activation has |f(x)| <= |x| (for tanh, sqrt(d_ff) where
            that is less). With post-normalisation it is max |scale| sqrt(d) + |bias|.
        log_F_z: the same for z_j: F_k, or the bound on LN(y_j).
        log_lambda: how far z_j moves at most per change of y_j: 1, or max |scale| / sqrt(epsilon).
        log_values: V_h = |W_V W_O|: how far v_m moves at most per change of z_m.
        log_radius: R_h = V_h F_z, a bound on |v_m|. Two averages of values are at most 2 R_h apart.
        A: half the largest difference of two scores that one query can see. Softmax does not notice a shift of a
            row's scores, so all of them may be taken to lie in [-A, A]. Dot product: |W_Q W_K^T| F_z^2 / sqrt(d_k);
            with a rotary embedding |W_Q| |W_K| in place of |W_Q W_K^T|, because the turn between them depends on the
            pair. Additive: |a|_1, because tanh is at most 1. ALiBi adds half of slope times the largest visible
            distance, a relative bias half of its table's range. All times 1/tau. May be inf.
        log_query, log_key: Lambda, with |Delta s_jm| <= Lambda_query |Delta z_j| + Lambda_key |Delta z_m|. Dot
            product, both: |W_Q W_K^T| F_z / (sqrt(d_k) tau). Additive: |a|_2 |W_Q| / tau and |a|_2 |W_K| / tau.
        log_map: Lip, how far the layer's output moves at most per change of x + attention: 1 + |W_2| |W_1| times the
            activation's constant, times max |scale| / sqrt(epsilon) for each layer norm on the way.
    """

    log_F: float
    log_F_z: float
    log_lambda: float
    log_values: Float[np.ndarray, " heads"]
    log_radius: Float[np.ndarray, " heads"]
    A: Float[np.ndarray, "heads n"]
    log_query: Float[np.ndarray, "heads n"]
    log_key: Float[np.ndarray, "heads n"]
    log_map: float
    mask: str | SlidingWindow

    @property
    def heads(self) -> int:
        """H of this layer."""
        return len(self.log_values)

    @property
    def logit_bound(self) -> float:
        """A of this layer: the largest over its heads and rows."""
        return float(self.A.max())

    @property
    def log_L_fact(self) -> float:
        """log L_fact: how far the layer's output moves, per head, when *all* activations move by 1.

        Lip (1 + lambda max_h (V_h + 4 R_h Lambda_h)). 1 is the skip connection. V_h is the values' own change, all
        that the published proof has. 4 R_h Lambda_h is the change of the weights, which it omits: 2 R_h Lambda_h from
        the other keys, whose queries and keys move, and 2 R_h Lambda_h from the query at the flipped key.
        """
        score = np.maximum(self.log_query, self.log_key).max(axis=1)
        gain = plus(self.log_values, times(math.log(4), self.log_radius, score))
        return float(times(self.log_map, plus(0.0, times(self.log_lambda, np.max(gain)))))


def _constants_of_layer(
    layer: LayerConfig, dtype: str, parameters: LayerParameters, n: int, log_f: float
) -> tuple[LayerConstants, float]:
    norm = rules.norm_where(layer.layer_norm == "pre", parameters.attention_norm)
    log_lambda, log_z = log_layer_norm(layer.layer_norm_epsilon, norm, log_f)
    value, output = (np.asarray(m, np.float64) for m in (parameters.value, parameters.output))
    log_values = log(np.array([operator_norm(v @ w) for v, w in zip(value, output, strict=True)]))
    log_radius = times(log_values, log_z)
    log_map, log_next = _map_constants(layer, parameters, float(plus(log_f, *log_radius)))
    bound, log_query, log_key = _score_constants(layer, parameters, log_z)
    log_inverse = log(rules.inverse_temperatures(layer, n, dtype))
    with np.errstate(over="ignore"):
        bound = plus(bound[:, None], log(_added(layer, parameters, n, dtype)))
        a = np.exp(times(bound, log_inverse)) * (1 + OUTWARD)
    log_query, log_key = (times(of[:, None], log_inverse) for of in (log_query, log_key))
    mask: Any = layer.mask  # of those that have a rule
    constants = LayerConstants(
        log_f, log_z, log_lambda, log_values, log_radius, a, log_query, log_key, log_map, mask
    )
    return constants, log_next


def _added(
    layer: LayerConfig, parameters: LayerParameters, n: int, dtype: str
) -> Float[np.ndarray, "heads n"]:
    """Half of the largest difference of what positions add to two visible keys' scores, row by row; 0 if nothing.

    Of ALiBi: the slope times the largest visible distance. Of a relative bias: the table's largest entry minus its
    smallest, for every row.
    """
    terms = rules.score_terms(layer)
    total = np.zeros((layer.heads, n))
    if terms.penalises is not None:
        start, stop = rules.visible_keys(layer.mask, n)
        row = np.arange(n)
        farthest = np.maximum(row - start, stop - 1 - row).astype(np.float64)
        total += rules.rounded(terms.penalises.slopes(layer.heads), dtype)[:, None] * farthest / 2
    if terms.bias is not None:
        table = np.asarray(needed(parameters.relative_bias, "relative_bias"), np.float64)
        total += np.ptp(table, axis=1, keepdims=True) * (1 + OUTWARD) / 2
    return total


def _map_constants(layer: LayerConfig, parameters: LayerParameters, log_in: float) -> tuple[float, float]:
    """From x + attention, bounded by e^log_in, to the layer's output: its log Lipschitz constant and log bound."""
    before, after, epsilon = layer.layer_norm == "pre", layer.layer_norm == "post", layer.layer_norm_epsilon
    log_lipschitz, log_f = log_layer_norm(epsilon, rules.norm_where(after, parameters.attention_norm), log_in)
    if not layer.feed_forward:
        return log_lipschitz, log_f
    parts = (np.asarray(needed(getattr(parameters, name), name)) for name in ("w1", "b1", "w2", "b2"))
    log_w1, log_b1, log_w2, log_b2 = (log(operator_norm(part)) for part in parts)
    inner, log_inner = log_layer_norm(epsilon, rules.norm_where(before, parameters.feed_forward_norm), log_f)
    log_hidden = plus(times(log_w1, log_inner), log_b1)
    if layer.activation == "tanh":
        log_hidden = min(log_hidden, 0.5 * math.log(layer.feed_forward))
    gain = times(log_w1, log_w2, math.log(activation_lipschitz(layer.activation)), inner)
    log_f = float(plus(log_f, times(log_w2, log_hidden), log_b2))
    last, log_f = log_layer_norm(epsilon, rules.norm_where(after, parameters.feed_forward_norm), log_f)
    return float(times(log_lipschitz, plus(0.0, gain), last)), log_f


def _score_constants(
    layer: LayerConfig, parameters: LayerParameters, log_z: float
) -> tuple[Float[np.ndarray, " heads"], Float[np.ndarray, " heads"], Float[np.ndarray, " heads"]]:
    """Of every head, at temperature 1: logs of the bound on a score, and of its Lipschitz constants in z_j and z_m."""
    query, key = (np.asarray(m, np.float64) for m in (parameters.query, parameters.key))
    match layer.scores:
        case "additive":
            a = np.asarray(needed(parameters.additive, "additive"), np.float64)
            size = log(np.array([operator_norm(vector) for vector in a]))
            norms = (np.array([operator_norm(m) for m in each]) for each in (query, key))
            log_query, log_key = (times(size, log(each)) for each in norms)
            return log(np.abs(a).sum(axis=1) * (1 + OUTWARD)), log_query, log_key
        case "dot-product":
            pairs = list(zip(query, key, strict=True))
            if rules.score_terms(layer).turns is None:
                products = [operator_norm(q @ k.T) for q, k in pairs]
            else:
                products = [operator_norm(q) * operator_norm(k) for q, k in pairs]
            slope = times(log(np.array(products)), log_z) - 0.5 * math.log(layer.head_width)
            return times(slope, log_z), slope, slope
        case _:
            raise no_rule("lemma5", "score", layer.scores, ("additive", "dot-product"))


@dataclass(frozen=True, eq=False)
class LayerBound:
    """Bounds on the changes of y^(k) when any one symbol of any word is exchanged.

    Attributes:
        log_own: log D_k, for the flipped row itself, whichever it is.
        log_rows: log delta_j, for row j when another row is flipped; -inf where it cannot change.
    """

    log_own: float
    log_rows: Float[np.ndarray, " n"]


def next_layer(layer: LayerConstants, now: LayerBound, log_f_next: float) -> LayerBound:
    """The induction step: bounds on the changes of y^(k+1) from bounds on those of y^(k). O(heads n).

    Args:
        layer: the constants of layer k.
        now: the bounds on y^(k).
        log_f_next: log F_{k+1}: no change exceeds 2 F_{k+1}.
    """
    n = len(now.log_rows)
    start, stop = rules.visible_keys(layer.mask, n)
    row, seen = np.arange(n), (stop - start).astype(np.float64)
    to_itself = (start <= row) & (row < stop)
    others = seen - to_itself > 0
    dz = np.minimum(times(layer.log_lambda, now.log_rows), LOG2 + layer.log_F_z)
    own_dz = min(float(times(layer.log_lambda, now.log_own)), LOG2 + layer.log_F_z)
    largest, total = _over_visible(start, stop, dz)
    log_w = -np.logaddexp(0.0, times(log(np.maximum(seen - 1, 0)), -2 * layer.A))
    v, r = layer.log_values[:, None], layer.log_radius[:, None]
    flipped = np.where(others, log_w, -np.inf)

    change = plus(times(v, np.minimum(largest, times(log_w, total))), times(v, flipped, own_dz))
    keys = times(layer.log_key, np.minimum(largest, times(LOG2, log_w, total)))
    elsewhere = times(r, plus(np.where(seen > 0, times(layer.log_query, dz), -np.inf), keys))
    moved = np.minimum(plus(times(layer.log_query, dz), times(layer.log_key, own_dz)), LOG2 + log(layer.A))
    change = plus(change, elsewhere, times(LOG2, r, flipped, np.minimum(0.0, moved)))
    change = np.minimum(change, LOG2 + r)
    rows = np.minimum(times(layer.log_map, plus(now.log_rows, *change)), LOG2 + log_f_next)

    # The flipped row: its query moves by own_dz, and every score in the row with it.
    nearest = np.where(to_itself, np.maximum(largest, own_dz), largest)
    own = times(v, plus(largest, np.where(to_itself, times(log_w, own_dz), -np.inf)))
    moved = plus(times(layer.log_query, own_dz), times(layer.log_key, nearest))
    moved = np.minimum(np.minimum(moved, LOG2 + log(layer.A)), LOG2)
    own = np.minimum(plus(own, times(r, moved)), LOG2 + r)
    own = np.where(seen > 0, own, -np.inf)
    log_own = float(np.max(times(layer.log_map, plus(now.log_own, *own))))
    return LayerBound(min(log_own, LOG2 + log_f_next), rows)


def _over_visible(
    start: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"], logs: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """log of the largest entry, and of the sum of the entries, that each row sees. O(n); of windows, O(n width)."""
    if start.any() and (stop < len(logs)).any():  # windows: neither the first keys nor the last ones
        spans = [logs[a:b] for a, b in zip(start, stop, strict=True)]
        largest = np.array([np.max(span, initial=-np.inf) for span in spans])
        return largest, np.array([np.logaddexp.reduce(span, initial=-np.inf) for span in spans])
    if start.any():  # the visible keys are the last ones, not the first: count from the end
        largest, total = _over_visible(np.zeros_like(start), (len(logs) - start)[::-1], logs[::-1])
        return largest[::-1], total[::-1]
    none = [-np.inf]
    largest = np.concatenate([none, np.maximum.accumulate(logs)])
    total = np.concatenate([none, np.logaddexp.accumulate(logs)])
    return largest[stop], total[stop]


ABOUT_CONSTANT = (
    "The closed form falls as 1/n. Its constant contains exp(2A) for every layer, A the largest score that any word "
    "could reach: it is a statement about growth, and mostly far larger than what is measured. `certified_bound` is "
    "nearer."
)


@dataclass(frozen=True, eq=False)
class Lemma5(SavedResult):
    """Bounds on how far one exchanged symbol moves a model's output, for all words of length n; logs are natural.

    The bounds are for exact arithmetic with the model's parameters. A measurement in floating point adds its rounding.

    Attributes:
        n, norm: the length; "l2", "l1" or "linf" of the output's change.
        log_bound: log of the bound on the output's change: `by_layer` at the readout, through the linear head. It holds
            for every mask and every n, and never exceeds `log_closed_form` (times the head's gain) or `log_trivial`.
        log_trivial: log of 2 F_L through the linear head, which no exchange can exceed.
        by_layer: the bounds on y^(0), ..., y^(L), row by row.
        constants: of every layer: F, A, Lipschitz constants, with their derivations.
        log_D: D, the largest change of the flipped row in any layer: |E_s - E_t| at first, 2 F_k later.
        log_output_gain: of the readout and linear head: 1 or |W| (only the columns of W in `outputs`), and the
            conversion to `norm`.
        readout, outputs: "last", a 0-based position or "mean"; the coordinates that enter the norm, None for all.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, feed_forward=4))
    >>> found = jaxsens.theory.lemma5(model, 64)
    >>> found.log_bound <= found.log_trivial
    True
    """

    kind = "bounds of Lemma 5"
    n: int
    norm: str
    log_bound: float
    log_trivial: float
    by_layer: tuple[LayerBound, ...]
    constants: tuple[LayerConstants, ...]
    log_D: float
    log_output_gain: float
    readout: int | str
    outputs: tuple[int, ...] | None

    @property
    def H(self) -> int:
        """The largest number of heads of a layer; 1 without layers."""
        return max([1, *(layer.heads for layer in self.constants)])

    @property
    def A(self) -> float:
        """The largest logit bound of a layer, at this n; 0 without layers."""
        return max([0.0, *(layer.logit_bound for layer in self.constants)])

    @property
    def log_L_fact(self) -> float:
        """The largest of the layers': Lip (1 + lambda max_h (V_h + 4 R_h Lambda_h))."""
        return max([0.0, *(layer.log_L_fact for layer in self.constants)])

    @property
    def log_C(self) -> float:
        """log of C = 2 (1 + exp(2A) + L_fact)."""
        return LOG2 + float(plus(0.0, 2 * self.A, self.log_L_fact))

    @cached_property
    def reason(self) -> str | None:
        """Why there is no closed form; None if there is one."""
        given = dict.fromkeys(layer.mask for layer in self.constants)
        windows = [mask for mask in given if isinstance(mask, SlidingWindow)]
        if windows:
            return (
                f"mask {windows[0]}: a row sees at most {windows[0].width} keys at every n, so that no weight "
                "need fall with n; Lemma 5 needs all rows to see about n"
            )
        masks = sorted(mask for mask in given if isinstance(mask, str) and mask != "none")
        if masks:
            return (
                f"mask {', '.join(masks)}: rows see fewer than n keys, and those that see few change by O(1) in n; "
                "the induction of Lemma 5 needs all rows to see about n"
            )
        if self.log_L_fact == math.inf:
            return "layer_norm_epsilon = 0: layer normalisation is not Lipschitz then, and O(1) changes are possible"
        return "the bound on the logits overflows" if math.isinf(self.A) else None

    @cached_property
    def log_closed_form(self) -> float:
        """log of H^L C^(2L) D / n, plus D/n for the mean over positions, through the linear head.

        It falls exactly as 1/n where no constant depends on n. inf where Lemma 5 gives none: see `reason`.
        """
        if self.reason is not None:
            return math.inf
        power = len(self.constants) * (math.log(self.H) + 2 * self.log_C)
        if self.readout == "mean":
            power = plus(power, 0.0)
        return float(times(self.log_output_gain, self.log_D - math.log(self.n), power))

    @property
    def bound(self) -> float:
        """e^log_bound; inf if that overflows."""
        return exp(self.log_bound)

    @property
    def closed_form(self) -> float:
        """e^log_closed_form; inf if that overflows, or if there is none (`reason`)."""
        return exp(self.log_closed_form)

    @property
    def trivial(self) -> float:
        """e^log_trivial."""
        return exp(self.log_trivial)

    @property
    def vacuous(self) -> bool:
        """Whether the bound says next to nothing at this n: it exceeds half of `trivial`."""
        return self.log_bound > self.log_trivial - LOG2

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {
            "bound": self.bound,
            "closed form H^L C^2L D / n": self.reason or self.closed_form,
            "trivial bound": self.trivial,
            "largest score A": self.A,
            "layers, heads": f"{len(self.constants)}, {self.H}",
        }
        return html_facts(f"Lemma 5 at n = {self.n}", rows, ABOUT_CONSTANT)

    def __repr__(self) -> str:
        closed = "none" if self.reason else f"exp({self.log_closed_form:.4g})"
        says = "forbids nothing" if self.vacuous else "a bound"
        return (
            f"Lemma5(n={self.n}, {self.norm}: bound=exp({self.log_bound:.4g}), {says}; trivial="
            f"exp({self.log_trivial:.4g}), closed form={closed}, A={self.A:.4g}, L={len(self.constants)}, H={self.H})"
        )


@naming_arguments
def lemma5(model: Transformer, n: int, flips: Flips | Any = None, measure: Measure | Any = "l2") -> Lemma5:
    """Bounds the output's change when one symbol other than the one read out is exchanged, over all words of length n.

    `bound` follows the changes of the flipped row and of every other row through the layers (`next_layer`). Without
    masks the closed form H^L C^(2L) D / n holds too, at least 16^L times too large. Under a mask there is none: row j
    sees nu_j keys and changes by O(1 / nu_j), not O(1 / n). docs/lemma5.md derives both, and says what is left under
    masks and windows.

    Softmax at any temperature is accepted, with or without a sink. A may then grow with n, and e^(2A) / n need not
    fall: compare `A` at several lengths.

    Args:
        model: a jaxsens transformer, softmax in every layer.
        n: length of the inputs.
        flips: a `Substitute` of an alphabet or ids: the symbols that are exchanged for one another; by default the
            alphabet, as in `flip_sensitivity`. The rest of the word may hold any symbol of the vocabulary. The flipped
            position is any but the readout's; with the readout "mean", any.
        measure: a norm: `L2`, `L1` or `LInf`. The bound with `outputs="all"` holds for any choice of outputs. A choice
            may have a smaller bound, because only its columns of the linear head matter.

    O(n (vocabulary d + L H)), and one singular value decomposition a matrix.

    Raises:
        InputError: naming every argument that cannot be used, among them models with hard attention or sparsemax, for
            which no bound on the logits makes weights O(1/n), and models with a part that has no rule here.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> found = lemma5(model, 64)
    >>> found.log_bound <= found.log_closed_form
    True
    """
    with collecting("lemma5") as problems:
        config = rules.softmax_config(model, problems, why_not, weightings.SOFTMAXES)
        n = inputs.length(n, problems)
        norm = read_norm(measure, problems)
        if config is not None and n:
            check_runs(config, n, problems)
        sizes = (None, None) if config is None else (config.alphabet_size, config.vocabulary_size)
        chosen = alphabet_of(flips, *sizes, problems)
        size = None if config is None else rules.output_size(config)
        columns = rules.measured_outputs(model, norm, size, problems)
    columns = None if columns is None else tuple(sorted(set(columns)))
    config, parameters = model.config, model.parameters
    log_f = float(log(largest_embedding(config, parameters, n)))
    # How far one exchange moves y_i^(0), whatever the position.
    rows = np.asarray(parameters.embedding, np.float64)[chosen]
    apart = max(np.linalg.norm(rows - row, axis=1).max() for row in rows) * (1 + OUTWARD)
    bounds = [LayerBound(float(log(apart)), np.full(n, -np.inf))]
    layers, log_d = [], bounds[0].log_own
    for k, given in enumerate(parameters.layers):
        constants, log_f = _constants_of_layer(config.layer(k), config.dtype, given, n, log_f)
        layers.append(constants)
        bounds.append(next_layer(constants, bounds[-1], log_f))
        log_d = max(log_d, LOG2 + log_f)
    gain = log_output_gain(parameters, config.width, norm.kind, columns)
    last, row = bounds[-1], readout_row(config.readout, n)
    mean = plus(np.logaddexp.reduce(last.log_rows), last.log_own) - math.log(n)  # the flipped row adds D/n
    trivial = float(times(gain, LOG2 + log_f))
    return Lemma5(
        n=n,
        norm=norm.kind,
        log_bound=min(float(times(gain, mean if row is None else last.log_rows[row])), trivial),
        log_trivial=trivial,
        by_layer=tuple(bounds),
        constants=tuple(layers),
        log_D=log_d,
        log_output_gain=gain,
        readout=config.readout,
        outputs=columns,
    )
