"""A process of its own, run as `python auto_worker.py ENGINE L N`: one measurement for each line it reads.

Nothing but jaxsens's public functions is used and no setting made, so that any checkout on PYTHONPATH can be timed.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import jaxsens


def main() -> None:
    """Reads how many flips to measure (0: all), prints the seconds, which engine ran, and from where."""
    engine, layers, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    config = jaxsens.TransformerConfig(alphabet_size=2, width=64, heads=4, layers=layers, feed_forward=256)
    model = jaxsens.Transformer(config, seed=0)
    word = np.random.default_rng([n]).integers(0, 2, size=n)
    word[-1] = 2
    for calls, line in enumerate(sys.stdin):
        flips, by = jaxsens.Substitute(sample=int(line) or None), engine
        if engine == "auto" and flips.sample:  # what it would take for all flips
            by = jaxsens.explain(model, n, engine=jaxsens.Auto(1000 if calls else 1)).engine.name
        began = time.perf_counter()
        result = jaxsens.flip_sensitivity(model, word, flips, engine=by)
        seconds = time.perf_counter() - began
        print(
            json.dumps({"seconds": seconds, "engine": result.engine.name, "from": jaxsens.__file__}),
            flush=True,
        )


if __name__ == "__main__":
    main()
