"""Exact PARITY and FIRST of Chiang and Cholak: reference models whose flip sensitivity is a formula.

D. Chiang and P. Cholak, Overcoming a Theoretical Limitation of Self-Attention, ACL 2022,
doi 10.18653/v1/2022.acl-long.527.

Both models decide their language at every length with softmax attention and bounded position embeddings.
docs/named-constructions.md has the gaps, and how the weights differ from the paper's.

Every coordinate of a model with layer normalisation stands next to its negative. The mean is then 0 in floating point
too, in whatever order a machine adds.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import choice, number
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.models.transformer.config import Dtype, TransformerConfig
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.formal.constructions.network import blank

LanguageName = Literal["parity", "first"]
Read = Literal["output", "everything"]

PAIRS: dict[LanguageName, int] = {"parity": 10, "first": 6}
"""The paper's d without layer normalisation; half its d with it."""

ZERO, ONE, CLS = range(3)
"""The ids of the symbols."""

# Coordinates of PARITY after the symbols: i/N, (-1)^i, k/N, 1/N, the tent [i = k + 1]/N and the logit; one is unused.
FRACTION, ALTERNATING, ONES, UNIT, TENT, PARITY_LOGIT = range(3, 9)

# Coordinates of FIRST after the symbols: [i = 1], the flag "this is the first symbol, and a one", and the logit.
START, FLAG, FIRST_LOGIT = range(3, 6)


@dataclass(frozen=True)
class ReferenceVariant:
    """One of the paper's transformers.

    Attributes:
        language: "parity", an odd number of ones, or "first", a one at the start.
        layer_norm: Whether every map is followed by layer normalisation.
        layer_norm_epsilon: Added to the variance; at 0 the gap does not vanish.
        log_length: Whether scores are multiplied by log N ("temperature-log"). PARITY's in layer 1 are 0.
        sharpness: c, the score of a query that looks and a key that answers, in layer 2.

    Raises:
        InputError: Listing everything that cannot be used.
    """

    language: LanguageName
    layer_norm: bool = False
    layer_norm_epsilon: float = 0.0
    log_length: bool = False
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        with collecting(f"Chiang and Cholak's {self.language!r}") as problems:
            choice("language", self.language, get_args(LanguageName), problems)
            choice("layer_norm", self.layer_norm, (True, False), problems)
            choice("log_length", self.log_length, (True, False), problems)
            number("sharpness", self.sharpness, problems, above=0, below=math.inf)
            epsilon = number("layer_norm_epsilon", self.layer_norm_epsilon, problems, least=0, below=math.inf)
            if epsilon and not self.layer_norm:
                problems.add("layer_norm_epsilon", self.layer_norm_epsilon, "0, or give layer_norm=True")

    @property
    def pairs(self) -> int:
        """The number of coordinates of a row; with layer normalisation, of pairs of coordinates."""
        return PAIRS[self.language]

    @property
    def logit(self) -> int:
        """The coordinate of y^(L) whose sign decides."""
        coordinate = {"parity": PARITY_LOGIT, "first": FIRST_LOGIT}[self.language]
        return 2 * coordinate if self.layer_norm else coordinate

    def score(self, n: int) -> float:
        """c; with log-length scaling c log N."""
        return self.sharpness * (math.log(n) if self.log_length else 1.0)


