"""The transformer family: every choice the papers make, as one frozen, validated value."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from jaxsens.errors import Faults, rule_for
from jaxsens.inputs import is_count, keep_plain
from jaxsens.models.choices import (
    ACTIVATIONS,
    LAYER_NORMS,
    SCORES,
    Activation,
    LayerNorm,
    LayerNormPlaces,
    Scores,
)
from jaxsens.models.masks import MASKS
from jaxsens.models.positions import POSITION_NAMES, CoordinateTerm, PositionTerm, Rotary, ScoreTerm
from jaxsens.models.weighting import WEIGHTINGS, HardWeighting, Softmax, Weighting
from jaxsens.precision import DTYPES

_CHOICES: dict[str, Collection[str]] = {
    "scores": SCORES,
    "layer_norm": LAYER_NORMS,
    "activation": ACTIVATIONS,
    "dtype": DTYPES,
}
_WHOLE = ("alphabet_size", "width", "heads", "layers", "feed_forward", "head_width", "readout", "logits")
_PER_LAYER = ("heads", "head_width", "feed_forward", "weighting", "mask")


@dataclass(frozen=True)
class LayerConfig:
    """One layer of a `TransformerConfig`: everything its mathematics depends on besides parameters."""

    heads: int
    head_width: int
    feed_forward: int
    weighting: Weighting
    mask: str
    scores: Scores
    layer_norm: LayerNorm
    layer_norm_epsilon: float
    activation: Activation
    position_scores: tuple[ScoreTerm, ...]
    exact_rows: bool
    centred_scores: bool

    @property
    def norm(self) -> LayerNormPlaces:
        """Where layer normalisation stands."""
        return rule_for("LayerConfig", "layer normalisation", self.layer_norm, LAYER_NORMS)


@dataclass(frozen=True)
class TransformerConfig:
    """A transformer as both papers define it (Hahn 2020, section 3; Yang et al. 2024, section 2).

    `heads`, `head_width`, `feed_forward`, `weighting` and `mask` take one value, or a tuple of one a layer.

    Attributes:
        alphabet_size: symbols 0 .. alphabet_size - 1.
        width: d, the size of every activation vector.
        heads: H.
        layers: L; 0 is allowed, the embedding alone.
        feed_forward: hidden units of the per-position map; 0 leaves it out.
        head_width: size of queries, keys and values; width / heads if None.
        weighting: a name of `WEIGHTINGS` ("softmax", "temperature-log", "leftmost-hard", ...) or a typed value.
        mask: a name of `MASKS`; "future" means that the future is masked.
        positions: "none", a name of `POSITION_NAMES`, a typed term, or a tuple of these, whose embeddings add up.
        scores: "dot-product", q.k / sqrt(head_width), or "additive", a.tanh(q + k).
        centred_scores: forms each row's scores relative to its best key, from differences of keys: the same weights,
            with digits that large scores lose (`jaxsens.models.centred`). For dot products without rotary or ALiBi
            embeddings and for softmax and hard weightings; slower, and measured by the vmap engine only.
        layer_norm: "none", "pre" (of each map's input) or "post" (after each skip connection).
        layer_norm_epsilon: added to the variance; 0 makes layer normalisation non-Lipschitz.
        activation: of the per-position map; "gelu" is the tanh form.
        readout: "last", a 0-based position, or "mean" over positions.
        logits: outputs of a linear head on the readout; None returns y^(L) itself.
        end_symbol: whether the embedding has a row for an end-of-sequence symbol, id `alphabet_size`.
        dtype: "float32" or "float64", of parameters and of all arithmetic.

    Raises:
        InputError: listing every problem at once.
    """

    alphabet_size: int
    width: int = 64
    heads: int | tuple[int, ...] = 4
    layers: int = 2
    feed_forward: int | tuple[int, ...] = 256
    head_width: int | tuple[int, ...] | None = None
    weighting: str | Weighting | tuple[str | Weighting, ...] = "softmax"
    mask: str | tuple[str, ...] = "none"
    positions: str | PositionTerm | Sequence[str | PositionTerm] = "sinusoidal"
    scores: Scores = "dot-product"
    centred_scores: bool = False
    layer_norm: LayerNorm = "none"
    layer_norm_epsilon: float = 1e-5
    activation: Activation = "relu"
    readout: int | Literal["last", "mean"] = "last"
    logits: int | None = None
    end_symbol: bool = True
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        faults = Faults("TransformerConfig")
        self._normalise(faults)
        self._check_sizes(faults)
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if value not in choices:
                faults.add(field, value, f"one of {', '.join(choices)}")
        epsilon = self.layer_norm_epsilon
        if isinstance(epsilon, bool) or not (isinstance(epsilon, int | float) and epsilon >= 0):
            faults.add("layer_norm_epsilon", self.layer_norm_epsilon, "a number of at least 0")
        faults.raise_if_any()
        self._check_positions(faults)
        if self.centred_scores:
            self._check_centred(faults)
        faults.raise_if_any()

    def _normalise(self, faults: Faults) -> None:
        """Turns names into typed values, lists into tuples, NumPy's whole numbers into Python's."""
        keep_plain(self, *_WHOLE)
        for field in _PER_LAYER:
            value = getattr(self, field)
            if isinstance(value, list):
                object.__setattr__(self, field, tuple(value))
            if isinstance(value, list | tuple) and is_count(self.layers) and len(value) != self.layers:
                faults.add(field, value, f"one value, or one a layer ({self.layers})")
        named = [_weighting(value, faults) for value in _as_tuple(self.weighting)]
        single = not isinstance(self.weighting, tuple)
        object.__setattr__(self, "weighting", named[0] if single else tuple(named))
        for name in _as_tuple(self.mask):
            if not isinstance(name, str) or name not in MASKS:
                faults.add("mask", name, f"one of {', '.join(MASKS)}")
        terms = (
            [] if self.positions in ("none", None) else [_term(v, faults) for v in _as_tuple(self.positions)]
        )
        object.__setattr__(self, "positions", tuple(term for term in terms if term is not None))
        if any(term in terms[:k] for k, term in enumerate(terms)):
            faults.add("positions", self.positions, "name each term once")

    def _check_sizes(self, faults: Faults) -> None:
        for field, least in (("alphabet_size", 2), ("width", 1), ("layers", 0)):
            if not is_count(getattr(self, field), least):
                faults.add(field, getattr(self, field), f"a whole number of at least {least}")
        for field, least in (("heads", 1), ("head_width", 1), ("feed_forward", 0)):
            for value in _as_tuple(getattr(self, field)):
                if not (is_count(value, least) or (field == "head_width" and value is None)):
                    faults.add(field, value, f"a whole number of at least {least}")
        if self.head_width is None and is_count(self.width, 1):
            for value in _as_tuple(self.heads):
                if is_count(value, 1) and self.width % value:
                    faults.add("heads", value, f"a divisor of width = {self.width}, or give head_width")
        if self.logits is not None and not is_count(self.logits, 1):
            faults.add("logits", self.logits, "a whole number of at least 1, or None")
        if self.readout not in ("last", "mean") and not is_count(self.readout):
            faults.add("readout", self.readout, 'a 0-based position, "last" or "mean"')
        for field in ("end_symbol", "centred_scores"):
            if not isinstance(getattr(self, field), bool):
                faults.add(field, getattr(self, field), "True or False")

    def _check_positions(self, faults: Faults) -> None:
        for term in self.position_terms:
            if isinstance(term, Rotary) and any(self.layer(k).head_width % 2 for k in range(self.layers)):
                faults.add("head_width", self.head_width, "an even number, for rotary embeddings turn pairs")
            term.check(faults)
        kinds = [type(term) for term in self.position_terms if not isinstance(term, CoordinateTerm)]
        if len(set(kinds)) < len(kinds):
            faults.add("positions", self.positions, "one term of each kind; only components may be several")
        names = [term.label for term in self.coordinate_terms]
        for name in sorted({name for name in names if names.count(name) > 1}):
            faults.add("positions", name, "a name of its own for each component: it draws the vector by it")

    def _check_centred(self, faults: Faults) -> None:
        weightings = [self.layer(k).weighting for k in range(self.layers)]
        others = [type(w).__name__ for w in weightings if not isinstance(w, Softmax | HardWeighting)]
        checks = (
            (self.scores == "dot-product", 'scores="dot-product"'),
            (not any(isinstance(t, ScoreTerm) for t in self.position_terms), "no rotary or ALiBi positions"),
            (not others, f"softmax or hard weightings, not {', '.join(others)}"),
        )
        missing = [needs for holds, needs in checks if not holds]
        if missing:
            faults.add("centred_scores", True, f"it needs {', '.join(missing)}")

    @property
    def position_terms(self) -> tuple[PositionTerm, ...]:
        """The position embeddings, typed."""
        return cast("tuple[PositionTerm, ...]", self.positions)

    @property
    def coordinate_terms(self) -> tuple[CoordinateTerm, ...]:
        """The position embeddings that are one coordinate each: a row of `parameters.components` each, in order."""
        return tuple(term for term in self.position_terms if isinstance(term, CoordinateTerm))

    @property
    def bounded(self) -> bool:
        """Whether every position embedding stays bounded as n grows (a hypothesis of Hahn's Lemma 5)."""
        return all(term.bounded for term in self.position_terms)

    @property
    def bounded_temperature(self) -> bool:
        """Whether every layer is a softmax whose 1/tau(n) stays bounded (the other hypothesis)."""
        kinds = [self.layer(k).weighting for k in range(self.layers)]
        return all(isinstance(kind, Softmax) and kind.inverse_temperature.bounded for kind in kinds)

    @property
    def end_of_sequence(self) -> int | None:
        """The end-of-sequence symbol's id, `alphabet_size`, or None if the alphabet has none."""
        return self.alphabet_size if self.end_symbol else None

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: the alphabet and the end-of-sequence symbol."""
        return self.alphabet_size + int(self.end_symbol)

    @property
    def exact_rows(self) -> bool:
        """Whether equal rows must get bitwise equal results, as they must where a hard layer breaks ties."""
        weightings = [_of_layer(self.weighting, k) for k in range(self.layers)]
        return any(weighting.hard for weighting in weightings)

    def layer(self, k: int) -> LayerConfig:
        """The configuration of layer k, 0 <= k < layers."""
        heads = _of_layer(self.heads, k)
        head_width = _of_layer(self.head_width, k)
        return LayerConfig(
            heads=heads,
            head_width=self.width // heads if head_width is None else head_width,
            feed_forward=_of_layer(self.feed_forward, k),
            weighting=_of_layer(self.weighting, k),
            mask=_of_layer(self.mask, k),
            scores=self.scores,
            layer_norm=self.layer_norm,
            layer_norm_epsilon=self.layer_norm_epsilon,
            activation=self.activation,
            position_scores=tuple(t for t in self.position_terms if isinstance(t, ScoreTerm)),
            exact_rows=self.exact_rows,
            centred_scores=self.centred_scores,
        )

    def replace(self, **changes: Any) -> TransformerConfig:
        """A copy with some fields changed; validated again."""
        return dataclasses.replace(self, **changes)


def _as_tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _of_layer(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, tuple) else value


def _weighting(value: object, faults: Faults) -> Any:
    if isinstance(value, str) and value in WEIGHTINGS:
        return WEIGHTINGS[value]
    if not isinstance(value, Weighting):
        faults.add("weighting", value, f"one of {', '.join(WEIGHTINGS)}, or a typed weighting")
    return value


def _term(value: object, faults: Faults) -> PositionTerm | None:
    if isinstance(value, str) and value in POSITION_NAMES:
        return POSITION_NAMES[value]
    if isinstance(value, PositionTerm):
        return value
    faults.add("positions", value, f"none, or one or several of {', '.join(POSITION_NAMES)}, or typed terms")
    return None
