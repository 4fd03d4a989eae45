"""Lemma 5 of Hahn (2020): how far an exchanged symbol can move a softmax transformer's output, every constant computed.

Hahn, "Theoretical Limitations of Self-Attention in Neural Sequence Models", TACL 8 (2020), Lemma 5: if attention logits
are bounded by A, exchanging one symbol other than the one read out moves y_n^(L) by at most H^L C^(2L) D / n, where
C = 2 (1 + exp(2A) + L_fact). The published proof bounds the change of an average by sum_w a_jw |y_w - y'_w|, which
leaves out that the weights change too; a supplement of 2021 adds that term. Everything here is derived anew
(docs/lemma5.md), for the whole model family: values and output matrices, residual connections, layer normalisation,
temperatures, masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxsens.errors import Faults
from jaxsens.inputs import array_of, is_count, plain_numbers
from jaxsens.models.config import TransformerConfig
from jaxsens.models.given import instead_of
from jaxsens.models.layers import readout_position
from jaxsens.models.parameters import TransformerParameters
from jaxsens.models.transformer import Transformer, check_runs
from jaxsens.models.weighting import Softmax
from jaxsens.theory.lemma5_constants import LayerConstants, layer_constants, log_C
from jaxsens.theory.lemma5_recursion import LayerBound, next_layer
from jaxsens.theory.lipschitz import exp, largest_exchange, log, log_output_gain, plus, times

NORMS = ("l2", "l1", "linf")


@dataclass(frozen=True, eq=False)
class Lemma5:
    """Bounds on how far one exchanged symbol moves a model's output, for all words of length n; logs are natural.

    They are about exact arithmetic with the model's parameters; what is measured in floats is that and rounding.

    Attributes:
        n: the length.
        norm: of the output's change: "l2", "l1" or "linf".
        log_bound: log of the bound on the output's change: `by_layer` at the readout, through the linear head. It holds
            for every mask and every n, and is never above `log_closed_form` (times the head's gain) nor `log_trivial`.
        log_closed_form: log of H^L C^(2L) D / n, plus D/n for the mean over positions, through the linear head;
            falls exactly as 1/n where no constant depends on n. inf where Lemma 5 does not say it: see `reason`.
        log_trivial: log of 2 F_L through the linear head: what no exchange whatever can exceed.
        reason: why there is no closed form; None if there is one.
        by_layer: the bounds on y^(0), ..., y^(L), row by row (`lemma5_recursion`).
        constants: of every layer: F, A, Lipschitz constants, with their derivations.
        log_D: D, the largest change of the flipped row in any layer: |E_s - E_t| at first, 2 F_k later on.
        H: the largest number of heads of a layer.
        A: the largest logit bound of a layer, at this n.
        log_L_fact: of the layers' largest: Lip (1 + lambda max_h (V_h + 4 R_h Lambda_h)).
        log_L_fact_published: the same without the change of the weights, Lip (1 + lambda max_h V_h).
        log_C: C = 2 (1 + exp(2A) + L_fact).
        log_C_published: C with `log_L_fact_published`.
        log_output_gain: of the readout and linear head: 1 or |W| (of W what `outputs` has), and conversion to `norm`.
        readout: "last", a 0-based position or "mean".
        outputs: the output coordinates that enter the norm; None for all.
    """

    n: int
    norm: str
    log_bound: float
    log_closed_form: float
    log_trivial: float
    reason: str | None
    by_layer: tuple[LayerBound, ...]
    constants: tuple[LayerConstants, ...]
    log_D: float
    H: int
    A: float
    log_L_fact: float
    log_L_fact_published: float
    log_C: float
    log_C_published: float
    log_output_gain: float
    readout: int | str
    outputs: tuple[int, ...] | None

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
        """Whether the bound says next to nothing at this n: it is above half of `trivial`."""
        return self.log_bound > self.log_trivial - math.log(2)

    def __repr__(self) -> str:
        closed = "none" if self.reason else f"exp({self.log_closed_form:.4g})"
        says = "forbids nothing" if self.vacuous else "a bound"
        return (
            f"Lemma5(n={self.n}, {self.norm}: bound=exp({self.log_bound:.4g}), {says}; trivial="
            f"exp({self.log_trivial:.4g}), closed form={closed}, A={self.A:.4g}, L={len(self.constants)}, H={self.H})"
        )


def lemma5(
    model: Transformer,
    n: int,
    *,
    norm: Literal["l2", "l1", "linf"] = "l2",
    symbols: Sequence[int] | None = None,
    outputs: Sequence[int] | Literal["all"] = "all",
) -> Lemma5:
    """Bounds the output's change when one symbol other than the one read out is exchanged, over all words of length n.

    `bound` follows the changes of the flipped row and of every other row through the layers (`lemma5_recursion`, where
    the step is derived). Without masks every row sees n keys, no weight is above E / n with E = e^(2A), and all rows
    but the flipped one change by O(1/n). With x = H L_fact and D as documented, delta_0 = 0 and

        delta_{k+1} <= x (delta_k + E D / n) ,
        delta_L <= E (x + ... + x^L) D / n <= E (1 + x)^L D / n <= H^L [E (1 + L_fact)]^L D / n ,

    and E (1 + L_fact) <= ((E + 1 + L_fact) / 2)^2 = (C / 4)^2. So the closed form H^L C^(2L) D / n holds, 16^L times
    too large at least. E enters once, not L times: only the flipped key's own weight needs it.

    Under a mask there is no closed form. Row j then sees nu_j keys, and changes by O(1 / nu_j), not O(1 / n): under
    future masks the second row changes by O(1) at every n, and its change feeds into later rows, so that what is
    proved for bounded logits is O((1 + log n)^(k-1) / j) for row j of layer k, O((log n)^(L-1) / n) at the last
    position. `bound` holds all the same: it counts visible keys row by row.

    At any temperature softmax is served: A then grows with n, and e^(2A) / n need not fall (`logit_growth`).

    Args:
        model: a jaxsens transformer, softmax in every layer.
        n: length of the inputs.
        norm: of the output's change.
        symbols: ids that are exchanged for one another; by default the alphabet, as in `flip_sensitivity`. The rest of
            the word may hold any symbol of the vocabulary. The flipped position is any but the readout's; for the
            readout "mean" any.
        outputs: the output coordinates that enter the norm, or "all", whose bound holds of any choice; a choice may
            have a smaller one, for of the linear head only its columns matter.

    Raises:
        InputError: naming every argument that cannot be used; among them models with hard attention or sparsemax, for
            which no bound on the logits makes weights O(1/n).
    """
    n = plain_numbers(n)
    config, parameters, exchanged, columns = _checked(model, n, norm, symbols, outputs)
    layers, log_f_last = layer_constants(config, parameters, n)
    after = [*(layer.log_F for layer in layers), log_f_last][1:]
    bounds = [LayerBound(float(log(largest_exchange(parameters, exchanged))), np.full(n, -np.inf))]
    for layer, log_f in zip(layers, after, strict=True):
        bounds.append(next_layer(layer, bounds[-1], log_f))
    gain = log_output_gain(parameters, config.width, norm, columns)
    trivial = float(times(gain, math.log(2) + log_f_last))
    heads = max([1, *(layer.heads for layer in layers)])
    a = max([0.0, *(layer.logit_bound for layer in layers)])
    facts = max([0.0, *(layer.log_L_fact() for layer in layers)])
    published = max([0.0, *(layer.log_L_fact(with_score_term=False) for layer in layers)])
    log_d = max([bounds[0].log_own, *(math.log(2) + log_f for log_f in after)])
    reason = _no_closed_form(config, facts, a)
    closed = math.inf
    if reason is None:
        mean = config.readout == "mean"
        power = len(layers) * (math.log(heads) + 2 * log_C(a, facts))
        closed = float(times(gain, log_d - math.log(n), plus(power, 0.0) if mean else power))
    return Lemma5(
        n=n,
        norm=norm,
        log_bound=min(float(times(gain, _at_readout(config, bounds[-1], n))), trivial),
        log_closed_form=closed,
        log_trivial=trivial,
        reason=reason,
        by_layer=tuple(bounds),
        constants=tuple(layers),
        log_D=log_d,
        H=heads,
        A=a,
        log_L_fact=facts,
        log_L_fact_published=published,
        log_C=log_C(a, facts),
        log_C_published=log_C(a, published),
        log_output_gain=gain,
        readout=config.readout,
        outputs=columns,
    )


def _at_readout(config: TransformerConfig, bound: LayerBound, n: int) -> float:
    """log of the bound on the change of what is read out: a row's, or the mean's, to which the flipped row adds D/n."""
    position = readout_position(config, n)
    if position is not None:
        return float(bound.log_rows[position])
    return float(plus(np.logaddexp.reduce(bound.log_rows), bound.log_own)) - math.log(n)


def _no_closed_form(config: TransformerConfig, log_l_fact: float, a: float) -> str | None:
    masks = sorted({config.layer(k).mask for k in range(config.layers)} - {"none"})
    if masks:
        return (
            f"mask {', '.join(masks)}: rows see fewer than n keys, and those that see few change by O(1) in n; "
            "the induction of Lemma 5 needs all rows to see about n"
        )
    if math.isinf(log_l_fact) and log_l_fact > 0:
        return (
            "layer_norm_epsilon = 0: layer normalisation is not Lipschitz then, and O(1) changes are possible"
        )
    return "the bound on the logits overflows" if math.isinf(a) else None


def _checked(
    model: Any, n: Any, norm: Any, symbols: Any, outputs: Any
) -> tuple[TransformerConfig, TransformerParameters, np.ndarray, tuple[int, ...] | None]:
    faults = Faults("lemma5")
    config = note_model(model, faults)
    if not is_count(n, 1):
        faults.add("n", n, "a whole number of at least 1")
    elif config is not None:
        check_runs(config, n, faults)
    if norm not in NORMS:
        faults.add("norm", norm, f"one of {', '.join(NORMS)}")
    chosen = np.arange(2 if config is None else config.alphabet_size)
    if symbols is not None:
        given = array_of(symbols)
        if given.ndim != 1 or len(given) < 2 or not np.issubdtype(given.dtype, np.integer):
            faults.add("symbols", symbols, "at least two symbols' ids, or None for the alphabet")
        elif config is not None and (given.min() < 0 or given.max() >= config.vocabulary_size):
            faults.add("symbols", symbols, f"ids from 0 to {config.vocabulary_size - 1}")
        else:
            chosen = np.unique(given)
    columns = _columns(config, outputs, faults)
    faults.raise_if_any()
    return model.config, model.parameters, chosen, columns


def _columns(config: TransformerConfig | None, outputs: Any, faults: Faults) -> tuple[int, ...] | None:
    """The output coordinates that enter the norm, sorted; None for all."""
    if isinstance(outputs, str) and outputs == "all":
        return None
    found = array_of(outputs)
    size = math.inf if config is None else config.width if config.logits is None else config.logits
    sound = found.ndim == 1 and found.size and np.issubdtype(found.dtype, np.integer)
    if not sound or found.min() < 0 or found.max() >= size:
        below = "" if config is None else f" below {size}"
        faults.add("outputs", outputs, f'0-based output coordinates{below}, at least one, or "all"')
        return None
    return tuple(int(k) for k in np.unique(found))


def note_model(model: Any, faults: Faults) -> TransformerConfig | None:
    """The config of a transformer; notes why Lemma 5 has nothing to say about it, if it has not."""
    config = getattr(model, "config", None)
    if not isinstance(model, Transformer) or not isinstance(config, TransformerConfig):
        wanted = instead_of(model, "a jaxsens Transformer: the lemma is about its parameters")
        faults.add("model", type(model).__name__, wanted)
        return None
    for k in range(config.layers):
        weighting = config.layer(k).weighting
        if not isinstance(weighting, Softmax):
            faults.add(
                "model",
                f"{type(weighting).__name__} in layer {k}",
                "softmax in every layer (at any temperature): no bound on the logits makes the weights of other "
                "weighting functions O(1/n), one key may take all of it",
            )
    return config
