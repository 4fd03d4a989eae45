"""`certified_bound`: an upper bound on the sensitivity of a transformer to one symbol, over every word of length n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxsens.core.base import inputs, stopping
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.text import html_facts
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.measures import Measure, read_norm
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.theory.certified.averages import Counts
from jaxsens.theory.certified.first_layer import FirstLayer, carried_on, relaxed_map
from jaxsens.theory.certified.intervals import (
    MARGIN,
    TERMS,
    Ball,
    OutputRange,
    ball,
    bent_norm,
    by_symbol,
    exact,
    gain,
    hull,
    norm_bound,
    overlap,
    plus,
    times,
    up,
)
from jaxsens.theory.certified.layerwise import LayerRanges, through
from jaxsens.theory.certified.setting import BOUND, Setting, settle
from jaxsens.theory.certified.two_layers import two_layers
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.rules import alphabet_of, fixed_symbols, measured_outputs, output_size, softmax_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = 8
"""Into how many classes words are split by default for two layers; fewer where n times the heads exceeds 512."""

HOW_NORMS = "norms, layer by layer"
HOW_ONE = "one layer, exact but for the other symbols' average"


@dataclass(frozen=True, eq=False)
class CertifiedBound(SavedResult):
    """An upper bound on ||y_r(x) - y_r(x')|| over all words x of length n and all x' that differ in one symbol.

    It holds in real arithmetic: a measurement may exceed it by its own rounding. Changes below 1e-150 count as 0.

    Attributes:
        value: the bound, the largest of `by_position`.
        by_position: the bound for a flip at each position, inf where numbers overflowed; NaN at the readout position
            and at fixed positions only.
        how: what gave the bound, in words; "Lemma 5" where its bound, one number for all positions, is smaller.
        diameter: the largest distance of two outputs for the same symbol at the readout.
        n, norm: the length of the words; "l2", "l1" or "linf".
        classes: (fewest, most, value) of each class of words, by occurrences of the first symbol.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, layers=1, width=4, heads=1, feed_forward=4))
    >>> jaxsens.theory.certified_bound(model, 4).by_position.shape
    (4,)
    """

    kind = "certified bound"
    value: float
    by_position: Float[np.ndarray, " n"]
    how: str
    diameter: float
    n: int
    norm: str
    classes: tuple[tuple[int, int, float], ...]

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the bound at every position, into new axes of `matplotlib.pyplot` unless some are given."""
        axes = inputs.axes(axes, (7, 3))
        axes.bar(np.arange(self.n), np.nan_to_num(self.by_position, posinf=np.nan), color="#0072B2")
        axes.set(xlabel="position of the flipped symbol", ylabel="certified bound", xlim=(-0.7, self.n - 0.3))
        return axes

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {
            "no flip exceeds": self.value,
            "norm": self.norm,
            "length n": self.n,
            "by": self.how,
        }
        if len(self.classes) > 1:
            rows["classes of words"] = len(self.classes)
        return html_facts("Certified bound", rows, "Of every word of this length, proved from the weights.")


