"""What the transformers library computes for every family and option: `python -m tools.pretrained_recorded` writes it.

The file beside this one has the config, the names and shapes of the tensors, and some rows of the outputs in float64,
so that a machine without PyTorch compares with it. Weights follow from their names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.pretrained.folders import weights, write_tokenizer

FILE = Path(__file__).parent / "recorded" / "pretrained.npz"

LABELLED = (
    "bert",
    "albert",
    "deberta-v2",
    "distilbert",
    "electra",
    "modernbert",
    "esm",
    "gpt2",
    "llama",
    "opt",
)
"""The families whose classifiers are recorded: every kind of head."""


@dataclass(frozen=True)
class Recorded:
    """A tiny model of a family, and what the library computes of it.

    Attributes:
        family, name: its family, and the options that it is for.
        config: its config.json.
        shapes: of its tensors.
        encoder: whether its tokenizer adds symbols.
        ids: the input.
        hidden: the first, the middle and the last row.
        logits: of the last row; empty without a head. Of a classifier, the scores of a sequence's or the last row's
            labels.
    """

    family: str
    name: str
    config: dict[str, Any]
    shapes: dict[str, list[int]]
    encoder: bool
    ids: list[int]
    hidden: np.ndarray
    logits: np.ndarray

    @property
    def rows(self) -> list[int]:
        """The rows that are kept."""
        return [0, len(self.ids) // 2, len(self.ids) - 1]

    def write(self, folder: Path) -> None:
        """Writes the model's folder."""
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        save_file(weights(self.shapes), folder / "model.safetensors", {"format": "pt"})
        write_tokenizer(folder, self.encoder)


def recorded() -> Iterator[Recorded]:
    """Yields what is in the file."""
    with np.load(FILE) as stored:
        for k, one in enumerate(json.loads(str(stored["cases"]))):
            yield Recorded(**one, hidden=stored[f"hidden {k}"], logits=stored[f"logits {k}"])


def main() -> None:
    """Writes the file, where PyTorch and transformers are installed."""
    from tests.pretrained import oracle

    cases: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    kept = [case for case in oracle.LABELLED if case.family in LABELLED]
    for k, case in enumerate((*oracle.CASES, *kept)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            oracle.save(case, folder)
            hidden, logits = oracle.reference(case, folder, "float64")
            config = json.loads((folder / "config.json").read_text("utf-8"))
            (file,) = folder.glob("*.safetensors")
            shapes = {name: list(one.shape) for name, one in load_file(file).items()}
        own = {"family": case.family, "name": case.name, "config": config, "shapes": shapes}
        cases.append({**own, "encoder": case.family in oracle.ENCODER, "ids": oracle.ids_of(case)})
        arrays |= {f"hidden {k}": hidden[[0, case.n // 2, case.n - 1]], f"logits {k}": logits[-1:]}
        print(f"{case}", flush=True)
    arrays["cases"] = np.array(json.dumps(cases))
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
