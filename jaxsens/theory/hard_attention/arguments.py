"""Whether a model and the arguments of `restrict` can be used, and what is wrong if not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.errors import Faults, is_count
from jaxsens.models.config import TransformerConfig
from jaxsens.models.transformer import Transformer, check_length
from jaxsens.models.weighting import LeftmostHard, RightmostHard
from jaxsens.theory.hard_attention.restriction import FREE

METHODS = ("auto", "greedy", "resample")


def check_model(model: object, faults: Faults) -> TransformerConfig | None:
    """Notes why Theorem 1's construction does not apply to a model; its config if it does."""
    if not isinstance(model, Transformer):
        faults.add("model", type(model).__name__, "a jaxsens Transformer")
        return None
    config = model.config
    for k in range(config.layers):
        weighting = config.layer(k).weighting
        if not isinstance(weighting, LeftmostHard | RightmostHard):
            faults.add(
                "model",
                f"layer {k} is {type(weighting).__name__}",
                "every layer leftmost-hard or rightmost-hard: elsewhere a head averages over keys, and no key "
                "settles it (Hahn 2020, section 5, treats soft attention by Lemma 5)",
            )
    if config.readout == "mean":
        faults.add(
            "model",
            'readout "mean"',
            "one position's readout: every free symbol reaches the mean through its own skip connection",
        )
    if config.centred_scores:
        faults.add(
            "model",
            "centred_scores",
            'plain scores, as constructions in dtype="float64" have them: centred ones are relative to the winner',
        )
    return config


def checked(
    model: Any,
    n: int,
    free_fraction: float,
    preset: Mapping[int, int] | None,
    symbols: Sequence[int] | None,
    method: object,
    most_values: object,
    seed: object,
) -> tuple[Int[np.ndarray, " n"], tuple[int, ...], int]:
    """The values to begin with, the symbols that free positions may hold, and how many positions may be fixed.

    Raises:
        InputError: listing every fault.
    """
    faults = Faults("restrict")
    config = check_model(model, faults)
    if not is_count(n, 1):
        faults.add("n", n, "a whole number of at least 1")
    if isinstance(free_fraction, bool) or not (
        isinstance(free_fraction, int | float) and 0 <= free_fraction <= 1
    ):
        faults.add("free_fraction", free_fraction, "a number from 0 to 1")
    if method not in METHODS:
        faults.add("method", method, f"one of {', '.join(METHODS)}")
    if not is_count(most_values, 2):
        faults.add("most_values", most_values, "a whole number of at least 2")
    if not is_count(seed):
        faults.add("seed", seed, "a whole number of at least 0")
    if config is not None and is_count(n, 1):
        check_length(config, n, faults)
    faults.raise_if_any()
    config = model.config
    held = tuple(range(config.alphabet_size)) if symbols is None else tuple(symbols)
    _check_symbols(held, config.vocabulary_size, faults)
    values = np.full(n, FREE, np.int64)
    for position, symbol in (preset or {}).items():
        if not is_count(position) or position >= n:
            faults.add("preset", {position: symbol}, f"positions from 0 to {n - 1}")
        elif not is_count(symbol) or symbol >= config.vocabulary_size:
            faults.add("preset", {position: symbol}, f"symbols from 0 to {config.vocabulary_size - 1}")
        else:
            values[position] = symbol
    fixed = int(np.sum(values != FREE))
    budget = n - math.ceil(free_fraction * n - 1e-9) - fixed
    if budget < 0:
        faults.add("preset", f"{fixed} positions", f"at most {budget + fixed}, or a smaller free_fraction")
    faults.raise_if_any()
    return values, held, budget


def _check_symbols(symbols: tuple[int, ...], vocabulary: int, faults: Faults) -> None:
    if len(symbols) < 2 or len(set(symbols)) < len(symbols):
        faults.add("symbols", symbols, "two different symbols or more")
    for symbol in symbols:
        if not is_count(symbol) or symbol >= vocabulary:
            faults.add("symbols", symbol, f"symbols from 0 to {vocabulary - 1}")
