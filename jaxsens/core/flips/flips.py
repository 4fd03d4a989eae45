"""What is flipped, and by what: the objects of `flips`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.registry import Option, Seed, kind_of
from jaxsens.core.base.strict import OptionalPositive, Positive
from jaxsens.core.flips.fields import (
    Groups,
    Ids,
    OptionalGroups,
    OptionalId,
    Positions,
    PositionSymbols,
    Symbols,
)
from jaxsens.core.flips.flip_table import DELETED, nearest_symbols

if TYPE_CHECKING:
    from jaxtyping import Array

    from jaxsens.core.models.adapters import Model

Rewrite: TypeAlias = Callable[[Any, Any, Any], Any]
"""What a flip does to a word (n,), from the positions (k,) and the symbols (k,) of its row. It is a static argument of
programs: equal for all flips that do the same, which share a program."""


# JAX is imported where it is used: help and version are printed without it.
def replaced(
    word: Int[Array, " n"], positions: Int[Array, " k"], symbols: Int[Array, " k"]
) -> Int[Array, " n"]:
    """Returns the word with symbols put at positions; padding, which is beyond the word, changes nothing."""
    return word.at[positions].set(symbols, mode="drop")


def deleted(
    word: Int[Array, " n"], positions: Int[Array, " 1"], symbols: Int[Array, " 1"]
) -> Int[Array, " m"]:
    """Returns the word without a position."""
    import jax.numpy as jnp

    del symbols
    others = jnp.arange(word.shape[0] - 1)
    return word[others + (others >= positions[0])]


@dataclasses.dataclass(frozen=True)
class Inserted:
    """Returns the word with copies of a symbol before a position."""

    copies: int = 1

    def __call__(
        self, word: Int[Array, " n"], positions: Int[Array, " 1"], symbols: Int[Array, " 1"]
    ) -> Int[Array, " m"]:
        import jax.numpy as jnp

        each = jnp.arange(word.shape[0] + self.copies)
        own = word[jnp.where(each < positions[0], each, jnp.maximum(each - self.copies, 0))]
        inserted = (each >= positions[0]) & (each < positions[0] + self.copies)
        return jnp.where(inserted, symbols[0], own)


class Insertable(NamedTuple):
    """What may be inserted: lists of symbols, and the number of each place's (one number for all, or (batch, n))."""

    lists: Sequence[Any]
    rows: Any


_NOTHING = Insertable([[]], 0)

CHOSEN = "to symbols chosen for each of them"
"""By what positions are flipped, in words, where that differs from one to the next."""


