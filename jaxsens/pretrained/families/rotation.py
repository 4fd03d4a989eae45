"""Rotary position embeddings of published models: the angle of each coordinate pair per position, with its scalings.

The first coordinates of a head are turned, or all. The two coordinates of a pair are half of them apart, coordinate c
with coordinate c + width / 2, or next to each other. All frequencies are computed in float64 and then rounded to the
model's dtype. Old folders write the options as `rope_scaling`, new ones as `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.pretrained.families.options import Options

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""The values of `rope_type` that are served."""


@dataclass(frozen=True)
class RotaryAngles:
    """Position i turns pair c by the angle i base^(-2c / width) (Su et al. 2021), "default", or by a scaling of it.

    - "linear" (Chen et al. 2023): positions are divided by a factor.
    - "dynamic" ("dynamic NTK"): the base grows with inputs longer than those of training.
    - "llama3" (Llama 3.1): slow pairs are divided by a factor, fast ones are kept, and those between are interpolated.
    - "yarn" (Peng et al. 2023): the same with a ramp over the pairs' numbers, and longer queries and keys.
    - "longrope" (Ding et al. 2024): each pair has a divisor, and another one in inputs longer than those of training.

    Attributes:
        base: `rope_theta`.
        width: the number of turned coordinates of a head, an even number.
        kind: one of `KINDS`.
        factor: the divisor of positions or of slow pairs; of "dynamic", how much the base grows.
        trained_length: `original_max_position_embeddings`; of "dynamic" `max_position_embeddings`, up to which nothing
            is scaled.
        slow, fast: a pair with fewer than `slow` turns in `trained_length` positions is slow, one with more than `fast`
            turns is fast.
        amplitude: the factor of turned queries and keys.
        truncate: whether the ends of the ramp of "yarn" are rounded to whole pairs.
        divisors: of "longrope", those of each pair in inputs of up to `trained_length` symbols, and in longer ones.
        interleaved: whether the coordinates of a pair are next to each other.
        stretch: positions are divided by it; 1 in every published model.
    """

    base: float
    width: int
    kind: str = "default"
    factor: float = 1.0
    trained_length: int = 0
    slow: float = 0.0
    fast: float = 0.0
    amplitude: float = 1.0
    truncate: bool = True
    divisors: tuple[tuple[float, ...], ...] = ()
    interleaved: bool = False
    stretch: float = 1.0

    @property
    def depends_on_length(self) -> bool:
        """Whether the angles depend on the length of the input."""
        return self.kind in ("dynamic", "longrope")

    def frequencies(self, n: int) -> Float[np.ndarray, " pairs"]:
        """Returns each pair's angle per position, in radians and float64, for inputs of length n."""
        base = self.base
        if self.kind == "dynamic":
            grown = self.factor * max(n, self.trained_length) / self.trained_length - (self.factor - 1)
            base = base * grown ** (self.width / (self.width - 2))
        unscaled = base ** (-np.arange(0, self.width, 2) / self.width)
        match self.kind:
            case "default" | "dynamic":
                return unscaled
            case "linear":
                return unscaled / self.factor
            case "llama3":
                turns = self.trained_length * unscaled / (2 * math.pi)
                kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
                return (1 - kept) * unscaled / self.factor + kept * unscaled
            case "yarn":
                first, last = self._pair_with(self.fast), self._pair_with(self.slow)
                if self.truncate:
                    first, last = math.floor(first), math.ceil(last)
                first, last = max(first, 0), min(last, self.width - 1)
                ramp = (np.arange(self.width // 2) - first) / (last - first if last != first else 0.001)
                slow = np.clip(ramp, 0, 1)
                return slow * unscaled / self.factor + (1 - slow) * unscaled
            case "longrope":
                return unscaled / np.array(self.divisors[n > self.trained_length])
            case _:
                raise no_rule("frequencies", "rope_type", self.kind, KINDS)

    def _pair_with(self, turns: float) -> float:
        """Returns the number of the pair, a real number, that makes `turns` turns in `trained_length` positions."""
        return self.width * math.log(self.trained_length / (turns * 2 * math.pi)) / (2 * math.log(self.base))


def turned(
    angles: RotaryAngles, x: Float[Array, "heads width"], position: Int[Array, ""], n: int
) -> Float[Array, "heads width"]:
    """Returns queries or keys of one row, turned by the angles of its position in an input of length n."""
    angle = position.astype(x.dtype) * jnp.asarray(angles.frequencies(n) / angles.stretch, x.dtype)
    cos, sin = (part * jnp.asarray(angles.amplitude, x.dtype) for part in (jnp.cos(angle), jnp.sin(angle)))
    x, rest = x[..., : angles.width], x[..., angles.width :]
    if angles.interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
        return jnp.concatenate([pairs, rest], axis=-1)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _read(kind: str, own: Options, base: float, width: int, longest: int) -> tuple[RotaryAngles, int]:
    """Returns the angles that the options of their table say, and the length of the longest input."""
    match kind:
        case "default":
            return RotaryAngles(base, width), longest
        case "linear" | "dynamic":
            factor = own.number("factor")
            if kind == "dynamic" and width <= 2:
                own.refuse("rope_type", f"heads wider than {width}")
            if kind == "dynamic" and factor < 1:
                own.refuse("factor", "a number of at least 1")
            return RotaryAngles(base, width, kind, factor, longest), max(longest, int(longest * factor))
        case "llama3":  # `max_position_embeddings` is that of the scaled positions already
            trained = own.count("original_max_position_embeddings", longest)
            low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
            if own.given("low_freq_factor") and own.given("high_freq_factor") and high <= low:
                own.refuse("high_freq_factor", f"a number above low_freq_factor = {low:g}")
            return RotaryAngles(base, width, kind, own.number("factor"), trained, low, high), longest
        case "yarn":
            trained = own.count("original_max_position_embeddings", longest)
            factor = own.number("factor", longest / trained)
            own_scale, all_scale = own.number("mscale", 0.0), own.number("mscale_all_dim", 0.0)
            amplitude = _longer(factor, 1.0)
            if own_scale and all_scale:
                amplitude = _longer(factor, own_scale) / _longer(factor, all_scale)
            fast, slow = own.number("beta_fast", 32.0), own.number("beta_slow", 1.0)
            amplitude, truncate = own.number("attention_factor", amplitude), own.flag("truncate", True)
            angles = RotaryAngles(base, width, kind, factor, trained, slow, fast, amplitude, truncate)
            return angles, max(longest, int(trained * factor))
        case "longrope":
            trained = own.count("original_max_position_embeddings", longest)
            divisors = tuple(own.numbers(name, width // 2) for name in ("short_factor", "long_factor"))
            factor = own.number("factor", longest / trained)
            longer = min(factor, trained) > 1
            amplitude = math.sqrt(1 + math.log(factor) / math.log(trained)) if longer else 1.0
            amplitude = own.number("attention_factor", amplitude)
            own_angles: dict[str, Any] = {"amplitude": amplitude, "divisors": divisors}
            return RotaryAngles(base, width, kind, factor, trained, **own_angles), longest
        case _:
            raise no_rule("load_pretrained", "rope_type", kind, KINDS)


def _longer(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotary_angles(
    options: Options, width: int, longest: int, part: float | None = None, interleaved: bool = False
) -> tuple[RotaryAngles, int]:
    """Returns the angles of rotary positions, and the length of the longest input.

    Args:
        options: those of config.json.
        width: the width of a head.
        longest: `max_position_embeddings`; "linear" and "dynamic" scale it.
        part: the share of a head that is turned unless `partial_rotary_factor` says another; None if the family turns
            whole heads.
        interleaved: whether the coordinates of a pair are next to each other.
    """
    new, old = options.value("rope_parameters", {}), options.value("rope_scaling", {})
    if new and old and new != old:
        options.refuse("rope_scaling", "rope_parameters says something else; keep one of them")
    name, table = ("rope_parameters", new) if new else ("rope_scaling", old)
    theta = options.number("rope_theta")
    if part is not None:
        part = options.number("partial_rotary_factor", part)
    elif options.value("partial_rotary_factor", 1) != 1:
        table = {"partial_rotary_factor": options.table["partial_rotary_factor"], **table}
    return angles_of_table(options, name, table, theta, width, longest, part, interleaved)


def angles_of_table(
    options: Options,
    name: str,
    table: Any,
    theta: float,
    width: int,
    longest: int,
    part: float | None = None,
    interleaved: bool = False,
) -> tuple[RotaryAngles, int]:
    """Returns what `rotary_angles` does, from a table of its options by itself."""
    if not isinstance(table, dict):
        options.refuse(name, "a table with rope_type")
        table = {}
    own = Options(table, f"{options.where}: {name}", options.problems)
    if part is not None:
        width = int(width * own.number("partial_rotary_factor", part))
    if width % 2 or not width:
        options.refuse("head_dim", f"an even number of turned coordinates, which is {width}: they make pairs")
    kind = own.choice("rope_type", KINDS, own.choice("type", (*KINDS, "su"), "default"))
    base = own.number("rope_theta", theta, least=1.0)
    if own.failed:
        return RotaryAngles(base, width), longest
    if part is None and kind == "default":  # the library does not read it there
        own.ignore("partial_rotary_factor")
    own.ignore("finetuned")
    angles, longest = _read("longrope" if kind == "su" else kind, own, base, width, longest)
    own.finish_table(f"no option of rope_type {kind} that is served")
    return replace(angles, interleaved=interleaved), longest


def rotary_by_window(
    options: Options,
    windows: Sequence[int | None],
    bases: Mapping[str, tuple[str, float]],
    width: int,
    both: bool = False,
) -> dict[str, Any]:
    """Returns the angles of each layer, which differ between layers with and without a window, and the length of the
    longest input, as `Architecture` takes them.

    New folders have a table for each kind; old ones have an option for the base of each, and one scaling.

    Args:
        options: those of config.json.
        windows: of each layer; None for none.
        bases: the name and the default of the base of each kind, that of layers without a window first.
        width: the width of a head.
        both: whether the scaling of old folders is that of all kinds, or of the first alone.
    """
    longest = options.count("max_position_embeddings")
    new, old = options.value("rope_parameters", {}), options.value("rope_scaling", {})
    if not isinstance(new, dict) or (new and not new.keys() & bases.keys()):
        options.refuse("rope_parameters", f"a table with a table for each of {' and '.join(bases)}")
        new = {}
    options.ignore("partial_rotary_factor")
    found = []
    for k, (kind, (name, base)) in enumerate(bases.items()):
        own = new.get(kind) or {}
        if old and (both or k == 0):
            both_tables = isinstance(own, dict) and isinstance(old, dict)
            own = {"rope_type": "default", **own, **old} if both_tables else old
        base = options.number(name, base) if name else base
        angles, reach = angles_of_table(options, "rope_parameters", own, base, width, longest)
        found.append(angles)
        longest = max(longest, reach) if k == 0 else longest
    rotary = tuple(found[0] if window is None else found[1] for window in windows)
    return {"rotary": rotary, "longest": longest}
