"""Which symbols a folder's tokenizer and model read: added ones beyond the matrix, padding; beside transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import jaxsens
from tests.pretrained.oracle import DECODER, ENCODER, SYMBOLS, Case, class_of, save, torch, transformers

UNCOUNTED = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families whose positions are counted from symbols that are no padding."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(one, "padding"), id=one, marks=() if one in ("opt", "roberta", "esm") else pytest.mark.slow
        )
        for one in (*ENCODER, *DECODER)
    ]
    + [pytest.param(Case("esm", "absolute", {"position_embedding_type": "absolute"}), id="esm absolute")],
)
def test_padding_is_refused_only_where_it_changes_the_positions_of_other_symbols(case, tmp_path):
    save(case, tmp_path)
    theirs = getattr(transformers, class_of(case)).from_pretrained(tmp_path).eval().base_model
    padding = getattr(theirs.config, "pad_token_id", None)
    model = jaxsens.load_pretrained(tmp_path)
    for symbol in {0, 1, padding} - {None}:
        ids = [7, symbol, 9, 11]
        if symbol == model.padding:
            assert case.family in UNCOUNTED or case.name == "absolute"
            with pytest.raises(jaxsens.InputError, match="does not count as a position"):
                model(ids)
            continue
        with torch.no_grad():
            wanted = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(np.asarray(model(ids)), wanted, atol=2e-5 * max(1, np.abs(wanted).max()))
    assert (model.padding is not None) == (case.family in UNCOUNTED or case.name == "absolute")


@pytest.mark.parametrize("added", ["[MASK]", "<image>"])
def test_a_text_with_an_added_symbol_beyond_the_matrix_is_refused_and_others_are_read(added, tmp_path):
    save(Case("bert", "symbols"), tmp_path)
    table = json.loads((tmp_path / "tokenizer.json").read_text())
    own = [one for one in table["added_tokens"] if one["content"] != added]
    del table["model"]["vocab"]["[MASK]"]
    table["model"]["vocab"] |= {f"w{k}": k for k in (4, *range(18, SYMBOLS))}
    table["added_tokens"] = [*own, {**own[0], "content": added, "id": SYMBOLS}]
    table["added_tokens"] = [
        one for one in table["added_tokens"] if one["content"] != "[MASK]" or one["id"] == SYMBOLS
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    model = jaxsens.load_pretrained(tmp_path)
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert model.encode("the cat sat") == library("the cat sat").input_ids
    assert library(f"the {added}").input_ids[2] == SYMBOLS
    with pytest.raises(
        jaxsens.InputError, match=rf"has the id {SYMBOLS}; the model reads ids up to {SYMBOLS - 1}"
    ):
        model.encode(f"the {added}")
    assert SYMBOLS not in (*model.special, *model.reserved)
    assert model.mask is None
    assert len(jaxsens.flip_sensitivity(model, model.encode("the cat sat"), progress=False).norms)
    table["model"]["vocab"]["beyond"] = SYMBOLS + 1  # not added: of another model
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(jaxsens.InputError, match="it belongs to another model"):
        jaxsens.load_pretrained(tmp_path)
