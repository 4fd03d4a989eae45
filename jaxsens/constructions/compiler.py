"""From a formula to a network: every subformula, children first, becomes a number at every position that is 0 or 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

from jaxsens.constructions.affine import Affine, total
from jaxsens.constructions.builder import Builder
from jaxsens.constructions.compiled import CompiledTransformer, Promise, designated, make
from jaxsens.constructions.conditions import (
    CONDITIONS,
    Condition,
    ConditionName,
    Read,
    check_choices,
    refuse,
    table_row,
    theorem,
)
from jaxsens.constructions.counting import comparison, predicate, predicate_embedding
from jaxsens.constructions.network import Network
from jaxsens.constructions.temporal import neighbour, since
from jaxsens.errors import Faults
from jaxsens.logic import (
    And,
    Comparison,
    Constant,
    CountPredicate,
    Formula,
    FormulaSyntaxError,
    Next,
    Not,
    Or,
    PositionPredicate,
    Since,
    Symbol,
    Until,
    Yesterday,
    operators,
    parse,
    predicates,
    subformulas,
    violations,
)
from jaxsens.logic.formulas import shortened

LONGEST_TEXT = 300
"""How much of a formula's text a promise shows: that of nested hops would fit no disk."""


def compile_formula(
    formula: str | Formula,
    alphabet: Sequence[str],
    condition: ConditionName = "temperature",
    *,
    autoregressive: bool = False,
    dtype: Literal["float32", "float64"] = "float64",
    read: Read = "output",
) -> CompiledTransformer:
    """The transformer that computes a formula of temporal logic with counting (Yang et al. 2024, section 4).

    An ordinary `Transformer`: the coordinate `model.output` of its last activations is 1 at every position where the
    formula holds and 0 where it does not, exactly, in every condition but the control. The number of parameters and
    their values do not depend on n. `model.promise` says which theorem it is and what it is made of.

    Args:
        formula: a formula, or its text (docs/logic.md).
        alphabet: the symbols, token t standing for alphabet[t]; "01" or ["w", "r", "0", "1"]. At least two.
        condition: what makes attention sharp, one of `CONDITIONS`.
        autoregressive: future-masked and without anything that depends on n: for formulas of Y, S and #L.
        dtype: of the model; scores grow with n, see `promise.exact_length`.
        read: what `flip_sensitivity` measures by default: the output, what its rounding reads, or all coordinates.

    Raises:
        InputError: with every reason why the formula cannot be compiled in this condition.
    """
    faults = Faults("compile_formula")
    read_formula = _checked(formula, alphabet, condition, autoregressive, dtype, read, faults)
    wanted = Condition(condition, autoregressive)
    names = tuple(alphabet)
    only_counts = operators(read_formula) <= {"#L", "#R"}
    paper = condition != "temperature-bounded"
    builder = Builder(
        Network(names),
        wanted,
        reciprocals=only_counts and paper,
        digits=dtype == "float32",
    )
    value = translate(builder, read_formula)
    output = builder.network.settled(value)
    promise = Promise(
        text=shortened(read_formula, LONGEST_TEXT),
        condition=condition,
        autoregressive=autoregressive,
        theorem=theorem(read_formula, wanted),
        table_row=table_row(read_formula),
        exact=wanted.promises or not operators(read_formula),
    )
    weighting = wanted.weighting(read_formula)
    return make(builder.network, weighting, dtype, output, designated(builder.network, output, read), promise)


def translate(builder: Builder, formula: Formula) -> Affine:
    """The truth of a formula as a form over the network's coordinates, 0 or 1 at every position.

    The inner conjunctions of a chain are made only where something other than the chain reads them.
    """
    read = _read(formula)
    known: dict[Formula, Affine] = {}
    for part in subformulas(formula):
        if part in read:
            known[part] = _one(builder, part, [known[each] for each in read[part]])
    return known[formula]


