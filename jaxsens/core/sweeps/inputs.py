"""The words that are measured, and where: the `[inputs]` and `[placement]` tables of a config.

The words of a sweep depend on the seed and the length, never on the variant.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from pydantic import ConfigDict, Discriminator, Tag

from jaxsens.core.base.errors import TOKEN_BYTES, InputError, Problems, check_fits
from jaxsens.core.base.files import lines_of, read_text_within
from jaxsens.core.base.strict import STRICT, OptionalPositive, Positive, config
from jaxsens.core.models.parts.initialisation import generator

if TYPE_CHECKING:
    from jaxsens.core.placement.placement import Placement

MOST_BYTES = 2**26
"""The bytes of the longest file of words that is read."""

_LISTED = 20  # errors of a file of words that are listed


@dataclass(frozen=True)
class Symbols:
    """What the words are made of: symbols 0 .. alphabet_size - 1, and the end-of-sequence symbol of every input if any.

    It follows the word. Only models that predict the next symbol have it in front (`end_first`), where it says that a
    word begins: what they read out is then the prediction after the whole word.
    """

    alone: ClassVar[bool] = False
    """Whether models with other symbols, or with others around a word, cannot read the same words."""

    alphabet_size: int
    end_of_sequence: int | None
    end_first: bool = False

    @property
    def drawn(self) -> int:
        """How many symbols random words are drawn from."""
        return self.alphabet_size

    def word(self, numbers: Int[np.ndarray, "count m"]) -> Int[np.ndarray, "count m"]:
        """Random words, from the numbers that were drawn."""
        return numbers

    def table(self) -> dict[str, Any]:
        """What determines the words, as JSON values."""
        return asdict(self)

    def with_end(self, tokens: Int[np.ndarray, "count m"]) -> Int[np.ndarray, "count n"]:
        """The words, each with the end-of-sequence symbol after it, or in front, if there is one."""
        if self.end_of_sequence is None:
            return tokens
        added = (1, 0) if self.end_first else (0, 1)
        return np.pad(tokens, ((0, 0), added), constant_values=self.end_of_sequence)

    def without_end(self) -> Symbols:
        """The same alphabet without an end-of-sequence symbol."""
        return Symbols(self.alphabet_size, None)

    def word_length(self, n: int) -> int:
        """How many symbols the word of an input of length n has: the end-of-sequence symbol counts in n."""
        return n if self.end_of_sequence is None else n - 1


ALL = "all"

MOST_WORDS = 2**17
"""The largest number of words of `[inputs] kind = "all"`: each is an input with flips of its own."""


@dataclass(frozen=True)
class RandomWords:
    """Random words.

    Attributes:
        count: of words a point, drawn by its seed.
        kind: "uniform", every symbol drawn uniformly and independently from the alphabet; or "balanced", every symbol
            equally often, in random order. If the length is not a multiple of the alphabet's size, some symbols, drawn
            for each word, occur once more than the others.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    count: Positive = 1
    kind: Literal["uniform", "balanced"] = "uniform"

    def check(self, lengths: tuple[int, ...], problems: Problems) -> None:
        """Notes more words than fit in this machine's memory."""
        needed = self.count * max(lengths, default=0) * TOKEN_BYTES
        check_fits("inputs.count", self.count, needed, "a point of so many words", "give fewer", problems)

    def tokens(self, symbols: Symbols, n: int, seed: int) -> Int[np.ndarray, "count n"]:
        """The inputs of one length and seed, int64."""
        size, m = symbols.drawn, symbols.word_length(n)
        if self.kind == "uniform":
            tokens = generator(seed, f"inputs.n={n}").integers(0, size, size=(self.count, m))
        else:
            draw = generator(seed, f"balanced.n={n}")
            orders = draw.permuted(np.tile(np.arange(size), (self.count, 1)), axis=1)
            tokens = draw.permuted(orders[:, np.arange(m) % size], axis=1)
        return symbols.with_end(symbols.word(tokens))

    def expanded(self, symbols: Symbols, n: int, seed: int) -> dict[str, Any]:
        """What determines the inputs, besides length and seed."""
        return {**asdict(self), **symbols.table()}


