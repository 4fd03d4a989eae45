"""A published model larger than a device, without its weights: shapes, to compile for devices that are not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from benchmarks.compiled import Program
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import LayeredApply
from jaxsens.core.placement.program import bytes_of
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import PublishedTransformer
from jaxsens.pretrained.families.family import StoredTensor, Tensor
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.weights import NARROW, Pieces, Reader, may_be_narrow, parameters_of, shape_of

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""The options of Llama 3 8B, as published."""

SYMBOLS = 8
"""The symbols that are put at each position."""


class Shapes(Reader):
    """Returns the shapes of parameters, with their dtypes and places."""

    def array(self, pieces: Pieces, lead: tuple[int, ...]) -> Any:
        """Returns what `Reader.array` would, without numbers."""
        place, shape = pieces[0][0].place, shape_of(*pieces[0])
        kind, where = "uint16" if may_be_narrow(place) else "float32", self.sharding(place, shape, len(lead))
        return jax.ShapeDtypeStruct((*lead, *shape), kind, sharding=where)


def planned(options: dict[str, Any], mesh: Mesh, n: int) -> tuple[Program, int]:
    """Returns what is compiled to measure logits, with weights in bfloat16 that are split over a mesh, and the bytes of
    these on each device."""
    family = FAMILIES[options["model_type"]]
    a = family.architecture(Options(options, "config.json", Problems("planned")))
    head = Tensor(("head", "matrix"), family.head_matrix, (a.symbols, a.width), transposed=True)
    found = {
        tensor: StoredTensor(Path(), tensor.names[0], "BF16", tensor.shape)
        for tensor in (*family.tensors(a), *family.head(a), head)
    }
    with numerics("float32"):
        parameters = parameters_of(found, a.layers, Shapes(NARROW, mesh))
    engine = VmapEngine(L2(), None, LayeredApply(PublishedTransformer(a, "logits", mesh=mesh), "last"))
    return Program(engine, parameters, n, SYMBOLS * (n - 1), "float32"), bytes_of(parameters, mesh)
