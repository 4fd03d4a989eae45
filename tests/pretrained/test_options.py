"""Which options of a config.json matter, and what those that are absent are: as the library has it."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.options import IRRELEVANT, LIBRARY
from jaxsens.pretrained.families.rotation import RotaryAngles
from tests.pretrained.folders import write_folder

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


def test_the_table_has_every_family_and_every_irrelevant_option_is_read():
    assert list(LIBRARY["families"]) == list(FAMILIES)
    own = LIBRARY["families"].values()
    assert set(LIBRARY["shared"]).union(*([*one["defaults"], *one["reads"]] for one in own)) >= IRRELEVANT


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
