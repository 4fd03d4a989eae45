"""Formal languages as distributions over words, with exact laws of the next symbol (Hahn 2020, section 6).

Pure NumPy. Of jaxsens, this package imports `logic`, and modules that everything may import.
"""

from __future__ import annotations

from jaxsens.formal.languages.base import Language as Language
from jaxsens.formal.languages.base import Words as Words
from jaxsens.formal.languages.dyck import ClosingChoice as ClosingChoice
from jaxsens.formal.languages.dyck import Dyck as Dyck
from jaxsens.formal.languages.formula import FormulaLanguage as FormulaLanguage
from jaxsens.formal.languages.named import NAMES as NAMES
from jaxsens.formal.languages.named import language as language
from jaxsens.formal.languages.simple import EqualBlocks as EqualBlocks
from jaxsens.formal.languages.simple import FlipFlop as FlipFlop
from jaxsens.formal.languages.simple import Majority as Majority
from jaxsens.formal.languages.simple import OneStar as OneStar
from jaxsens.formal.languages.simple import Parity as Parity
from jaxsens.formal.languages.simple import SetComplement as SetComplement
