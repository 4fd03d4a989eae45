from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.models.transformer.layers import LayeredTransformer, apply, layered_transformer
from tests.refusals import refused
from tests.small_models import small


def model(**options):
    return jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=16, heads=2, feed_forward=32, **options)
    )


def growth(subject, engine):
    """log2 of the growth of the operations as n doubles from 4096 to 8192."""
    few, many = (jaxsens.explain(subject, n, flips=2, engine=engine).operations for n in (4096, 8192))
    return np.log2(many / few)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("engine", "options", "exponent"),
    [
        ("vmap", {"layers": 1}, 2),
        ("vmap", {"layers": 1, "readout": "mean"}, 3),
        ("difference", {"layers": 1}, 1),
        ("difference", {"layers": 1, "readout": "mean"}, 2),
        ("difference", {"layers": 2, "layer_norm": "pre"}, 2),
        ("difference", {"layers": 3}, 3),
    ],
)
def test_an_engine_needs_as_many_operations_as_its_documentation_says(engine, options, exponent):
    assert growth(model(**options), engine) == pytest.approx(exponent, abs=0.1)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "options", [{"layers": 2}, {"layers": 1, "weighting": "temperature-log"}, {"weighting": "sparsemax"}]
)
def test_it_names_the_engine_that_then_runs(options):
    subject, n = model(**options), 20
    for _ in range(2):
        told = jaxsens.explain(subject, n).engine
        assert told == jaxsens.flip_sensitivity(subject, np.zeros(n, int)).engine


@pytest.mark.long
def test_a_text_is_explained_for_a_model_that_encodes_text():
    plain = model(layers=2)

    class Encoding(LayeredModel):
        def encode(self, text: str) -> list[int]:
            return [int(one) for one in text]

    encoding = Encoding(layered_transformer(plain.config), plain.parameters)
    told = jaxsens.explain(encoding, "010111", [0, 1])
    assert (told.n, told.flips) == (6, len(jaxsens.flip_sensitivity(encoding, "010111", [0, 1])))
    refused("n", jaxsens.explain, plain, "010111")


@pytest.mark.needs("first_order")
@pytest.mark.parametrize(
    ("subject", "options", "reason"),
    [
        (model(weighting="sparsemax"), {"engine": "difference"}, "weighting Sparsemax"),
        (lambda tokens: tokens.sum() * 1.0, {"engine": "difference"}, "not a jaxsens transformer"),
        (model(), {"engine": "first-order", "measure": "decision"}, 'measure = "decision"'),
        (model(), {"engine": "first-order", "flips": jaxsens.Delete()}, "flips that delete a position"),
    ],
)
def test_an_engine_that_cannot_serve_is_refused_with_the_reason(subject, options, reason):
    calls: tuple[Any, ...] = (jaxsens.explain, 10), (jaxsens.flip_sensitivity, [0, 1, 1])
    for call, given in calls:
        with pytest.raises(jaxsens.EngineRefusal) as caught:
            call(subject, given, **{"flips": [0, 1], **options})
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("flips", "count"),
    [
        (None, 9),
        ([0, 1], 18),
        ({0: [0], 3: [0, 1]}, 3),
        (jaxsens.Mask(1), 9),
        (jaxsens.Neighbours(1), 9),
        (jaxsens.Substitute(sample=4), 4),
        (jaxsens.Delete(), 9),
        (jaxsens.Insert(), 20),
        (jaxsens.Repeat(3), 10),
        (jaxsens.Substitute(groups=[(0, 1), (5,)]), 4),
        (jaxsens.Substitute(groups=[(0, 1), (5,)], sample=3), 3),
    ],
)
def test_flips_of_other_kinds_are_counted(flips, count):
    told = jaxsens.explain(model(), 10, flips)
    assert told.flips == count
    kinds = jaxsens.Delete | jaxsens.Insert | jaxsens.Repeat
    edits = isinstance(flips, kinds) or bool(getattr(flips, "groups", None))
    assert (told.engine.name == "vmap") >= edits
    assert (told.instead is None) >= edits
    assert told.seconds > 0


def test_an_input_is_explained_as_it_is_measured():
    ids = [0, 1, 1, 0, 0, 2, 1]  # a special symbol in the middle is not flipped
    subject = jaxsens.Transformer(jaxsens.TransformerConfig(2), seed=0)
    flips = len(jaxsens.flip_sensitivity(subject, ids))
    for given in (ids, np.array(ids, np.uint8)):
        found = jaxsens.explain(subject, given)
        assert (found.n, found.flips) == (7, flips)
    assert jaxsens.explain(subject, 7).flips == jaxsens.explain(subject, np.int64(7)).flips == flips + 1


NO_INPUTS, NO_LENGTHS = ([[0, 1], [1, 0]], [[0, 1], [1]], [0.0, 1.0], [0, 9], []), ("01", np.array(7), 0)


@pytest.mark.parametrize(
    ("given", "names"), [*((one, "tokens") for one in NO_INPUTS), *((one, "n") for one in NO_LENGTHS)]
)
def test_what_is_neither_a_length_nor_one_input_is_refused(given, names):
    subject = jaxsens.Transformer(jaxsens.TransformerConfig(2), seed=0)
    refused(names, jaxsens.explain, subject, given)
    options: dict[str, Any] = {"engine": "fast", "measure": "l3", "flips": 7}
    if names == "n":
        refused("n engine measure flips", jaxsens.explain, subject, given, **options)


class Derived(LayeredTransformer):
    """A class that might compute anything: what it does is counted of its programs."""


COUNTED = {
    "heads": {"heads": 4, "layers": 3, "mask": "future"},
    "widths": {"feed_forward": (40, 0, 24), "layers": 3, "layer_norm": "pre", "positions": "rotary"},
    "mean": {"readout": "mean", "output_gate": "elementwise", "logits": 3},
    "hard": {"weighting": "average-hard", "scores": "additive"},
    "one layer": {"layers": 1, "width": 32},
}


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTED)
def test_operations_and_memory_read_off_a_config_are_those_counted_of_its_program(name):
    config = small(**{"width": 16, "head_width": 8, **COUNTED[name]})
    model = jaxsens.Transformer(config, seed=0)
    function = partial(apply, config), model.parameters
    ours, theirs = (jaxsens.explain(one, 33, range(3), engine="vmap") for one in (model, function))
    assert ours.operations / ours.flips == pytest.approx(theirs.operations / theirs.flips, rel=0.2)
    assert ours.memory == pytest.approx(theirs.memory, rel=0.2)
    if name != "hard":
        layered = Derived(config), model.parameters
        ours, theirs = (jaxsens.explain(one, 33, range(3), engine="incremental") for one in (model, layered))
        assert ours.operations == pytest.approx(theirs.operations, rel=0.2)
