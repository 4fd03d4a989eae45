"""The arguments of `flip_sensitivity`: every fault found before any work, and defaults that depend on the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsens.errors import Faults
from jaxsens.inputs import is_count, plain_numbers
from jaxsens.memory import FLIP_BYTES, TOKEN_BYTES, check_fits
from jaxsens.models.transformer import activation_bytes, check_runs
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.choice import ENGINES
from jaxsens.sensitivity.flips import Sample
from jaxsens.sensitivity.ids import LARGEST_ID, check_ids, position_ids, token_ids, whole_numbers
from jaxsens.sensitivity.model_faults import takes
from jaxsens.sensitivity.norms import NORMS

_FEWER = (
    "put in fewer symbols (symbols=...), flip fewer positions, or a sample: positions=jaxsens.sample(count)"
)


def checked(
    subject: Measurable,
    tokens: Any,
    alphabet_size: int | None,
    symbols: Sequence[int] | None,
    readout: int | str | None,
    norm: str,
    outputs: Sequence[int] | str | None,
    engine: str,
    batch_size: int | None,
    memory_budget: int | None,
    mesh: object,
    progress: object,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens as (batch, n) and the sorted symbols to put in; refuses everything that is wrong at once."""
    faults = Faults("flip_sensitivity")
    words = token_ids(tokens, subject.vocabulary_size, faults)
    length = words.shape[1]
    if length and subject.config is not None:
        check_runs(subject.config, length, faults)
    check_readout(subject, readout, length or None, faults)
    alphabet = check_options(
        subject, alphabet_size, symbols, norm, outputs, engine, batch_size, memory_budget, mesh, faults
    )
    check_progress(progress, 2, "(flips done, flips in all), True for a bar, or False for nothing", faults)
    faults.raise_if_any()
    return words, alphabet


def check_options(
    subject: Measurable,
    alphabet_size: int | None,
    symbols: Sequence[int] | None,
    norm: str,
    outputs: Sequence[int] | str | None,
    engine: str,
    batch_size: int | None,
    memory_budget: int | None,
    mesh: object,
    faults: Faults,
) -> np.ndarray:
    """The sorted symbols to put in; notes what is wrong with them and with how flips are to be measured."""
    alphabet = _alphabet(subject, alphabet_size, symbols, faults)
    if not isinstance(norm, str) or norm not in NORMS:
        faults.add("norm", norm, f"one of {', '.join(NORMS)}")
    if not isinstance(engine, str) or engine not in ("auto", *ENGINES):
        faults.add("engine", engine, f"one of auto, {', '.join(ENGINES)}")
    for name, value in (("batch_size", batch_size), ("memory_budget", memory_budget)):
        if value is not None and not is_count(value, 1):
            faults.add(name, value, "a whole number of at least 1, or None for the default")
    check_mesh(mesh, faults)
    if not _are_outputs(outputs):
        faults.add(
            "outputs", outputs, 'a sequence of 0-based output coordinates, "all", or None for the default'
        )
    return alphabet


def _alphabet(
    subject: Measurable, alphabet_size: int | None, symbols: Sequence[int] | None, faults: Faults
) -> np.ndarray:
    size = alphabet_size if alphabet_size is not None else subject.alphabet_size
    if alphabet_size is not None and symbols is not None:
        faults.add("symbols", symbols, "give alphabet_size or symbols, not both")
    if symbols is not None:
        chosen = whole_numbers(symbols)
        if chosen is None or chosen.ndim != 1 or not chosen.size:
            one = chosen is not None and chosen.ndim == 0
            remedy = "at least one symbol id, in a sequence" + (f": symbols=[{chosen}]" if one else "")
            faults.add("symbols", symbols, remedy)
            return np.zeros(0, int)
        check_ids("symbols", chosen, subject.vocabulary_size, faults)
        return np.unique(chosen)
    if size is None:
        faults.add(
            "alphabet_size", None, "say which symbols may be put in: alphabet_size=2, or symbols=[...]"
        )
        return np.zeros(0, int)
    if not is_count(size, 2):
        faults.add("alphabet_size", size, "a whole number of at least 2")
        return np.zeros(0, int)
    if size > LARGEST_ID:
        faults.add("alphabet_size", size, f"at most {LARGEST_ID}: models read ids as 32-bit integers")
        return np.zeros(0, int)
    if subject.alphabet_size is not None and size > subject.alphabet_size:
        faults.add("alphabet_size", size, f"the model's alphabet has {subject.alphabet_size} symbols")
    elif not check_fits(
        "alphabet_size", size, size * FLIP_BYTES, "the flips of one position", _FEWER, faults
    ):
        return np.zeros(0, int)
    return np.arange(size)


