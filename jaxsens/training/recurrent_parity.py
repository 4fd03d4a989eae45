"""A simple recurrent network for PARITY, its weights set by hand: at the optimum at every length.

The state s, the parity of the 1s so far, is carried by two saturated units a_1, a_2 in {-1, 1} as s = (a_1 - a_2)/2.
With x = 1 for the symbol 1 and else 0, the exclusive or of s and x is [s + x >= 1] - [s + x >= 2], so that

    a_1 <- tanh(B (s + x - 1/2)),   a_2 <- tanh(B (s + x - 3/2))

carry it on. For B = 64 the arguments are at least 32 from 0, where tanh rounds to 1 or -1 in float32 and in float64:
the state is exact, and flips with every 1, at any length. The network starts from a_1 = a_2 = 0, which is s = 0; the
boundary symbol has x = 0 and sets the units. The logits are linear in s: the logarithms of the law of the next symbol
in the even and in the odd state, where the end, which is impossible, has `NEVER` in place of minus infinity.
How far a 1 moves the logits is set by that number: only that this is the same at every length means anything.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import jax.numpy as jnp

from jaxsens.languages import Parity
from jaxsens.models.baselines import RNN, BaselineParameters, RecurrentLayer
from jaxsens.models.baselines_config import RNNConfig
from jaxsens.precision import numerics

_STEEPNESS = 64.0
NEVER = -40.0
"""The logit of an impossible outcome: exp(-40) = 4e-18 is less than float64 resolves beside 1."""


def exact_parity_rnn(end_probability: float = 0.1, dtype: Literal["float32", "float64"] = "float64") -> RNN:
    """The hand-set RNN of width 2 that predicts the next symbol of PARITY as well as can be, at every length.

    It reads the boundary symbol, number 2, and then the word, as a model trained for prediction does. Its cross-entropy
    is `Parity(end_probability).optimal_cross_entropy(n)` up to rounding.

    Raises:
        InputError: if `end_probability` is not between 0 and 1, or `dtype` is no dtype.
    """
    p = Parity(end_probability).end_probability
    config = RNNConfig(alphabet_size=2, width=2, layers=1, logits=3, end_symbol=True, dtype=dtype)
    even = [math.log((1 - p) / 2), math.log((1 - p) / 2), math.log(p)]
    odd = [math.log(1 / 2), math.log(1 / 2), NEVER]
    with numerics(dtype):
        array = partial(jnp.array, dtype=dtype)
        change = (array(odd) - array(even)) / 2
        # The first coordinate of the embedding is x; both units see B x + (a_1 - a_2) B/2.
        layer = RecurrentLayer(
            input=_STEEPNESS * array([[[1, 1], [0, 0]]]),
            recurrent=_STEEPNESS / 2 * array([[[1, 1], [-1, -1]]]),
            bias=_STEEPNESS * array([[-0.5, -1.5]]),
        )
        parameters = BaselineParameters(
            embedding=array([[0, 0], [1, 0], [0, 0]]),
            layers=(layer,),
            output=None,
            output_bias=None,
            head=jnp.stack([change, -change]),
            head_bias=array(even),
        )
    return RNN(config, parameters=parameters)
