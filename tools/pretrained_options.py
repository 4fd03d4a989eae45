"""Every family x every option beside the library: `python -m tools.pretrained_options [FAMILY ...]` prints the counts.

A tiny model of each family, whose config.json has every option that is known of it absent, null, the library's default,
and others. Where the library computes logits (or rows, without a head), jaxsens computes the same, or refuses by name.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Output
from jaxsens.pretrained.families.options import HARMLESS, IRRELEVANT, LIBRARY
from jaxsens.pretrained.load import load_pretrained
from tests.pretrained.oracle import (
    CASES,
    Case,
    class_of,
    config_of,
    ids_of,
    reference,
    save,
    sizes_of,
    torch,
    transformers,
)

OUTCOMES = ("equal", "refused here", "refused there", "too large", "different")
ABSENT: Any = object()
MOST = 3_000_000
"""The numbers of the largest model that is built."""

OF_THEM_ALL = {
    "auto_map": {"AutoModel": "modeling_own.Own"},
    "unsloth_version": "2025.1",
    "made_up_option": 7,
}
"""Options that no family reads."""

LISTS: dict[str, list[Any]] = {
    "layer_types": [["full_attention", "sliding_attention"], ["sliding_attention", "full_attention"]],
    "no_rope_layers": [[0, 1]],
    "mlp_only_layers": [[0]],
    "attention_types": [[[["global"], 2]]],
    "attention_layers": [["local", "global"]],
    "pos_att_type": ["c2p", ["p2c"]],
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 50.0},
        {"rope_type": "linear", "factor": 2.0},
        {"full_attention": {"rope_type": "linear", "factor": 4.0}, "sliding_attention": {"rope_theta": 30.0}},
    ],
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu"],
    "position_embedding_type": ["absolute", "rotary", "relative_key"],
    "norm_rel_ebd": ["none", "layer_norm"],
    "partial_rotary_factor": [0.5, 1.0],
}


def values_of(name: str, default: Any, given: Any) -> Iterator[Any]:
    """Yields what an option is tried at."""
    yield from (ABSENT, None, default)
    if name in LISTS:
        yield from LISTS[name]
        return
    kind = given if given is not None else default
    match kind:
        case bool():
            yield from (True, False)
        case int():
            yield from (1, kind + 1)
        case float():
            yield from (kind * 0.7, kind * 3.0)
        case str():
            yield from ("relu", "silu", "gelu")
        case _:
            yield from (True, 3, 0.4)


def trials(family: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yields the option, its value and the whole config.json."""
    known = LIBRARY["families"][family]
    first = next(case for case in CASES if case.family == family)
    base = json.loads(json.dumps({"model_type": family, **sizes_of(family), **first.options}))
    inner = base["text_config"] if FAMILIES[family].text else base
    known_here = {*known["defaults"], *known["reads"], *known["aliases"], *HARMLESS, *OF_THEM_ALL}
    rotary = {
        "rope_scaling",
        "layer_types",
        "head_dim",
        "partial_rotary_factor",
        "rope_theta",
        "sliding_window",
    }
    names = (known_here | rotary) - {"quantization_config"}
    for name in sorted(one for one in names if not one.startswith("__")):
        default = OF_THEM_ALL.get(name, known["defaults"].get(name))
        tried: list[Any] = []
        few = name in IRRELEVANT or name in OF_THEM_ALL
        for value in [ABSENT, None, default] if few else values_of(name, default, inner.get(name)):
            if any(value is one or (value == one and type(value) is type(one)) for one in tried):
                continue
            tried.append(value)
            own = {key: one for key, one in inner.items() if key != name} | (
                {} if value is ABSENT else {name: value}
            )
            yield name, value, ({**base, "text_config": own} if inner is not base else own)


def outcome(family: str, whole: dict[str, Any], parent: Path, theirs: dict[Any, Any]) -> tuple[str, str]:
    """Returns what came of a config.json, and why. `theirs` keeps what the library computed, by its own config, of
    models that are folders of `parent`."""
    case = Case(family, "an option", whole, whole=True)
    try:
        config = config_of(case)
        key = json.dumps(config.to_dict(), sort_keys=True, default=str)
        with torch.device("meta"):
            size = sum(one.numel() for one in getattr(transformers, class_of(case))(config).parameters())
        if size > MOST:
            return "too large", str(size)
        folder = parent / str([*theirs].index(key) if key in theirs else len(theirs))
        if key not in theirs:
            theirs[key] = "it raises"
            save(case, folder)
            hidden, logits = reference(case, folder, "float64")
            theirs[key] = logits if logits.size else hidden
        elif not isinstance(theirs[key], str):
            (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        return "refused there", repr(error)[:150]
    if isinstance(theirs[key], str) or not np.all(np.isfinite(theirs[key])):
        return "refused there", "it raises, or gives no numbers"
    own, problems = FAMILIES[family], Problems(family)
    options = own.options(whole, "config.json", problems)
    architecture = own.architecture(options)
    options.finish(family)
    if problems:
        return "refused here", str(problems[0])[:200]
    if (key, architecture) in theirs:  # the same model, told in other words
        return theirs[key, architecture]
    output: Output = "logits" if own.head_matrix else "hidden"
    try:
        model = load_pretrained(folder, output=output, dtype="float64")
        with jax.disable_jit():
            ours = np.asarray(model(ids_of(case)))
    except InputError as error:
        return "refused here", str(error).split(": ", 1)[1][:200]
    apart = float(np.abs(ours - theirs[key]).max() / max(1.0, np.abs(theirs[key]).max()))
    theirs[key, architecture] = ("equal" if apart <= 1e-10 else "different"), f"{apart:.1e}"
    return theirs[key, architecture]


def counts(family: str) -> tuple[Counter[str], list[str]]:
    """Returns how often each outcome was, and what differed or was refused here."""
    found, told, theirs = Counter[str](), [], dict[Any, Any]()
    with tempfile.TemporaryDirectory() as folder:
        for name, value, whole in trials(family):
            came, why = outcome(family, whole, Path(folder), theirs)
            found[came] += 1
            if came in ("different", "refused here"):
                told.append(f"{family}: {name} = {'absent' if value is ABSENT else value!r}: {came}: {why}")
    return found, told


def main(families: list[str]) -> None:
    """Prints the counts of each family, and their sum."""
    total = Counter[str]()
    for family in families or FAMILIES:
        found, told = counts(family)
        total += found
        print(
            "\n".join(told),
            f"| {family} | {' | '.join(str(found[one]) for one in OUTCOMES)} |",
            sep="\n",
            flush=True,
        )
    print(f"| all | {' | '.join(str(total[one]) for one in OUTCOMES)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
