"""Temporal logic with counting over words: formulas, their text, their meaning, and a library of named formulas.

This is the logic of Yang, Strobl, Chiang and Angluin, "Simulating Hard Attention Using Soft Attention", sections 4.1 to
4.4. docs/logic.md explains the grammar and the meaning with examples.

>>> from jaxsens import logic
>>> logic.evaluate(logic.formula("parity"), "0110").tolist()
[False, True, False, False]
"""

from __future__ import annotations

from jaxsens.logic.automata import Automaton as Automaton
from jaxsens.logic.automata import automaton as automaton
from jaxsens.logic.counting import Count as Count
from jaxsens.logic.counting import CountComparison as CountComparison
from jaxsens.logic.counting import CountLeft as CountLeft
from jaxsens.logic.counting import CountPredicate as CountPredicate
from jaxsens.logic.counting import CountRight as CountRight
from jaxsens.logic.counting import LinearSum as LinearSum
from jaxsens.logic.counting import compare as compare
from jaxsens.logic.evaluator import evaluate as evaluate
from jaxsens.logic.evaluator import evaluate_tokens as evaluate_tokens
from jaxsens.logic.evaluator import satisfies as satisfies
from jaxsens.logic.formulas import FALSE as FALSE
from jaxsens.logic.formulas import TRUE as TRUE
from jaxsens.logic.formulas import And as And
from jaxsens.logic.formulas import Constant as Constant
from jaxsens.logic.formulas import Formula as Formula
from jaxsens.logic.formulas import Next as Next
from jaxsens.logic.formulas import Not as Not
from jaxsens.logic.formulas import Or as Or
from jaxsens.logic.formulas import Since as Since
from jaxsens.logic.formulas import Symbol as Symbol
from jaxsens.logic.formulas import Until as Until
from jaxsens.logic.formulas import Yesterday as Yesterday
from jaxsens.logic.formulas import subformulas as subformulas
from jaxsens.logic.library import LIBRARY as LIBRARY
from jaxsens.logic.library import NamedFormula as NamedFormula
from jaxsens.logic.library import dyck_1 as dyck_1
from jaxsens.logic.library import flip_flop as flip_flop
from jaxsens.logic.library import formula as formula
from jaxsens.logic.library import hop_induction as hop_induction
from jaxsens.logic.library import n_gram as n_gram
from jaxsens.logic.library import named_formula as named_formula
from jaxsens.logic.numerical import PositionPredicate as PositionPredicate
from jaxsens.logic.numerical import Predicate as Predicate
from jaxsens.logic.numerical import PredicateFamily as PredicateFamily
from jaxsens.logic.parser import FormulaSyntaxError as FormulaSyntaxError
from jaxsens.logic.parser import parse as parse
from jaxsens.logic.structure import Fragment as Fragment
from jaxsens.logic.structure import Violation as Violation
from jaxsens.logic.structure import counts as counts
from jaxsens.logic.structure import depth as depth
from jaxsens.logic.structure import fragment as fragment
from jaxsens.logic.structure import is_past as is_past
from jaxsens.logic.structure import operators as operators
from jaxsens.logic.structure import predicates as predicates
from jaxsens.logic.structure import size as size
from jaxsens.logic.structure import symbols as symbols
from jaxsens.logic.structure import uses_counting as uses_counting
from jaxsens.logic.structure import uses_future as uses_future
from jaxsens.logic.structure import validate as validate
from jaxsens.logic.structure import violations as violations
