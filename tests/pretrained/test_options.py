"""Which options of a config.json matter, as the library has it; and the configs of models that people use."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import jaxsens
from jaxsens import InputError
from jaxsens.core.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Architecture
from jaxsens.pretrained.families.options import IRRELEVANT, LIBRARY
from jaxsens.pretrained.families.rotation import RotaryAngles
from tests.pretrained.folders import write_folder
from tools.pretrained_published import REFUSED, errors_of, known, published

IDS = [2, 9, 17, 8, 3]
INERT = {"auto_map": {"AutoModel": "modeling_own.Own"}, "offset_alibi": 100, "pruned_heads": {"0": [1]},
    "norm_type": "layer_norm", "made_up": [1, 2]}  # fmt: skip
"""Options that no class of the library reads."""


def test_the_table_is_made_of_the_librarys_source():
    pytest.importorskip("transformers")
    from tools.pretrained_library import table

    made = table()
    if made["transformers"] != LIBRARY["transformers"]:
        pytest.skip(f"the table is that of transformers {LIBRARY['transformers']}")
    assert json.loads(json.dumps(made)) == LIBRARY


def test_the_table_has_every_family_with_two_models_and_every_irrelevant_option_is_read():
    assert list(LIBRARY["families"]) == list(FAMILIES)
    own = LIBRARY["families"].values()
    assert set(LIBRARY["shared"]).union(*([*one["defaults"], *one["reads"]] for one in own)) >= IRRELEVANT
    assert not list(known(FAMILIES))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3"])
def test_what_the_library_does_not_read_changes_no_row_and_no_word_is_said(family, tmp_path):
    write_folder(tmp_path, family)
    before = np.asarray(jaxsens.load_pretrained(tmp_path)(IDS))
    write_folder(tmp_path, family, options=INERT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = np.asarray(jaxsens.load_pretrained(tmp_path)(IDS))
    np.testing.assert_array_equal(before, after)


def test_a_misspelt_option_is_named_and_read_by_nobody(tmp_path):
    write_folder(tmp_path, "bert", options={"pad_token_idx": 0})
    with pytest.warns(UserWarning, match="pad_token_idx: no option of bert.*did you mean 'pad_token_id'"):
        jaxsens.load_pretrained(tmp_path)


def test_an_option_under_its_other_name_is_the_same(tmp_path):
    config, _ = write_folder(tmp_path, "gpt2")
    before = np.asarray(jaxsens.load_pretrained(tmp_path)(IDS))
    config["hidden_size"] = config.pop("n_embd")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}), encoding="utf-8")
    np.testing.assert_array_equal(np.asarray(jaxsens.load_pretrained(tmp_path)(IDS)), before)


@pytest.mark.parametrize(
    ("family", "base"),
    [
        ("llama", 1e4),
        ("mixtral", 1e6),
        ("smollm3", 2e6),
        ("cohere", 5e5),
        ("olmo3", 5e5),
        ("gemma3_text", 1e4),
    ],
)
def test_absent_options_have_the_librarys_defaults(family, base):
    problems = Problems("config.json")
    options = FAMILIES[family].options({}, "config.json", problems)
    a = FAMILIES[family].architecture(options)
    problems.raise_if_any()
    assert isinstance(a.rotary[0], RotaryAngles)
    assert a.rotary[0].base == base
    assert a.width == LIBRARY["families"][family]["defaults"]["hidden_size"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_absent_null_default_and_other_gives_the_librarys_rows_or_is_refused(family):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tools.pretrained_options import counts

    found, told = counts(family)
    assert not found["different"], told
    assert found["equal"] > 50, found


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