class Flips(Option, abc.ABC):
    """What a flip does to a word, and where.

    Every kind but `Pairs` has these fields besides its own; `groups` are of `Substitute`, `Neighbours` and `Mask`.

    Attributes:
        rewrite: what a flip does to a word.
        does: the same in words, unless it replaces one symbol.
        longer: by how many symbols a flip makes a word longer; -1 for a deletion.
        positions: 0-based positions to flip, or entries for every length (`jaxsens.core.flips.fields`). By default
            all except the position that is read, which reaches the output through the skip connection and changes it
            by O(1) in every model, and positions with special symbols, of models that have some.
        sample: measure so many flips, drawn uniformly without replacement, instead of all; of several inputs together.
        seed: that of the draw.
        groups: positions to flip together, such as those of the pieces of a word: `[(3, 4, 5), (9,)]`. The j-th flip
            of a group inserts the j-th symbol of each of its positions.
    """

    argument: ClassVar[str] = "flips"
    example: ClassVar[str] = "jaxsens.Neighbours(8)"
    kinds: ClassVar[dict[str, type[Any]]] = {}
    rewrite: ClassVar[Any] = staticmethod(replaced)
    does: ClassVar[str] = "replace the symbols of a group"
    longer: ClassVar[Any] = 0
    groups: Any = None
    positions: Any
    sample: Any
    seed: Any

    @classmethod
    def shorthand(cls, value: Any) -> Any:
        """An integer, ids or a mapping stand for `Substitute`; None for the model's own alphabet."""
        return None if isinstance(value, Option) else {"kind": "substitute", "symbols": value}

    @classmethod
    def _spoken(cls) -> tuple[str, ...]:
        return ("symbols", "k", "symbol", "times", "flips")

    def __post_init__(self) -> None:
        with collecting(type(self).__name__) as problems:
            self._check(problems)

    def _check(self, problems: Problems) -> None:
        """Adds the errors of fields that exclude each other."""
        if self.groups is not None and self.positions is not None:
            problems.add(
                "positions",
                self._written()["positions"],
                "not with groups, which say the positions; leave it out",
            )
        if self.seed and self.sample is None:
            problems.add("seed", self.seed, "only with sample, which it draws; leave it out")

    @property
    def by_position(self) -> dict[int, tuple[int, ...]] | None:
        """The symbols of each position, if they are listed so; otherwise None."""
        return None

    @property
    def of_alphabet(self) -> bool:
        """Whether a position that is flipped gets every other symbol of an alphabet."""
        return False

    @property
    def plain(self) -> bool:
        """Whether each flip replaces one symbol, which every engine measures."""
        return self.rewrite is replaced and self.groups is None

    @property
    def row(self) -> int:
        """The number of positions in the row of a flip: those of the largest group."""
        return max(map(len, self.groups or ((0,),)))

    @property
    def copies(self) -> int:
        """The number of copies of a symbol that are inserted; 0 where a flip inserts nothing."""
        return max(self.longer, 0)

    @abc.abstractmethod
    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        """Returns what may be inserted in inputs of a model; adds the errors of what it does not have."""

    def excluded(self, model: Model, tokens: Int[np.ndarray, "batch n"]) -> Bool[np.ndarray, "batch n"]:
        """Returns the places that are not flipped wherever positions are: special symbols, unless positions are named,
        and symbols beyond the alphabet, such as the end symbol, unless symbols or positions are."""
        special = model.special if self.positions is None else ()
        size = self._size(model) if self.positions is None else None
        return np.isin(tokens, special) | (False if size is None else tokens >= size)

    def _size(self, model: Model) -> int | None:
        """Returns the size of the alphabet whose symbols are flipped; None for all symbols."""
        return model.alphabet_size

    def description(self, inserted: str) -> str:
        """Returns by what each position is flipped, in words; `inserted` are all symbols that are inserted anywhere."""
        return f"{'each' if self.groups is None else 'in groups'} to {inserted}"

    def drawing(self, sample: int | None, seed: int = 0) -> Any:
        """Returns the same flips with another sample; None for all of them."""
        return dataclasses.replace(cast(Any, self), sample=sample, seed=0 if sample is None else seed)

    def seeded(self, seed: int) -> Any:
        return self.drawing(self.sample, seed)

    def _written(self) -> dict[str, Any]:
        fields = super()._written()
        for name, value in fields.items():
            if isinstance(value, list) and value and all(isinstance(one, list) for one in value):
                fields[name] = [tuple(one) for one in value]
        return fields


