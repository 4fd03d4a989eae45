"""How far every row moves when one symbol changes: the rows that are put out, or those of every layer.

`flip_sensitivity` measures one number a flip, of the row that is read. Here every flip has a number for each of the n
rows, which takes n times the memory but the same forward passes: functions and a result of their own, without readout.

Lemma 5 (Hahn 2020) tracks two numbers through the layers: the change of the flipped row y_i^(k), which is O(1), and
that of every other row y_j^(k), which is O(1/n) under softmax without masks. `layer_changes` measures both.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base import inputs, stopping
from jaxsens.core.base.errors import FLIP_BYTES, InputError, check_fits, collecting
from jaxsens.core.base.inputs import FEWER_FLIPS
from jaxsens.core.base.programs import numerics, versions
from jaxsens.core.base.registry import read
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.checks import check_alone, check_calls, check_flips, traced_model
from jaxsens.core.engines.engine import FlipBlock, PreparedPass
from jaxsens.core.engines.request import default_flips, select
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure, Norm, read_norm
from jaxsens.core.measures.formulas import difference
from jaxsens.core.models.adapters import Model, as_inputs, as_model, encoded
from jaxsens.core.models.parts.masks import Span
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import Layered, rows_of
from jaxsens.core.models.transformer.module import Transformer, instead_of
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.placement.run import Measuring
from jaxsens.core.results.measured import fingerprint

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Statistic = Literal["mean", "max"]

DECADES = 6
"""Colours span at most this many powers of ten below the largest influence."""


@dataclass(frozen=True, eq=False)
class RowChanges(SavedResult):
    """||y_j^(k)(x) - y_j^(k)(x')|| for every row j, every level k and the flips x' of one input x.

    The levels of `influence_matrix` are one, the rows that are put out; those of `layer_changes` are the embedding,
    k = 0, and every layer. `matrix`, `by_distance` and `plot` are of the last level.

    Attributes:
        norms: the change of every row under every flip; exactly 0 for a row that a known mask keeps from seeing it.
        positions, symbols: the 0-based positions flipped, sorted, and the symbols inserted.
        tokens, names: the input, and how to write its symbols, if the model knows strings; otherwise None.
        population: the number of all flips; more than `len(result)` for a random sample.
        measure, outputs: the norm ("l2", "l1" or "linf"), and the coordinates of a row that it is of; None for all.
        dtype: the dtype of the arithmetic. In float32 a change below 1e-7 of a row is rounding.
        versions: the versions of jaxsens, jax and numpy, and the device.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=2, heads=2))
    >>> jaxsens.analysis.layer_changes(model, [0, 1, 1, 0]).norms.shape  # flips, levels, rows
    (4, 3, 4)
    """

    kind = "changes of rows"
    norms: Float[np.ndarray, "flips levels n"]
    positions: Int[np.ndarray, " flips"]
    symbols: Int[np.ndarray, " flips"]
    tokens: Int[np.ndarray, " n"]
    population: int
    measure: str
    outputs: tuple[int, ...] | None
    dtype: str
    versions: dict[str, str]
    names: Mapping[int, str] | None = None

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def n(self) -> int:
        """The length of the input."""
        return len(self.tokens)

    @property
    def own(self) -> Float[np.ndarray, "flips levels"]:
        """The change of the flipped row, j = i."""
        return self.norms[np.arange(len(self)), :, self.positions]

    @property
    def others_mean(self) -> Float[np.ndarray, "flips levels"]:
        """The mean change of the other rows, summed in float64; 0 if there are none."""
        own = np.arange(self.n) == self.positions[:, None]
        return np.where(own[:, None], 0, self.norms).sum(axis=2, dtype=np.float64) / max(1, self.n - 1)

    def matrix(self, statistic: Statistic = "mean") -> Float[np.ndarray, "n n"]:
        """Returns the influence of position i, by row of the matrix, on output row j, by column: the mean, in float64,
        or the largest, over the symbols inserted at i. Positions that were not flipped have NaN.

        Raises:
            InputError: for another statistic.
        """
        with collecting("RowChanges.matrix") as problems:
            inputs.choice("statistic", statistic, ("mean", "max"), problems)
        found, norms = np.full((self.n, self.n), np.nan), self.norms[:, -1]
        places, starts = np.unique(self.positions, return_index=True)
        if statistic == "max":
            found[places] = np.maximum.reduceat(norms, starts, axis=0)
        else:
            counts = np.diff([*starts, len(self.positions)])
            found[places] = np.add.reduceat(norms.astype(np.float64), starts, axis=0) / counts[:, None]
        return found

    def by_distance(self, statistic: Statistic = "mean") -> Float[np.ndarray, " n"]:
        """Returns the mean of `matrix(statistic)` over all pairs at each distance j - i, from 0 to n - 1: how far a
        position's influence reaches forward. NaN where no such pair was measured.

        Raises:
            InputError: as `matrix` does.
        """
        known = self.matrix(statistic)
        diagonals = [np.diagonal(known, d) for d in range(self.n)]
        each = [one[~np.isnan(one)] for one in diagonals]
        return np.array([one.mean() if one.size else np.nan for one in each])

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table with a row for every flip, level and row: position, symbol, level, row, measure."""
        import pandas as pd

        flip, level, row = np.indices(self.norms.shape).reshape(3, -1)
        places = {"position": self.positions[flip], "symbol": self.symbols[flip], "level": level, "row": row}
        return pd.DataFrame({**places, "measure": self.norms.ravel()})

    def plot(self, axes: Any = None, statistic: Statistic = "mean") -> Axes:
        """Draws `matrix(statistic)` as a heat map with logarithmic colours, darker for more: flipped positions from top
        to bottom, output rows from left to right; white where it is exactly 0, hatched where no position was flipped.

        Args:
            axes: where to draw; a new figure by default.
            statistic: over the symbols inserted at a position.

        Raises:
            InputError: for another statistic, or something else than axes.
        """
        from matplotlib.colors import LogNorm

        from jaxsens.core.results.plot import MOST_LABELS, families, safe_label

        matrix, axes = self.matrix(statistic), inputs.axes(axes, (6.4, 5.4))
        positive = matrix[matrix > 0]
        high = float(positive.max()) if positive.size else 1.0
        low = max(float(positive.min()), high * 10.0**-DECADES) if positive.size else 0.1
        colours = LogNorm(low if low < high else high / 2, high)
        visible = np.ma.masked_where(~(matrix > 0), np.maximum(matrix, low))
        axes.set_facecolor("white")
        image = axes.imshow(visible, norm=colours, cmap="viridis_r", interpolation="nearest")
        hatched: Any = {"facecolor": "none", "edgecolor": "#b0b0b0", "hatch": "////", "linewidth": 0}
        for place in np.flatnonzero(np.isnan(matrix).all(axis=1)):
            axes.axhspan(place - 0.5, place + 0.5, **hatched)
        extend = "min" if positive.size and positive.min() < low else "neither"
        label = f"change of the row, {self.measure} norm"
        axes.figure.colorbar(image, ax=axes, extend=extend).set_label(label)
        axes.set_xlabel("output row")
        axes.set_ylabel("flipped position")
        if self.names is not None and self.n <= MOST_LABELS:
            texts = [safe_label(self.names[int(symbol)]) for symbol in self.tokens]
            drawn: Any = {"fontfamily": families(texts)}
            axes.set_xticks(range(self.n), texts, rotation=90, **drawn)
            axes.set_yticks(range(self.n), texts, **drawn)
        return axes

    def __repr__(self) -> str:
        last = f"own mean={self.own[:, -1].mean():.4g}, others mean={self.others_mean[:, -1].mean():.4g}"
        size = f"n={self.n}, {len(self)} flips, {self.norms.shape[1]} levels"
        return f"RowChanges({size}, {self.measure}; last level: {last})"


