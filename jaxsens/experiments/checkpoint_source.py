"""Trained models as a sweep's: checkpoints that `jaxsens train` wrote.

Training gave their weights: the seed of a point changes its inputs and not its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaxsens.errors import Faults, InputError
from jaxsens.experiments.inputs import Symbols
from jaxsens.experiments.network_source import Network, Weights
from jaxsens.strict import did_you_mean, messages


@dataclass(frozen=True)
class CheckpointModel:
    """A trained model.

    Attributes:
        fingerprint: SHA-256 of the step, of the config but for its evaluations and checkpoints, and of all weights and
            the optimiser's state: `jaxsens.training.checkpoints.TrainedModel.fingerprint`.
        step: after how many steps of training it was written.
        steps: how many the training has in all; with fewer it is not finished.
        task: "prediction" of the next symbol, or "recognition" of words.
        language: the name of what it was trained on.
        names: the language's symbols.
        model: the module.
    """

    fingerprint: str
    step: int
    steps: int
    task: Literal["prediction", "recognition"]
    language: str
    names: tuple[str, ...]
    model: Any = field(compare=False, repr=False)
    weights: ClassVar[Weights] = "trained"
    exact_length: ClassVar[int | None] = None

    @property
    def network(self) -> Network:
        """What holds of a network of its config, whatever its weights."""
        return Network(self.model.config)

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads. To predict it reads the end-of-sequence symbol first, to recognise it last."""
        return replace(self.network.symbols, end_first=self.task == "prediction")

    @property
    def bounded(self) -> bool:
        """Whether its position embeddings stay bounded as n grows; True where it has none."""
        return self.network.bounded

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured where the sweep does not say."""
        return (
            "the logits of the next symbol" if self.task == "prediction" else "the logits of the two labels"
        )

    @property
    def output_size(self) -> int:
        """How many coordinates its output has."""
        return self.network.output_size

    def expanded(self) -> dict[str, Any]:
        """Everything that determines the model, as JSON values: not where it lies."""
        return {
            "type": "CheckpointModel",
            "fingerprint": self.fingerprint,
            "step": self.step,
            "task": self.task,
            "language": self.language,
        }

    def check_length(self, n: int, faults: Faults) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        self.network.check_length(n, faults)

    def build(self, seed: int) -> Any:
        """The model, the same for every seed."""
        return self.model


def read_checkpoint(
    table: Mapping[str, Any], path: str, faults: Faults, folder: Path
) -> CheckpointModel | None:
    """The trained model that a `[model]` table names, or None after noting every fault below `path`.

    `folder` is where the config lies, from which the checkpoint's directory is found.
    """
    from jaxsens.training.checkpoints import load_checkpoint  # slow to import, and most sweeps need none

    for key in table.keys() - {"checkpoint"}:
        hint = did_you_mean(key, ("checkpoint",)) or "; a checkpoint is measured as it was trained"
        faults.messages.append(f"{path}.{key}: unknown key{hint}")
    directory = table["checkpoint"]
    if not isinstance(directory, str):
        faults.add(f"{path}.checkpoint", directory, "the name of a directory that `jaxsens train` wrote")
        return None
    try:
        trained = load_checkpoint(folder / directory)
    except InputError as error:
        faults.messages += [f"{path}.checkpoint = {directory!r}: {message}" for message in messages(error)]
        return None
    return CheckpointModel(
        fingerprint=trained.fingerprint,
        step=trained.step,
        steps=trained.config.optimiser.steps,
        task=trained.config.task,
        language=trained.language.name,
        names=trained.language.alphabet,
        model=trained.model,
    )
