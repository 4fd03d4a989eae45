"""The options of models that people use, as their config.json has them, and what they become."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsens.base.errors import InputError, Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Architecture
from jaxsens.pretrained.families.options import HARMLESS
from jaxsens.pretrained.families.rotation import RotaryAngles
from tests.pretrained.published import REFUSED, errors_of, known, published

CONFIGS = published()


def architecture(name: str) -> Architecture:
    table = CONFIGS[name]
    with_errors = Problems(name)
    family = FAMILIES[table["model_type"]]
    options = family.options(table, "config.json", with_errors)
    found = family.architecture(options)
    options.finish(family.name)
    with_errors.raise_if_any()
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_option_is_served_or_refused_for_what_it_changes(name):
    if name in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name]):
            architecture(name)
        return
    a = architecture(name)
    assert hash(a) == hash(architecture(name))
    assert list(FAMILIES[CONFIGS[name]["model_type"]].tensors(a))


def test_two_models_of_every_family_are_known():
    assert not list(known(FAMILIES))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in REFUSED])
def test_rows_are_those_of_the_library(name, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert max(errors_of(CONFIGS[name], tmp_path)) <= 1e-11


def test_longest_inputs_and_windows():
    longest = {name: architecture(name).longest for name in CONFIGS if name not in REFUSED}
    assert (
        longest["bert-base-uncased"] == longest["roberta-base"] == longest["distilbert-base-uncased"] == 512
    )
    assert (
        longest["meta-llama/Llama-3.1-8B"]
        == longest["Qwen/Qwen2.5-7B-Instruct with its card's yarn"]
        == 131072
    )
    assert longest["mistralai/Mistral-7B-v0.1"] == 32768
    assert set(architecture("mistralai/Mistral-7B-v0.1").windows) == {4096}
    assert (
        set(architecture("Qwen/Qwen2.5-0.5B").windows)
        == set(architecture("Qwen/Qwen3-0.6B").windows)
        == {None}
    )


def test_scaled_angles_of_llama_and_qwen():
    llama, qwen = (
        architecture("meta-llama/Llama-3.1-8B").rotary[0],
        architecture("Qwen/Qwen2.5-7B-Instruct with its card's yarn").rotary[0],
    )
    assert llama is not None
    assert qwen is not None
    assert (llama.kind, qwen.kind) == ("llama3", "yarn")
    for angles, factor in ((llama, 8.0), (qwen, 4.0)):
        ratio = RotaryAngles(angles.base, angles.width).frequencies(100) / angles.frequencies(100)
        assert np.all(np.diff(ratio) >= -1e-9)  # fast pairs are kept, slow ones divided
        np.testing.assert_allclose(ratio[[0, -1]], [1, factor])
    assert abs(qwen.amplitude - (0.1 * np.log(4) + 1)) < 1e-12


def test_a_dynamic_base_grows_beyond_the_trained_length_only():
    angles = RotaryAngles(10000.0, 8, "dynamic", factor=2.0, trained_length=16)
    for n in (1, 9, 16):
        np.testing.assert_allclose(
            angles.frequencies(n), 10000.0 ** -np.array([0, 0.25, 0.5, 0.75]), rtol=1e-15
        )
    # At 32 the base is 10000 (2 * 32 / 16 - 1)^(8 / 6).
    wanted = (10000.0 * 3.0 ** (8 / 6)) ** -np.array([0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(angles.frequencies(32), wanted, rtol=1e-14)


def test_yarn_keeps_and_divides_the_pairs_that_qwen_was_trained_with():
    # Pairs with 32 turns and 1 turn in 32768 positions, at base 10^6 and width 128, are 23.6 and 39.7.
    qwen = RotaryAngles(1e6, 128, "yarn", 4.0, 32768, slow=1.0, fast=32.0, truncate=True)
    pairs = np.arange(64)
    slow = np.clip((pairs - 23) / (40 - 23), 0, 1)
    wanted = 1e6 ** (-pairs / 64) * (slow / 4 + 1 - slow)
    np.testing.assert_allclose(qwen.frequencies(100), wanted, rtol=1e-13)
    exact = RotaryAngles(1e6, 128, "yarn", 4.0, 32768, slow=1.0, fast=32.0, truncate=False)
    first, last = (64 * np.log(32768 / (turns * 2 * np.pi)) / np.log(1e6) for turns in (32, 1))
    slow = np.clip((pairs - first) / (last - first), 0, 1)
    np.testing.assert_allclose(
        exact.frequencies(100), 1e6 ** (-pairs / 64) * (slow / 4 + 1 - slow), rtol=1e-13
    )


def test_every_refused_option_says_why():
    assert all(reason for _, reason in HARMLESS.values())