def certified_bound(
    model: Transformer,
    n: int,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    readout_symbols: Sequence[int] | None = None,
    fixed: Mapping[int, int] | None = None,
    classes: int | None = None,
) -> CertifiedBound:
    """Bounds the flip sensitivity of a softmax transformer for every word of length n at once.

    No position's bound exceeds `lemma5(...).bound`, which holds too. docs/bounds.md has the mathematics.

    Args:
        model: a jaxsens `Transformer` whose layers are all softmax, at any temperature.
        n: the length.
        flips: a `Substitute` of an alphabet or of ids below `config.vocabulary_size`: words are made of its symbols; by
            default of the whole alphabet.
        measure: a norm: `L2`, `L1` or `LInf`, of all outputs or some.
        readout_symbols: what the readout position may hold, by default the same; `config.alphabet_size` is the
            end-of-sequence symbol.
        fixed: {0-based position: symbol} of positions that are the same in all words and are not flipped, such as an
            end-of-sequence symbol, {n - 1: alphabet_size}.
        classes: into how many classes words are split, by the occurrences of the first symbol. Each class is bounded
            separately, at the full cost of one bound. The default is 8 for two layers of dot-product attention
            without normalisation and with one readout position, where classes help most (fewer where n times the
            heads exceeds 512), and 1, all words together, for other models.

    Returns:
        A `CertifiedBound`. O(n^2) operations for each class and direction, times k^2 for k symbols (k^4 with two
        layers); memory O(n width) and one block of weights.

    Raises:
        InputError: naming each argument that cannot be used, models with hard or sparsemax layers, and models with a
            part that has no rule here.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> certified_bound(model, 8).value > 0
    True
    """
    with collecting(BOUND) as problems:
        config = softmax_config(model, problems, lambda _: "there are no intervals for other weightings")
        if config is None:
            problems.raise_if_any()
            raise AssertionError("a model without a config is an error")
        size = config.vocabulary_size
        n = inputs.length(n, problems)
        if n:
            config.check_length(n, problems)
        if n * size > TERMS:
            problems.add("n", n, f"at most {TERMS // size}, for which rounding is accounted for")
        norm = read_norm(measure, problems)
        classes = inputs.optional_count("classes", classes, problems)
        chosen = np.sort(alphabet_of(flips, config.alphabet_size, size, problems, least=1))
        at_readout = chosen
        if readout_symbols is not None:
            at_readout = np.sort(inputs.symbols(readout_symbols, size, problems, name="readout_symbols"))
            if config.readout == "mean":
                remedy = 'None: with readout="mean" no position is set apart'
                problems.add("readout_symbols", readout_symbols, remedy)
        fixed = fixed_symbols(fixed, n, size, problems)
        if readout_symbols is not None and n and readout_row(config.readout, n) in fixed:
            problems.add("readout_symbols", readout_symbols, "None where the readout position is fixed")
        columns = measured_outputs(model, norm, output_size(config), problems)
    columns = None if columns is None else np.unique(columns)
    # Overflow shows as infinities and NaN, which `_one_class` takes for no bound.
    with np.errstate(all="ignore"):
        setting = replace(settle(model, n, chosen, at_readout, fixed, columns), norm=norm.kind)
        return _certified(setting, classes, fixed, _of_lemma5(model, n, chosen, columns, norm))


def _of_lemma5(
    model: Transformer, n: int, symbols: np.ndarray, columns: np.ndarray | None, norm: Any
) -> float:
    """Lemma 5's bound on a flip of any position but the readout's; inf with one symbol, which nothing replaces."""
    if len(symbols) < 2:
        return np.inf
    of = replace(norm, outputs="all" if columns is None else columns.tolist())
    return lemma5(model, n, Substitute(symbols.tolist()), of).bound


def _certified(
    setting: Setting, classes: int | None, fixed: Mapping[int, int], known: float
) -> CertifiedBound:
    """The bound class by class; `known` is a bound on every flip."""
    n = setting.n
    parts = _classes(setting, classes)
    found, results, ranges, how = np.full(n, -np.inf), [], [], ""
    for least, most, counts in parts:
        stopping.check()
        by_position, outputs, how = _one_class(replace(setting, counts=counts))
        ranges.append(outputs)
        found = np.maximum(found, by_position)
        results.append((least, most, min(known, float(np.nanmax(by_position, initial=0.0)))))
    diameter = hull(ranges).width(setting.norm)
    if len(parts) > 1 and classes is not None:
        # Multipliers are picked by a rule, so a class's bound may exceed that of all words together.
        whole, outputs, _ = _one_class(setting)
        found, diameter = np.minimum(found, whole), min(diameter, outputs.width(setting.norm))
    found[list(fixed)] = np.nan
    if known < np.nanmax(found, initial=0.0):
        found, how = np.minimum(found, known), "Lemma 5"
    largest = float(np.nanmax(found, initial=0.0))
    return CertifiedBound(largest, found, how, diameter, n, setting.norm, tuple(results))


