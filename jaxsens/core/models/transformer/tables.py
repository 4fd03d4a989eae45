"""The numbers of a config as arrays: temperatures, and what positions add to embeddings.

A program takes them as arguments. Models that differ in these numbers alone, such as the variants of a sweep over
temperatures, then share their programs: `shape_of` is what they have in common, and `with_tables` adds the numbers of
one of them to its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeGuard, cast

import numpy as np
from jaxtyping import Float

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import cached
from jaxsens.core.base.strict import with_fields
from jaxsens.core.models.parts.initialisation import FAN_IN
from jaxsens.core.models.parts.positions import AddedTerm, CoordinateTerm, Learned, PositionTerm, ScoreTerm
from jaxsens.core.models.parts.schedules import Schedule, TabledSchedule
from jaxsens.core.models.parts.weighting import WEIGHTING_TYPES, WEIGHTINGS, Tempered, Weighting
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.parameters import Tables, TransformerParameters, needed

Formula: TypeAlias = tuple[Schedule, Literal["length", "query"]]
"""An inverse temperature, and what it depends on."""


def position_embedding(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> Float[Any, "n width"]:
    """Returns the position embedding that is added to the symbols' embeddings, for inputs of length n.

    It is a NumPy array if the parameters are, and otherwise may be one of JAX.
    """
    if parameters.tables is not None:
        return parameters.tables.positions
    return sum(position_parts(config, parameters, n), np.zeros((n, config.width), config.dtype))


def position_parts(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> Iterator[Float[Any, "n width"]]:
    """Yields what each position term adds to the symbols' embeddings: constants rounded to the config's dtype, times or
    beside what the parameters hold, in theirs."""
    row = 0
    for term in config.position_terms:
        match term:
            case CoordinateTerm():
                vector = needed(parameters.components, "components")[row]
                yield term.values(n).astype(config.dtype)[:, None] * vector
                row += 1
            case AddedTerm():
                yield term.values(n, config.width).astype(config.dtype)
            case Learned():
                yield needed(parameters.learned, "learned")[:n]
            case ScoreTerm():
                pass  # it affects the scores, not the embedding
            case _:
                known = AddedTerm, CoordinateTerm, Learned, ScoreTerm
                raise no_rule("the position embedding", "position term", term, known)


def positions_in(dtype: str, parameters: TransformerParameters) -> TransformerParameters:
    """Returns the parameters with those of positions as NumPy arrays of a dtype."""
    components, learned = parameters.components, parameters.learned
    return replace(
        parameters,
        components=None if components is None else np.asarray(components, dtype),
        learned=None if learned is None else np.asarray(learned, dtype),
    )


def layer_config(config: TransformerConfig, parameters: TransformerParameters, k: int) -> LayerConfig:
    """Returns `config.layer(k)`, with the temperature that the parameters hold if the config is a `shape_of`."""
    layer = config.layer(k)
    return with_fields(layer, weighting=at_temperature(layer.weighting, parameters))


def at_temperature(weighting: Weighting, parameters: TransformerParameters) -> Weighting:
    """Returns a weighting with its inverse temperature from the parameters' tables, if that is where it has it."""
    schedule = weighting.inverse_temperature if isinstance(weighting, Tempered) else None
    if not isinstance(schedule, TabledSchedule) or parameters.tables is None:
        return weighting
    values = parameters.tables.inverse_temperatures[schedule.number]
    return with_fields(weighting, inverse_temperature=schedule.of(values))


@cached
def shape_of(config: TransformerConfig) -> TransformerConfig:
    """Returns what a config shares with those of other temperatures and other added positions.

    Its inverse temperatures are numbers of tables, and of its positions only those are left that affect scores.
    """
    tempered, positions = _tempered(config), cast("tuple[PositionTerm, ...]", config.positions)

    def shaped(k: int) -> Weighting:
        weighting = config.layer(k).weighting
        if not _is_tabled(weighting):
            return weighting
        return with_fields(weighting, inverse_temperature=TabledSchedule(tempered.index(_formula(weighting))))

    return with_fields(
        config,
        weighting=tuple(map(shaped, range(config.layers))) or WEIGHTINGS["softmax"],
        positions=tuple(term for term in positions if isinstance(term, ScoreTerm)),
        initialisation=FAN_IN,
    )


def with_tables(
    config: TransformerConfig, parameters: TransformerParameters, n: int, dtype: str
) -> TransformerParameters:
    """Returns the parameters for `shape_of(config)` and inputs of length n, with tables in NumPy arrays: positions in
    `dtype`, float64 or the config's. O(n width)."""
    own = positions_in(dtype, parameters)
    with np.errstate(over="ignore", invalid="ignore"):  # the output is what is checked
        positions = position_embedding(
            config if config.dtype == dtype else with_fields(config, dtype=dtype), own, n
        )
    inverse = tuple(
        schedule(n if by == "length" else np.arange(1, n + 1)) for schedule, by in _tempered(config)
    )
    return replace(parameters, components=None, learned=None, tables=Tables(positions, inverse))


def _tempered(config: TransformerConfig) -> list[Formula]:
    """Returns the inverse temperatures of the layers as formulas, each once."""
    weightings = [config.layer(k).weighting for k in range(config.layers)]
    return list(dict.fromkeys(_formula(one) for one in weightings if _is_tabled(one)))


def _is_tabled(weighting: Weighting) -> TypeGuard[Tempered]:
    """Whether it asks its formula for 1/tau at the input's length or at every query's; others may ask elsewhere."""
    return isinstance(weighting, Tempered) and type(weighting) in WEIGHTING_TYPES


def _formula(weighting: Tempered) -> Formula:
    return weighting.inverse_temperature, weighting.by
