"""Reads a published model from a folder in the Hugging Face layout, with the head of a classifier of sequences or of
tokens; and what it would be with other attention weights, another mask, or other positions.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, check_fits, collecting
from jaxsens.core.base.programs import DTYPES, automatic, numerics
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.models.parts.weighting import WEIGHTINGS, Weighting, learns_sink
from jaxsens.core.models.transformer.layered import LAST_OTHER
from jaxsens.core.models.transformer.parameters import Stack
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Architecture, Classifier, Output, PublishedTransformer
from jaxsens.pretrained.families.family import Family, StoredTensor, Tensor, norm_tensors, stored_tensors
from jaxsens.pretrained.families.rotation import RotaryAngles
from jaxsens.pretrained.families.weights import NARROW, Reader, check_narrow, parameters_of
from jaxsens.pretrained.folder import CONFIG, TOKENIZER, TOKENIZER_CONFIG, Folder, existing_folder
from jaxsens.pretrained.model import DescribedModel, PretrainedModel
from jaxsens.pretrained.tokenizer import FolderTokenizer, read_tokenizer


@dataclass(frozen=True)
class ModelChanges:
    """What is changed of a published model; None leaves what it has. Weights stay as they are.

    Attributes:
        weighting: the attention weights of all layers, a name of `WEIGHTINGS` or a `Weighting`. "temperature-log"
            multiplies scores by log n; `Softmax(Schedule(coefficient=1 / log(m), log_power=1))` by log n / log m, which
            leaves inputs of length m as they are.
        window: the width of a sliding window in every layer; how far each side reaches, in an encoder.
        mask: "future" or "none".
        stretch: positions are divided by it: rotary angles, or rows of learned positions with lines between. The model
            reads inputs this much longer.
        layers: the first layers alone, with the final normalisation and the head.

    >>> ModelChanges(weighting="temperature-log").of(jaxsens.load_pretrained("gpt2"))  # doctest: +SKIP
    """

    weighting: str | Weighting | None = None
    window: int | None = None
    mask: Literal["future", "none"] | None = None
    stretch: float | None = None
    layers: int | None = None

    def of(self, model: PretrainedModel) -> PretrainedModel:
        """Returns the changed model. O(parameters) memory if layers are left out.

        Raises:
            InputError: naming every change that the model does not have.
        """
        a, layered = model.architecture, model.layered
        with collecting("changes") as problems:
            inputs.optional_count("window", self.window, problems)
            count = inputs.optional_count("layers", self.layers, problems)
            if count is not None and count > a.layers:
                problems.add("layers", self.layers, f"at most {a.layers}")
            if self.mask not in (None, "future", "none"):
                problems.add("mask", self.mask, '"future" or "none"')
            if isinstance(self.weighting, str) and self.weighting not in WEIGHTINGS:
                problems.add("weighting", self.weighting, f"one of {', '.join(WEIGHTINGS)}")
            if isinstance(self.weighting, Weighting) and learns_sink(self.weighting):
                problems.add("weighting", self.weighting, "a fixed logit: the model has no score of a sink")
            if self.stretch is not None:
                if not isinstance(self.stretch, int | float) or not 0 < self.stretch < np.inf:
                    problems.add("stretch", self.stretch, "a number above 0")
                if not a.learned_positions and not any(a.rotary):
                    remedy = f"{model.family} has neither rotary nor learned positions; leave it out"
                    problems.add("stretch", self.stretch, remedy)
        changed, parameters = self._architecture(a), model.parameters
        if self.layers is not None:
            kept = [parameters["layers"][k] for k in range(self.layers)]
            parameters = {**parameters, "layers": Stack.of(kept)}
        if self.stretch is not None and a.learned_positions:
            with numerics(model.dtype):
                # As many rows as asked, with lines between those of the table; beyond the last, the last.
                table, rows = np.asarray(parameters["positions"]), np.arange(changed.longest)
                places = np.minimum(rows * (len(table) / changed.longest), len(table) - 1)
                before = np.floor(places).astype(int)
                after, share = np.minimum(before + 1, len(table) - 1), (places - before)[:, None]
                table = ((1 - share) * table[before] + share * table[after]).astype(table.dtype)
                parameters = {**parameters, "positions": jnp.asarray(table)}
        weighting = WEIGHTINGS[self.weighting] if isinstance(self.weighting, str) else self.weighting
        own = dataclasses.replace(
            layered,
            architecture=changed,
            pooling=layered.readout,  # a mask does not move what is read
            weighting=weighting or layered.weighting,
        )
        return dataclasses.replace(model, layered=own, parameters=parameters)

    def _architecture(self, a: Architecture) -> Architecture:
        count, new = self.layers or a.layers, dict[str, Any]()
        if self.stretch is not None:
            new["longest"] = max(1, int(a.longest * self.stretch))
            turned = (angles and dataclasses.replace(angles, stretch=self.stretch) for angles in a.rotary)
            new["rotary"] = tuple[RotaryAngles | None, ...](turned)
        if self.mask is not None:
            new["causal"] = self.mask == "future"
        if self.window is not None:
            new["windows"] = (self.window,) * a.layers
        a = dataclasses.replace(a, **new)
        sparse = tuple(k for k in a.experts.layers if k < count) if a.experts else ()
        experts = a.experts and dataclasses.replace(a.experts, layers=sparse)
        cut = {name: getattr(a, name)[:count] for name in ("windows", "scales", "rotary")}
        return dataclasses.replace(a, layers=count, experts=experts, **cut)


@naming_arguments
def load_pretrained(
    folder: str | os.PathLike[str],
    *,
    output: Output = "hidden",
    dtype: str = "float32",
    mesh: Mesh | None = None,
) -> PretrainedModel:
    """Returns a published model from a folder in the Hugging Face layout.

    The folder is a path, or a model's name at the hub that is in its local cache. It has `config.json`,
    `tokenizer.json`, and the weights as `*.safetensors`, with or without an index. A sentence encoder's
    `1_Pooling/config.json` says which row is read: "mean" or 0, [CLS]; its Dense modules map each row. Nothing is
    downloaded, and nothing is unpickled. `docs/reference/families.md` lists the families and their options. Install
    the extra `pretrained`: `pip install "jaxsens[pretrained]"`.

    Args:
        folder: the folder's path, or the name of a downloaded model, such as "openai-community/gpt2".
        output: what is read from a row: "hidden", the row after the last layer and the final normalisation, (width,);
            "logits" of the causal or masked-language head, (symbols,); or the scores of a classifier's "labels",
            (labels,), whose names are `model.labels`. The class in config.json ends with ForSequenceClassification,
            read at [CLS], from the mean of rows, or at a decoder's last symbol that is not `pad_token_id`; or with
            ForTokenClassification, read at any row.
        dtype: "float32" or "float64", to which the weights (float64, float32, float16 or bfloat16) are converted; or
            "bfloat16" for a model in float32 whose matrices stay as they are stored, at half the memory, and are
            converted layer by layer: the same numbers.
        mesh: the devices over which the matrices of layers are split, for a model larger than one of them; flips are
            measured on the same mesh. Each device gathers a layer at a time: the same numbers. None for one device.

    Raises:
        InputError: listing every error, with its remedy: a missing or damaged file; an architecture or option that is
            not served, before weights are read; quantised or missing weights; a name of the hub instead of a folder.

    >>> model = load_pretrained("models/all-MiniLM-L6-v2")  # doctest: +SKIP
    """
    _check_options("load_pretrained", output, dtype, mesh)
    here = existing_folder(folder)
    _check_installed()
    model: Any = _loaded(here, f"load_pretrained({str(here.path)!r})", output, dtype, mesh)
    return model


@naming_arguments
def from_transformers(
    model: Any,
    tokenizer: Any = None,
    *,
    output: Output = "hidden",
    dtype: str = "float32",
    mesh: Mesh | None = None,
) -> PretrainedModel | DescribedModel:
    """Returns a model of the transformers library that is already in memory, of a family that is served.

    It is what `load_pretrained` returns for the folder that the model's own `save_pretrained` writes, bit for bit. The
    folder is a temporary one, so the weights' size is needed on disk for a moment.

    Args:
        model: a `PreTrainedModel`, or a `SentenceTransformer`, which brings its tokenizer.
        tokenizer: its fast tokenizer. Without one the model reads ids alone.
        output, dtype, mesh: as of `load_pretrained`.

    Raises:
        InputError: as `load_pretrained`.

    Example:
        >>> model = jaxsens.from_transformers(bert, tokenizer)  # doctest: +SKIP
        >>> jaxsens.flip_sensitivity(model, "the cat sat")  # doctest: +SKIP
    """
    _check_options("from_transformers", output, dtype, mesh)
    with collecting("from_transformers") as problems:
        for name, one in (("model", model), ("tokenizer", tokenizer)):
            if not callable(getattr(one, "save_pretrained", None)) and (one is not None or name == "model"):
                problems.add(name, type(one).__name__, "an object of transformers, which has save_pretrained")
    _check_installed()
    with TemporaryDirectory(prefix="jaxsens-") as folder:
        for one in (model, tokenizer):
            if one is not None:
                one.save_pretrained(folder)
        here = Folder(Path(folder))
        encodes = tokenizer is not None or TOKENIZER in here.names()
        made = _loaded(here, "from_transformers", output, dtype, mesh, encodes)
    if not isinstance(made, PretrainedModel):
        return made
    name = str(getattr(model, "name_or_path", "") or made.family)
    return dataclasses.replace(made, folder=Path(name), name=name)


def _check_options(function: str, output: str, dtype: str, mesh: Mesh | None) -> None:
    with collecting(function) as problems:
        inputs.choice("output", output, ("hidden", "logits", "labels"), problems)
        inputs.choice("dtype", dtype, (*DTYPES, NARROW), problems)
        inputs.mesh(mesh, problems)
        if not problems and mesh is not None and mesh.is_multi_process:
            problems.add("mesh", mesh, "devices of this process: other processes have a model of their own")


def _loaded(
    here: Folder, subject: str, output: Output, dtype: str, mesh: Mesh | None, encodes: bool = True
) -> PretrainedModel | DescribedModel:
    """Returns the model of a folder; without its tokenizer if it `encodes` nothing."""
    mesh = None if mesh is None else automatic(mesh)
    problems = Problems(subject)
    options = here.config(problems)
    if here.models_within():
        problems.raise_if_any()
    family = _family(options, problems) if not problems else None
    architecture = None if family is None else _architecture(family, options, problems)
    head: Any = (None, (), ())
    if output == "labels" and family is not None and architecture is not None:
        head = classifier_of(family, architecture, options, problems) or head
    classifier, labels, of_classifier = head
    files, index = here.weight_files(problems)
    symbols = 0 if architecture is None else architecture.symbols
    tokenizer = _tokenizer(here, family and family.name, symbols, problems) if encodes else None
    pooling = here.pooling(problems) if output == "hidden" else None
    dense = here.dense(pooling, problems)
    stored = stored_tensors(files, index, problems)
    maps = [stored_tensors([file], {}, problems) for file, _ in dense]
    problems.raise_if_any()
    if family is None or architecture is None or (tokenizer is None and encodes):
        raise RuntimeError("a part is missing without an error")
    stored = family.unwrapped(stored)
    found = family.found(architecture, stored, output, problems, of_classifier)
    if dtype == NARROW:
        check_narrow(found, problems)
    if jax.default_backend() == "cpu":  # else it is the devices' memory that counts
        numbers = sum(math.prod(tensor.shape) for tensor in found)
        needed = numbers * (2 if dtype == NARROW else np.dtype(dtype).itemsize)
        check_fits("folder", str(here.path), needed, "the model", "give a smaller one", problems)
    problems.raise_if_any()
    if output == "logits" and architecture.tied:
        family.check_tied(stored, found, problems)
        problems.raise_if_any()
    with numerics(computed := "float32" if dtype == NARROW else dtype):
        after = tuple(name for _, name in dense)
        layered = PublishedTransformer(architecture, output, 0, pooling, mesh, classifier, dense=after)
        parameters = layered.prepared(parameters_of(found, architecture.layers, Reader(dtype, mesh)))
        if dense:
            parameters |= {"dense": _dense(maps, architecture.width, computed, problems)}
    if tokenizer is None:
        return DescribedModel(layered, parameters)
    offset = architecture.position_offset
    padding = None if offset == 0 or family.counts_padding else offset - 1
    named = family.name, here.path, here.name
    return PretrainedModel(layered, parameters, tokenizer, *named, padding=padding, labels=labels)


def _tokenizer(here: Folder, family: str | None, symbols: int, problems: Problems) -> FolderTokenizer | None:
    write = "backend_tokenizer.save(sys.argv[1] + '/tokenizer.json')"
    make = (
        f"make it where transformers is installed: {here.rewritten_by('AutoTokenizer', write)}\n"
        "    A tokenizer without backend_tokenizer has no such file"
    )
    path = here.file(name := here.tokenizer(family), problems, named_by="folder", absent=make)
    named = TOKENIZER_CONFIG in here.names() and name == TOKENIZER
    beside = here.file(TOKENIZER_CONFIG, problems, named_by="folder", absent="") if named else None
    return None if path is None else read_tokenizer(path, beside, symbols, problems)


def _dense(
    maps: list[dict[str, StoredTensor]], width: int, dtype: str, problems: Problems
) -> list[dict[str, jax.Array]]:
    """Returns the maps that follow the pooling, after checking that each reads what is before it."""
    found = []
    for own in maps:
        shape = own["linear.weight"].shape if "linear.weight" in own else None
        if shape is None or len(shape) != 2 or shape[1] != width:
            problems.add("folder", shape, f"linear.weight of a Dense module has the shape (outputs, {width})")
            problems.raise_if_any()
            break
        width = shape[0]
        parts = {"linear.weight": "matrix", "linear.bias": "bias"}
        found.append({parts[name]: jnp.asarray(own[name].read(dtype).T) for name in parts if name in own})
    return found


def _check_installed() -> None:
    try:
        for name in ("safetensors", "tokenizers"):
            importlib.import_module(name)
    except ImportError as error:
        why = f'load_pretrained: {error.name} is not installed; run: pip install "jaxsens[pretrained]"'
        raise InputError(why) from error


def _family(options: Mapping[str, Any], problems: Problems) -> Family | None:
    name = options.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        problems.add(f"{CONFIG}: model_type", name, f"not served; the families are {', '.join(FAMILIES)}")
    return family.newer if family and family.newer and options.get("legacy") is False else family


def _architecture(family: Family, table: Mapping[str, Any], problems: Problems) -> Architecture | None:
    own = Problems()
    options = family.options(table, CONFIG, own)
    architecture = family.architecture(options)
    options.finish(family.name)
    problems.include(own)
    return None if own else architecture


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
        last: whether a sequence is read at its last symbol that is not padding.
    """

    out: str
    dense: str | None = None
    activation: str | None = None
    norm: str | None = None
    bias: bool = True
    last: bool = False


