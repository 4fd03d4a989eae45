"""Hahn (2020), Corollary 2, by construction: two words, only one of them in the language, with the same output.

Under a restriction almost all free inputs have no effect, but PARITY and 1DYCK depend on all of them. So the language
distinguishes a word from its flip at such a position, and the model does not. Any decision based on the model's output
is wrong for one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.formal.languages.named import language as named_language
from jaxsens.theory.hard_attention.restrict import check_model, restrict
from jaxsens.theory.hard_attention.restriction import FREE, Restriction, RestrictionRefused

LanguageName = Literal["parity", "dyck-1"]

LANGUAGES = {"parity": named_language("parity"), "dyck-1": named_language("dyck", kinds=1)}
"""The languages of Corollary 2 by name. Their symbols 0 and 1 are the model's: of 1DYCK, 0 opens and 1 closes."""


@dataclass(frozen=True, eq=False)
class MisclassifiedPair:
    """Two inputs, only one of them in the language, that the model cannot distinguish.

    Attributes:
        language: "parity" or "dyck-1".
        member: tokens of a word in the language, with the end-of-sequence symbol if requested.
        non_member: the same tokens with one symbol changed; not in the language.
        position: the position where they differ.
        output: the model's output on both, bitwise equal.
        restriction: the restriction that both satisfy.

    >>> import jaxsens
    >>> config = jaxsens.TransformerConfig(2, layers=1, width=4, heads=1, weighting="leftmost-hard")
    >>> pair = jaxsens.theory.misclassified_pair(jaxsens.Transformer(config), "parity", 16)
    >>> int((pair.member != pair.non_member).sum())
    1
    """

    language: LanguageName
    member: Int[np.ndarray, " n"]
    non_member: Int[np.ndarray, " n"]
    position: int
    output: Float[np.ndarray, " outputs"]
    restriction: Restriction


def misclassified_pair(
    model: Transformer,
    language: LanguageName,
    n: int,
    free_fraction: float = 0.25,
    *,
    end_symbol: bool = False,
    seed: int = 0,
) -> MisclassifiedPair:
    """Constructs a word in the language and one outside it, n tokens each, with bitwise the same output when run.

    Args:
        model: a jaxsens transformer that `restrict` accepts.
        language: "parity" or "dyck-1". Symbols 0 and 1 of the model are the language's.
        n: the number of tokens.
        free_fraction: the share of positions for `restrict` to leave free. For 1DYCK a third of the others may be set
            to opening brackets at the start, and another third to closing brackets at the end, as in the proof.
        end_symbol: whether the last token is the model's end-of-sequence symbol; the word then has n - 1 symbols.
        seed: the seed for the restriction's random stage and the word.

    Raises:
        InputError: if an argument is unusable.
        RestrictionRefused: if the model cannot be restricted at this length.

    >>> import jaxsens
    >>> config = jaxsens.TransformerConfig(2, width=8, heads=1, weighting="leftmost-hard")
    >>> model = jaxsens.Transformer(config)
    >>> misclassified_pair(model, "parity", 64).position < 64
    True
    """
    problems = Problems("misclassified_pair")
    config = check_model(model, problems)
    free_fraction = inputs.number("free_fraction", free_fraction, problems, least=0, most=1)
    seed = inputs.seed(seed, problems)
    inputs.choice("language", language, tuple(LANGUAGES), problems)
    inputs.choice("end_symbol", end_symbol, (True, False), problems)
    problems.raise_if_any()
    n = inputs.length(n, problems, least=2 + end_symbol)
    if n and language == "dyck-1" and (n - end_symbol) % 2:
        problems.add(
            "n", n, "a length at which words have an even number of symbols: others are never balanced"
        )
    if end_symbol and config is not None and not config.end_symbol:
        problems.add("end_symbol", end_symbol, "a model whose config has end_symbol=True")
    problems.raise_if_any()
    length = n - end_symbol
    last = {n - 1: model.config.alphabet_size} if end_symbol else {}
    refused: InputError | None = None
    generator = np.random.default_rng(seed)
    for ends in _ends(language, length, free_fraction):
        fixed = dict.fromkeys(range(ends), 0) | {length - 1 - i: 1 for i in range(ends)} | last
        try:
            restriction = restrict(model, n, free_fraction, fixed=fixed, symbols=(0, 1), seed=seed)
        except RestrictionRefused as error:
            refused = error
            continue
        pair = _pair(model, language, restriction, length, generator)
        if pair is not None:
            return pair
    raise RestrictionRefused(
        f"misclassified_pair: no restriction of {n} positions leaves a free one without effect"
        + (" and room for a balanced word" if language == "dyck-1" else "")
        + ": give a larger n or a smaller free_fraction"
        + (f" ({refused})" if refused else "")
    )


def _ends(language: LanguageName, length: int, free_fraction: float) -> list[int]:
    """Returns the numbers of brackets to try at each end. The last outweighs anything else that is fixed."""
    if language == "parity":
        return [0]
    most = int((1 - free_fraction) * length) // 3
    return sorted({0, most // 4, most // 2, most})


def _pair(
    model: Transformer,
    language: LanguageName,
    restriction: Restriction,
    length: int,
    generator: np.random.Generator,
) -> MisclassifiedPair | None:
    """Returns two words under the restriction, verified by running the model; None if there is no such pair."""
    where = restriction.irrelevant[restriction.irrelevant < length]
    if not len(where):
        return None
    position = int(generator.choice(where))
    if language == "parity":
        word = restriction.complete(generator)[0]
    else:
        word = _balanced(restriction.values, length)
        if word is None:
            return None
    other = word.copy()
    other[position] = 1 - word[position]
    if not LANGUAGES[language].member(word[:length]):
        word, other = other, word
    first, second = np.asarray(model(word)), np.asarray(model(other))
    if not np.array_equal(first, second):
        raise RuntimeError(
            f"the outputs differ by {np.abs(first - second).max():.3g} where a certificate says that they are equal: "
            "an error in jaxsens.theory; please report it with the model"
        )
    return MisclassifiedPair(language, word, other, position, first, restriction)


def _balanced(values: Int[np.ndarray, " n"], length: int) -> Int[np.ndarray, " n"] | None:
    """Returns a balanced completion of the first `length` symbols that opens as early as possible, or None."""
    word = values.astype(np.int32)
    free = np.flatnonzero(values[:length] == FREE)
    opening = length // 2 - int(np.sum(values[:length] == 0))
    if not 0 <= opening <= len(free):
        return None
    word[free] = np.arange(len(free)) >= opening
    return word if LANGUAGES["dyck-1"].member(word[:length]) else None
