"""Completes a partial result: its flips are reused if the call has the same model and arguments."""

from __future__ import annotations

import dataclasses
import hashlib
import signal
import weakref
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.base.errors import InputError, Problems
from jaxsens.base.programs import kept
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.placement.placement import Finished
from jaxsens.sensitivity.results.result import FlipSensitivity
from jaxsens.sensitivity.subjects.adapters import Measurable


class MeasurementInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during `flip_sensitivity`. `partial` is the result on the finished flips, which are not a random
    sample. Another call with `resume=partial` completes it. Of inputs of several lengths it holds those that were
    begun; `partial.of_input(k)` can be completed, and the others measured, each by itself. `signal` is the number of
    the signal."""

    def __init__(self, partial: FlipSensitivity, number: int = signal.SIGINT) -> None:
        super().__init__(f"interrupted after {len(partial)} of {partial.population} flips; see .partial")
        self.partial, self.signal = partial, number


def check_resumable(partial: object, several_lengths: bool) -> FlipSensitivity | None:
    """Returns the partial result, or None if there is none; rejects anything else, and any for inputs of several
    lengths."""
    if partial is None:
        return None
    if several_lengths:
        raise InputError(
            f"flip_sensitivity: resume = {partial!r}: not with inputs of several lengths; complete the "
            "input that was begun by itself, resume=partial.of_input(k), and put the results together: "
            "jaxsens.concat(results)"
        )
    if not isinstance(partial, FlipSensitivity):
        held = getattr(partial, "partial", None)
        remedy = (
            "its .partial"
            if isinstance(held, FlipSensitivity)
            else "jaxsens.load_result(path) of a saved one"
        )
        raise InputError(
            f"flip_sensitivity: resume = {partial!r}: give the result of an interrupted call, "
            f"MeasurementInterrupted.partial ({remedy})"
        )
    if partial.parts is not None:
        raise InputError(
            f"flip_sensitivity: resume = {partial!r}: a result of {len(partial.parts)} measurements; complete each of "
            "them by itself, resume=result.of_input(k), and put them together: jaxsens.concat(results)"
        )
    return partial


def taken_over(partial: FlipSensitivity, call: FlipSensitivity) -> Int[np.ndarray, " known"]:
    """Returns the flips that the partial result holds, as indices into those of the call.

    Args:
        partial: the result of an interrupted call.
        call: the result of this one, with all flips that it requests, before anything is measured.

    Raises:
        InputError: naming all differences.
    """
    problems = Problems("flip_sensitivity: resume")
    for name, before, now in _compared(partial, call):
        alike = np.array_equal(before, now) if isinstance(before, np.ndarray) else before == now
        if not alike:
            problems.add(name, _short(before), f"this call has {_short(now)!r}; repeat the interrupted call")
    problems.raise_if_any()
    # Both are sorted in the same way, so one search finds them all.
    keys, wanted = (_keys(part.flips, call) for part in (partial, call))
    index = np.minimum(np.searchsorted(wanted, keys), max(len(wanted) - 1, 0))
    if not np.array_equal(wanted[index], keys) or (np.diff(index) < 1).any():
        raise InputError(
            "flip_sensitivity: resume: it holds flips that this call does not request; measure without resume="
        )
    return index


def _compared(partial: FlipSensitivity, call: FlipSensitivity) -> list[tuple[str, Any, Any]]:
    """Returns the values that must be equal: name, value in the partial result, and value in this call."""
    pairs = [("tokens", partial.tokens, call.tokens), ("dtype", partial.dtype, call.dtype)]
    before, now = partial.asked.compared(), call.asked.compared()
    pairs += [(name, before[name], now[name]) for name in before]
    pairs.append(("flips, what they insert", partial.alphabet, call.alphabet))
    other = [
        (f"versions[{name!r}]", partial.run.versions.get(name), version)
        for name, version in call.run.versions.items()
        if partial.run.versions.get(name) != version
    ]
    # With other versions a program, and so its hash, may differ as well, which would mean nothing.
    programs = [
        ("model, parameters and function as SHA-256,", partial.asked.model, call.asked.model),
        ("measure, its program as SHA-256,", partial.asked.program, call.asked.program),
    ]
    return [*pairs, *(other or programs)]


def _keys(flips: FlipTable, call: FlipSensitivity) -> Int[np.ndarray, " flips"]:
    """Returns one number per flip, increasing with input, position and symbol, or for groups insertion."""
    last, kinds, joint = np.searchsorted(call.alphabet, flips.symbols), len(call.alphabet), call.flips.joint
    if joint is not None and flips.insertion is not None:
        last, kinds = flips.insertion, len(joint.insertions)
    return np.asarray(
        np.ravel_multi_index((flips.inputs, flips.positions, last), (*call.tokens.shape, kinds))
    )


def _short(value: Any) -> Any:
    """Returns a value as shown in a message."""
    if isinstance(value, np.ndarray):
        return f"shape {value.shape}, beginning with {value.ravel()[:8].tolist()}"
    return value


@dataclass(frozen=True)
class Begun:
    """A measurement of flips that has begun.

    Attributes:
        whole: its result, without values.
        partial: the result of the interrupted call that is completed, or None.
        known: which flips that result holds.
    """

    whole: FlipSensitivity
    partial: FlipSensitivity | None
    known: Int[np.ndarray, " known"]

    @property
    def rest(self) -> Int[np.ndarray, " rest"]:
        """The flips that are not known."""
        return np.delete(np.arange(len(self.whole)), self.known)

    def with_known(self, values: Float[np.ndarray, "rest 2"]) -> Float[np.ndarray, "flips 2"]:
        """Returns the values of all flips, from those of the rest."""
        if self.partial is None:
            return values
        before, rest = np.stack([self.partial.values, self.partial.resolution], axis=1), self.rest
        if not len(rest):
            return before
        dtype = np.promote_types(before.dtype, values.dtype) if len(self.known) else values.dtype
        every = np.full((len(self.whole), 2), np.nan, dtype)
        every[self.known], every[rest] = before, values
        return every

    def result(
        self,
        values: Float[np.ndarray, "flips 2"],
        finished: Bool[np.ndarray, " flips"],
        elsewhere: dict[str, int],
    ) -> FlipSensitivity:
        """Returns the result on the finished flips."""
        choice = self.whole.engine if self.partial is None else self.partial.engine
        values, resolution = values[finished].T
        return dataclasses.replace(
            self.whole,
            values=values if self.whole.measure.signed else np.abs(values),
            resolution=resolution,
            flips=self.whole.flips.part(finished),
            engine=choice.after(elsewhere, len(self.whole)),
        )

    def unfinished(self, so_far: Finished) -> FlipSensitivity:
        """Returns the partial result. It has never all flips: when all are measured, they are not yet checked, and the
        last is left out, so that nobody takes it for whole."""
        rest, finished = self.rest, np.ones(len(self.whole), bool)
        nothing = np.full((len(rest), 2), np.nan, np.float32), np.zeros(len(rest), bool)
        values, done = (so_far.values, so_far.done) if len(so_far.done) else nothing
        finished[rest] = done
        finished[-1:] &= not finished.all()
        return self.result(self.with_known(values), finished, so_far.elsewhere)


def fingerprint(subject: Measurable, n: int, weights: str | None = None) -> str:
    """Returns the SHA-256 of a model's parameters (`weights_of`, if known) and of its function on inputs of length n.

    The function of a jaxsens transformer is given by its config, a PyTorch module by its description. For any other
    model it is the lowered JAX program (StableHLO), with the arrays that it closes over; it depends on JAX's
    version and the kind of device.
    """
    weights = weights_of(subject) if weights is None else weights
    return hashlib.sha256(f"{_function(subject, n)} {weights}".encode()).hexdigest()


_digests: dict[tuple[Any, ...], tuple[tuple[Any, ...], str]] = {}
"""Digests of parameters by their structure and the identities of their arrays, beside weak references to these."""


def weights_of(subject: Measurable) -> str:
    """Returns the SHA-256 of a model's parameters, by path; of a PyTorch module with its description.

    That of JAX's arrays, which do not change, is kept as long as they are: to read all weights takes longer than to
    measure a short input.
    """
    leaves, structure = jax.tree.flatten(subject.parameters)
    if subject.torch is not None or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return _read_weights(subject)
    key = structure, *map(id, leaves)
    held, digest = _digests.get(key, ((), ""))
    if not (digest and all(one() is leaf for one, leaf in zip(held, leaves, strict=True))):
        digest = _read_weights(subject)
        for dead in [old for old, (refs, _) in _digests.items() if any(one() is None for one in refs)]:
            _digests.pop(dead, None)
        _digests[key] = tuple(map(weakref.ref, leaves)), digest
    return digest


def _read_weights(subject: Measurable) -> str:
    found = hashlib.sha256((subject.torch.digest() if subject.torch is not None else "").encode())
    for path, leaf in jax.tree_util.tree_flatten_with_path(subject.parameters)[0]:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _function(subject: Measurable, n: int) -> str:
    if subject.config is not None:
        return repr(subject.config)
    if subject.torch is not None:
        return f"PyTorch {subject.readout!r}"
    leaves, structure = jax.tree.flatten(subject.parameters)
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return _program(subject.apply, structure, shapes, n, jnp.result_type(float) == jnp.float64)


@kept
def _program(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> str:
    """Returns the SHA-256 of the program. `wide` (64-bit types are on) is part of the cache key."""

    def program(parameters: Any, tokens: Any) -> Any:
        return apply(parameters, tokens)

    tokens = jax.ShapeDtypeStruct((n,), np.int32)
    lowered = jax.jit(program).lower(jax.tree.unflatten(structure, shapes), tokens)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
