"""Formal languages as distributions over words, with exact laws of the next symbol (Hahn 2020, section 6).

Pure NumPy. Of jaxsens, this package imports `logic`, and modules that everything may import.
"""

from __future__ import annotations

from jaxsens.languages.base import Language, Words
from jaxsens.languages.dyck import ClosingChoice, Dyck
from jaxsens.languages.flip_flop import FlipFlop
from jaxsens.languages.formula import FormulaLanguage
from jaxsens.languages.named import NAMES, language
from jaxsens.languages.simple import EqualBlocks, Majority, OneStar, Parity

__all__ = [
    "NAMES",
    "ClosingChoice",
    "Dyck",
    "EqualBlocks",
    "FlipFlop",
    "FormulaLanguage",
    "Language",
    "Majority",
    "OneStar",
    "Parity",
    "Words",
    "language",
]
