"""Formal languages as distributions over words, with exact laws of the next symbol (Hahn 2020, section 6).

Pure NumPy; this room imports nothing of jaxsens but the leaves.
"""

from __future__ import annotations

from jaxsens.languages.base import Language, Words
from jaxsens.languages.dyck import ClosingChoice, Dyck
from jaxsens.languages.flip_flop import FlipFlop
from jaxsens.languages.majority import Majority
from jaxsens.languages.named import NAMES, language
from jaxsens.languages.parity import Parity
from jaxsens.languages.simple import EqualBlocks, OneStar

__all__ = [
    "NAMES",
    "ClosingChoice",
    "Dyck",
    "EqualBlocks",
    "FlipFlop",
    "Language",
    "Majority",
    "OneStar",
    "Parity",
    "Words",
    "language",
]
