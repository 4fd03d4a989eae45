"""jaxsens: how much can one symbol of the input move a transformer's output, and how does that scale with n?

Public names load on first use, so that `import jaxsens` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsens import languages as languages
    from jaxsens import logic as logic
    from jaxsens import theory as theory
    from jaxsens.constructions.compiled import CompiledTransformer as CompiledTransformer
    from jaxsens.constructions.compiler import compile_formula as compile_formula
    from jaxsens.constructions.named import construction as construction
    from jaxsens.constructions.soften import soften as soften
    from jaxsens.errors import EngineRefusal as EngineRefusal
    from jaxsens.errors import InputError as InputError
    from jaxsens.errors import PrecisionWarning as PrecisionWarning
    from jaxsens.languages.named import language as language
    from jaxsens.models.baselines import LSTM as LSTM
    from jaxsens.models.baselines import RNN as RNN
    from jaxsens.models.baselines import Convolution as Convolution
    from jaxsens.models.baselines_config import ConvolutionConfig as ConvolutionConfig
    from jaxsens.models.baselines_config import LSTMConfig as LSTMConfig
    from jaxsens.models.baselines_config import RNNConfig as RNNConfig
    from jaxsens.models.config import TransformerConfig as TransformerConfig
    from jaxsens.models.transformer import Transformer as Transformer
    from jaxsens.search.result import SearchInterrupted as SearchInterrupted
    from jaxsens.search.result import WorstInput as WorstInput
    from jaxsens.search.result import load_worst_input as load_worst_input
    from jaxsens.search.worst_input import worst_input as worst_input
    from jaxsens.sensitivity.explain import explain as explain
    from jaxsens.sensitivity.flip_sensitivity import MeasurementInterrupted as MeasurementInterrupted
    from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity as flip_sensitivity
    from jaxsens.sensitivity.flips import sample as sample
    from jaxsens.sensitivity.layer_changes import layer_changes as layer_changes
    from jaxsens.sensitivity.result import FlipSensitivity as FlipSensitivity
    from jaxsens.sensitivity.result import load_result as load_result
    from jaxsens.training.checkpoints import TrainedModel as TrainedModel
    from jaxsens.training.checkpoints import load_checkpoint as load_checkpoint
    from jaxsens.training.config import TrainConfig as TrainConfig
    from jaxsens.training.events import TrainingDiverged as TrainingDiverged
    from jaxsens.training.events import TrainingInterrupted as TrainingInterrupted
    from jaxsens.training.loop import train as train

_HOME = {
    "CompiledTransformer": "jaxsens.constructions.compiled",
    "Convolution": "jaxsens.models.baselines",
    "ConvolutionConfig": "jaxsens.models.baselines_config",
    "EngineRefusal": "jaxsens.errors",
    "FlipSensitivity": "jaxsens.sensitivity.result",
    "InputError": "jaxsens.errors",
    "LSTM": "jaxsens.models.baselines",
    "LSTMConfig": "jaxsens.models.baselines_config",
    "MeasurementInterrupted": "jaxsens.sensitivity.flip_sensitivity",
    "PrecisionWarning": "jaxsens.errors",
    "RNN": "jaxsens.models.baselines",
    "RNNConfig": "jaxsens.models.baselines_config",
    "SearchInterrupted": "jaxsens.search.result",
    "TrainConfig": "jaxsens.training.config",
    "TrainedModel": "jaxsens.training.checkpoints",
    "TrainingDiverged": "jaxsens.training.events",
    "TrainingInterrupted": "jaxsens.training.events",
    "Transformer": "jaxsens.models.transformer",
    "TransformerConfig": "jaxsens.models.config",
    "WorstInput": "jaxsens.search.result",
    "compile_formula": "jaxsens.constructions.compiler",
    "construction": "jaxsens.constructions.named",
    "explain": "jaxsens.sensitivity.explain",
    "flip_sensitivity": "jaxsens.sensitivity.flip_sensitivity",
    "language": "jaxsens.languages.named",
    "layer_changes": "jaxsens.sensitivity.layer_changes",
    "load_checkpoint": "jaxsens.training.checkpoints",
    "load_result": "jaxsens.sensitivity.result",
    "load_worst_input": "jaxsens.search.result",
    "sample": "jaxsens.sensitivity.flips",
    "soften": "jaxsens.constructions.soften",
    "train": "jaxsens.training.loop",
    "worst_input": "jaxsens.search.worst_input",
}
_ROOMS = ("languages", "logic", "theory")
"""Packages that are part of the interface: `jaxsens.theory.certified_bound` needs no further import."""

__all__ = [
    "LSTM",
    "RNN",
    "CompiledTransformer",
    "Convolution",
    "ConvolutionConfig",
    "EngineRefusal",
    "FlipSensitivity",
    "InputError",
    "LSTMConfig",
    "MeasurementInterrupted",
    "PrecisionWarning",
    "RNNConfig",
    "SearchInterrupted",
    "TrainConfig",
    "TrainedModel",
    "TrainingDiverged",
    "TrainingInterrupted",
    "Transformer",
    "TransformerConfig",
    "WorstInput",
    "compile_formula",
    "construction",
    "explain",
    "flip_sensitivity",
    "language",
    "languages",
    "layer_changes",
    "load_checkpoint",
    "load_result",
    "load_worst_input",
    "logic",
    "sample",
    "soften",
    "theory",
    "train",
    "worst_input",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from jaxsens.versions import package_version

        return package_version()
    if name in _ROOMS:
        return importlib.import_module(f"jaxsens.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'jaxsens' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
