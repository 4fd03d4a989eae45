"""Detects reads beyond an array in a user's model. JAX silently clamps or drops an index beyond an array.

`jax.experimental.checkify` runs the model and checks every index against its axis. Values that no index depends on are
left out of that program, which is then usually a few integer operations: it runs on every word that is measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.extend.core import ClosedJaxpr, DropVar, Literal, jaxpr_as_fun, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Int

from jaxsens.base.errors import InputError
from jaxsens.base.programs import kept
from jaxsens.sensitivity.engines.edits import SUBSTITUTE, Edit, edited
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.subjects.adapters import Measurable

_MESSAGE = re.compile(
    r"array of shape (\(.*?\)): index (-?\d+) is out of bounds for axis (\d+) with size (\d+)"
)
"""The wording of checkify's error, which has no other public form."""

_FAR = 2**20

_BATCH_OPERATIONS = 2**21
"""Operations of a batch of checks: about a millisecond, and no more than 16 MiB of temporary memory."""

_LARGEST_BATCH = 2**12

_AFFORDABLE = 2e9
"""Operations that a check of all flips may take at any rate: about a second on one core."""

_CALLBACK = 1e8
"""What a call of Python from a program is taken to cost, in operations."""

_SHARE = 0.1
"""The share of a measurement's operations that the check may take beyond that."""


@dataclass(frozen=True)
class Beyond:
    """An index beyond its axis in an array of this shape, read from or `written` to."""

    shape: str
    index: int
    axis: int
    size: int
    written: bool

    def __str__(self) -> str:
        return f"index {self.index} of axis {self.axis}, which has size {self.size} (array of shape {self.shape})"


@dataclass(frozen=True)
class _Check:
    """The compiled check of one model and length.

    Attributes:
        failed: from the parameters and words (rows, n) to which of them fail.
        errors: to checkify's error, with a leading axis. It is compiled when a word fails.
        rows: the number of words that it takes.
        operations: an estimate of its elementary operations for each word.
        model_operations: the same of the model, with the check.
    """

    failed: Callable[[Any, Any], Any]
    errors: Callable[[Any, Any], Any]
    rows: int
    operations: float
    model_operations: float

    def affordable(self, flips: int) -> int:
        """Returns how many of a measurement's flips are checked: all, unless indices depend on much of the model."""
        allowed = max(_AFFORDABLE, _SHARE * flips * self.model_operations)
        return flips if self.operations * flips <= allowed else int(allowed / self.operations)


def check_reads(
    subject: Measurable, words: Int[np.ndarray, "batch n"], flips: FlipTable, edit: Edit = SUBSTITUTE
) -> str | None:
    """Rejects inputs for which a model indexes beyond an array, unflipped or under any flip.

    The check is compiled once per model and length, and runs in batches on every word that `edit` makes. Where indices
    depend on much of the model, so that this would cost more than a tenth of the measurement (and more than about a
    second), it runs on as many flips as that allows: one for every symbol, and others spread evenly. Call it within
    `numerics(subject.dtype)`. Models with a known vocabulary are run only if `edit` changes the length and their
    longest input is not known. PyTorch itself raises an exception for such an index: a module is called on few words.

    Returns:
        What to add to the result's reason if not every flip was checked, otherwise None.

    Raises:
        InputError: naming the axis, its size, and the remedy.
    """
    if subject.vocabulary_size is not None:
        limited = subject.config is not None or subject.max_length is not None
        if edit.longer == 0 or limited or subject.torch is not None:
            return None
    if subject.torch is not None:
        _check_torch(subject, words, flips, edit)
        return None
    if subject.vocabulary_size is None:
        for k, found in _each_beyond(subject, words):
            raise InputError(_of_word(words[k], found))
    check = _check_of(subject, words.shape[1] + edit.longer)
    if check is None:
        return None
    # At the first position that fails, the largest symbol is named: the usual error is an alphabet that is too large.
    order = np.lexsort((-flips.symbols, flips.positions, flips.inputs))
    count = check.affordable(len(flips))
    if count < len(flips):
        order = np.sort(_covering(flips.symbols[order], count))
        order = np.lexsort((-flips.symbols, flips.positions, flips.inputs))[order]
    for start in range(0, len(order), check.rows):
        part = order[start : start + check.rows]
        made = edited(words, flips, edit, part)
        for k, found in _each_beyond(subject, made):
            raise InputError(_of_flip(words.shape[1], flips, edit, int(part[k]), made[k], found))
    if count == len(flips):
        return None
    return f"indices depend on much of the model, and were checked for {len(order)} of {len(flips)} flips"


