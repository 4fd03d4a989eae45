"""A new kind of part: measured by what it owns, and refused by name by everybody who has no rule for it.

docs/weightings.md has a row for every weighting, with the engines that serve it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import EngineRefusal, InputError, Softmax, Transformer, TransformerConfig
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.difference import folded
from jaxsens.core.engines.one_key.run import weighting_refusal
from jaxsens.core.models.parts.choices import (
    ACTIVATIONS,
    LAYER_NORMS,
    OUTPUT_GATES,
    SCORES,
    LayerNormPlaces,
    OutputGate,
    ScoreFunction,
)
from jaxsens.core.models.parts.masks import MASK_TYPES, MASKS, KeyMask
from jaxsens.core.models.parts.positions import AddedTerm, CoordinateTerm, PositionTerm, ScoreTerm
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.score_positions import Alibi
from jaxsens.core.models.parts.weighting import (
    WEIGHTING_TYPES,
    WEIGHTINGS,
    AverageHard,
    HardWeighting,
    Sigmoid,
    Weighting,
)
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.theory import certified_bound, check, lemma5, misclassified_pair, restrict
from jaxsens.theory.rules import (
    activation_lipschitz,
    inverse_temperatures,
    position_parts,
    score_terms,
    visible_keys,
)
from tests.core.flip_sensitivity.conformance import engine_of
from tests.refusals import refusal, refused
from tests.small_models import small
from tests.theory.certified_truth import scaled_model, undercut
from tests.theory.hard_models import hard


class Bounded:
    """What every term of these tests says of itself."""

    @property
    def bounded(self) -> bool:
        return True


@dataclass(frozen=True)
class Ramp(Bounded, AddedTerm):
    """i/n in every coordinate: an added term, which every rule for added terms serves."""

    def values(self, n, width):
        return np.repeat(np.arange(1, n + 1)[:, None] / n, width, axis=1)


@dataclass(frozen=True)
class Window(Bounded, ScoreTerm):
    """-1 on keys more than two places away: a score term that nobody has a rule for."""

    def turned(self, x, positions, n):
        return x

    def penalty(self, heads, queries, keys, dtype, table=None):
        far = jnp.abs(queries[:, None] - keys) > 2
        return -jnp.broadcast_to(far, (heads, *far.shape)).astype(dtype)


@dataclass(frozen=True)
class Nowhere(Bounded, PositionTerm):
    """A position term that enters neither the embeddings nor the scores."""


WORD = np.array([0, 1, 1, 0, 1, 2])


@dataclasses.dataclass(frozen=True)
class SquaredShares(Weighting):
    """Weights proportional to 1 + s^2."""

    @property
    def hard(self) -> bool:
        return False

    def shares(self, scores, visible):
        shares = jnp.where(visible, 1 + scores**2, 0)
        return shares, jnp.maximum(jnp.sum(shares, axis=-1, keepdims=True), 1)


@dataclasses.dataclass(frozen=True)
class EndsHard(HardWeighting):
    """Half the weight on the first key with the largest score, half on the last."""

    def winners(self, ties):
        order = jnp.arange(ties.shape[-1])
        last = ties.shape[-1] - 1 - jnp.argmax(ties[..., ::-1], axis=-1)
        return ties & ((order == jnp.argmax(ties, axis=-1)[..., None]) | (order == last[..., None]))


@dataclasses.dataclass(frozen=True)
class Thirds(Bounded, CoordinateTerm):
    """i mod 3."""

    @property
    def label(self) -> str:
        return "thirds"

    def values(self, n):
        return np.arange(1.0, n + 1) % 3


class Warming:
    """An inverse temperature that is no `Schedule`."""

    bounded = True

    def __call__(self, n):
        return 1 / np.asarray(n, float)

    def __repr__(self) -> str:
        return "Warming()"


def near(queries, keys):
    return jnp.abs(queries - keys) <= 1


def distance(queries, keys, vector, exact_rows):
    return -jnp.sum((queries[:, :, None] - keys[:, None]) ** 2, axis=-1)


NAMED = {
    "activation": (ACTIVATIONS, "sine", jnp.sin),
    "mask": (MASKS, "near", KeyMask(near, earlier=True, later=True)),
    "scores": (SCORES, "distance", ScoreFunction(distance, vector=False)),
    "layer_norm": (LAYER_NORMS, "sandwich", LayerNormPlaces(before=True, after=True)),
    "output_gate": (OUTPUT_GATES, "signed", OutputGate(lambda head_width: 1, jnp.tanh)),
}
"""A foreign member of each family that a config names: the table of the family, its name, and what it is."""

FOREIGN = [
    ({"weighting": SquaredShares()}, "weighting SquaredShares"),
    ({"weighting": EndsHard()}, "weighting EndsHard"),
    ({"positions": Ramp()}, "position term Ramp"),
    ({"positions": Thirds()}, "position term Thirds"),
    ({"positions": Window()}, "position term Window"),
    ({"activation": "sine"}, "activation sine"),
    ({"mask": "near"}, "mask near"),
    ({"scores": "distance"}, "score distance"),
    ({"layer_norm": "sandwich"}, "layer normalisation sandwich"),
    ({"output_gate": "signed"}, "output gate signed"),
]


@pytest.fixture
def _members(monkeypatch):
    for table, name, member in NAMED.values():
        monkeypatch.setitem(table, name, member)


def made(**options) -> jaxsens.Transformer:
    config = jaxsens.TransformerConfig(
        **{"alphabet_size": 2, "width": 8, "heads": 2, "feed_forward": 6, "dtype": "float64", **options}
    )
    return jaxsens.Transformer(config, seed=0)


@pytest.mark.quick(1, 5)
@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize(("options", "named"), FOREIGN)
def test_a_part_that_owns_its_forward_pass_is_measured_by_forward_passes(options, named):
    model = made(layers=1, **options)
    assert not np.allclose(model(WORD), made(layers=1)(WORD))
    found = jaxsens.flip_sensitivity(model, WORD)
    assert found.engine.name == "vmap"
    assert f"has no rule for the {named};" in found.engine.reason
    for norm, i, symbol in zip(found.norms, found.positions, found.symbols, strict=True):
        flipped = WORD.copy()
        flipped[i] = symbol
        assert norm == pytest.approx(np.linalg.norm(model(flipped) - model(WORD)), rel=1e-9, abs=1e-14)
    told = jaxsens.explain(model, 600).engine
    assert told.name == "vmap"
    assert named in told.reason
    levels = jaxsens.analysis.layer_changes(model, WORD)
    assert np.isfinite(levels.own).all()


@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize(("options", "named"), FOREIGN)
def test_the_difference_engine_and_the_folded_form_refuse_it_by_name(options, named):
    model = made(**options)
    for call, given in (jaxsens.flip_sensitivity, WORD), (jaxsens.explain, 6):
        with pytest.raises(EngineRefusal, match=f"no rule for the {named}"):
            call(model, given, engine="difference")
    assert named in str(folded.refusal(model.config))


UNKNOWN = {"weighting": Warming(), "positions": Warming()}
UNKNOWN |= {field: name for field, (_, name, _) in NAMED.items()}


@pytest.mark.parametrize("field", UNKNOWN)
def test_what_belongs_to_no_family_makes_no_model(field):
    refused(field, made, **{field: UNKNOWN[field]})


def uses(model: jaxsens.Transformer) -> list[Callable[[], Any]]:
    return [
        lambda: model(WORD),
        lambda: jaxsens.analysis.layer_changes(model, WORD),
        lambda: jaxsens.flip_sensitivity(model, WORD),
    ]


@pytest.mark.parametrize("field", NAMED)
def test_a_name_that_the_config_did_not_check_is_refused_where_it_is_used(field):
    model, name = made(), "unheard-of"
    object.__setattr__(model.config, field, name)
    vars(model.config).pop("_layers", None)  # made when the config was checked
    for call in uses(model):
        with pytest.raises(InputError, match=name):
            call()
    assert name in str(difference.refusal(model.config))


def test_a_position_term_that_enters_neither_embeddings_nor_scores_is_refused():
    model = made(positions=Nowhere())
    for call in uses(model):
        with pytest.raises(InputError, match="no rule for the position term Nowhere"):
            call()


@pytest.mark.parametrize("member", [Softmax, AverageHard, Schedule, Alibi])
def test_a_member_is_final_for_its_rules_are_chosen_by_its_class(member):
    with pytest.raises(TypeError, match=f"{member.__name__} is final"):
        type("Derived", (member,), {})


def test_every_member_that_a_config_can_name_is_served_as_the_engine_says():
    assert set(difference.SERVED.masks) == {*MASKS, *MASK_TYPES}
    assert set(difference.SERVED.scores) == set(SCORES)
    assert set(difference.SERVED.layer_norms) == set(LAYER_NORMS)
    assert set(difference.SERVED.activations) == set(ACTIVATIONS)
    assert set(difference.SERVED.output_gates) == set(OUTPUT_GATES)


@pytest.mark.usefixtures("_members")
@pytest.mark.parametrize(
    "options",
    [
        {"weighting": SquaredShares()},
        {"weighting": EndsHard()},
        {"positions": Window()},
        {"activation": "sine"},
        {"scores": "distance"},
        {"layer_norm": "sandwich"},
        {"output_gate": "headwise"},
    ],
    ids=str,
)
def test_soften_refuses_what_theorem_26_is_not_about(options):
    model = made(**{"weighting": "average-hard", "positions": "none", **options})
    (field,) = options
    with refusal(f"layer 0: {field}", f"layer 1: {field}"):
        jaxsens.formal.soften(model, 4, 0.1)


TEXT = (Path(__file__).parents[3] / "docs" / "weightings.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (`.*?) \|(?:.*\|)? ?(.*?) ?\|$", TEXT, flags=re.MULTILINE)
ROWS = {name: last.split(", ") for first, last in LINES for name in re.findall("`(.*?)`", first)}
NEW = [
    name
    for name, kind in WEIGHTINGS.items()
    if ROWS.get(name) != ROWS["softmax"] or isinstance(kind, Sigmoid)
]


def serving(weighting: Weighting) -> list[str]:
    config = small(weighting=weighting)
    engines = ["vmap"]
    engines += ["incremental"] * (engine_of("incremental", config) is not None)
    engines += ["difference"] * (difference.refusal(config) is None)
    return engines + ["first-order"] * (weighting_refusal("first-order", layered_transformer(config)) is None)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_every_weighting_has_a_row_with_the_engines_that_serve_it(name):
    assert name in ROWS, f"docs/weightings.md needs a row for {name}"
    assert ROWS[name] == serving(WEIGHTINGS[name])


def test_every_type_of_a_table_is_documented_and_nothing_else():
    assert {name for name in ROWS if name in WEIGHTINGS or "-" in name} == set(WEIGHTINGS)
    tempered = {
        kind.__name__ for kind in WEIGHTING_TYPES if "inverse_temperature" in kind.__dataclass_fields__
    }
    assert {name for name in ROWS if name[0].isupper()} == tempered


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("n", [8, 4096])
def test_auto_takes_no_engine_without_a_rule_and_the_others_refuse_by_name(name, n):
    config = TransformerConfig(alphabet_size=2, width=8, heads=2, feed_forward=6, weighting=(name, "softmax"))
    model, kind = jaxsens.Transformer(config, seed=0), type(WEIGHTINGS[name]).__name__
    assert jaxsens.explain(model, n).engine.name in serving(WEIGHTINGS[name])
    for engine in {"incremental", "difference", "first-order"} - set(serving(WEIGHTINGS[name])):
        with pytest.raises(jaxsens.EngineRefusal, match=f"no rule for the weighting {kind}"):
            jaxsens.flip_sensitivity(model, np.zeros(n, int), engine=engine)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", [name for name in NEW if not WEIGHTINGS[name].hard])
def test_soften_and_restrictions_refuse_by_name(name):
    model = jaxsens.Transformer(small(weighting=name, positions="none"))
    kind = type(WEIGHTINGS[name]).__name__
    for use in (lambda: jaxsens.formal.soften(model, 4, 0.1), lambda: jaxsens.theory.restrict(model, 6)):
        with pytest.raises(jaxsens.InputError, match=kind):
            use()


@dataclass(frozen=True)
class Foreign:
    hard: bool = False


# Each family's field, and a member that no rule is for.
STRANGE = {
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
    for family, (_, kind) in STRANGE.items()
}


def made_foreign(model: Transformer, family: str) -> Transformer:
    """The model with a foreign part in its config, as a family that grows would let it in."""
    field, kind = STRANGE[family]
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


@pytest.mark.parametrize("family", STRANGE)
@pytest.mark.parametrize("consumer", [*SOFT, *HARD])
def test_bounds_and_restrictions_refuse_foreign_parts(family, consumer):
    model = Transformer(small(alphabet_size=2)) if consumer in SOFT else hard(0)
    with pytest.raises(InputError, match=NAMES[family]):
        (SOFT | HARD)[consumer](made_foreign(model, family))


@pytest.mark.parametrize("family", STRANGE)
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
    foreign: dict[str, Any] = {family: made_foreign(model, family).config for family in STRANGE}
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