@kind_of(Flips, "substitute")
class Substitute(Flips):
    """Replace a symbol by each of some others.

    Args:
        symbols: what is inserted. A number k: the symbols 0 .. k - 1; larger symbols, such as an end-of-sequence
            symbol, are never inserted, and positions that hold one are not flipped. A sequence of ids: these, also at
            positions with other symbols. A mapping of positions to ids: what to insert at each, and where. None: the
            alphabet of the model. Symbols that a model reserves (special and unused ones) are inserted only by name: by
            ids.
        positions, sample, seed, groups: as for every kind (`Flips`). A mapping says the positions itself, and gives all
            positions of a group equally many symbols.

    Raises:
        InputError: naming each unusable field.

    >>> Substitute([17, 2], positions=[":16"], sample=64).symbols
    (2, 17)
    """

    symbols: Symbols = None
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)
    groups: OptionalGroups = dataclasses.field(default=None, kw_only=True)

    @property
    def by_position(self) -> dict[int, tuple[int, ...]] | None:
        if isinstance(self.symbols, tuple) and self.symbols and isinstance(self.symbols[0], tuple):
            return dict(cast(Any, self.symbols))
        return None

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        lists = self.by_position
        if lists is not None:
            return _of_positions(lists, "flips[{}]", model, tokens, problems)
        ids = self.symbols if isinstance(self.symbols, tuple) else None
        size = self.symbols if isinstance(self.symbols, int) else None
        return _of_alphabet(ids, size, model, problems)

    @property
    def of_alphabet(self) -> bool:
        return not isinstance(self.symbols, tuple)

    def _size(self, model: Model) -> int | None:
        size = model.alphabet_size if self.symbols is None else self.symbols
        return size if isinstance(size, int) else None

    def _check(self, problems: Problems) -> None:
        super()._check(problems)
        lists = self.by_position
        if lists is not None and self.positions is not None:
            problems.add(
                "positions",
                list(self.positions),
                "not with a mapping, which says the positions; leave it out",
            )
        groups = cast(Groups | None, self.groups)
        if lists is None or groups is None:
            return
        for group in groups:
            counts = {p: len(lists[p]) for p in group if p in lists}
            if len(counts) < len(group) or len({*counts.values()}) > 1:
                problems.add(
                    "groups", group, f"as many symbols for each of its positions: there are {counts}"
                )
        alone = lists.keys() - {p for group in groups for p in group}
        if alone:
            problems.add(
                "symbols: position", min(alone), "it is in no group; leave it out, or give a group (3,)"
            )

    def _written(self) -> dict[str, Any]:
        fields = super()._written()
        if self.by_position is not None:
            fields["symbols"] = {position: list(ids) for position, ids in self.by_position.items()}
        return fields

    def description(self, inserted: str) -> str:
        return super().description(inserted) if self.by_position is None else CHOSEN


@kind_of(Flips, "neighbours")
class Neighbours(Flips):
    """Replace a symbol by the `k` symbols most like it.

    Two symbols are alike if their rows in the model's table of input embeddings point the same way: by the cosine. By
    distance, rows of small norm would be near to all others, and norms of trained embeddings tell how rare a symbol is
    rather than what it means. Of symbols that are equally near, those of smaller ids come first. Neither the symbol
    itself nor those that the model reserves (special and unused ones) are among them. O(symbols width) operations for
    each different symbol of the inputs, in float32.

    Args:
        k: how many.
        positions, sample, seed, groups: as for every kind (`Flips`).

    >>> Neighbours(4, positions=["readout"]).k
    4
    """

    k: Positive = 8
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)
    groups: OptionalGroups = dataclasses.field(default=None, kw_only=True)

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        if model.embeddings is None:
            remedy = "the model does not show its embeddings; give symbols, or {position: symbols}"
            problems.add("flips", self, remedy)
        if model.embeddings is None or problems:  # before the work of finding them
            return _NOTHING
        table = model.embeddings()
        size = len(table) if model.alphabet_size is None else min(len(table), model.alphabet_size)
        allowed = np.delete(np.arange(size), [one for one in model.reserved if one < size])
        if self.k >= len(allowed):
            remedy = f"k of at most {len(allowed) - 1}: {len(allowed)} symbols may be inserted"
            problems.add("flips", self, remedy)
            return _NOTHING
        different, rows = np.unique(tokens, return_inverse=True)
        nearest = nearest_symbols(table, different, self.k, allowed)
        return Insertable([*nearest], rows.reshape(tokens.shape))

    def description(self, inserted: str) -> str:
        return super().description(f"the {self.k} symbols most like its own")


