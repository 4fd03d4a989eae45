"""Every engine against wider arithmetic, over every axis of a config: one choice at a time, then many at once.

`python -m tools.axes [--axes weighting mask] [--weights 4] [--drawn 20] [--processes 1]` prints a table
with a row for each choice, of the largest error relative to the change that is reported, over the flips that are called
resolved; and the worst cell of each engine. It exits with 1 if a flip is off by over 1 % and does not say so.

The truth is a pair of forward passes in 400 bits or more, held against the specification in np.longdouble
(tests/wide_reference.py), which shares no code with the package; and that alone where the program has no such numbers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

import jaxsens
from jaxsens import EngineRefusal, TransformerConfig
from jaxsens.core.base.programs import RESOLVED, SMALLEST
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from tests import wide_reference
from tests.small_models import WEIGHTINGS_TRIED, random_parameters
from tools.digits import BITS, TINY
from tools.wide.numbers import Precise
from tools.wide.outputs import output_program

EXACT = ("vmap", "incremental", "difference", "auto")
DTYPES = ("float32", "float64")
MOST_FLIPS = 32
"""Of each model, drawn at random."""
AGREE = 1e-12
"""The share of the output by which the two truths may differ: the specification has its embeddings in float64."""

AXES: dict[str, dict[str, dict[str, Any]]] = {
    "base": {"": {}},
    "weighting": {
        name: {"weighting": value} for name, value in WEIGHTINGS_TRIED.items() if name != "softmax"
    },
    "layers": {"1": {"layers": 1}, "3": {"layers": 3}},
    "mask": {
        "future": {"mask": "future"},
        "past": {"mask": "past"},
        "strict-future": {"mask": "strict-future"},
        "window, one side": {"mask": SlidingWindow(5)},
        "window, two sides": {"mask": TwoSidedWindow(3)},
    },
    "positions": {
        "none": {"positions": ()},
        "rotary": {"positions": "rotary"},
        "ALiBi": {"positions": "alibi"},
        "relative bias": {"positions": "relative-bias"},
        "length": {"positions": ("sinusoidal", "length")},
        "index": {"positions": ("index",)},
    },
    "norm": {"pre": {"layer_norm": "pre"}, "post": {"layer_norm": "post"}},
    "gate": {"headwise": {"output_gate": "headwise"}, "elementwise": {"output_gate": "elementwise"}},
    "map": {
        "none": {"feed_forward": 0},
        "gelu": {"activation": "gelu"},
        "silu": {"activation": "silu"},
        "tanh": {"activation": "tanh"},
    },
    "scores": {"additive": {"scores": "additive"}},
    "measure": {
        "l1": {"measure": "l1"},
        "linf": {"measure": "linf"},
        "l2 of logits": {"logits": 3},
        "l2 of a mean": {"readout": "mean"},
    },
    "n": {"8": {"n": 8}, "32": {"n": 32}, "128": {"n": 128}},
    "weights": {"times 5": {"factor": 5.0}, "times 30": {"factor": 30.0}},
}
"""The choices of each axis that differ from the base: softmax of temperature 1, two layers, no mask, sinusoids, no
normalisation, no gate, a map with ReLU, dot products, l2 of the last row, n = 16."""


@dataclass(frozen=True)
class Setting:
    """A row of the table: its axis and name, the options of its config, and how it is measured."""

    axis: str
    name: str
    options: dict[str, Any]
    dtype: str = "float32"
    seeds: range = range(4)
    engines: tuple[str, ...] = (*EXACT, "first-order")
    n: int = 16
    measure: str = "l2"
    factor: float = 1.0

    @property
    def label(self) -> str:
        """As a table shows it."""
        return f"{self.axis}: {self.name}" if self.name else self.axis

    @property
    def config(self) -> TransformerConfig:
        """The config of its models."""
        base = {
            "alphabet_size": 3,
            "width": 8,
            "heads": 2,
            "layers": 2,
            "feed_forward": 16,
            "end_symbol": False,
        }
        return TransformerConfig(**{**base, "positions": "sinusoidal", "dtype": self.dtype, **self.options})


@dataclass
class Cell:
    """What one engine said of the flips of one setting.

    `worst` is the largest error relative to the reported change among resolved flips, and `seed` of which model;
    `beyond` counts errors above the resolution, `unsaid` resolved flips off by over 1 %. Of estimates, `worst` is the
    90 % quantile of errors, `stated` the largest `error_90`, `beyond` the share of errors above their own `error_90`.
    """

    flips: int = 0
    unresolved: int = 0
    beyond: float = 0
    unsaid: int = 0
    worst: float = 0.0
    stated: float = 0.0
    seed: int = 0
    seconds: float = 0.0
    refused: str = ""
    picked: Counter[str] = field(default_factory=Counter)

    def add(self, found: Any, true: Float[np.ndarray, " flips"], seed: int) -> None:
        """Adds the flips of one model that an exact engine measured."""
        off, known = np.abs(found.norms - true), found.resolved
        tiny = np.maximum(true, found.norms) < SMALLEST
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(tiny, 0, off / found.norms)
        self.flips += len(true)
        self.unresolved += int((~known).sum())
        self.beyond += int((off > np.maximum(found.resolution, SMALLEST)).sum())
        self.unsaid += int((known & (relative > RESOLVED)).sum())
        worst = float(np.max(relative[known], initial=0))
        self.worst, self.seed = max((self.worst, self.seed), (worst, seed))
        self.picked[found.engine.name] += 1


def settings(axes: list[str], drawn: int, weights: int, engines: tuple[str, ...]) -> Iterator[Setting]:
    """The base with one choice changed at a time, and combinations drawn from all axes, with 10 models each."""
    for axis in axes:
        for name, options in AXES[axis].items():
            for dtype in DTYPES:
                yield _setting(axis, name, options, dtype, range(weights), engines)
    for seed in range(drawn):
        rng = np.random.default_rng(seed)
        choices = [[{}, *values.values()] for axis, values in AXES.items() if axis != "base"]
        chosen = [one[rng.integers(len(one))] for one in choices]
        options = {name: value for one in chosen for name, value in one.items()}
        if options.get("n") == 128:
            options["n"] = 8
        # Where the tanh is 1 to the last bit, keys tie for hard attention that exactly computed would not.
        if options.get("scores") == "additive" and getattr(options.get("weighting"), "hard", False):
            options.pop("factor", None)
        for dtype in DTYPES:
            yield _setting("drawn", str(seed), options, dtype, range(10), engines)


def _setting(
    axis: str, name: str, options: dict[str, Any], dtype: str, seeds: range, engines: tuple[str, ...]
) -> Setting:
    own = {key: value for key, value in options.items() if key in ("n", "measure", "factor")}
    rest = {key: value for key, value in options.items() if key not in own}
    return Setting(axis, name, rest, dtype, seeds, engines, **own)


def norms_of(changes: list[Any], measure: str) -> Float[np.ndarray, " flips"]:
    """The norm of each change, whose numbers may be wider than float64."""
    formula = {
        "l1": lambda d: abs(d).sum(),
        "l2": lambda d: (d * d).sum() ** 0.5,
        "linf": lambda d: abs(d).max(),
    }
    return np.array([float(formula[measure](change)) for change in changes])


def truths(
    model: Any, parameters: Any, setting: Setting, word: np.ndarray, pairs: list[tuple[int, int]]
) -> tuple[Float[np.ndarray, " flips"], float]:
    """The norm of every flip, and by which share of the output the two ways to it differ (0 if there is one)."""
    words = [word.copy() for _ in pairs]
    for flipped, (position, symbol) in zip(words, pairs, strict=True):
        flipped[position] = symbol
    config = setting.config
    with np.errstate(over="ignore", under="ignore"):
        before = wide_reference.output(config, parameters, word)
        plain = [wide_reference.output(config, parameters, flipped) - before for flipped in words]
    subject = as_model(model)
    program = output_program(subject, len(word))
    if program is None:
        return norms_of(plain, setting.measure), 0.0
    few, many = (Precise(bits) for bits in BITS)

    def changes(wide: Precise) -> tuple[list[Any], Float[np.ndarray, " flips"]]:
        with wide.context():
            at = program.evaluate(wide, subject.parameters, word)
            exact = [program.evaluate(wide, subject.parameters, flipped) - at for flipped in words]
            return exact, norms_of(exact, setting.measure)

    exact, found = changes(few)
    if not np.all(found > TINY):
        exact, found = changes(many)
    apart = np.abs(np.array(exact).astype(np.float64) - np.array(plain).astype(np.float64)).max()
    return found, float(apart / np.abs(before).max())


def model_of(setting: Setting, seed: int) -> tuple[Any, Any, np.ndarray]:
    """A model, its parameters in float64, and a word."""
    config = setting.config

    def rounded(leaf: Any) -> np.ndarray:
        return (np.asarray(leaf) * setting.factor).astype(setting.dtype)

    parameters = jax.tree.map(rounded, random_parameters(config, seed, setting.n))
    word = np.random.default_rng(seed).integers(0, config.alphabet_size, setting.n).astype(np.int32)
    model = jaxsens.Transformer(config, parameters=parameters)
    return model, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters), word


def measured(setting: Setting) -> tuple[Setting, dict[str, Cell], float]:
    """The cells of one setting by engine, and by how much the two truths differ."""
    cells, apart = {name: Cell() for name in setting.engines}, 0.0
    errors: list[tuple[np.ndarray, float]] = []
    for seed in setting.seeds:
        model, parameters, word = model_of(setting, seed)
        flips, true, known = jaxsens.Substitute(sample=MOST_FLIPS), None, []
        for name, cell in cells.items():
            estimates = name == "first-order"
            if cell.refused or (estimates and (setting.dtype != "float32" or setting.axis == "drawn")):
                continue
            engine = jaxsens.FirstOrder(verify=18) if estimates else name
            start = time.process_time()
            try:
                found = jaxsens.flip_sensitivity(
                    model, word, flips=flips, engine=engine, measure=setting.measure, progress=False
                )
            except EngineRefusal as refusal:
                cell.refused = str(refusal)
                continue
            cell.seconds += time.process_time() - start
            pairs = list(zip(found.positions.tolist(), found.symbols.tolist(), strict=True))
            if true is None:
                true, one = truths(model, parameters, setting, word, pairs)
                apart, known = max(apart, one), pairs
            assert pairs == known, "engines draw the same flips"
            if found.estimated is not None and found.accuracy is not None:
                own = np.abs(found.estimated.estimates - true) / np.where(true > 0, true, 1)
                errors.append((own[~found.exact], found.accuracy.error_90))
            else:
                cell.add(found, true, seed)
    if any(len(own) for own, _ in errors):
        cells["first-order"] = replace(estimated(errors), seconds=cells["first-order"].seconds)
    return setting, cells, apart


def estimated(errors: list[tuple[np.ndarray, float]]) -> Cell:
    """The cell of estimates: the errors of the flips that were not measured, and what was stated of them."""
    every = np.concatenate([own for own, _ in errors])
    above = sum(int((own > stated).sum()) for own, stated in errors)
    share = above / max(1, len(every))
    stated = max(stated for _, stated in errors)
    return Cell(
        len(every), beyond=share, worst=float(np.quantile(every, 0.9, method="higher")), stated=stated
    )


def shown(cell: Cell | None) -> str:
    """A cell of the table: the worst error, and how many flips are not resolved."""
    if cell is None or (not cell.flips and not cell.refused):
        return ""
    if cell.refused:
        return "refused"
    if cell.stated:
        return f"{cell.worst:.1g} ({cell.stated:.1g}), {cell.beyond:.0%}"
    return f"{cell.worst:.0e}" + (f", {cell.unresolved} not resolved" if cell.unresolved else "")


Rows = list[tuple[Setting, dict[str, Cell], float]]


def table(rows: Rows) -> str:
    """A row for each choice, and one for all combinations that were drawn: float32, then float64."""
    places = [(name, dtype) for dtype in DTYPES for name in EXACT] + [("first-order", "float32")]
    lines = ["| | " + " | ".join(f"{name}, {dtype}" for name, dtype in places) + " |", "| --- " * 10 + "|"]
    labels: dict[str, dict[tuple[str, str], Cell]] = {}
    for setting, cells, _ in rows:
        label = "drawn" if setting.axis == "drawn" else setting.label
        row = labels.setdefault(label, {})
        for name, cell in cells.items():
            row[name, setting.dtype] = merged(row.get((name, setting.dtype)), cell)
    for label, row in labels.items():
        lines.append(f"| {label} | " + " | ".join(shown(row.get(place)) for place in places) + " |")
    return "\n".join(lines)


def merged(one: Cell | None, other: Cell) -> Cell:
    """Two cells of exact engines as one; what was refused is left out unless both were."""
    if one is None or not one.flips:
        return other
    if not other.flips:
        return one
    counts = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("flips", "unresolved", "beyond", "unsaid")
    }
    return replace(one, worst=max(one.worst, other.worst), **counts)


def summary(rows: Rows) -> str:
    """The worst cell of each engine and dtype, what was refused, and what is wrong."""
    lines = []
    for dtype in DTYPES:
        for name in EXACT:
            own = [(s, c[name]) for s, c, _ in rows if s.dtype == dtype and name in c and c[name].flips]
            if not own:
                continue
            setting, worst = max(own, key=lambda pair: pair[1].worst)
            flips, unresolved, beyond, unsaid, seconds = (
                sum(getattr(cell, key) for _, cell in own)
                for key in ("flips", "unresolved", "beyond", "unsaid", "seconds")
            )
            lines.append(
                f"{name}, {dtype}: {worst.worst:.1e} of {setting.label}, weights {worst.seed}; of {flips} flips "
                f"{unresolved} not resolved, {beyond} off by more than their resolution, {unsaid} by over 1 % "
                f"and not said; {seconds:.0f} seconds"
            )
    refused = Counter(
        (name, cell.refused.split("model: ")[-1].split(";")[0])
        for _, cells, _ in rows
        for name, cell in cells.items()
        if cell.refused
    )
    lines += [f"refused, {count} settings, {name}: {why}" for (name, why), count in refused.most_common()]
    picked = sum((cells["auto"].picked for _, cells, _ in rows if "auto" in cells), Counter())
    lines.append(f"auto took {dict(picked)}")
    for setting, cells, apart in rows:
        if apart > AGREE:
            lines.append(f"the two truths differ by {apart:.1e} of the output: {setting}")
        lines += [
            f"off: {name}, {cell.worst:.1e}, {cell.unsaid} not said, {cell.beyond} beyond, of {cell.seed}: {setting}"
            for name, cell in cells.items()
            if name in EXACT and (cell.unsaid or cell.beyond)
        ]
    return "\n".join(lines)


def main() -> int:
    """Prints the table and the worst cells."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--weights", type=int, default=4, help="models of each choice")
    parser.add_argument("--drawn", type=int, default=20, help="combinations, of ten models each")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=[*EXACT, "first-order"])
    parser.add_argument(
        "--kept", type=Path, help="a file of rows measured before: they are not measured again"
    )
    parser.add_argument(
        "--minutes", type=float, default=np.inf, help="what is not measured by then is left out"
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    end = time.monotonic() + 60 * asked.minutes
    rows: Rows = pickle.loads(asked.kept.read_bytes()) if asked.kept and asked.kept.exists() else []
    known = {repr(row[0]) for row in rows}
    every = settings(asked.axes, asked.drawn, asked.weights, tuple(asked.engines))
    new = [setting for setting in every if repr(setting) not in known]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.processes, spawn, warnings.simplefilter, ("ignore",)) as pool:
        for row in pool.map(measured, new):
            cells = ", ".join(f"{name} {shown(cell)}" for name, cell in row[1].items())
            print(row[0].label, row[0].dtype, cells, file=sys.stderr, flush=True)
            rows.append(row)
            if asked.kept:
                asked.kept.write_bytes(pickle.dumps(rows))
            if time.monotonic() > end:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    print(table(rows), summary(rows), sep="\n\n")
    return int(any(cell.unsaid for _, cells, _ in rows for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