@dataclass(frozen=True)
class AllWords:
    """Every word over the alphabet, once, in lexicographic order: what is measured is then exact for all inputs.

    Attributes:
        kind: "all".
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: Literal["all"] = ALL

    def tokens(self, symbols: Symbols, n: int, seed: int) -> Int[np.ndarray, "words n"]:
        """The inputs of one length, int64; the same for every seed."""
        del seed
        size, m = symbols.alphabet_size, symbols.word_length(n)
        return symbols.with_end(np.indices((size,) * m, dtype=np.int64).reshape(m, size**m).T)

    def expanded(self, symbols: Symbols, n: int, seed: int) -> dict[str, Any]:
        """What determines the inputs, besides length and seed."""
        return {**asdict(self), **symbols.table()}

    def check(self, symbols: Symbols, lengths: tuple[int, ...], problems: Problems) -> None:
        """Notes the lengths that have more than `MOST_WORDS` words."""
        size = symbols.alphabet_size
        longest = int(math.log(MOST_WORDS, size) + 1e-9) + (symbols.end_of_sequence is not None)
        too_long = [n for n in lengths if n > longest]
        if too_long:
            problems.add(
                "inputs.kind",
                self.kind,
                f"{size} symbols have more than {MOST_WORDS} words at n = {', '.join(map(str, too_long))}: lengths up "
                f'to {longest}, or random words (kind = "uniform" and a count)',
            )


@dataclass(frozen=True)
class WordFile:
    """A file of words. A point takes those of its length.

    Attributes:
        file: one word a line, symbols as whole numbers between blanks, without the end-of-sequence symbol.
        count: of words a point, drawn by its seed; None for all of them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    file: str
    count: OptionalPositive = None


@dataclass(frozen=True)
class TextFile:
    """A file of texts for published models.

    Attributes:
        texts: one a line, cut off or repeated to the length of a point, with the special symbols around it.
        count: of texts a point, drawn by its seed; None for all of them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    texts: str
    count: OptionalPositive = None


@dataclass(frozen=True, eq=False)
class GivenWords:
    """Words from a file, by length (without the end-of-sequence symbol); `count` of each, or all.

    Compared and hashed by identity, for it holds arrays.
    """

    by_length: Mapping[int, Int[np.ndarray, "words m"]]
    count: int | None

    def tokens(self, symbols: Symbols, n: int, seed: int) -> Int[np.ndarray, "count n"]:
        """The inputs of one length and seed, int64; in the file's order where all are taken."""
        tokens = self.by_length[symbols.word_length(n)]
        if self.count is not None:
            tokens = tokens[generator(seed, f"words.n={n}").permutation(len(tokens))[: self.count]]
        return symbols.with_end(tokens)

    def expanded(self, symbols: Symbols, n: int, seed: int) -> dict[str, Any]:
        """What determines the inputs, besides length and seed: the words of this length, not where they are stored."""
        tokens = np.ascontiguousarray(self.by_length[symbols.word_length(n)], dtype="<i4")
        return {
            "kind": "words",
            "count": self.count,
            "sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
            "words": len(tokens),
            **{key: value for key, value in symbols.table().items() if key != "alphabet_size"},
        }


@dataclass(frozen=True)
class SharedWords:
    """Inputs for models that do not all have an end-of-sequence symbol, or not in the same place.

    All models read the same words of n symbols. A model with an end-of-sequence symbol reads it in place of the last
    symbol. That position is read out and never flipped, so the flips are the same for every model. A model with the
    end-of-sequence symbol in front reads it in place of the first symbol, and lacks only the flips of that symbol.
    """

    source: RandomWords | AllWords | GivenWords

    def tokens(self, symbols: Symbols, n: int, seed: int) -> Int[np.ndarray, "count n"]:
        """The inputs of one length and seed, int64."""
        tokens = self.source.tokens(symbols.without_end(), n, seed)
        if symbols.end_of_sequence is None:
            return tokens
        return symbols.with_end(tokens[:, 1:] if symbols.end_first else tokens[:, :-1])

    def expanded(self, symbols: Symbols, n: int, seed: int) -> dict[str, Any]:
        """What determines the inputs, besides length and seed."""
        described = self.source.expanded(symbols.without_end(), n, seed)
        if symbols.end_of_sequence is None:
            return described
        replaced = "end_replaces_first" if symbols.end_first else "end_replaces_last"
        return {**described, "end_of_sequence": symbols.end_of_sequence, replaced: True}


