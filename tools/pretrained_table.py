"""Prints the table of families and options beside the transformers library: python -m tools.pretrained_table

Every row is a tiny random model that transformers saves, at lengths 1, 2, 17 and 300; classifiers at 11. Errors are
the largest differences of hidden states and of logits, relative to the largest entry if that is above 1, in float32 and
in float64; and the largest difference of the incremental engine from forward passes in float64, relative to the change.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import jaxsens
from jaxsens.pretrained.families.architecture import Output
from jaxsens.pretrained.load import KINDS, load_pretrained
from tests.pretrained.oracle import CASES, ENCODER, LABELLED, SYMBOLS, Case, ids_of, reference, save, sizes_of

LENGTHS = (1, 2, 17, 300)
LONGEST = {
    "gpt2": "n_positions",
    "gptj": "n_positions",
    "t5": "",
    "mt5": "",
    "bloom": "",
    "gemma3": "text_config",
}
"""The option that says the longest input, or the table that has it, where it is not max_position_embeddings; nothing
where there is none."""


def errors(case: Case, folder: Path, dtype: str) -> tuple[float, float]:
    """Returns the errors of the hidden states and of the logits of a saved case."""
    found = []
    second: Output = "labels" if case.name in KINDS else "logits"
    for output, wanted in zip(("hidden", second), reference(case, folder, dtype), strict=True):
        if not wanted.size:
            return found[0], 0.0
        ours = np.asarray(load_pretrained(folder, output=output, dtype=dtype)(ids_of(case)))
        if len(wanted) == 1:  # of a sequence
            ours = ours[:1] if case.family in ENCODER else ours[-1:]
        if ours.shape != wanted.shape or not str(ours.dtype) == str(wanted.dtype) == dtype:
            raise AssertionError(f"{case}: {ours.dtype}{ours.shape}, not {wanted.dtype}{wanted.shape}")
        found.append(float(np.abs(ours - wanted).max() / max(1.0, np.abs(wanted).max())))
    return found[0], found[1]


def of_engine(case: Case, folder: Path) -> float:
    """Returns the error of the incremental engine at two lengths, relative to what forward passes find."""
    model, largest = load_pretrained(folder, dtype="float64"), 0.0
    for n in (2, case.n):
        ids = ids_of(replace(case, n=n))
        flips = jaxsens.Substitute([7, 9, SYMBOLS - 1], positions=sorted({0, n // 3}))
        exact, found = (
            jaxsens.flip_sensitivity(model, ids, flips, engine=engine, readout="last", progress=False)
            for engine in ("vmap", "incremental")
        )
        moved = exact.norms > 0
        if moved.any():
            apart = np.abs(found.norms - exact.norms)[moved] / exact.norms[moved]
            largest = max(largest, float(apart.max()))
    return largest


def at(case: Case, n: int) -> Case:
    """Returns the case at a length, of a model that reads it."""
    key = LONGEST.get(case.family, "max_position_embeddings")
    longer: dict[str, Any] = {key: 320} if n > case.n and key else {}
    if key == "text_config" and longer:
        longer = {key: {**sizes_of(case.family)[key], "max_position_embeddings": 320}}
    return replace(case, n=n, options={**case.options, **longer})


def lengths_of(case: Case) -> list[int]:
    """Returns the lengths that a case is tried at; of a classifier its own."""
    return [case.n] if case.name in KINDS else sorted({*LENGTHS, *([case.n] if case.n > 17 else [])})


def row(case: Case) -> list[float]:
    """Returns the largest errors of a case over all lengths, and that of the engine."""
    found, engine = [], 0.0
    for n in lengths_of(case):
        with tempfile.TemporaryDirectory() as folder:
            own = at(case, n)
            save(own, Path(folder))
            found.append(
                [one for dtype in ("float32", "float64") for one in errors(own, Path(folder), dtype)]
            )
            if n in (11, 17):
                engine = of_engine(own, Path(folder))
    return [*np.max(found, axis=0), engine]


def main(families: list[str]) -> None:
    """Prints the table, of some families or of all."""
    print("| family | options | n | float32 hidden | logits | float64 hidden | logits | incremental |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in (*CASES, *LABELLED):
        if not families or case.family in families:
            shown = " | ".join(f"{one:.1e}" for one in row(case))
            lengths = ", ".join(map(str, lengths_of(case)))
            print(f"| {case.family} | {case.name} | {lengths} | {shown} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