def _read(formula: Formula) -> dict[Formula, tuple[Formula, ...]]:
    """Of each subformula that is needed, what it is made of: its children, or a chain's operands."""
    read: dict[Formula, tuple[Formula, ...]] = {}
    stack = [formula]
    while stack:
        part = stack.pop()
        if part not in read:
            read[part] = _operands(part) if isinstance(part, And | Or) else tuple(part.children)
            stack += read[part]
    return read


def _one(builder: Builder, part: Formula, children: list[Affine]) -> Affine:
    network = builder.network
    match part:
        case Symbol(name):
            return network.symbol(name)
        case Constant(value):
            return Affine(constant=float(value))
        case Not():
            return 1.0 - children[0]
        case And():
            return _all(builder, children)
        case Or():
            return 1.0 - _all(builder, [1.0 - each for each in children])
        case Yesterday():
            return neighbour(builder, children[0], "Y")
        case Next():
            return neighbour(builder, children[0], "X")
        case Since():
            return since(builder, children[0], children[1], "S")
        case Until():
            return since(builder, children[0], children[1], "U")
        case PositionPredicate(theta):
            return predicate_embedding(builder, theta)
        case Comparison():
            return comparison(builder, part, children)
        case CountPredicate():
            return predicate(builder, part, children[0])
    raise TypeError(f"{type(part).__name__} is no formula that the compiler knows")


def _operands(chain: And | Or) -> tuple[Formula, ...]:
    """The conjuncts (or disjuncts) of a whole chain of them, each once: one hidden unit takes any number."""
    found: dict[Formula, None] = {}
    inner: set[Formula] = set()  # a shared link is walked once
    stack: list[Formula] = [chain]
    while stack:
        each = stack.pop()
        if not isinstance(each, type(chain)):
            found[each] = None
        elif each not in inner:
            inner.add(each)
            stack += [each.right, each.left]
    return tuple(found)


def _all(builder: Builder, forms: list[Affine]) -> Affine:
    """1 where all of the forms, which are 0 or 1, are 1: one hidden unit."""
    if len(forms) == 1:
        return forms[0]
    return builder.network.rectify([(total(forms) - (len(forms) - 1.0), 1.0)])


def _checked(
    formula: str | Formula,
    alphabet: Sequence[str],
    condition: str,
    autoregressive: bool,
    dtype: str,
    read: str,
    faults: Faults,
) -> Formula:
    """The formula read; every argument that cannot be used is noted, and raised where nothing more can be said."""
    symbols = list(alphabet) if isinstance(alphabet, str | list | tuple) else []
    named = all(isinstance(name, str) and name for name in symbols)
    if not named or len(set(symbols)) < max(2, len(symbols)):
        faults.add(
            "alphabet", alphabet, 'a text or a list of at least two different symbols, "01" or ["a", "b"]'
        )
    check_choices(condition, autoregressive, dtype, read, faults)
    if isinstance(formula, str):
        try:
            formula = parse(formula)
        except FormulaSyntaxError as error:
            faults.messages.append(str(error))
    elif not isinstance(formula, Formula):
        faults.add("formula", formula, 'a formula, or its text such as "Y Q_1"')
    if isinstance(formula, Formula):
        if symbols and named:
            faults.messages += [
                f"formula: {violation}" for violation in violations(formula, alphabet=symbols)
            ]
        _one_family_a_name(formula, faults)
        # What is wrong in every condition is said of an unknown one, too.
        known = condition if condition in tuple(CONDITIONS) else "temperature"
        refuse(formula, Condition(cast("ConditionName", known), autoregressive is True), faults)
    faults.raise_if_any()
    return cast("Formula", formula)


def _one_family_a_name(formula: Formula, faults: Faults) -> None:
    """Notes names that two different families of predicates share: their components would be called the same."""
    families = dict.fromkeys(each.family for each in predicates(formula))
    names = Counter(family.name for family in families)
    for name, number in names.items():
        if number > 1:
            faults.messages.append(
                f"formula: {number} different families of predicates are called {name}: give each a name of its own"
            )
