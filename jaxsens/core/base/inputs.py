"""Checks for common arguments: lengths, seeds, tokens, positions, symbols and so on.

Each function takes an argument as the user gave it. It adds errors, with the value and the remedy, to `problems`, and
returns the argument in the form that jaxsens computes with: Python numbers and NumPy arrays. NumPy numbers are accepted
as numbers; True and False are not.

For an unusable argument the functions return a stand-in (0, or an empty array or mapping), so that later arguments are
still checked and all errors are raised together. A length of 0 means "unknown": nothing is checked against it. Call
`problems.raise_if_any()` before using any of the values.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import FLIP_BYTES, TOKEN_BYTES, Problems, check_fits, collecting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NORMS = ("l2", "l1", "linf")
"""The norms in which changes are measured."""

LARGEST_ID = 2**31 - 1
"""The largest id. Models read ids as 32-bit integers, so larger ones would wrap around: 2**40 + 1 to 1."""

SHORTER = "give a shorter input, or fewer at once"
"""The remedy if inputs do not fit in this machine's memory."""

LARGEST_COUNT = 2**63 - 1
"""The largest count: sizes are multiplied and told, but what no array can index is refused as it is."""

MOST_LAYERS = 4096
"""The largest number of layers of a network: each is a part of the program that is compiled."""

UNMASKED = "no masked entries: fill them in, .filled(symbol), or leave them out, .compressed()"
"""The remedy for a masked array."""

FEWER_FLIPS = (
    "insert fewer symbols, flip fewer positions, or draw a sample: flips=jaxsens.Substitute(sample=1000)"
)
"""The remedy if the flips do not fit in this machine's memory."""

# Kinds of values


def is_integer(value: object) -> TypeGuard[Integral]:
    """Returns whether a value is a whole number of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_count(value: object, least: int = 0) -> bool:
    """Returns whether a value is a whole number of at least `least`."""
    return is_integer(value) and int(value) >= least


def is_real(value: object) -> bool:
    """Returns whether a value is a real number that a float can hold, including infinity and NaN."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:  # a whole number of over 300 digits
        return False
    return True


def is_masked(value: object) -> bool:
    """Returns whether a value is an array with masked entries, or a list of some, which NumPy would read regardless."""
    if isinstance(value, list | tuple):
        return any(isinstance(one, np.ma.MaskedArray) and is_masked(one) for one in value)
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def plain_numbers(value: Any) -> Any:
    """Converts NumPy integers to Python's, also in tuples and lists; returns anything else unchanged."""
    if isinstance(value, tuple | list):
        # A namedtuple takes separate arguments, and is not a list of numbers.
        return type(value)(map(plain_numbers, value)) if type(value) in (tuple, list) else value
    return int(value) if is_integer(value) else value


def keep_plain(config: object, *fields: str) -> None:
    """Converts integers in fields of a frozen dataclass to Python's, which compare, print and serialise alike."""
    for name in fields:
        object.__setattr__(config, name, plain_numbers(getattr(config, name)))


