"""Small folders in the Hugging Face layout, written without transformers."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "slept", "##ing", "dog")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_table(encoder: bool, unused: int = 3) -> dict:
    """A WordPiece tokenizer of a few words: specials, unused symbols, then words. An encoder's adds [CLS] and [SEP]."""
    symbols = [*SPECIALS, *(f"[unused{k}]" for k in range(unused)), *WORDS]
    ids = {symbol: k for k, symbol in enumerate(symbols)}
    added = [
        {
            "id": ids[one],
            "content": one,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for one in SPECIALS
    ]
    around = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            one: {"id": one, "ids": [ids[one]], "tokens": [one]} for one in ("[CLS]", "[SEP]")
        },
    }
    around["pair"] = [*around["single"], {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 12},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": around if encoder else None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def write_tokenizer(folder: Path, encoder: bool = True) -> None:
    """Writes a tokenizer.json of 18 symbols."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_table(encoder)), encoding="utf-8")
