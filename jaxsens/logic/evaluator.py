"""What a formula means: its truth value at every position of a word. This is the specification of the compiler.

Definitions of sections 4.1, 4.2 and 4.4; position i of n is counted from 1, arrays hold it at index i - 1. All of it
takes O(size * n) steps a word, and does many words of one length at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.errors import InputError
from jaxsens.logic.counting import Comparison, Count, CountLeft, CountPredicate
from jaxsens.logic.formulas import And, Constant, Formula, Next, Not, Or, Since, Symbol, Until, Yesterday
from jaxsens.logic.numerical import PositionPredicate
from jaxsens.logic.structure import subformulas, symbols

Truth = Bool[np.ndarray, "*words n"]


def evaluate(formula: Formula, word: Sequence[str]) -> Bool[np.ndarray, " n"]:
    """Truth at each position of `word`, a sequence of symbols ("0110", or ("w", "1", "r")); shape (n,), bool."""
    _check_formula("evaluate", formula)
    if not isinstance(word, Collection):
        raise InputError(f'evaluate: word = {word!r}: give a sequence of symbols, such as "0110"')
    wrong = [symbol for symbol in word if not isinstance(symbol, str)]
    if wrong:
        raise TypeError(
            f"evaluate: word has {wrong[0]!r}, which is no symbol: give strings, "
            "or integer tokens to evaluate_tokens with their alphabet"
        )
    alphabet = list(dict.fromkeys([*word, *symbols(formula)]))
    tokens = np.array([alphabet.index(symbol) for symbol in word], dtype=np.int64)
    return _truth(formula, tokens, alphabet)


def satisfies(formula: Formula, word: Sequence[str]) -> bool:
    """w |= formula, which is truth at the last position. The empty word has none: InputError."""
    if isinstance(word, Sized) and not len(word):
        raise InputError(
            "satisfies: word is empty: a formula is read at the last position, so give at least one symbol"
        )
    return bool(evaluate(formula, word)[-1])


def evaluate_tokens(
    formula: Formula, tokens: Int[np.ndarray, "*words n"], alphabet: Sequence[str]
) -> Bool[np.ndarray, "*words n"]:
    """Truth at each position of words given as integers, token t standing for the symbol alphabet[t].

    `tokens` has shape (..., n), any number of words of one length; so has the result. Raises `InputError` for symbols
    of the formula that the alphabet lacks, and for tokens outside it.
    """
    _check_formula("evaluate_tokens", formula)
    array = np.asarray(tokens)
    unknown = [symbol for symbol in symbols(formula) if symbol not in alphabet]
    faults = []
    if unknown:
        faults.append(
            f"the formula names {', '.join(map(repr, unknown))}, which the alphabet {list(alphabet)} lacks"
        )
    if array.ndim < 1 or not np.issubdtype(array.dtype, np.integer):
        faults.append(
            f"tokens have shape {array.shape} and dtype {array.dtype}: give integers of shape (..., n)"
        )
    elif array.size and not 0 <= array.min() <= array.max() < len(alphabet):
        faults.append(
            f"tokens run from {array.min()} to {array.max()}: give indices into the alphabet {list(alphabet)}"
        )
    if faults:
        raise InputError("evaluate_tokens: " + "; ".join(faults))
    return _truth(formula, array, alphabet)


def _check_formula(subject: str, formula: object) -> None:
    if not isinstance(formula, Formula):
        raise InputError(f'{subject}: formula = {formula!r}: give a formula, such as parse("Y Q_1")')


def _truth(formula: Formula, tokens: np.ndarray, alphabet: Sequence[str]) -> Truth:
    known: dict[Formula, Truth] = {}
    for part in subformulas(formula):
        known[part] = _one(part, [known[child] for child in part.children], tokens, alphabet)
    return known[formula]


def _one(part: Formula, children: list[Truth], tokens: np.ndarray, alphabet: Sequence[str]) -> Truth:
    """Truth of a formula from that of its children."""
    length = tokens.shape[-1]
    match part:
        case Symbol(name):
            return tokens == alphabet.index(name)
        case Constant(value):
            return np.full(tokens.shape, value, dtype=bool)
        case Not():
            return ~children[0]
        case And():
            return children[0] & children[1]
        case Or():
            return children[0] | children[1]
        case Yesterday():
            return previous(children[0])
        case Next():
            return previous(children[0][..., ::-1])[..., ::-1]
        case Since():
            return since(*children)
        case Until():
            return since(children[0][..., ::-1], children[1][..., ::-1])[..., ::-1]
        case PositionPredicate(predicate):
            return np.broadcast_to(np.array(predicate.table(length))[1:], tokens.shape)
        case Comparison(terms, constant, relation):
            total = np.full(tokens.shape, constant, dtype=np.int64)
            for (weight, term), child in zip(terms, children, strict=True):
                total += weight * count(term, child)
            return {">=": total >= 0, "=": total == 0, "!=": total != 0}[relation]
        case CountPredicate(predicate, term):
            return np.array(predicate.table(length))[count(term, children[0])]
    raise TypeError(f"{type(part).__name__} is no formula that the evaluator knows")


def previous(truth: Truth) -> Truth:
    """Y: at i, the truth at i - 1; false at the first position."""
    result = np.zeros_like(truth)
    result[..., 1:] = truth[..., :-1]
    return result


def since(left: Truth, right: Truth) -> Truth:
    """S, by its expansion: right holds here, or left holds here and left S right at the position before."""
    result = right.copy()
    for i in range(1, right.shape[-1]):
        result[..., i] |= left[..., i] & result[..., i - 1]
    return result


def count(term: Count, truth: Truth) -> Int[np.ndarray, "*words n"]:
    """#L: how many j <= i hold; #R: how many j >= i."""
    if isinstance(term, CountLeft):
        return np.cumsum(truth, axis=-1, dtype=np.int64)
    return np.cumsum(truth[..., ::-1], axis=-1, dtype=np.int64)[..., ::-1]
