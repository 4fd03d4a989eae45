"""A published model compared with the slow NumPy forward pass of tests/pretrained/reference.py, in float64.

`python scripts/check_pretrained.py FOLDER` prints, for two sentences, the largest difference of hidden states and the
cosine of their means over rows. The documentation of all-MiniLM-L6-v2 gives about 0.755.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import jaxsens
from tests.pretrained.reference import outputs

SENTENCES = ("A man is eating food.", "A man is eating a piece of bread.")


@dataclass(frozen=True)
class Agreement:
    """A published model compared with the reference.

    Attributes:
        error: the largest difference of hidden states over all sentences, rows and coordinates.
        cosine: the cosine of the first two sentences' means over rows.
        reference_cosine: the same of the reference.
    """

    error: float
    cosine: float
    reference_cosine: float


def agreement(folder: Path, dtype: str = "float32", sentences: Sequence[str] = SENTENCES) -> Agreement:
    """Returns how far a folder's model is from the reference: seconds for a small encoder and short sentences."""
    from safetensors.numpy import load_file

    model = jaxsens.load_pretrained(folder, dtype=dtype)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tensors = load_file(folder / "model.safetensors")
    inputs = [model.encode(text) for text in sentences]
    ours = [np.asarray(model(ids), np.float64) for ids in inputs]
    theirs = [outputs(model.family, config, tensors, ids)[0] for ids in inputs]
    error = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    return Agreement(error, _cosine(ours), _cosine(theirs))


def _cosine(rows: list[np.ndarray]) -> float:
    a, b = rows[0].mean(0), rows[1].mean(0)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def main(given: Sequence[str] | None = None) -> int:
    """Prints the agreement of a folder in both dtypes."""
    parser = argparse.ArgumentParser(prog="check_pretrained", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "folder", type=Path, help="a folder with config.json, model.safetensors and tokenizer.json"
    )
    folder = parser.parse_args(given).folder
    print(f"{SENTENCES[0]!r} and {SENTENCES[1]!r}")
    for dtype in ("float32", "float64"):
        found = agreement(folder, dtype)
        print(f"{dtype}: hidden states differ from NumPy's by at most {found.error:.1e}; ", end="")
        print(f"mean-pooled cosine {found.cosine:.6f}, NumPy's {found.reference_cosine:.6f}")
    return 0
