"""The heads of classifiers of sequences and of tokens: which map from a row to the scores of labels a folder has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems
from jaxsens.core.models.transformer.layered import LAST_OTHER
from jaxsens.pretrained.families.architecture import Architecture, Classifier
from jaxsens.pretrained.families.family import Family, Tensor, norm_tensors

KINDS = {"ForSequenceClassification": "sequence", "ForTokenClassification": "token"}
"""What the class in `architectures` ends with, and what it classifies."""


@dataclass(frozen=True)
class HeadNames:
    """The names of a head's tensors, and what is between its maps.

    Attributes:
        out: the map to the scores.
        dense: the map before it, as wide as a row; None for none.
        activation: of that map.
        norm: the normalisation after it; None for none.
        bias: whether the map to the scores has a bias.
    """

    out: str
    dense: str | None = None
    activation: str | None = None
    norm: str | None = None
    bias: bool = True


_DENSE = HeadNames("classifier.out_proj", "classifier.dense", "tanh")
_POOLED = HeadNames("classifier", "pooler.dense", "tanh")
_MODERN = HeadNames("classifier", "head.dense", "classifier_activation", "head.norm")
_SCORE = HeadNames("score", bias=False)

_DECODERS = (
    "gpt2", "gpt_neo", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "phi", "phi3", "opt", "falcon",
    "bloom", "gemma", "gemma2", "gemma3_text", "smollm3", "stablelm", "starcoder2", "mixtral", "qwen3_moe", "nemotron",
    "olmo", "olmo2", "olmo3", "qwen2_moe", "gemma3",
)  # fmt: skip
_TAGGERS = (
    "bert", "albert", "deberta-v2", "distilbert", "electra", "roberta", "xlm-roberta", "camembert", "esm", "mpnet",
    "gpt2", "gpt_neo", "gpt_neox", "falcon", "bloom", "t5", "mt5",
)  # fmt: skip
_SCORED_TAGGERS = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "smollm3", "stablelm", "starcoder2", "qwen3_moe",
    "nemotron", "phi", "phi3", "mixtral", "qwen2_moe",
)  # fmt: skip

HEADS: dict[str, dict[str, HeadNames]] = {
    "sequence": {
        "bert": _POOLED,
        "albert": HeadNames("classifier", "pooler", "tanh"),
        "deberta-v2": HeadNames("classifier", "pooler.dense", "gelu"),
        "distilbert": HeadNames("classifier", "pre_classifier", "relu"),
        "electra": HeadNames("classifier.out_proj", "classifier.dense", "gelu"),
        "modernbert": _MODERN,
        **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "esm", "mpnet"), _DENSE),
        **dict.fromkeys(_DECODERS, _SCORE),
    },
    "token": {
        "modernbert": _MODERN,
        **dict.fromkeys(_TAGGERS, HeadNames("classifier")),
        **dict.fromkeys(_SCORED_TAGGERS, HeadNames("score")),
    },
}
"""The heads that the library gives to families, by what they classify."""


def classifier_of(
    family: Family, a: Architecture, table: Mapping[str, Any], problems: Problems
) -> tuple[Classifier, tuple[str, ...], tuple[Tensor, ...]] | None:
    """Returns the head that a folder's config.json names, the names of its labels, and its tensors; None after adding
    an error."""
    named = table.get("architectures")
    own = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "no class"
    kind = next((kind for end, kind in KINDS.items() if own.endswith(end)), None)
    if kind is None:
        remedy = f"config.json has {own}, which has no labels; give the folder of a {' or '.join(KINDS)}"
        problems.add("output", "labels", remedy)
        return None
    names = HEADS[kind].get(family.name)
    if names is None:
        problems.add("output", "labels", f"{own}: not served; of {kind}s there are {', '.join(HEADS[kind])}")
        return None
    if table.get("pooler_hidden_act", "gelu") != "gelu" and family.name == "deberta-v2":
        problems.add("config.json: pooler_hidden_act", table["pooler_hidden_act"], 'only "gelu" is served')
    labels = _labels(table, problems)
    activation = a.head_activation if names.activation == "classifier_activation" else names.activation
    readout = _readout(family, table, problems) if kind == "sequence" else None
    return Classifier(activation, readout), labels, tuple(_tensors(names, a, family, len(labels)))


def _readout(family: Family, table: Mapping[str, Any], problems: Problems) -> str | None:
    """Returns the row that a classifier of sequences reads: of a decoder with a padding symbol, the last other one."""
    pooling = table.get("classifier_pooling", "cls")
    if family.name == "modernbert" and pooling != "cls":
        if pooling != "mean":
            problems.add("config.json: classifier_pooling", pooling, '"cls" or "mean"')
        return "mean"
    padding = family.options(table, "", Problems("")).table.get(
        "pad_token_id"
    )  # faults in it are already noted
    if family.name not in _DECODERS or padding is None or (isinstance(padding, int) and padding < 0):
        return None
    return f"{LAST_OTHER}{inputs.count('config.json: pad_token_id', padding, problems)}"


def _labels(table: Mapping[str, Any], problems: Problems) -> tuple[str, ...]:
    """The names of labels by number: two without names, unless config.json says more."""
    named = table.get("id2label")
    if named is None:
        count = table.get("num_labels", 2)
        named = {str(k): f"LABEL_{k}" for k in range(count if isinstance(count, int) else 0)}
    found = [named.get(str(k)) for k in range(len(named))] if isinstance(named, dict) else []
    if not found or not all(isinstance(one, str) and one for one in found):
        problems.add(
            "config.json: id2label", named, "a table from the numbers 0, 1, 2 ... to names of labels"
        )
        return ()
    return tuple(map(str, found))


def _tensors(names: HeadNames, a: Architecture, family: Family, labels: int) -> Iterator[Tensor]:
    width = (a.embedding_width or a.width) if "output_map" in family.outer else a.width
    if names.dense is not None:
        yield from _map("dense", names.dense, width, width, a.transform_bias or names.norm is None)
    if names.norm is not None:
        yield from norm_tensors(a, ("classifier", "norm"), names.norm, (width,))
    yield from _map("out", names.out, width, labels, names.bias)


def _map(part: str, name: str, ins: int, outputs: int, bias: bool) -> Iterator[Tensor]:
    yield Tensor(("classifier", part, "matrix"), (f"{name}.weight",), (outputs, ins), transposed=True)
    if bias:
        yield Tensor(("classifier", part, "bias"), (f"{name}.bias",), (outputs,))
