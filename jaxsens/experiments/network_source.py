"""Networks with random weights as a sweep's models, and how their config is read from a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxsens.errors import Faults
from jaxsens.experiments.inputs import Symbols
from jaxsens.models.config import TransformerConfig
from jaxsens.models.config_tables import NetworkConfig, build, plain, read_config
from jaxsens.models.transformer import check_runs

EVERY = "every coordinate"

Weights = Literal["random", "constructed", "trained"]
"""Where a model's weights come from: the point's seed, mathematics, or training."""

_LATER = frozenset({"centred_scores"})
"""Fields that configs got when points were stored already, under keys made without them: written out only where they
are not the default, so that these points are found again."""


@dataclass(frozen=True)
class Network:
    """A network with random weights drawn by the point's seed."""

    config: NetworkConfig
    weights: ClassVar[Weights] = "random"
    exact_length: ClassVar[int | None] = None

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads."""
        return Symbols(self.config.alphabet_size, self.config.end_of_sequence)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols: their numbers."""
        return tuple(map(str, range(self.config.alphabet_size)))

    @property
    def dtype(self) -> str:
        """The dtype it computes in."""
        return self.config.dtype

    @property
    def bounded(self) -> bool:
        """Whether its position embeddings stay bounded as n grows; True where it has none."""
        return self.config.bounded if isinstance(self.config, TransformerConfig) else True

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured where the sweep does not say."""
        return EVERY

    @property
    def output_size(self) -> int:
        """How many coordinates its output has."""
        return self.config.logits or self.config.width

    def expanded(self) -> dict[str, Any]:
        """The config with every default written out, as JSON values; but for the fields `_LATER`."""
        written = plain(self.config)
        for name in _LATER & written.keys():
            if getattr(self.config, name) == type(self.config).__dataclass_fields__[name].default:
                del written[name]
        return written

    def check_length(self, n: int, faults: Faults) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        readout = getattr(self.config, "readout", "last")
        if isinstance(self.config, TransformerConfig):
            check_runs(self.config, n, faults)
        elif isinstance(readout, int) and readout >= n:
            faults.add("tokens", f"length {n}", f"longer than the readout position {readout}")

    def build(self, seed: int) -> Any:
        """The model, a Flax NNX module."""
        return build(self.config, seed=seed)


def read_network(table: Mapping[str, Any], path: str, faults: Faults) -> Network | None:
    """The network that a `[model]` table describes, or None after noting every fault below `path`."""
    config = read_config(table, path, faults, also=("formula", "construction"))
    return None if config is None else Network(config)
