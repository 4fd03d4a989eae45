"""All rows of a model under every flip: an engine that `jaxsens.core.placement` runs as it runs any other."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.engines.engine import FlipBlock, PreparedPass
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.measures import Norm
from jaxsens.core.measures.formulas import difference
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import Layered, rows_of
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.run import Measuring


@dataclass(frozen=True)
class TransformerLevels:
    """The rows of every layer of a jaxsens transformer: y^(0), ..., y^(L) at every position."""

    config: TransformerConfig

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The rows of one input, (layers + 1, n, width)."""
        traced, last = layers.trace(self.config, parameters, tokens)
        return jnp.stack([*(one.x for one in traced), last])


@dataclass(frozen=True)
class TransformerRows:
    """The output of every row of a jaxsens transformer: y^(L), or the logits that its head gives of each row."""

    config: TransformerConfig

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The rows of one input."""
        y = layers.activations(self.config, parameters, tokens)
        return jax.vmap(lambda row: layers.through_head(self.config, parameters, row))(y)


@dataclass(frozen=True)
class LayeredRows:
    """The output of every row of a model whose attention is visible."""

    model: Layered

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The rows of one input."""
        return rows_of(self.model, jax.tree.map(jnp.asarray, parameters), tokens)


@dataclass(frozen=True)
class RowsEngine(VmapEngine):
    """One forward pass per flip, of a function that returns rows: a norm of the change of each."""

    measure: Norm

    def changes(
        self, parameters: Any, prepared: PreparedPass, block: FlipBlock
    ) -> Float[Array, "flips *rows"]:
        """Returns the norm of the change of every row under each flip."""
        new = self._flipped(parameters, prepared, block)
        return self.measure.of(self.chosen(difference(new, prepared.output)))


def changes_of_rows(
    rows: Callable[[Any, Any], Any],
    parameters: Any,
    words: Int[np.ndarray, "1 n"],
    flips: FlipTable,
    measure: Norm,
    outputs: tuple[int, ...] | None,
    placement: Placement,
) -> Float[np.ndarray, "flips *rows"]:
    """Returns a norm of the change of every row under every flip.

    Args:
        rows: a hashable function from parameters and tokens to rows.
        parameters: its parameters.
        words: the input.
        flips: the flips.
        measure: the norm.
        outputs: the coordinates of a row that are measured; None for all.
        placement: where.

    Raises:
        InputError: if not even one flip at a time fits the budget.
        KeyboardInterrupt: on Ctrl-C; all processes of the mesh stop.
    """
    engine = RowsEngine(measure, outputs, rows)
    parameters = jax.tree.map(jnp.asarray, parameters)
    with stopping.noting(signal.SIGINT):
        return Measuring(
            engine, parameters, words, flips.inputs, flips.positions, flips.symbols, placement
        ).changes()[0]