class ReferenceTransformer(Transformer):
    """One of Chiang and Cholak's transformers, made by `parity` or `first`. Inputs are bits and, last, the symbol 2.

    Attributes:
        variant: Which one.
        language: "parity", an odd number of ones, or "first", a one at the start.
        logit: The coordinate of y^(L) whose sign decides.
        read: What `outputs` designates.
        outputs: The coordinates to measure: `(logit,)` if `read` is "output", None (all) if it is "everything".
    """

    def __init__(self, variant: ReferenceVariant, *, read: Read = "output", dtype: Dtype = "float64") -> None:
        with collecting("ReferenceTransformer") as problems:
            choice("read", read, get_args(Read), problems)
        shape = _config(variant, dtype)
        super().__init__(shape, parameters=_parameters(variant, shape))
        self.variant, self.language, self.logit, self.read = variant, variant.language, variant.logit, read
        self.outputs: tuple[int, ...] | None = (variant.logit,) if read == "output" else None

    def prepare(self, word: ArrayLike) -> Int[np.ndarray, "*batch n"]:
        """The tokens of a word or a batch of words, int64: its bits, followed by the classification symbol.

        A word is a string or whole numbers; a batch has such words as rows.

        Raises:
            InputError: If a symbol is neither 0 nor 1.
        """
        bits = np.array(list(word) if isinstance(word, str) else word)
        if bits.ndim == 0 or not np.isin(bits, ["0", "1"] if bits.dtype.kind == "U" else [0, 1]).all():
            raise InputError.of("word", word, "zeros and ones are needed, as a string or as whole numbers")
        return np.insert(bits.astype(np.int64), bits.shape[-1], CLS, axis=-1)

    @property
    def exact_length(self) -> int | None:
        """The longest input that the model's dtype is predicted to decide; None for FIRST, which has no limit.

        PARITY's logit of 2 tanh(c)/N^2 is compared with a tent whose values have rounding errors of u, half the machine
        epsilon, at every position: N^2 is kept below tanh(c) / 4u. With layer norm, the attention weight of the
        position looked up is smaller than others by a factor of up to exp(0.39 c).
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

        An input is tokens with the classification symbol last, or a text of bits without it. The empty word is
        rejected: its PARITY logit is 0 (with layer norm 0/0, not a number), which is not positive.

        Raises:
            InputError: For anything but bits and, last, the classification symbol.
        """
        given = self.prepare(tokens) if isinstance(tokens, str) else np.asarray(tokens)
        sound = np.issubdtype(given.dtype, np.integer) and given.ndim > 0 and given.shape[-1] > 0
        bits = sound and np.isin(given[..., :-1], (ZERO, ONE)).all()
        if not bits or np.any(given[..., -1] != CLS):
            remedy = f"inputs as prepare(word) makes them: bits and, last, the symbol {CLS}"
            raise InputError.of("tokens", tokens, remedy)
        positive = np.asarray(self(given))[..., self.logit] > 0
        return bool(positive) if positive.ndim == 0 else positive


def reference(
    language: LanguageName, *, read: Read = "output", dtype: Dtype = "float64", **options: Any
) -> ReferenceTransformer:
    """The transformer of a language, with the options of `ReferenceVariant`: `parity(**options)` or `first(**options)`.

    PARITY, the words with an odd number of ones: 2 layers of 2 heads, width 10 (20 with layer norm). Layer 1 averages,
    so that k ones become k/N, and marks position k + 1. Layer 2 sees whether that is even or odd. With layer norm, each
    map is followed by one, and the last leaves only the logit's sign, times sqrt(10).

    FIRST, the words that start with a one: 2 layers of one head, width 6 (12 with layer norm). Layer 1 flags a one at
    the start. Layer 2's classification symbol looks there with score c, and elsewhere with 0; its logit is half the
    weight it gives to the start, positive if there is a flag. The classification symbol stands last, where the paper
    has it first: softmax does not see order, and the logits are the paper's. With layer norm, the last map leaves the
    logit's sign times sqrt(6).

    Args:
        language: "parity" or "first".
        read: "output" to measure the logit, "everything" to measure all of y_CLS.
        dtype: The dtype of weights and arithmetic; see `ReferenceTransformer.exact_length`.
        options: The other fields of `ReferenceVariant`.

    Raises:
        InputError: Naming each argument that cannot be used.
    """
    return ReferenceTransformer(ReferenceVariant(language, **options), read=read, dtype=dtype)


parity, first = partial(reference, "parity"), partial(reference, "first")


# The weights.


