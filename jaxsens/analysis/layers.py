"""Measures Lemma 5's induction: how far each row moves in each layer when one symbol changes.

The lemma (Hahn 2020) tracks two numbers through the layers: the change of the flipped row y_i^(k), which is O(1), and
that of every other row y_j^(k), which is O(1/n) under softmax without masks. This module measures both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from jaxsens.analysis.rows import TransformerLevels, changes_of_rows
from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.inputs import array_of
from jaxsens.core.base.programs import numerics, versions
from jaxsens.core.base.sealed import SavedResult
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.base.text import html_facts
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Flips, Substitute, read_substitution
from jaxsens.core.flips.selection import select
from jaxsens.core.measures import Measure, Norm, read_norm
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer, check_runs, instead_of
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.results.request import fingerprint

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NUMBERS_AT_ONCE = 2**24
"""The rows' changes that are held at once, before only those of kept flips are: 128 MB in float64."""


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

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table with a row for each flip and layer, sorted by position, symbol, layer."""
        import pandas as pd

        flip, layer = np.indices(self.own.shape).reshape(2, -1)
        places = {"position": self.positions[flip], "symbol": self.symbols[flip], "layer": layer}
        sizes = {name: getattr(self, name).ravel() for name in ("own", "others_max", "others_mean")}
        return pd.DataFrame(places | sizes)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the mean change of the flipped row and of the others against the layer, on a logarithmic axis, into new
        axes of `matplotlib.pyplot` unless some are given. A change of exactly 0 has no place on it."""
        axes = inputs.axes(axes, (6, 3.5))
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
        return html_facts("Change of every row, by layer", rows, note)

    def __repr__(self) -> str:
        last = f"own mean={self.own[:, -1].mean():.4g}, others mean={self.others_mean[:, -1].mean():.4g}"
        return f"LayerChanges(n={self.n}, {len(self)} flips, L={self.layers}, {self.measure}; last layer: {last})"


@naming_arguments
def layer_changes(
    model: Transformer,
    tokens: Any,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
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
        placement: as for `flip_sensitivity`.

    Returns:
        A `LayerChanges`.

    Raises:
        KeyboardInterrupt: on Ctrl-C; what was measured is lost. All processes of the mesh stop.
        InputError: naming every unusable argument; also if there is nothing to flip, or an activation is not finite.
    """
    config, words, listed, norm = _checked(model, tokens, flips, measure, keep, placement)
    kept, placement = np.zeros(0, int) if keep is None else np.asarray(keep, int), placement or Placement()
    beyond = kept[(kept < 0) | (kept >= len(listed))]
    if len(beyond):
        raise InputError.of(
            "keep",
            beyond[0],
            f"indices from 0 to {len(listed) - 1}: there are {len(listed)} flips",
            subject="layer_changes",
        )
    with numerics(config.dtype):
        placement.agree((fingerprint(as_model(model), words.shape[1]), words.tobytes(), norm, kept.tobytes()))
        found = _measured(model, words, norm, listed, kept, placement)
    bad = np.argwhere(~np.isfinite(found["own"] + found["others_mean"]))
    if len(bad):
        raise InputError(
            f"layer_changes: model = 'y^({bad[0, 1]}) not finite under the flip of position "
            f"{listed.positions[bad[0, 0], 0]}': smaller weights, or float64"
        )
    return LayerChanges(
        **found,
        positions=listed.positions[:, 0],
        symbols=listed.symbols[:, 0],
        kept=kept,
        tokens=words[0],
        population=listed.population,
        measure=norm.kind,
        dtype=config.dtype,
        versions=versions(),
    )


def _measured(
    model: Transformer,
    words: Int[np.ndarray, "1 n"],
    norm: Norm,
    flips: FlipTable,
    kept: Int[np.ndarray, " kept"],
    placement: Placement,
) -> dict[str, np.ndarray]:
    """Returns what a result has of every flip and layer, and of every row under the flips that are `kept`."""
    count, n, levels = len(flips), words.shape[1], model.config.layers + 1
    at_once = min(count, max(1, NUMBERS_AT_ONCE // (levels * n)))
    rows = np.zeros((len(kept), levels, n), model.config.dtype)
    parts: list[tuple[np.ndarray, ...]] = []
    for start in range(0, count, at_once):
        # The last part is filled up with its last flip, so that one program serves all parts.
        part = flips.part(np.minimum(np.arange(start, start + at_once), count - 1))
        apply = TransformerLevels(model.config)
        sizes = changes_of_rows(apply, model.parameters, words, part, norm, None, placement)[: count - start]
        chosen = np.flatnonzero((kept >= start) & (kept < start + at_once))
        rows[chosen] = sizes[kept[chosen] - start]
        flip, where = np.arange(len(sizes)), part.positions[: len(sizes), 0]
        own = sizes[flip, :, where]
        sizes[flip, :, where] = 0
        parts.append((own, sizes.max(axis=2), sizes.sum(axis=2, dtype=np.float64) / max(1, n - 1)))
    names = ("own", "others_max", "others_mean")
    return {"changes": rows} | {
        name: np.concatenate(found) for name, found in zip(names, zip(*parts, strict=True), strict=True)
    }


def _checked(
    model: Any, tokens: Any, flips: Any, measure: Any, keep: Any, placement: Any
) -> tuple[TransformerConfig, np.ndarray, FlipTable, Norm]:
    """Returns the config, the input, the flips and the norm; raises all errors together."""
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
        selection = select(asked, as_model(model), words, problems)
    problems.raise_if_any()
    if config is None or selection is None or norm is None:
        raise TypeError("unusable arguments without an error")
    return config, words, selection.flips(), norm
