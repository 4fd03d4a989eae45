"""What is flipped, and by what: the objects of `flips`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, cast

import numpy as np
from jaxtyping import Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.inputs import is_count, whole_numbers
from jaxsens.core.base.registry import Option, Seed, kind_of, read
from jaxsens.core.base.strict import OptionalPositive, Positive, checked_by
from jaxsens.core.flips.positions import checked_positions

if TYPE_CHECKING:
    from jaxtyping import Array

Groups = tuple[tuple[int, ...], ...]

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


def _symbols(name: str, value: Any, problems: Problems) -> Any:
    """An alphabet's size, ids, or a mapping of positions to ids; a mapping becomes pairs, sorted by position."""
    if value is None:
        return None
    if is_count(value):
        return _alphabet(name, int(value), problems)
    if isinstance(value, Mapping):
        return _by_position(name, value, problems)
    if _is_pairs(value):
        return _by_position(name, dict(value), problems)
    array = whole_numbers(value)
    if array is None or array.ndim != 1 or not array.size:
        problems.add(
            name,
            value,
            "the number of symbols, a sequence of symbol ids, or a mapping of positions to such sequences",
        )
        return None
    return tuple(sorted(set(inputs.symbols(array, None, problems, name=name).tolist())))


def _alphabet(name: str, size: int, problems: Problems) -> int | None:
    if size < 2:
        problems.add(
            name, size, f"an alphabet has at least 2 symbols; to insert this one alone, give [{size}]"
        )
    elif size > inputs.LARGEST_ID:
        problems.add(name, size, f"at most {inputs.LARGEST_ID}: models read ids as 32-bit integers")
    else:
        return size
    return None


