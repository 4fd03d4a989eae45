"""What a formula is made of, and what it means: its truth value at every position of a word, which is the
specification of the compiler.

The definitions are those of sections 4.1, 4.2 and 4.4. Positions are counted from 1; arrays hold position i at index
i - 1. Evaluation takes O(size * n) steps per word, for many words of one length at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core.base.errors import InputError, Problems, Written, collecting, no_rule
from jaxsens.core.base.inputs import array_of
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic import counting, formulas
from jaxsens.formal.logic.formulas import Formula, Symbol, subformulas
from jaxsens.formal.logic.parser import parse

Truth = Bool[np.ndarray, "*words n"]


@typed_arguments
def symbols(formula: Formula) -> tuple[str, ...]:
    """The symbols that the formula names, each once, in the order of `subformulas`.

    >>> symbols(parse("Q_a & !Y Q_b"))
    ('a', 'b')
    """
    return tuple(part.name for part in subformulas(formula) if isinstance(part, Symbol))


@typed_arguments
def predicates(formula: Formula) -> tuple[counting.Predicate, ...]:
    """The distinct numerical predicates, of positions and of counts.

    >>> [str(one) for one in predicates(parse("odd & mod(3, 1, #L[Q_a])"))]
    ['odd', 'mod(3, 1)']
    """
    parts = (
        part
        for part in subformulas(formula)
        if isinstance(part, counting.PositionPredicate | counting.CountPredicate)
    )
    return tuple(dict.fromkeys(part.predicate for part in parts))


@typed_arguments
def operators(formula: Formula) -> frozenset[str]:
    """Which of Y, X, S, U, #L and #R the formula uses.

    >>> sorted(operators(parse("Y Q_a & odd(#L[Q_a])")))
    ['#L', 'Y']
    """
    return frozenset().union(*(operators_of(part) for part in subformulas(formula)))


def operators_of(part: Formula) -> frozenset[str]:
    """Which of Y, X, S, U, #L and #R this node is or uses. Boolean connectives count as none."""
    match part:
        case formulas.Yesterday() | formulas.Next() | formulas.Since() | formulas.Until():
            return frozenset({part.notation.sign})
        case counting.CountComparison():
            return part.directions
        case counting.CountPredicate():
            return frozenset({part.count.sign})
    return frozenset()


def checked_formula(
    formula: object, alphabet: object, problems: Problems
) -> tuple[Formula | None, tuple[str, ...]]:
    """A formula, given as itself or as its text, and its alphabet; None, or (), after noting why one cannot be used."""
    given = tuple(alphabet) if isinstance(alphabet, str | Sequence) else ()
    named = all(isinstance(each, str) and each for each in given)
    if not named or len(set(given)) < max(2, len(given)):
        problems.add("alphabet", alphabet, 'at least two different symbols, such as "01" or ["a", "b"]')
        given = ()
    if isinstance(formula, str):
        try:
            formula = parse(formula)
        except InputError as error:
            problems.include(error.problems)
            return None, given
    if not isinstance(formula, Formula):
        problems.add("formula", formula, 'a formula, or its text such as "Y Q_1"')
        return None, given
    for name in symbols(formula) if given else ():
        if name not in given:
            why = f"{Symbol(name)}: the alphabet {', '.join(map(repr, given))} has no {name!r}"
            problems.note("formula", why)
    return formula, given


@typed_arguments
def evaluate(formula: Formula, word: Collection[str]) -> Bool[np.ndarray, " n"]:
    """Truth at each position of `word`, a sequence of symbols such as "0110" or ("w", "1", "r").

    >>> evaluate(parse("odd(#L[Q_1])"), "0110")
    array([False,  True, False, False])

    Raises:
        InputError: If `formula` is not a formula, or `word` not a sequence of texts; `evaluate_tokens` reads integers.
    """
    alphabet = list(dict.fromkeys([*word, *symbols(formula)]))
    tokens = np.array([alphabet.index(symbol) for symbol in word], dtype=np.int64)
    return _truth(formula, tokens, alphabet)


