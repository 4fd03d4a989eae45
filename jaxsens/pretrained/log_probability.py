"""A next token's log-probability, as a function of logits."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float

from jaxsens import inputs
from jaxsens.errors import InputError


@dataclass(frozen=True)
class LogProbability:
    """log softmax(logits)[token], a function of logits that compares by value.

    Attributes:
        token: the token's id.
    """

    token: int

    def __call__(self, logits: Float[Array, " symbols"]) -> Float[Array, ""]:
        """Returns the log-probability, in nats.

        Raises:
            InputError: if there are not that many logits.
        """
        if self.token >= logits.shape[-1]:
            raise InputError(
                f"log_probability: token = {self.token}: the output has {logits.shape[-1]} numbers; give a token below "
                'that, and the logits of all tokens: load_pretrained(folder, output="logits")'
            )
        return jax.nn.log_softmax(logits)[self.token]


def log_probability(token: int) -> LogProbability:
    """Returns the log-probability of a token, in nats, as a function of logits, for `flip_sensitivity(scalar=...)`.

    Two calls with the same token return equal functions, so programs are compiled once.

    >>> log_probability(7) == log_probability(7)
    True

    Args:
        token: the token's id, at least 0.

    Raises:
        InputError: if it is no id.
    """
    return LogProbability(inputs.checked_count("log_probability", token=token))