@naming_arguments
def influence_matrix(
    model: Any,
    tokens: Any,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    placement: Placement | None = None,
) -> RowChanges:
    """Measures how far every output row moves under every flip of an input, with one forward pass per flip.

    O(flips n) memory: an input for whose flips that is too much is refused before anything runs. Arithmetic is in the
    model's dtype; matrix products have `highest` precision.

    Args:
        model: a model with an output row for each position: a jaxsens transformer, whose rows go through its head if it
            has one; a published model; a pair (`jaxsens.Layered`, parameters); or any model that returns rows (n, d).
        tokens: integers (n,), one input; for a model that encodes text, also a text.
        flips: what is flipped, as in `flip_sensitivity`: `Substitute`, `Neighbours`, `Mask` or `Pairs`, without groups.
            By default all positions but those that hold special symbols or the end-of-sequence symbol.
        measure: a norm of the change of a row: `L2`, `L1` or `LInf`.
        placement: as for `flip_sensitivity`.

    Returns:
        A `RowChanges` of one level.

    Raises:
        KeyboardInterrupt: on Ctrl-C; what was measured is lost. All processes of the mesh stop.
        InputError: naming every unusable argument; for a model without rows, and outputs that are not finite.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> influence_matrix(model, [0, 1, 1, 0]).matrix().shape
    (4, 4)
    """
    tokens, model = encoded(model, tokens), as_model(model)
    return _measured("influence_matrix", model, tokens, flips, measure, placement)


