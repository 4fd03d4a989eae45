from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.models.transformer.layers import layered_transformer
from tests.refusals import refusal


def model(**options):
    return jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=16, heads=2, feed_forward=32, **options)
    )


def growth(subject, engine):
    """log2 of the growth of the operations as n doubles from 4096 to 8192."""
    few, many = (jaxsens.explain(subject, n, flips=2, engine=engine).operations for n in (4096, 8192))
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
    with refusal("n"):
        jaxsens.explain(plain, "010111")


def test_any_callable_can_be_explained():
    told = jaxsens.explain(lambda tokens: jnp.sin(tokens * 1.0).sum(), 100, flips=3)
    assert told.engine.name == "vmap"
    assert told.flips == 99 * 2
    assert told.seconds > 0
    assert "198 flips" in str(told)


def test_bad_arguments_are_named_at_once():
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.explain(lambda tokens: tokens.sum(), 0, engine="fast")
    for name in ("n = 0", "flips = None", "engine = 'fast'"):
        assert name in str(caught.value)


def test_an_engine_that_cannot_serve_the_model_is_refused_with_the_reason():
    with pytest.raises(jaxsens.EngineRefusal, match="weighting Sparsemax"):
        jaxsens.explain(model(weighting="sparsemax"), 10, engine="difference")
    with pytest.raises(jaxsens.EngineRefusal, match="not a jaxsens transformer"):
        jaxsens.flip_sensitivity(lambda tokens: tokens.sum() * 1.0, [0, 1], 2, engine="difference")


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
    edits = getattr(flips, "groups", None) or isinstance(
        flips, jaxsens.Delete | jaxsens.Insert | jaxsens.Repeat
    )
    edits = bool(edits)
    assert (told.engine.name == "vmap") >= edits
    assert (told.instead is None) >= edits
    assert told.seconds > 0


@pytest.mark.needs("first_order")
def test_an_estimated_distance_needs_memory_for_the_changes_of_all_outputs():
    norms, distances = (
        jaxsens.explain(model(), 64, measure=norm, engine="first-order") for norm in ("l2", "kl")
    )
    assert distances.memory - norms.memory == 16 * norms.flips * model().config.width
    assert distances.operations == norms.operations


@pytest.mark.needs("first_order")
def test_measures_and_edits_that_an_engine_lacks_are_refused_by_name():
    with pytest.raises(jaxsens.EngineRefusal, match='cannot estimate measure = "decision"'):
        jaxsens.explain(model(), 10, measure="decision", engine="first-order")
    assert jaxsens.explain(model(), 10, measure="decision").instead is None
    assert jaxsens.explain(model(), 10, measure="kl").instead is not None
    with pytest.raises(jaxsens.EngineRefusal, match="cannot serve flips that delete a position"):
        jaxsens.explain(model(), 10, flips=jaxsens.Delete(), engine="first-order")
    with pytest.raises(jaxsens.InputError, match=r"(?s)2 errors.*measure = 'l3'.*flips = 7"):
        jaxsens.explain(model(), 10, flips=7, measure="l3")  # pyright: ignore[reportArgumentType]


def test_an_input_is_explained_as_it_is_measured_whatever_holds_its_ids():
    ids = [0, 1, 1, 0, 0, 2, 1]  # a special symbol in the middle is not flipped
    torch = pytest.importorskip("torch")
    subject = jaxsens.Transformer(jaxsens.TransformerConfig(2), seed=0)
    flips = len(jaxsens.flip_sensitivity(subject, ids))
    for given in (
        ids,
        tuple(ids),
        np.array(ids, np.uint8),
        jnp.array(ids),
        pd.Series(ids),
        torch.tensor(ids),
    ):
        found = jaxsens.explain(subject, given)
        assert (found.n, found.flips) == (7, flips)
    assert jaxsens.explain(subject, 7).flips == jaxsens.explain(subject, np.int64(7)).flips == flips + 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[0, 1], [1, 0]], "shape (n,), one input"),
        ([[0, 1], [1]], "shape (n,)"),
        ([0.0, 1.0], "whole numbers"),
        ([0, 9], "the model reads ids 0 to 2"),
        ([], "shape (n,), one input"),
        ("01", "a whole number of at least 1"),
        (np.array(7), "a whole number of at least 1"),
    ],
)
def test_what_is_neither_a_length_nor_one_input_is_refused(given, said):
    subject = jaxsens.Transformer(jaxsens.TransformerConfig(2), seed=0)
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.explain(subject, given)
    assert said in str(caught.value)
