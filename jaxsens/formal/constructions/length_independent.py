"""PARITY by three layers of softmax attention at temperature 1, with position embeddings that do not depend on n.

Kozachinskiy, Steifer and Wałęga (Parity, Sensitivity, and Transformers, 2026, arXiv 2602.05896) prove that four layers
suffice. The network here is jaxsens' own, with the properties that they claim. Nothing in it knows n: parameters,
scores and embeddings are the same at every length, and with or without the future mask. docs/named-constructions.md
has its layers and their proof. Below, n is the number of keys that a row sees, and C the number of ones among them.
"""

from __future__ import annotations

from typing import Literal

from jaxsens.core.base.errors import collecting
from jaxsens.core.models.parts.positions import Component, Limb
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.formal.constructions.compiler import CompiledTransformer, Promise, make
from jaxsens.formal.constructions.conditions import ConditionName, Read, check_choices
from jaxsens.formal.constructions.network import PLACES, ROUND, Affine, Pair, ResidualNetwork

SHARPNESS = 8.0
"""K, of the Gaussian in layer 2 and of the look-up in layer 3."""

MEAN_ERROR = 1 / 16
"""How far the mean of the Gaussian may be from its centre; half of the error of the count."""

LOOK_UP_ERROR = 1 / 100
"""How far the value looked up may be from that at C, if C is known within 1/8."""


def parity(
    condition: ConditionName = "unbounded",
    *,
    autoregressive: bool = False,
    dtype: Literal["float32", "float64"] = "float64",
    read: Read = "output",
) -> CompiledTransformer:
    """The transformer of PARITY: 3 layers with one head each, softmax at temperature 1, nothing that depends on n.

    The coordinate `model.output` of the last row is exactly 1 if the word has an odd number of ones, and exactly 0 if
    not; under the future mask that of every row says it of the prefix. The parameters with the mask and without it are
    the same.

    Args:
        condition: "unbounded", which says what it is: temperature 1, and embeddings that grow.
        autoregressive, dtype, read: As for `compile_formula`. Scores grow as n^2.

    Raises:
        InputError: With every reason why there is no such network.
    """
    with collecting("length-independent-parity") as problems:
        check_choices(condition, autoregressive, dtype, read, problems)
        if condition != "unbounded" and not problems:
            remedy = '"unbounded", or leave it out: its temperature is 1, and its embeddings grow with i'
            problems.add("condition", condition, remedy)
    network = ResidualNetwork("01")
    output = _program(network, "future" if autoregressive else "none", dtype).coordinates[0]
    promise = Promise(
        text="PARITY, with positions that do not depend on n",
        condition=condition,
        autoregressive=autoregressive,
        theorem="jaxsens' own construction, with the properties that Kozachinskiy et al. (2026) claim",
        table_row="none",
        exact=True,
    )
    return make(network, Softmax(), dtype, output, read, promise)


def _program(network: ResidualNetwork, mask: Literal["none", "future"], dtype: str) -> Affine:
    index, inverse, odd = (network.component(Component(name)) for name in ("index", "reciprocal", "odd"))
    limbs = [Limb("square", place) for place in range(PLACES["square"])]
    squares = [network.component(term) for term in (limbs if dtype == "float32" else [Component("square")])]
    share = network.attend(mask, (), network.symbol("1"))
    # C/n - 1/2 at n = 1, where the Gaussian knows nothing, and 0 elsewhere.
    single = network.rectify((share + 2.0 * inverse - 2.0, 1.0), (2.0 * inverse - 1.0, -0.5))

    def scores(centre: Affine, scale: Affine) -> list[Pair]:
        """K (2 centre j - scale j^2)."""
        return [(2.0 * SHARPNESS * centre, index), *((-SHARPNESS * scale, square) for square in squares)]

    gaussian = scores(0.5 * share + 0.5 * inverse + 0.25, inverse)
    mean = network.attend(mask, gaussian, index, "centre", MEAN_ERROR, SHARPNESS)
    count = 2.0 * mean - 0.5 * index - 1.0 + single
    some = network.rectify((count, 1.0), (count - 1.0, -1.0))
    table = scores(count, Affine(constant=1.0))
    found = network.attend(mask, table, odd, "table", LOOK_UP_ERROR, SHARPNESS)
    return network.shaped((ROUND, found + some - 1.0))
