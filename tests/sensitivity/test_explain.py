from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.models.layered_model import LayeredModel
from jaxsens.models.layered_transformer import layered_transformer


def model(**options):
    return jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=16, heads=2, feed_forward=32, **options)
    )


def growth(subject, engine):
    """log2 of the growth of the operations as n doubles from 4096 to 8192."""
    few, many = (jaxsens.explain(subject, n, engine=engine, alphabet_size=2).operations for n in (4096, 8192))
    return np.log2(many / few)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("options", "exponent"),
    [
        ({"layers": 1}, 1),
        ({"layers": 1, "readout": "mean"}, 2),
        ({"layers": 2}, 2),
        ({"layers": 2, "layer_norm": "pre"}, 2),
        ({"layers": 3}, 3),
    ],
)
def test_the_difference_engine_needs_as_many_operations_as_its_documentation_says(options, exponent):
    assert growth(model(**options), "difference") == pytest.approx(exponent, abs=0.1)


@pytest.mark.parametrize(
    ("options", "exponent"), [({"layers": 1}, 2), ({"layers": 1, "readout": "mean"}, 3), ({"layers": 2}, 3)]
)
def test_forward_passes_grow_as_the_cube_unless_only_one_row_of_one_layer_is_read(options, exponent):
    assert growth(model(**options), "vmap") == pytest.approx(exponent, abs=0.1)


def test_a_future_mask_halves_the_work_of_the_folded_form():
    free, masked = (
        jaxsens.explain(model(mask=mask), 8192, engine="difference").operations for mask in ("none", "future")
    )
    assert masked / free == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "options", [{"layers": 2}, {"layers": 1, "weighting": "temperature-log"}, {"weighting": "sparsemax"}]
)
def test_it_names_the_engine_that_then_runs(options):
    subject, n = model(**options), 20
    ran = jaxsens.flip_sensitivity(subject, np.zeros(n, int)).engine
    assert jaxsens.explain(subject, n).engine == ran


def test_a_text_is_explained_for_a_model_that_encodes_text():
    plain = model(layers=2)

    class Encoding(LayeredModel):
        def encode(self, text: str) -> list[int]:
            return [int(one) for one in text]

    encoding = Encoding(layered_transformer(plain.config), plain.parameters)
    told = jaxsens.explain(encoding, "010111", candidates=[0, 1])
    assert (told.n, told.flips) == (6, len(jaxsens.flip_sensitivity(encoding, "010111", candidates=[0, 1])))
    with pytest.raises(jaxsens.InputError, match="n = '010111': a whole number of at least 1"):
        jaxsens.explain(plain, "010111")


def test_an_input_that_cannot_fit_is_one_error():
    with pytest.raises(
        jaxsens.InputError, match=r"^explain: n = 1000000000000: an input of this length takes"
    ):
        jaxsens.explain(model(layers=1), 10**12)


def test_any_callable_can_be_explained():
    told = jaxsens.explain(lambda tokens: jnp.sin(tokens * 1.0).sum(), 100, alphabet_size=3)
    assert told.engine.name == "vmap"
    assert told.flips == 99 * 2
    assert told.seconds > 0
    assert "198 flips" in str(told)


def test_bad_arguments_are_named_at_once():
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.explain(lambda tokens: tokens.sum(), 0, engine="fast")
    for name in ("n = 0", "alphabet_size = None", "engine = 'fast'"):
        assert name in str(caught.value)


def test_an_engine_that_cannot_serve_the_model_is_refused_with_the_reason():
    with pytest.raises(jaxsens.EngineRefusal, match="weighting Sparsemax"):
        jaxsens.explain(model(weighting="sparsemax"), 10, engine="difference")
    with pytest.raises(jaxsens.EngineRefusal, match="not a jaxsens transformer"):
        jaxsens.flip_sensitivity(lambda tokens: tokens.sum() * 1.0, [0, 1], 2, engine="difference")


@pytest.mark.parametrize(
    ("options", "flips"),
    [
        ({}, 9),
        ({"candidates": [0, 1]}, 18),
        ({"candidates": {0: [0], 3: [0, 1]}}, 3),
        ({"candidates": jaxsens.masking(1)}, 9),
        ({"candidates": jaxsens.neighbours(1)}, 9),
        ({"candidates": jaxsens.sample(4)}, 4),
        ({"candidates": jaxsens.deletion()}, 9),
        ({"candidates": jaxsens.insertion()}, 20),
        ({"candidates": jaxsens.repetition(3)}, 10),
        ({"groups": [(0, 1), (5,)]}, 4),
        ({"groups": [(0, 1), (5,)], "candidates": jaxsens.sample(3)}, 3),
    ],
)
def test_flips_of_other_kinds_are_counted(options, flips):
    told = jaxsens.explain(model(), 10, **options)
    assert told.flips == flips
    edits = {type(edit) for edit in (jaxsens.deletion(), jaxsens.insertion(), jaxsens.repetition())}
    edits = type(options.get("candidates")) in edits or "groups" in options
    assert (told.engine.name == "vmap") >= edits
    assert (told.first_order is None) >= edits
    assert told.seconds > 0


def test_an_estimated_distance_needs_memory_for_the_changes_of_all_outputs():
    norms, distances = (
        jaxsens.explain(model(), 64, engine="first-order", norm=norm) for norm in ("l2", "kl")
    )
    assert distances.memory - norms.memory == 16 * norms.flips * model().config.width
    assert distances.operations == norms.operations


def test_measures_and_edits_that_an_engine_lacks_are_refused_by_name():
    with pytest.raises(jaxsens.EngineRefusal, match='cannot estimate norm = "decision"'):
        jaxsens.explain(model(), 10, engine="first-order", norm="decision")
    assert jaxsens.explain(model(), 10, norm="decision").first_order is None
    assert jaxsens.explain(model(), 10, norm="kl").first_order is not None
    with pytest.raises(jaxsens.EngineRefusal, match="cannot serve flips that delete a position"):
        jaxsens.explain(model(), 10, engine="first-order", candidates=jaxsens.deletion())
    with pytest.raises(
        jaxsens.InputError, match=r"(?s)2 errors.*norm = 'l3'.*candidates = 7: a sequence of symbol ids"
    ):
        jaxsens.explain(model(), 10, norm="l3", candidates=7)  # pyright: ignore[reportArgumentType]
