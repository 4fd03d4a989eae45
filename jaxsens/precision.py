"""The precision of all arithmetic, set on purpose, and the sizes up to which it resolves attention scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

DTYPES = ("float32", "float64")

MATMUL_PRECISION = "highest"
"""Precision of every matrix product jaxsens makes.

JAX's default rounds the operands of float32 products to TF32 on recent GPUs and to bfloat16 on TPUs: three or
two significant digits. A flip changes the output by O(1/n), which such rounding drowns."""


@contextmanager
def numerics(dtype: str) -> Iterator[None]:
    """The setting all of jaxsens computes in: matmul precision `highest`, 64-bit types for "float64" and only then.

    Whatever JAX was set to outside has no say: where 64-bit types are allowed JAX draws other random numbers, and so
    trains other weights; where promotion of ranks or dtypes is forbidden, or a mesh is set, programs that rely on JAX's
    defaults are refused. All settings are thread-local and restored on leaving; compiled functions are cached apart for
    each. Inside a function that is being traced a mesh stays: it is part of the caller's program, and JAX lets nobody
    change it there. Never to be held while a generator yields: its caller would compute in it too.
    """
    import jax

    with ExitStack() as stack:
        stack.enter_context(jax.default_matmul_precision(MATMUL_PRECISION))
        stack.enter_context(jax.enable_x64(dtype == "float64"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        if not jax.sharding.get_abstract_mesh().empty:
            with suppress(ValueError):  # set_mesh refuses to act while a function is traced
                stack.enter_context(jax.set_mesh(None))  # pyright: ignore[reportArgumentType]
        yield


UNRESOLVED = 1.0
"""`PrecisionWarning` is due where the largest score times eps is above this.

A score s is rounded by about eps |s|. At 1, rounding alone changes the ratio of two softmax weights by a factor of e:
it chooses between keys that lie close. Where one key is ahead of all others by far more, the weights are right all the
same, so below 1 nothing is said. The score that reaches it is 8.4e6 in float32 and 4.5e15 in float64."""


LARGEST_SCORE = {"float32": 64.0, "float64": float("inf")}
"""Scores, and changes of scores, up to which the difference engine keeps its digits, by dtype.

A score s is rounded by eps |s|, which is the relative error of its weight: 4e-6 at 64 in float32. Larger scores are
measured in float64. No wider type is at hand there, so float64 has no limit: a forward pass loses the same digits."""

LARGEST_TIED = 1e3
"""Scores up to which a tie between two keys keeps its digits in float64, where eps |s| = 2e-13 is lost.

Equal keys have bitwise equal scores in a forward pass, whose weights are then right however large the scores are. In
the difference engine a score after the flip is s + ds, which is rounded once more, so a tie between a moved key and
another is lost."""


@dataclass(frozen=True)
class EngineTolerance:
    """How far an engine may be from the sensitivity in wider arithmetic: |a - b| <= relative |b| + absolute y.

    y is the largest activation of any layer, times the factor by which scores were sharpened.
    """

    relative: float
    absolute: float
    reason: str


SUBTRACTED = {
    "float64": EngineTolerance(1e-9, 1e-14, "two outputs, each rounded some dozen times, are subtracted"),
    "float32": EngineTolerance(1e-4, 1e-5, "two outputs, each rounded some dozen times, are subtracted"),
}
"""Of engines that run the model on the flipped input, by dtype."""
