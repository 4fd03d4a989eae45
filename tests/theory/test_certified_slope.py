"""The certified bound falls like 1/n for soft attention over bounded embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsens.core.models.parts.positions import Sinusoidal
from jaxsens.theory.certified.bound import certified_bound
from tests.theory.certified_truth import scaled_model

# A short longest period: all positions that there are have been seen at n = 100, and only the length grows.
SETTLED = {"positions": Sinusoidal(base=50.0), "readout": 0, "layer_norm": "none"}


def slope(lengths: list[int], **changes) -> float:
    values = [certified_bound(scaled_model(0, **SETTLED, **changes), n, classes=1).value for n in lengths]
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("heads", [1, 2])
def test_one_layer_falls_like_1_over_n(heads):
    assert slope([512, 1024, 2048, 4096], layers=1, heads=heads, queries=0.3) == pytest.approx(-1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "queries", "values", "lengths", "apart"),
    [(2, 0.01, 0.03, [128, 256, 512], 0.05), (3, 0.001, 0.01, [256, 512], 0.1)],
)
def test_deeper_models_fall_like_1_over_n(layers, queries, values, lengths, apart):
    # Scores and values small enough that the bound lies below the diameter at these lengths.
    found = slope(lengths, layers=layers, queries=queries, values=values)
    assert found == pytest.approx(-1, abs=apart)
