"""Rotary position embeddings of published models: the angle of each coordinate pair per position, with its scalings.

The two coordinates of a pair are half a head apart: coordinate c is turned with coordinate c + head_width / 2. All
frequencies are computed in float64 and then rounded to the model's dtype. Old folders write the options as
`rope_scaling`, new ones as `rope_parameters`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.pretrained.families.options import Options


@dataclass(frozen=True)
class RotaryAngles:
    """Su et al. (2021): position i turns pair c by the angle i base^(-2c / width).

    Attributes:
        base: `rope_theta`.
        width: the width of a head, an even number.
    """

    base: float
    width: int

    @classmethod
    def read(cls, own: Options, base: float, width: int, longest: int) -> tuple[Self, int]:
        """Returns the angles that the options of their table say, and the length of the longest input."""
        del own
        return cls(base, width), longest

    @property
    def amplitude(self) -> float:
        """The factor of turned queries and keys."""
        return 1.0

    @property
    def depends_on_length(self) -> bool:
        """Whether the angles depend on the length of the input."""
        return False

    def frequencies(self, n: int) -> Float[np.ndarray, " pairs"]:
        """Returns each pair's angle per position, in radians and float64, for inputs of length n."""
        del n
        return self.unscaled(self.base)

    def unscaled(self, base: float) -> Float[np.ndarray, " pairs"]:
        """Returns base^(-2c / width) for every pair c."""
        return base ** (-np.arange(0, self.width, 2) / self.width)


@dataclass(frozen=True)
class LinearAngles(RotaryAngles):
    """Chen et al. (2023): positions are divided by a factor."""

    factor: float

    @classmethod
    def read(cls, own: Options, base: float, width: int, longest: int) -> tuple[Self, int]:
        """The longest input is as many times longer."""
        factor = own.number("factor")
        return cls(base, width, factor), max(longest, int(longest * factor))

    def frequencies(self, n: int) -> Float[np.ndarray, " pairs"]:
        """The unscaled frequencies, divided by the factor."""
        return super().frequencies(n) / self.factor


@dataclass(frozen=True)
class DynamicAngles(RotaryAngles):
    """A base that grows with inputs longer than those of training ("dynamic NTK").

    Attributes:
        factor: how much the base grows.
        trained_length: `max_position_embeddings`; up to it, nothing is scaled.
    """

    factor: float
    trained_length: int

    @classmethod
    def read(cls, own: Options, base: float, width: int, longest: int) -> tuple[Self, int]:
        """The longest input is as many times longer."""
        factor = own.number("factor")
        if width <= 2:
            own.refuse("rope_type", f"heads wider than {width}")
        if factor < 1:
            own.refuse("factor", "a number of at least 1")
        return cls(base, width, factor, longest), max(longest, int(longest * factor))

    @property
    def depends_on_length(self) -> bool:
        """They do."""
        return True

    def frequencies(self, n: int) -> Float[np.ndarray, " pairs"]:
        """The unscaled frequencies of the base for length n."""
        grown = self.factor * max(n, self.trained_length) / self.trained_length - (self.factor - 1)
        return self.unscaled(self.base * grown ** (self.width / (self.width - 2)))


@dataclass(frozen=True)
class Llama3Angles(RotaryAngles):
    """Llama 3.1: slow pairs are divided by a factor, fast ones are kept, and those between are interpolated.

    Attributes:
        factor: the divisor of slow pairs.
        low: a pair with fewer than `low` turns in `trained_length` positions is slow.
        high: one with more than `high` turns is fast.
        trained_length: `original_max_position_embeddings`.
    """

    factor: float
    low: float
    high: float
    trained_length: int

    @classmethod
    def read(cls, own: Options, base: float, width: int, longest: int) -> tuple[Self, int]:
        """`max_position_embeddings` is that of the scaled positions already."""
        trained = own.count("original_max_position_embeddings", longest)
        low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
        if own.given("low_freq_factor") and own.given("high_freq_factor") and high <= low:
            own.refuse("high_freq_factor", f"a number above low_freq_factor = {low:g}")
        return cls(base, width, own.number("factor"), low, high, trained), longest

    def frequencies(self, n: int) -> Float[np.ndarray, " pairs"]:
        """The scaled frequencies."""
        unscaled = super().frequencies(n)
        turns = self.trained_length * unscaled / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return (1 - kept) * unscaled / self.factor + kept * unscaled


