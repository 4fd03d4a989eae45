"""What a flip does to a word besides replacing one symbol, and the vmap engine that measures it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsens.core.base.errors import Problems, no_rule
from jaxsens.core.base.platforms import Platform
from jaxsens.core.base.value import read
from jaxsens.core.engines.engine import Cost, FlipBlock, PreparedPass
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Flips

EditKind = Literal["substitute", "delete", "insert", "groups"]
"""Replace one symbol, delete one, insert copies of one before a position, or replace those of a group."""


@dataclass(frozen=True)
class Edit:
    """What a flip does to a word.

    Attributes:
        kind: what it does.
        longer: by how many symbols the word grows: the number of copies that an insertion inserts, -1 for a deletion.
    """

    kind: EditKind
    longer: int = 0

    @property
    def copies(self) -> int:
        """The number of copies of the symbol that are inserted; 0 where the flip inserts nothing."""
        return self.longer if self.kind == "insert" else 0


SUBSTITUTE, GROUPS = Edit("substitute"), Edit("groups")


def edit_of(flips: Flips) -> Edit:
    """Returns what the flips do to a word."""
    if flips.groups is not None:
        return GROUPS
    match flips.edit:
        case "substitute" | "delete" | "insert":
            return Edit(flips.edit, flips.longer)
        case _:
            raise no_rule("flip_sensitivity", "edit", flips.edit, get_args(EditKind))


def read_substitution(value: Any, default: Flips, problems: Problems) -> Any:
    """Returns the `Flips` that a value stands for, which replace one symbol each; None after adding an error."""
    found = default if value is None else read(Flips, value, problems)
    if found is not None and edit_of(found) != SUBSTITUTE:
        problems.add("flips", found, "flips that replace one symbol each")
    return found


@dataclass(frozen=True)
class DeletionEngine(VmapEngine):
    """Runs the model on the input without one position, of length n - 1. Symbols of flips are ignored."""

    one_length: ClassVar[bool] = False

    def _edited(self, tokens: Array, place: Array, symbol: Array) -> Array:
        del symbol
        rest = jnp.arange(tokens.shape[0] - 1)
        return tokens[rest + (rest >= place)]


@dataclass(frozen=True)
class InsertionEngine(VmapEngine):
    """Runs the model on the input with `copies` copies of a symbol before a position, of length n + copies."""

    copies: int = field(default=1, kw_only=True)
    one_length: ClassVar[bool] = False

    def preferred_batch(self, n: int, platform: Platform) -> int:
        return super().preferred_batch(n + self.copies, platform)

    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        longer = jax.ShapeDtypeStruct((tokens.shape[0] + self.copies,), tokens.dtype)
        forward = VmapEngine(self.measure, self.outputs, self.apply)
        prepare = forward.cost(parameters, tokens, platform).prepare
        return replace(forward.cost(parameters, longer, platform), prepare=prepare)

    def _edited(self, tokens: Array, place: Array, symbol: Array) -> Array:
        each = jnp.arange(tokens.shape[0] + self.copies)
        own = tokens[jnp.where(each < place, each, jnp.maximum(each - self.copies, 0))]
        return jnp.where((each >= place) & (each < place + self.copies), symbol, own)


@dataclass(frozen=True)
class GroupEngine(VmapEngine):
    """Runs the model on the input with several symbols replaced at once.

    Its parameters are a triple: the model's; members (groups, largest), the positions of each group, n beyond the last;
    and insertions (insertions, largest), symbols for these positions. The places of its flips are numbers of groups,
    and their symbols those of insertions.
    """

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> PreparedPass:
        return super().prepare(parameters[0], tokens)

    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        return super().cost(parameters[0], tokens, platform)

    def _flipped(self, parameters: Any, prepared: PreparedPass, block: FlipBlock) -> Array:
        own, members, insertions = parameters
        return super()._flipped(own, prepared, FlipBlock(members[block.places], insertions[block.symbols]))

    def _edited(self, tokens: Array, place: Array, symbol: Array) -> Array:
        return tokens.at[place].set(symbol, mode="drop")


def engine_of(edit: Edit, forward: VmapEngine) -> tuple[VmapEngine, str]:
    """Returns the engine for an edit, which measures as `forward` does, and what the edit does in words."""
    given = {field.name: getattr(forward, field.name) for field in fields(VmapEngine)}
    match edit.kind:
        case "substitute":
            return forward, "replace a symbol"
        case "delete":
            return DeletionEngine(**given), "delete a position"
        case "insert":
            return InsertionEngine(**given, copies=edit.copies), "insert a symbol"
        case "groups":
            return GroupEngine(**given), "replace the symbols of a group"
        case _:
            raise no_rule("flip_sensitivity", "edit", edit.kind, get_args(EditKind))


def edited(
    words: Int[np.ndarray, "batch n"], flips: FlipTable, edit: Edit, chosen: Int[np.ndarray, " chosen"]
) -> Int[np.ndarray, "chosen m"]:
    """Returns the words that some of the flips make, by NumPy and independently of the engines."""
    rows, positions = words[flips.inputs[chosen]], flips.positions[chosen]
    count, n = rows.shape
    match edit.kind:
        case "substitute":
            rows[np.arange(count), positions] = flips.symbols[chosen]
            return rows
        case "delete":
            return rows[np.arange(n) != positions[:, None]].reshape(count, n - 1)
        case "insert":
            made = np.empty((count, n + edit.copies), rows.dtype)
            after = np.arange(n + edit.copies) - positions[:, None]
            inserted = (after >= 0) & (after < edit.copies)
            made[inserted] = np.repeat(flips.symbols[chosen], edit.copies)
            made[~inserted] = rows.ravel()
            return made
        case "groups":
            if flips.joint is None or flips.insertion is None:
                raise ValueError("flips of groups without their groups")
            flip, place, symbols = flips.joint.by_position(positions, flips.insertion[chosen])
            rows[flip, place] = symbols
            return rows
        case _:
            raise no_rule("flip_sensitivity", "edit", edit.kind, get_args(EditKind))