@naming_arguments
def layer_changes(
    model: Transformer,
    tokens: Any,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    placement: Placement | None = None,
) -> RowChanges:
    """Measures how far every row of every layer moves under every flip of an input, with one forward pass per flip.

    Every weighting function is supported. O(flips layers n) memory. The arguments and errors are those of
    `influence_matrix`, but the model is a jaxsens transformer, and rows of layers have no outputs to choose.

    Returns:
        A `RowChanges`: level 0 is the embedding, level L the last layer, before the head.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> layer_changes(model, [0, 1, 1, 0]).matrix().shape
    (4, 4)
    """
    subject = as_model(model)
    config = subject.config
    if config is None:
        remedy = instead_of(model, "a jaxsens Transformer: other models have no layers to look into")
        raise InputError.of("model", type(model).__name__, remedy, subject="layer_changes")
    rows = OutputRows(config, levels=True)
    return _measured("layer_changes", subject, tokens, flips, measure, placement, rows)


def _measured(
    function: str,
    model: Model,
    tokens: Any,
    flips: Any,
    measure: Any,
    placement: Any,
    rows: Callable[[Any, Any], Any] | None = None,
) -> RowChanges:
    """Returns the changes of the rows that `rows`, a hashable function of parameters and tokens, returns; by default of
    the output rows.

    Raises:
        InputError: all errors of the arguments together.
    """
    levels = 1 if rows is None or model.config is None else model.config.layers + 1
    with collecting(function) as problems:
        words = as_inputs(model, tokens, problems, one=True)
        # After an error the default is what the other arguments are checked with.
        requested = (None if flips is None else read(Flips, flips, problems)) or default_flips(model)
        if not requested.plain:
            problems.add("flips", requested, "flips that replace one symbol each")
        norm, devices = read_norm(measure, problems), checked_placement(placement, problems, model.mesh)
        # No row is read, so none is left out of the flips.
        selection = select(requested, replace(model, readout=None), words, problems)
        problems.raise_if_any()
        count, n = selection.number(), words.shape[1]
        needed = count * (FLIP_BYTES + levels * n * np.dtype(model.dtype).itemsize) + 8 * n * n
        what = f"the changes of {levels * n} rows under {count} flips"
        check_fits("tokens", f"length {n}", needed, what, FEWER_FLIPS, problems)
        problems.raise_if_any()
        table = selection.flips()
        if rows is not None and norm.outputs is not None:
            problems.add("measure", norm, "without outputs: rows of layers have none")
    chosen = norm.coordinates(model.outputs) if levels == 1 else None
    with numerics(model.dtype):
        rows = _rows_of(model, words, table, norm) if rows is None else rows
        devices.agree((function, fingerprint(model, n), words.tobytes(), norm))
        parameters = jax.tree.map(jnp.asarray, model.parameters)
        places = table.inputs, table.positions, table.symbols
        with stopping.noting(signal.SIGINT):
            engine = RowsEngine(norm, chosen, rows)
            changes = Measuring(engine, parameters, words, *places, devices).changes()[0]
        norms = changes.reshape(len(table), levels, n)
        if model.config is None and model.given_layers is None:
            check_alone(model, words, table, 0, norms[:, 0], VmapEngine(norm, chosen, model.apply))
    positions = table.positions[:, 0]
    # Batches round in other places than the pass on the input, so rows that no flip reaches differ in last digits.
    norms[~(_reached(model, positions, n)[:, -levels:] | np.isnan(norms))] = 0
    bad = np.argwhere(~np.isfinite(norms))
    if len(bad):
        why = f"a row of level {bad[0, 1]} is not finite under a flip of position {positions[bad[0, 0]]}"
        raise InputError.note("model", f"{why}; use float64, or smaller weights", subject=function)
    return RowChanges(
        norms=norms,
        positions=positions,
        symbols=table.symbols[:, 0],
        tokens=words[0],
        population=table.population,
        measure=norm.kind,
        outputs=chosen,
        dtype=model.dtype,
        versions=versions(),
        names=model.names_of(words),
    )


