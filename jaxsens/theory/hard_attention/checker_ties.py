"""Which numbers are the same in every program of a model: what exact ties of a hard head are judged by.

Two sums that agree in the checker's float64 may differ in the model's dtype or order of additions. Numbers are the
same for certain if they are made of the same numbers in the same way, or if rounding cannot touch them: multiples of
a power of two so few that every partial sum is exact even in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_GRID = 2.0**6
"""Products of two multiples of 1/64 are multiples of 1/4096; sums of these up to 2^12 fit float32's 24 bits."""

_MOST = 2.0**11


@dataclass(frozen=True)
class Identity:
    """Of numbers in rows and columns: equal names in a column mean bitwise equal numbers, but for the sign of zero.

    Attributes:
        names: (rows, columns), counted in each column.
        exact: whether the number is free of rounding errors, in any program.
    """

    names: np.ndarray
    exact: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Identity:
        return Identity(self.names[rows], self.exact[rows])

    @classmethod
    def of(cls, x: np.ndarray, names: np.ndarray, exact: np.ndarray) -> Identity:
        """Exact numbers are named by their values, the others as given."""
        made = np.empty(x.shape, np.int64)
        for c in range(x.shape[1]):
            named = np.unique(names[:, c], return_inverse=True)[1].reshape(-1)
            valued = np.unique(x[:, c], return_inverse=True)[1].reshape(-1)
            made[:, c] = np.where(exact[:, c], -1 - valued, named)
        return cls(made, exact)

    @classmethod
    def given(cls, x: np.ndarray) -> Identity:
        """Of parameters, which every program holds alike."""
        return cls.of(x, np.zeros(x.shape, np.int64), np.ones(x.shape, bool))

    def row_names(self, columns: np.ndarray) -> np.ndarray:
        """(rows,): equal where the rows have the same numbers in all of some columns."""
        if not columns.any():
            return np.zeros(len(self.names), np.int64)
        return np.unique(self.names[:, columns], axis=0, return_inverse=True)[1].reshape(-1)

    def times(self, x: np.ndarray, matrix: np.ndarray, made: np.ndarray) -> Identity:
        """Of made = x @ matrix, where self is of x. A number is made of those whose weight is not 0."""
        support = matrix != 0
        kinds, kind = np.unique(support.T, axis=0, return_inverse=True)
        names = np.stack([self.row_names(columns) for columns in kinds], axis=1)[:, kind.reshape(-1)]
        inexact = ~(self.exact & _multiple(x, _GRID)) @ support
        exact = ~inexact & (_multiple(matrix, _GRID) | ~support).all(axis=0)
        return Identity.of(made, names, exact & (np.abs(x) @ np.abs(matrix) <= _MOST))

    def plus(self, x: np.ndarray, other: Identity, y: np.ndarray) -> Identity:
        """Of x + y."""
        low = other.names.min(initial=0)
        names = self.names * (other.names.max(initial=0) - low + 1) + (other.names - low)
        exact = self.exact & other.exact & _multiple(x, _GRID**2) & _multiple(y, _GRID**2)
        return Identity.of(x + y, names, exact & (np.abs(x) + np.abs(y) <= _MOST))

    def mixed(self, x: np.ndarray) -> Identity:
        """Of numbers x each made of its whole row, with rounding."""
        names = self.row_names(np.ones(self.names.shape[1], bool))
        return Identity(np.repeat(names[:, None], x.shape[1], axis=1), np.zeros(x.shape, bool))

    def turned(self, positions: np.ndarray) -> Identity:
        """Of pairs of columns turned by the angles of their positions."""
        pairs = np.stack([self.names[:, 0::2], self.names[:, 1::2]], axis=-1)
        made = np.empty(self.names.shape, np.int64)
        for c in range(pairs.shape[1]):
            keys = np.column_stack([pairs[:, c], positions])
            made[:, 2 * c : 2 * c + 2] = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1, 1)
        return Identity(made, np.zeros(made.shape, bool))

    def same(self, entry: int, others: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Which other rows have the same numbers as `entry` in some columns."""
        return (self.names[others][:, columns] == self.names[entry][columns]).all(axis=-1)


def _multiple(x: np.ndarray, grid: float) -> np.ndarray:
    return x * grid == np.round(x * grid)
