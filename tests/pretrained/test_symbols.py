"""Which symbols a folder's tokenizer and model read: added ones beyond the matrix, padding; beside transformers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import jaxsens
from tests.pretrained.folders import write_tokenizer
from tests.pretrained.oracle import DECODER, ENCODER, SYMBOLS, Case, class_of, save, torch, transformers
from tests.refusals import refusal, refused

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
            assert "does not count as a position" in refused("ids", model, ids)
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
    assert f"has the id {SYMBOLS}" in refused("text", model.encode, f"the {added}")
    assert SYMBOLS not in (*model.special, *model.reserved)
    assert model.mask is None
    assert len(jaxsens.flip_sensitivity(model, model.encode("the cat sat"), progress=False).norms)
    table["model"]["vocab"]["beyond"] = SYMBOLS + 1  # not added: of another model
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with refusal("tokenizer.json: largest id"):
        jaxsens.load_pretrained(tmp_path)


ESM2 = list("LAGVSERTIDPKQNFYMHWCXBUZO.-")
ESM2 = ["<cls>", "<pad>", "<eos>", "<unk>", *ESM2, "<null_1>", "<mask>"]


def test_esm_reads_its_vocabulary_as_the_library_does(tmp_path):
    save(Case("esm", "vocab.txt"), tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(ESM2))
    library = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    generator = np.random.default_rng(0)
    parts = [*ESM2, *"MKTb jx", " ", "  ", "\n", "\x1c", "lmk", "<null", "_1>", "é"]
    texts = [
        "MKTAYIAKQR",
        "M K<mask>T",
        " MB ",
        *("".join(generator.choice(parts, k)) for k in range(1, 200)),
    ]
    for beside in (True, False):  # the library reads vocab.txt even beside a tokenizer.json
        if not beside:
            (tmp_path / "tokenizer.json").unlink()
        model = jaxsens.load_pretrained(tmp_path)
        read = model.tokenizer
        assert [read.encode(text, True) for text in texts] == [library(text).input_ids for text in texts]
        assert [read.encode(text, False) for text in texts] == [
            library(text, add_special_tokens=False).input_ids for text in texts
        ]
    assert model.special == tuple(sorted(library.all_special_ids))
    assert model.mask == library.mask_token_id
    assert model.tokens(model.encode("MK")) == ["<cls>", "M", "K", "<eos>"]
    assert jaxsens.flip_sensitivity(model, model.encode("MKT"), progress=False).norms.size
    for bad in (b"<cls>\nL\nL", b"\xff", b"L\nA"):
        (tmp_path / "vocab.txt").write_bytes(bad)
        refused("folder", jaxsens.load_pretrained, tmp_path)


@pytest.mark.parametrize("kind", ["BertTokenizer", "GPT2Tokenizer", "EsmTokenizer"])
def test_the_command_that_makes_a_tokenizer_json_makes_it_or_fails(kind, tmp_path):
    save(Case("bert", "tokenizer"), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    words = [*ESM2, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "vocab.json").write_text(json.dumps({word: k for k, word in enumerate("abcdefgh")}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with refusal("folder") as raised:
        jaxsens.load_pretrained(tmp_path)
    command = next(line for line in str(raised.value).splitlines() if "python -c" in line)
    program = [sys.executable, *shlex.split(command[command.index("python -c") :])[1:]]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    written = (tmp_path / "tokenizer.json").is_file()
    assert written == (kind != "EsmTokenizer") == (ended.returncode == 0), ended.stderr
    assert written or "backend_tokenizer" in ended.stderr


TOKEN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}


@pytest.mark.parametrize(
    ("beside", "followed"),
    [
        ({}, True),
        ({"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}, True),
        ({"do_lower_case": False}, False),
        ({"strip_accents": False}, False),
        ({"tokenize_chinese_chars": False}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, True),
        ({"tokenizer_class": "MPNetTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]"}, True),
        ({"tokenizer_class": "MPNetTokenizerFast", "unk_token": "[PAD]"}, False),
        ({"unk_token": "[PAD]"}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[PAD]"}, True),
        ({"mask_token": "<hole>"}, True),
        ({"mask_token": "cat"}, True),
        ({"pad_token": {**TOKEN, "content": "<more>", "__type": "AddedToken"}}, True),
        ({"added_tokens_decoder": {"18": {**TOKEN, "content": "<|im_start|>"}}}, True),
        ({"added_tokens_decoder": {"9": {**TOKEN, "content": "cat", "lstrip": True}}}, True),
        ({"added_tokens_decoder": {"9": {**TOKEN, "content": "cat", "other": True}}}, True),
        ({"added_tokens_decoder": {"30": {**TOKEN, "content": "<|im_start|>"}}}, False),
        ({"add_bos_token": True, "bos_token": "[CLS]", "add_eos_token": True, "eos_token": "[SEP]"}, True),
        ({"normalizer": {"lowercase": False}}, False),
        ({"normalizer": {"strip_accents": False}}, False),
        ({"normalizer": {"handle_chinese_chars": False}}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "normalizer": {"strip_accents": False}}, True),
    ],
)
def test_what_tokenizer_config_says_is_followed_or_refused(beside, followed, tmp_path):
    save(Case("bert", "tokenizer"), tmp_path)
    table = json.loads((tmp_path / "tokenizer.json").read_text())
    options = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    options |= beside.get("normalizer", {})
    table |= {
        "normalizer": {"type": "BertNormalizer", **options},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "added_tokens": table["added_tokens"][:-1],  # without [MASK], which the class may have
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    beside = {"tokenizer_class": "BertTokenizer"} | {k: v for k, v in beside.items() if k != "normalizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
    if not followed:
        with pytest.raises(jaxsens.InputError, match=r"tokenizer_config\.json: "):
            jaxsens.load_pretrained(tmp_path)
        return
    model = jaxsens.load_pretrained(tmp_path)
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (
        "the Cat sat",
        "a <hole> cat",
        "on<|im_start|>mat",
        "the <more> Dog",
        "a <mask>",
        "the [MASK]",
        "the Cat sat é",
    ):
        assert model.tokenizer.encode(text, True) == library(text).input_ids, text
    if library.mask_token in model.tokenizer.vocabulary.values():
        wanted = library.mask_token_id
        assert model.mask == (wanted if wanted < SYMBOLS else None)


def test_what_the_library_of_tokenizers_raises_is_one_error(tmp_path, monkeypatch):
    save(Case("bert", "tokenizer"), tmp_path)
    table = json.loads((tmp_path / "tokenizer.json").read_text())
    table["model"] = {"type": "WordLevel", "vocab": table["model"]["vocab"], "unk_token": "?"}
    table["model"]["unk_token"] = ""
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(jaxsens.InputError, match="the library of tokenizers fails with it"):
        jaxsens.load_pretrained(tmp_path).encode("the elephant")
    write_tokenizer(tmp_path)
    import tokenizers

    class PanicException(BaseException):  # as of its Rust
        pass

    def panics(_):
        raise PanicException("index out of bounds")

    monkeypatch.setattr(tokenizers, "Tokenizer", type("Panics", (), {"from_str": staticmethod(panics)}))
    assert "index out of bounds" in refused("folder", jaxsens.load_pretrained, tmp_path)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("GPT2Tokenizer", ""),
        ("RobertaTokenizer", ""),
        ("PreTrainedTokenizerFast", ""),
        *(("LlamaTokenizer", scheme) for scheme in ("first", "always", "never", "normaliser")),
        *(("LlamaTokenizerFast", scheme) for scheme in ("always", "bytes")),
    ],
)
@pytest.mark.parametrize(
    "option",
    [{}, {"add_prefix_space": True}, {"add_prefix_space": False}, {"add_bos_token": True}, {"legacy": True}],
)
def test_no_folder_gives_other_ids_than_the_library(kind, scheme, option, tmp_path):
    save(Case("gpt2", "tokenizer"), tmp_path)
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words, llama = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"], kind.startswith("Llama") and scheme != "bytes"
    space = "\u2581" if llama else "\u0120"
    ids = {one: k for k, one in enumerate([*words, "a", "b", "c", "d", space, "ab", space + "a"])}
    made = Tokenizer(models.BPE(ids, [("a", "b"), (space, "a")], unk_token="<unk>" if llama else None))
    if scheme == "normaliser":
        made.normalizer = normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)])
    elif llama:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    made.add_special_tokens(words)
    if kind == "RobertaTokenizer":
        made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    made.save(str(tmp_path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names |= {"mask_token": "<mask>"} if kind == "RobertaTokenizer" else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **names, **option}))
    library = transformers.AutoTokenizer.from_pretrained(tmp_path)
    # For other texts, the library's Llama differs from such a tokenizer.json, as docs/reference/families.md says.
    texts = ("ab cd", "c  ab") if scheme == "normaliser" else ("ab cd", " ab", "a<s>b d", "c  ab")
    wanted = [library(text).input_ids for text in texts]
    if wanted != [made.encode(text).ids for text in texts]:
        with pytest.raises(jaxsens.InputError, match=r"tokenizer_config\.json: (add_prefix_space|legacy) ="):
            jaxsens.load_pretrained(tmp_path)
        return
    model = jaxsens.load_pretrained(tmp_path)
    assert [model.tokenizer.encode(text, True) for text in texts] == wanted
