"""Sizes that cannot be, and values that mean something else than they say: one error within seconds, before anything is
allocated or built. `python -m tools.edge_fuzz` mutates many more inputs; a few of them are here."""

from __future__ import annotations

import re
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
from jaxsens.cli import main
from jaxsens.core.base import errors
from jaxsens.core.base.inputs import MOST_LAYERS
from jaxsens.core.base.strict import parse_toml, read_toml
from jaxsens.core.sweeps.config import load_sweep_config, parse_sweep_config
from tests.core.sweeps.tiny import TINY
from tests.small_models import small
from tools.edge_fuzz import KINDS, Tally, fuzz

MODEL = Transformer(small(dtype="float32"))
LAYERS = f"layers = 1000000000: a whole number of at least 0 and at most {MOST_LAYERS}"


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


TOO_LARGE: dict[str, tuple[Callable[[], Any], str]] = {
    "tokens": (
        lambda: jaxsens.flip_sensitivity(total, zeros(10**9), 2),
        r"tokens = 'shape \(1000000000,\)': a measurement of them takes .* GiB, and .* 16 GiB; give a shorter input",
    ),
    "tokens, of a transformer": (
        lambda: jaxsens.flip_sensitivity(MODEL, zeros(10**9)),
        r"tokens = 'shape \(1000000000,\)': .* takes .* GiB",
    ),
    "inputs": (
        lambda: jaxsens.flip_sensitivity(total, zeros(10**6, 1000), 2),
        r"tokens = 'shape \(1000000, 1000\)': .* takes .* GiB, and .*; give a shorter input, or fewer at once",
    ),
    "an array of the model": (
        lambda: jaxsens.flip_sensitivity(pairwise, zeros(200_000), flips=jaxsens.Substitute(2, positions=[3])),
        r"tokens = 'length 200000': an array \(200000, 200000\) of \w+, which the model makes of it, takes 149 GiB",
    ),
    "copies": (
        lambda: jaxsens.flip_sensitivity(total, zeros(8), flips=jaxsens.Repeat(10**9)),
        r"flips = Repeat\(1000000000\): it makes an input of length 8 longer: n = 1000000008: a word of this length",
    ),
    "copies, explained": (
        lambda: jaxsens.explain(total, 8, flips=jaxsens.Repeat(10**9)),
        r"flips = Repeat\(1000000000\): it makes an input of length 8 longer: n = 1000000008: a word of this length",
    ),
    "explain": (lambda: jaxsens.explain(MODEL, 10**9), "n = 1000000000: an input of this length takes"),
    "explain, of a function": (
        lambda: jaxsens.explain(total, 10**9, flips=2),
        "n = 1000000000: an input of this length takes",
    ),
    "layers": (lambda: TransformerConfig(alphabet_size=2, layers=10**9), LAYERS),
    "layers of an LSTM": (
        lambda: jaxsens.training.LSTMConfig(alphabet_size=2, layers=10**9),
        f"layers = 1000000000: a whole number of at least 1 and at most {MOST_LAYERS}",
    ),
    "symbols of a model": (
        lambda: Transformer(TransformerConfig(alphabet_size=10**12)),
        "alphabet_size = 1000000000000: a network of this size takes 233 TiB, and .*; give a smaller one",
    ),
    "width of a model": (
        lambda: Transformer(TransformerConfig(alphabet_size=2, width=10**6)),
        "width = 1000000: a network of this size takes .* TiB",
    ),
    "width of an RNN": (
        lambda: jaxsens.training.RNN(jaxsens.training.RNNConfig(alphabet_size=2, width=10**6)),
        "width = 1000000: a network of this size takes .* TiB",
    ),
    "learned positions": (
        lambda: Transformer(
            TransformerConfig(alphabet_size=2, positions={"type": "Learned", "max_length": 10**12})  # pyright: ignore[reportArgumentType]
        ),
        "positions = 1000000000000: a network of this size takes",
    ),
    **{
        f"10^30 as {name}": (call, "a whole number of at least . and at most 9223372036854775807")
        for name, call in {
            "batch_size": lambda: jaxsens.Placement(batch_size=10**30),
            "n": lambda: jaxsens.explain(MODEL, 10**30),
            "sample": lambda: jaxsens.Substitute(sample=10**30),
            "copies": lambda: jaxsens.Repeat(10**30),
            "width": lambda: TransformerConfig(alphabet_size=2, width=10**30),
            "symbols": lambda: TransformerConfig(alphabet_size=10**30),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_sizes_are_multiplied_before_anything_is_allocated(name):
    call, wanted = TOO_LARGE[name]
    with at_once(), pytest.raises(InputError, match=wanted):
        call()


def test_rows_of_a_long_input_count_where_its_flips_are_few(monkeypatch):
    monkeypatch.setattr(errors, "machine_memory", lambda: 2**30)
    wanted = (
        r"tokens = 'shape \(1, 2000000\)': a measurement of 2 flips takes 2.01 GiB, .*; give a shorter input"
    )
    with at_once(256), pytest.raises(InputError, match=wanted):
        jaxsens.flip_sensitivity(MODEL, zeros(2 * 10**6), flips=jaxsens.Substitute(positions=[3]))


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--layers", 10**9, f"model.layers = 1000000000: .* at most {MOST_LAYERS}|--" + LAYERS),
        ("--alphabet-size", 10**12, "--alphabet-size = 1000000000000: a network of this size takes 233 TiB"),
        ("--width", 10**30, "--width = 1000.*: a whole number of at least 1 and at most"),
    ],
)
def test_sizes_of_the_command_line_are_refused_at_once(option, value, wanted, capsys):
    given = {"--alphabet-size": 2, "--n": 8, option: value}
    with at_once():
        assert main(["measure", *(str(part) for pair in given.items() for part in pair)]) == 2
    assert re.search(wanted, capsys.readouterr().err)


@pytest.mark.parametrize("name", ["function", "transformer"])
def test_a_length_that_fits_but_takes_long_says_so_before_the_model_runs(name):
    ran = []

    def noting(tokens):
        ran.append(tokens)
        return total(tokens)

    model, n = (noting, 10**6) if name == "function" else (MODEL, 10**5)
    with (
        at_once(1024),
        pytest.raises(DurationWarning, match=rf"n = {n}: measuring \d+ flips will take about \d"),
    ):
        jaxsens.flip_sensitivity(model, zeros(n), None if name == "transformer" else 2)
    assert not any(isinstance(one, np.ndarray) for one in ran)


def test_a_short_measurement_and_one_with_a_progress_of_its_own_say_nothing(monkeypatch):
    tokens = zeros(3000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxsens.flip_sensitivity(total, tokens, flips=jaxsens.Substitute(2, sample=400))
        monkeypatch.setattr("jaxsens.core.explain._PATIENCE", 0.0)
        jaxsens.flip_sensitivity(total, tokens, flips=jaxsens.Substitute(2, sample=400), progress=False)
    with pytest.warns(DurationWarning, match="n = 3000: measuring 400 flips will take about .* s or more"):
        jaxsens.flip_sensitivity(total, tokens, flips=jaxsens.Substitute(2, sample=400))


MASKED: Any = np.ma.array([0, 1, 1, 0], mask=[False, True, False, False])
UNMASKED = r"no masked entries: fill them in, .filled\(symbol\), or leave them out, .compressed\(\)"
MISTAKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "a coordinate twice": (
        lambda: jaxsens.flip_sensitivity(MODEL, [0, 1, 1], measure=jaxsens.L2(outputs=[0, 2, 0])),
        r"outputs = \[0, 2, 0\]: each coordinate once; 0 is there 2 times",
    ),
    "an alphabet of text": (
        lambda: jaxsens.flip_sensitivity(MODEL, [0, 1, 1], flips="2"),  # pyright: ignore[reportArgumentType]
        "flips = '2': one of substitute, neighbours",
    ),
    "masked tokens": (
        lambda: jaxsens.flip_sensitivity(MODEL, MASKED),
        rf"tokens = masked_array\(data=\[0, --, 1, 0\].*: {UNMASKED}",
    ),
    "a list of masked tokens": (
        lambda: jaxsens.flip_sensitivity(MODEL, [MASKED, MASKED]),
        rf"tokens = .*masked_array.*: {UNMASKED}",
    ),
    "masked tokens of several lengths": (
        lambda: jaxsens.flip_sensitivity(MODEL, [MASKED, [0, 1]]), f"tokens = .*: {UNMASKED}",
    ),
    "masked positions": (
        lambda: jaxsens.Substitute(positions=MASKED), r"positions = masked_array.*: a list",
    ),
    "masked tokens of a model": (lambda: MODEL(MASKED), f"tokens = .*: {UNMASKED}"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_values_that_would_be_taken_for_others_are_refused(name):
    call, wanted = MISTAKEN[name]
    with pytest.raises(InputError, match=re.compile(wanted, re.DOTALL)):
        call()


def test_a_masked_array_without_masked_entries_is_an_array():
    tokens = np.ma.array([0, 1, 1, 0], mask=False)
    assert len(jaxsens.flip_sensitivity(MODEL, tokens)) > 0


PUBLIC: Any = jaxsens  # for arguments that are none


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


def test_a_key_of_very_many_parts_is_refused_at_once():
    for text in (".".join(["a"] * 20_000) + " = 1", "[x]\n[" + ' . "b"' * 20_000 + "]"):
        with at_once(), pytest.raises(InputError, match=r"config: line [12]: a key of more than 32 parts"):
            parse_toml(text.replace("[ .", "["), "config")
    with pytest.raises(InputError, match="config: tables or lists more than 32 deep"):
        parse_toml("x = " + "[" * 40 + "]" * 40, "config")
    assert parse_toml('a.b = "1.2.3' + ".4" * 99 + '"', "config") == {"a": {"b": "1.2.3" + ".4" * 99}}


def test_a_number_of_thousands_of_digits_is_no_toml():
    with pytest.raises(InputError, match="not TOML: Exceeds the limit"):
        parse_toml("lengths = [" + "9" * 5000 + "]", "config")


@pytest.mark.parametrize("name", ["of a gibibyte", "without end"])
def test_no_more_of_a_config_is_read_than_a_config_has(name, tmp_path):
    path = Path("/dev/zero")
    if name == "of a gibibyte":
        path = tmp_path / "huge.toml"
        with path.open("wb") as file:
            file.truncate(2**30)
    with (
        at_once(),
        pytest.raises(InputError, match=r"config = .*: a readable TOML file .*more than 1048576 bytes"),
    ):
        read_toml(path)


def test_a_file_of_words_that_is_none_is_not_shown(tmp_path):
    (tmp_path / "secret").write_text("root:x:0:0\nhunter2\n4711 4712\n" + "9" * 5000 + "\n")
    config = tmp_path / "inside" / "sweep.toml"
    config.parent.mkdir()
    config.write_text(TINY + '[inputs]\nfile = "../secret"\n')
    with pytest.raises(
        InputError, match=r"inputs.file: line 2: whole numbers between blanks are needed"
    ) as caught:
        load_sweep_config(config)
    assert "inputs.file: line 3: symbols from 0 to 1 are needed" in str(caught.value)
    assert not any(part in str(caught.value) for part in ("x:0", "hunter", "4711", "9999"))
    (tmp_path / "secret").write_bytes(b"\xffhunter2")
    with pytest.raises(InputError, match="is not UTF-8") as caught:
        load_sweep_config(config)
    assert "0xff" not in str(caught.value)


@pytest.mark.parametrize("command", ["sweep CONFIG --out", "train CONFIG --out", "report"])
def test_an_empty_name_is_no_directory(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "sweep.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main([*command.replace("CONFIG", "sweep.toml").split(), ""])
    assert stopped.value.code == 2
    assert "an empty name" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.toml"]


def test_a_sweep_of_too_large_models_is_refused_with_the_model_s_size():
    with (
        at_once(),
        pytest.raises(InputError, match=r"model.width = 1000000: a network of this size takes .* TiB"),
    ):
        parse_sweep_config(TINY.replace("width = 4", "width = 1000000"))


def test_more_words_than_fit_are_refused_with_the_config():
    with (
        at_once(),
        pytest.raises(InputError, match=r"inputs.count = 1000000000000: a point of so many words takes"),
    ):
        parse_sweep_config(TINY + "[inputs]\ncount = 1000000000000\n")


# Mutated inputs


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs_end_in_an_error_with_words_or_a_result(kind):
    tally = Tally()
    fuzz(kind, range(12), tally)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.refused > 0