def _covering(symbols: Int[np.ndarray, " flips"], count: int) -> Int[np.ndarray, " chosen"]:
    """Returns the first flip of each symbol, and `count` flips spread evenly."""
    firsts = np.unique(symbols, return_index=True)[1]
    return np.unique(np.concatenate([firsts, np.linspace(0, len(symbols) - 1, max(count, 1)).astype(int)]))


def _check_torch(
    subject: Measurable, words: Int[np.ndarray, "batch n"], flips: FlipTable, edit: Edit
) -> None:
    """Calls a PyTorch module on each input, and with its largest symbols inserted."""
    everywhere = flips.largest(words)
    for k, word in enumerate(words):
        subject.call(word)
        mine = np.flatnonzero(flips.inputs == k)
        if not len(mine):
            continue
        if edit.longer:
            largest = mine[np.argmax(flips.symbols[mine])]
            subject.call(edited(words, flips, edit, np.array([largest]))[0])
            continue
        if np.array_equal(everywhere[k], word) or _torch_problem(subject, everywhere[k]) is None:
            continue
        # That word is not measured, and a model may be right to fail on it: only a single flip is an error.
        for position in np.flatnonzero(everywhere[k] != word):
            flipped = word.copy()
            flipped[position] = everywhere[k, position]
            problem = _torch_problem(subject, flipped)
            if problem is not None:
                raise InputError(
                    f"flips: with {int(flipped[position])} at position {int(position)}: {problem}"
                )


def _torch_problem(subject: Measurable, word: Int[np.ndarray, " n"]) -> str | None:
    try:
        subject.call(word)
    except InputError as error:
        return str(error)
    return None


def check_word_reads(subject: Measurable, word: Int[np.ndarray, " n"]) -> None:
    """Rejects an input for which a model indexes beyond an array.

    Raises:
        InputError: naming the axis, its size, and the remedy.
    """
    if subject.vocabulary_size is not None:
        return
    if subject.torch is not None:
        subject.call(word)
        return
    for _, found in _each_beyond(subject, word[None]):
        raise InputError(_of_word(word, found))


def check_searched_reads(
    subject: Measurable, words: Int[np.ndarray, "words n"], symbols: Int[np.ndarray, " words"]
) -> None:
    """Rejects a model that indexes beyond an array on one of some words that a search may come to.

    Args:
        symbols: the symbol at all free positions of each word; -1 for a word of several symbols.
    """
    if subject.vocabulary_size is not None:
        return
    if subject.torch is not None:
        largest = int(np.argmax(symbols))
        problem = _torch_problem(subject, words[largest])
        if problem is not None:
            raise InputError(f"flips: with {int(symbols[largest])} inserted: {problem}")
        return
    for k, found in _each_beyond(subject, words):
        symbol = int(symbols[k])
        if symbol < 0:
            raise InputError(_of_word(words[k], found))
        raise InputError(_of_symbol(found, symbol, "inserted"))


def beyond(subject: Measurable, word: Int[np.ndarray, " n"]) -> Beyond | None:
    """Returns the model's first index beyond its axis on a word, or None.

    It also returns None if checkify cannot trace the model.
    """
    return next((found for _, found in _each_beyond(subject, word[None])), None)


def _each_beyond(subject: Measurable, words: Int[np.ndarray, "words n"]) -> Iterator[tuple[int, Beyond]]:
    """Yields the words' numbers, in order, with the first index of each that is an error."""
    check = _check_of(subject, words.shape[1])
    if check is None:
        return
    parameters = jax.tree.map(jnp.asarray, subject.parameters)
    for start in range(0, len(words), check.rows):
        part = words[start : start + check.rows]
        findings = _findings(check, parameters, part)
        # JAX drops writes beyond an array, and its own functions (where and unique with size=, insert) rely on that. A
        # symbol is lost only if the index is the id, as in counts.at[tokens].add(1), and changes with it.
        written = [k for k, found in findings.items() if found.written]
        if written:
            index = np.array([findings[k].index for k in written])[:, None]
            moved = np.where(part[written] == index, part[written] + _FAR, part[written])
            again = _findings(check, parameters, moved)
            for j, k in enumerate(written):
                if again.get(j) != replace(findings[k], index=findings[k].index + _FAR):
                    del findings[k]
        for k, found in findings.items():
            yield start + k, found