def _is_pairs(value: Any) -> bool:
    """Whether the value is the form that mappings have in this object: a tuple of (position, tuple of ids)."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(
            isinstance(one, list | tuple)
            and len(one) == 2
            and is_count(one[0])
            and isinstance(one[1], list | tuple)
            for one in value
        )
    )


def _by_position(name: str, value: Mapping[Any, Any], problems: Problems) -> Any:
    """The lists by position, in their order: groups insert the j-th of each together. A file has its keys as texts."""
    if not value:
        problems.add(name, dict(value), "at least one position")
    lists: dict[int, tuple[int, ...]] = {}
    for key, ids in value.items():
        position = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not is_count(position):
            problems.add(f"{name}: position", key, "0-based positions")
        elif inputs.symbols(ids, None, problems, name=f"{name}[{key}]").size:
            lists[int(position)] = tuple(cast(Any, whole_numbers(ids)).tolist())
    return tuple(sorted(lists.items()))


def _ids(name: str, value: Any, problems: Problems) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(sorted(set(inputs.symbols(value, None, problems, name=name).tolist())))


def _groups(name: str, value: Any, problems: Problems) -> Groups | None:
    """Groups of positions, each sorted, sorted by their first."""
    if value is None:
        return None
    remedy = "sequences of 0-based positions, each position in one of them: [(3, 4, 5), (9,)]"
    try:
        arrays = [whole_numbers(group) for group in value]
    except TypeError:
        arrays = [None]
    if not arrays or any(group is None or group.ndim != 1 or not group.size for group in arrays):
        problems.add(name, value, remedy)
        return None
    groups = [tuple(sorted(group.tolist())) for group in arrays if group is not None]
    every = [position for group in groups for position in group]
    if min(every) < 0:
        problems.add(f"{name}: position", min(every), "0-based positions")
        return None
    if len(set(every)) < len(every):
        twice = next(position for position in every if every.count(position) > 1)
        problems.add(f"{name}: position", twice, "each position in one group, and once")
        return None
    return tuple(sorted(groups))


def _pairs(name: str, value: Any, problems: Problems) -> Any:
    pairs = whole_numbers(value)
    if pairs is None or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        problems.add(name, value, "pairs of a 0-based position and a symbol id: [(3, 17), (5, 2)]")
        return ()
    if pairs[:, 0].min() < 0:
        problems.add(f"{name}: position", int(pairs[:, 0].min()), "0-based positions")
    inputs.check_ids(f"{name}: symbol", pairs[:, 1], None, problems)
    return tuple(sorted({(int(position), int(symbol)) for position, symbol in pairs}))


# What a user may give; the objects hold tuples.
Symbols = Annotated[int | Sequence[int] | np.ndarray | Mapping[int, Any] | None, checked_by(_symbols)]
Ids = Annotated[Sequence[int] | np.ndarray | None, checked_by(_ids)]
OptionalId = Annotated[int | None, checked_by(inputs.optional_count, least=0)]
Positions = Annotated[Sequence[int | float | str] | np.ndarray | None, checked_by(checked_positions)]
OptionalGroups = Annotated[Sequence[Sequence[int]] | None, checked_by(_groups)]
PositionSymbols = Annotated[Sequence[tuple[int, int]] | np.ndarray, checked_by(_pairs)]


CHOSEN = "to symbols chosen for each of them"
"""By what positions are flipped, in words, where that differs from one to the next."""


class Flips(Option, abc.ABC):
    """What a flip does to a word, and where.

    Every kind but `Pairs` has these fields besides its own; `groups` are of `Substitute`, `Neighbours` and `Mask`.

    Attributes:
        positions: 0-based positions to flip, or entries for every length (`jaxsens.core.flips.positions`). By default
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
    def rewrite(self) -> Rewrite:
        """What a flip does to a word."""
        return replaced

    @property
    def does(self) -> str:
        """What a flip does, in words."""
        return "replace a symbol" if self.groups is None else "replace the symbols of a group"

    @property
    def plain(self) -> bool:
        """Whether each flip replaces one symbol, which every engine measures."""
        return self.rewrite is replaced and self.groups is None

    @property
    def row(self) -> int:
        """The number of positions in the row of a flip: those of the largest group."""
        return max(map(len, self.groups or ((0,),)))

    @property
    def longer(self) -> int:
        """By how many symbols a flip makes a word longer; -1 for a deletion."""
        return 0

    @property
    def copies(self) -> int:
        """The number of copies of a symbol that are inserted; 0 where a flip inserts nothing."""
        return max(self.longer, 0)

    @property
    def listed(self) -> bool:
        """Whether the positions are given, and all flips there are measured."""
        return self.positions is not None and self.sample is None

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

    @property
    def named(self) -> tuple[int, ...] | None:
        """The ids that are inserted everywhere, if they are named; otherwise None."""
        listed = isinstance(self.symbols, tuple) and self.by_position is None
        return cast(tuple[int, ...], self.symbols) if listed else None

    def _check(self, problems: Problems) -> None:
        super()._check(problems)
        lists = self.by_position
        if lists is not None and self.positions is not None:
            problems.add(
                "positions",
                list(self.positions),
                "not with a mapping, which says the positions; leave it out",
            )
        if lists is not None:
            self._check_groups(lists, problems)

    def _check_groups(self, lists: dict[int, tuple[int, ...]], problems: Problems) -> None:
        groups = cast(Groups | None, self.groups)
        if groups is None:
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
    """

    k: Positive = 8
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)
    groups: OptionalGroups = dataclasses.field(default=None, kw_only=True)

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
    """

    symbol: OptionalId = None
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)
    groups: OptionalGroups = dataclasses.field(default=None, kw_only=True)


@kind_of(Flips, "delete")
class Delete(Flips):
    """Delete a position, and compare with the output on the shorter word.

    Symbols behind the deleted one move forward by one position, which changes their position embeddings: the change has
    a part that is not due to the deleted symbol. The model must read its output in the last row, the first one or the
    mean, and `Vmap` measures it, with one forward pass a flip on words of length n - 1. Results have -1 as the symbol.

    Args:
        positions, sample, seed: as for every kind (`Flips`).
    """

    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    @property
    def rewrite(self) -> Rewrite:
        return deleted

    @property
    def does(self) -> str:
        return "delete a position"

    @property
    def longer(self) -> int:
        return -1

    def description(self, inserted: str) -> str:
        return "each deleted"


