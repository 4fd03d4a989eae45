"""What is measured of a change: the objects of `measure`, each with its formula, unit and label."""
# ruff: noqa: F401 - the names of this room

from __future__ import annotations

from jaxsens.core.measures.kinds import (
    KL,
    MEDIAN,
    Comparison,
    Cosine,
    Decision,
    Forgotten,
    Function,
    LogProbability,
    balancing_threshold,
)
from jaxsens.core.measures.measure import L1, L2, LInf, Measure, Norm, read_norm