def _config(variant: ReferenceVariant, dtype: Dtype) -> TransformerConfig:
    parity = variant.language == "parity"
    d = variant.pairs
    return TransformerConfig(
        alphabet_size=2,
        width=2 * d if variant.layer_norm else d,
        heads=2 if parity else 1,
        layers=2,
        feed_forward=(3 if parity else 1, 2 * (d - 3) if variant.layer_norm else 0),
        head_width=1,
        weighting=Softmax(SCHEDULES["log" if variant.log_length else "constant"]),
        positions=("fraction", "alternating") if parity else ("first",),
        layer_norm="post" if variant.layer_norm else "none",
        layer_norm_epsilon=variant.layer_norm_epsilon,
        dtype=dtype,
    )


def _parameters(variant: ReferenceVariant, shape: TransformerConfig) -> TransformerParameters:
    weights = blank(shape.replace(width=variant.pairs, layer_norm="none"))
    weights.embedding[[ZERO, ONE, CLS], [ZERO, ONE, CLS]] = 1
    {"parity": _set_parity, "first": _set_first}[variant.language](weights, variant.sharpness)
    if not variant.layer_norm:
        return weights
    # relu(-x) - relu(x) = -x erases the classification symbol's row, except for the logit. The bits' own rows keep
    # their symbols: their logit is 0, and without an epsilon a row of zeros cannot be normalised.
    last = weights.layers[1]
    others = np.delete(np.eye(len(last.w1)), [ZERO, ONE, variant.logit // 2], axis=0)
    last.w1[...] = np.concatenate([others, -others]).T
    last.w2[...] = np.concatenate([-others, others])
    return _paired(weights, shape)


def _set_parity(weights: Any, c: float) -> None:
    weights.components[[0, 1], [FRACTION, ALTERNATING]] = 1
    count, look = weights.layers
    # Attention without queries averages: the ones give k/N, the classification symbol 1/N.
    count.value[[0, 1], [ONE, CLS], 0] = 1
    count.output[[0, 1], 0, [ONES, UNIT]] = 1
    # With t = (k + 1 - i)/N, relu(t - 1/N) - 2 relu(t) + relu(t + 1/N) is 1/N where t is 0, and 0 elsewhere.
    count.w1[[ONES, FRACTION], :] = [[1], [-1]]
    count.w1[UNIT, :] = [0, 1, 2]
    count.w2[:, TENT] = [1, -2, 1]
    # One head looks at even positions, the other at odd ones. The logit is how much more of the tent the first sees.
    look.query[:, CLS, 0] = c
    look.key[:, ALTERNATING, 0] = [1, -1]
    look.value[:, TENT, 0] = 1
    look.output[:, 0, PARITY_LOGIT] = [1, -1]


def _set_first(weights: Any, c: float) -> None:
    weights.components[0, START] = 1
    flag, look = weights.layers
    # relu([i = 1] - [0] - [CLS]) needs no bias, so layer normalisation only scales it.
    flag.w1[[START, ZERO, CLS], 0] = [1, -1, -1]
    flag.w2[0, FLAG] = 1
    look.query[0, CLS, 0] = c
    look.key[0, START, 0] = 1
    look.value[0, [FLAG, START], 0] = [1, -0.5]
    look.output[0, 0, FIRST_LOGIT] = 1


def _paired(weights: Any, shape: TransformerConfig) -> TransformerParameters:
    """The same network on rows (x_0, -x_0, x_1, -x_1, ...): it reads the first of each pair and writes both."""

    def written(matrix: np.ndarray) -> np.ndarray:
        return np.repeat(matrix, 2, axis=-1) * np.tile([1.0, -1.0], matrix.shape[-1])

    def read(matrix: np.ndarray) -> np.ndarray:
        return np.repeat(matrix, 2, axis=-2) * np.tile([1.0, 0.0], matrix.shape[-2])[:, None]

    paired = blank(shape)
    paired.embedding[...] = written(weights.embedding)
    paired.components[...] = written(weights.components)
    for layer, single in zip(paired.layers, weights.layers, strict=True):
        for name in ("query", "key", "value", "w1"):
            getattr(layer, name)[...] = read(getattr(single, name))
        for name in ("output", "w2"):
            getattr(layer, name)[...] = written(getattr(single, name))
        layer.attention_norm.scale[...] = layer.feed_forward_norm.scale[...] = 1
    return paired
