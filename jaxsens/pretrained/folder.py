"""The files of a folder in the Hugging Face layout: which there are, and what is missing."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import read_within

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY = "vocab.txt"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

POOLING = "1_Pooling/config.json"

READOUTS: dict[str, int | str] = {"mean": "mean", "cls": 0, "lasttoken": "last"}
"""The readouts that poolings of sentence encoders are."""

MOST_BYTES = 2**27
"""The bytes of the longest tokenizer that is read. One of 250,000 words has about 2^25."""

_MOST_OTHERS = 2**25
"""Of every other JSON file. Indices of 100,000 tensors have about 2^23."""

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_FOREIGN = (".gguf", ".h5", ".msgpack", ".onnx", ".ot")


@dataclass(frozen=True)
class Folder:
    """A folder that exists. No file outside it is read.

    Attributes:
        path: the folder.
    """

    path: Path

    def file(self, name: object, problems: Problems, *, named_by: str, absent: str) -> Path | None:
        """Returns the path of a file of the folder, or None after adding an error.

        A link may lead to another file of the folder or, in a cache of the hub, to the blobs of the same model.

        Args:
            name: the file's name, as the folder's own files may give it.
            problems: collects the errors.
            named_by: the file or argument that names it.
            absent: the remedy if there is no such file.
        """
        argument = f"{named_by}: file"
        if not isinstance(name, str) or not name or "\0" in name or Path(name).is_absolute():
            problems.add(argument, name, "the name of a file within the folder")
            return None
        path, root = self.path / name, self.path.resolve()
        blobs = [root.parent.parent / "blobs"] if root.parent.name == "snapshots" else []
        try:
            target = path.resolve()
            if not any(target.is_relative_to(allowed) for allowed in [root, *blobs]):
                remedy = f"it leads out of the folder, to {target}; put the file itself there"
                problems.add(argument, name, remedy)
                return None
            found = path.is_file()
        except (OSError, RuntimeError) as error:  # a name too long, or links in a circle
            problems.add(argument, name, f"not readable ({error})")
            return None
        if not found:
            problems.add("folder", str(self.path), f"it has no {name}; {absent}")
            return None
        return path

    def names(self) -> list[str]:
        """Returns the names of the folder's files, sorted."""
        return sorted(entry.name for entry in self.path.iterdir() if not entry.is_dir())

    def config(self, problems: Problems) -> dict[str, Any]:
        """Returns the options of config.json; none after adding an error."""
        names = self.names()
        absent = f"it is no model in the Hugging Face layout. It has {', '.join(names[:8]) or 'no files'}"
        if "adapter_config.json" in names:
            merge = "merge it into its base model with peft's `merge_and_unload()`, and save that"
            absent = f"it is an adapter, not a model; {merge}"
            if CONFIG in names:
                away = "move adapter_config.json and its weights out of the folder"
                aside = f"or, for the model without it, {away}"
                problems.add("folder", "adapter_config.json", f"adapters are not applied: {merge}; {aside}")
        if (self.path / "snapshots").is_dir():
            absent = "it is the hub's cache of a model; give a folder within its snapshots"
        if within := self.models_within():
            absent = f"give the folder of a model: {' or '.join(repr(str(one)) for one in within[:4])}"
        path = self.file(CONFIG, problems, named_by="folder", absent=absent)
        return {} if path is None else read_json(path, problems)

    def models_within(self) -> list[Path]:
        """Returns the folders of models within this one, which is their parent, the hub's cache of a model, or of all
        models."""
        places = ("*", "snapshots/*", "models--*/snapshots/*")
        found = [path.parent for place in places for path in self.path.glob(f"{place}/{CONFIG}")]
        return sorted(folder for folder in found if any(folder.glob("*.safetensors")))

    @property
    def name(self) -> str:
        """What the model is called: its name at the hub if it is in the hub's cache, else the path that was given."""
        here = self.path.resolve()
        if here.parent.name == "snapshots":
            return here.parent.parent.name.removeprefix("models--").replace("--", "/")
        return self.path.as_posix() if self.path.name else here.name  # "." says nothing

    def tokenizer(self, family: str | None) -> str:
        """Returns the name of the tokenizer's file: of ESM its vocab.txt, also beside a tokenizer.json."""
        return VOCABULARY if family == "esm" and VOCABULARY in self.names() else TOKENIZER

    def pooling(self, problems: Problems) -> int | str | None:
        """Returns the readout that a sentence encoder's 1_Pooling/config.json names; None if there is no such file.

        Adds an error for a pooling that is no readout.
        """
        if not (self.path / POOLING).is_file():
            return None
        path = self.file(POOLING, problems, named_by="folder", absent="")
        table = {} if path is None else read_json(path, problems)
        flags = [key.removeprefix("pooling_mode_") for key, on in table.items() if on is True]
        asked = table.get("pooling_mode", " and ".join(one for one in flags if one != "include_prompt"))
        name = str(asked).removesuffix("_tokens").removesuffix("_token")
        if name not in READOUTS and path is not None:
            known = ", ".join(READOUTS)
            remedy = f"not served; one of {known}. Without this file, [CLS] or a decoder's last row is read"
            problems.add(f"{POOLING}: pooling_mode", asked, remedy)
        return READOUTS.get(name)

    def dense(self, readout: int | str | None, problems: Problems) -> list[tuple[Path, str | None]]:
        """Returns the weights of the maps that a sentence encoder has after its pooling, and their activations.

        Adds an error for a map that cannot be applied to each row by itself.
        """
        found, absent = [], "it is part of a sentence encoder: download the model again"
        for place in sorted(self.path.glob("[0-9]*_Dense")) if readout is not None else []:
            config, weights = (
                self.file(f"{place.name}/{name}", problems, named_by="folder", absent=absent)
                for name in (CONFIG, WEIGHTS)
            )
            table = {} if config is None else read_json(config, problems)
            given = table.get("activation_function", "Tanh")
            name = str(given).rpartition(".")[2].lower()
            if name not in ("identity", "tanh") or (name == "tanh" and readout == "mean"):
                remedy = (
                    "Identity and, not after a mean, Tanh are served: the others are no map of single rows. Without "
                    f"{place.name} and what follows it, rows are read before that map"
                )
                problems.add(f"{place.name}/{CONFIG}: activation_function", given, remedy)
            elif weights is not None:
                found.append((weights, None if name == "identity" else name))
        return found

    def weight_files(self, problems: Problems) -> tuple[list[Path], dict[str, str]]:
        """Returns the files that hold the weights, and the index's map from a tensor's name to its file's, if any."""
        names = self.names()
        if WEIGHTS in names or INDEX not in names:
            own = [WEIGHTS] if WEIGHTS in names else [one for one in names if one.endswith(".safetensors")]
            if not own:
                problems.add("folder", str(self.path), f"it has no *.safetensors; {self._no_weights(names)}")
            found = [self.file(one, problems, named_by="folder", absent="") for one in own]
            return [path for path in found if path is not None], {}
        index = self.file(INDEX, problems, named_by="folder", absent="")
        if index is None:
            return [], {}
        table = read_json(index, problems).get("weight_map")
        if (
            not isinstance(table, dict)
            or not all(isinstance(one, str) for one in table.values())
            or not table
        ):
            problems.add(f"{INDEX}: weight_map", table, "a table from the names of tensors to those of files")
            return [], {}
        absent = f"{INDEX} names it: download the model again"
        files = dict.fromkeys(table.values())
        paths = [self.file(one, problems, named_by=INDEX, absent=absent) for one in files]
        return [path for path in paths if path is not None], table

    def _no_weights(self, names: list[str]) -> str:
        pickles = [one for one in names if one.endswith(_PICKLES) and one != "training_args.bin"]
        if pickles:
            return (
                f"{pickles[0]} is a pickle, which can run any code and is never opened. If you trust it, convert it "
                f"where PyTorch is installed: {self.conversion()}"
            )
        foreign = [one for one in names if one.endswith(_FOREIGN)]
        if foreign:
            return f"{foreign[0]} is in a format that is not read; get the model's safetensors"
        return "download the model again"

    def conversion(self) -> str:
        """Returns the command that rewrites the weights as safetensors, with the class that config.json names."""
        try:
            named = json.loads(read_within(self.path / CONFIG, _MOST_OTHERS))["architectures"][0]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            named = None
        own = named if isinstance(named, str) and named.isidentifier() else "AutoModel"
        return self.rewritten_by(own)

    def rewritten_by(self, name: str, save: str = "save_pretrained(sys.argv[1])") -> str:
        """Returns the command that reads the folder with a class of transformers and writes what it has read there.

        It is quoted for the shell. The folder is an argument of the program, not a part of it.
        """
        program = f"import sys; from transformers import {name} as M; M.from_pretrained(sys.argv[1])"
        return shlex.join(["python", "-c", f"{program}.{save}", str(self.path)])