def array_of(value: object) -> np.ndarray:
    """Converts the value to an array. A value that cannot be converted (lists of unequal length, a tensor on another
    device) becomes an empty object array, which no check accepts."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        return np.zeros(0, object)


def whole_numbers(value: object) -> np.ndarray | None:
    """The value as an array of whole numbers, or None if it is not one.

    Python's numbers in an array of objects (a nullable column of pandas, a number beyond 64 bits) count. A number
    beyond 64 bits becomes the end of that range, which no check of ids accepts. An array with masked entries is none.
    """
    if is_masked(value):
        return None
    array = array_of(value)
    if array.dtype.kind == "f" and isinstance(value, list | tuple):
        array = np.array(value, object)  # NumPy turns a list that holds 2**63 into floats
    if array.dtype == object and array.size and all(map(is_integer, array.flat)):
        ends = np.iinfo(np.int64)
        cut = [min(max(int(one), ends.min), ends.max) for one in array.flat]
        array = np.array(cut, np.int64).reshape(array.shape)
    return array if np.issubdtype(array.dtype, np.integer) else None


# Numbers and names


UNPAIRED = "half of an emoji or other character (a lone surrogate), or bytes that are not UTF-8; give whole characters"
"""What is wrong with a text that is not `is_unicode`."""


def is_unicode(text: str) -> bool:
    """Returns whether UTF-8 can write a text: not with a lone surrogate, which JSON and command lines may have."""
    return not re.search("[\ud800-\udfff]", text)


def count(
    name: str, value: Any, problems: Problems, least: int = 0, most: float = LARGEST_COUNT, end: str = ""
) -> int:
    """A whole number of at least `least` and at most `most`. `end` says what else is accepted."""
    if is_integer(value) and least <= int(value) <= most:
        return int(value)
    problems.add(name, value, count_wanted(value, least, most) + end)
    return 0


def optional_count(name: str, value: Any, problems: Problems, least: int = 1) -> int | None:
    """A whole number of at least `least`, or None."""
    return None if value is None else count(name, value, problems, least, end=", or None")


def count_wanted(value: object, least: int, most: float = LARGEST_COUNT) -> str:
    """Returns what a count may be, in words; the largest one only for a value beyond it."""
    text = f"a whole number of at least {least}"
    return f"{text} and at most {most}" if is_count(value, least) else text


def length(value: Any, problems: Problems, least: int = 1) -> int:
    """n, the number of symbols of an input."""
    return count("n", value, problems, least)


def seed(value: Any, problems: Problems) -> int:
    """A seed of random numbers, of any size."""
    return count("seed", value, problems, most=math.inf)


def number(
    name: str,
    value: Any,
    problems: Problems,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """A real number within limits: greater than `above`, at least `least`, less than `below`, at most `most`."""
    limits = (("above", gt, above), ("of at least", ge, least), ("below", lt, below), ("at most", le, most))
    if is_real(value) and all(limit is None or holds(value, limit) for _, holds, limit in limits):
        return float(value)
    bounds = [f"{word} {limit}" for word, _, limit in limits if limit is not None and limit < math.inf]
    problems.add(name, value, f"a number {' and '.join(bounds)}")
    return 0.0


def choice(name: str, value: Any, options: Collection[Any], problems: Problems) -> Any:
    """One of a few names (or None, True and False, which are compared by identity)."""
    if not any(value is one or (isinstance(value, str) and value == one) for one in options):
        text = ", ".join(one if isinstance(one, str) else repr(one) for one in options)
        problems.add(name, value, f"one of {text}")
    return value


def generator(value: Any, problems: Problems) -> None:
    """Adds an error if the value is not a NumPy random generator."""
    if not isinstance(value, np.random.Generator):
        problems.add("generator", value, "give numpy.random.default_rng(seed)")


def checked_count(function: str, **values: Any) -> int:
    """Checks that all values are whole numbers of at least 0, raises their errors, and returns the first."""
    with collecting(function) as problems:
        counts = [count(name, value, problems) for name, value in values.items()]
    return counts[0]


def checked_number(function: str, **values: Any) -> float:
    """Checks that all values are numbers within the limits of `number`, raises their errors, and returns the first. The
    limits stand among the values: above=0, gap=gap."""
    limits = {name: values.pop(name) for name in ("above", "least", "below", "most") if name in values}
    with collecting(function) as problems:
        numbers = [number(name, value, problems, **limits) for name, value in values.items()]
    return numbers[0]


def progress(value: object, arguments: int, wanted: str, problems: Problems, *, bar: bool = True) -> None:
    """Adds an error if the value is neither None, a function of this number of arguments, nor, with `bar`, a Boolean.

    `wanted` completes "a function that is called with ...".
    """
    silent = value is None or (bar and isinstance(value, bool))
    if not silent and not (callable(value) and not isinstance(value, type) and takes(value, arguments)):
        problems.add("progress", value, f"a function that is called with {wanted}")


def axes(value: Any, inches: tuple[float, float]) -> Axes:
    """Returns the axes of a method `plot`, or new ones of `matplotlib.pyplot`. Raises InputError for anything else."""
    if value is None:
        from matplotlib import pyplot

        return pyplot.subplots(figsize=inches, layout="constrained")[1]
    from matplotlib.axes import Axes

    with collecting("plot") as problems:
        if not isinstance(value, Axes):
            problems.add("axes", value, "matplotlib Axes, or None for new ones")
    return value


def takes(function: Any, arguments: int) -> bool:
    """Returns whether a callable accepts this number of arguments. True if it has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


# Ids of symbols, positions and outputs


def check_ids(name: str, ids: np.ndarray, vocabulary: int | None, problems: Problems) -> None:
    """Adds errors for ids that are negative, outside the model's vocabulary, or too large for 32 bits.

    `vocabulary` is the number of symbols that the model reads, or None if unknown.
    """
    least, largest = int(ids.min()), int(ids.max())
    if least < 0:
        problems.add(name, least, "ids of at least 0")
    if vocabulary is not None and largest >= vocabulary:
        problems.add(name, largest, f"the model reads ids 0 to {vocabulary - 1}")
    elif largest > LARGEST_ID:
        problems.add(name, largest, f"ids of at most {LARGEST_ID}: models read them as 32-bit integers")


