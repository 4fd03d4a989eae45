"""Sizes that cannot be, and values that mean something else than they say: one error within seconds, before anything is
allocated or built. `python -m tools.edge_fuzz` mutates many more inputs; a few of them are here."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import DurationWarning, InputError, Transformer, TransformerConfig
from jaxsens.core.base import errors
from jaxsens.core.base.strict import parse_toml, read_toml
from jaxsens.core.models.parts.positions import Learned
from jaxsens.core.sweeps.config import load_sweep_config, parse_sweep_config
from tests.core.sweeps.tiny import TINY, tiny_sweep
from tests.refusals import refused
from tests.small_models import small
from tools.edge_fuzz import KINDS, Tally, fuzz

PUBLIC: Any = jaxsens  # for arguments that are none
MODEL = Transformer(small(dtype="float32"))
HARD = Transformer(small(dtype="float32", weighting="leftmost-hard"))


def total(tokens):
    return jnp.sum(tokens)[None].astype(jnp.float32)


def zeros(*shape: int) -> np.ndarray:
    """Tokens of any shape that take one byte."""
    return np.broadcast_to(np.int8(0), shape)


@pytest.fixture(autouse=True)
def sixteen_gibibytes(monkeypatch):
    monkeypatch.setattr(errors, "machine_memory", lambda: 2**34)


@contextmanager
def at_once(mebibytes: int = 64) -> Iterator[None]:
    """A block that takes less than five seconds, of the processors that others may use too, and little memory."""
    began = time.process_time()
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert time.process_time() - began < 5
    assert peak < mebibytes * 2**20


def pairwise(tokens):
    return jnp.sum(jnp.sin(tokens[:, None] * tokens[None, :] * 1.0), axis=1)[:1]


TRAINING = {
    "task": "prediction",
    "language": {"name": "parity"},
    "model": {"width": 8, "heads": 1, "layers": 2, "feed_forward": 8},
    "data": {"lengths": [2, 10**12]},
    "optimiser": {"steps": 10},
}
TOO_LARGE: dict[str, tuple[str, Callable[[], Any]]] = {
    "tokens": ("tokens", lambda: PUBLIC.flip_sensitivity(total, zeros(10**9), 2)),
    "inputs": ("tokens", lambda: PUBLIC.flip_sensitivity(total, zeros(10**6, 1000), 2)),
    "copies": ("flips", lambda: PUBLIC.flip_sensitivity(total, zeros(8), PUBLIC.Repeat(10**9))),
    "layers": ("layers", lambda: TransformerConfig(2, layers=10**9)),
    "symbols of a model": ("alphabet_size", lambda: Transformer(TransformerConfig(10**12))),
    "width of a model": ("width", lambda: Transformer(TransformerConfig(2, width=10**6))),
    "learned positions": ("positions", lambda: Transformer(TransformerConfig(2, positions=Learned(10**12)))),
    "models of a sweep": ("model.width", lambda: parse_sweep_config(TINY.replace("width = 4", "width = 1000000"))),
    "words of a sweep": ("inputs.count", lambda: parse_sweep_config(TINY + "[inputs]\ncount = 1000000000000\n")),
    "n of explain": ("n", lambda: PUBLIC.explain(MODEL, 10**12)),
    "n of worst_input": ("n", lambda: PUBLIC.theory.worst_input(MODEL, 10**12)),
    "n of lemma5": ("tokens", lambda: PUBLIC.theory.lemma5(MODEL, 10**12)),
    "n of restrict": ("tokens", lambda: PUBLIC.theory.restrict(HARD, 10**12)),
    "symbols of flips": ("flips", lambda: PUBLIC.flip_sensitivity(total, [0, 1, 1], 2**31 - 1)),
    "lengths of a sweep": (
        "lengths inputs.count", lambda: tiny_sweep("lengths = [4, 6]", "lengths = [4, 1000000000000]")
    ),
    "seeds of a sweep": ("seeds", lambda: tiny_sweep("seeds = 2", "seeds = 1000000000000000000")),
    "lengths of a training": (
        "data.lengths", lambda: PUBLIC.training.TrainConfig.from_table(TRAINING)
    ),
    "10^30 as n": ("n", lambda: PUBLIC.explain(MODEL, 10**30)),
    "10^30 as sample": ("sample", lambda: PUBLIC.Substitute(sample=10**30)),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_sizes_are_multiplied_before_anything_is_allocated(name):
    with at_once():
        refused(*TOO_LARGE[name])


def test_the_largest_array_is_named_with_its_size_and_that_of_the_machine():
    with at_once():
        said = refused(
            "tokens",
            lambda: PUBLIC.flip_sensitivity(pairwise, zeros(200_000), PUBLIC.Substitute(2, positions=[3])),
        )
    assert "an array (200000, 200000) of float32, which the model makes of it, takes 149 GiB" in said
    assert "this machine has 16 GiB" in said


@pytest.mark.parametrize("name", ["function", "transformer"])
def test_a_length_that_fits_but_takes_long_says_so_before_the_model_runs(name):
    ran = []

    def noting(tokens):
        ran.append(tokens)
        return total(tokens)

    model, n = (noting, 10**6) if name == "function" else (MODEL, 10**5)
    with (
        at_once(1024),
        pytest.raises(DurationWarning, match=rf"n = {n}: measuring \d+ flips will take at least about \d"),
    ):
        jaxsens.flip_sensitivity(model, zeros(n), None if name == "transformer" else 2)
    assert not any(isinstance(one, np.ndarray) for one in ran)


def test_a_short_measurement_and_one_with_a_progress_of_its_own_say_nothing(monkeypatch):
    tokens = zeros(3000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxsens.flip_sensitivity(total, tokens, flips=jaxsens.Substitute(2, sample=400))
        monkeypatch.setattr("jaxsens.core.choose._PATIENCE", 0.0)
        jaxsens.flip_sensitivity(total, tokens, flips=jaxsens.Substitute(2, sample=400), progress=False)
    with pytest.warns(DurationWarning, match="n = 3000: measuring 400 flips will take at least about .* s"):
        jaxsens.flip_sensitivity(total, tokens, flips=jaxsens.Substitute(2, sample=400))


MASKED: Any = np.ma.array([0, 1, 1, 0], mask=[False, True, False, False])
MISTAKEN: dict[str, tuple[str, Callable[[], Any]]] = {
    "an alphabet of text": ("flips", lambda: PUBLIC.flip_sensitivity(MODEL, [0, 1, 1], flips="2")),
    "masked tokens": ("tokens", lambda: PUBLIC.flip_sensitivity(MODEL, MASKED)),
    "a list of masked tokens": ("tokens", lambda: PUBLIC.flip_sensitivity(MODEL, [MASKED, MASKED])),
    "masked tokens of several lengths": ("tokens", lambda: PUBLIC.flip_sensitivity(MODEL, [MASKED, [0, 1]])),
    "masked positions": ("positions", lambda: PUBLIC.Substitute(positions=MASKED)),
    "masked tokens of a model": ("tokens", lambda: MODEL(MASKED)),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_values_that_would_be_taken_for_others_are_refused(name):
    refused(*MISTAKEN[name])


def test_a_masked_array_without_masked_entries_is_an_array():
    tokens = np.ma.array([0, 1, 1, 0], mask=False)
    assert len(jaxsens.flip_sensitivity(MODEL, tokens)) > 0


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (partial(PUBLIC.flip_sensitivity, MODEL, [0], mesure="l1"), "flip_sensitivity: mesure = 'l1': .*\"measure\""),
        (partial(PUBLIC.explain, MODEL, 8, measur="l1"), "explain: measur = 'l1': unknown argument; did you mean"),
        (partial(PUBLIC.theory.worst_input, MODEL, 4, serch=1), 'worst_input: serch = 1: .* did you mean "search"'),
        (partial(PUBLIC.flip_sensitivity, MODEL, [0], sample=9), "sample = 9: unknown argument; known: model, tokens"),
        (partial(PUBLIC.Substitute, 3, sed=1), 'Substitute: sed: unknown key; did you mean "seed"'),
        (partial(PUBLIC.Mask, symbl=1), 'Mask: symbl: unknown key; did you mean "symbol"'),
        (partial(PUBLIC.from_torch, None, outputs=1), 'from_torch: outputs = 1: .* did you mean "output"'),
        (partial(PUBLIC.flip_sensitivity, MODEL), r"flip_sensitivity\(\) missing 1 .*argument: 'tokens'"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_answered_with_the_function_and_the_likeliest_name(call, wanted):
    with pytest.raises((TypeError, InputError), match=wanted):
        call()


# Files


def test_toml_that_takes_long_or_no_python_can_hold_is_refused_at_once():
    keys = ".".join(["a"] * 20_000) + " = 1", "[x]\n[" + ".".join(['"b"'] * 20_000) + "]"
    for text in (*keys, "x = " + "[" * 40 + "]" * 40, "lengths = [" + "9" * 5000 + "]"):
        with at_once():
            refused("", parse_toml, text, "config")
    assert parse_toml('a.b = "1.2.3' + ".4" * 99 + '"', "config") == {"a": {"b": "1.2.3" + ".4" * 99}}


@pytest.mark.parametrize("name", ["of a gibibyte", "without end"])
def test_no_more_of_a_config_is_read_than_a_config_has(name, tmp_path):
    path = Path("/dev/zero")
    if name == "of a gibibyte":
        path = tmp_path / "huge.toml"
        with path.open("wb") as file:
            file.truncate(2**30)
    with at_once():
        assert "more than 1048576 bytes" in refused("", read_toml, path)


def test_a_file_of_words_that_is_none_is_not_shown(tmp_path):
    (tmp_path / "secret").write_text("root:x:0:0\nhunter2\n4711 4712\n" + "9" * 5000 + "\n")
    config = tmp_path / "inside" / "sweep.toml"
    config.parent.mkdir()
    config.write_text(TINY + '[inputs]\nfile = "../secret"\n')
    said = refused("inputs.file", load_sweep_config, config)
    assert all(line in said for line in ("line 2", "line 3"))
    assert not any(part in said for part in ("x:0", "hunter", "4711", "9999"))
    (tmp_path / "secret").write_bytes(b"\xffhunter2")
    assert "0xff" not in refused("inputs.file", load_sweep_config, config)


# Mutated inputs


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs_end_in_an_error_with_words_or_a_result(kind):
    tally = Tally()
    fuzz(kind, range(12), tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.refused > 0


def test_flips_are_counted_before_they_are_listed(monkeypatch):
    words = np.zeros((3, 50), int)
    monkeypatch.setattr(errors, "machine_memory", lambda: 100_000)
    with pytest.raises(
        InputError, match=r"tokens = 'shape \(3, 50\)': a measurement of 1911 flips takes.*sample"
    ):
        jaxsens.flip_sensitivity(total, words, 14)
    assert len(jaxsens.flip_sensitivity(total, words, flips=jaxsens.Substitute(14, sample=20))) == 20
    assert len(jaxsens.flip_sensitivity(total, words, flips=jaxsens.Substitute(14, positions=[3]))) == 39


def test_a_sweep_of_too_many_points_is_refused():
    text = TINY.replace("seeds = 2", "seeds = 25001")
    with pytest.raises(
        InputError, match="2 models at 2 lengths with 25001 seeds are 100004 points: at most 100000"
    ):
        parse_sweep_config(text)
    assert len(parse_sweep_config(text.replace("25001", "40")).points) == 160


def test_the_machine_s_memory_is_read_and_a_container_s_limit_with_it(monkeypatch, tmp_path):
    monkeypatch.undo()
    errors.machine_memory.cache_clear()
    assert 2**28 < errors.machine_memory() < 2**50
    for text, expected in (("1000000\n", 1_000_000), ("max\n", None)):
        (tmp_path / "limit").write_text(text)
        monkeypatch.setattr(errors, "_LIMIT", tmp_path / "limit")
        errors.machine_memory.cache_clear()
        assert errors.machine_memory() == (expected or errors.machine_memory())
    errors.machine_memory.cache_clear()
