"""`jaxsens.construction`: every constructed transformer by its name."""

from __future__ import annotations

from typing import Any, Literal

from jaxsens.constructions import chiang_cholak
from jaxsens.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.constructions.compiled import CompiledTransformer
from jaxsens.constructions.compiler import compile_formula
from jaxsens.constructions.conditions import ConditionName, Read, check_choices
from jaxsens.constructions.dyck import dyck
from jaxsens.errors import Faults, InputError
from jaxsens.logic import LIBRARY
from jaxsens.precision import DTYPES

DYCK = "dyck"
REFERENCES = {"chiang-cholak-parity": chiang_cholak.parity, "chiang-cholak-first": chiang_cholak.first}
"""The exact transformers of Chiang and Cholak (2022), which have conditions of their own."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    DYCK: ("kinds",),
    **dict.fromkeys(REFERENCES, ("layer_norm", "layer_norm_epsilon", "log_length", "sharpness")),
}


def names() -> tuple[str, ...]:
    """The names that `construction` knows: the formulas of `jaxsens.logic`, dyck, and Chiang and Cholak's."""
    return (*LIBRARY, DYCK, *REFERENCES)


def construction(
    name: str,
    /,
    condition: ConditionName | None = None,
    *,
    autoregressive: bool = False,
    dtype: Literal["float32", "float64"] = "float64",
    read: Read = "output",
    **options: Any,
) -> CompiledTransformer | ReferenceTransformer:
    """The constructed transformer of a name: a formula of the library, DYCK-k, or one of Chiang and Cholak's.

    Args:
        name: one of `jaxsens.constructions.named.names()`, such as "parity", "majority", "dyck-1", "dyck",
            "chiang-cholak-parity".
        condition: what makes attention sharp, as `compile_formula` takes it; "temperature" by default. Chiang and
            Cholak's have none: their attention is softmax over bounded scores, and `log_length` scales it.
        autoregressive, dtype, read: as `compile_formula` takes them.
        options: of "dyck", `kinds` of brackets (2); of Chiang and Cholak's, `layer_norm`, `layer_norm_epsilon`,
            `log_length`, `sharpness`.

    Raises:
        InputError: for an unknown name, with the names there are; else with every reason why there is no such
            construction in this condition.
    """
    if name not in names():
        raise InputError(
            f"construction: name = {name!r}: one of {', '.join(names())}; or compile_formula(text)"
        )
    faults = Faults(f'construction "{name}"')
    known = _OPTIONS.get(name, ())
    for option, value in options.items():
        if option not in known:
            faults.add(option, value, f"its options are {', '.join(known)}" if known else "it has no options")
    kept = {option: value for option, value in options.items() if option in known}
    try:
        if name in REFERENCES:
            model = _reference(name, condition, autoregressive, dtype, read, kept, faults)
        else:
            chosen = "temperature" if condition is None else condition
            model = _compiled(name, chosen, autoregressive, dtype, read, kept)
    except InputError as error:
        if faults:
            faults.messages.append(str(error))
            faults.raise_if_any()
        raise
    faults.raise_if_any()
    return model


def _reference(
    name: str,
    condition: Any,
    autoregressive: Any,
    dtype: Any,
    read: Any,
    options: dict[str, Any],
    faults: Faults,
) -> ReferenceTransformer:
    """One of Chiang and Cholak's; notes what of the common arguments it does not have."""
    if condition is not None:
        faults.add("condition", condition, "leave it out: it has the options log_length and layer_norm")
    if autoregressive:
        faults.add("autoregressive", autoregressive, "it is not future-masked, and its embedding i/N knows N")
    if read == "before-rounding":
        faults.add("read", read, '"output" or "everything": its logit is not rounded')
        read = "output"
    check_choices("temperature", False, dtype, read, faults)
    # What is noted above is not to hide what else is wrong.
    usable = {"read": "everything" if read == "everything" else "output"}
    usable["dtype"] = dtype if dtype in DTYPES else "float64"
    return REFERENCES[name](**usable, **options)


def _compiled(
    name: str, condition: Any, autoregressive: Any, dtype: Any, read: Any, options: dict[str, Any]
) -> CompiledTransformer:
    if name == DYCK:
        return dyck(**options, condition=condition, autoregressive=autoregressive, dtype=dtype, read=read)
    entry = LIBRARY[name]
    return compile_formula(
        entry.formula, entry.alphabet, condition, autoregressive=autoregressive, dtype=dtype, read=read
    )
