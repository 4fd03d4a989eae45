"""A simple recurrent network for PARITY with hand-set weights, which attains the optimum at every length.

Two saturated units a_1, a_2 in {-1, 1} hold the state s, the parity of the 1s so far, as s = (a_1 - a_2)/2. Let x be 1
for the symbol 1 and 0 otherwise. The exclusive or of s and x is [s + x >= 1] - [s + x >= 2], so the state is updated by

    a_1 <- tanh(B (s + x - 1/2)),   a_2 <- tanh(B (s + x - 3/2)).

For B = 64 the arguments are at least 32 from 0, where tanh rounds to 1 or -1 in float32 and in float64. The state is
therefore exact, and flips with every 1, at any length. The network starts from a_1 = a_2 = 0, which is s = 0; the
boundary symbol has x = 0 and sets the units. The logits are linear in s: the logarithms of the law of the next symbol
in the even and in the odd state. In the odd state the end is impossible, and has `NEVER` in place of minus infinity.
That number decides how far a 1 moves the logits, so only one fact about this distance has a meaning: it is the same at
every length.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import jax.numpy as jnp

from jaxsens.core.base.programs import numerics
from jaxsens.formal.languages import Parity
from jaxsens.training.baselines import RNN, BaselineParameters, RecurrentLayer, RNNConfig

_STEEPNESS = 64.0
NEVER = -40.0
"""The logit of an impossible outcome. exp(-40) = 4e-18 is below what float64 resolves next to 1."""


def exact_parity_rnn(end_probability: float = 0.1, dtype: Literal["float32", "float64"] = "float64") -> RNN:
    """The hand-set RNN of width 2 that predicts the next symbol of PARITY as well as possible, at every length.

    It reads the boundary symbol, number 2, and then the word, like a model trained for prediction. Its cross-entropy is
    `Parity(end_probability).optimal_cross_entropy(n)` up to rounding.

    Raises:
        InputError: If `end_probability` is not between 0 and 1, or `dtype` is neither "float32" nor "float64".
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