def check_mesh(mesh: object, faults: Faults) -> None:
    """Notes it if a mesh holds no devices, or is none."""
    if mesh is None or (isinstance(mesh, Mesh) and mesh.size):
        return
    devices = (
        f"jax.devices({mesh!r})" if isinstance(mesh, str) and mesh in ("cpu", "gpu", "tpu") else "devices"
    )
    faults.add(
        "mesh",
        mesh,
        "the devices to spread flips over, or None for all of this process:\n"
        f'    mesh = jax.sharding.Mesh(numpy.array({devices}), ("flips",))\n'
        "    jaxsens.flip_sensitivity(model, tokens, mesh=mesh)",
    )


def check_progress(progress: object, count: int, wanted: str, faults: Faults) -> None:
    """Notes it if `progress` is neither a function of so many arguments, nor None, True or False."""
    if callable(progress):
        if not takes(progress, count):
            faults.add("progress", progress, f"a function that is called with {wanted}")
    elif progress is not None and not isinstance(progress, bool):
        faults.add("progress", progress, f"a function that is called with {wanted}")


def check_readout(subject: Measurable, readout: object, n: int | None, faults: Faults) -> bool:
    """Notes what is wrong with the readout asked for; whether it is sound. n is None where no length is known."""
    before = len(faults.messages)
    if isinstance(readout, Integral) and not isinstance(readout, bool):
        place = int(readout)
        if place < 0:
            instead = '"last"' if place == -1 else f"n - {-place}"
            faults.add("readout", place, f"positions count from the front, from 0: give {instead}")
        elif n is not None and place >= n:
            faults.add("readout", place, f"a position from 0 to {n - 1}")
    elif readout is not None and not (isinstance(readout, str) and readout in ("auto", "last", "mean")):
        faults.add("readout", readout, 'a 0-based position, "last", "mean", None, or "auto"')
    sound = len(faults.messages) == before
    if sound and readout != "auto" and subject.readout not in ("auto", readout):
        own = "this model reads where its config says"
        faults.add(
            "readout", readout, f"{own}, {subject.readout!r}; for another, config.replace(readout=...)"
        )
        return False
    return sound


def reading(subject: Measurable, readout: int | str | None) -> Measurable:
    """The model, read where it is asked to be; with "auto", where it says itself."""
    if isinstance(readout, str) and readout == "auto":
        return subject
    return dataclasses.replace(subject, readout=plain_numbers(readout))


def places(
    subject: Measurable, n: int, positions: Sequence[int] | Sample | None
) -> tuple[np.ndarray, Sample | None]:
    """The 0-based positions that may be flipped, and the sample to draw of their flips, if one is asked for."""
    drawn = positions if isinstance(positions, Sample) else None
    given = drawn.positions if drawn is not None else positions
    if given is None:
        readout = subject.position_read(n)
        return (np.arange(n) if readout is None else np.delete(np.arange(n), readout)), drawn
    faults = Faults("flip_sensitivity")
    chosen = position_ids(given, n, faults)
    faults.raise_if_any()
    return chosen, drawn


def check_size(
    subject: Measurable, words: np.ndarray, where: np.ndarray, alphabet: np.ndarray, drawn: Sample | None
) -> None:
    """Refuses more flips than this machine holds, before they are listed. Positions that hold a symbol that is never
    put in are counted as the others are.

    Raises:
        InputError: with the bytes that they take.
    """
    faults = Faults("flip_sensitivity")
    flips = len(words) * len(where) * max(1, len(alphabet) - 1)
    counted = flips if drawn is None else min(flips, drawn.count)
    needed = counted * FLIP_BYTES + words.size * TOKEN_BYTES
    if subject.config is not None:
        needed += activation_bytes(subject.config, words.shape[1])
    what = f"a measurement of {counted} flips"
    check_fits("tokens", f"shape {words.shape}", needed, what, _FEWER, faults)
    faults.raise_if_any()


def chosen_outputs(subject: Measurable, outputs: Sequence[int] | str | None) -> tuple[int, ...] | None:
    """The output coordinates that enter the norm: those asked for, else the model's own; None means all of them."""
    if outputs is None:
        return subject.outputs
    return None if isinstance(outputs, str) else tuple(int(k) for k in outputs)


def beyond_precision(subject: Measurable, n: int) -> str | None:
    """Why a model that is exact up to some length only cannot be trusted at length n, or None if it can."""
    limit = subject.exact_length
    if limit is None or n <= limit:
        return None
    remedy = "under another condition"
    if subject.dtype == "float32":
        remedy = f'with dtype="float64", which is right further out, or {remedy}'
    return (
        f"n = {n}: in {subject.dtype} this model is exact up to n = {limit} only. Rounding blurs which key its "
        f"attention chooses, so what is measured may be an effect of rounding; build the model {remedy}"
    )


def _are_outputs(outputs: object) -> bool:
    if outputs is None or isinstance(outputs, str):
        return outputs in (None, "all")
    if not isinstance(outputs, Sequence | np.ndarray):
        return False
    return len(outputs) > 0 and all(is_count(k) for k in outputs)
