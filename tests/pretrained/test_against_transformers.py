"""Every family and option beside the transformers library, on tiny random models that it saves."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsens.pretrained.load import load_pretrained

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.pretrained.oracle import CASES, ids_of, reference, save

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def errors(case, folder, dtype):
    """The largest differences of hidden states and logits, relative to the largest entries if above 1."""
    found = []
    for output, wanted in zip(("hidden", "logits"), reference(case, folder, dtype), strict=True):
        ours = np.asarray(load_pretrained(folder, output=output, dtype=dtype)(ids_of(case)))
        assert ours.shape == wanted.shape
        assert str(ours.dtype) == str(wanted.dtype) == dtype
        found.append(float(np.abs(ours - wanted).max() / max(1.0, np.abs(wanted).max())))
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hidden_states_and_logits_are_those_of_transformers(case, tmp_path):
    save(case, tmp_path)
    for dtype, tolerance in TOLERANCE.items():
        hidden, logits = errors(case, tmp_path, dtype)
        assert max(hidden, logits) <= tolerance, (dtype, hidden, logits)
