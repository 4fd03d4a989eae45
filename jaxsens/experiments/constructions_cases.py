"""Constructions with words on which their languages are sensitive: what the table of results is measured on.

At every length some flip of the word changes the truth value where the network is read, so that a network that computes
the formula has the largest flip sensitivity 1. And most positions of the word take part in what attention must decide,
so that without sharp attention each counts for O(1/n) from small n on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.constructions.compiled import CompiledTransformer, Read
from jaxsens.constructions.compiler import compile_formula
from jaxsens.constructions.conditions import Condition
from jaxsens.constructions.dyck import brackets, dyck
from jaxsens.logic import Formula, evaluate_tokens, named_formula, parse
from jaxsens.logic.library import LETTERS
from jaxsens.models.initialisation import generator

Dtype = Literal["float32", "float64"]

Truth = Callable[[Int[np.ndarray, "words n"]], Bool[np.ndarray, "words n"]]


@dataclass(frozen=True)
class Case:
    """A construction, words on which a flip changes its truth value, and the conditions that it is measured in.

    Attributes:
        name: what it is called.
        alphabet: its symbols.
        make: the network of (condition, autoregressive=, dtype=, read=).
        truth: at which positions of words what it computes holds.
        word: the word of each even length of at least 8.
        conditions: in the order of the table.
        at: where the network is read: at the last position, or, for formulas that look ahead, at the first.
    """

    name: str
    alphabet: tuple[str, ...]
    make: Callable[..., CompiledTransformer]
    truth: Truth
    word: Callable[[int], str]
    conditions: tuple[Condition, ...]
    at: Literal["last", "first"] = "last"

    def build(self, condition: Condition, dtype: Dtype, read: Read = "output") -> CompiledTransformer:
        """The network in one of its conditions."""
        return self.make(condition.name, autoregressive=condition.autoregressive, dtype=dtype, read=read)

    def tokens(self, n: int) -> Int[np.ndarray, " n"]:
        """The sensitive word of length n as symbols 0, 1, ..."""
        return np.array([self.alphabet.index(symbol) for symbol in self.word(n)], np.int32)

    def adversarial(self, n: int) -> Int[np.ndarray, "words n"]:
        """Words that strain rounding: one symbol only, all in turn, block after block, random, and the sensitive one.

        One symbol only makes counts largest; blocks make long ties, and counts of half the length.
        """
        size, i = len(self.alphabet), np.arange(n)
        words = [np.full(n, symbol) for symbol in range(size)]
        words += [i % size, i * size // n, generator(0, f"adversarial.n={n}").integers(0, size, n)]
        if n % 2 == 0:
            words.append(self.tokens(n))
        return np.array(words, np.int32)


def cycle(symbols: str, n: int) -> str:
    """The symbols over and over, n in all."""
    return (symbols * (n // len(symbols) + 1))[:n]


def nested(lefts: str, rights: str, n: int) -> str:
    """n/2 left brackets, of the kinds in turn, and the right ones that close them."""
    opened = cycle(lefts, n // 2)
    return opened + opened[::-1].translate(str.maketrans(lefts, rights))


def balanced(opens: int, tokens: Int[np.ndarray, "words n"]) -> Bool[np.ndarray, "words n"]:
    """Up to which positions words are balanced; symbols below `opens` open, the others close in the same order."""
    found = np.zeros(tokens.shape, bool)
    for row, word in enumerate(tokens.tolist()):
        stack: list[int] = []
        for i, symbol in enumerate(word):
            if symbol < opens:
                stack.append(symbol)
            elif not stack or stack.pop() != symbol - opens:
                break
            found[row, i] = not stack
    return found


def _of(
    formula: Formula,
    name: str,
    alphabet: tuple[str, ...],
    word: Callable[[int], str],
    *conditions: Condition,
    at: Literal["last", "first"] = "last",
) -> Case:
    return Case(
        name,
        alphabet,
        partial(compile_formula, formula, alphabet),
        partial(evaluate_tokens, formula, alphabet=alphabet),
        word,
        conditions,
        at,
    )


def _named(
    name: str, word: Callable[[int], str], *conditions: Condition, at: Literal["last", "first"] = "last"
) -> Case:
    entry = named_formula(name)
    return _of(entry.formula, name, entry.alphabet, word, *conditions, at=at)


_KNOWING_N = (Condition("temperature"), Condition("unbounded"))
_BOUNDED = Condition("temperature-bounded")
_CONTROL = Condition("bounded-softmax")
_DECODER = Condition("temperature", autoregressive=True)
_DECODERS = (_DECODER, Condition("unbounded", autoregressive=True))
_DECODER_BOUNDED = Condition("temperature-bounded", autoregressive=True)

_TEMPORAL = (*_KNOWING_N, _CONTROL)
_COUNTING = (*_KNOWING_N, _BOUNDED, _CONTROL)

CASES: tuple[Case, ...] = (
    _named("previous", lambda n: cycle("01", n), *_TEMPORAL, *_DECODERS),
    _named("3-gram-ahead", lambda n: "aab" + cycle("cab", n - 3), *_TEMPORAL, at="first"),
    _named("since", lambda n: cycle("ac", n - 4) + "abbb", *_TEMPORAL, *_DECODERS),
    _of(parse("!Q_c U Q_a"), "until", LETTERS, lambda n: "bbba" + cycle("ca", n - 4), *_TEMPORAL, at="first"),
    _named("induction-head", lambda n: cycle("cb", n - 4) + "cabc", *_TEMPORAL, *_DECODERS),
    _named("parity", lambda n: cycle("01", n), *_COUNTING, _DECODER),
    _named("majority", lambda n: cycle("10", n), *_COUNTING, _DECODER, _DECODER_BOUNDED),
    _named("parity-without-predicates", lambda n: cycle("01", n), *_COUNTING),
    _named("dyck-1", lambda n: nested("(", ")", n), *_COUNTING, _DECODER, _DECODER_BOUNDED),
    Case(
        "dyck",
        brackets(2),
        partial(dyck, 2),
        partial(balanced, 2),
        lambda n: nested("([", ")]", n),
        (*_COUNTING, _DECODER),
    ),
)
"""The cases of the table, in its order."""
