"""The options of rotary positions, as old folders (`rope_scaling`) and new ones (`rope_parameters`) write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxsens.pretrained.options import Options
from jaxsens.pretrained.rotary import (
    DynamicAngles,
    LinearAngles,
    Llama3Angles,
    RotaryAngles,
    YarnAngles,
)


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
    made = KINDS[kind](own, base, width, longest)
    own.finish_table(f"no option of rope_type {kind} that is served")
    return made


Made = tuple[RotaryAngles, int]


def _default(own: Options, base: float, width: int, longest: int) -> Made:
    return RotaryAngles(base, width), longest


def _linear(own: Options, base: float, width: int, longest: int) -> Made:
    factor = own.number("factor")
    return LinearAngles(base, width, factor), max(longest, int(longest * factor))


def _dynamic(own: Options, base: float, width: int, longest: int) -> Made:
    factor = own.number("factor")
    if width <= 2:
        own.refuse("rope_type", f"heads wider than {width}")
    if factor < 1:
        own.refuse("factor", "a number of at least 1")
    return DynamicAngles(base, width, factor, longest), max(longest, int(longest * factor))


def _llama3(own: Options, base: float, width: int, longest: int) -> Made:
    trained = own.count("original_max_position_embeddings", longest)
    low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
    if own.given("low_freq_factor") and own.given("high_freq_factor") and high <= low:
        own.refuse("high_freq_factor", f"a number above low_freq_factor = {low:g}")
    return Llama3Angles(base, width, own.number("factor"), low, high, trained), longest


def _yarn(own: Options, base: float, width: int, longest: int) -> Made:
    trained = own.count("original_max_position_embeddings", longest)
    factor = own.number("factor", longest / trained)
    own_scale, all_scale = own.number("mscale", 0.0), own.number("mscale_all_dim", 0.0)
    if own_scale and all_scale:
        amplitude = _longer(factor, own_scale) / _longer(factor, all_scale)
    else:
        amplitude = _longer(factor, 1.0)
    angles = YarnAngles(
        base,
        width,
        factor,
        fast=own.number("beta_fast", 32.0),
        slow=own.number("beta_slow", 1.0),
        trained_length=trained,
        attention_factor=own.number("attention_factor", amplitude),
        truncate=own.flag("truncate", True),
    )
    return angles, max(longest, int(trained * factor))


def _longer(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


KINDS: dict[str, Callable[[Options, float, int, int], Any]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""Returns the angles and the longest input, for each `rope_type`."""
