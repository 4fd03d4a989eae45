"""The options of models that people use, as their config.json has them, and what they become."""

from __future__ import annotations

import pytest

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Architecture
from tools.pretrained_published import REFUSED, errors_of, known, published

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
