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
    symbols: Sequence[int] | Int[np.ndarray, " some"] | None,
    method: object,
    most_values: object,
    seed: object,
) -> tuple[Int[np.ndarray, " n"], tuple[int, ...], int]:
    """The values to begin with, the symbols that free positions may hold, and how many positions may be fixed.

    NumPy's whole numbers are taken like Python's.

    Raises:
        InputError: listing every fault.
    """
    faults = Faults("restrict")
    config = check_model(model, faults)
    n = plain(n)
    if not is_count(n, 1):
        faults.add("n", n, "a whole number of at least 1")
    check_fraction(free_fraction, faults)
    if method not in METHODS:
        faults.add("method", method, f"one of {', '.join(METHODS)}")
    if not is_count(plain(most_values), 2):
        faults.add("most_values", most_values, "a whole number of at least 2")
    check_seed(seed, faults)
    if preset is not None and not isinstance(preset, Mapping):
        faults.add("preset", preset, "a mapping from positions to symbols, such as {0: 1}")
    if not (symbols is None or isinstance(symbols, Sequence) or np.ndim(symbols) == 1):
        faults.add("symbols", symbols, "a sequence of symbols, such as (0, 1)")
    if config is not None and is_count(n, 1):
        check_length(config, n, faults)
    faults.raise_if_any()
    config = model.config
    held = (
        tuple(range(config.alphabet_size)) if symbols is None else tuple(plain(symbol) for symbol in symbols)
    )
    _check_symbols(held, config.vocabulary_size, faults)
    values = np.full(n, FREE, np.int64)
    for position, symbol in ((plain(i), plain(s)) for i, s in (preset or {}).items()):
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


def plain(number: Any) -> Any:
    """A NumPy whole number as Python's; anything else as it is."""
    return int(number) if isinstance(number, np.integer) else number


def check_fraction(free_fraction: object, faults: Faults) -> None:
    """Notes it if the share of free positions is no share."""
    number = isinstance(free_fraction, int | float | np.integer | np.floating)
    if isinstance(free_fraction, bool) or not (number and 0 <= float(free_fraction) <= 1):
        faults.add("free_fraction", free_fraction, "a number from 0 to 1")


def check_seed(seed: object, faults: Faults) -> None:
    """Notes it if a seed is none."""
    if not is_count(plain(seed)):
        faults.add("seed", seed, "a whole number of at least 0")


def _check_symbols(symbols: tuple[Any, ...], vocabulary: int, faults: Faults) -> None:
    if len(symbols) < 2 or any(symbol in symbols[:i] for i, symbol in enumerate(symbols)):
        faults.add("symbols", symbols, "two different symbols or more")
    for symbol in symbols:
        if not is_count(symbol) or symbol >= vocabulary:
            faults.add("symbols", symbol, f"symbols from 0 to {vocabulary - 1}")