@kind_of(Flips, "insert")
class Insert(Flips):
    """Insert a symbol before a position, and compare with the output on the longer word.

    A flip (i, s) of a word x_0 .. x_{n-1} gives x_0 .. x_{i-1} s x_i .. x_{n-1}, of length n + 1. The symbol x_i and
    those behind it move back by one position, and a temperature schedule sees n + 1. Nothing is inserted behind the
    last position: that symbol would be read in place of it. An insertion of s before an s gives the same word as one
    behind it; both are flips.

    The model must read its output in the last row, the first one or the mean, and `Vmap` measures it, with one forward
    pass a flip on words of length n + 1. Nothing is inserted before position 0 if it is read, and by default none
    before the special symbols with which a word begins. `Repeat` inserts the symbol that stands at the position.

    Args:
        symbols: ids to insert; by default all of the model's alphabet but those that it reserves.
        positions, sample, seed: as for every kind (`Flips`).
    """

    symbols: Ids = None
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    @property
    def rewrite(self) -> Rewrite:
        return Inserted()

    @property
    def does(self) -> str:
        return "insert a symbol"

    @property
    def longer(self) -> int:
        return 1

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
    """

    times: Positive = 1
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    sample: OptionalPositive = dataclasses.field(default=None, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    @property
    def rewrite(self) -> Rewrite:
        return Inserted(self.times)

    @property
    def does(self) -> str:
        return "insert a symbol"

    @property
    def longer(self) -> int:
        return self.times

    def description(self, inserted: str) -> str:
        return f"each repeated {self.times} time{'s' if self.times != 1 else ''}"


@kind_of(Flips, "pairs")
class Pairs(Flips):
    """Exactly these flips of every input.

    Args:
        flips: pairs of a 0-based position and the symbol that is inserted there. Symbols that a model reserves may be
            among them.
        sample, seed: as for every kind (`Flips`).
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

    def _written(self) -> dict[str, Any]:
        return {**super()._written(), "flips": list(self.flips)}

    def description(self, inserted: str) -> str:
        return CHOSEN


def read_substitution(value: Any, default: Flips, problems: Problems) -> Any:
    """Returns the `Flips` that a value stands for, which replace one symbol each; None after adding an error."""
    flips = default if value is None else read(Flips, value, problems)
    if flips is not None and not flips.plain:
        problems.add("flips", flips, "flips that replace one symbol each")
    return flips


def alphabet_of(
    flips: Any,
    own: int | None,
    vocabulary: int | None,
    problems: Problems,
    *,
    least: int = 2,
    reserved: Sequence[int] = (),
) -> Int[np.ndarray, " symbols"]:
    """Returns the symbols that words are made of, where all words of a length are looked at; empty after an error.

    Args:
        flips: a `Substitute` of an alphabet or ids and nothing else, or what stands for one; None for the alphabet.
        own: the size of the model's alphabet, or None if unknown.
        vocabulary: the number of symbols that the model reads, or None if unknown.
        problems: collects the errors.
        least: how many ids there must be.
        reserved: the symbols of the alphabet that words hold only by name.
    """
    flips = Substitute() if flips is None else read(Flips, flips, problems)
    if flips is None:
        return np.zeros(0, int)
    plain = isinstance(flips, Substitute) and flips.by_position is None
    if not plain or flips.settings().keys() - {"symbols"}:
        problems.add("flips", flips, "symbols alone, such as flips=2: all positions of a word are flipped")
        return np.zeros(0, int)
    if flips.named is None:
        candidates = inputs.alphabet(cast(int | None, flips.symbols), own, problems)
        return candidates[~np.isin(candidates, np.asarray(reserved, int))]
    inputs.check_ids("flips: symbols", np.array(flips.named), vocabulary, problems)
    if len(flips.named) < least:
        problems.add("flips", flips, "at least two symbols: one symbol makes only one word")
    return np.array(flips.named)
