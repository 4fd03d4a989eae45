"""Compiled programs: their arithmetic, the platforms that they are compiled for, and how long they are kept.

What is chosen by the platform is a row of one table. Engines and models read the row that they are given. They name no
platform.

`functools.lru_cache`, and `jax.jit` with static arguments, hold what they were called with: a user's function, all that
it closes over, and its programs, each with a dozen memory maps, of which a process may have 65530. Here a function is
held weakly. What was made for it goes when it goes, and at most `LARGEST` results are kept of each kind.
"""

from __future__ import annotations

import os
import platform as machine
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial, wraps
from importlib.metadata import version
from types import MethodType, NoneType
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh
from jaxtyping import Bool, Float

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError

# Platforms


@dataclass(frozen=True)
class Platform:
    """The choices for one kind of device. Results depend on them only by rounding.

    Attributes:
        name: JAX's name of the platform.
        memory: the default budget: bytes of temporary memory on each device, for all threads together.
        float64: whether the device computes in float64; otherwise the host does what needs its digits.
        rate: float32 operations per second of a large matrix product on the device that stands for the platform.
        wide_rate, host_rate: the same in float64, of the device and of its host; of the host twice where the device
            does not compute in float64.
        compiling: how many times as long as on the reference machine, two cores, programs take to compile.
        threads: whether a single device is kept busy by one thread for each core, and not by XLA itself.
        batches: the least number of batches into which the flips of a single device are divided, so that results do not
            depend on the number of cores.
        forward_symbols: the symbols of a batch of forward passes.
        difference_symbols, difference_flips: the most symbols, and flips, of a batch of the difference engine.
        folded_flips: the flips of a batch of its folded form.
        estimated_flips: the flips of a batch of first-order estimates.
        cached_scores: soft attention with more scores goes by one head and some rows at a time; None if it never does.
        mapped_numbers: maps of single rows are computed for so many numbers at a time; None for all rows.
    """

    name: str
    memory: int
    float64: bool
    rate: float
    wide_rate: float
    compiling: float
    threads: bool
    batches: int
    forward_symbols: int
    difference_symbols: int
    difference_flips: int
    folded_flips: int
    estimated_flips: int
    cached_scores: int | None
    mapped_numbers: int | None = None
    host_rate: float = 5e10

    def mapped_rows(self, width: int) -> int | None:
        """Returns how many rows of a width are mapped at a time; None for all."""
        return None if self.mapped_numbers is None else max(1, self.mapped_numbers // width)

    def budget_beside(self, arguments: int, memory: int) -> int:
        """Returns the default budget of devices with so many bytes of memory: what all flips share, and `memory` of
        this row beside it."""
        return min(arguments + self.memory, memory)


# An accelerator needs large products, and its budget is what the smallest that is in use can spare. The scores of
# 128 flips of 1024 symbols keep it busy; of eight times as many the program is compiled twice, for want of memory.
_GPU = Platform(
    "gpu",
    memory=2**33,
    float64=True,
    # What an H200 reached, a third of its data sheet, and its first calls: benchmarks/README.md.
    rate=2e13,
    wide_rate=1e13,
    compiling=1.4,
    threads=False,
    batches=1,
    forward_symbols=2**17,
    difference_symbols=2**22,
    difference_flips=2**22,
    folded_flips=2**12,
    estimated_flips=2**12,
    cached_scores=None,
)


class _Platforms(dict[str, Platform]):
    def __missing__(self, name: str) -> Platform:
        raise InputError(
            f"platform {name!r}: jaxsens computes on {', '.join(self)}; set JAX_PLATFORMS to one of them"
        )


PLATFORMS = _Platforms(
    # A batch stays in the cache of a core: larger ones of forward passes take up to twice as long, and products with
    # scores that go through memory up to four times as long.
    cpu=Platform(
        "cpu",
        memory=2**31,
        float64=True,
        rate=1e11,
        wide_rate=5e10,
        compiling=1.0,
        threads=True,
        batches=16,
        forward_symbols=2**8,
        difference_symbols=2**14,
        difference_flips=8,
        folded_flips=32,
        estimated_flips=256,
        cached_scores=2**18,
    ),
    gpu=_GPU,
    # XLA emulates float64 on a TPU by pairs of float32, with fewer digits and the range of float32.
    # It makes six products in bfloat16 of one in float32, and unrolls each over its tiles: a program for 2**17 rows
    # of 64 numbers took up to 30 times as long to compile for a v6e as one for 2**12, which fill its units as well.
    tpu=replace(
        _GPU,
        name="tpu",
        float64=False,
        # A third of a v5e's data sheet, not measured; programs compiled for a v5e took 14 to 32 times as long.
        rate=1e13,
        wide_rate=5e10,
        compiling=25.0,
        memory=12 * 2**30,  # of 16 GiB of a v5e: narrow arrays take up to eight times their size on a TPU
        forward_symbols=2**10,
        difference_symbols=2**13,
        difference_flips=2**8,
        folded_flips=2**7,
        estimated_flips=2**7,
        cached_scores=2**18,
        mapped_numbers=2**18,
    ),
)
"""The rows. A platform without one is refused by name."""

compiling_for = jax.make_user_context(None)
"""In a block `with compiling_for(platform.name)`, programs are traced for devices of this platform, which need not be
there. JAX caches what it traces separately for each."""


def platform_of(mesh: Mesh) -> Platform:
    """Returns the row of the platform of a mesh's devices."""
    return PLATFORMS[mesh.devices.flat[0].platform]


def compiled_for() -> Platform:
    """Returns the platform that programs are traced for: that of `compiling_for`, otherwise JAX's default one."""
    return PLATFORMS[compiling_for.value or jax.default_backend()]


def automatic(mesh: Mesh) -> Mesh:
    """Returns a mesh of the same devices on whose axes XLA places arrays, whatever the user's mesh says of them."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def host_mesh() -> Mesh:
    """Returns the mesh of this process's CPU.

    Raises:
        InputError: if JAX was told to leave it out.
    """
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        remedy = 'what needs float64 is computed on the host; add cpu, as "tpu,cpu"'
        raise InputError.of("JAX_PLATFORMS", os.environ.get("JAX_PLATFORMS"), remedy) from error
    return Mesh(np.array([device]), ("flips",), axis_types=(AxisType.Auto,))


@contextmanager
def on_host() -> Iterator[Mesh]:
    """Computes on this process's CPU, and traces for it; yields its mesh. Raises as `host_mesh` does."""
    mesh = host_mesh()
    with jax.default_device(mesh.devices.flat[0]), compiling_for("cpu"):
        yield mesh


def versions() -> dict[str, str]:
    """Returns the versions of jaxsens, jax, jaxlib, flax, numpy and Python, and the kind of device."""
    device = jax.local_devices()[0]
    return {**_VERSIONS, "device": ": ".join(dict.fromkeys((device.platform, device.device_kind)))}


_VERSIONS = {name: version(name) for name in ("jaxsens", "jax", "jaxlib", "flax", "numpy")}
_VERSIONS["python"] = machine.python_version()


# Arithmetic

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


# Programs

LARGEST = 64
"""The number of results that each function decorated here keeps. Beyond it, the one used longest ago goes."""

_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
_KNOWN: dict[str, dict[str, Any]] = {
    "0.10": {"xla_cpu_use_fusion_emitters": False} | _CUBLAS,
    "0.11": _CUBLAS,
}

SOONER: Any = _KNOWN.get(".".join(jax.__version__.split(".")[:2]))
"""Options of XLA under which a program is compiled in about two thirds of the time on CPUs and, on GPUs, in a tenth to
two fifths of it: XLA otherwise tries many kernels for each matrix product (measured: benchmarks/README.md). Those of
another platform do nothing. XLA refuses options that it does not know, so versions of jax that were not tried compile
by their defaults. Only for programs that no other program calls."""

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


def cached(make: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
    """Makes a function of hashable positional arguments keep its results, as `functools.lru_cache` does.

    Nothing is kept of NumPy's arrays, which may change. Its results must not hold the functions and JAX's arrays among
    its arguments: these would never go.
    """
    entries: dict[Hashable, _Entry] = {}
    lock = threading.RLock()

    # An object may die, and so an entry go, between any two operations: each of them allows for that.
    def forget(key: Hashable, dead: Any, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        del dead
        if not ending():  # as the interpreter ends, the classes of the keys are gone and none can be compared
            entries.pop(key, None)

    @wraps(make)
    def call(*args: *Arguments) -> Result:
        if any(isinstance(one, np.ndarray) for one in args):
            return make(*args)
        mortal: list[Any] = []
        key = tuple(_weakly(one, mortal) for one in args)
        with lock:
            entry = entries.pop(key, None) or _Entry()
            entries[key] = entry  # the last is the one used last
            for oldest in [*entries][:-LARGEST]:
                entries.pop(oldest, None)
        with entry.lock:  # of several threads that need one result, one makes it
            if entry.mortal is None:
                try:
                    entry.result = make(*args)
                except BaseException:
                    forget(key, None)
                    raise
                entry.mortal = [weakref.ref(one, partial(forget, key)) for one in mortal]
        return entry.result

    return call


@dataclass
class _Entry:
    """A result, once it is made, and references to the mortal objects of its key. With the first of them that dies, the
    result goes."""

    lock: Any = field(default_factory=threading.RLock)
    mortal: list[Any] | None = None
    result: Any = None


def compiled(
    static: int, options: Any = SOONER
) -> Callable[[Callable[[*Arguments], Result]], Callable[[*Arguments], Result]]:
    """Compiles a function with `jax.jit`, whose first `static` arguments are hashable, and the others trees of arrays.

    There is a program for each set of static arguments, shapes and dtypes. The programs do not hold static arguments,
    which are at hand while one is traced. O(leaves) per call.
    """

    def decorate(function: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
        program_of = cached(lambda *key: _Program(function, options))

        @wraps(function)
        def run(*args: *Arguments) -> Result:
            leaves, structure = jax.tree.flatten(args[static:])
            shapes = Shapes(
                (getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves
            )
            program = program_of(*args[:static], structure, shapes)
            before, program.at_hand.static = getattr(program.at_hand, "static", None), args[:static]
            try:
                if any(isinstance(leaf, Tracer) for leaf in leaves):
                    return program.inner(*args[static:])
                with nullcontext() if program.ran else stopping.compiling():
                    result = program.compiled(*args[static:])
                program.ran = True
                return result
            finally:
                program.at_hand.static = before

        return run

    return decorate


class _Program:
    """A program of arrays, which knows the static arguments only while it is called."""

    def __init__(self, function: Callable[..., Any], options: Any) -> None:
        self.at_hand, self.ran = threading.local(), False

        def traced(*arrays: Any) -> Any:
            return function(*self.at_hand.static, *arrays)

        traced.__name__ = function.__name__  # what profiles call it
        self.compiled, self.inner = jax.jit(traced, compiler_options=options), jax.jit(traced)


class Shapes(tuple[Any, ...]):
    """Shapes and dtypes in the key of a program. They refer to nothing mortal, so `cached` does not look into them."""

    __slots__ = ()


def program_key(parameters: Any, n: int) -> tuple[Any, Shapes, int, bool]:
    """Returns what a program of a model depends on besides its function; last, whether 64-bit types are on."""
    leaves, structure = jax.tree.flatten(parameters)
    dtypes = (leaf.dtype if _is_narrow(leaf) else jnp.result_type(leaf) for leaf in leaves)
    shapes = Shapes((getattr(leaf, "shape", ()), dtype) for leaf, dtype in zip(leaves, dtypes, strict=True))
    return structure, shapes, n, jnp.result_type(float) == jnp.float64


def as_arrays(tree: Any) -> Any:
    """Returns a tree with JAX's arrays in place of NumPy's and of numbers."""
    return jax.tree.map(lambda leaf: leaf if _is_narrow(leaf) else jnp.asarray(leaf), tree)


def _is_narrow(leaf: Any) -> bool:
    """Returns whether an array is JAX's with numbers that have their dtype in every mode. To ask JAX takes long."""
    return isinstance(leaf, jax.Array) and leaf.dtype.itemsize <= 4


def abstract_of(structure: Any, shapes: tuple[Any, ...]) -> Any:
    """Returns the parameters of a `program_key`, without numbers."""
    return jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*one) for one in shapes])


def room_for(count: int) -> int:
    """Returns the least power of two of at least `count`: programs with such room are few and serve all numbers."""
    return 1 << (count - 1).bit_length()


def near(count: int) -> int:
    """Returns the least number of at least `count` with four leading binary digits, at most an eighth more."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step


def power_within(count: float) -> int:
    """Returns the largest power of two of at most `count`, or 1."""
    return 1 << (max(1, int(count)).bit_length() - 1)


def _weakly(argument: Any, mortal: list[Any]) -> Hashable:
    """Returns a key that is equal for equal arguments and holds no function; adds the objects that it refers to.

    These are all that are equal to themselves alone: functions, objects of classes without equality, and JAX's arrays,
    which do not change. Objects of jaxsens, which may hold functions, are taken apart once: they keep their keys.
    """
    kind = type(argument)
    if kind in (int, str, bool, NoneType):
        return argument
    if isinstance(argument, jax.Array):
        mortal.append(argument)
        return kind, id(argument)  # two references would be compared by the numbers
    if kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__ and kind.__weakrefoffset__:
        mortal.append(argument)
        return weakref.ref(argument)
    if kind is MethodType and type(argument.__self__).__eq__ is object.__eq__:
        return kind, _weakly(argument.__self__, mortal), _weakly(argument.__func__, mortal)
    if kind is tuple:
        return tuple(_weakly(one, mortal) for one in argument)
    if not (kind.__module__.startswith("jaxsens.") and is_dataclass(kind)):
        return argument
    known: _Key | None = vars(argument).get(_KEY)
    if known is None:
        mine: list[Any] = []
        values = (getattr(argument, one.name) for one in fields(argument) if one.compare)
        known = _Key((kind, *(_weakly(one, mine) for one in values)), mine)
        if kind.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
            vars(argument)[_KEY] = known
    mortal.extend(known.mortal)
    return known.key


class _Key(NamedTuple):
    """What stands for an object in the keys of programs, and what that refers to. An object keeps its own."""

    key: Hashable
    mortal: list[Any]

    def __reduce__(self) -> tuple[Any, ...]:  # copies make their own: references cannot be pickled
        return type(None), ()


_KEY = "_key_of_programs"