def _findings(check: _Check, parameters: Any, words: Int[np.ndarray, "words n"]) -> dict[int, Beyond]:
    """Returns the first index beyond its axis of each word that has one, for at most `check.rows` words."""
    rows = np.minimum(np.arange(check.rows), len(words) - 1)  # padded, so that one program serves all
    given = jnp.asarray(words[rows], jnp.int32)
    bad = np.flatnonzero(np.asarray(check.failed(parameters, given))[: len(words)])
    if not len(bad):
        return {}
    leaves, structure = jax.tree.flatten(check.errors(parameters, given))
    values = [np.asarray(leaf)[bad] for leaf in leaves]
    known: dict[bytes, Beyond] = {}
    found: dict[int, Beyond] = {}
    for j, k in enumerate(bad.tolist()):
        key = b"".join(value[j].tobytes() for value in values)
        if key not in known:
            one = jax.tree.unflatten(structure, [value[j] for value in values])
            known[key] = _described(one.get_exception(), words[k])
        found[k] = known[key]
    return found


def _described(error: Any, word: Int[np.ndarray, " n"]) -> Beyond:
    text = _MESSAGE.search(str(error))
    if text is None:
        raise InputError(f"model: on the tokens {word.tolist()} it indexes beyond an array: {error}")
    written = str(getattr(error, "prim", "")).startswith("scatter")
    return Beyond(text[1], int(text[2]), int(text[3]), int(text[4]), written)


def _check_of(subject: Measurable, n: int) -> _Check | None:
    """Returns the check of a model for words of length n; None if checkify cannot trace it."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, subject.parameters))
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    return _compiled_check(subject.apply, structure, shapes, n, jnp.result_type(float) == jnp.float64)


@kept
def _compiled_check(
    apply: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> _Check | None:
    """Traces the check. `wide` (64-bit types are on) is part of the cache key."""

    def finding(*leaves: Any) -> Any:
        return checkify.checkify(jaxpr_as_fun(flat), errors=checkify.index_checks)(*leaves)[0]

    def failing(words: Any, happened: Any) -> Any:
        return jnp.any(jnp.stack([jnp.zeros(len(words), bool), *happened]), axis=0)

    try:
        given = jax.tree.unflatten(structure, shapes), jax.ShapeDtypeStruct((n,), jnp.int32)
        flat = inlined(jax.make_jaxpr(apply)(*given))
        whole, returned = jax.make_jaxpr(finding, return_shape=True)(*jax.tree.leaves(given))
        happened = [var.aval.dtype == jnp.bool_ for var in whole.jaxpr.outvars]
        needed, _ = dce_jaxpr(whole.jaxpr, happened, instantiate=True)
        operations = max(_operations(needed, n), n)
        rows = int(max(1, min(_LARGEST_BATCH, _BATCH_OPERATIONS / operations)))
        failed = jax.jit(_over_words(ClosedJaxpr(needed, whole.consts), failing))
        failed.trace(given[0], jax.ShapeDtypeStruct((rows, n), jnp.int32))
    except Exception:  # noqa: BLE001 - whatever checkify fails with: there are primitives it has no rule for
        # The model itself was traced before, so checkify cannot trace it (shard_map, some custom primitives). The model
        # is measured without a check of its indices.
        return None
    structure = jax.tree.structure(returned)
    errors = jax.jit(_over_words(whole, lambda words, leaves: jax.tree.unflatten(structure, leaves)))
    return _Check(failed, errors, rows, operations, _operations(whole.jaxpr, n))


_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}
"""The primitives that call a function, and the parameter that holds it."""

_BRANCHING = ("scan", "while", "cond")
"""The primitives that call functions as often as they decide."""


def inlined(program: Any) -> ClosedJaxpr:
    """Returns a program without calls of functions, whose results would all be needed if checkify's error is."""
    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in program.jaxpr.invars]
    return jax.make_jaxpr(lambda *given: _called(program.jaxpr, program.consts, given))(*avals)