HEADS: dict[str, dict[str, HeadNames]] = {
    kind: {family: HeadNames(**own) for own in listed for family in own.pop("families").split()}
    for kind, listed in tomllib.loads(Path(__file__).with_name("classifiers.toml").read_text("utf-8")).items()
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
    readout = _readout(family, names, table, problems) if kind == "sequence" else None
    return Classifier(activation, readout), labels, tuple(_tensors(names, a, family, len(labels)))


def _readout(family: Family, names: HeadNames, table: Mapping[str, Any], problems: Problems) -> str | None:
    """Returns the row that a classifier of sequences reads: of a decoder with a padding symbol, the last other one."""
    pooling = table.get("classifier_pooling", "cls")
    if family.name == "modernbert" and pooling != "cls":
        if pooling != "mean":
            problems.add("config.json: classifier_pooling", pooling, '"cls" or "mean"')
        return "mean"
    options = family.options(table, "", Problems(""))  # its faults are noted already
    padding = options.table.get("pad_token_id")
    if not names.last or padding is None or (isinstance(padding, int) and padding < 0):
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
        remedy = "a table from the numbers 0, 1, 2 ... to names of labels"
        problems.add("config.json: id2label", named, remedy)
        return ()
    return tuple(map(str, found))


def _tensors(names: HeadNames, a: Architecture, family: Family, labels: int) -> Iterator[Tensor]:
    width = (a.embedding_width or a.width) if "output_map" in family.outer else a.width
    linear = dataclasses.replace(family, inputs_first=False).linear  # heads are PyTorch's in every family
    if names.dense is not None:
        bias = a.transform_bias or names.norm is None
        yield from linear(("classifier", "dense"), names.dense, width, width, bias)
    if names.norm is not None:
        yield from norm_tensors(a, ("classifier", "norm"), names.norm, (width,))
    yield from linear(("classifier", "out"), names.out, width, labels, names.bias)
