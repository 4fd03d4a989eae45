"""From a formula to a network: every subformula, children first, becomes a number that is 0 or 1 at every position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

from jaxsens.core.base.errors import collecting, no_rule
from jaxsens.core.base.strict import naming_arguments
from jaxsens.formal import logic
from jaxsens.formal.constructions import conditions
from jaxsens.formal.constructions.compiled import CompiledTransformer, Promise, make
from jaxsens.formal.constructions.conditions import Condition, ConditionName, Read
from jaxsens.formal.constructions.network import Affine, Builder, ResidualNetwork, total
from jaxsens.formal.constructions.operators import (
    comparison,
    neighbour,
    predicate,
    predicate_embedding,
    since,
)
from jaxsens.formal.logic.formulas import shortened

LONGEST_TEXT = 300
"""How much of a formula's text a promise shows. The text of nested hops would fit on no disk."""


@naming_arguments
def compile_formula(
    formula: str | logic.Formula,
    alphabet: Sequence[str],
    condition: ConditionName = "temperature",
    *,
    autoregressive: bool = False,
    dtype: Literal["float32", "float64"] = "float64",
    read: Read = "output",
) -> CompiledTransformer:
    """The transformer that computes a formula of temporal logic with counting (Yang et al. 2026, section 4).

    The result is an ordinary `Transformer`. The coordinate `model.output` of its last activations is exactly 1 at
    every position where the formula holds and exactly 0 where it does not, in every condition except the control.
    Neither the number of parameters nor their values depend on n. `model.promise` says which theorem gives the network
    and what it is made of.

    Args:
        formula: A formula, or its text (docs/logic.md).
        alphabet: The symbols, at least two; token t stands for alphabet[t]. For example "01" or ["w", "r", "0", "1"].
        condition: What makes attention sharp; one of `CONDITIONS`.
        autoregressive: Whether the network is future-masked and contains nothing that depends on n. For formulas of Y,
            S and #L.
        dtype: The model's dtype. Scores grow with n, see `promise.exact_length`.
        read: What `flip_sensitivity` measures by default: the output, what its rounding reads, or all coordinates.

    Raises:
        InputError: With every reason why the formula cannot be compiled in this condition.
    """
    with collecting("compile_formula") as problems:
        symbols = list(alphabet) if isinstance(alphabet, str | list | tuple) else []
        named = all(isinstance(name, str) and name for name in symbols)
        if not named or len(set(symbols)) < max(2, len(symbols)):
            remedy = 'a text or a list of at least two different symbols, "01" or ["a", "b"]'
            problems.add("alphabet", alphabet, remedy)
        conditions.check_choices(condition, autoregressive, dtype, read, problems)
        if isinstance(formula, str):
            try:
                formula = logic.parse(formula)
            except logic.FormulaSyntaxError as error:
                problems.include(error.problems)
        elif not isinstance(formula, logic.Formula):
            problems.add("formula", formula, 'a formula, or its text such as "Y Q_1"')
        if isinstance(formula, logic.Formula):
            if symbols and named:
                found = logic.violations(formula, alphabet=symbols)
                for violation in found:
                    problems.note("formula", str(violation))
            # Two families of one name would give two position components of one name.
            families = dict.fromkeys(each.family for each in logic.predicates(formula))
            names = Counter(family.name for family in families)
            for name in (name for name, number in names.items() if number > 1):
                remedy = (
                    f"{names[name]} different families of predicates are called {name}: give each its own"
                )
                problems.note("formula", remedy)
            # With an unknown condition, say at least what is wrong in every condition.
            known = (
                condition
                if isinstance(condition, str) and condition in conditions.CONDITIONS
                else "temperature"
            )
            conditions.refuse(
                formula, Condition(cast("ConditionName", known), autoregressive is True), problems
            )
    checked = cast("logic.Formula", formula)
    wanted, used = Condition(condition, autoregressive), logic.operators(checked)
    reciprocals = used <= {"#L", "#R"} and condition != "temperature-bounded"
    builder = Builder(ResidualNetwork(tuple(alphabet)), wanted, reciprocals, digits=dtype == "float32")
    output = builder.network.settled(translate(builder, checked))
    promise = Promise(
        text=shortened(checked, LONGEST_TEXT),
        condition=condition,
        autoregressive=autoregressive,
        theorem=conditions.theorem(checked, wanted),
        table_row=conditions.table_row(checked),
        exact=wanted.promises or not used,
    )
    return make(
        builder.network, wanted.weighting(conditions.power(checked, wanted)), dtype, output, read, promise
    )


def translate(builder: Builder, formula: logic.Formula) -> Affine:
    """The truth of a formula as a form over the network's coordinates, 0 or 1 at every position.

    An inner conjunction of a chain is made only if something other than the chain reads it.
    """
    # For each subformula that is needed, parents first, what it is made of: its children, or a chain's operands.
    read: dict[logic.Formula, tuple[logic.Formula, ...]] = {}
    needed = {formula}
    for part in reversed(logic.subformulas(formula)):
        if part in needed:
            read[part] = _operands(part) if isinstance(part, logic.And | logic.Or) else part.children
            needed.update(read[part])
    known: dict[logic.Formula, Affine] = {}
    for part in reversed(read):
        known[part] = _one(builder, part, [known[each] for each in read[part]])
    return known[formula]


def _one(builder: Builder, part: logic.Formula, children: list[Affine]) -> Affine:
    network = builder.network
    match part:
        case logic.Symbol(name):
            return network.symbol(name)
        case logic.Constant(value):
            return Affine(constant=float(value))
        case logic.Not():
            return 1.0 - children[0]
        case logic.And():
            return _all(builder, children)
        case logic.Or():
            return 1.0 - _all(builder, [1.0 - each for each in children])
        case logic.Yesterday():
            return neighbour(builder, children[0], "future")
        case logic.Next():
            return neighbour(builder, children[0], "past")
        case logic.Since():
            return since(builder, children[0], children[1], "future")
        case logic.Until():
            return since(builder, children[0], children[1], "past")
        case logic.PositionPredicate(theta):
            return predicate_embedding(builder, theta)
        case logic.CountComparison():
            return comparison(builder, part, children)
        case logic.CountPredicate():
            return predicate(builder, part, children[0])
    raise no_rule("compile_formula", "formula", part)


def _operands(chain: logic.And | logic.Or) -> tuple[logic.Formula, ...]:
    """The conjuncts (or disjuncts) of a whole chain, each once. One hidden unit takes any number of them."""
    found: dict[logic.Formula, None] = {}  # links of the chain too, so that a shared one is walked once
    stack: list[logic.Formula] = [chain]
    while stack:
        each = stack.pop()
        if isinstance(each, type(chain)) and each not in found:
            stack += [each.right, each.left]
        found[each] = None
    return tuple(each for each in found if not isinstance(each, type(chain)))


def _all(builder: Builder, forms: list[Affine]) -> Affine:
    """1 where all of the forms, which are 0 or 1, are 1. One hidden unit."""
    if len(forms) == 1:
        return forms[0]
    return builder.network.rectify((total(forms) - (len(forms) - 1.0), 1.0))
