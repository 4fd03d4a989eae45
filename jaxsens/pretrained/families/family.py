"""What a family of published models says about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.options import Options
from jaxsens.pretrained.tensors import Tensor

Reader = Callable[[Options], Architecture]
"""Returns the architecture from the options of config.json, adding errors to theirs."""


@dataclass(frozen=True)
class Family:
    """A family of published models.

    Attributes:
        name: its `model_type`.
        prefix: what stands before the names of tensors if the model was saved with a head.
        architecture: returns the architecture from the options of config.json, adding errors to theirs.
        tensors: returns the tensors up to the last rows.
        head: returns the tensors of the language-model head, without its matrix.
        head_matrix: the names of the head's matrix.
        buffers: regular expressions of tensors that are no parameters, such as position ids.
        heads: regular expressions of tensors of heads, which read the last rows.
        language_model: the class that saves the language-model head, for messages.
    """

    name: str
    prefix: str
    architecture: Reader
    tensors: Callable[[Architecture], Iterable[Tensor]]
    head: Callable[[Architecture], Iterable[Tensor]]
    head_matrix: tuple[str, ...]
    buffers: tuple[str, ...]
    heads: tuple[str, ...]
    language_model: str
