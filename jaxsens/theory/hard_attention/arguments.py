"""Whether a model and the arguments of `restrict` can be used, and what is wrong if not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.errors import Faults
from jaxsens.inputs import array_of, is_count, plain_numbers
from jaxsens.models.config import TransformerConfig
from jaxsens.models.given import instead_of
from jaxsens.models.transformer import Transformer, check_runs
from jaxsens.models.weighting import LeftmostHard, RightmostHard
from jaxsens.theory.hard_attention.restriction import FREE

METHODS = ("auto", "greedy", "resample")


def check_model(model: object, faults: Faults) -> TransformerConfig | None:
    """Notes why Theorem 1's construction does not apply to a model; its config if it does."""
    if not isinstance(model, Transformer):
        faults.add("model", type(model).__name__, instead_of(model, "a jaxsens Transformer"))
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
    fixed: Mapping[int, int] | None,
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
    n = plain_numbers(n)
    if not is_count(n, 1):
        faults.add("n", n, "a whole number of at least 1")
    fraction = check_fraction(free_fraction, faults)
    if method not in METHODS:
        faults.add("method", method, f"one of {', '.join(METHODS)}")
    if not is_count(most_values, 2):
        faults.add("most_values", most_values, "a whole number of at least 2")
    check_seed(seed, faults)
    if config is not None and is_count(n, 1):
        check_runs(config, n, faults)
    limit = None if config is None else config.vocabulary_size
    held = _symbols(symbols, 0 if config is None else config.alphabet_size, limit, faults)
    held_fixed = _fixed(fixed, n if is_count(n, 1) else None, limit, faults)
    budget = 0
    if is_count(n, 1) and fraction:
        budget = n - math.ceil(free_fraction * n - 1e-9) - len(held_fixed)
        if budget < 0:
            most = f"at most {budget + len(held_fixed)}, or a smaller free_fraction"
            faults.add("fixed", f"{len(held_fixed)} positions", most)
    faults.raise_if_any()
    values = np.full(n, FREE, np.int64)
    values[list(held_fixed)] = list(held_fixed.values())
    return values, held, budget


def _symbols(symbols: Any, alphabet_size: int, limit: int | None, faults: Faults) -> tuple[int, ...]:
    """What a free position may hold; notes what is wrong with it. `limit` is how many symbols the model knows."""
    if symbols is None:
        return tuple(range(alphabet_size))
    if not (isinstance(symbols, Sequence) or array_of(symbols).ndim == 1):
        faults.add("symbols", symbols, "a sequence of symbols, such as (0, 1)")
        return ()
    held = tuple(plain_numbers(symbol) for symbol in symbols)
    if len(held) < 2 or any(symbol in held[:i] for i, symbol in enumerate(held)):
        faults.add("symbols", held, "two different symbols or more")
    for symbol in held:
        if not _is_below(symbol, limit):
            faults.add("symbols", symbol, _up_to("symbols", limit))
    return held


def _fixed(fixed: Any, n: int | None, limit: int | None, faults: Faults) -> dict[int, int]:
    """The positions fixed beforehand; notes what is wrong with them. n is None where it is no length."""
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        faults.add("fixed", fixed, "a mapping from positions to symbols, such as {0: 1}")
        return {}
    found = {}
    for position, symbol in ((plain_numbers(i), plain_numbers(s)) for i, s in fixed.items()):
        if not _is_below(position, n):
            faults.add("fixed", {position: symbol}, _up_to("positions", n))
        elif not _is_below(symbol, limit):
            faults.add("fixed", {position: symbol}, _up_to("symbols", limit))
        else:
            found[position] = symbol
    return found


def _is_below(value: object, limit: int | None) -> bool:
    return is_count(value) and (limit is None or plain_numbers(value) < limit)


def _up_to(what: str, limit: int | None) -> str:
    return f"{what} from 0" + ("" if limit is None else f" to {limit - 1}")


def check_fraction(free_fraction: object, faults: Faults) -> bool:
    """Notes it if the share of free positions is no share; whether it is."""
    number = isinstance(free_fraction, int | float | np.integer | np.floating)
    sound = not isinstance(free_fraction, bool) and number and 0 <= float(free_fraction) <= 1
    if not sound:
        faults.add("free_fraction", free_fraction, "a number from 0 to 1")
    return sound


def check_seed(seed: object, faults: Faults) -> None:
    """Notes it if a seed is none."""
    if not is_count(seed):
        faults.add("seed", seed, "a whole number of at least 0")
