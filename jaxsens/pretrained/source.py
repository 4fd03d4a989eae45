"""Published models in a sweep: `[model] pretrained = "FOLDER"`, what variants change, and texts as inputs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from pydantic import ConfigDict

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import STRICT, OptionalPositive, field_names, read_fields
from jaxsens.core.flips.flips import Neighbours
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import read_weighting
from jaxsens.core.models.transformer.module import plain
from jaxsens.core.sweeps.inputs import GivenWords, Symbols, TextFile
from jaxsens.core.sweeps.sources import ModelSource, SourceKind
from jaxsens.pretrained.corpus import read_texts
from jaxsens.pretrained.folder import CONFIG, WEIGHTS, Folder
from jaxsens.pretrained.load import ModelChanges, load_pretrained
from jaxsens.pretrained.model import PretrainedModel


@dataclass(frozen=True)
class PublishedTable:
    """The table of a published model; a change that is None leaves what the model has (`ModelChanges`).

    Attributes:
        pretrained: the folder, relative to that of the config.
        output, dtype: as of `jaxsens.load_pretrained`.
        readout: the row that is read: "last", "mean" or a position; None for the model's own.
        weighting, window, mask, stretch, layers: the changes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    pretrained: str
    output: Literal["hidden", "logits", "labels"] = "hidden"
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    readout: int | Literal["last", "mean"] | None = None
    weighting: str | dict[str, Any] | None = None
    window: OptionalPositive = None
    mask: Literal["future", "none"] | None = None
    stretch: float | None = None
    layers: OptionalPositive = None


@dataclass(frozen=True)
class TokenizerSymbols(Symbols):
    """What the words of a published model are made of: the ids that stand for text, and special ones around a word.

    Attributes:
        tokenizer: SHA-256 of its file.
        before, after: the ids around a text, such as those of [CLS] and [SEP].
        ids: those that stand for text.
    """

    alone: ClassVar[bool] = True
    tokenizer: str = ""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    ids: Int[np.ndarray, " words"] = field(
        default_factory=lambda: np.zeros(0, int), compare=False, repr=False
    )

    @property
    def drawn(self) -> int:
        return len(self.ids)

    def word(self, numbers: Int[np.ndarray, "count m"]) -> Int[np.ndarray, "count m"]:
        return self.ids[numbers]

    def with_end(self, tokens: Int[np.ndarray, "count m"]) -> Int[np.ndarray, "count n"]:
        first, last = (np.tile(np.array(ids, int), (len(tokens), 1)) for ids in (self.before, self.after))
        return np.concatenate([first, tokens, last], axis=1)

    def word_length(self, n: int) -> int:
        return n - len(self.before) - len(self.after)

    def table(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer, "before": [*self.before], "after": [*self.after]}


@dataclass(frozen=True, eq=False, kw_only=True)
class PublishedSource(ModelSource):
    """A published model of a sweep, changed."""

    model: PretrainedModel

    @property
    def weighting(self) -> Weighting:
        return self.model.layered.weighting

    @property
    def readout(self) -> int | str:
        return self.model.layered.readout

    def check_length(self, n: int, problems: Problems) -> None:
        super().check_length(n, problems)
        least, most = 1 - self.symbols.word_length(0), self.model.max_length
        if not least <= n <= most:
            problems.add("n", n, f"the model reads inputs of {least} to {most} symbols")

    def texts(
        self, table: TextFile, folder: Path, lengths: Sequence[int], problems: Problems
    ) -> GivenWords | None:
        """The texts of a file, encoded, and cut off or repeated to each length; None after an error."""
        before, texts = len(problems), []
        for one in read_texts("inputs.texts", folder / table.texts, problems):
            ids = self.model.tokenizer.encode(one.text, False)
            if not ids:
                problems.note("inputs.texts", f"line {one.line}: text = {one.text!r}: it has no tokens")
            texts.append(np.array(ids))
        if len(problems) == before and len(texts) < (table.count or 1):
            problems.add("inputs.texts", table.texts, f"{table.count or 1} texts; it has {len(texts)}")
        if len(problems) > before:
            return None
        sizes = {self.symbols.word_length(n) for n in lengths}
        words = {m: np.stack([np.resize(ids, m) for ids in texts]) for m in sizes if m > 0}
        return GivenWords(words, table.count)


