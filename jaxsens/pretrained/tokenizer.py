"""Text to ids and back, by the tokenizer of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import read_within
from jaxsens.core.base.inputs import LARGEST_ID, is_count
from jaxsens.pretrained.folder import MOST_BYTES, TOKENIZER_CONFIG, VOCABULARY, read_json

UNUSED = re.compile(
    r"[\[<]unused[_ -]?\d+[\]>]|<\|(reserved|unused|extra|placeholder)\w*\|>|madeupword\d+|<reserved\w*>",
    re.IGNORECASE,
)
"""Symbols that stand in a vocabulary's gaps and occur in no text."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece names a byte."""

_MOST_GROWTH = 1000

_LONGEST_CHARACTER = 4
"""Bytes of a character, so ids of one at most."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "BertTokenizer": {f"{one.lower()}_token": f"[{one}]" for one in ("UNK", "SEP", "PAD", "CLS", "MASK")},
    "MPNetTokenizer": {
        **dict.fromkeys(("bos_token", "cls_token"), "<s>"),
        **dict.fromkeys(("eos_token", "sep_token"), "</s>"),
        "unk_token": "[UNK]",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "LlamaTokenizer": {"legacy": False, "add_prefix_space": True},
}
"""What the library's classes have where tokenizer_config.json is silent, and tokenizer.json may contradict."""


