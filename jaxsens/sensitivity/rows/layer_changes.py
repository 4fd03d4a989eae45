"""Measures Lemma 5's induction: how far each row moves in each layer when one symbol changes.

The lemma (Hahn 2020) tracks two numbers through the layers: the change of the flipped row y_i^(k), which is O(1), and
that of every other row y_j^(k), which is O(1/n) under softmax without masks. This module measures both.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jaxsens.asked.flips import Substitute
from jaxsens.asked.measures import Norm, read_norm
from jaxsens.base import inputs, stopping
from jaxsens.base.errors import Problems
from jaxsens.base.inputs import array_of
from jaxsens.base.precision import numerics
from jaxsens.base.programs import compiled
from jaxsens.base.sealed import SavedResult
from jaxsens.base.strict import naming_arguments
from jaxsens.base.told import facts
from jaxsens.base.versions import versions
from jaxsens.models.networks.given import instead_of
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.module import Transformer, check_runs
from jaxsens.models.transformer.parameters import TransformerParameters
from jaxsens.sensitivity.engines.edits import read_substitution
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.flips.selection import select
from jaxsens.sensitivity.placement.placement import Placement, checked_placement
from jaxsens.sensitivity.placement.process_group import ProcessGroup
from jaxsens.sensitivity.results.resuming import fingerprint
from jaxsens.sensitivity.subjects.adapters import measurable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYMBOLS_AT_ONCE = 2**12
"""The default number of symbols in a batch of flipped words: larger batches do not fit in a CPU's cache."""


class LayerChange(NamedTuple):
    """One flip in one layer."""

    position: int
    symbol: int
    layer: int
    own: float
    others_max: float
    others_mean: float