def _read_published(table: Mapping[str, Any], problems: Problems, folder: Path) -> PublishedSource | None:
    """Returns the source that a table describes, or None after noting every error."""
    sound = read_fields(PublishedTable, table, (), problems)
    if sound.get("weighting") is not None:
        sound["weighting"] = read_weighting("weighting", sound["weighting"], problems)
    if sound.get("readout") is not None:
        inputs.config_readout("readout", sound["readout"], problems)
    if problems or "pretrained" not in sound:
        return None
    given = PublishedTable(**sound)
    where = str((folder / Path(given.pretrained).expanduser()).resolve())
    try:
        model, files = _loaded(where, given.output, given.dtype)
        changes = ModelChanges(given.weighting, given.window, given.mask, given.stretch, given.layers)  # pyright: ignore[reportArgumentType]
        model = changes.of(model)
        if given.readout is not None:
            layered = dataclasses.replace(model.layered, pooling=given.readout)
            model = dataclasses.replace(model, layered=layered)
    except InputError as error:
        problems.include(one.renamed({"folder": "pretrained"}) for one in error.problems)
        return None
    expanded = {**plain(given), "pretrained": files, "family": model.family, "readout": model.layered.readout}
    outputs = len(model.labels) or model.architecture.symbols
    return PublishedSource(
        weights="published",
        network=None,
        expanded=expanded,
        build=lambda n, seed: model,
        alphabet=_symbols(model),
        outputs=model.architecture.width if given.output == "hidden" else outputs,
        flips=Neighbours(),
        model=model,
    )


@functools.lru_cache(maxsize=4)
def _loaded(folder: str, output: Any, dtype: str) -> tuple[PretrainedModel, dict[str, str]]:
    """A folder's model, which the variants of a sweep share, and SHA-256 of the files that determine it."""
    model, sums, here = load_pretrained(folder, output=output, dtype=dtype), {}, Path(folder)
    # What a pooling decides are the readout, which is beside these in a key, and whether Dense modules are applied.
    dense = [f"[0-9]*_Dense/{name}" for name in (CONFIG, WEIGHTS) if model.layered.dense]
    files = {path for name in (CONFIG, "*.safetensors", *dense) for path in here.glob(name)}
    for file in sorted(files.union(Folder(here).weight_files(Problems())[0])):
        with file.open("rb") as stream:
            sums[file.relative_to(here).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return model, sums


def _symbols(model: PretrainedModel) -> TokenizerSymbols:
    beside = {*model.reserved, *model.unread}
    ids = np.array([k for k in range(model.architecture.symbols) if k not in beside])
    text = model.decode([int(ids[len(ids) // 2])])
    plain_ids, whole = (model.tokenizer.encode(text, special) for special in (False, True))
    m = len(plain_ids)
    start = next(k for k in range(len(whole) - m + 1) if whole[k : k + m] == plain_ids)
    file = model.folder / Folder(model.folder).tokenizer(model.family)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    before, after = tuple(whole[:start]), tuple(whole[start + m :])
    return TokenizerSymbols(model.architecture.symbols, None, False, sha256, before, after, ids)


def _stages(table: dict[str, Any], problems: Problems) -> list[tuple[str, dict[str, Any]]]:
    """The folders that `checkpoints` names, below that of `pretrained`."""
    folders, whole = table.pop("checkpoints", None), table["pretrained"]
    if folders is None:
        return []
    named = isinstance(folders, list) and folders and all(isinstance(one, str) for one in folders)
    if not named or not isinstance(whole, str):
        remedy = 'a list of folders below that of `pretrained`, such as ["step1000", "step2000"]'
        problems.add("model.checkpoints", folders, remedy)
        return []
    return [(name, {"pretrained": f"{whole}/{name}"}) for name in folders]


PRETRAINED = SourceKind(_read_published, field_names(PublishedTable), stages=_stages)
