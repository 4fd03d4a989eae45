"""From a formula to a network: every subformula, children first, becomes a number that is 0 or 1 at every position;
and the compiled transformer, an ordinary model that also knows what it computes, and up to which length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import InputError, collecting, no_rule
from jaxsens.core.base.inputs import array_of
from jaxsens.core.base.programs import DTYPES
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.formal import logic
from jaxsens.formal.constructions import conditions, operators
from jaxsens.formal.constructions.conditions import Condition, ConditionName, Read
from jaxsens.formal.constructions.network import Affine, Builder, Head, ResidualNetwork, Sum, total
from jaxsens.formal.logic.evaluator import checked_formula
from jaxsens.formal.logic.formulas import shortened

MARGIN = 16
"""Rounding stays below 1/16 of what scores must resolve: a score is rounded several times, a difference twice that."""

LARGEST_SQUARE, LARGEST_LENGTH_SQUARE = 2**24, 2**16
"""Up to which n the digits kept in float32 hold j^2 and n j^2 (`network.PLACES`)."""


@dataclass(frozen=True)
class Promise:
    """What a constructed transformer computes, by which theorem, and what it is made of.

    Attributes:
        text: The formula's text, or the construction's name.
        condition: The condition it was compiled in.
        autoregressive: Whether every layer is future-masked and nothing in it depends on n.
        theorem: The statement that gives the network: one of Yang et al. (2026), or it names another source.
        table_row: The row of their table of results, which names the logic; "none" for another source.
        exact: Whether the output is promised to equal the formula everywhere, up to `exact_length`.
        temperature: tau(n), the same for every head.
        components: The position embeddings.
        bounded: Whether all position embeddings stay bounded as n grows.
        layers, heads, width, feed_forward: Sizes. `heads` is the sum over layers, `feed_forward` the largest layer's.
        idle_heads: The number of layers that need no attention. The model has a head of zeros in each of them, which
            `heads` does not count.
        exact_length: The n up to which rounding is predicted to change nothing, in float32 and in float64.
    """

    text: str
    condition: str
    autoregressive: bool
    theorem: str
    table_row: str
    exact: bool
    temperature: str = "1"
    components: tuple[str, ...] = ()
    bounded: bool = True
    layers: int = 0
    heads: int = 0
    width: int = 0
    feed_forward: int = 0
    idle_heads: int = 0
    exact_length: tuple[tuple[str, int], ...] = ()

    def exact_to(self, dtype: str) -> int:
        """The length up to which rounding in a dtype, "float32" or "float64", is predicted to change no output.

        Raises:
            InputError: For another dtype.
        """
        known = dict(self.exact_length)
        if dtype not in known:
            raise InputError.of("dtype", dtype, f"one of {', '.join(known)}", subject="exact_to")
        return known[dtype]

    def __str__(self) -> str:
        exact = ", ".join(f"{n} in {dtype}" for dtype, n in self.exact_length)
        heads = _counted(self.heads, "head") + (f" and {self.idle_heads} idle" if self.idle_heads else "")
        return "\n".join(
            (
                f"{self.text}",
                f"  condition    {self.condition}{', autoregressive' if self.autoregressive else ''}",
                f"  by           {self.theorem} (table row {self.table_row})",
                f"  temperature  {self.temperature}",
                f"  embeddings   {', '.join(self.components) or 'none'} ({'' if self.bounded else 'un'}bounded)",
                f"  size         {_counted(self.layers, 'layer')}, {heads}, width {self.width}, "
                f"at most {self.feed_forward} hidden units",
                f"  exact to     {exact if self.exact else 'nothing is promised'}",
            )
        )


class CompiledTransformer(Transformer):
    """A transformer with hand-made weights over named symbols.

    Attributes:
        alphabet: The symbols; token t stands for alphabet[t].
        output: The coordinate that is 1 where the formula is true and 0 elsewhere.
        outputs, exact_outputs: The coordinates that `flip_sensitivity` measures by default, None for all; those that
            are promised to be exactly 0 or 1: the output, or none in the control.
        heads: What the heads of every layer do, and how far each may be from hard attention.
        promise, exact_length: What it computes, and up to which length in its own dtype, beyond which
            `flip_sensitivity` warns; None if nothing is promised.

    >>> compile_formula("odd(#L[Q_1])", "01").accepts("0111")
    True
    """

    def __init__(
        self,
        config: TransformerConfig,
        parameters: TransformerParameters,
        alphabet: tuple[str, ...],
        output: int,
        outputs: tuple[int, ...] | None,
        heads: tuple[tuple[Head, ...], ...],
        promise: Promise,
    ) -> None:
        super().__init__(config, parameters=parameters)
        self.alphabet = alphabet
        self.output = output
        self.outputs = outputs
        self.exact_outputs: tuple[int, ...] = (output,) if promise.exact else ()
        self.heads = heads
        self.promise = promise
        self.exact_length = promise.exact_to(config.dtype) if promise.exact else None

    def with_weighting(self, weighting: str | Weighting) -> CompiledTransformer:
        """The same network, every parameter and position embedding of it, with another weighting in every layer.

        Its temperature is then all that differs: with "softmax", of temperature 1, it is a control that promises
        nothing. Raises InputError for a weighting that the network cannot have (`TransformerConfig`).
        """
        config = replace(self.config, weighting=weighting)
        theorem = f"the parameters of {self.promise.theorem}, with another weighting"
        promise = replace(self.promise, exact=False, theorem=theorem, temperature=config.temperature)
        given = (self.alphabet, self.output, self.outputs, self.heads, promise)
        return CompiledTransformer(config, self.parameters, *given)

    def encode(self, word: Sequence[str]) -> Int[np.ndarray, " n"]:
        """The tokens of a word, int32. A word is a string of one-letter symbols, or a sequence of symbols.

        Raises:
            InputError: Naming everything in it that is not a symbol of the alphabet.
        """
        known = list(self.alphabet)
        if not isinstance(word, Iterable):
            raise InputError.of("word", word, f"a text, or a list of symbols of {known}", subject="encode")
        given = list(word)
        numbers = {symbol: token for token, symbol in enumerate(self.alphabet)}
        wrong = (each for each in given if not isinstance(each, str) or each not in numbers)
        unknown = dict.fromkeys(map(repr, wrong))
        if unknown:
            raise InputError(
                f"encode: word has {', '.join(unknown)}: give symbols of the alphabet {known}; tokens need no "
                "encoding, pass them to the model as they are"
            )
        return np.array([numbers[symbol] for symbol in given], np.int32)

    def accepts(self, word: Sequence[str] | Int[np.ndarray, "*batch n"]) -> Any:
        """Whether the output at the last position is nearer to 1 than to 0: a bool, or an array of them for a batch.

        `word` is a word as `encode` takes it, or tokens.

        Raises:
            InputError: For anything else.
        """
        given = array_of(word)
        tokens = given if given.dtype.kind in "iu" else self.encode(word)  # pyright: ignore[reportArgumentType]
        if not tokens.size or not tokens.ndim:
            raise InputError.of("word", word, "give at least one symbol", subject="accepts")
        near = np.asarray(self(tokens))[..., self.output] > 0.5
        return bool(near) if near.ndim == 0 else near


def make(
    network: ResidualNetwork,
    weighting: Weighting,
    dtype: Literal["float32", "float64"],
    output: int,
    read: Read,
    promise: Promise,
) -> CompiledTransformer:
    """The model of a finished network. Fills in what the promise says about its size and its exactness."""
    # The control's scores are bounded, so plain products keep their digits, and every engine can measure it.
    centred = dtype == "float32" and promise.exact
    idle_mask = "future" if promise.autoregressive else "none"
    config, parameters = network.build(weighting, dtype, centred_scores=centred, idle_mask=idle_mask)
    heads = [head for layer in network.heads for head in layer]
    full = replace(
        promise,
        temperature=config.temperature,
        components=tuple(term.label for term in network.terms),
        bounded=config.bounded,
        layers=config.layers,
        heads=len(heads),
        width=config.width,
        idle_heads=sum(not layer for layer in network.heads),
        feed_forward=max((config.layer(k).feed_forward for k in range(config.layers)), default=0),
        exact_length=tuple(
            (kind, exact_length(heads, network.sums, promise.condition, promise.autoregressive, kind))
            for kind in DTYPES
        ),
    )
    outputs = {"everything": None, "output": (output,), "before-rounding": network.read_by_rounding(output)}
    return CompiledTransformer(
        config, parameters, network.alphabet, output, outputs[read], network.heads, full
    )


def exact_length(
    heads: Sequence[Head], sums: Sequence[Sum], condition: str, autoregressive: bool, dtype: str
) -> int:
    """The predicted largest n at which all of these heads and sums come out as in exact arithmetic.

    docs/constructions-proofs.md (Rounding) has the limits of sums and of heads; 0 means that not even n = 1 is certain.
    """
    u = float(np.finfo(dtype).eps) / 2
    limits = [int(1 / (MARGIN * u))]
    limits += [max(0, int((1 / (MARGIN * u) - abs(constant)) / weight)) for weight, constant in sums]
    for head in heads:
        if head.kind in ("average", "exists"):
            continue
        linear = int(1 / (MARGIN * u * head.sharpness))
        limits.append(_resolved(head.kind, linear, condition, autoregressive, dtype))
    return min(limits)


def _resolved(kind: str, linear: int, condition: str, autoregressive: bool, dtype: str) -> int:
    """The limit that one head sets; `linear` is the limit if rounding costs g n u."""
    quadratic = isqrt(linear)
    match kind, dtype:
        case "match", "float64":
            return isqrt(quadratic) if autoregressive else int(linear ** (1 / 3))
        case "match", "float32":
            return quadratic if condition == "temperature-bounded" else linear
        case "table", "float32" if condition in ("temperature", "average-hard"):
            return min(linear, LARGEST_SQUARE)
        case "table", "float32" if condition == "unbounded":
            return min(linear, LARGEST_LENGTH_SQUARE)
        case "table", _:
            return quadratic
        case "centre", _:
            return int(linear ** (2 / 3)) if dtype == "float64" else linear
        case "nearest" | "sign", _:
            return quadratic if autoregressive and dtype == "float64" else linear
    known = ("average", "exists", "match", "table", "nearest", "sign", "centre")
    raise no_rule("exact_length", "head", kind, known)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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

    >>> compile_formula("#L[Q_1] > #L[Q_0]", alphabet="01").accepts("0111")
    True
    """
    with collecting("compile_formula") as problems:
        checked, symbols = checked_formula(formula, alphabet, problems)
        conditions.check_choices(condition, autoregressive, dtype, read, problems)
        if checked is not None:
            # Two families of one name would give two position components of one name.
            families = dict.fromkeys(each.family for each in logic.predicates(checked))
            for name, number in Counter(family.name for family in families).items():
                if number > 1:
                    remedy = f"{number} different families of predicates are called {name}"
                    problems.note("formula", f"{remedy}: give each its own")
            # With an unknown condition, say at least what is wrong in every condition.
            known = isinstance(condition, str) and condition in conditions.CONDITIONS
            any_condition = Condition(condition if known else "temperature", autoregressive is True)
            conditions.refuse(checked, any_condition, problems)
    if checked is None:
        raise RuntimeError("a formula is missing without an error")
    wanted, used = Condition(condition, autoregressive), logic.operators(checked)
    reciprocals = used <= {"#L", "#R"} and condition != "temperature-bounded"
    builder = Builder(ResidualNetwork(symbols), wanted, reciprocals, digits=dtype == "float32")
    output = builder.network.settled(translate(builder, checked))
    promise = Promise(
        text=shortened(checked, LONGEST_TEXT),
        condition=condition,
        autoregressive=autoregressive,
        theorem=conditions.theorem(checked, wanted),
        table_row=conditions.table_row(checked),
        exact=wanted.promises or not used,
    )
    weighting = wanted.weighting(conditions.power(checked, wanted))
    return make(builder.network, weighting, dtype, output, read, promise)


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
            return operators.neighbour(builder, children[0], "future")
        case logic.Next():
            return operators.neighbour(builder, children[0], "past")
        case logic.Since():
            return operators.since(builder, children[0], children[1], "future")
        case logic.Until():
            return operators.since(builder, children[0], children[1], "past")
        case logic.PositionPredicate(theta):
            return operators.predicate_embedding(builder, theta)
        case logic.CountComparison():
            return operators.comparison(builder, part, children)
        case logic.CountPredicate():
            return operators.predicate(builder, part, children[0])
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
