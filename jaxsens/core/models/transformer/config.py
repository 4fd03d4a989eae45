"""What all networks' configs have, and the config of the transformers: every choice made in the papers, as one frozen,
validated value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import ValidationInfo, field_validator

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, rule_for
from jaxsens.core.base.strict import (
    OptionalPositive,
    Positive,
    checked_by,
    config,
    field_errors,
    later,
    typed,
)
from jaxsens.core.models.parts import initialisation
from jaxsens.core.models.parts.choices import (
    ACTIVATIONS,
    LAYER_NORMS,
    OUTPUT_GATES,
    SCORES,
    Activation,
    Gate,
    LayerNorm,
    LayerNormPlaces,
    Scores,
)
from jaxsens.core.models.parts.initialisation import FAN_IN, Initialisation
from jaxsens.core.models.parts.masks import MASK_TYPES, MASKS, AnyMask, TypedMask
from jaxsens.core.models.parts.positions import CoordinateTerm, Learned, PositionTerm, ScoreTerm
from jaxsens.core.models.parts.schedules import SCHEDULES, Schedule
from jaxsens.core.models.parts.score_positions import (
    POSITION_NAMES,
    POSITION_TYPES,
    DistancePenalty,
    Rotation,
)
from jaxsens.core.models.parts.weighting import (
    WEIGHTING_TYPES,
    WEIGHTINGS,
    HardWeighting,
    Softmax,
    Weighting,
)

Dtype = Literal["float32", "float64"]
"""The dtype of parameters and all arithmetic."""

ReadoutPlace = Annotated[int | Literal["last", "mean"], checked_by(inputs.config_readout)]
"""Where a network reads its output: "last", a 0-based position, or "mean" over positions."""

Drawn = Annotated[str | Initialisation, checked_by(initialisation.checked)]
"""How random weights are distributed."""


class NetworkConfig:
    """Base class of the configs of networks. Each is a frozen dataclass with these fields and its own.

    Attributes:
        kind: the kind of network, as a `[model]` table and the entry points `jaxsens.model_kinds` name it.
    """

    kind: ClassVar[str] = ""

    alphabet_size: int
    width: int
    logits: int | None
    end_symbol: bool
    dtype: Dtype
    readout: int | Literal["last", "mean"]

    @property
    def end_of_sequence(self) -> int | None:
        """The end-of-sequence symbol's id, `alphabet_size`, or None if the alphabet has none."""
        return self.alphabet_size if self.end_symbol else None

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: the alphabet and the end-of-sequence symbol."""
        return self.alphabet_size + int(self.end_symbol)

    def check_length(self, n: int, problems: Problems) -> None:
        """Adds an error if the network cannot read inputs of length n."""
        if isinstance(self.readout, int) and self.readout >= n:
            problems.add("tokens", f"length {n}", f"longer than the readout position {self.readout}")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, and validates it."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]


_ONE_OF_EACH = "one term of each kind, one rotation and one ALiBi; only components may be several"
_UNPLACED = "no rotary, ALiBi or other positions that affect scores"

_TYPED: dict[str, type] = {
    cls.__name__: cls for cls in (*WEIGHTING_TYPES, *MASK_TYPES, *POSITION_TYPES, Schedule)
}
"""The parts that a table in a config file may describe, by `type`."""


def _per_layer(name: str, value: Any, problems: Problems, least: int, optional: bool = False) -> Any:
    """Checks a whole number, or a tuple with one per layer."""
    check = inputs.optional_count if optional else inputs.count
    return _each(value, lambda one: check(name, one, problems, least))


def _masks(name: str, value: Any, problems: Problems) -> Any:
    remedy = f"one of {', '.join(MASKS)}, or a SlidingWindow or TwoSidedWindow"
    names = {mask: mask for mask in MASKS}
    return _each(value, lambda one: _member(name, one, names, TypedMask, remedy, problems))


def read_weighting(name: str, value: Any, problems: Problems) -> Any:
    """Returns the weighting that a value stands for, or one for each layer; adds an error for anything else."""
    remedy = f"one of {', '.join(WEIGHTINGS)}, or a typed weighting"
    return _each(value, lambda one: _member(name, one, WEIGHTINGS, Weighting, remedy, problems))


def _positions(name: str, value: Any, problems: Problems) -> tuple[PositionTerm, ...]:
    if value in ("none", None):
        return ()
    remedy = f"none, or one or several of {', '.join(POSITION_NAMES)}, or typed terms"
    terms = tuple(
        _member(name, one, POSITION_NAMES, PositionTerm, remedy, problems) for one in _as_tuple(value)
    )
    if problems:
        return ()
    own = Problems()
    for term in terms:
        term.check(own)
    problems.include(one.renamed({"positions": name}) for one in own)
    kinds = [_family(term) for term in terms if not isinstance(term, CoordinateTerm)]
    if any(term in terms[:k] for k, term in enumerate(terms)):
        problems.add(name, terms, "name each term once")
    elif len(set(kinds)) < len(kinds):
        problems.add(name, terms, _ONE_OF_EACH)
    names = [term.label for term in terms if isinstance(term, CoordinateTerm)]
    for label in sorted({label for label in names if names.count(label) > 1}):
        problems.add(name, label, "a unique name for each component, because its vector is drawn by name")
    return terms


def _family(term: PositionTerm) -> type[PositionTerm]:
    """Returns the class of the terms of which a layer has one."""
    return next((kind for kind in (Rotation, DistancePenalty) if isinstance(term, kind)), type(term))


def _layer_positions(name: str, value: Any, problems: Problems) -> tuple[tuple[ScoreTerm, ...], ...]:
    if value in ("none", None, ()):
        return ()
    if not isinstance(value, tuple | list):
        problems.add(name, value, "one value per layer; what all layers have belongs in positions")
        return ()
    each = tuple(_positions(name, one, problems) for one in value)
    for term in dict.fromkeys(term for terms in each for term in terms):
        if not isinstance(term, ScoreTerm):
            remedy = (
                "terms that affect scores, such as rotary; what is added to embeddings belongs in positions"
            )
            problems.add(name, term, remedy)
    return tuple(tuple(term for term in terms if isinstance(term, ScoreTerm)) for terms in each)


def _member(
    name: str, value: Any, named: Mapping[str, Any], kinds: Any, remedy: str, problems: Problems
) -> Any:
    """Returns a value given by name, by a table of a config file, or directly."""
    if isinstance(value, Mapping):
        made = typed(name, value, _TYPED, problems, {"inverse_temperature": SCHEDULES})
        if made is not None and not isinstance(made, kinds):
            problems.add(name, value, remedy)
        return made
    if isinstance(value, str) and value in named:
        return named[value]
    if not isinstance(value, kinds):
        problems.add(name, value, remedy)
    return value


@dataclass(frozen=True)
class LayerConfig:
    """One layer of a `TransformerConfig`: everything except parameters that its mathematics depends on."""

    heads: int
    head_width: int
    feed_forward: int
    weighting: Weighting
    mask: AnyMask
    scores: Scores
    layer_norm: LayerNorm
    layer_norm_epsilon: float
    activation: Activation
    output_gate: Gate
    position_scores: tuple[ScoreTerm, ...]
    exact_rows: bool
    centred_scores: bool

    @property
    def norm(self) -> LayerNormPlaces:
        """The places of layer normalisation."""
        return rule_for("LayerConfig", "layer normalisation", self.layer_norm, LAYER_NORMS)


@config
class TransformerConfig(NetworkConfig):
    """A transformer as both papers define it (Hahn 2020, section 3; Yang et al. 2026, section 2).

    `heads`, `head_width`, `feed_forward`, `weighting` and `mask` take one value, or a tuple with one per layer.

    Attributes:
        alphabet_size: symbols 0 .. alphabet_size - 1.
        width: d, the size of every activation vector.
        heads: H, the number of attention heads.
        layers: L, the number of layers; with 0 the model is only the embedding.
        feed_forward: the number of hidden units of the per-position map; 0 omits the map.
        head_width: the size of queries, keys and values; width / heads if None.
        weighting: a name of `WEIGHTINGS` ("softmax", "temperature-log", "leftmost-hard", ...; docs/weightings.md) or a
            typed value.
        mask: a name of `MASKS` or a `SlidingWindow` or `TwoSidedWindow`; "future" means that the future is masked.
        positions: "none", a name of `POSITION_NAMES`, a typed term, or a tuple of these, whose embeddings are added.
            Those that affect scores (rotary, alibi, ...) do so in every layer.
        scores: "dot-product", q.k / sqrt(head_width), or "additive", a.tanh(q + k).
        centred_scores: whether to form each row's scores relative to its best key, from differences of keys. The
            weights are the same, but accurate for large scores (`jaxsens.core.models.transformer.trace`). For dot
            products without rotary or ALiBi embeddings and for softmax and hard weightings; slower, and only for the
            vmap engine.
        layer_norm: "none", "pre" (on each map's input) or "post" (after each skip connection).
        layer_norm_epsilon: added to the variance; 0 makes layer normalisation non-Lipschitz.
        activation: the activation of the per-position map; "gelu" is the tanh form.
        readout: "last", a 0-based position, or "mean" over positions.
        logits: the number of outputs of a linear head on the readout; None returns y^(L) itself.
        end_symbol: whether the embedding has a row for an end-of-sequence symbol, id `alphabet_size`.
        dtype: "float32" or "float64", for parameters and all arithmetic.
        initialisation: how random weights are distributed: "fan-in" (see `initialise`), or
            `jaxsens.core.models.parts.initialisation.Uniform(bound)` or `Normal(deviation)` for all of them alike.
        layer_positions: further embeddings that affect scores, in single layers: one value per layer, each "none", a
            name, a typed term or a tuple of these; ("rotary", "none") has rotary embeddings in the first of two.
        output_gate: "none", or what the heads' outputs are multiplied by: "headwise", one sigmoid gate for each row and
            head, or "elementwise", one for each of their coordinates (`jaxsens.core.models.transformer.trace`).

    Raises:
        InputError: listing every error.

    >>> TransformerConfig(2, layers=2, weighting=("softmax", "leftmost-hard")).layer(1).weighting
    LeftmostHard()
    """

    kind: ClassVar[str] = "transformer"

    alphabet_size: Annotated[int, checked_by(inputs.count, least=2)]
    width: Positive = 64
    heads: Annotated[int | tuple[int, ...], checked_by(_per_layer, least=1)] = 4
    layers: Annotated[int, checked_by(inputs.count, most=inputs.MOST_LAYERS)] = 2
    feed_forward: Annotated[int | tuple[int, ...], checked_by(_per_layer, least=0)] = 256
    head_width: Annotated[int | tuple[int, ...] | None, checked_by(_per_layer, least=1, optional=True)] = None
    weighting: Annotated[str | Weighting | tuple[str | Weighting, ...], checked_by(read_weighting)] = (
        "softmax"
    )
    mask: Annotated[AnyMask | tuple[AnyMask, ...], checked_by(_masks)] = "none"
    positions: Annotated[str | PositionTerm | Sequence[str | PositionTerm], checked_by(_positions)] = (
        "sinusoidal"
    )
    scores: Annotated[Scores, checked_by(inputs.choice, options=SCORES)] = "dot-product"
    centred_scores: bool = False
    layer_norm: Annotated[LayerNorm, checked_by(inputs.choice, options=LAYER_NORMS)] = "none"
    layer_norm_epsilon: Annotated[float, checked_by(inputs.number, least=0)] = 1e-5
    activation: Annotated[Activation, checked_by(inputs.choice, options=ACTIVATIONS)] = "relu"
    readout: ReadoutPlace = "last"
    logits: OptionalPositive = None
    end_symbol: bool = True
    dtype: Dtype = "float32"
    initialisation: Drawn = later(FAN_IN)
    layer_positions: Annotated[
        Literal["none"] | Sequence[str | ScoreTerm | Sequence[str | ScoreTerm]], checked_by(_layer_positions)
    ] = later(())
    output_gate: Annotated[Gate, checked_by(inputs.choice, options=OUTPUT_GATES)] = later("none")

    # A check of several fields runs with the last of them. `info.data` holds the fields that are valid.

    @field_validator("head_width")
    @classmethod
    def _check_sizes(cls, head_width: Any, info: ValidationInfo) -> Any:
        sound = {**info.data, "head_width": head_width}
        with field_errors() as problems:
            for field in ("heads", "feed_forward", "head_width"):
                _check_per_layer(field, sound, problems)
            if head_width is None and "width" in sound:
                for heads in _as_tuple(sound.get("heads", ())):
                    if sound["width"] % heads:
                        problems.add(
                            "heads", heads, f"a divisor of width = {sound['width']}, or give head_width"
                        )
        return head_width

    @field_validator("weighting", "mask")
    @classmethod
    def _check_layers(cls, value: Any, info: ValidationInfo) -> Any:
        with field_errors() as problems:
            _check_per_layer(str(info.field_name), {**info.data, str(info.field_name): value}, problems)
        return value

    @field_validator("positions")
    @classmethod
    def _check_score_terms(
        cls, terms: tuple[PositionTerm, ...], info: ValidationInfo
    ) -> tuple[PositionTerm, ...]:
        scored = [term for term in terms if isinstance(term, ScoreTerm)]
        with field_errors() as problems:
            for k in range(info.data.get("layers", 0)):
                _check_heads("positions", scored, k, info.data, problems)
        return terms

    @field_validator("layer_positions")
    @classmethod
    def _check_layer_terms(
        cls, each: tuple[tuple[ScoreTerm, ...], ...], info: ValidationInfo
    ) -> tuple[tuple[ScoreTerm, ...], ...]:
        sound, everywhere = info.data, {_family(term) for term in info.data.get("positions", ())}
        with field_errors() as problems:
            if each:
                _check_per_layer("layer_positions", {**sound, "layer_positions": each}, problems)
            for k, terms in enumerate(each[: sound.get("layers", 0)]):
                _check_heads("layer_positions", terms, k, sound, problems)
                if any(_family(term) in everywhere for term in terms):
                    problems.add("layer_positions", terms, f"{_ONE_OF_EACH}; positions are in every layer")
            if any(each) and sound.get("centred_scores"):
                problems.add("centred_scores", True, f"it needs {_UNPLACED}")
        return each

    @field_validator("centred_scores")
    @classmethod
    def _check_centred(cls, centred: bool, info: ValidationInfo) -> bool:
        sound = info.data
        weightings = _as_tuple(sound.get("weighting", ()))
        others = [type(one).__name__ for one in weightings if not isinstance(one, Softmax | HardWeighting)]
        terms = sound.get("positions", ())
        checks = (
            (sound.get("scores", "dot-product") == "dot-product", 'scores="dot-product"'),
            (not any(isinstance(term, ScoreTerm) for term in terms), _UNPLACED),
            (not others, f"softmax or hard weightings, not {', '.join(others)}"),
        )
        missing = [needs for holds, needs in checks if not holds]
        if centred and missing:
            with field_errors() as problems:
                problems.add("centred_scores", True, f"it needs {', '.join(missing)}")
        return centred

    @cached_property
    def position_terms(self) -> tuple[PositionTerm, ...]:
        """The position embeddings of all layers and of single ones, typed, each once."""
        everywhere, each = cast("tuple[Any, Any]", (self.positions, self.layer_positions))
        return tuple(dict.fromkeys((*everywhere, *(term for terms in each for term in terms))))

    @property
    def coordinate_terms(self) -> tuple[CoordinateTerm, ...]:
        """The position embeddings with one coordinate each, in the order of the rows of `parameters.components`."""
        return tuple(term for term in self.position_terms if isinstance(term, CoordinateTerm))

    @property
    def bounded(self) -> bool:
        """Whether every position embedding stays bounded as n grows (a hypothesis of Hahn's Lemma 5)."""
        return all(term.bounded for term in self.position_terms)

    @property
    def temperature(self) -> str:
        """The temperature of attention (`Weighting.temperature`), or of every layer, where they differ, in order."""
        each = [self.layer(k).weighting.temperature for k in range(self.layers)]
        return ", ".join(each if len(set(each)) > 1 else each[:1]) or "none"

    @property
    def parameter_count(self) -> int:
        """The number of parameters of embeddings, attention and per-position maps: nearly all."""
        d = self.width
        learned = sum(term.max_length for term in self.position_terms if isinstance(term, Learned))
        total = (self.vocabulary_size + learned + (self.logits or 0)) * d
        for k in range(self.layers):
            heads, head_width = _of_layer(self.heads, k), _of_layer(self.head_width, k)
            attended = d if head_width is None else heads * head_width
            total += (4 * attended + 2 * _of_layer(self.feed_forward, k)) * d
        return total

    @cached_property
    def exact_rows(self) -> bool:
        """Whether equal rows must get bitwise equal results, as required if a hard layer breaks ties."""
        return any(_of_layer(self.weighting, k).hard for k in range(self.layers))

    def check_length(self, n: int, problems: Problems) -> None:
        if n < 1:
            problems.add("tokens", f"length {n}", "give at least one symbol")
        for term in self.position_terms:
            term.check_length(n, problems)
        super().check_length(n, problems)

    def layer(self, k: int) -> LayerConfig:
        """The configuration of layer k, 0 <= k < layers."""
        return self._layers[k]

    @cached_property
    def _layers(self) -> tuple[LayerConfig, ...]:
        everywhere, each = cast("tuple[Any, Any]", (self.positions, self.layer_positions))
        made = []
        for k in range(self.layers):
            heads, head_width = _of_layer(self.heads, k), _of_layer(self.head_width, k)
            made.append(
                LayerConfig(
                    heads=heads,
                    head_width=self.width // heads if head_width is None else head_width,
                    feed_forward=_of_layer(self.feed_forward, k),
                    weighting=_of_layer(self.weighting, k),
                    mask=_of_layer(self.mask, k),
                    scores=self.scores,
                    layer_norm=self.layer_norm,
                    layer_norm_epsilon=self.layer_norm_epsilon,
                    activation=self.activation,
                    position_scores=(
                        *(t for t in everywhere if isinstance(t, ScoreTerm)),
                        *(each[k] if each else ()),
                    ),
                    output_gate=self.output_gate,
                    exact_rows=self.exact_rows,
                    centred_scores=self.centred_scores,
                )
            )
        return tuple(made)


def _as_tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _each(value: Any, check: Callable[[Any], Any]) -> Any:
    """Returns what `check` makes of a value, or of each one of a tuple."""
    return tuple(map(check, value)) if isinstance(value, tuple | list) else check(value)


def _of_layer(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, tuple) else value


def _check_heads(
    field: str, terms: Sequence[ScoreTerm], k: int, sound: Mapping[str, Any], problems: Problems
) -> None:
    """Adds an error for each term of a field that layer k's heads cannot have, if it is not there already."""
    heads, widths = (_as_tuple(sound.get(field, ())) for field in ("heads", "head_width"))
    if widths == (None,) and "width" in sound:
        widths = tuple(sound["width"] // count for count in heads)
    if not heads or not widths or None in widths:
        return
    own = Problems()
    for term in terms:
        term.check_heads(heads[k % len(heads)], widths[k % len(widths)], own)
    problems.include(one.renamed({"positions": field}) for one in own)


def _check_per_layer(field: str, sound: Mapping[str, Any], problems: Problems) -> None:
    value, layers = sound.get(field), sound.get("layers")
    if isinstance(value, tuple) and layers is not None and len(value) != layers:
        problems.add(field, value, f"one value, or one per layer ({layers})")
