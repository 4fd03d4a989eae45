"""A model whose attention is visible, with its parameters, and what it knows about its symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.base.errors import InputError
from jaxsens.models.transformer.layered import Layered, rows_of


@dataclass(frozen=True, eq=False)
class LayeredModel:
    """A `Layered` and its parameters, as one object: a model for every function of jaxsens.

    Derive a class from it for models that know more about their symbols than their number.

    Attributes:
        layered: the model.
        parameters: its parameters, a pytree of arrays.
    """

    layered: Layered
    parameters: Any

    @property
    def max_length(self) -> int | None:
        """The length of the longest input; None without a limit."""
        return None

    @property
    def reserved(self) -> tuple[int, ...]:
        """The symbols that are not inserted unless they are asked for, sorted, such as a tokenizer's special ones."""
        return ()

    @property
    def special(self) -> tuple[int, ...]:
        """The symbols that are not flipped unless their positions are asked for, sorted; all are `reserved`."""
        return ()

    @property
    def mask(self) -> int | None:
        """The symbol that stands for an unknown one, as models trained with masks have; None without one."""
        return None

    def embeddings(self) -> Float[np.ndarray, "symbols width"] | None:
        """Returns the rows of the symbols' embeddings, without positions; None if there is no such table."""
        return None

    def tokens(self, ids: Sequence[int]) -> list[str] | None:
        """Returns how to write each symbol; None if the model knows symbols by number only."""
        del ids

    def __call__(self, ids: Int[Array, " n"]) -> Float[Array, "n outputs"]:
        """Returns the output of every row, in O(layers n^2 width) operations.

        Raises:
            InputError: if the input is longer than `max_length`.
        """
        n = np.shape(ids)[0]
        if self.max_length is not None and n > self.max_length:
            raise InputError(
                f"ids of length {n}: the model reads at most {self.max_length} symbols; give a shorter input"
            )
        return rows_of(self.layered, jax.tree.map(jnp.asarray, self.parameters), jnp.asarray(ids))
