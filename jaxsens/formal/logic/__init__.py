"""Temporal logic with counting over words: formulas, their text, their meaning, and a library of named formulas.

This is the logic of Yang, Strobl, Chiang and Angluin, "Simulating Hard Attention Using Soft Attention", sections 4.1 to
4.4. docs/logic.md explains the grammar and the meaning with examples.

>>> from jaxsens import logic
>>> logic.evaluate(logic.formula("parity"), "0110").tolist()
[False, True, False, False]
"""

from __future__ import annotations

from jaxsens.formal.logic.counting import Count as Count
from jaxsens.formal.logic.counting import CountComparison as CountComparison
from jaxsens.formal.logic.counting import CountLeft as CountLeft
from jaxsens.formal.logic.counting import CountPredicate as CountPredicate
from jaxsens.formal.logic.counting import CountRight as CountRight
from jaxsens.formal.logic.counting import LinearSum as LinearSum
from jaxsens.formal.logic.counting import PositionPredicate as PositionPredicate
from jaxsens.formal.logic.counting import Predicate as Predicate
from jaxsens.formal.logic.counting import PredicateFamily as PredicateFamily
from jaxsens.formal.logic.counting import compare as compare
from jaxsens.formal.logic.evaluator import evaluate as evaluate
from jaxsens.formal.logic.evaluator import evaluate_tokens as evaluate_tokens
from jaxsens.formal.logic.evaluator import operators as operators
from jaxsens.formal.logic.evaluator import predicates as predicates
from jaxsens.formal.logic.evaluator import satisfies as satisfies
from jaxsens.formal.logic.evaluator import symbols as symbols
from jaxsens.formal.logic.formulas import FALSE as FALSE
from jaxsens.formal.logic.formulas import TRUE as TRUE
from jaxsens.formal.logic.formulas import And as And
from jaxsens.formal.logic.formulas import Constant as Constant
from jaxsens.formal.logic.formulas import Formula as Formula
from jaxsens.formal.logic.formulas import Next as Next
from jaxsens.formal.logic.formulas import Not as Not
from jaxsens.formal.logic.formulas import Or as Or
from jaxsens.formal.logic.formulas import Since as Since
from jaxsens.formal.logic.formulas import Symbol as Symbol
from jaxsens.formal.logic.formulas import Until as Until
from jaxsens.formal.logic.formulas import Yesterday as Yesterday
from jaxsens.formal.logic.formulas import subformulas as subformulas
from jaxsens.formal.logic.library import LIBRARY as LIBRARY
from jaxsens.formal.logic.library import NamedFormula as NamedFormula
from jaxsens.formal.logic.library import dyck_1 as dyck_1
from jaxsens.formal.logic.library import flip_flop as flip_flop
from jaxsens.formal.logic.library import formula as formula
from jaxsens.formal.logic.library import hop_induction as hop_induction
from jaxsens.formal.logic.library import n_gram as n_gram
from jaxsens.formal.logic.library import named_formula as named_formula
from jaxsens.formal.logic.parser import FormulaSyntaxError as FormulaSyntaxError
from jaxsens.formal.logic.parser import parse as parse
from jaxsens.formal.logic.reading import Automaton as Automaton
from jaxsens.formal.logic.reading import automaton as automaton
