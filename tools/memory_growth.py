"""What calls with ever new functions, models or lengths leave behind: `python -m tools.memory_growth --kind lambdas`.

Prints the process's memory and memory maps every few calls, and how much each call of the last half added to them. A
process may have 65530 maps; a compiled program has about a dozen.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TOKENS = (0, 1, 2, 1, 0, 2)


def of_lambdas() -> Callable[[int], Any]:
    """Measures a new function of the same shape at each call."""
    import jax.numpy as jnp

    import jaxsens

    table = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    return lambda k: jaxsens.flip_sensitivity(
        lambda tokens: (1.0 + k) * jnp.asarray(table)[tokens].sum(0), TOKENS, 3
    )


def of_scalars() -> Callable[[int], Any]:
    """Measures the same model by a new scalar function at each call."""
    import jaxsens

    model = jaxsens.Transformer(_config(), seed=0)
    return lambda k: jaxsens.flip_sensitivity(
        model, TOKENS, measure=jaxsens.Function(lambda y: (1.0 + k) * y[0])
    )


def of_models() -> Callable[[int], Any]:
    """Measures a transformer of a new size at each call."""
    import jaxsens

    return lambda k: jaxsens.flip_sensitivity(jaxsens.Transformer(_config(1 + k), seed=k), TOKENS)


def of_lengths() -> Callable[[int], Any]:
    """Measures the same transformer on a new length at each call."""
    import jaxsens

    model = jaxsens.Transformer(_config(), seed=0)
    return lambda k: jaxsens.flip_sensitivity(model, np.arange(4 + k) % 3)


KINDS = {"lambdas": of_lambdas, "scalars": of_scalars, "models": of_models, "lengths": of_lengths}


def _config(feed_forward: int = 4) -> Any:
    import jaxsens

    return jaxsens.TransformerConfig(3, width=4, heads=1, layers=1, feed_forward=feed_forward)


def megabytes() -> float:
    """The resident memory of this process."""
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 1e6
    )


def maps() -> int:
    """The number of this process's memory maps."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("\n")


def main() -> int:
    """Makes the calls and prints what they left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--kind", choices=KINDS, default="lambdas")
    given = parser.parse_args()
    call, began, seen = KINDS[given.kind](), time.monotonic(), []
    for k in range(given.calls):
        call(k)
        if (k + 1) % max(1, given.calls // 20) == 0:
            gc.collect()
            seen.append((k + 1, megabytes(), maps()))
            seconds = time.monotonic() - began
            print(
                f"{k + 1:5d} calls  {seen[-1][1]:8.1f} MB  {seen[-1][2]:6d} maps  {seconds:7.1f} s",
                flush=True,
            )
    half = [one for one in seen if one[0] >= given.calls / 2]
    calls = max(1, half[-1][0] - half[0][0])
    more = [(last - first) / calls for first, last in zip(half[0][1:], half[-1][1:], strict=True)]
    print(f"{given.kind}: each of the last {calls} calls added {more[0]:.3f} MB and {more[1]:.2f} maps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
