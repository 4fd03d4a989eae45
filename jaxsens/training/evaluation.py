"""Cross-entropy and recognition at any length, even far beyond the lengths that were trained on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.programs import compiled, numerics
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import check_tokens
from jaxsens.core.models.transformer.trace import SCORES_IN_MEMORY
from jaxsens.core.sweeps.job import Record
from jaxsens.formal.languages import Dyck, Language, language
from jaxsens.training.config import Task, TrainableConfig, logits_of
from jaxsens.training.steps import readout_logits, with_boundary

_STREAMS = {"prediction": 2, "recognition": 3}  # of random numbers under one seed; training has 0 and 1
_NUMBERS_IN_MEMORY = 2**24


@dataclass(frozen=True)
class CrossEntropy:
    """How well a model predicts the symbol after n symbols, in nats.

    Attributes:
        n, words: The number of symbols before the predicted one, and of sampled prefixes.
        mean: The cross-entropy.
        excess: The cross-entropy minus the optimum, `language.optimal_cross_entropy(n)`.
        standard_error: The standard error of both, from the sample.
        choice: The part of the mean that is due to choosing the kind of a closing bracket, after prefixes that end in a
            closing bracket and are not balanced (`Dyck.closing_choice_loss`), with its error; None for others.
    """

    n: int
    words: int
    mean: float
    excess: float
    standard_error: float
    choice: float | None = None
    choice_standard_error: float | None = None


@dataclass(frozen=True)
class Recognition:
    """How well a model tells whether words of n symbols are in the language.

    Attributes:
        n: The number of symbols of a word.
        words: The number of sampled words, half of them members if the language has words of both labels.
        accuracy: The share of right answers. Equal logits count as a wrong answer.
        accuracy_standard_error: The standard error of the accuracy, from the sample.
        margin: The mean of the right label's logit minus the other's.
        margin_standard_error: The standard error of the margin, from the sample.
    """

    n: int
    words: int
    accuracy: float
    accuracy_standard_error: float
    margin: float
    margin_standard_error: float


def cross_entropy(subject: Any, language: Language, n: int, words: int = 256, seed: int = 0) -> CrossEntropy:
    """The cross-entropy of a model's prediction of the symbol after n symbols.

    Only the divergence from the language's law p of the next symbol to the prediction is averaged over the drawn
    prefixes of n symbols. The mean entropy of p is `language.optimal_cross_entropy(n)`, which is exact. A model that
    predicts p thus attains exactly the optimum, on every sample.

    Args:
        subject: A trained model, a module such as `jaxsens.training.RNN` with a logit for every outcome, or the pair
            of a network's config and its parameters.
        language: The language of the words; its alphabet is the model's.
        n: The number of symbols before the predicted one, at least 0.
        words: The number of prefixes.
        seed: The seed of the sample.

    Raises:
        InputError: If the model does not fit the language or the length, or an argument cannot be used.
    """
    config, parameters, generator = _checked(subject, language, n, words, seed, "prediction", least=0)
    prefixes = language.sample_prefixes(words, n, generator)
    outputs = logits(config, parameters, with_boundary(prefixes, language, "prediction"))
    logs = outputs - np.logaddexp.reduce(outputs, axis=-1, keepdims=True)
    laws = language.last_probabilities(prefixes)
    divergences = np.sum(laws * (np.log(np.where(laws > 0, laws, 1)) - logs), axis=-1)
    excess, error = _mean(divergences)
    choice = _mean(language.closing_choice_loss(prefixes, logs)) if isinstance(language, Dyck) else ()
    return CrossEntropy(n, words, language.optimal_cross_entropy(n) + excess, excess, error, *choice)


def accuracy(subject: Any, language: Language, n: int, words: int = 256, seed: int = 0) -> Recognition:
    """How well a model tells words of n symbols in the language from others, which include near misses.

    Arguments and errors are those of `cross_entropy`; n is at least 1.
    """
    config, parameters, generator = _checked(subject, language, n, words, seed, "recognition", least=1)
    sample, labels = language.sample_labelled(words, n, generator)
    outputs = logits(config, parameters, with_boundary(sample, language, "recognition"))
    margins = np.where(labels, 1, -1) * (outputs[:, 1] - outputs[:, 0])
    return Recognition(n, words, *_mean((margins > 0).astype(np.float64)), *_mean(margins))


def logits(
    config: TrainableConfig,
    parameters: Any,
    tokens: Int[np.ndarray, "words n"],
    of_word: Callable[..., Array] = readout_logits,
) -> Float[np.ndarray, "words *n logits"]:
    """The model's output on each input, or what another function of its config, parameters and tokens returns, float64.
    Runs a few inputs at a time, so that memory suffices at any length."""
    n = tokens.shape[1]
    check_tokens(config, tokens)
    if isinstance(config, TransformerConfig):
        most = max((config.layer(k).heads for k in range(config.layers)), default=1)
        held = max(most * n * min(n, max(1, SCORES_IN_MEMORY // (most * n))), n * config.width)
    else:
        held = 4 * n * config.width
    with numerics(config.dtype):
        outputs = jax.eval_shape(partial(of_word, config), parameters, tokens[0]).size
        size = min(len(tokens), max(1, _NUMBERS_IN_MEMORY // max(held, outputs)))
        parts = []
        for first in range(0, len(tokens), size):
            # The last part is filled up, so that one compiled function serves all parts.
            part = tokens[np.minimum(np.arange(first, first + size), len(tokens) - 1)]
            parts.append(np.asarray(_logits(of_word, config, parameters, part), np.float64))
    return np.concatenate(parts)[: len(tokens)]


@compiled(static=2)
def _logits(of_word: Callable[..., Array], config: TrainableConfig, parameters: Any, tokens: Any) -> Array:
    return jax.vmap(partial(of_word, config, parameters))(tokens)


def _checked(
    subject: Any, language: Language, n: int, words: int, seed: int, task: Task, least: int
) -> tuple[TrainableConfig, Any, np.random.Generator]:
    """Returns a model's config and parameters, and the generator of its words, after checking the arguments."""
    module = getattr(subject, "model", subject)  # of a trained model, or the module itself
    own: tuple[Any, Any] = (getattr(module, "config", None), getattr(module, "parameters", None))
    config, parameters = subject if isinstance(subject, tuple) and len(subject) == 2 else own
    with collecting("cross_entropy" if task == "prediction" else "accuracy") as problems:
        if not isinstance(config, TrainableConfig):
            remedy = "a trained model, a network, or (config, parameters)"
            problems.add("subject", type(subject).__name__, remedy)
        elif not isinstance(language, Language):
            problems.add("language", language, 'a language, such as jaxsens.language("parity")')
        else:
            symbols, wanted = len(language.alphabet), logits_of(language, task)
            if (config.alphabet_size, config.end_symbol) != (symbols, True):
                found = f"{config.alphabet_size} symbols, end_symbol={config.end_symbol}"
                why = f"the {symbols} symbols of {language.name} and end_symbol=True"
                problems.add("subject", found, why)
            if config.logits != wanted:
                problems.add("subject", f"logits={config.logits}", f"a model with {wanted} logits for {task}")
        inputs.length(n, problems, least)
        inputs.count("words", words, problems, least=2)
        inputs.seed(seed, problems)
    return config, parameters, np.random.default_rng((seed, _STREAMS[task], n))