@kind_of(Flips, "mask")
class Mask(Flips):
    """Replace a symbol by the mask symbol: one flip a position.

    The change is then what the model loses if it is told that a word is unknown. For a model trained with masks it is
    not what another word would do: every mask moves the output, by about as much for every word.

    Args:
        symbol: the mask symbol; by default the one that the model names (`LayeredModel.mask`).
        positions, sample, seed, groups: as for every kind (`Flips`).

    >>> Mask(103).symbol
    103
    """

    symbol: OptionalId = None
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)
    groups: OptionalGroups = dataclasses.field(default=None, kw_only=True)

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        symbol = model.mask if self.symbol is None else self.symbol
        if symbol is None:
            remedy = "the model does not say which symbol is its mask; give its id: jaxsens.Mask(103)"
            problems.add("flips", self, remedy)
            return _NOTHING
        inputs.check_ids("flips: mask", np.array([symbol]), model.vocabulary_size, problems)
        return Insertable([[symbol]], 0)


@kind_of(Flips, "delete")
class Delete(Flips):
    """Delete a position, and compare with the output on the shorter word.

    Symbols behind the deleted one move forward by one position, which changes their position embeddings: the change has
    a part that is not due to the deleted symbol. The model must read its output in the last row, the first one or the
    mean, on words of length n - 1; `Vmap` and `Incremental` measure it. Results have -1 as the symbol.

    Args:
        positions, sample, seed: as for every kind (`Flips`).

    >>> Delete(positions=["-4:"]).positions
    ('-4:',)
    """

    rewrite: ClassVar[Rewrite] = staticmethod(deleted)
    does: ClassVar[str] = "delete a position"
    longer: ClassVar[int] = -1
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        return Insertable([[DELETED]], 0)

    def description(self, inserted: str) -> str:
        return "each deleted"


@kind_of(Flips, "insert")
class Insert(Flips):
    """Insert a symbol before a position, and compare with the output on the longer word.

    A flip (i, s) of a word x_0 .. x_{n-1} gives x_0 .. x_{i-1} s x_i .. x_{n-1}, of length n + 1. The symbol x_i and
    those behind it move back by one position, and a temperature schedule sees n + 1. Nothing is inserted behind the
    last position: that symbol would be read in place of it. An insertion of s before an s gives the same word as one
    behind it; both are flips.

    The model must read its output in the last row, the first one or the mean, on words of length n + 1; `Vmap` and
    `Incremental` measure it. Nothing is inserted before position 0 if it is read, and by default none
    before the special symbols with which a word begins. `Repeat` inserts the symbol that stands at the position.

    Args:
        symbols: ids to insert; by default all of the model's alphabet but those that it reserves.
        positions, sample, seed: as for every kind (`Flips`).

    >>> Insert([17, 2]).symbols
    (2, 17)
    """

    rewrite: ClassVar[Rewrite] = Inserted()
    does: ClassVar[str] = "insert a symbol"
    longer: ClassVar[int] = 1
    symbols: Ids = None
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        if self.symbols is None and model.alphabet_size is None:
            remedy = "the model does not say which symbols there are; give them: jaxsens.Insert([0, 1])"
            problems.add("flips", self, remedy)
            return _NOTHING
        return _of_alphabet(cast(Any, self.symbols), model.alphabet_size, model, problems)

    def excluded(self, model: Model, tokens: Int[np.ndarray, "batch n"]) -> Bool[np.ndarray, "batch n"]:
        """The special symbols at the beginning, unless positions are named: a flip leaves the symbol as it is."""
        special = model.special if self.positions is None else ()
        return np.logical_and.accumulate(np.isin(tokens, special), axis=1)

    def description(self, inserted: str) -> str:
        return f"each with one of {inserted} inserted before it"