def tokens(
    value: Any, vocabulary: int | None, problems: Problems, *, one: bool = False
) -> Int[np.ndarray, "batch n"]:
    """Returns inputs (batch, n) as int32; one input (n,) becomes a batch of one. With `one`, only (n,) is accepted.

    The stand-in has shape (0, 0).
    """
    ids = whole_numbers(value)
    if ids is None or ids.size == 0 or ids.ndim not in ((1,) if one else (1, 2)):
        problems.add("tokens", *_instead_of(value, ids, one, problems.subject))
    elif check_fits(
        "tokens", f"shape {ids.shape}", ids.size * TOKEN_BYTES, "a measurement of them", SHORTER, problems
    ):
        check_ids("tokens", ids, vocabulary, problems)
        return ids.reshape(-1, ids.shape[-1]).astype(np.int32)
    return np.zeros((0, 0), np.int32)


def _instead_of(value: Any, ids: np.ndarray | None, one: bool, function: str) -> tuple[Any, str]:
    """Returns how to write a value that is no inputs, and what to give to the function instead."""
    from jax.core import Tracer

    array = array_of(value)
    if isinstance(value, Tracer):
        return value, "known values: call this outside jit, vmap and grad; it compiles what it runs"
    if is_masked(value):
        return value, UNMASKED
    if array.size and isinstance(array.flat[0], str):
        remedy = "ids, not text, as [int(symbol) for symbol in word]; a model that encodes text takes one, or a list"
        return value, remedy
    if ids is None and array.dtype == object:
        rows = [whole_numbers(row) for row in value] if isinstance(value, list | tuple) and not one else []
        if rows and all(row is not None and row.ndim == 1 for row in rows):
            lengths = ", ".join(map(str, sorted({row.size for row in rows if row is not None})))
            return value, f"ids of one length, not of {lengths}: [{function}(model, one) for one in tokens]"
        shape = "shape (n,)" + ("" if one else " or (batch, n), all inputs of one length")
        return value, f"whole numbers of {shape}; turn an iterator or a set into a list"
    if is_one_hot(array, ids):
        return _summary(array), "one-hot rows: give the symbols' ids, tokens.argmax(-1)"
    if array.size == 0 or array.ndim not in ((1,) if one else (1, 2)):
        only = "shape (n,), one input of at least one symbol"
        return f"shape {array.shape}", only if one else "shape (n,) or (batch, n), neither of them 0"
    return _summary(array), "whole numbers, the symbols' ids: tokens.astype(int)"


def is_one_hot(array: np.ndarray, ids: np.ndarray | None) -> bool:
    """Returns whether an array has a 1 and zeros along its last axis. Whole numbers (batch, n) are inputs even so."""
    if not array.size or array.dtype.kind not in "biuf" or array.ndim < (2 if ids is None else 3):
        return False
    ones = array == 1
    return bool(np.all(ones | (array == 0)) and np.all(np.sum(ones, axis=-1) == 1))


def _summary(array: np.ndarray) -> str:
    """Returns an array's dtype, shape and first values."""
    more = ", ..." if array.size > 4 else ""
    return f"{array.dtype}, shape {array.shape}: {', '.join(map(str, array.ravel()[:4].tolist()))}{more}"


def words(
    value: Any, alphabet: Sequence[str], problems: Problems, name: str = "tokens"
) -> Int[np.ndarray, "*batch n"]:
    """Returns words over a named alphabet as int64, with the last axis along the word; words may be empty."""
    ids = whole_numbers(value)
    if is_masked(value):
        problems.add(name, value, UNMASKED)
    elif ids is None or ids.ndim == 0:
        array = array_of(value)
        what = f"{array.dtype}, shape {array.shape}"
        problems.add(name, what, "whole numbers, the last axis along the word")
    elif ids.size and (ids.min() < 0 or ids.max() >= len(alphabet)):
        alphabet_text = ", ".join(f"{i} {one!r}" for i, one in enumerate(alphabet))
        ends = (int(ids.min()), int(ids.max()))
        problems.add(f"{name}' least and largest", ends, f"symbols of the alphabet: {alphabet_text}")
    else:
        return ids.astype(np.int64, copy=False)  # differences of unsigned numbers would wrap around
    return np.zeros(0, np.int64)


