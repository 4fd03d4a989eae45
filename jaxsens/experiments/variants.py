"""Variants: the named changes to a sweep's model that are measured side by side.

All variants of a sweep share weights, seeds and inputs, so that each differs from the others only in what its table
here says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict

from jaxsens.errors import Faults
from jaxsens.experiments.sources import changed
from jaxsens.models.config import TransformerConfig
from jaxsens.models.config_tables import read_config
from jaxsens.strict import STRICT


def _usable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", name):
        raise ValueError("a name has up to 64 letters, digits and . _ + - and begins with a letter or digit")
    return name


Name = Annotated[str, AfterValidator(_usable)]
"""A variant's name is also a folder's, and a label in plots."""


@dataclass(frozen=True)
class Variant:
    """A named change to the `[model]` table.

    Attributes:
        name: unique within a sweep.
        model: keys that replace those of `[model]`. Another kind of model (`kind`, `formula` or `construction`), or
            another construction, keeps only the keys of `[model]` that it has too.
        add_positions: position embeddings in addition to those of the model.
        description: one line for plots, tables and reports; made from the change where empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    model: dict[str, Any] = field(default_factory=dict)
    add_positions: tuple[str, ...] = ()
    description: str = ""

    def table(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """The variant's model table, from the sweep's."""
        table = changed(base, self.model)
        if self.add_positions:
            table["positions"] = [*_as_list(table.get("positions")), *self.add_positions]
        return table

    def line(self) -> str:
        """The description, or the change itself in words, if there is none."""
        if self.description:
            return self.description
        changes = [f"{key} = {value}" for key, value in self.model.items()]
        changes += [f"positions and {name}" for name in self.add_positions]
        return ", ".join(changes) or "as in [model]"


def _as_list(positions: Any) -> list[Any]:
    if positions is None:
        positions = TransformerConfig.__dataclass_fields__["positions"].default
    if positions == "none":
        return []
    return list(positions) if isinstance(positions, list | tuple) else [positions]


def _weighting(name: str, description: str) -> Variant:
    return Variant(name, {"weighting": name}, description=description)


BUILT_IN: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        _weighting("softmax", "softmax attention: the baseline"),
        _weighting("temperature-log", "softmax of log(n) times the scores"),
        _weighting("temperature-sqrt", "softmax of sqrt(n) times the scores"),
        _weighting("temperature-linear", "softmax of n times the scores"),
        Variant(
            "unbounded",
            {"weighting": "softmax"},
            ("length",),
            "softmax, with n itself among the position embeddings",
        ),
        _weighting("leftmost-hard", "all attention on the leftmost of the highest scores"),
        _weighting("rightmost-hard", "all attention on the rightmost of the highest scores"),
        _weighting("average-hard", "attention shared equally by the highest scores"),
        _weighting("sparsemax", "sparsemax attention: the nearest point of the simplex"),
    )
}
"""The variants that `variants = [...]` in a config names."""


def check_label(variant: Variant, base: Mapping[str, Any], faults: Faults) -> None:
    """Notes a variant of one's own that has a built-in's name and changes nothing, if the built-in is another model:
    what is measured would be the `[model]` table `base` under the name of something else."""
    built_in = BUILT_IN.get(variant.name)
    if built_in is None or variant is built_in or variant.model or variant.add_positions:
        return
    own, named = (read_config(table, "model", Faults("")) for table in (base, built_in.table(base)))
    network = not any(key in base for key in ("formula", "construction", "checkpoint"))
    if network and (own is None or own == named):
        return
    faults.add(
        "variant.name",
        variant.name,
        "the built-in variant of this name is another model, and this [[variant]] changes nothing: give it a "
        f'`model`, or another name, or take the built-in: variants = ["{variant.name}"] in a sweep, or no '
        "[[variant]] of this name",
    )
