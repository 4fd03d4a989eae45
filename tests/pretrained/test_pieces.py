"""What stands in a text for each symbol, by tokenizers of every kind; and pictures of it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import jaxsens
from jaxsens.core.base.errors import collecting
from jaxsens.core.results.picture import text_pieces
from jaxsens.core.results.plot import families
from jaxsens.pretrained.tokenizer import FolderTokenizer, read_tokenizer
from tests.pretrained.folders import write_folder
from tests.refusals import refused

SEEN = [
    "the cat sat on the mat",
    "今天天气很好",
    "###Title",
    "café don't",
    "שלום עולם",
    "line\nbreak",
    "##a",
] * 4


def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(
        SEEN, trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    )
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def byte_level(trimmed: bool = True) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(
        SEEN, trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    made.post_processor = processors.ByteLevel(trim_offsets=trimmed)
    return made


def untrimmed() -> Tokenizer:
    return byte_level(trimmed=False)


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        SEEN, trainers.UnigramTrainer(vocab_size=100, unk_token="<unk>", special_tokens=["<unk>", "</s>"])
    )
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


def byte_fallback() -> Tokenizer:
    words = [
        "<unk>",
        "<s>",
        *(f"<0x{k:02X}>" for k in range(256)),
        "\u2581",
        *"abcehimnorst#T",
        "th",
        "\u2581th",
    ]
    pairs = [("t", "h"), ("\u2581", "th")]
    ids = {word: k for k, word in enumerate(words)}
    made = Tokenizer(models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    parts = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    made.decoder = decoders.Sequence(parts)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


KINDS = (wordpiece, byte_level, untrimmed, unigram, byte_fallback)
TEXTS = (
    "###Title",
    "今天天气很好, the cat",
    "the cat 🙂👩\u200d👧 sat",
    "cafe\u0301 don't  stop ",
    "line\n\nbreak\tx\r\ny",
    "שלום the עולם",
    " two [UNK] ½ ﬁ",
    "\u2028a\x85b",
)


def read(made: Tokenizer, folder: Path) -> FolderTokenizer:
    made.save(str(folder / "tokenizer.json"))
    with collecting("test") as problems:
        found = read_tokenizer(folder / "tokenizer.json", None, 0, problems)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_of_a_text_are_the_text(kind, text, tmp_path):
    tokenizer = read(kind(), tmp_path)
    encoding, pieces = tokenizer.tokenizer.encode(text), tokenizer.pieces(text)
    assert len(pieces) == len(encoding.ids)
    own = [one for one, around in zip(pieces, encoding.special_tokens_mask, strict=True) if not around]
    assert "".join(own).removeprefix("" if text[0].isspace() else " ") == text
    # ids alone are written as the tokenizer decodes them
    assert "".join(tokenizer.decoded(list(encoding.ids))).strip() == tokenizer.decode(encoding.ids).strip()


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (wordpiece, "###Title 今天", "[CLS] #|#|#|Title 今|天 [SEP]"),
        (byte_level, "今天 🙂", "今|天|␣|◦|◦|◦|🙂"),
        (byte_fallback, "th\n今", "<s> th|↵\n|◦|◦|今"),
        (unigram, "שלום", "◦|ש|ל|ו|ם </s>"),
    ],
)
def test_each_symbol_is_shown_where_it_stands(kind, text, shown, tmp_path):
    pieces = text_pieces(read(kind(), tmp_path).pieces(text))
    assert "".join((space or "|" * (k > 0)) + own for k, (space, own) in enumerate(pieces)) == shown


@pytest.mark.long
def test_pictures_and_files_have_the_text_itself(tmp_path):
    write_folder(tmp_path, "bert")
    model, text = jaxsens.load_pretrained(tmp_path), "the CAT,\nsat"
    flips = jaxsens.Substitute([9, 11])
    result = jaxsens.flip_sensitivity(model, text, flips)
    assert result.pieces == (("[CLS]", " the", " CAT", ",", "\nsat", " [SEP]"),)
    result.save(tmp_path / "r.parquet")
    assert jaxsens.load_result(tmp_path / "r.parquet").pieces == result.pieces
    page = result._repr_html_()
    assert ">CAT</span>" in page
    assert "\n<span" in page
    first, second = jaxsens.flip_sensitivity(model, [text, "the cat sat"], flips)
    assert first.pieces == result.pieces
    assert second.pieces == (("[CLS]", " the", " cat", " sat", " [SEP]"),)
    assert jaxsens.flip_sensitivity(model, model.encode("the cat sat"), flips).pieces == second.pieces
    for texts in (np.array([text, "the cat sat"]), pd.Series([text, "the cat sat"], index=[7, 9])):
        columns: Any = jaxsens.flip_sensitivity(model, texts, flips)
        assert [one.pieces for one in columns] == [first.pieces, second.pieces]
    given = {"input_ids": [model.encode("the cat sat")], "attention_mask": [[1] * 5]}
    assert jaxsens.flip_sensitivity(model, given, flips).pieces == second.pieces


def test_characters_beyond_the_font_are_drawn_by_another_or_named():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert families(["plain שלום"]) == ["DejaVu Sans"]
        found = families(["\u1d81"])  # which Matplotlib's own fonts have, but not the one that pictures use
        assert found[0] == "DejaVu Sans"
        assert len(found) == 2
    with pytest.warns(UserWarning, match="no font here draws '\U00012000' .Cuneiform.: pictures show boxes"):
        families(["\U00012000"])


def test_half_a_character_and_a_word_that_the_tokenizer_does_not_know_are_refused(tmp_path):
    write_folder(tmp_path, "bert")
    model = jaxsens.load_pretrained(tmp_path, output="logits")
    for call in (model.encode, model.token_id, lambda one: jaxsens.flip_sensitivity(model, one)):
        for text in ("w \ud83d w", "\udcff"):
            assert "half of an emoji or other character" in refused("text", call, text)
    assert model.token_id("[UNK]") == 1
    measure = jaxsens.LogProbability("zebra")
    assert "zebra" in refused("text", jaxsens.flip_sensitivity, model, "the cat", [9], measure)
    table = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert table["model"]["unk_token"] == "[UNK]"
    (tmp_path / "unigram").mkdir()
    assert read(unigram(), tmp_path / "unigram").unknown == 0
