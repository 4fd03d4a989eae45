"""The certified bound without Lemma 5, and Lemma 5 with its constants: which is smaller, and how each falls with n.

`python -m tools.both_bounds [--lengths 32 64 128 256] [--seeds 3]` prints the cases of docs/measured/bounds.md.
Random models of two heads and width 6, whose queries and values are multiplied by a number.
"""

from __future__ import annotations

import argparse
import math
from unittest import mock

import numpy as np

from jaxsens.theory.certified import bound
from jaxsens.theory.lemma5 import lemma5
from tests.theory.certified_truth import scaled_model

SCALES = (0.01, 0.03, 0.1, 0.3, 1.0)


def slope(lengths: list[int], values: np.ndarray) -> str:
    """The exponents over n by seed, as their range; a dash if a bound is 0 or infinite."""
    if not (np.isfinite(values) & (values > -np.inf)).all():
        return "—"
    found = [np.polyfit(np.log(lengths), of_seed, 1)[0] for of_seed in values]
    return f"{min(found):.2f} to {max(found):.2f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 64, 128, 256])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--norms", nargs="*", default=["none", "pre", "post"])
    asked = parser.parse_args()
    print("| depth | normalisation | scale | certified | slope | Lemma 5 | slope | closed form | smaller |")
    print("|---|---|---|---|---|---|---|---|---|")
    for layers in (1, 2, 3):
        for norm in asked.norms:
            for scale in SCALES:
                own, lemma, closed = np.zeros((3, asked.seeds, len(asked.lengths)))
                for seed in range(asked.seeds):
                    model = scaled_model(
                        seed, scale, scale, layers=layers, layer_norm=norm, positions="sinusoidal"
                    )
                    for k, n in enumerate(asked.lengths):
                        with mock.patch.object(bound, "_of_lemma5", return_value=math.inf):
                            value = bound.certified_bound(model, n, classes=1).value
                        found = lemma5(model, n)
                        own[seed, k], lemma[seed, k] = np.log(value), found.log_bound
                        closed[seed, k] = found.log_closed_form
                last = [f"{math.exp(min(float(np.median(x[:, -1])), 700)):.2g}" for x in (own, lemma, closed)]
                wins = int((own < lemma).sum())
                share = f"certified in {wins} of {own.size}"
                cells = (last[0], slope(asked.lengths, own), last[1], slope(asked.lengths, lemma), last[2])
                print(f"| {layers} | {norm} | {scale} | {' | '.join(cells)} | {share} |", flush=True)


if __name__ == "__main__":
    main()
