"""Hahn (2020), Theorem 1, as an algorithm: a restriction under which hard attention ignores almost all of its input.

The theorem: for every hard-attention transformer and every fraction C < 1 there is a c such that for all long
enough inputs some restriction leaves C n positions free, and the output depends on at most c of them. Its proof goes
layer by layer: inputs are fixed so that only few free keys can win any head of the layer, and then each row depends on
few inputs. This module does the same; docs/restricting.md compares it with the proof.

Which inputs to fix: a query of a head is settled when at most `allowed` rows with an open case can still win it. Fixing
the inputs of a key so that its score is high settles the queries that rank few open rows above it. The proof finds one
input that settles many queries by the pigeonhole principle. Here the input that settles most is fixed, again and again:
a greedy set cover.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.models.parts.weighting import LeftmostHard, RightmostHard
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer, check_runs
from jaxsens.formal.languages.named import language as named_language
from jaxsens.theory.hard_attention.contest import (
    Contest,
    Level,
    check_scores,
    first_level,
    needed_rows,
    next_level,
)
from jaxsens.theory.hard_attention.restriction import FREE, Certificate, Restriction, RestrictionRefused
from jaxsens.theory.hard_attention.values import HardModel
from jaxsens.theory.rules import fixed_symbols, known_config

COVERED_SCORES = 2**23
"""How many pairs of query and key the cover considers at a time. The rest waits for the next round."""

Events: TypeAlias = Int[np.ndarray, " e"]
"""Heads, or queries, of pairs that are not settled."""


def unsettled(contest: Contest, rows: Int[np.ndarray, " some"], allowed: int) -> tuple[Events, Events]:
    """Heads and queries (entries of `rows`) that more than `allowed` open rows can win."""
    queries = np.flatnonzero(np.isin(contest.level.owner, rows))
    check_scores(contest, len(queries))
    heads, found = [], []
    for part, block in contest.blocks(queries):
        head, row = np.nonzero(block.free_rivals > allowed)
        heads.append(head)
        found.append(part[row])
    return np.concatenate(heads), np.concatenate(found)


def cover(
    contest: Contest, heads: Events, queries: Events, allowed: int, budget: int, spared: int
) -> dict[int, int]:
    """The inputs to fix, with their symbols: at most `budget`, chosen greedily to settle the most queries.

    The input `spared` is not fixed.
    """
    level = contest.level
    scores, top, value = _ranked(contest, heads, queries, allowed + 2)
    inside = np.zeros((len(heads), len(level.rows)), bool)
    np.put_along_axis(inside, top[:, : min(allowed + 1, len(level.rows))], True, axis=1)
    row = np.searchsorted(level.rows, level.owner)
    # Whether fixing the inputs of an entry's case settles a head's query: few open rows rank above it.
    settles = np.zeros(scores.shape, bool)
    # A row among the first does not count against itself: then one more may be above it.
    for rank, among in ((allowed, ~inside[:, row]), (allowed + 1, inside[:, row])):
        threshold, holder = value[:, rank, None], top[:, rank, None]
        before = contest.sign * row < contest.sign * holder
        settles |= among & ((scores > threshold) | ((scores == threshold) & before))
    settles &= scores > -np.inf
    cost = np.array([len(case.conditions) for case in level.cases], np.float64)[level.case]
    alone = level.sizes[level.case] == 1
    gains = np.where(alone & (cost > 0), settles.sum(axis=0) / np.maximum(cost, 1), 0.0)
    spares = np.array([spared not in dict(case.conditions) for case in level.cases])
    able = (gains > 0) & spares[level.case]
    open_events = np.ones(len(heads), bool)
    fixed: dict[int, int] = {}
    while (affordable := able & (cost <= budget - len(fixed))).any():
        entry = int(np.argmax(np.where(affordable, gains, -1.0)))
        if gains[entry] <= 0:
            break
        for condition in level.conditions(entry):
            fixed[condition[0]] = condition[1]
            able[level.rivals[condition]] = False
        able[entry] = False
        now = open_events & settles[:, entry]
        gains = gains - settles[now].sum(axis=0) / np.maximum(cost, 1)
        open_events &= ~now
    return fixed


def _ranked(
    contest: Contest, heads: Events, queries: Events, count: int
) -> tuple[Float[np.ndarray, "e entries"], Int[np.ndarray, "e count"], Float[np.ndarray, "e count"]]:
    """All scores of each query of a head; the `count` rows with an open case that it prefers, by index; their scores.

    Where there are fewer rows the scores are -inf.
    """
    level = contest.level
    scores = np.empty((len(heads), len(level.owner)))
    best = np.empty((len(heads), len(level.rows)))
    for part, block in contest.blocks(np.unique(queries)):
        events = np.flatnonzero(np.isin(queries, part))
        where = np.searchsorted(part, queries[events])
        scores[events] = block.scores[heads[events], where]
        largest = np.maximum.reduceat(scores[events], level.starts, axis=-1)
        best[events] = np.where(block.undecided[where], largest, -np.inf)
    top, value = np.zeros((len(heads), count), np.int64), np.full((len(heads), count), -np.inf)
    every = np.arange(len(heads))
    for rank in range(min(count, best.shape[1])):
        top[:, rank] = contest.preferred(best)
        value[:, rank] = best[every, top[:, rank]]
        best[every, top[:, rank]] = -np.inf
    return scores, top, value


ALLOWED = (0, 1, 2, 4, 8, 16, 32)
"""How many open rows may be left that can win a head, tried in turn: the proof's k, which grows until all works."""