@dataclass(frozen=True)
class YarnAngles(RotaryAngles):
    """Peng et al. (2023): like Llama 3.1, with a ramp over the pairs' numbers, and longer queries and keys.

    Attributes:
        factor: the divisor of slow pairs.
        fast: `beta_fast`, the turns in `trained_length` positions from which a pair is fast.
        slow: `beta_slow`, the turns up to which it is slow.
        trained_length: `original_max_position_embeddings`.
        attention_factor: the factor of queries and keys.
        truncate: whether the ends of the ramp are rounded to whole pairs.
    """

    factor: float
    fast: float
    slow: float
    trained_length: int
    attention_factor: float
    truncate: bool

    @classmethod
    def read(cls, own: Options, base: float, width: int, longest: int) -> tuple[Self, int]:
        """The longest input is `factor` times as long as those of training."""
        trained = own.count("original_max_position_embeddings", longest)
        factor = own.number("factor", longest / trained)
        own_scale, all_scale = own.number("mscale", 0.0), own.number("mscale_all_dim", 0.0)
        amplitude = _longer(factor, 1.0)
        if own_scale and all_scale:
            amplitude = _longer(factor, own_scale) / _longer(factor, all_scale)
        fast, slow = own.number("beta_fast", 32.0), own.number("beta_slow", 1.0)
        amplitude, truncate = own.number("attention_factor", amplitude), own.flag("truncate", True)
        angles = cls(base, width, factor, fast, slow, trained, amplitude, truncate)
        return angles, max(longest, int(trained * factor))

    @property
    def amplitude(self) -> float:
        """The attention factor."""
        return self.attention_factor

    def frequencies(self, n: int) -> Float[np.ndarray, " pairs"]:
        """The scaled frequencies."""
        unscaled = super().frequencies(n)
        first, last = self._pair_with(self.fast), self._pair_with(self.slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.width - 1)
        ramp = (np.arange(self.width // 2) - first) / (last - first if last != first else 0.001)
        slow = np.clip(ramp, 0, 1)
        return slow * unscaled / self.factor + (1 - slow) * unscaled

    def _pair_with(self, turns: float) -> float:
        """Returns the number of the pair, a real number, that makes `turns` turns in `trained_length` positions."""
        return self.width * math.log(self.trained_length / (turns * 2 * math.pi)) / (2 * math.log(self.base))


def turned(
    angles: RotaryAngles, x: Float[Array, "heads width"], position: Int[Array, ""], n: int
) -> Float[Array, "heads width"]:
    """Returns queries or keys of one row, turned by the angles of its position in an input of length n."""
    angle = position.astype(x.dtype) * jnp.asarray(angles.frequencies(n), x.dtype)
    cos, sin = (part * jnp.asarray(angles.amplitude, x.dtype) for part in (jnp.cos(angle), jnp.sin(angle)))
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _longer(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


KINDS: dict[str, type[RotaryAngles]] = {
    "default": RotaryAngles,
    "linear": LinearAngles,
    "dynamic": DynamicAngles,
    "llama3": Llama3Angles,
    "yarn": YarnAngles,
}
"""The angles of each `rope_type`."""


def rotary_angles(options: Options, width: int, longest: int) -> tuple[RotaryAngles, int]:
    """Returns the angles of rotary positions, and the length of the longest input.

    Args:
        options: those of config.json.
        width: the width of a head.
        longest: `max_position_embeddings`; "linear" and "dynamic" scale it.
    """
    new, old = options.value("rope_parameters", {}), options.value("rope_scaling", {})
    if new and old and new != old:
        options.refuse("rope_scaling", "rope_parameters says something else; keep one of them")
    name, table = ("rope_parameters", new) if new else ("rope_scaling", old)
    theta = options.number("rope_theta", 10000.0)
    if not isinstance(table, dict):
        options.refuse(name, "a table with rope_type")
        table = {}
    own = Options(table, f"{options.where}: {name}", options.problems)
    if width % 2:
        options.refuse("head_dim", f"an even width of heads, which is {width}: positions turn pairs")
    kind = own.choice("rope_type", KINDS, own.choice("type", KINDS, "default"))
    base = own.number("rope_theta", theta, least=1.0)
    if own.failed:
        return RotaryAngles(base, width), longest
    own.only("partial_rotary_factor", (1, 1.0, None), "turning a part of each head is not served")
    own.ignore("finetuned")
    made = KINDS[kind].read(own, base, width, longest)
    own.finish_table(f"no option of rope_type {kind} that is served")
    return made
