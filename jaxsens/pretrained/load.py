"""Reads a published model from a folder in the Hugging Face layout."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsens.base import inputs
from jaxsens.base.errors import InputError, Problems, collecting
from jaxsens.base.memory import check_fits
from jaxsens.base.precision import DTYPES, numerics
from jaxsens.base.strict import naming_arguments
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Architecture, Output, PublishedTransformer
from jaxsens.pretrained.families.family import Family, parameters_of, stored_tensors
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.folder import CONFIG, TOKENIZER, existing_folder
from jaxsens.pretrained.model import PretrainedModel
from jaxsens.pretrained.tokenizer import read_tokenizer


@naming_arguments
def load_pretrained(
    folder: str | os.PathLike[str], *, output: Output = "hidden", dtype: str = "float32"
) -> PretrainedModel:
    """Returns a published model from a folder in the Hugging Face layout.

    The folder has `config.json`, `tokenizer.json`, and the weights as `*.safetensors`, with or without an index.
    A sentence encoder's `1_Pooling/config.json` says which row is read: "mean" or 0, [CLS]. Nothing is downloaded, and
    nothing is unpickled. `docs/pretrained.md` lists the 37 families and their options.
    It needs the extra `pretrained`:
    `pip install "jaxsens[pretrained]"`.

    Args:
        folder: the folder's path.
        output: what is read from a row: "hidden", the row after the last layer and the final normalisation, (width,);
            or "logits" of the causal or masked-language head, (symbols,).
        dtype: "float32" or "float64", to which the weights (float64, float32, float16 or bfloat16) are converted.

    Raises:
        InputError: listing every error, with its remedy: a missing or damaged file; an architecture or option that is
            not served, before weights are read; quantised or missing weights; a name of the hub instead of a folder.
    """
    with collecting("load_pretrained") as problems:
        inputs.choice("output", output, ("hidden", "logits"), problems)
        inputs.choice("dtype", dtype, DTYPES, problems)
    here = existing_folder(folder)
    _check_installed()
    problems = Problems(f"load_pretrained({str(here.path)!r})")
    options = here.config(problems)
    if here.models_within():
        problems.raise_if_any()
    family = _family(options, problems) if not problems else None
    architecture = None if family is None else _architecture(family, options, problems)
    files, index = here.weight_files(problems)
    make = f"make it where transformers is installed: {here.rewritten_by('AutoTokenizer')}"
    path = here.file(TOKENIZER, problems, named_by="folder", absent=make)
    symbols = 0 if architecture is None else architecture.symbols
    tokenizer = None if path is None else read_tokenizer(path, symbols, problems)
    pooling = here.pooling(problems) if output == "hidden" else None
    stored = stored_tensors(files, index, problems)
    problems.raise_if_any()
    if family is None or architecture is None or tokenizer is None:
        raise RuntimeError("a part is missing without an error")
    found = family.found(architecture, stored, output, problems)
    needed = sum(math.prod(tensor.shape) for tensor in found) * np.dtype(dtype).itemsize
    check_fits("folder", str(here.path), needed, "the model", "give a smaller one", problems)
    problems.raise_if_any()
    if output == "logits" and architecture.tied:
        family.check_tied(stored, found, problems)
        problems.raise_if_any()
    with numerics(dtype):
        parameters = parameters_of(found, architecture.layers, dtype)
    return PretrainedModel(
        PublishedTransformer(architecture, output, pooling=pooling),
        parameters,
        tokenizer,
        family.name,
        here.path,
        here.name,
        padding=architecture.position_offset - 1 if architecture.position_offset else None,
    )


def _check_installed() -> None:
    try:
        for name in ("safetensors", "tokenizers"):
            importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f'load_pretrained: {error.name} is not installed; run: pip install "jaxsens[pretrained]"'
        ) from error


def _family(options: Mapping[str, Any], problems: Problems) -> Family | None:
    name = options.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        problems.add(f"{CONFIG}: model_type", name, f"not served; the families are {', '.join(FAMILIES)}")
    return family


def _architecture(family: Family, table: Mapping[str, Any], problems: Problems) -> Architecture | None:
    own = Problems(problems.subject)
    options = Options(table, CONFIG, own)
    architecture = family.architecture(options)
    options.finish(family.name)
    problems.extend(own)
    return None if own else architecture
