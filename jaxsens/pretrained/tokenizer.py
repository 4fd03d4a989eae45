"""Text to ids and back, by the tokenizer of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxsens.base.errors import Problems
from jaxsens.base.inputs import LARGEST_ID, is_count
from jaxsens.base.files import read_within
from jaxsens.pretrained.folder import MOST_BYTES, VOCABULARY, read_json

UNUSED = re.compile(
    r"[\[<]unused[_ -]?\d+[\]>]|<\|(reserved|unused|extra|placeholder)\w*\|>|madeupword\d+|<reserved\w*>",
    re.IGNORECASE,
)
"""Symbols that stand in a vocabulary's gaps and occur in no text."""


@dataclass(frozen=True, eq=False)
class FolderTokenizer:
    """The tokenizer of a folder, which neither pads nor cuts off.

    Attributes:
        tokenizer: a `tokenizers.Tokenizer`.
        in_bytes: whether the pieces of text are written byte by byte, in the alphabet of GPT-2.
    """

    tokenizer: Any
    in_bytes: bool

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """The symbol of each id, as the tokenizer stores it."""
        return {number: text for text, number in self.tokenizer.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def added(self) -> dict[int, Any]:
        """The symbols that are no pieces of text, such as [CLS], by id."""
        return dict(self.tokenizer.get_added_tokens_decoder())

    @cached_property
    def special(self) -> tuple[int, ...]:
        """The ids that are marked as special, sorted."""
        return tuple(sorted(number for number, one in self.added.items() if one.special))

    @cached_property
    def mask(self) -> int | None:
        """The id of the symbol for an unknown one, as BERT ([MASK]) and RoBERTa (<mask>) write it; None without one."""
        named = (k for k in self.special if self.added[k].content in ("[MASK]", "<mask>"))
        return next(named, None)

    def reserved(self, symbols: int) -> tuple[int, ...]:
        """Returns the ids below `symbols` that are special, unused, or unknown to the tokenizer, sorted."""
        known = self.vocabulary
        unused = (k for k in range(symbols) if k not in known or UNUSED.fullmatch(known[k]))
        return tuple(sorted({*(k for k in self.special if k < symbols), *unused}))

    def encode(self, text: str, special: bool) -> list[int]:
        """Returns the ids of a text, with those that its template adds if `special`."""
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        """Returns the text of some ids, special ones included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def piece(self, number: int) -> str:
        """Returns how to write one id: its text, with a space before it if the tokenizer says that it begins a word.

        Bytes that are no text of their own are written as \\xe2, and an id without a symbol as <id 7>.
        """
        text = self.vocabulary.get(number)
        if text is None:
            return f"<id {number}>"
        if number in self.added:
            return text
        if self.in_bytes and all(one in _BYTES for one in text):
            return bytes(_BYTES[one] for one in text).decode("utf-8", errors="backslashreplace")
        return text.replace("\u2581", " ")


def read_tokenizer(path: Path, symbols: int, problems: Problems) -> FolderTokenizer | None:
    """Returns the tokenizer of a tokenizer.json, or of ESM's vocab.txt; None after adding an error.

    Args:
        path: the file.
        symbols: the number of symbols that the model reads; 0 if unknown.
        problems: collects the errors.
    """
    from tokenizers import Tokenizer

    before = len(problems.messages)
    table = _by_symbol(path, problems) if path.name == VOCABULARY else read_json(path, problems)
    _check_words(table, symbols, problems)
    if len(problems.messages) > before:
        return None
    try:
        tokenizer = Tokenizer.from_str(json.dumps(table))
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        problems.add("folder", str(path), f"not readable as a tokenizer ({error}); download it again")
        return None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    made = FolderTokenizer(tokenizer, any(kind == "ByteLevel" for kind in _types(table.get("decoder"))))
    if not made.vocabulary:
        problems.add("folder", str(path), "it has no symbols; download it again")
    for text, number in _added(table).items():
        if tokenizer.token_to_id(text) != number:
            told = f"{text!r} is to have this id, but it gets {tokenizer.token_to_id(text)}: ids have no gaps"
            problems.add("tokenizer.json: added_tokens: id", number, told)
    return made


def _by_symbol(path: Path, problems: Problems) -> dict[str, Any]:
    """Returns what a tokenizer.json says of ESM's tokenizer: every symbol of a vocab.txt is one wherever it stands."""
    try:
        words = [line.strip() for line in read_within(path, MOST_BYTES).decode("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        problems.add("folder", str(path), f"not readable as text ({error}); download it again")
        return {}
    if again := [word for k, word in enumerate(words) if word in words[:k]]:
        problems.add("folder", str(path), f"{again[0]!r} is there twice; download it again")
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    named = ("<unk>", "<cls>", "<pad>", "<mask>", "<eos>")
    ids = {word: k for k, word in enumerate(words)}
    added = [{"id": k, "content": word, "special": word in named, **plain} for word, k in ids.items()]
    single = [{"SpecialToken": {"id": one, "type_id": 0}} for one in ("<cls>", "<eos>")]
    single.insert(1, {"Sequence": {"id": "A", "type_id": 0}})
    around = {one: {"id": one, "ids": [ids.get(one)], "tokens": [one]} for one in ("<cls>", "<eos>")}
    template = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": around}
    spaces = {"pattern": {"Regex": r"[\s\x1c-\x1f]+"}, "behavior": "Removed", "invert": False}  # Python's
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    pieces = {"type": "Split", **spaces}
    parts = {"pre_tokenizer": pieces, "post_processor": template, "normalizer": None, "decoder": None}
    return {"version": "1.0", "added_tokens": added, "model": model, **parts}


def _check_words(table: dict[str, Any], symbols: int, problems: Problems) -> None:
    """Adds errors for ids that the model does not read, for two words of one id or two ids of one word, and for an
    unknown word that is none. `tokenizers` reads such files, and makes room for the largest id.

    What is of another form than tokenizers write is left to `tokenizers`, which refuses it.
    """
    model = table.get("model")
    words, added = _words(model), _added(table)
    pairs = [*words.items(), *((text, number) for text, number in added.items() if words.get(text) != number)]
    largest = max((number for text, number in words.items() if text not in added), default=0)
    if largest < (symbols or LARGEST_ID):  # the text that has an added symbol beyond the model's is refused
        symbols, largest = 0, max(added.values(), default=0)
    if largest >= (symbols or LARGEST_ID):
        remedy = f"the model reads ids 0 to {(symbols or LARGEST_ID) - 1}: it belongs to another model"
        problems.add("tokenizer.json: largest id", largest, remedy)
    by_id: dict[int, str] = {}
    for text, number in pairs:
        if by_id.setdefault(number, text) != text:
            both = f"of both {by_id[number]!r} and {text!r}; a word each: download it again"
            problems.add("tokenizer.json: id", number, both)
            break
    for text in [text for text in added if words.get(text, added[text]) != added[text]][:1]:
        both = (
            f"{text!r} has this id among added_tokens, and {words[text]} in the vocabulary; download it again"
        )
        problems.add("tokenizer.json: id", added[text], both)
    unknown = model.get("unk_token") if isinstance(model, dict) else None
    if isinstance(unknown, str) and unknown and words and unknown not in {**words, **added}:
        remedy = "a word of the vocabulary, which stands for unknown ones; download it again"
        problems.add("tokenizer.json: model: unk_token", unknown, remedy)


def _words(model: Any) -> dict[str, int]:
    """Returns the ids of the words of a tokenizer's model: a table of them, or of Unigram a list with scores."""
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        texts = [one[0] if isinstance(one, list) and one else None for one in vocabulary]
        return {text: k for k, text in enumerate(texts) if isinstance(text, str)}
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else ()
    return {text: number for text, number in pairs if is_count(number)}


def _added(table: dict[str, Any]) -> dict[str, int]:
    """Returns the ids of the words that are added to those of the model."""
    listed = table.get("added_tokens")
    tokens = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    pairs: list[tuple[Any, Any]] = [(one.get("content"), one.get("id")) for one in tokens]
    return {text: number for text, number in pairs if isinstance(text, str) and is_count(number)}


def _types(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        yield part.get("type")
        for below in part.values():
            yield from _types(below)
    elif isinstance(part, list):
        for below in part:
            yield from _types(below)


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte that each character of GPT-2's alphabet stands for: printable ones for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTES = _byte_alphabet()