MOST_ROUNDS = 40
"""Rounds of the greedy cover in one layer, at most."""


def restrict(
    model: Transformer,
    n: int,
    free_fraction: float = 0.5,
    *,
    fixed: Mapping[int, int] | None = None,
    symbols: Sequence[int] | Int[np.ndarray, " some"] | None = None,
    settle: bool = True,
    seed: int = 0,
    most_values: int = 4096,
) -> Restriction:
    """Finds a restriction that leaves at least `free_fraction` * n positions free, few of which matter to the output.

    Args:
        model: a jaxsens transformer whose layers are all leftmost-hard or rightmost-hard, read out at one position.
        n: the length of the inputs.
        free_fraction: the least share of free positions, of all n.
        fixed: {0-based position: symbol} of positions to fix beforehand, such as an end-of-sequence symbol,
            {n - 1: alphabet_size}.
        symbols: what a free position may hold; by default the alphabet without the end-of-sequence symbol.
        settle: also fixes the inputs that the readout row still depends on before the last layer, except its own. Then
            c is mostly 1, the readout's own symbol, or 0. If False, c is what the proof's stages leave.
        seed: of what is drawn: the symbols of inputs that many rows read, and which unsettled heads come first.
        most_values: the most values that a row may have in an inner layer.

    Returns:
        The restriction, with its certificate.

    Raises:
        InputError: naming every argument that cannot be used, with its remedy, and a model with a part that has no rule
            here.
        RestrictionRefused: if a row has too many possible values, or a layer too many scores, to be enumerated. The
            message says which.

    Cost: the scores of all possible queries with all possible keys, a few times: O((n |symbols|)^2 d heads) for each
    layer but the last, which costs O(n |symbols| d heads).

    >>> import jaxsens
    >>> config = jaxsens.TransformerConfig(2, width=8, heads=1, weighting="leftmost-hard")
    >>> model = jaxsens.Transformer(config)
    >>> restrict(model, 64).free_fraction >= 0.5
    True
    """
    with collecting("restrict") as problems:
        config = check_model(model, problems)
        n = inputs.length(n, problems)
        if config is not None and n:
            check_runs(config, n, problems)
        vocabulary = None if config is None else config.vocabulary_size
        held = tuple(range(0 if config is None else config.alphabet_size))
        if symbols is not None:
            held = tuple(inputs.symbols(symbols, vocabulary, problems, least=2).tolist())
        before = fixed_symbols(fixed, n, vocabulary, problems)
        fraction = inputs.number("free_fraction", free_fraction, problems, least=0, most=1)
        budget = n - math.ceil(fraction * n - 1e-9) - len(before)
        if n and budget < 0:
            most = f"at most {budget + len(before)}, or a smaller free_fraction"
            problems.add("fixed", f"{len(before)} positions", most)
        inputs.choice("settle", settle, (True, False), problems)
        most_values = inputs.count("most_values", most_values, problems, least=2)
        seed = inputs.seed(seed, problems)
    values = np.full(n, FREE, np.int64)
    values[list(before)] = list(before.values())
    hard = HardModel(model.config, model.parameters, n)
    found: list[Restriction] = []
    refusals: list[RestrictionRefused] = []
    # The readout can mostly stay free. Where it is every row's favourite key, it must be fixed to settle the others.
    for spare in (True, False) if budget else (True,):
        generator = np.random.default_rng(seed)
        builder = _Builder(hard, values, held, budget, most_values, generator, spare)
        try:
            found.append(builder.built(settle))
        except RestrictionRefused as error:
            refusals.append(RestrictionRefused("; ".join([str(error), *builder.notes])))
            continue
        if found[-1].c <= 1:
            return found[-1]
    if not found:
        raise refusals[0]
    return min(found, key=lambda restriction: restriction.c)