def _mean(values: np.ndarray) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


# What a sweep keeps of an evaluation


FOUND: dict[Task, tuple[str, ...]] = {
    "prediction": ("cross_entropy", "excess", "standard_error", "choice", "choice_error"),
    "recognition": ("accuracy", "accuracy_error", "margin", "margin_error"),
}
LINES = ("optimum", "unigram", "chance", "bound", "choice_bound")
EVALUATION_COLUMNS = (
    *("variant", "n", "seed", "task", "words"),
    *(*FOUND["prediction"], *LINES, *FOUND["recognition"]),
)
"""The columns of evaluation.csv. Those of the other task are empty."""


def lines(learned: Language, n: int) -> dict[str, float | None]:
    """What the cross-entropy of the symbol after n symbols is compared with, in nats: `LINES` of an `EvaluationRecord`.

    O(n) to compute.
    """
    dyck = learned if isinstance(learned, Dyck) and learned.kinds > 1 else None
    return {
        "optimum": learned.optimal_cross_entropy(n),
        "unigram": learned.unigram_cross_entropy(n),
        "chance": learned.chance_cross_entropy(n),
        "bound": None if dyck is None else dyck.theorem6_bound(n),
        "choice_bound": None if dyck is None else dyck.theorem6_gap(n),
    }


@dataclass(frozen=True)
class EvaluationRecord(Record):
    """How well a model does its task, over `words` words of n symbols.

    Attributes:
        key, variant, n, seed: of the `TablePoint`.
        task: "prediction" of the symbol after the word, or "recognition" of the word.
        language: the name and options of what it learned.
        longest_trained: the largest number of symbols it was trained on; None for weights that were set by hand.
        steps: of its training; None for weights that were set by hand.
        cross_entropy: in nats: the optimum, which is exact, and the `excess`, the mean over the prefixes of the
            divergence from the law of the next symbol to its prediction; `standard_error` is of both.
        choice: the part of it that chooses the kind of a closing bracket, after prefixes that end in a closing bracket
            and are not balanced; None for languages without brackets. `choice_error` is its standard error.
        accuracy, margin: the share of words, half of them in the language, that is labelled right; the mean of the
            right label's logit minus the other's. `accuracy_error` and `margin_error` are their standard errors.
        optimum: of predictions, the least possible cross-entropy.
        unigram: the least of a prediction that does not depend on the prefix: chance, in Theorem 6.
        chance: that of guessing uniformly among all outcomes.
        bound: that of Theorem 6 for k kinds of brackets: optimum + P0 (1 - p) log k; None for other languages.
        choice_bound: P0 (1 - p) log k itself.
    """

    kind: ClassVar[str] = "evaluation of a trained model"
    key: str
    variant: str
    n: int
    seed: int
    task: Task
    language: dict[str, Any]
    longest_trained: int | None
    steps: int | None
    words: int
    cross_entropy: float | None = None
    excess: float | None = None
    standard_error: float | None = None
    choice: float | None = None
    choice_error: float | None = None
    optimum: float | None = None
    unigram: float | None = None
    chance: float | None = None
    bound: float | None = None
    choice_bound: float | None = None
    accuracy: float | None = None
    accuracy_error: float | None = None
    margin: float | None = None
    margin_error: float | None = None

    @property
    def learned(self) -> Language:
        """The language."""
        return language(**self.language)

    def summary(self) -> str:
        """The cross-entropy or the accuracy."""
        name = FOUND[self.task][0]
        return f"{name.replace('_', '-')} {getattr(self, name):.4g}"