def _called(program: Any, constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Computes a jaxpr, function by function."""
    values = dict(zip((*program.constvars, *program.invars), (*constants, *given), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in program.eqns:
        params, taken = equation.params, [value(atom) for atom in equation.invars]
        if equation.primitive.name in _CALLS:
            inner = params[_CALLS[equation.primitive.name]]
            closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
            values.update(zip(equation.outvars, _called(closed.jaxpr, closed.consts, taken), strict=True))
            continue
        if equation.primitive.name in _BRANCHING:
            equation = equation.replace(params={name: _without_calls(one) for name, one in params.items()})
        read = {
            atom: given
            for atom, given in zip(equation.invars, taken, strict=True)
            if not isinstance(atom, Literal)
        }
        alone = program.replace(
            constvars=(),
            invars=list(read),
            outvars=[var for var in equation.outvars if not isinstance(var, DropVar)],
            eqns=[equation],
            debug_info=program.debug_info.with_unknown_names(),
        )
        values.update(zip(alone.outvars, jaxpr_as_fun(ClosedJaxpr(alone, ()))(*read.values()), strict=True))
    return [value(atom) for atom in program.outvars]


def _without_calls(parameter: Any) -> Any:
    """Returns a parameter of a primitive with its programs, or a tuple of them, inlined; any other as it is."""
    if isinstance(parameter, ClosedJaxpr):
        return inlined(parameter)
    if isinstance(parameter, tuple) and any(isinstance(one, ClosedJaxpr) for one in parameter):
        return tuple(map(inlined, parameter))
    return parameter


def _over_words(program: ClosedJaxpr, combined: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a function of parameters and words: what a program from parameters and a word returns of each of them,
    `combined` with the words."""

    def of_words(parameters: Any, words: Any) -> Any:
        leaves = jax.tree.leaves(parameters)
        return combined(words, jax.vmap(lambda word: jaxpr_as_fun(program)(*leaves, word))(words))

    return of_words


def _operations(program: Any, n: int) -> float:
    """Estimates the elementary operations of a program (a jaxpr). A loop of unknown length is taken to run n times."""
    total = 0.0
    for equation in program.eqns:
        name, inner = equation.primitive.name, [0.0]
        inner += [_operations(one, n) for one in jaxprs_in_params(equation.params)]
        shapes = [getattr(value.aval, "shape", ()) for value in (*equation.invars, *equation.outvars)]
        largest = max((float(np.prod(shape)) for shape in shapes), default=0.0)
        match name:
            case "dot_general":
                contracted = equation.params["dimension_numbers"][0][0]
                total += 2 * float(np.prod(shapes[-1])) * np.prod([shapes[0][axis] for axis in contracted])
            case "conv_general_dilated":
                total += 2 * float(np.prod(shapes[-1])) * np.prod(shapes[1][1:])
            case "scan":
                total += equation.params["length"] * sum(inner)
            case "while":
                total += n * sum(inner)
            case "cond":
                total += max(inner)
            case "pure_callback" | "io_callback":
                total += _CALLBACK
            case "gather" | "dynamic_slice":  # which read no more of their operand than they return
                total += float(np.prod(shapes[-1]))
            case _:
                total += sum(inner) or largest
    return total


def _of_word(word: Int[np.ndarray, " n"], found: Beyond) -> str:
    """Returns the error of a word that no flip made."""
    if found.index in word:
        argument, remedy = f"tokens = {found.index}", f"give ids from 0 to {found.size - 1}"
    elif found.index < len(word):
        argument, remedy = f"tokens of length {len(word)}", f"give inputs of length at most {found.size}"
    else:
        argument, remedy = f"tokens = {int(word.max())}", "give ids in the model's vocabulary"
    return _told(argument, found, remedy)


def _of_flip(
    n: int, flips: FlipTable, edit: Edit, flip: int, word: Int[np.ndarray, " m"], found: Beyond
) -> str:
    """Returns the error of a word that a flip made of one of length n."""
    symbol, position = int(flips.symbols[flip]), int(flips.positions[flip])
    if edit.longer < 0 or (edit.longer and found.index != symbol):
        made = "deleting a position" if edit.longer < 0 else f"inserting {edit.longer} symbol(s)"
        what = f"flips: {made} makes of inputs of length {n} tokens of length {len(word)}"
        remedy = "give a model that reads this length too, or inputs of another length"
        if edit.longer > 0 and found.index == found.size:
            remedy += f": it may read at most {found.size}"
        return _told(what, found, remedy)
    if edit.kind == "groups":
        places = np.flatnonzero(word == found.index)
        if len(places):
            return _of_symbol(found, found.index, f"at position {int(places[0])}")
        return _of_symbol(found, int(word.max()), f"in the group at position {position}")
    return _of_symbol(found, symbol, f"at position {position}")


def _of_symbol(found: Beyond, symbol: int, where: str) -> str:
    remedy = "insert symbols in the model's vocabulary"
    if found.index == symbol:
        remedy = f"insert symbols below {found.size}: flips={found.size} or flips=[...]"
    return _told(f"flips: with {symbol} {where}", found, remedy)


def _told(argument: str, found: Beyond, remedy: str) -> str:
    return (
        f"{argument}: the model takes {found}. JAX clamps or drops such an index, so the result would be "
        f"wrong; {remedy}. If this is intended, clip the index in the model: jnp.clip(index, 0, {found.size - 1})"
    )