def check_model(model: object, problems: Problems) -> TransformerConfig | None:
    """The config of a transformer; notes why Theorem 1's construction does not apply to a model."""
    config = known_config(model, problems, "a jaxsens Transformer")
    if config is None:
        return None
    for k in range(config.layers):
        weighting = config.layer(k).weighting
        if not isinstance(weighting, LeftmostHard | RightmostHard):
            remedy = "every layer leftmost-hard or rightmost-hard: elsewhere a head averages over keys, and no key "
            remedy += "settles it (Hahn 2020, section 5, treats soft attention by Lemma 5)"
            problems.add("model", f"layer {k} is {type(weighting).__name__}", remedy)
    if config.readout == "mean":
        remedy = "one position's readout: every free symbol reaches the mean through its own skip connection"
        problems.add("model", 'readout "mean"', remedy)
    if config.centred_scores:
        remedy = 'plain scores, as constructions in dtype="float64" have them: centred ones are relative to the winner'
        problems.add("model", "centred_scores", remedy)
    return config


@dataclass
class _Builder:
    """The restriction as it grows."""

    model: HardModel
    values: Int[np.ndarray, " n"]
    symbols: tuple[int, ...]
    budget: int
    most_values: int
    generator: np.random.Generator
    spare: bool
    stages: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layers = self.model.config.layers
        self.rows = needed_rows(self.model)
        self.readout = int(self.rows[-1][0])
        self.spared = self.readout if self.spare else -1
        self.contests: dict[tuple[bytes, int], Contest] = {}
        self.fixed = int(np.sum(self.values != FREE))

    def built(self, settle: bool) -> Restriction:
        """The restriction, layer by layer, with a certificate for the final values."""
        for k in range(self.layers - 1):
            self.inner_layer(k)
        if self.layers:  # the readout's heads are the only ones of the last layer that matter
            k, row = self.layers - 1, np.array([self.readout])
            if settle:
                inputs = sorted(self.level(self.values, k).inputs[self.readout] - {self.readout})
                values = self.values.copy()
                values[inputs[: self.budget]] = self.symbols[0]
                self.fix(values, f"layer {k}: read by the readout")
            values, _ = self.covered(k, row, 0, self.budget)
            self.fix(values, f"layer {k}: greedy")
        levels = [self.contest(self.values, k).level for k in range(self.layers)]
        levels.append(self.level(self.values, self.layers))
        certificate = Certificate(tuple(level.cases for level in levels[1:]))
        depends = tuple(sorted(levels[-1].inputs[self.readout]))
        return Restriction(self.values, self.symbols, depends, self.fixed, self.stages, certificate)

    def contest(self, values: Int[np.ndarray, " n"], k: int) -> Contest:
        """The heads of layer k under these values. The most recent ones are kept."""
        key = (values.tobytes(), k)
        if key not in self.contests:
            contest = Contest(self.model, k, self.level(values, k))
            while len(self.contests) > 2 * self.layers:
                del self.contests[next(iter(self.contests))]
            self.contests[key] = contest
        return self.contests[key]

    def level(self, values: Int[np.ndarray, " n"], k: int) -> Level:
        """The cases before layer k; those after the last layer for k = layers."""
        if (values.tobytes(), k) in self.contests:
            return self.contests[values.tobytes(), k].level
        if k == 0:
            return first_level(self.model, values, self.symbols)
        return next_level(self.contest(values, k - 1), self.rows[k - 1], self.symbols, self.most_values)

    def fix(self, values: Int[np.ndarray, " n"], stage: str) -> None:
        """Takes over values that fix more, and counts what was fixed under the stage's name."""
        more = int(np.sum(values != FREE) - np.sum(self.values != FREE))
        self.values = values
        self.budget -= more
        if more:
            self.stages[stage] = self.stages.get(stage, 0) + more

    def inner_layer(self, k: int) -> None:
        """Fixes inputs until every head of layer k can be won by few open rows."""
        heads = self.model.config.layer(self.layers - 1).heads
        reserve = min(self.budget // 3, 8 * len(self.symbols) * heads)
        share = (self.budget - reserve) // (self.layers - 1 - k)
        if k:
            share -= self.popular(k, share // 4)
        best = self.values
        for allowed in ALLOWED:
            values, done = self.covered(k, self.rows[k], allowed, share)
            if done:
                return self.fix(values, f"layer {k}: greedy")
            best = values if allowed <= 2 else best
        # Not all heads are settled. The rows may still have few enough values; if not, the next layer refuses.
        self.fix(best, f"layer {k}: greedy")
        self.notes.append(
            f"in layer {k}, fixing {share} inputs did not settle every head: some can be won by more than "
            f"{ALLOWED[-1]} free keys"
        )
        return None

    def popular(self, k: int, most: int) -> int:
        """Stage 1: fixes inputs that too many rows depend on; returns how many, at most `most`."""
        cases = self.level(self.values, k).cases
        readers = Counter(i for i, _ in {(i, case.row) for case in cases for i, _ in case.conditions})
        if most < 1 or not readers:
            return 0
        limit = max(16.0, sum(readers.values()) / most)
        values = self.values.copy()
        for i, count in readers.items():
            if count > limit:
                values[i] = self.generator.choice(np.array(self.symbols))
        before = self.budget
        self.fix(values, f"layer {k}: read by many")
        return before - self.budget

    def covered(
        self, k: int, rows: Int[np.ndarray, " some"], allowed: int, budget: int
    ) -> tuple[Int[np.ndarray, " n"], bool]:
        """Stage 2: the values after the greedy cover, and whether all heads of the rows are settled."""
        values, left = self.values.copy(), budget
        for _ in range(MOST_ROUNDS):
            contest = self.contest(values, k)
            heads, queries = unsettled(contest, rows, allowed)
            if not len(heads):
                return values, True
            size = max(1, COVERED_SCORES // len(contest.level.owner))
            if len(heads) > size:
                chosen = np.sort(self.generator.choice(len(heads), size, replace=False))
                heads, queries = heads[chosen], queries[chosen]
            fixed = cover(contest, heads, queries, allowed, left, self.spared)
            if not fixed:
                return values, False
            for i, symbol in fixed.items():
                values[i] = symbol
            left -= len(fixed)
        return values, False


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
    """Constructs a word in the language and one outside it, n tokens each, with bitwise the same output of the model.

    The model is run on both to verify this.

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
        remedy = "a length at which words have an even number of symbols: others are never balanced"
        problems.add("n", n, remedy)
    if end_symbol and config is not None and not config.end_symbol:
        problems.add("end_symbol", end_symbol, "a model whose config has end_symbol=True")
    problems.raise_if_any()
    length = n - end_symbol
    last = {n - 1: model.config.alphabet_size} if end_symbol else {}
    refused: InputError | None = None
    generator = np.random.default_rng(seed)
    # At each end so many brackets. The last number outweighs anything else that is fixed.
    most = int((1 - free_fraction) * length) // 3 if language == "dyck-1" else 0
    for ends in sorted({0, most // 4, most // 2, most}):
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