def satisfies(formula: Formula, word: Sequence[str]) -> bool:
    """Whether w |= formula: truth at the last position.

    >>> satisfies(parse("odd(#L[Q_1])"), "0111")
    True

    Raises:
        InputError: If the word is empty, and so has no last position.
    """
    if isinstance(word, Sized) and not len(word):
        raise InputError(
            "satisfies: word is empty: a formula is read at the last position, so give at least one symbol"
        )
    return bool(evaluate(formula, word)[-1])


@typed_arguments
def evaluate_tokens(
    formula: Formula, tokens: Int[np.ndarray, "*words n"], alphabet: Sequence[str]
) -> Bool[np.ndarray, "*words n"]:
    """Truth at each position of words given as integers: token t stands for the symbol alphabet[t].

    >>> evaluate_tokens(parse("Q_b"), np.array([[0, 1], [1, 0]]), "ab")
    array([[False,  True],
           [ True, False]])

    Raises:
        InputError: If the formula names symbols that the alphabet lacks, or a token is outside the alphabet.
    """
    array = array_of(tokens)
    with collecting("evaluate_tokens") as problems:
        if unknown := [symbol for symbol in symbols(formula) if symbol not in alphabet]:
            named = ", ".join(map(repr, unknown))
            problems.note("formula", f"it names {named}, which the alphabet {list(alphabet)} lacks")
        if array.ndim < 1 or not np.issubdtype(array.dtype, np.integer):
            found = Written(f"{array.dtype}, shape {array.shape}")
            problems.add("tokens", found, "integers of shape (..., n)")
        elif array.size and not 0 <= array.min() <= array.max() < len(alphabet):
            found = Written(f"{array.min()} to {array.max()}")
            problems.add("tokens", found, f"indices into the alphabet {list(alphabet)}")
    return _truth(formula, array, alphabet)


def _truth(formula: Formula, tokens: np.ndarray, alphabet: Sequence[str]) -> Truth:
    known: dict[Formula, Truth] = {}
    for part in subformulas(formula):
        known[part] = _one(part, [known[child] for child in part.children], tokens, alphabet)
    return known[formula]


def _one(part: Formula, children: list[Truth], tokens: np.ndarray, alphabet: Sequence[str]) -> Truth:
    length = tokens.shape[-1]
    match part:
        case formulas.Symbol(name):
            return tokens == alphabet.index(name)
        case formulas.Constant(value):
            return np.full(tokens.shape, value, dtype=bool)
        case formulas.Not():
            return ~children[0]
        case formulas.And():
            return children[0] & children[1]
        case formulas.Or():
            return children[0] | children[1]
        case formulas.Yesterday():
            return previous(children[0])
        case formulas.Next():
            return previous(children[0][..., ::-1])[..., ::-1]
        case formulas.Since():
            return since(*children)
        case formulas.Until():
            return since(children[0][..., ::-1], children[1][..., ::-1])[..., ::-1]
        case counting.PositionPredicate(predicate):
            return np.broadcast_to(np.array(predicate.table(length))[1:], tokens.shape)
        case counting.CountComparison(terms, constant):
            total = np.full(tokens.shape, constant, dtype=np.int64)
            for (weight, term), child in zip(terms, children, strict=True):
                total += weight * count(term, child)
            return part.holds(total)
        case counting.CountPredicate(predicate, term):
            return np.array(predicate.table(length))[count(term, children[0])]
    raise no_rule("evaluate", "formula", part)


def previous(truth: Truth) -> Truth:
    """Y: the truth at i - 1; false at the first position."""
    result = np.zeros_like(truth)
    result[..., 1:] = truth[..., :-1]
    return result


def since(left: Truth, right: Truth) -> Truth:
    """S, by its expansion: right holds here, or left holds here and left S right at the position before."""
    result = right.copy()
    for i in range(1, right.shape[-1]):
        result[..., i] |= left[..., i] & result[..., i - 1]
    return result


def count(term: counting.Count, truth: Truth) -> Int[np.ndarray, "*words n"]:
    """#L: at how many j <= i `truth` holds; #R: at how many j >= i."""
    match term:
        case counting.CountLeft():
            return np.cumsum(truth, axis=-1, dtype=np.int64)
        case counting.CountRight():
            return np.cumsum(truth[..., ::-1], axis=-1, dtype=np.int64)[..., ::-1]
    raise no_rule("evaluate", "count", term)