@dataclass(frozen=True, eq=False)
class OwnWords:
    """The words that a function of the user's has made, by length and seed; a text says why there are none.

    Compared and hashed by identity, for it holds arrays.
    """

    by_point: Mapping[tuple[int, int], Int[np.ndarray, "count n"] | str]

    def tokens(self, symbols: Symbols, n: int, seed: int) -> Int[np.ndarray, "count n"]:
        """The inputs of one length and seed. Raises an InputError if the function has made none."""
        tokens = self.by_point[n, seed]
        if isinstance(tokens, str):
            raise InputError(f"inputs(n={n}, seed={seed}): {tokens}")
        return tokens

    def expanded(self, symbols: Symbols, n: int, seed: int) -> dict[str, Any]:
        """What determines the inputs of this length and seed: the words themselves."""
        tokens = self.by_point[n, seed]
        sha256 = (
            None if isinstance(tokens, str) else hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()
        )
        return {"kind": "function", "sha256": sha256, "words": len(tokens) if sha256 else 0}


Inputs = RandomWords | AllWords | GivenWords | SharedWords | OwnWords
"""Where a point's inputs come from, ready to use."""


def _kind(table: Any) -> str:
    if isinstance(table, dict) and "file" in table:
        return "words-table"
    if isinstance(table, dict) and "texts" in table:
        return "texts-table"
    return "every-table" if isinstance(table, dict) and table.get("kind") == ALL else "random-table"


InputsTable = Annotated[
    Annotated[RandomWords, Tag("random-table")]
    | Annotated[AllWords, Tag("every-table")]
    | Annotated[WordFile, Tag("words-table")]
    | Annotated[TextFile, Tag("texts-table")],
    Discriminator(_kind),
]
"""The `[inputs]` table: a `file` of words, a file of `texts`, `kind = "all"` for every word, or random words."""


def read_words(
    table: WordFile, folder: Path, symbols: Symbols, lengths: tuple[int, ...], problems: Problems
) -> GivenWords | None:
    """The words of a file, or None after noting everything that is wrong with it.

    `file` is relative to `folder`, where the config lies. Every length must have words, `count` of them if that is
    given, and every symbol must be of the alphabet.
    """
    path = folder / table.file
    wrong = Problems()
    try:
        lines = lines_of(read_text_within(path, MOST_BYTES))
    except (OSError, ValueError) as error:
        problems.add("inputs.file", table.file, f"a readable text file is needed, but {path}: {error}")
        return None
    lists: dict[int, list[list[int]]] = {}
    for number, line in enumerate(lines, start=1):
        word = _word(line, f"line {number}", symbols, wrong)
        if word:
            lists.setdefault(len(word), []).append(word)
    for n in lengths:
        have = len(lists.get(symbols.word_length(n), ()))
        if have < (table.count or 1):
            size = symbols.word_length(n)
            end = "" if size == n else " and the end-of-sequence symbol"
            wrong.add(
                "inputs.file",
                table.file,
                f"{table.count or 1} word(s) of {size} symbols are needed for n = {n} ({size} symbols{end}), "
                f"the file has {have}",
            )
    if wrong:
        problems += wrong[:_LISTED]
        if len(wrong) > _LISTED:
            problems.note("inputs.file", f"{len(wrong) - _LISTED} more errors")
        return None
    return GivenWords({size: np.array(each, dtype=np.int64) for size, each in lists.items()}, table.count)


def _word(line: str, where: str, symbols: Symbols, problems: Problems) -> list[int]:
    """Returns a line's symbols; adds an error that says which line it is, and nothing of what a file may hold that is
    none of words."""
    if not all(re.fullmatch("[0-9]{1,18}", symbol) for symbol in line.split()):
        problems.note("inputs.file", f"{where}: whole numbers between blanks are needed")
        return []
    word = [int(symbol) for symbol in line.split()]
    if max(word, default=0) >= symbols.alphabet_size:
        problems.note("inputs.file", f"{where}: symbols from 0 to {symbols.alphabet_size - 1} are needed")
        return []
    return word


@config
class PlacementTable:
    """The `[placement]` table. It changes no number beyond rounding, and no key.

    Args:
        batch_size: flips per batch on each device; None for a fast size that fits the budget.
        memory_budget: bytes on each device for the model, what flips share, their table, and temporary memory; None for
            what the first two take and 2 GiB more on CPU, 8 GiB more on a GPU, 12 GiB more on a TPU.
    """

    batch_size: OptionalPositive = None
    memory_budget: OptionalPositive = None

    def given(self) -> dict[str, int]:
        """Returns what differs from the defaults."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def placement(self) -> Placement:
        """Returns the placement on all devices of this process."""
        from jaxsens.core.placement.placement import Placement

        return Placement(batch_size=self.batch_size, memory_budget=self.memory_budget)