def symbols(
    value: object, vocabulary: int | None, problems: Problems, *, least: int = 1, name: str = "symbols"
) -> Int[np.ndarray, " symbols"]:
    """Returns the ids of at least `least` different symbols, in the order given, without duplicates."""
    ids = whole_numbers(value)
    if ids is None or ids.ndim != 1 or len(np.unique(ids)) < least:
        some = "at least one symbol id" if least == 1 else f"at least {least} different symbol ids"
        hint = f": {name}=[{ids}]" if ids is not None and ids.ndim == 0 else ""
        problems.add(name, value, f"{some}, in a sequence{hint}")
        return np.zeros(0, int)
    check_ids(name, ids, vocabulary, problems)
    return np.array(list(dict.fromkeys(ids.tolist())), int)


def alphabet(size: int | None, own: int | None, problems: Problems) -> Int[np.ndarray, " symbols"]:
    """Returns the symbols that flips may insert: 0 .. size - 1.

    Args:
        size: the user's, checked by itself; None for the model's own.
        own: the size of the model's alphabet, or None if unknown.
        problems: collects the errors.
    """
    if size is not None and own is not None and size > own:
        problems.add("flips", size, f"the model's alphabet has {own} symbols")
        return np.zeros(0, int)
    size = own if size is None else size
    if size is None:
        remedy = "say which symbols flips may insert: flips=2 for 0 and 1, or flips=[3, 4]"
        problems.add("flips", None, remedy)
    elif check_fits("flips", size, size * FLIP_BYTES, "the flips of one position", FEWER_FLIPS, problems):
        return np.arange(size)
    return np.zeros(0, int)


def outputs(value: Any, size: int | None, problems: Problems) -> tuple[int, ...] | None:
    """Returns 0-based coordinates of an output of `size` numbers, in the order given; None for all (or "all").

    `size` is None if it is not yet known.
    """
    if value is None or (isinstance(value, str) and value == "all"):
        return None
    array = whole_numbers(value)
    flat = array is not None and array.ndim == 1 and array.size
    if array is None or not flat or array.min() < 0 or (size and array.max() >= size):
        remedy = f"a sequence of 0-based output coordinates{f' below {size}' if size else ''}"
        problems.add("outputs", value, f'{remedy}, "all", or None for the default')
        return None
    coordinates, times = np.unique(array, return_counts=True)
    if times.max() > 1:
        twice = coordinates[np.argmax(times)]
        problems.add("outputs", value, f"each coordinate once; {twice} is there {times.max()} times")
        return None
    return tuple(array.tolist())


def config_readout(name: str, value: Any, problems: Problems, by_symbol: bool = False) -> int | str:
    """Returns the readout in a config: "last", "mean", a 0-based position, or if `by_symbol` "last other than 3"."""
    other = by_symbol and isinstance(value, str) and re.fullmatch(r"last other than \d{1,9}", value)
    named = isinstance(value, str) and value in ("last", "mean")
    if not is_count(value) and not named and not other:
        problems.add(name, value, 'a 0-based position, "last" or "mean"')
    return plain_numbers(value)


def mesh(value: object, problems: Problems) -> None:
    """Adds an error if the value is neither None nor a mesh of devices, or a mesh that processes cannot share."""
    import jax

    if value is None:
        return
    if not isinstance(value, jax.sharding.Mesh) or not value.size:
        platform = isinstance(value, str) and value in ("cpu", "gpu", "tpu")
        devices = f"jax.devices({value!r})" if platform else "devices"
        problems.add(
            "mesh",
            value,
            "the devices to spread flips over, or None for all of this process:\n"
            f'    mesh = jax.sharding.Mesh(numpy.array({devices}), ("flips",))\n'
            "    jaxsens.flip_sensitivity(model, tokens, placement=jaxsens.Placement(mesh))",
        )
        return
    own, processes = jax.process_index(), sorted({device.process_index for device in value.devices.flat})
    if own not in processes:
        remedy = "jaxsens.global_mesh(), or a mesh with devices of every process that makes the call"
        problems.add("mesh", f"devices of the processes {processes}, none of this process, {own}", remedy)
    elif len(processes) > 1 and len(value.axis_names) > 1:
        axes = f"the axes {value.axis_names} over {len(processes)} processes"
        problems.add("mesh", axes, "one axis, as jaxsens.global_mesh() has, if several processes share it")
