"""Every number against arithmetic of 400 bits or more: is what is resolved right to 1 %, does every bound hold?

`python -m tools.digits [--weights random trained constructed] [--depths 1 2 3] [--every 7]` prints a table
over temperatures, positions, masks, depths, dtypes, weights and engines. It exits with 1 if a number is off by over 1 %
and does not say so.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

import jax
import numpy as np

import jaxsens
from jaxsens import EngineRefusal, InputError, TransformerConfig
from jaxsens.core.base.programs import RESOLVED
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.formal.constructions.catalogue import REFERENCES
from jaxsens.formal.constructions.conditions import ConditionName
from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import train
from tools.wide.numbers import Precise
from tools.wide.outputs import output_program
from tools.wide.program import Program

BITS = (400, 1400)
"""400 have digits of changes down to 1e-100; with 1400 every change is told from 0 that is not below 1e-300."""
TINY = 1e-80
TEMPERATURES = ("softmax", "temperature-log", "temperature-linear", "temperature-quadratic")
POSITIONS = ((), ("alibi",), ("rotary",), ("sinusoidal",), ("length",))
MASKS = ("none", "future")


def truth(model: Model, word: np.ndarray, positions: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """The l2 norm of every flip's change, from two forward passes in numbers of 400 bits, or 1400."""
    program = output_program(model, len(word))
    if program is None:
        raise LookupError("the model's program has a primitive without a rule")
    few, many = (Precise(bits) for bits in BITS)
    found = _norms(program, few, model, word, positions, symbols)
    if np.all(found > TINY):
        return found
    return _norms(program, many, model, word, positions, symbols)


def _norms(
    program: Program,
    wide: Precise,
    model: Model,
    word: np.ndarray,
    positions: np.ndarray,
    symbols: np.ndarray,
) -> np.ndarray:
    before = program.evaluate(wide, model.parameters, word)
    norms = []
    for position, symbol in zip(positions, symbols, strict=True):
        flipped = word.copy()
        flipped[position] = symbol
        change = program.evaluate(wide, model.parameters, flipped) - before
        chosen = change if model.outputs is None else change[list(model.outputs)]
        norms.append(float(max(abs(v) for v in chosen)) and float(sum(v * v for v in chosen) ** 0.5))
    return np.asarray(norms)


@dataclass
class Cell:
    """What was found of some models.

    `worst` is the largest error, relative to the change, of a flip that is called resolved; `beyond` counts flips whose
    error exceeds their resolution; `unsaid` those that are off by over 1 % and called resolved.
    """

    flips: int = 0
    widened: int = 0
    unresolved: int = 0
    beyond: int = 0
    unsaid: int = 0
    worst: float = 0.0

    def add(self, found: jaxsens.FlipSensitivity, true: np.ndarray) -> None:
        """Adds the flips of one result."""
        off, known = np.abs(found.norms - true), found.resolved
        negligible = true < 1e-300
        relative = np.where(negligible, 0, off / np.where(negligible, 1, true))
        self.flips += len(true)
        self.widened += sum(count for _, count in found.engine.elsewhere)
        self.unresolved += int((~known).sum())
        self.beyond += int((off > np.maximum(found.resolution, 1e-300)).sum())
        self.unsaid += int((known & (relative > 1.5 * RESOLVED)).sum())
        self.worst = max(self.worst, float(np.max(relative[known], initial=0)))

    def __str__(self) -> str:
        shares = f"{self.widened / self.flips:6.0%} {self.unresolved / self.flips:10.0%}"
        return f"{self.flips:6d} {self.worst:10.1e} {shares} {self.beyond:8d} {self.unsaid:7d}"


def random_models(depth: int, dtype: Any, seed: int) -> Iterator[tuple[str, Any]]:
    """Random transformers over all temperatures, positions and masks: of two symbols, and of five for odd seeds."""
    for weighting, positions, mask in itertools.product(TEMPERATURES, POSITIONS, MASKS):
        config = TransformerConfig(
            alphabet_size=(2, 5)[seed % 2], width=8, heads=2, layers=depth, feed_forward=8 if depth > 1 else 0,
            mask=mask, positions=positions, weighting=weighting, dtype=dtype, end_symbol=False,
        )  # fmt: skip
        yield f"{weighting} {'+'.join(positions) or 'no positions'}", jaxsens.Transformer(config, seed=seed)


def trained_models(depth: int, dtype: Any, seed: int) -> Iterator[tuple[str, Any]]:
    """Small transformers after 300 steps on three languages."""
    for language in ("parity", "majority", "flip-flop"):
        table = {
            "language": {"name": language, "end_probability": 0.2},
            "model": {"width": 16, "heads": 2, "layers": depth, "feed_forward": 32, "dtype": dtype},
            "data": {"lengths": [2, 16], "batch": 32},
            "optimiser": {"steps": 300},
            "seed": seed,
        }
        with tempfile.TemporaryDirectory() as folder:
            yield f"trained on {language}", train(TrainConfig.from_table(table), folder).model


def constructed_models(depth: int, dtype: Any, seed: int) -> Iterator[tuple[str, Any]]:
    """Constructed transformers of this depth (3: or deeper), in all conditions; read before they round."""
    for name, condition in itertools.product(
        ("parity", "majority", "dyck-1", "first"), get_args(ConditionName)
    ):
        with suppress(InputError):
            model = jaxsens.construction(name, condition, dtype=dtype, read="before-rounding")
            if min(model.config.layers, 3) == depth:
                yield f"{name}, {condition}", model
    if depth == 2:
        for name in REFERENCES:
            yield name, jaxsens.construction(name, dtype=dtype)


MODELS = {"random": random_models, "trained": trained_models, "constructed": constructed_models}


def tabulated(
    weights: str, depth: int, dtype: str, seed: int, engines: list[Any], n: int, every: int = 1
) -> dict[str, Cell]:
    """The cells of one depth and dtype, by engine and kind of model, of every so many models.

    What an engine refuses is left out.
    """
    cells: dict[str, Cell] = {}
    for name, model in itertools.islice(MODELS[weights](depth, dtype, seed), 0, None, every):
        subject = as_model(model)
        word = np.random.default_rng(seed).integers(0, subject.alphabet_size or 2, n).astype(np.int32)
        true = None
        for engine in engines:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = jaxsens.flip_sensitivity(model, word, engine=engine, progress=False)
                except EngineRefusal:
                    continue
            true = truth(subject, word, found.positions, found.symbols) if true is None else true
            cells.setdefault(f"{engine}: {name}", Cell()).add(found, true)
        jax.clear_caches()
    return cells


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--engines", nargs="+", default=["difference", "incremental", "vmap"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=12)
    parser.add_argument("--every", type=int, default=1, help="only one of so many models")
    asked = parser.parse_args()
    unsaid = beyond = 0
    header = f"{'':58s}  flips      worst  wider unresolved   beyond  unsaid"
    for weights, depth, dtype in itertools.product(asked.weights, asked.depths, asked.dtypes):
        print(f"\n{weights} weights, depth {depth}, {dtype}\n{header}", flush=True)
        given = asked.seed, asked.engines, asked.n, asked.every
        for name, cell in tabulated(weights, depth, dtype, *given).items():
            print(f"{name:58s} {cell}", flush=True)
            unsaid, beyond = unsaid + cell.unsaid, beyond + cell.beyond
    print(f"\n{unsaid} flips are off by over 1 % and do not say so; {beyond} by more than their resolution")
    return int(unsaid > 0)


if __name__ == "__main__":
    sys.exit(main())