@kind_of(Flips, "repeat")
class Repeat(Flips):
    """Repeat the symbol of a position `times` more times.

    A flip of position i gives x_0 .. x_{i-1} x_i x_i .. x_{n-1}, of length n + times. It inserts copies of x_i before
    x_i, so that the last row is again that of the last symbol: with positions=[n - 1] the change is what Barbero et al.
    (2024, "Transformers need glasses!", arXiv 2406.04267) call representational collapse as n grows, the distance of
    the last row of a word from that of the word with its last symbol repeated.

    Readouts and engine are those of `Delete`, but the readout position is repeated too; position 0 is not if it is
    read. Results have the repeated symbol as the symbol.

    Args:
        times: the number of copies added.
        positions, sample, seed: as for every kind (`Flips`).

    >>> Repeat(3, positions=["readout"]).times
    3
    """

    does: ClassVar[str] = "insert a symbol"
    times: Positive = 1
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    @property
    def rewrite(self) -> Rewrite:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Insertion of the copies."""
        return Inserted(self.times)

    @property
    def longer(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of the copies."""
        return self.times

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        own, rows = np.unique(tokens, return_inverse=True)
        return Insertable([[one] for one in own], rows.reshape(tokens.shape))

    def description(self, inserted: str) -> str:
        return f"each repeated {self.times} time{'s' if self.times != 1 else ''}"


@kind_of(Flips, "pairs")
class Pairs(Flips):
    """Exactly these flips of every input.

    Args:
        flips: pairs of a 0-based position and the symbol that is inserted there. Symbols that a model reserves may be
            among them.
        sample, seed: as for every kind (`Flips`).

    >>> Pairs([(3, 17), (5, 2)]).flips
    ((3, 17), (5, 2))
    """

    positions: ClassVar[Any] = None  # pyright: ignore[reportIncompatibleVariableOverride] - said by flips
    flips: PositionSymbols = ()
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    def _check(self, problems: Problems) -> None:
        super()._check(problems)
        if not self.flips:
            problems.add("flips", [], "pairs of a 0-based position and a symbol id: [(3, 17), (5, 2)]")

    @property
    def by_position(self) -> dict[int, tuple[int, ...]]:
        lists: dict[int, tuple[int, ...]] = {}
        for position, symbol in self.flips:
            lists[position] = (*lists.get(position, ()), symbol)
        return lists

    def insertable(self, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Insertable:
        for position, symbol in self.flips:
            same = np.flatnonzero(tokens[:, position] == symbol) if position < tokens.shape[1] else ()
            for k in same[:1]:
                remedy = f"input {k} has this symbol there already; leave the flip out"
                problems.add("flips", (position, symbol), remedy)
        return _of_positions(self.by_position, "flips.symbol", model, tokens, problems)

    def _written(self) -> dict[str, Any]:
        return {**super()._written(), "flips": list(self.flips)}

    def description(self, inserted: str) -> str:
        return CHOSEN


def _of_alphabet(
    ids: tuple[int, ...] | None, size: int | None, model: Model, problems: Problems
) -> Insertable:
    """Returns that some ids are inserted everywhere, or the symbols of an alphabet of a size, None for the model's, but
    those that the model reserves."""
    if ids is not None:
        inputs.check_ids("flips.symbols", np.array(ids), model.vocabulary_size, problems)
        return Insertable([ids], 0)
    alphabet = inputs.alphabet(size, model.alphabet_size, problems)
    return Insertable([alphabet[~np.isin(alphabet, model.reserved)]], 0)


def _of_positions(
    lists: Mapping[int, tuple[int, ...]],
    name: str,
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    problems: Problems,
) -> Insertable:
    """Returns what is inserted at each position, and nothing at the others. `name` is that of a position's symbols, for
    messages."""
    n, rows = tokens.shape[1], np.full(tokens.shape, -1)
    for number, (position, symbols) in enumerate(lists.items()):
        if n and position >= n:
            problems.add(("flips", "position"), position, f"positions from 0 to {n - 1}")
            continue
        inputs.check_ids(name.format(position), np.array(symbols), model.vocabulary_size, problems)
        if tokens.size:
            rows[:, position] = number
    return Insertable([*lists.values()], rows)
