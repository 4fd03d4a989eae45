"""Compiled programs, and what was traced of a function, kept no longer than the function itself.

`functools.lru_cache`, and `jax.jit` with static arguments, hold what they were called with: a user's function, all that
it closes over, and its programs, each with a dozen memory maps, of which a process may have 65530. Here a function is
held weakly. What was made for it goes when it goes, and at most `LARGEST` results are kept of each kind.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from types import MethodType
from typing import Any, Generic, TypeVar, TypeVarTuple

import jax
import numpy as np
from jax.core import Tracer

from jaxsens.core.base import stopping

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


def kept(make: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
    """Makes a function of hashable positional arguments keep its results, as `functools.lru_cache` does.

    Its results must not hold the functions among its arguments: these would never go.
    """
    results: _Results[Result] = _Results()

    @wraps(make)
    def found(*args: *Arguments) -> Result:
        mortal: list[Any] = []
        key = tuple(_weakly(one, mortal) for one in args)
        return results.get(key, mortal, partial(make, *args))

    return found


def compiled(static: int) -> Callable[[Callable[[*Arguments], Result]], Callable[[*Arguments], Result]]:
    """Compiles a function with `jax.jit`, whose first `static` arguments are hashable, and the others trees of arrays.

    There is a program for each set of static arguments, shapes and dtypes. The programs do not hold static arguments,
    which are at hand while one is traced. O(leaves) per call.
    """

    def decorate(function: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
        programs: _Results[Callable[..., Result]] = _Results()

        @wraps(function)
        def run(*args: *Arguments) -> Result:
            mortal: list[Any] = []
            given = tuple(_weakly(one, mortal) for one in args[:static])
            leaves, structure = jax.tree.flatten(args[static:])
            shapes = tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
            program = programs.get((given, structure, shapes), mortal, partial(_program, function))
            return program(args[:static], args[static:])

        return run

    return decorate


def _program(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a program of (static arguments, arrays), which knows the former only while it is called."""
    at_hand = threading.local()

    def traced(*arrays: Any) -> Result:
        return function(*at_hand.static, *arrays)

    traced.__name__ = function.__name__  # what profiles call it
    run, inner, ran = jax.jit(traced, compiler_options=SOONER), jax.jit(traced), threading.Event()

    def call(static: tuple[Any, ...], arrays: tuple[Any, ...]) -> Result:
        before = getattr(at_hand, "static", None)
        at_hand.static = static
        try:
            being_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arrays))
            if being_traced:
                return inner(*arrays)
            with nullcontext() if ran.is_set() else stopping.compiling():
                result = run(*arrays)
            ran.set()
            return result
        finally:
            at_hand.static = before

    return call


class _Entry(Generic[Result]):
    """A result, once it is made, and references to the mortal objects of its key."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.mortal: list[Any] | None = None
        self.result: Result


class _Results(Generic[Result]):
    """Results by key. A key holds references to mortal objects; with the first of them that dies, the result goes.

    An object may die, and so an entry go, between any two operations: each of them allows for that. Of several threads
    that need one result, one makes it.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry[Result]] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, mortal: list[Any], make: Callable[[], Result]) -> Result:
        """Returns the result for a key, making it if it is not known."""
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry  # the last is the one used last
            for oldest in [*self._entries][:-LARGEST]:
                self._entries.pop(oldest, None)
        with entry.lock:
            if entry.mortal is None:
                try:
                    entry.result = make()
                except BaseException:
                    self._forget(key, None)
                    raise
                entry.mortal = [weakref.ref(one, partial(self._forget, key)) for one in mortal]
        return entry.result

    def _forget(self, key: Hashable, dead: Any, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        del dead
        if not ending():  # as the interpreter ends, the classes of the keys are gone and none can be compared
            self._entries.pop(key, None)


def room_for(count: int) -> int:
    """Returns the least power of two of at least `count`: programs with such room are few and serve all numbers."""
    return 1 << (count - 1).bit_length()


class OfArrays(Generic[Result]):
    """Results that were made of JAX's arrays, which do not change, kept as long as all of these are."""

    def __init__(self) -> None:
        self._results: dict[Hashable, tuple[list[Any], Result]] = {}

    def get(self, key: Hashable, arrays: Sequence[jax.Array], make: Callable[[], Result]) -> Result:
        """Returns what was made of these arrays and a key, or makes it."""
        key = key, *map(id, arrays)
        held, result = self._results.get(key, (None, None))
        if (
            held is None
            or result is None
            or any(one() is not own for one, own in zip(held, arrays, strict=True))
        ):
            result = make()
            for old, (references, _) in list(self._results.items()):
                if any(one() is None for one in references):
                    self._results.pop(old, None)
            self._results[key] = list(map(weakref.ref, arrays)), result
        return result


def _weakly(argument: Any, mortal: list[Any]) -> Hashable:
    """Returns a key that is equal for equal arguments and holds no function; adds the objects that it refers to.

    These are all that are equal to themselves alone: functions, and objects of classes without equality. The engines
    and adapters of jaxsens, which hold functions, are taken apart; those with `lasting` once.
    """
    kind = type(argument)
    if kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__ and kind.__weakrefoffset__:
        mortal.append(argument)
        return weakref.ref(argument)
    if kind is MethodType and type(argument.__self__).__eq__ is object.__eq__:
        return kind, _weakly(argument.__self__, mortal), _weakly(argument.__func__, mortal)
    if kind is tuple:
        return tuple(_weakly(one, mortal) for one in argument)
    if not (kind.__module__.startswith("jaxsens.") and is_dataclass(kind)):
        return argument
    held, key, functions = _keys.get(id(argument), (None, None, ()))
    if held is not None and held() is argument:
        alive = [one() for one in functions]
        mortal.extend(alive)
        return key
    own: list[Any] = []
    values = (getattr(argument, one.name) for one in fields(kind) if one.compare)
    key = kind, *(_weakly(one, own) for one in values)
    mortal.extend(own)
    if getattr(kind, "lasting", False):
        number = id(argument)
        forget = partial(_forget_key, number)
        _keys[number] = weakref.ref(argument, forget), key, tuple(map(weakref.ref, own))
    return key


_keys: dict[int, tuple[Any, Hashable, tuple[Any, ...]]] = {}
"""The keys of configs, which programs are asked for by again and again, as long as they live."""


def _forget_key(number: int, dead: Any, ending: Callable[[], bool] = sys.is_finalizing) -> None:
    if not ending() and _keys.get(number, (None,))[0] is dead:
        _keys.pop(number, None)