@dataclass(frozen=True, eq=False)
class LayerChanges(SavedResult):
    """||y_j^(k)(x) - y_j^(k)(x')|| for flips x' of one input x. Layer k = 0 is the embedding, k = L the last.

    Attributes:
        own: the change of the flipped row, j = i.
        others_max: the largest change of the other rows; 0 if there are none.
        others_mean: the mean change of the other rows, summed in float64; 0 if there are none.
        positions: the 0-based positions flipped.
        symbols: the symbols inserted.
        kept: the flips whose rows were kept, as indices into the other arrays.
        changes: the norm of every row's change, for the kept flips.
        tokens: the input.
        population: the number of all flips; more than `len(result)` for a random sample.
        measure: the norm: "l2", "l1" or "linf".
        dtype: the dtype of the arithmetic. In float32 a change below 1e-7 of an activation is rounding.
        versions: the versions of jaxsens, jax and numpy, and the device.
    """

    kind = "layer changes"
    own: Float[np.ndarray, "flips levels"]
    others_max: Float[np.ndarray, "flips levels"]
    others_mean: Float[np.ndarray, "flips levels"]
    positions: Int[np.ndarray, " flips"]
    symbols: Int[np.ndarray, " flips"]
    kept: Int[np.ndarray, " kept"]
    changes: Float[np.ndarray, "kept levels n"]
    tokens: Int[np.ndarray, " n"]
    population: int
    measure: str
    dtype: str
    versions: dict[str, str]

    def __len__(self) -> int:
        return len(self.own)

    @property
    def n(self) -> int:
        """The length of the input."""
        return len(self.tokens)

    @property
    def layers(self) -> int:
        """L."""
        return self.own.shape[1] - 1

    def to_rows(self) -> list[LayerChange]:
        """Returns one row per flip and layer, sorted by position, symbol, layer."""
        return [
            LayerChange(
                int(self.positions[f]),
                int(self.symbols[f]),
                k,
                float(self.own[f, k]),
                float(self.others_max[f, k]),
                float(self.others_mean[f, k]),
            )
            for f in range(len(self))
            for k in range(self.layers + 1)
        ]

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the mean change of the flipped row and of the others against the layer, on a logarithmic axis, into new
        axes of `matplotlib.pyplot` unless some are given. A change of exactly 0 has no place on it."""
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1]
        layers = np.arange(self.layers + 1)
        for name, values, style in (
            ("the flipped row", self.own, "o-"),
            ("the most changed other row", self.others_max, "s--"),
            ("the other rows, mean", self.others_mean, "^:"),
        ):
            means = values.mean(axis=0)
            axes.plot(layers, np.where(means > 0, means, np.nan), style, label=name)
        axes.set(xlabel="layer (0: the embedding)", ylabel="mean change over flips", xticks=layers)
        axes.set_yscale("log")
        axes.legend()
        return axes

    def _repr_html_(self) -> str:
        """What a notebook shows: the mean changes, layer by layer."""
        rows = {
            f"layer {k}" if k else "embedding": f"own {self.own[:, k].mean():.4g}, others at most "
            f"{self.others_max[:, k].mean():.4g}, mean {self.others_mean[:, k].mean():.4g}"
            for k in range(self.layers + 1)
        }
        note = f"Means over {len(self)} flips of one input of length {self.n}, norm {self.measure}."
        return facts("Change of every row, by layer", rows, note)

    def __repr__(self) -> str:
        last = f"own mean={self.own[:, -1].mean():.4g}, others mean={self.others_mean[:, -1].mean():.4g}"
        return f"LayerChanges(n={self.n}, {len(self)} flips, L={self.layers}, {self.measure}; last layer: {last})"


def load_layer_changes(path: str | os.PathLike[str]) -> LayerChanges:
    """Reads what `LayerChanges.save` wrote.

    Raises:
        InputError: if the file is missing, damaged, or no such result.
    """
    return LayerChanges.load(path)


@naming_arguments
def layer_changes(
    model: Transformer,
    tokens: Any,
    flips: Any = None,
    measure: Any = "l2",
    *,
    keep: Sequence[int] | None = None,
    placement: Placement | None = None,
) -> LayerChanges:
    """Measures the change of every row in every layer under flips of an input, with one forward pass per flip.

    Every weighting function is supported. Arithmetic is in the model's dtype; matrix products have `highest` precision.

    Args:
        model: a jaxsens transformer.
        tokens: integers (n,), one input.
        flips: what is flipped, as in `flip_sensitivity`: `Substitute`, `Neighbours`, `Mask` or `Pairs`, without groups.
            By default all except the readout position and positions that hold the end-of-sequence symbol, to every
            other symbol of the alphabet.
        measure: a norm of the change of a row: `L2`, `L1` or `LInf`.
        keep: the flips whose rows to keep, as 0-based indices; flips are sorted by position, then symbol.
        placement: the devices to spread batches over, and the number of flips of each; by default JAX's default device.
            In a distributed job, with `jaxsens.global_mesh()`, all processes make the same call, share the flips and
            return the whole result.

    Returns:
        A `LayerChanges`.

    Raises:
        KeyboardInterrupt: on Ctrl-C; what was measured is lost. All processes of the mesh stop.
        InputError: naming every unusable argument; also if there is nothing to flip, or an activation is not finite.
    """
    config, word, listed, norm = _checked(model, tokens, flips, measure, keep, placement)
    kept = _kept(listed, keep)
    batch_size, mesh = (None, None) if placement is None else (placement.batch_size, placement.mesh)
    batch = min(batch_size or max(1, SYMBOLS_AT_ONCE // len(word)), len(listed))
    with numerics(config.dtype):
        found = _measured(model, word, norm, listed, kept, batch, mesh)
    own, largest, mean, rows = found.own, found.largest, found.mean, found.rows
    _check_finite(own + mean, listed)
    return LayerChanges(
        own=own,
        others_max=largest,
        others_mean=mean,
        positions=listed.positions,
        symbols=listed.symbols,
        kept=kept,
        changes=rows,
        tokens=word,
        population=listed.population,
        measure=norm.kind,
        dtype=config.dtype,
        versions=versions(),
    )


class _Found:
    """The changes of some flips; zeros for the others."""

    def __init__(self, flips: int, kept: int, layers: int, n: int, dtype: str) -> None:
        self.own, self.largest = np.zeros((flips, layers + 1), dtype), np.zeros((flips, layers + 1), dtype)
        self.mean = np.zeros((flips, layers + 1))
        self.rows = np.zeros((kept, layers + 1, n), dtype)

    def note(self, size: np.ndarray, start: int, where: np.ndarray, kept: np.ndarray) -> None:
        """Notes a batch: the norms of the changes of all rows under the flips from `start` on, at these positions."""
        each, part = np.arange(len(where)), slice(start, start + len(where))
        size = size[: len(where)]
        chosen = np.flatnonzero((kept >= start) & (kept < start + len(where)))
        self.rows[chosen] = size[kept[chosen] - start]
        self.own[part] = size[each, :, where]
        others = size.copy()
        others[each, :, where] = 0
        self.largest[part] = others.max(axis=2)
        self.mean[part] = others.sum(axis=2, dtype=np.float64) / max(1, size.shape[2] - 1)

    def with_those_of(self, group: ProcessGroup) -> None:
        """Adds what the other processes have found: every flip is that of one process."""
        for name, mine in vars(self).items():
            group.meet()
            # Bits are merged, so that not even the sign of a zero changes.
            parts = [part.view(np.uint8) for part in group.gather(mine)]
            setattr(self, name, np.bitwise_or.reduce(parts).view(mine.dtype).reshape(mine.shape))


def _measured(
    model: Transformer,
    word: np.ndarray,
    norm: Norm,
    flips: FlipTable,
    kept: np.ndarray,
    batch: int,
    mesh: Mesh | None,
) -> _Found:
    """Returns the changes of all flips, in batches that are dealt in turn to the devices of the mesh."""
    config = model.config
    found = _Found(len(flips), len(kept), config.layers, len(word), config.dtype)
    group = None if mesh is None else ProcessGroup.of(mesh)
    if group is None:
        own = [None] if mesh is None else list(mesh.devices.flat)
        _measure_on(own, range(len(own)), len(own), model, word, norm, flips, kept, batch, found)
        return found
    what = (fingerprint(measurable(model), len(word)), word.tobytes(), norm, batch, kept.tobytes())
    listed = flips.positions.tobytes() + flips.symbols.tobytes()
    with stopping.noting(signal.SIGINT), group.together(repr(what).encode() + listed):
        own, columns = list(group.local.devices.flat), group.columns[group.rank].tolist()
        _measure_on(own, columns, group.mesh.size, model, word, norm, flips, kept, batch, found)
        found.with_those_of(group)
    return found


def _measure_on(
    devices: Sequence[Any],
    numbers: Sequence[int],
    count: int,
    model: Transformer,
    word: np.ndarray,
    norm: Norm,
    flips: FlipTable,
    kept: np.ndarray,
    batch: int,
    found: _Found,
) -> None:
    """Measures every `count`-th batch from number k on, for each of some devices and its number k.

    A device of None is the default one. All devices compute at once.
    """
    config = model.config
    given = []
    for device in devices:
        parameters, tokens = jax.device_put((model.parameters, word), device)
        given.append((parameters, tokens, _levels(config, parameters, tokens)))
    for first in range(0, len(flips), count * batch):
        begun = []
        for k, (parameters, tokens, before) in zip(numbers, given, strict=True):
            start = first + k * batch
            if start < len(flips):
                # The last batch is padded with its last flip, so that all batches use one compiled program.
                full = np.minimum(np.arange(start, start + batch), len(flips) - 1)
                where = flips.positions[full], flips.symbols[full]
                begun.append((start, _batch(config, norm, parameters, tokens, before, *where)))
        for start, size in begun:
            found.note(np.asarray(size), start, flips.positions[start : start + batch], kept)


def levels(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Int[Array, " n"]
) -> Float[Array, "layers+1 n width"]:
    """y^(0), ..., y^(L) at every position."""
    traced, last = layers.trace(config, parameters, tokens)
    return jnp.stack([*(one.x for one in traced), last])


_levels = compiled(static=1)(levels)


@compiled(static=2)
def _batch(
    config: TransformerConfig,
    norm: Norm,
    parameters: TransformerParameters,
    tokens: Array,
    before: Array,
    positions: Any,
    symbols: Any,
) -> Array:
    """Returns the norms of the changes of all rows in all layers under each flip: (flips, layers + 1, n)."""

    def one(position: Array, symbol: Array) -> Array:
        after = levels(config, parameters, tokens.at[position].set(symbol.astype(tokens.dtype)))
        return norm.of(after - before)

    return jax.vmap(one)(positions, symbols)


def _checked(
    model: Any, tokens: Any, flips: Any, measure: Any, keep: Any, placement: Any
) -> tuple[TransformerConfig, np.ndarray, FlipTable, Norm]:
    """Returns the config, the word, the flips and the norm; raises all errors together."""
    problems = Problems("layer_changes")
    config = model.config if isinstance(model, Transformer) else None
    if config is None:
        problems.add(
            "model",
            type(model).__name__,
            instead_of(model, "a jaxsens Transformer: other models have no layers to look into"),
        )
    words = inputs.tokens(tokens, None if config is None else config.vocabulary_size, problems, one=True)
    if config is not None and words.size:
        check_runs(config, words.shape[1], problems)
    norm, asked = read_norm(measure, problems), read_substitution(flips, Substitute(), problems)
    if norm is not None and norm.outputs is not None:
        problems.add("measure", norm, "without outputs: rows of layers have none")
    checked_placement(placement, problems)
    if keep is not None:
        indices = array_of(keep)
        nothing = not indices.size and indices.dtype != object
        if indices.ndim != 1 or not (nothing or np.issubdtype(indices.dtype, np.integer)):
            problems.add("keep", keep, "a sequence of flips' indices, or None")
    selection = None
    if config is not None and asked is not None:
        selection = select(asked, measurable(model), words, problems)
    problems.raise_if_any()
    if config is None or selection is None or norm is None:
        raise TypeError("unusable arguments without an error")
    return config, words[0], selection.flips(words), norm


def _kept(flips: FlipTable, keep: Any) -> np.ndarray:
    """Returns the indices of the flips to keep, once the number of flips is known."""
    problems = Problems("layer_changes")
    kept = np.zeros(0, int) if keep is None else np.asarray(keep, int)
    if len(kept) and (kept.min() < 0 or kept.max() >= len(flips)):
        wrong = kept.min() if kept.min() < 0 else kept.max()
        problems.add("keep", int(wrong), f"indices from 0 to {len(flips) - 1}: there are {len(flips)} flips")
    problems.raise_if_any()
    return kept


def _check_finite(sums: np.ndarray, flips: FlipTable) -> None:
    problems = Problems("layer_changes")
    bad = ~np.isfinite(sums)
    if bad.any():
        f, k = np.argwhere(bad)[0]
        problems.add(
            "model",
            f"y^({k}) not finite under the flip of position {flips.positions[f]}",
            "smaller weights, or float64",
        )
    problems.raise_if_any()