def _classes(setting: Setting, number: int | None) -> list[tuple[int, int, Counts | None]]:
    """Classes by the fewer occurrences in a word and its flip; the counts given with a class hold for both words. By
    default there are, with two layers, as many as keep the effort within bounds."""
    if number is None and _two_plain(setting):
        heads = max(setting.config.layer(k).heads for k in range(2))
        number = min(CLASSES, max(1, CLASSES * 512 // (setting.n * max(2, heads))))
    if number is None or number == 1 or not (setting.allowed.sum(axis=1) > 1).any():
        return [(0, setting.n, None)]
    edges = np.unique(np.linspace(0, setting.n, number + 1).round().astype(int))
    return [(a, b - int(b < setting.n), Counts(a, b, setting.n)) for a, b in pairwise(edges.tolist())]


def _one_class(setting: Setting) -> tuple[Float[np.ndarray, " n"], OutputRange, str]:
    """The bound for each position, NaN at the readout only, the outputs' ranges and what was used."""
    found, outputs, how = (two_layers if _two_plain(setting) else _by_layers)(setting)
    # Where numbers overflowed, and wherever it is less, the diameter of the outputs stands.
    found = np.minimum(np.where(np.isnan(found), np.inf, found), outputs.width(setting.norm))
    if setting.readout is not None:
        found[setting.readout] = np.nan
    return found, outputs, how


def _two_plain(setting: Setting) -> bool:
    """Whether `two_layers` serves the model."""
    config = setting.config
    plain = setting.readout is not None and config.layer_norm == "none"
    return plain and config.layers == 2 and config.scores == "dot-product"


def _by_layers(setting: Setting) -> tuple[Float[np.ndarray, " n"], OutputRange, str]:
    """The bound for each position by norms, layer by layer, and the ranges of the outputs for each readout symbol."""
    n, r, layers = setting.n, setting.readout, setting.config.layers
    level = LayerRanges(setting.points, np.zeros(n))  # points, which no other position's flip moves
    outputs: list[Outputs] = []  # of every layer, by which directions are followed back
    if layers >= 2 and setting.config.layer_norm == "none":
        outputs.append(Outputs(setting, layers - 1, FirstLayer(setting, np.arange(n))))
        while (below := outputs[0].below) is not None:
            outputs.insert(0, below)
    for k in range(layers):
        last = k == layers - 1
        positions = np.array([r]) if last and r is not None else np.arange(n)
        level = through(setting, k, level, positions, keep=last)
        if outputs and not last:
            level = replace(level, y=overlap(level.y, outputs[k].box))
    moved = np.zeros((n if r is None else 1, n)) if level.jumps is None else level.jumps
    if r is None:
        low, high = ends(setting, level.y)
        own = norm_bound(high - low, "l2")  # the flipped row may go anywhere in its range
        moved[np.arange(n), np.arange(n)] = 0.0
        change = up(up(moved.sum(axis=0) + own) / n)
        ranges = times(mean_range(low, high)[None], setting.out)
        return up(change * gain(setting.out, setting.norm)), _narrowed(ranges, outputs), HOW_NORMS
    change = up(moved[0] * gain(setting.out, setting.norm))
    row = (level.y[r] if layers == 0 else level.y[0])[setting.allowed[r]]
    if layers == 1 and setting.config.layer_norm == "none":
        return np.fmin(one_layer(setting), change), OutputRange(times(row, setting.out)), HOW_ONE
    return change, _narrowed(times(row, setting.out), outputs), HOW_NORMS


def _narrowed(box: Float[Ball, "symbols outputs"], outputs: list[Outputs]) -> OutputRange:
    """The outputs' range by boxes, and by directions if there are `outputs` to follow them through."""
    if not outputs:
        return OutputRange(box)
    found = readout_ranges(outputs[-1])
    return replace(found, box=overlap(box, found.box))


def one_layer(setting: Setting) -> Float[np.ndarray, " n"]:
    """The bound of a flip at each position for one layer without layer normalisation: the readout row alone."""
    r, count = int(setting.readout or 0), setting.out.shape[1]
    row = FirstLayer(setting, np.array([r]))
    onto, found = carried_on(setting, 0, setting.out), np.zeros(setting.n)
    # `changes` then has each direction of `bent_map`, and adds up none of them.
    apart = row.asked(setting.out, supported=True)._replace(onto=None)
    for a, b, change in row.changes(np.arange(setting.n), apart):
        size = change.size[0][setting.allowed[r]]
        bend = up(size[..., count:] * row.slopes.rad[0, setting.allowed[r], None])
        sizes = bent_norm(size[..., :count], bend, onto, setting.norm).max(axis=0)
        possible = setting.allowed[:, a] & setting.allowed[:, b]
        found = np.maximum(found, np.where(possible, sizes, 0.0))
    return found


MOST_DIRECTIONS = 4096
"""Directions of the first layer up to which more of them are followed back than a layer has coordinates. Beyond, the
box of a layer between stands."""


class Outputs:
    """The outputs of a layer over all words of a class, at any depth.

    A direction of the outputs is followed back to the first layer before it is bounded: the linear relaxation that
    verifiers of transformers propagate backwards (Shi, Zhang, Chang, Huang and Hsieh, "Robustness verification for
    transformers", 2020). Terms of several layers cancel within a direction; boxes and norms lose that. Each formula of
    docs/bounds.md, "Three layers or more", is the function of its name.

    Args:
        setting: the model, without normalisation.
        k: the layer.
        first: the first layer at all positions.
    """

    def __init__(self, setting: Setting, k: int, first: FirstLayer) -> None:
        self.setting, self.k, self.first = setting, k, first
        self.below = None if k == 0 else Outputs(setting, k - 1, first)

    @cached_property
    def box(self) -> Float[Ball, "n kinds width"]:
        """The range of every coordinate."""
        return self.first.y if self.below is None else self.range(np.eye(self.setting.config.width))

    @cached_property
    def reach(self) -> Float[np.ndarray, " width"]:
        """At least |y_j| with all that is added up in it, of every row."""
        return np.max(self.box.size, axis=(0, 1), where=self.setting.allowed[..., None], initial=0.0)

    @cached_property
    def hidden(self) -> Float[Ball, "n kinds feed_forward"]:
        """The pre-activations of every row."""
        w1, b1 = self.setting.matrices(self.k, "w1", "b1")
        return plus(self.attended(w1, abs(w1)), exact(b1))

    def range(self, f: Float[np.ndarray, "width p"]) -> Float[Ball, "n kinds p"]:
        """The range of f.y_j of every row j and symbol there, by lines that are the same for all rows."""
        stopping.check()
        if self.below is None:
            return self.first.output_range(f)
        heads = self.setting.config.layer(self.k).heads
        if f.shape[1] > len(f) and f.shape[1] * (1 + heads) ** self.k > MOST_DIRECTIONS:
            return times(self.box, f)
        line = relaxed_map(self.setting, self.k, self.hull(self.hidden), f)
        return _known(self.hidden, plus(self.attended(line.g, line.sizes), line.rest))

    def attended(
        self, g: Float[np.ndarray, "width p"], sizes: Float[np.ndarray, "width p"]
    ) -> Float[Ball, "n kinds p"]:
        """The range of g.c_j of every row; `sizes` is at least |g| and all that is added up in it."""
        below, p = self.below, g.shape[1]
        if below is None:
            raise ValueError("the first layer has no outputs below it")
        value, output = self.setting.matrices(self.k, "value", "output")
        carried = [v @ o @ g for v, o in zip(value, output, strict=True)]
        every = below.range(np.concatenate([g, *carried], axis=1))
        averages = [self.hull(every[..., p * h : p * (h + 1)]) for h in range(1, len(carried) + 1)]
        found = plus(every[..., :p], *averages)
        # The rounding of the directions, by the sizes of all that is added up in them.
        size = below.reach + sum(below.reach @ (abs(v) @ abs(o)) for v, o in zip(value, output, strict=True))
        return Ball(found.mid, up(found.rad + 64 * MARGIN * (up(size) @ sizes)))

    def hull(self, x: Float[Ball, "n kinds p"]) -> Float[Ball, " p"]:
        """The range over all positions and the symbols that may stand there."""
        possible = self.setting.allowed[..., None]
        low = np.min(x.lo, axis=(0, 1), where=possible, initial=np.inf)
        return ball(low, np.max(x.hi, axis=(0, 1), where=possible, initial=-np.inf))

    def readout_range(self, kind: int) -> OutputRange:
        """The range of the outputs that enter the norm where the readout holds `kind`: by lines of its row alone."""
        r = int(self.setting.readout or 0)
        line = relaxed_map(self.setting, self.k, self.hidden[r, kind], self.setting.out)
        attended = self.attended(line.g, line.sizes)[r, kind]
        return line.outputs(_known(self.hidden[r, kind], attended))


def _known(hidden: Ball, found: Ball) -> Ball:
    """The range, if the pre-activations are bounded: lines over what overflowed would say something of nothing."""
    if all(np.isfinite(part).all() for part in hidden):
        return found
    return found.map(lambda part: np.full_like(part, np.nan))


def readout_ranges(last: Outputs) -> OutputRange:
    """The range of the model's outputs for each symbol that the readout may hold; one row for the mean of positions.

    O(n^2 kinds^2) for each direction of the first layer; those are (1 + heads)^(layers - 1) for each output, hidden
    unit and coordinate of a layer.
    """
    setting, r = last.setting, last.setting.readout
    if r is not None:
        return by_symbol([last.readout_range(int(kind)) for kind in np.flatnonzero(setting.allowed[r])])
    return OutputRange(mean_range(*ends(setting, last.range(setting.out)))[None])


def ends(
    setting: Setting, x: Float[Ball, "n kinds p"]
) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, "n p"]]:
    """The ends of each position's range over the symbols that may stand there."""
    possible = setting.allowed[..., None]
    low = np.where(possible, x.lo, np.inf).min(axis=1)
    return low, np.where(possible, x.hi, -np.inf).max(axis=1)


def mean_range(low: Float[np.ndarray, "n p"], high: Float[np.ndarray, "n p"]) -> Float[Ball, " p"]:
    """The range of the mean over positions, from the ends of each position's."""
    rad = up(((high - low) / 2).mean(axis=0)) + MARGIN * (abs(low) + abs(high)).mean(axis=0)
    return Ball(((low + high) / 2).mean(axis=0), rad)
