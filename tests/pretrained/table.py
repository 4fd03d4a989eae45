"""Prints the table of families and options beside the transformers library: python -m tests.pretrained.table

Every row is a tiny random model that transformers saves. The errors are the largest differences of hidden states and of
logits, relative to the largest entry if that is above 1, in float32 and in float64.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from jaxsens.pretrained.load import load_pretrained
from tests.pretrained.oracle import CASES, Case, ids_of, reference, save


def errors(case: Case, folder: Path, dtype: str) -> tuple[float, float]:
    """Returns the errors of the hidden states and of the logits of a saved case."""
    found = []
    for output, wanted in zip(("hidden", "logits"), reference(case, folder, dtype), strict=True):
        if not wanted.size:
            return found[0], 0.0
        ours = np.asarray(load_pretrained(folder, output=output, dtype=dtype)(ids_of(case)))
        if ours.shape != wanted.shape or not str(ours.dtype) == str(wanted.dtype) == dtype:
            raise AssertionError(f"{case}: {ours.dtype}{ours.shape}, not {wanted.dtype}{wanted.shape}")
        found.append(float(np.abs(ours - wanted).max() / max(1.0, np.abs(wanted).max())))
    return found[0], found[1]


def main() -> None:
    """Prints the table."""
    print("| family | options | n | float32 hidden | float32 logits | float64 hidden | float64 logits |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            save(case, Path(folder))
            shown = [
                f"{one:.1e}" for dtype in ("float32", "float64") for one in errors(case, Path(folder), dtype)
            ]
        print(f"| {case.family} | {case.name} | {case.n} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
