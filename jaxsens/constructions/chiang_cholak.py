"""Exact PARITY and FIRST of Chiang and Cholak (ACL 2022): references whose flip sensitivity is a formula.

Both decide their language at every length with softmax attention and bounded position embeddings. By Hahn's Lemma 5
their logits' gaps must vanish; layer normalisation without an epsilon is no Lipschitz map, and lets them stay apart.
N counts the classification symbol and c is the sharpness.

| variant | gap of the logit | as N grows |
| --- | --- | --- |
| PARITY, any flip | 4 tanh(c) / (N^2 - [N odd] tanh(c)^2) | N^-2 |
| PARITY, log-length scaling | the same with c log N for c | N^-2 |
| PARITY, layer norm, epsilon = 0 | 2 sqrt(10) | constant |
| FIRST, flip of the first symbol | w = e^c / (e^c + N - 1) | N^-1 |
| FIRST, log-length scaling | w = N^c / (N^c + N - 1) | N^(c-1); 1/2 at c = 1; 1 for c > 1 |
| FIRST, layer norm, epsilon = 0 | 2 sqrt(6) | constant |
| FIRST, any other flip | 0 | 0 |

With layer norm and an epsilon above 0 the gaps fall again once epsilon outweighs the logit before normalisation:
PARITY's as N^-2, FIRST's as N^-1, or with log-length scaling by a smaller power or not at all. Their rows' deviations
differ from position to position; `closed_form` and `predicted` have the formulas.

Of the whole y_CLS without layer norm, a flip changes PARITY's k/N too, so N x gap -> 1. (At the classification symbol
itself the tent 1/N stands if all bits are ones, and flips that leave or reach that word have sqrt(2) for 1.) FIRST's
logit is all that changes. With layer norm the pair of logits is all that is left: sqrt(2) times the logit's gap.
"""

from __future__ import annotations

import bisect
import math
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from jaxsens.constructions import chiang_cholak_weights as weights
from jaxsens.constructions.chiang_cholak_logits import Variant, logits
from jaxsens.errors import InputError
from jaxsens.inputs import is_count
from jaxsens.models.transformer import Transformer

Read = Literal["output", "everything"]


class ReferenceTransformer(Transformer):
    """One of Chiang and Cholak's transformers, made by `parity` or `first`. Inputs are bits and, last, the symbol 2.

    Attributes:
        variant: which one.
        language: "parity" or "first".
        read: what `outputs` designates.
        logit: the coordinate of y^(L) whose sign decides.
        outputs: `(logit,)` where `read` is "output", None (all coordinates) where it is "everything".
    """

    def __init__(
        self,
        variant: Variant,
        *,
        read: Read = "output",
        dtype: Literal["float32", "float64"] = "float64",
    ) -> None:
        if read not in get_args(Read):
            raise InputError(f"read = {read!r}: one of {', '.join(get_args(Read))}")
        shape = weights.config(variant, dtype)
        super().__init__(shape, parameters=weights.parameters(variant, shape))
        self.variant = variant
        self.read = read

    @property
    def language(self) -> str:
        """ "parity": an odd number of ones; "first": a one at the start."""
        return self.variant.language

    @property
    def logit(self) -> int:
        """The coordinate of y^(L) whose sign decides."""
        return weights.logit_coordinate(self.variant)

    @property
    def outputs(self) -> tuple[int, ...] | None:
        """The coordinates a measurement is about; None for all."""
        return (self.logit,) if self.read == "output" else None

    def prepare(self, word: ArrayLike) -> Int[np.ndarray, "*batch n"]:
        """The tokens of a word or a batch of words, int64: its bits, and the classification symbol behind them.

        A word is a string or whole numbers, a batch has rows of these.

        Raises:
            InputError: if a symbol is neither 0 nor 1.
        """
        bits = np.array(list(word) if isinstance(word, str) else word)
        if bits.ndim == 0 or not np.isin(bits, ["0", "1"] if bits.dtype.kind == "U" else [0, 1]).all():
            raise InputError(f"word = {word!r}: zeros and ones are needed, as a string or as whole numbers")
        return np.insert(bits.astype(np.int64), bits.shape[-1], weights.CLS, axis=-1)

    @property
    def exact_length(self) -> int | None:
        """The longest input that the model's dtype is predicted to decide; None where there is no limit: FIRST.

        PARITY's logit of 2 tanh(c)/N^2 stands beside a tent whose values have rounding errors u, half the machine
        epsilon, at every position: N^2 is kept below tanh(c) / 4u. With layer norm the position looked up has an
        attention weight that is smaller than others' by up to exp(0.39 c).
        """
        if self.language == "first":
            return None

        def needed(n: int) -> float:
            c = self.variant.score(n)
            return 2 * math.log(n) + (0.39 * c if self.variant.layer_norm else 0) - math.log(math.tanh(c))

        available = -math.log(2 * float(np.finfo(self.config.dtype).eps))
        return 1 + bisect.bisect_right(range(2, 2**27), available, key=needed)

    def accepts(self, tokens: str | Int[np.ndarray, "*batch n"]) -> Any:
        """Whether each input is in the language, by the sign of its logit: a bool, or an array of them for a batch.

        An input is tokens with the classification symbol last, or a text of bits without it.

        The empty word's PARITY logit is 0 (with layer norm 0/0, not a number): not positive, so it is rejected.

        Raises:
            InputError: for anything but bits and, last, the classification symbol.
        """
        inputs = self.prepare(tokens) if isinstance(tokens, str) else tokens
        positive = np.asarray(self(self._checked(inputs)))[..., self.logit] > 0
        return bool(positive) if positive.ndim == 0 else positive

    def closed_form(self, n: int) -> float:
        """The gap that `outputs` shows on inputs of n symbols, the classification symbol among them.

        It is the gap of every flip (PARITY), or of the flip of the first symbol (FIRST), on whatever word: but PARITY's
        depends on the number of ones with an epsilon above 0, and "everything" on whether all bits are ones. This is
        then the largest gap on the word 0101...; `predicted` takes any. Float64, whatever the model's dtype.

        Raises:
            InputError: if n < 2, which leaves nothing to flip.
        """
        if not is_count(n, 2):
            raise InputError(
                f"n = {n!r}: a whole number of at least 2: one bit and the classification symbol"
            )
        if self.language == "first":
            return self._gap(n, 0, 1)
        ones = (n - 1) // 2
        return max(self._gap(n, ones, after) for after in (ones - 1, ones + 1) if after >= 0)

    def predicted(self, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, " bits"]:
        """The gaps that `outputs` shows on one input, float64, one for the flip of each bit in order.

        Raises:
            InputError: for anything but one input of bits and, last, the classification symbol.
        """
        bits = self._checked(tokens, batch=False)[:-1]
        if self.language == "first":
            gaps = np.zeros(len(bits))
            gaps[:1] = self._gap(len(bits) + 1, 0, 1)
            return gaps
        ones = int(bits.sum())
        one_less, one_more = (self._gap(len(bits) + 1, ones, ones + step) for step in (-1, 1))
        return np.where(bits == 1, one_less, one_more)

    def _gap(self, n: int, before: int, after: int) -> float:
        """How far `outputs` moves between two numbers of ones, or two first bits; nan if no word has one of them."""
        if min(before, after) < 0 or max(before, after) > n - 1:
            return math.nan
        z = logits(self.variant, n, np.array([before, after]))
        gap = abs(float(z[1] - z[0]))
        if self.outputs is not None:
            return gap
        if self.variant.layer_norm:
            return math.sqrt(2) * gap
        if self.language == "first":
            return gap
        tent = n - 1 in (before, after)
        return math.hypot(gap, 1 / n, tent / n)

    def _checked(
        self, tokens: Int[np.ndarray, "*batch n"], batch: bool = True
    ) -> Int[np.ndarray, "*batch n"]:
        given = np.asarray(tokens)
        if (
            not np.issubdtype(given.dtype, np.integer)
            or not (given.ndim == 1 or (batch and given.ndim > 1))
            or given.shape[-1] == 0
            or np.any(given[..., -1] != weights.CLS)
            or not np.isin(given[..., :-1], (weights.ZERO, weights.ONE)).all()
        ):
            wanted = "inputs" if batch else "one input"
            raise InputError(
                f"tokens = {tokens!r}: {wanted} as prepare(word) makes them: bits and, last, the symbol {weights.CLS}"
            )
        return given


