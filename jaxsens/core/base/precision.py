"""Sets the precision of all arithmetic, and defines the sizes up to which it resolves attention scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
from jaxtyping import Bool, Float

DTYPES = ("float32", "float64")

MATMUL_PRECISION = "highest"
"""Precision of every matrix product jaxsens makes.

By default JAX rounds the operands of float32 products to TF32 on recent GPUs and to bfloat16 on TPUs: three or
two significant digits. Such rounding hides the effect of a flip, which is O(1/n)."""


@contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """Sets JAX up for jaxsens: matmul precision `highest`, and 64-bit types if and only if `dtype` is "float64".

    It overrides the caller's JAX settings: with 64-bit types JAX draws other random numbers, and so trains other
    weights; with rank or dtype promotion forbidden, or a mesh set, JAX rejects programs that rely on its defaults; with
    `jit` disabled, it runs no program that was compiled before. All settings are thread-local and restored on exit;
    compiled functions are cached separately for each. While a function is traced the mesh is kept: it belongs to the
    caller's program, and JAX does not let us change it. Do not hold this context while a generator yields: its caller
    would compute in it too.
    """
    import jax

    with ExitStack() as stack:
        stack.enter_context(jax.default_matmul_precision(MATMUL_PRECISION))
        stack.enter_context(jax.enable_x64(dtype == "float64"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.disable_jit(False))
        if not jax.sharding.get_abstract_mesh().empty:
            with suppress(ValueError):  # set_mesh refuses to act while a function is traced
                stack.enter_context(jax.set_mesh(None))  # pyright: ignore[reportArgumentType]
        yield


UNRESOLVED = 1.0
"""A `PrecisionWarning` is issued if the largest score times eps exceeds this.

A score s is rounded by about eps |s|. At 1, rounding alone changes the ratio of two softmax weights by a factor of e,
so it decides between keys with close scores. The weights are still right if one key is far ahead of the others, so
there is no warning below 1. The limit is reached at a score of 8.4e6 in float32 and 4.5e15 in float64."""


LARGEST_SCORE = {"float32": 64.0, "float64": float("inf")}
"""The largest scores, and changes of scores, at which the difference engine stays accurate, by dtype.

A score s is rounded by eps |s|, which is the relative error of its weight: 4e-6 at 64 in float32. Larger scores are
measured in float64. There is no wider type, so float64 has no limit: a forward pass loses the same digits."""

LARGEST_TIED = 1e3
"""The largest scores at which a tie between two keys stays accurate in float64, where the error is eps |s| = 2e-13.

In a forward pass equal keys have bitwise equal scores, so the weights are right for scores of any size. In the
difference engine a score after the flip is s + ds, which is rounded once more, so a tie between a changed key and
another is lost."""


RESOLVED = 0.01
"""A change is resolved if the bound of its rounding is at most this part of it. Others are measured in wider
arithmetic, and those that remain unresolved are said to be."""

SMALLEST = 1e-300
"""Changes below it are taken for 0: a float64 has digits down to 2e-308, and a change is a sum of products of those."""


def resolved(
    values: Float[np.ndarray, "*flips"], resolution: Float[np.ndarray, "*flips"]
) -> Bool[np.ndarray, "*flips"]:
    """Returns which changes are resolved: known to `RESOLVED` of themselves, or below `SMALLEST`."""
    sizes = np.abs(np.asarray(values, np.float64))
    return np.asarray(resolution, np.float64) <= np.maximum(RESOLVED * sizes, SMALLEST)


LOW_PRECISION = ("bfloat16", "float16", "torch.bfloat16", "torch.float16")