def _rows_of(
    model: Model, words: Int[np.ndarray, "1 n"], flips: FlipTable, norm: Norm
) -> Callable[[Any, Any], Any]:
    """Returns the function from (parameters, tokens) to the output rows.

    Raises:
        InputError: as `traced_model` and `check_calls` do; for a model without rows, and outputs that rows lack.
    """
    # As a model whose last row is read, one of rows is checked like any other.
    last, shape, _ = traced_model(replace(model, readout="last"), words[0], norm)
    check_calls(last, words, shape)
    check_flips(model, words, flips)
    own = model.given_layers if model.config is None else model.config
    if own is not None:
        return OutputRows(own)
    tokens = jax.ShapeDtypeStruct(words[0].shape, jnp.int32)
    shape = jax.eval_shape(model.apply, jax.tree.map(jnp.asarray, model.parameters), tokens).shape
    if len(shape) != 2:
        why = f"it returns shape {shape}, and no row for each of the {words.shape[1]} positions"
        remedy = f"{why}; flip_sensitivity measures the change of one output"
        raise InputError.note("model", remedy, subject="influence_matrix")
    return model.apply


def _reached(
    model: Model, positions: Int[np.ndarray, " flips"], n: int
) -> Bool[np.ndarray, "flips levels n"]:
    """Returns which rows of each level a flip may change, by the masks of all layers; one level with all rows if masks
    are not known."""
    if model.layered is None:
        return np.ones((len(positions), 1, n), bool)
    layered = model.layered.at_length(n)
    masks = [layered.attention(k) for k in range(layered.layers)]
    places, of_flip = np.unique(positions, return_inverse=True)
    found = np.zeros((len(places), len(masks) + 1, n), bool)
    for place, levels in zip(places.tolist(), found, strict=True):
        reach: Span = (place, place + 1)
        for level, mask in zip(levels, [None, *masks], strict=True):
            reach = reach if mask is None else mask.rows_that_see(reach, n)
            level[reach[0] : reach[1]] = True
    return found[of_flip]


@dataclass(frozen=True)
class OutputRows:
    """The function from parameters and tokens to the output of every row; with `levels`, to the rows of every layer of
    a jaxsens transformer, (layers + 1, n, width)."""

    model: TransformerConfig | Layered
    levels: bool = False

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        model = self.model
        if isinstance(model, Layered):
            return rows_of(model, jax.tree.map(jnp.asarray, parameters), tokens)
        if self.levels:
            traced, last = layers.trace(model, parameters, tokens)
            return jnp.stack([*(one.x for one in traced), last])
        y = layers.activations(model, parameters, tokens)
        return jax.vmap(lambda row: layers.through_head(model, parameters, row))(y)


@dataclass(frozen=True)
class RowsEngine(VmapEngine):
    """One forward pass per flip, of a function that returns rows: a norm of the change of each."""

    measure: Norm

    def changes(
        self, parameters: Any, prepared: PreparedPass, block: FlipBlock
    ) -> Float[Array, "flips *rows"]:
        new = self._flipped(parameters, prepared, block)
        return self.measure.of(self.chosen(difference(new, prepared.output)))
