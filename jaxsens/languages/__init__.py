"""Formal languages as distributions over words, with exact laws of the next symbol (Hahn 2020, section 6).

Pure NumPy. Of jaxsens, this package imports `logic`, and modules that everything may import.
"""

from __future__ import annotations

from jaxsens.languages.base import Language as Language
from jaxsens.languages.base import Words as Words
from jaxsens.languages.dyck import ClosingChoice as ClosingChoice
from jaxsens.languages.dyck import Dyck as Dyck
from jaxsens.languages.flip_flop import FlipFlop as FlipFlop
from jaxsens.languages.formula import FormulaLanguage as FormulaLanguage
from jaxsens.languages.named import NAMES as NAMES
from jaxsens.languages.named import language as language
from jaxsens.languages.set_complement import SetComplement as SetComplement
from jaxsens.languages.simple import EqualBlocks as EqualBlocks
from jaxsens.languages.simple import Majority as Majority
from jaxsens.languages.simple import OneStar as OneStar
from jaxsens.languages.simple import Parity as Parity
