"""A process of its own, run as `python first_call_worker.py ENGINE L N`: one first call, and what it compiled.

Nothing but jaxsens's public functions is used and no setting made, so that any checkout on PYTHONPATH can be timed.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np

import jaxsens

_COMPILED = "/jax/core/compile/backend_compile_duration"


def main() -> None:
    """Prints the programs, the seconds that XLA took for them, the seconds of the call, and which jaxsens it was."""
    engine, layers, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    config = jaxsens.TransformerConfig(alphabet_size=2, width=64, heads=4, layers=layers, feed_forward=256)
    model = jaxsens.Transformer(config, seed=0)
    word = np.random.default_rng([n]).integers(0, 2, size=n)
    word[-1] = 2
    compiled: list[float] = []

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    jaxsens.flip_sensitivity(model, word, engine=engine, progress=False)
    seconds = time.perf_counter() - began
    told = {"programs": len(compiled), "xla": sum(compiled), "seconds": seconds, "from": jaxsens.__file__}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
