"""`LayeredModel`: a model whose attention is visible, as one object."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.models.transformer.layers import layered_transformer

CONFIG = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=2, feed_forward=8)
TOKENS = [0, 1, 2, 2, 1]


class Named(LayeredModel):
    """A model of words of at most six symbols."""

    @property
    def max_length(self) -> int | None:
        return 6

    @property
    def reserved(self) -> tuple[int, ...]:
        return (2,)

    def tokens(self, ids) -> list[str]:
        return ["abc"[int(k)] for k in ids]


def named() -> Named:
    model = jaxsens.Transformer(CONFIG, seed=1)
    return Named(layered_transformer(CONFIG), model.parameters)


def test_calling_it_returns_the_output_of_every_row():
    model = named()
    rows = model(jnp.asarray(TOKENS))
    assert rows.shape == (5, 8)
    for row in (0, 3):
        np.testing.assert_allclose(
            rows[row],
            as_model(model).reading(row, 0, Problems()).call(jnp.asarray(TOKENS)),
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("readout", ["last", 0, "mean"])
def test_it_is_measured_like_the_pair_of_its_parts(readout):
    model = named()
    pair = model.layered, model.parameters
    asked = {"flips": jaxsens.Substitute(2, positions=[0, 1, 4]), "readout": readout}
    ours, theirs = (jaxsens.flip_sensitivity(one, TOKENS, **asked) for one in (model, pair))
    np.testing.assert_array_equal(ours.norms, theirs.norms)


def test_what_it_knows_of_its_symbols_reaches_the_measurement():
    model = as_model(named())
    assert (model.max_length, model.reserved, model.special, model.embeddings) == (6, (2,), (), None)
    assert model.token_names is not None
    assert model.token_names([0, 2]) == ["a", "c"]


@pytest.mark.parametrize(
    "measure",
    [
        lambda model, word: model(jnp.asarray(word)),
        lambda model, word: jaxsens.flip_sensitivity(model, word, 2, readout="last"),
        lambda model, word: jaxsens.explain(model, len(word), flips=2),
        lambda model, word: jaxsens.theory.worst_input(model, len(word), 2),
    ],
    ids=["call", "flip_sensitivity", "explain", "worst_input"],
)
def test_an_input_longer_than_it_reads_is_refused(measure):
    with pytest.raises(InputError, match="at most 6"):
        measure(named(), [0, 1, 1, 0, 1, 1, 0])


@pytest.mark.long
def test_a_search_leaves_out_reserved_symbols_unless_they_are_named():
    model = named()
    assert list(
        jaxsens.theory.worst_input(model, 3, 3, search=jaxsens.theory.Search(exact=True)).alphabet
    ) == [0, 1]
    assert list(
        jaxsens.theory.worst_input(model, 3, search=jaxsens.theory.Search(exact=True), flips=[1, 2]).alphabet
    ) == [
        1,
        2,
    ]