def parity(
    *,
    layer_norm: bool = False,
    layer_norm_epsilon: float = 0.0,
    log_length: bool = False,
    sharpness: float = 1.0,
    read: Read = "output",
    dtype: Literal["float32", "float64"] = "float64",
) -> ReferenceTransformer:
    """PARITY, the words with an odd number of ones: 2 layers of 2 heads, width 10 (20 with layer norm).

    Layer 1 averages, k ones being k/N, and marks position k + 1; layer 2 sees whether that is even or odd. With layer
    norm, each map is followed by one, and the last leaves nothing but the logit's sign, times sqrt(10).

    Args:
        layer_norm: whether there is layer normalisation.
        layer_norm_epsilon: added to the variance; at 0 the gap does not vanish.
        log_length: whether scores are multiplied by log N ("temperature-log"). Layer 1's are 0.
        sharpness: c, layer 2's score.
        read: "output": measure the logit; "everything": all of y_CLS.
        dtype: of weights and arithmetic; see `ReferenceTransformer.exact_length`.

    Raises:
        InputError: naming each argument that cannot be used.
    """
    variant = Variant("parity", layer_norm, layer_norm_epsilon, log_length, sharpness)
    return ReferenceTransformer(variant, read=read, dtype=dtype)


def first(
    *,
    layer_norm: bool = False,
    layer_norm_epsilon: float = 0.0,
    log_length: bool = False,
    sharpness: float = 1.0,
    read: Read = "output",
    dtype: Literal["float32", "float64"] = "float64",
) -> ReferenceTransformer:
    """FIRST, the words that start with a one: 2 layers of one head, width 6 (12 with layer norm).

    Layer 1 flags a one at the start; layer 2's classification symbol looks there with score c, elsewhere with 0, and
    its logit is half the weight it gives to the start, positive if there is a flag. The classification symbol stands
    last, where the paper has it first: softmax does not know order, and the logits are the paper's.

    Args:
        layer_norm: whether there is layer normalisation; the last leaves the logit's sign, times sqrt(6).
        layer_norm_epsilon: added to the variance; at 0 the gap does not vanish.
        log_length: whether scores are multiplied by log N ("temperature-log").
        sharpness: c, layer 2's score.
        read: "output": measure the logit; "everything": all of y_CLS.
        dtype: of weights and arithmetic.

    Raises:
        InputError: naming each argument that cannot be used.
    """
    variant = Variant("first", layer_norm, layer_norm_epsilon, log_length, sharpness)
    return ReferenceTransformer(variant, read=read, dtype=dtype)
