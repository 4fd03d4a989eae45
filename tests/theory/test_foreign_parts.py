"""A part of a kind that theory has no rule for is refused by name, by every function that would need one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from jaxsens import InputError, Transformer
from jaxsens.theory import certified_bound, check, lemma5, misclassified_pair, restrict
from jaxsens.theory.rules import (
    activation_lipschitz,
    inverse_temperatures,
    position_parts,
    score_terms,
    visible_keys,
)
from tests.foreign_parts import Nowhere, Ramp, Window
from tests.small_models import small
from tests.theory.certified_truth import scaled_model, undercut
from tests.theory.hard_models import hard


@dataclass(frozen=True)
class Foreign:
    hard: bool = False


# Each family's field, and a member that no rule is for.
FOREIGN = {
    "weighting": ("weighting", Foreign()),
    "position term": ("positions", (Nowhere(),)),
    "score term": ("positions", (Window(),)),
    "activation": ("activation", "foreign-activation"),
    "mask": ("mask", "foreign-mask"),
    "score": ("scores", "foreign-score"),
    "layer normalisation": ("layer_norm", "foreign-norm"),
    "output gate": ("output_gate", "headwise"),
}
NAMES = {
    family: kind if isinstance(kind, str) else type(kind[0] if isinstance(kind, tuple) else kind).__name__
    for family, (_, kind) in FOREIGN.items()
}


def made_foreign(model: Transformer, family: str) -> Transformer:
    """The model with a foreign part in its config, as a family that grows would let it in."""
    field, kind = FOREIGN[family]
    config = dataclasses.replace(model.config)
    object.__setattr__(config, field, kind)
    other = Transformer(model.config, parameters=model.parameters)
    object.__setattr__(other, "config", config)
    return other


SOFT: dict[str, Any] = {
    "lemma5": lambda model: lemma5(model, 4),
    "certified_bound": lambda model: certified_bound(model, 4),
}
HARD: dict[str, Any] = {
    "restrict": lambda model: restrict(model, 6),
    "misclassified_pair": lambda model: misclassified_pair(model, "parity", 6),
}


@pytest.mark.parametrize("family", FOREIGN)
@pytest.mark.parametrize("consumer", [*SOFT, *HARD])
def test_bounds_and_restrictions_refuse_foreign_parts(family, consumer):
    model = Transformer(small(alphabet_size=2)) if consumer in SOFT else hard(0)
    with pytest.raises(InputError, match=NAMES[family]):
        (SOFT | HARD)[consumer](made_foreign(model, family))


@pytest.mark.parametrize("family", FOREIGN)
def test_the_checker_refuses_foreign_parts_by_rules_of_its_own(family):
    model = hard(0)
    restriction = restrict(model, 6, 0.5)
    with pytest.raises(
        InputError,
        match=f"check has no rule for the {family.replace('score t', 'position t')} {NAMES[family]}",
    ):
        check(restriction, made_foreign(model, family))


def test_every_dispatch_is_closed_where_it_stands():
    model = Transformer(small(alphabet_size=2))
    foreign: dict[str, Any] = {family: made_foreign(model, family).config for family in FOREIGN}
    layer = model.config.layer(0)
    cases = [
        lambda: position_parts(foreign["position term"], model.parameters, 4),
        lambda: score_terms(dataclasses.replace(layer, position_scores=(Nowhere(),))),
        lambda: visible_keys("Foreign", 4),
        lambda: inverse_temperatures(dataclasses.replace(layer, weighting=Foreign()), 4, "float64"),
        lambda: activation_lipschitz("Foreign"),
    ]
    for case in cases:
        with pytest.raises(InputError, match=r"has no rule for the .* (Foreign|Nowhere)"):
            case()


@pytest.mark.quick(1)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_new_added_term_is_bounded_like_those_that_there_are(layers):
    model = scaled_model(layers, layers=layers, positions=(Ramp(), "sinusoidal"))
    bound, plain = (certified_bound(one, 4) for one in (model, scaled_model(layers, layers=layers)))
    assert undercut(model, 4, bound) <= 1
    assert bound.value != plain.value


def test_restrictions_with_a_new_added_term_are_accepted():
    model = hard(0, positions=(Ramp(), "sinusoidal"))
    assert check(restrict(model, 6, 0.5), model).accepted