@dataclass(frozen=True, eq=False)
class FolderTokenizer:
    """The tokenizer of a folder, which neither pads nor cuts off.

    Attributes:
        tokenizer: a `tokenizers.Tokenizer`.
        decoders: the kinds of parts that its decoder has.
        unknown: the id that stands for unknown words; None if there is none.
        mask_token: the symbol for an unknown one, if tokenizer_config.json names it.
    """

    tokenizer: Any
    decoders: frozenset[str]
    unknown: int | None = None
    mask_token: str | None = None

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
        """The id of `mask_token`, or of the symbol as BERT ([MASK]) and RoBERTa (<mask>) write it; None without one."""
        written = ("[MASK]", "<mask>") if self.mask_token is None else (self.mask_token,)
        named = (k for k in self.special if self.added[k].content in written)
        return next(named, None)

    def reserved(self, symbols: int) -> tuple[int, ...]:
        """Returns the ids below `symbols` that are special, unused, or unknown to the tokenizer, sorted."""
        known = self.vocabulary
        unused = (k for k in range(symbols) if k not in known or UNUSED.fullmatch(known[k]))
        return tuple(sorted({*(k for k in self.special if k < symbols), *unused}))

    def encode(self, text: str, special: bool) -> list[int]:
        """Returns the ids of a text, with those that its template adds if `special`."""
        return list(_asked(self.tokenizer.encode, text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        """Returns the text of some ids, special ones included."""
        return _asked(self.tokenizer.decode, ids, skip_special_tokens=False)

    def pieces(self, text: str) -> list[str]:
        """Returns the part of a text for which each of its ids stands, by their offsets into it: joined, they are the
        text. White space that no id covers, and what the normaliser leaves out, go to the id after or before. Special
        symbols around the text are named, with blanks between. A character of several ids is the last one's.
        """
        found = _asked(self.tokenizer.encode, text)
        around, offsets = found.special_tokens_mask, found.offsets
        pieces = [self.piece(one) for one in found.ids]
        covering = [k for k, (start, stop) in enumerate(offsets) if stop > start and not around[k]]
        untils, end = dict(zip(covering, [offsets[k][0] for k in covering[1:]], strict=False)), 0
        for k, (start, stop) in enumerate(offsets):
            until, held = untils.get(k, len(text)), end
            if k in covering:
                held = max(end, min(stop, until), start + len(text[start:until].rstrip()))
            elif pieces[k].isspace() and text.startswith(pieces[k], end):  # whose offsets were trimmed
                held = end + len(pieces[k])
            if not around[k]:
                pieces[k], end = text[end:held], held
        if covering:
            pieces[covering[-1]] += text[end:]
        for k in range(1, len(pieces)):
            if around[k] or (around[k - 1] and pieces[k] and not pieces[k][0].isspace()):
                pieces[k] = f" {pieces[k]}"
        return pieces

    def decoded(self, ids: list[int]) -> list[str]:
        """Returns what each id adds to the text that the tokenizer decodes; "" before the last id of a character."""
        pieces, before, begun = [], [], []
        for one in ids:
            begun.append(one)
            piece = self.decode([*before, *begun])[len(self.decode(before)) :]
            if piece.endswith("\ufffd") and len(begun) < _LONGEST_CHARACTER:
                piece = ""
            else:
                before, begun = begun, []
            pieces.append(piece)
        return pieces

    def piece(self, number: int) -> str:
        """Returns how to write one id: its text, with a space before it if the tokenizer says that it begins a word.

        Bytes that are no text of their own are written as \\xe2, and an id without a symbol as <id 7>.
        """
        text = self.vocabulary.get(number)
        if text is None:
            return f"<id {number}>"
        if number in self.added:
            return text
        if "ByteLevel" in self.decoders and all(one in _BYTES for one in text):
            return bytes(_BYTES[one] for one in text).decode("utf-8", errors="backslashreplace")
        if "ByteFallback" in self.decoders and (byte := _BYTE.fullmatch(text)):
            return bytes.fromhex(byte[1]).decode("utf-8", errors="backslashreplace")
        return text if "WordPiece" in self.decoders else text.replace("\u2581", " ")


def _asked(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Returns what the library `tokenizers` returns. Raises InputError for what it raises, its panics included."""
    try:
        return function(*given, **named)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is no Exception
        raise InputError(f"tokenizer.json: the library of tokenizers fails with it: {error}") from error


def read_tokenizer(
    path: Path, beside: Path | None, symbols: int, problems: Problems
) -> FolderTokenizer | None:
    """Returns the tokenizer of a tokenizer.json, or of ESM's vocab.txt; None after adding an error.

    Args:
        path: the file.
        beside: its tokenizer_config.json, if it has one.
        symbols: the number of symbols that the model reads; 0 if unknown.
        problems: collects the errors.
    """
    from tokenizers import Tokenizer

    before = len(problems)
    table = _by_symbol(path, problems) if path.name == VOCABULARY else read_json(path, problems)
    _check_words(table, symbols, problems)
    _check_growth(table, problems)
    if len(problems) > before:
        return None
    try:
        tokenizer = _asked(Tokenizer.from_str, json.dumps(table))
    except InputError as error:
        problems.add("folder", str(path), f"not readable as a tokenizer ({error}); download it again")
        return None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    mask = None if beside is None else _follow(read_json(beside, problems), tokenizer, table, problems)
    named = (one.get("type") for one in _nodes(table.get("decoder")))
    kinds, model = frozenset(kind for kind in named if isinstance(kind, str)), table["model"]
    unknown = model.get("unk_id") if (word := model.get("unk_token")) is None else tokenizer.token_to_id(word)
    made = FolderTokenizer(tokenizer, kinds, unknown, mask)
    if not made.vocabulary:
        problems.add("folder", str(path), "it has no symbols; download it again")
    for text, number in _added(table).items():
        if tokenizer.token_to_id(text) != number:
            told = f"{text!r} is to have this id, but it gets {tokenizer.token_to_id(text)}: ids have no gaps"
            problems.add("tokenizer.json: added_tokens: id", number, told)
    return made


def _by_symbol(path: Path, problems: Problems) -> dict[str, Any]:
    """Returns what a tokenizer.json says of ESM's tokenizer: every symbol of a vocab.txt is one wherever it stands."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

    try:
        words = [line.strip() for line in read_within(path, MOST_BYTES).decode("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        problems.add("folder", str(path), f"not readable as text ({error}); download it again")
        return {}
    ids = {word: k for k, word in enumerate(words)}
    if len(ids) < len(words) or not {"<cls>", "<eos>", "<unk>"} <= ids.keys():
        remedy = "every symbol once, and <cls>, <eos> and <unk> among them; download it again"
        problems.add("folder", str(path), remedy)
        return {}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed")  # Python's spaces
    made.add_tokens([AddedToken(one, normalized=False) for one in words])
    made.add_special_tokens([one for one in ("<unk>", "<cls>", "<pad>", "<mask>", "<eos>") if one in ids])
    named = [(one, ids[one]) for one in ("<cls>", "<eos>")]
    made.post_processor = processors.TemplateProcessing(single="<cls> $A <eos>", special_tokens=named)
    return json.loads(made.to_str())


def _follow(config: dict[str, Any], tokenizer: Any, table: dict[str, Any], problems: Problems) -> str | None:
    """Adds the symbols that a tokenizer_config.json names, as the library does, and errors for what contradicts it.
    Returns the mask that it names."""
    from tokenizers import AddedToken

    where, decoder = TOKENIZER_CONFIG, config.get("added_tokens_decoder")
    pairs = decoder.items() if isinstance(decoder, dict) else ()
    listed = [(number, one) for number, one in pairs if isinstance(one, dict)]
    for number, one in sorted(listed, key=lambda pair: (len(pair[0]), pair[0])):
        text, kinds = one.get("content"), ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {key: one[key] for key in kinds if isinstance(one.get(key), bool)}
        tokenizer.add_tokens([AddedToken(text, **flags)] if isinstance(text, str) else [])
        if str(tokenizer.token_to_id(str(text))) != number:
            told = f"{text!r} has the id {tokenizer.token_to_id(str(text))} by tokenizer.json"
            problems.add(f"{where}: added_tokens_decoder", number, told)
    nodes = list(_nodes([table.get("normalizer"), table.get("pre_tokenizer")]))
    kind = str(config.get("tokenizer_class"))
    if kind.startswith("LlamaTokenizer") and any(node.get("type") == "ByteLevel" for node in nodes):
        kind = "TokenizersBackend"  # as which the library reads it
    defaults = _DEFAULTS.get(kind.removesuffix("Fast"), {})
    named = {k: one for k, one in {**defaults, **config}.items() if re.fullmatch(r"[a-z]+_token", k)}
    texts = {key: one.get("content") if isinstance(one, dict) else one for key, one in named.items()}
    known = {one.content for one in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens([one for one in texts.values() if isinstance(one, str) and one not in known])
    said: dict[str, Any] = {}
    if table["model"].get("type") == "WordPiece":
        said["unk_token"], config = table["model"].get("unk_token"), {**config, **texts}
    generic = ("PreTrainedTokenizerFast", "TokenizersBackend")  # which do not read these
    for node in nodes:
        if node.get("type") == "BertNormalizer":
            lower, accents = node.get("lowercase"), node.get("strip_accents")
            said |= {"do_lower_case": lower, "strip_accents": lower if accents is None else accents}
            said["tokenize_chinese_chars"] = node.get("handle_chinese_chars")
            config = {
                "do_lower_case": True,
                "tokenize_chinese_chars": True,
                **config,
            }  # the library's defaults
            if config.get("strip_accents") is None:
                config["strip_accents"] = config["do_lower_case"]
        if node.get("type") in ("ByteLevel", "Metaspace", "Prepend"):
            said["add_prefix_space"] = node.get("add_prefix_space", node.get("prepend_scheme") != "never")
        if node.get("type") == "Metaspace" and node.get("prepend_scheme") != "never" and "legacy" in defaults:
            said["legacy"] = node.get("prepend_scheme") != "first"
    for key, value in said.items():
        given = defaults.get(key, value) if config.get(key) is None else config[key]
        if isinstance(given, bool | str) and given != value and kind not in generic:
            remedy = f"tokenizer.json says {value}; keep the one that the model was trained with"
            problems.add(f"{where}: {key}", given, remedy)
    return texts["mask_token"] if isinstance(texts.get("mask_token"), str) else None


def _check_growth(table: dict[str, Any], problems: Problems) -> None:
    """Adds errors for a tokenizer that draws at random, and for one that makes a long text of a short one."""
    model = table.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        remedy = "0 or null: the same text is to have the same ids each time"
        problems.add("tokenizer.json: model: dropout", model["dropout"], remedy)
    growth = 1.0
    for node in _nodes([table.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]):
        pattern, content = node.get("pattern"), node.get("content")
        if isinstance(pattern, dict) and isinstance(content, str):
            replaced = str(pattern.get("String") or "").encode()  # of a regular expression, perhaps nothing
            growth *= max(1.0, len(content.encode()) / max(1, len(replaced)) + (not replaced))
    if growth > _MOST_GROWTH:
        told = f"replacements that may make a text {growth:.3g} times as long; at most {_MOST_GROWTH}"
        problems.note("tokenizer.json", f"it has {told}: download it again")


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
        other = f"and {words[text]} in the vocabulary; download it again"
        problems.add("tokenizer.json: id", added[text], f"{text!r} has this id among added_tokens, {other}")
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


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the tables within a part of a tokenizer.json."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    for below in part if isinstance(part, list) else ():
        yield from _nodes(below)


_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
_OTHERS = enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + k): byte for k, byte in _OTHERS}
"""The byte that each character of GPT-2's alphabet stands for: printable ones for themselves."""
