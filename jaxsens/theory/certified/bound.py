"""`certified_bound`: an upper bound on the sensitivity of a transformer to one symbol, over every word of length n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from jaxsens import stopping
from jaxsens.errors import Faults
from jaxsens.inputs import is_count, plain_numbers
from jaxsens.models.layers import readout_position
from jaxsens.models.transformer import Transformer, check_length
from jaxsens.theory.certified.averages import Counts
from jaxsens.theory.certified.first_layer import asked, changes, first_layer
from jaxsens.theory.certified.intervals import MARGIN, TERMS, Ball, ball, gain, norm_bound, times, up
from jaxsens.theory.certified.layerwise import first_level, through
from jaxsens.theory.certified.setting import Setting, settle
from jaxsens.theory.certified.two_layers import two_layers
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.rules import softmax_config

NORMS = ("l2", "l1", "linf")

CLASSES = 8
"""Into how many classes words are split by default for two layers; fewer where n times the heads exceeds 512."""

HOW_NORMS = "norms, layer by layer"
HOW_ONE = "one layer, exact but for the other symbols' average"


@dataclass(frozen=True, eq=False)
class CertifiedBound:
    """An upper bound on ||y_r(x) - y_r(x')|| over all words x of length n and all x' that differ in one symbol.

    It speaks of the function that the parameters define in real arithmetic; its own rounding is accounted for. A
    measurement in float32 may exceed it by the measurement's rounding. Changes below 1e-150 are not told from 0.

    Attributes:
        value: the bound, the largest of `by_position`.
        by_position: the bound for a flip at each position, inf where numbers overflowed; NaN at the readout position
            and at fixed ones only.
        how: what was used, in words; "Lemma 5" where its bound, which is one number for all positions, is smaller.
        diameter: how far apart any two outputs are, at most, readout symbol fixed.
        n: length of the words.
        norm: "l2", "l1" or "linf".
        classes: the classes of words, by number of occurrences of the first symbol, that were bounded apart: (fewest,
            most, value) of each.
    """

    value: float
    by_position: Float[np.ndarray, " n"]
    how: str
    diameter: float
    n: int
    norm: str
    classes: tuple[tuple[int, int, float], ...]


def certified_bound(
    model: Transformer,
    n: int,
    *,
    symbols: Sequence[int] | None = None,
    readout_symbols: Sequence[int] | None = None,
    fixed: Mapping[int, int] | None = None,
    norm: str = "l2",
    outputs: Sequence[int] | Literal["all"] | None = None,
    classes: int | None = None,
) -> CertifiedBound:
    """Bounds the flip sensitivity of a softmax transformer for every word of length n at once.

    No position's bound is above `lemma5(...).bound`, which holds too.

    Args:
        model: a jaxsens `Transformer` whose layers are all softmax, at any temperature.
        n: the length.
        symbols: the symbols of words, ids below `config.vocabulary_size`; by default the whole alphabet.
        readout_symbols: what the readout position may hold, by default the same; `config.alphabet_size` is the
            end-of-sequence symbol.
        fixed: {0-based position: symbol} of positions that are the same in all words and are not flipped, such as an
            end-of-sequence symbol, {n - 1: alphabet_size}; as for `jaxsens.worst_input`.
        norm: "l2", "l1" or "linf".
        outputs: the output coordinates that enter the norm, or "all"; by default those the model designates, else all.
        classes: into how many classes, by the number of occurrences of the first symbol, words are split; each is
            bounded apart, at the full cost of one. By default 8 for two layers of dot-product attention
            without normalisation and one readout position, where they tighten most (fewer where n times the heads is
            above 512), else 1: all words together.

    Returns:
        A `CertifiedBound`. O(n^2) operations a class and direction, memory O(n width) and a block of weights. With k
        symbols times k^2, with two layers k^4.

    Raises:
        InputError: naming each argument that cannot be used, and models with hard or sparsemax layers.
    """
    n, classes = plain_numbers(n), plain_numbers(classes)
    if isinstance(fixed, Mapping):
        fixed = {plain_numbers(position): plain_numbers(symbol) for position, symbol in fixed.items()}
    fixed = {} if fixed is None else fixed
    chosen, at_readout, columns = _checked(model, n, symbols, readout_symbols, fixed, norm, outputs, classes)
    # Overflow shows as infinities and NaN, which `_finish` takes for no bound.
    with np.errstate(all="ignore"):
        setting = settle(model, n, chosen, at_readout, fixed, columns)
        known = _of_lemma5(model, n, chosen, norm, columns)
        return _certified(setting, fixed, norm, classes or _classes_for(setting), classes is not None, known)


def _of_lemma5(
    model: Transformer,
    n: int,
    symbols: Int[np.ndarray, " symbols"],
    norm: Any,
    columns: Int[np.ndarray, " outputs"] | None,
) -> float:
    """Lemma 5's bound on a flip of any position but the readout's; inf with one symbol, which nothing replaces."""
    if len(symbols) < 2:
        return np.inf
    outputs = "all" if columns is None else [int(k) for k in columns]
    return lemma5(model, n, norm=norm, symbols=[int(s) for s in symbols], outputs=outputs).bound


def _certified(
    setting: Setting, fixed: Mapping[int, int], norm: str, classes: int, whole_too: bool, known: float
) -> CertifiedBound:
    """The bound class by class; `known` is a bound on every flip."""
    n = setting.n
    parts = _classes(setting, classes)
    found, results, ranges, how = np.full(n, -np.inf), [], [], ""
    for least, most, counts in parts:
        stopping.check()
        by_position, outputs, how = _one_class(setting, counts, norm)
        ranges.append(outputs)
        found = np.maximum(found, by_position)
        results.append((least, most, min(known, float(np.nanmax(by_position, initial=0.0)))))
    hull = ball(np.min([x.lo for x in ranges], axis=0), np.max([x.hi for x in ranges], axis=0))
    diameter = _width(hull, norm)
    if len(parts) > 1 and whole_too:
        # Multipliers are picked by a rule, so a class's bound may exceed that of all words together.
        whole, outputs, _ = _one_class(setting, None, norm)
        found, diameter = np.minimum(found, whole), min(diameter, _width(outputs, norm))
    found[list(fixed)] = np.nan
    if known < np.nanmax(found, initial=0.0):
        found, how = np.minimum(found, known), "Lemma 5"
    return CertifiedBound(float(np.nanmax(found, initial=0.0)), found, how, diameter, n, norm, tuple(results))


def _classes_for(setting: Setting) -> int:
    """How many classes by default: with two layers as many as keep the effort within bounds."""
    if not _two_plain(setting):
        return 1
    heads = max(setting.config.layer(k).heads for k in range(2))
    return min(CLASSES, max(1, CLASSES * 512 // (setting.n * max(2, heads))))


def _classes(setting: Setting, number: int) -> list[tuple[int, int, Counts | None]]:
    """Classes by the fewer occurrences in a word and its flip; the counts given with a class hold for both words."""
    if number <= 1 or not (setting.allowed.sum(axis=1) > 1).any():
        return [(0, setting.n, None)]
    edges = np.unique(np.linspace(0, setting.n, number + 1).round().astype(int))
    return [
        (int(a), int(b) - int(b < setting.n), Counts(0, int(a), int(b), setting.n))
        for a, b in pairwise(edges)
    ]


def _one_class(
    setting: Setting, counts: Counts | None, norm: str
) -> tuple[Float[np.ndarray, " n"], Float[Ball, "symbols outputs"], str]:
    """The bound for each position, NaN at the readout only, the outputs' ranges and what was used."""
    if _two_plain(setting):
        second = two_layers(setting, counts, norm)
        found, outputs = second.moved, second.outputs
        how = f"two layers; score half-width {second.score_width:.3g}"
    else:
        found, outputs, how = _by_layers(setting, counts, norm)
    # Where numbers overflowed, and wherever it is less, the diameter of the outputs stands.
    found = np.minimum(np.where(np.isnan(found), np.inf, found), _width(outputs, norm))
    if setting.readout is not None:
        found[setting.readout] = np.nan
    return found, outputs, how


def _two_plain(setting: Setting) -> bool:
    """Whether `two_layers` serves the model."""
    config = setting.config
    plain = setting.readout is not None and config.layer_norm == "none"
    return plain and config.layers == 2 and config.scores == "dot-product"


def _by_layers(
    setting: Setting, counts: Counts | None, norm: str
) -> tuple[Float[np.ndarray, " n"], Float[Ball, "symbols outputs"], str]:
    """The bound for each position by norms, layer by layer, and the ranges of the outputs for each readout symbol."""
    n, r, layers = setting.n, setting.readout, setting.config.layers
    level = first_level(setting)
    for k in range(layers):
        last = k == layers - 1
        positions = np.array([r]) if last and r is not None else np.arange(n)
        level = through(setting, k, level, positions, counts, keep=last)
    moved = np.zeros((n if r is None else 1, n)) if level.jumps is None else level.jumps
    if r is None:
        change, mean = _of_mean(setting, level.y, moved)
        return up(change * gain(setting.out, norm)), times(mean, setting.out), HOW_NORMS
    change = up(moved[0] * gain(setting.out, norm))
    row = (level.y[r] if layers == 0 else level.y[0])[setting.allowed[r]]
    if layers == 1 and setting.config.layer_norm == "none":
        return np.fmin(one_layer(setting, counts, norm), change), times(row, setting.out), HOW_ONE
    return change, times(row, setting.out), HOW_NORMS


def _of_mean(
    setting: Setting, y: Float[Ball, "n kinds width"], moved: Float[np.ndarray, "n n"]
) -> tuple[Float[np.ndarray, " n"], Float[Ball, "1 width"]]:
    """For the mean over positions: its change in l2 for each flip, and its range."""
    possible, n = setting.allowed[..., None], setting.n
    low = np.where(possible, y.lo, np.inf).min(axis=1)
    high = np.where(possible, y.hi, -np.inf).max(axis=1)
    own = norm_bound(high - low, "l2")  # the flipped row may go anywhere in its range
    moved[np.arange(n), np.arange(n)] = 0.0
    rad = up(((high - low) / 2).mean(axis=0)) + MARGIN * (abs(low) + abs(high)).mean(axis=0)
    mean = Ball(((low + high) / 2).mean(axis=0), rad)
    return up(up(moved.sum(axis=0) + own) / n), mean[None]


def one_layer(setting: Setting, counts: Counts | None, norm: str) -> Float[np.ndarray, " n"]:
    """The bound of a flip at each position for one layer without layer normalisation: the readout row alone."""
    r = int(setting.readout or 0)
    row = first_layer(setting, np.array([r]), counts)
    found = np.zeros(setting.n)
    for a, b, change in changes(row, np.arange(setting.n), asked(row, setting.out, supported=True)):
        sizes = norm_bound(change.size[0], norm)[setting.allowed[r]].max(axis=0)
        possible = setting.allowed[:, a] & setting.allowed[:, b]
        found = np.maximum(found, np.where(possible, sizes, 0.0))
    return found


def _width(outputs: Float[Ball, "symbols outputs"], norm: str) -> float:
    """The largest distance between two outputs of one symbol at the readout; inf where numbers overflowed."""
    found = float(np.max(up(2 * norm_bound(outputs.rad * (1 + MARGIN), norm))))
    return np.inf if np.isnan(found) else found


def _checked(
    model: Any,
    n: int,
    symbols: Sequence[int] | None,
    readout_symbols: Sequence[int] | None,
    fixed: Any,
    norm: str,
    outputs: Sequence[int] | str | None,
    classes: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    faults = Faults("certified_bound")
    config = softmax_config(model, faults, "other weightings jump or have kinks")
    if config is None:
        faults.raise_if_any()
    if is_count(n, 1):
        check_length(config, n, faults)
    if not is_count(n, 1) or n * config.vocabulary_size > TERMS:
        faults.add("n", n, f"a whole number from 1 to {TERMS // config.vocabulary_size}")
    if not isinstance(norm, str) or norm not in NORMS:
        faults.add("norm", norm, f"one of {', '.join(NORMS)}")
    if classes is not None and not is_count(classes, 1):
        faults.add("classes", classes, "a whole number of at least 1, or None")
    chosen = _ids("symbols", symbols, np.arange(config.alphabet_size), config.vocabulary_size, faults)
    at_readout = _ids("readout_symbols", readout_symbols, chosen, config.vocabulary_size, faults)
    if readout_symbols is not None and config.readout == "mean":
        faults.add("readout_symbols", readout_symbols, 'None: with readout="mean" no position is set apart')
    if not isinstance(fixed, Mapping):
        faults.add("fixed", fixed, "a mapping {0-based position: symbol}, or None")
        fixed = {}
    for position, symbol in fixed.items():
        if not is_count(position) or (is_count(n, 1) and position >= n):
            faults.add("fixed", position, f"0-based positions below n = {n}")
        elif not is_count(symbol) or symbol >= config.vocabulary_size:
            faults.add("fixed", {position: symbol}, f"symbols from 0 to {config.vocabulary_size - 1}")
    if readout_symbols is not None and is_count(n, 1) and readout_position(config, n) in fixed:
        faults.add("readout_symbols", readout_symbols, "None where the readout position is fixed")
    designated = getattr(model, "outputs", None) if outputs is None else outputs
    columns = None
    if isinstance(designated, str) and designated != "all":
        faults.add("outputs", designated, 'coordinates, "all" or None')
    elif designated is not None and not isinstance(designated, str):
        size = config.width if config.logits is None else config.logits
        columns = _ids("outputs", designated, np.arange(size), size, faults)
    faults.raise_if_any()
    return chosen, at_readout, columns


def _ids(name: str, given: Any, default: np.ndarray, limit: int, faults: Faults) -> np.ndarray:
    if given is None:
        return default
    try:
        found = np.asarray(given)
    except ValueError:  # lists of unequal length
        found = np.zeros(0)
    usable = found.size > 0 and found.ndim <= 1 and np.issubdtype(found.dtype, np.integer)
    if not usable or found.min() < 0 or found.max() >= limit:
        faults.add(name, given, f"whole numbers from 0 to {limit - 1}, at least one")
        return default
    return np.unique(found)