def existing_folder(given: Any) -> Folder:
    """Returns the folder, after checking that there is one: the path, or a model's name at the hub in its local cache.

    Raises:
        InputError: if not. A name that is not in the cache is answered with the command that downloads it.
    """
    if not isinstance(given, str | os.PathLike) or isinstance(given, bytes) or not str(given):
        raise InputError.of("folder", given, "the path of a folder", subject="load_pretrained")
    path, refusal = Path(given).expanduser(), partial(InputError.of, "folder", str(given))
    try:
        if path.is_dir():
            return Folder(path)
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise refusal(f"not a readable path ({error})", "load_pretrained") from error
    if exists:
        raise refusal("a file; give the folder that holds it", "load_pretrained")
    if (cached := in_hub_cache(str(given))) is not None:
        return Folder(cached)
    raise refusal(f"no such folder{hub_command(str(given))}", "load_pretrained")


def in_hub_cache(name: str) -> Path | None:
    """Returns the folder of a model's main revision in the hub's local cache; None if it is not there.

    The layout is the documented one: models--ORG--NAME/refs/main names a folder within snapshots/.
    """
    if not _HUB_NAME.fullmatch(name):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = Path(os.environ.get("HF_HOME") or Path(base, "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    place = cache / f"models--{name.replace('/', '--')}"
    try:
        revision = read_within(place / "refs" / "main", 256).decode().strip()
    except (OSError, ValueError):
        return None
    folder = place / "snapshots" / revision
    return folder if Path(revision).name == revision and folder.is_dir() else None


def hub_command(name: str) -> str:
    """Returns how to download what may be a model's name at the hub; empty for what is none."""
    if not _HUB_NAME.fullmatch(name):
        return ""
    own = name.rpartition("/")[2]
    return (
        "; nothing is downloaded here. If it is a model's name at the Hugging Face hub, run\n"
        f"    {shlex.join(['hf', 'download', name, '--local-dir', own])}\nand give {own!r}"
    )


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the table of these keys and values. Raises ValueError for a key that is there twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return table


def read_json(path: Path, problems: Problems) -> dict[str, Any]:
    """Returns the table that a JSON file holds; an empty one after adding an error."""
    try:
        most = MOST_BYTES if path.name == TOKENIZER else _MOST_OTHERS
        table = json.loads(read_within(path, most).decode("utf-8"), object_pairs_hook=each_key_once)
    except (OSError, ValueError, RecursionError) as error:
        problems.add("folder", str(path), f"not readable as JSON ({error}); download it again")
        return {}
    if not isinstance(table, dict):
        remedy = f"it holds a {type(table).__name__}, not a table; download it again"
        problems.add("folder", str(path), remedy)
        return {}
    return table
