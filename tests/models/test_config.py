"""What configs refuse, all at once, and scores that are not numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from jaxsens import InputError, TransformerConfig
from jaxsens.models.positions import Learned, Sinusoidal
from jaxsens.models.schedules import Schedule
from jaxsens.models.weighting import WEIGHTINGS, Softmax, weights


def refused(**options):
    with pytest.raises(InputError) as caught:
        TransformerConfig(**{"alphabet_size": 2, **options})
    return str(caught.value)


def test_every_problem_is_reported_at_once():
    message = refused(
        alphabet_size=1, heads=5, weighting="hard", mask=["none", "x"], positions="y", dtype="f"
    )
    for name in (
        "alphabet_size = 1",
        "heads = 5",
        "weighting = 'hard'",
        "mask = 'x'",
        "positions = 'y'",
        "dtype = 'f'",
    ):
        assert name in message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layer_norm_epsilon": True}, "layer_norm_epsilon = True"),
        ({"mask": (["none"], "none")}, "mask = ['none']"),
        ({"positions": (Learned(8), Learned(4))}, "one term of each kind"),
        ({"positions": Learned(0)}, "max_length"),
        ({"width": np.bool_(True)}, "width"),
        ({"positions": Sinusoidal(base=-1.0)}, "a base above 0"),
        ({"positions": "rotary", "width": 6, "heads": 2}, "even"),
        ({"heads": (1, 2, 4)}, "one per layer (2)"),
    ],
)
def test_values_that_would_fail_later_are_refused(options, named):
    assert named in refused(**options)


def test_whole_numbers_of_numpy_are_kept_as_pythons():
    numbers = {"alphabet_size": 2, "width": 8, "heads": (2, 1), "head_width": [4, 8], "layers": 2}
    numbers |= {"feed_forward": 3, "readout": 1, "logits": 5}
    mine, its = (TransformerConfig(**options) for options in (numbers, jax.tree.map(np.int64, numbers)))
    assert repr(its) == repr(mine)
    assert (its, hash(its)) == (mine, hash(mine))


@pytest.mark.parametrize("fields", [{"coefficient": float("nan")}, {"power": "1"}, {"log_power": -1}])
def test_schedules_that_are_no_inverse_temperature_are_refused(fields):
    with pytest.raises(InputError, match=next(iter(fields))):
        Schedule(**fields)


@pytest.mark.parametrize("fields", [{"by": "row"}, {"inverse_temperature": "log"}])
def test_a_softmax_needs_a_schedule_and_knows_two_lengths(fields):
    # In tests the types are checked first, and by a checker that users do not run.
    with pytest.raises((InputError, TypeCheckError)):
        Softmax(**fields)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_a_score_that_is_not_a_number_spoils_its_row_and_no_other(name):
    scores = jnp.array([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    spoilt, sound = weights(WEIGHTINGS[name], scores, jnp.ones((2, 3), bool))
    assert np.isnan(spoilt).any()
    assert np.isfinite(sound).all()
