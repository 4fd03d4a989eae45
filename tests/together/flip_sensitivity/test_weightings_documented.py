"""docs/weightings.md: a row for every weighting, with the engines that serve it, and `auto` takes no other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import jaxsens
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.one_key.run import weighting_refusal
from jaxsens.core.models.parts.weighting import WEIGHTING_TYPES, WEIGHTINGS, Sigmoid, Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layers import layered_transformer
from tests.core.flip_sensitivity.conformance import engine_of
from tests.small_models import small

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
    model, kind = (
        jaxsens.Transformer(small(weighting=name, positions="none")),
        type(WEIGHTINGS[name]).__name__,
    )
    for refused in (lambda: jaxsens.formal.soften(model, 4, 0.1), lambda: jaxsens.theory.restrict(model, 6)):
        with pytest.raises(jaxsens.InputError, match=kind):
            refused()
