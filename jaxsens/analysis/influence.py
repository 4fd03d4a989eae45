"""The influence of every position on every row: how far each output row moves when a symbol is flipped.

`flip_sensitivity` measures one number a flip, of the row that is read. Here every flip has a number for each of the n
rows, which takes n times the memory but the same forward passes: a function and a result of their own, without readout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.analysis.rows import LayeredRows, TransformerRows, changes_of_rows
from jaxsens.core.base import inputs
from jaxsens.core.base.errors import FLIP_BYTES, EngineRefusal, InputError, check_fits, collecting
from jaxsens.core.base.inputs import FEWER_FLIPS
from jaxsens.core.base.programs import numerics, versions
from jaxsens.core.base.registry import read
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.base.text import html_facts
from jaxsens.core.checks.check import check_alone, check_calls, traced_model
from jaxsens.core.checks.indices import check_flips
from jaxsens.core.engines.options import AskedEngine, Auto, Vmap
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flips import Flips, read_substitution
from jaxsens.core.flips.selection import default_flips, select
from jaxsens.core.measures import Measure, read_norm
from jaxsens.core.models.adapters import Model, as_inputs, as_model
from jaxsens.core.models.parts.masks import Span, mask_of
from jaxsens.core.models.texts import encoded
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.results.request import fingerprint

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class InfluenceMatrix(SavedResult):
    """||y_j(x) - y_j(x')|| for every row j and the flips x' of one input x.

    Attributes:
        norms: the change of every row under every flip. A row that a mask keeps from seeing the flip has exactly 0, if
            the model's masks are known; of any other function of the tokens, what it returns for the row.
        positions: the 0-based positions flipped, sorted.
        symbols: the symbols inserted.
        tokens: the input.
        measure: the norm: "l2", "l1" or "linf".
        outputs: the output coordinates of a row that were measured; None for all.
        dtype: the dtype of the arithmetic. In float32 a change below 1e-7 of a row is rounding.
        versions: the versions of jaxsens, jax and numpy, and the device.
        names: how to write the symbols of the input, if the model knows strings; otherwise None.
    """

    kind = "influence matrix"
    norms: Float[np.ndarray, "flips n"]
    positions: Int[np.ndarray, " flips"]
    symbols: Int[np.ndarray, " flips"]
    tokens: Int[np.ndarray, " n"]
    measure: str
    outputs: tuple[int, ...] | None
    dtype: str
    versions: dict[str, str]
    names: Mapping[int, str] | None = None

    @property
    def n(self) -> int:
        """The length of the input."""
        return len(self.tokens)

    def matrix(self, statistic: Literal["mean", "max"] = "mean") -> Float[np.ndarray, "n n"]:
        """Returns the influence of position i, by row of the matrix, on output row j, by column: the mean, in float64,
        or the largest, over the symbols inserted at i. Positions that were not flipped have NaN.

        Raises:
            InputError: for another statistic.
        """
        with collecting("InfluenceMatrix.matrix") as problems:
            inputs.choice("statistic", statistic, ("mean", "max"), problems)
        found = np.full((self.n, self.n), np.nan)
        places, starts = np.unique(self.positions, return_index=True)
        if statistic == "max":
            found[places] = np.maximum.reduceat(self.norms, starts, axis=0)
        else:
            counts = np.diff([*starts, len(self.positions)])
            found[places] = np.add.reduceat(self.norms.astype(np.float64), starts, axis=0) / counts[:, None]
        return found

    def by_distance(self, statistic: Literal["mean", "max"] = "mean") -> Float[np.ndarray, " n"]:
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
        """Returns a table with a row for every flip and output row: position, symbol, row, norm."""
        import pandas as pd

        flips = len(self.positions)
        return pd.DataFrame(
            {
                "position": np.repeat(self.positions, self.n),
                "symbol": np.repeat(self.symbols, self.n),
                "row": np.tile(np.arange(self.n), flips),
                "measure": self.norms.ravel(),
            }
        )

    def plot(self, axes: Any = None, statistic: Literal["mean", "max"] = "mean") -> Axes:
        """Draws `matrix(statistic)` as a heat map with logarithmic colours; white where it is exactly 0, hatched where
        no position was flipped.

        Args:
            axes: where to draw; a new figure by default.
            statistic: over the symbols inserted at a position.

        Raises:
            InputError: for another statistic, or something else than axes.
        """
        from jaxsens.core.results.pictures.plot import draw_influence

        written = None if self.names is None else [self.names[int(symbol)] for symbol in self.tokens]
        return draw_influence(self.matrix(statistic), self.measure, written, axes)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        own = self.norms[np.arange(len(self.positions)), self.positions]
        rows: dict[str, object] = {
            "flips": len(self.positions),
            "largest change of a row": float(self.norms.max()),
            "mean change of the flipped row": float(own.mean()),
            "measure": self.measure,
        }
        return html_facts(f"Influence on {self.n} rows", rows, "`plot()` draws the matrix as a heat map.")

    def __repr__(self) -> str:
        return f"InfluenceMatrix(n={self.n}, {len(self.positions)} flips, {self.measure}; max={self.norms.max():.4g})"


@naming_arguments
def influence_matrix(
    model: Any,
    tokens: Any,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    engine: AskedEngine | Any = "auto",
    placement: Placement | None = None,
) -> InfluenceMatrix:
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
        engine: `Vmap`, or "auto" for the same. The others carry the change of the one row that is read.
        placement: as for `flip_sensitivity`.

    Returns:
        An `InfluenceMatrix`.

    Raises:
        EngineRefusal: for another engine.
        InputError: naming every unusable argument; for a model that returns no row for each position, and for outputs
            that are not finite.
    """
    tokens, model = encoded(model, tokens), as_model(model)
    with collecting("influence_matrix") as problems:
        words = as_inputs(model, tokens, problems, one=True)
        asked = read_substitution(flips, default_flips(model), problems)
        norm, how = read_norm(measure, problems), read(AskedEngine, engine, problems)
        devices = checked_placement(placement, problems, model.mesh)
        problems.raise_if_any()
        # No row is read, so none is left out of the flips.
        selection = select(asked, dataclasses.replace(model, readout=None), words, problems)
        if not problems:
            count, n = selection.number(), words.shape[1]
            needed = count * (FLIP_BYTES + n * np.dtype(model.dtype).itemsize) + 8 * n * n
            what = f"the influence of {count} flips on {n} rows"
            check_fits("tokens", f"length {n}", needed, what, FEWER_FLIPS, problems)
    if not isinstance(how, Auto | Vmap):
        raise EngineRefusal.of(
            "engine",
            how.kind,
            "it carries the change of the one row that is read; the "
            'influence on all rows is measured by "vmap"; or flip_sensitivity(..., readout=j) for a single row',
            subject="influence_matrix",
        )
    with numerics(model.dtype):
        chosen = norm.coordinates(model.outputs)
        rows = _rows_of(model, words, norm)
        table = selection.flips()
        check_flips(model, words, table)
        positions = table.positions[:, 0]
        devices.agree((fingerprint(model, words.shape[1]), words.tobytes(), norm))
        norms = changes_of_rows(rows, model.parameters, words, table, norm, chosen, devices)
        if model.given_layers is None:
            runner = VmapEngine(norm, chosen, model.apply)
            check_alone(model, words, table, 0, norms, runner)
        # Batches round in other places than the pass on the input, so rows that no flip reaches differ in last digits.
        norms[~(_reached(model, positions, words.shape[1]) | np.isnan(norms))] = 0
    if not np.isfinite(norms).all():
        where = int(positions[np.argmin(np.isfinite(norms).all(axis=1))])
        raise InputError.note(
            "model",
            f"an output row is not finite under a flip of position {where}; use float64, or smaller weights",
            subject="influence_matrix",
        )
    return InfluenceMatrix(
        norms=norms,
        positions=positions,
        symbols=table.symbols[:, 0],
        tokens=words[0],
        measure=norm.kind,
        outputs=chosen,
        dtype=model.dtype,
        versions=versions(),
        names=model.names_of(words),
    )


def _rows_of(model: Model, words: Int[np.ndarray, "1 n"], measure: Measure) -> Callable[[Any, Any], Any]:
    """Returns the function from (parameters, tokens) to the output rows.

    Raises:
        InputError: as `traced_model` and `check_calls` do; for a model without rows, and outputs that rows lack.
    """
    # As a model whose last row is read, one of rows is checked like any other.
    last, shape, _ = traced_model(dataclasses.replace(model, readout="last"), words[0], measure)
    check_calls(last, words, shape)
    if model.config is not None:
        return TransformerRows(model.config)
    if model.given_layers is not None:
        return LayeredRows(model.given_layers)
    tokens = jax.ShapeDtypeStruct(words[0].shape, jnp.int32)
    shape = jax.eval_shape(model.apply, jax.tree.map(jnp.asarray, model.parameters), tokens).shape
    if len(shape) != 2:
        raise InputError.note(
            "model",
            f"it returns shape {shape}, and no row for each of the {words.shape[1]} "
            "positions; flip_sensitivity measures the change of one output",
            subject="influence_matrix",
        )
    return model.apply


def _reached(model: Model, positions: Int[np.ndarray, " flips"], n: int) -> Bool[np.ndarray, "flips n"]:
    """Returns which rows each flip may change, by the masks of all layers; all rows if masks are not known."""
    if model.config is not None:
        config = model.config
        masks = [mask_of("influence_matrix", config.layer(k).mask) for k in range(config.layers)]
    elif model.given_layers is not None:
        layered = model.given_layers.at_length(n)
        masks = [layered.attention(k) for k in range(layered.layers)]
    else:
        return np.ones((len(positions), n), bool)
    places, of_flip = np.unique(positions, return_inverse=True)
    found = np.zeros((len(places), n), bool)
    for place, row in zip(places.tolist(), found, strict=True):
        reach: Span = (place, place + 1)
        for mask in masks:
            reach = mask.rows_that_see(reach, n)
        row[reach[0] : reach[1]] = True
    return found[of_flip]
