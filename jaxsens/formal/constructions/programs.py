"""Programs written by hand, each as a network: DYCK-k, and PARITY with nothing that depends on n.

DYCK-k, balanced words of k kinds of brackets, is the S-RASP program of Yang et al. (2026), Appendix E, made soft. The
program counts how many brackets are open. It finds the left bracket that each right one closes, which is the nearest of
its depth, and looks for an error: a right bracket of another kind than that, or one that closes nothing.

PARITY takes three layers of softmax attention at temperature 1, with position embeddings that do not depend on n.
Kozachinskiy, Steifer and Wałęga (Parity, Sensitivity, and Transformers, 2026, arXiv 2602.05896) prove that four layers
suffice. The network here is jaxsens' own, with the properties that they claim. Nothing in it knows n: parameters,
scores and embeddings are the same at every length, and with or without the future mask. Below, n is the number of keys
that a row sees, and C the number of ones among them.

docs/named-constructions.md has the steps and layers of both, shows that the temperature 1/n suffices for DYCK-k, and
proves what PARITY's layers do.
"""

from __future__ import annotations

from typing import Literal

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.inputs import count
from jaxsens.core.models.parts.positions import Component, Limb
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.formal.constructions.compiler import CompiledTransformer, Promise, make
from jaxsens.formal.constructions.conditions import KAPPA, Condition, ConditionName, Read, check_choices
from jaxsens.formal.constructions.network import (
    AT_LEAST_ZERO,
    PLACES,
    ROUND,
    Affine,
    Builder,
    Pair,
    ResidualNetwork,
    total,
)
from jaxsens.formal.constructions.operators import SINCE_ERROR
from jaxsens.formal.logic.library import brackets

DEPTH_SHARPNESS = 20.0
"""g, the sharpness of the look-ups of depths. Their errors are then nearly equal at neighbouring positions, and the
look-ups return whole numbers in float32, since 2 e^-20 is below half its roundoff."""

DEPTH_ERROR = 1 / 16
"""How far E, E^2, n E and n E^2 may be from whole numbers. They are within 4.1 n e^-20, which is 1/16 at n = 7 * 10^6.
The exception is n E^2 where E = n, at the end of a word of left brackets only: n times as much, which moves nothing
else."""

EXISTS_ERROR = 1 / 16
"""How far an average of numbers from 0 to 1, one of them 1, may be from 1 with the scores KAPPA n times the numbers.

It is furthest where the other n - 1 are equal, by W((n - 1)/e) / (KAPPA n) with Lambert's W: 0.0557, for n = 3."""


def dyck(
    kinds: int = 2,
    condition: ConditionName = "temperature",
    *,
    autoregressive: bool = False,
    dtype: Literal["float32", "float64"] = "float64",
    read: Read = "output",
) -> CompiledTransformer:
    """The transformer of DYCK-k: 5 layers with 6 + k heads in all (temperature, float64).

    The coordinate `model.output` of the last activations is exactly 1 at every position up to which the word is
    balanced, each left bracket closed by a right one of its kind, and exactly 0 at all others, in every condition
    except the control. Parameters do not depend on n. The empty word is balanced, but a transformer cannot read it.

    Args:
        kinds: k, the number of kinds of brackets; 1 for "(" and ")".
        condition, autoregressive, dtype, read: As for `compile_formula`. "temperature-bounded" is not in the paper, and
            "leftmost-hard" and "rightmost-hard" do not exist. Autoregressive networks exist with "temperature", which
            is then 1/i^2, and "average-hard".

    Raises:
        InputError: With every reason why there is no such network.
    """
    with collecting("dyck") as problems:
        kinds = count("kinds", kinds, problems, least=1)
        check_choices(condition, autoregressive, dtype, read, problems)
        if condition in ("leftmost-hard", "rightmost-hard"):
            remedy = "depths need uniform attention, which only average-hard and softmax have: "
            problems.add("condition", condition, f'{remedy}condition="average-hard"')
        if autoregressive is True and condition in ("unbounded", "temperature-bounded", "bounded-softmax"):
            problems.add(
                "autoregressive",
                autoregressive,
                f"{condition} looks depths up in a table whose embeddings depend on n, and the paper gives no other: "
                'condition="temperature", or autoregressive=False',
            )
    wanted = Condition(condition, autoregressive)
    builder = Builder(ResidualNetwork(brackets(kinds)), wanted, reciprocals=False, digits=dtype == "float32")
    output = _dyck(builder, kinds).coordinates[0]
    promise = Promise(
        text=f"DYCK-{kinds}",
        condition=condition,
        autoregressive=autoregressive,
        theorem=_theorem(wanted),
        table_row="S-RASP",
        exact=wanted.promises,
    )
    powers = {"temperature": 2.0 if autoregressive else 1.0, "temperature-bounded": 3.0}
    weighting = wanted.weighting(powers.get(condition, 0.0))
    return make(builder.network, weighting, dtype, output, read, promise)


def _dyck(builder: Builder, kinds: int) -> Affine:
    """The program's output. Every line makes one of the numbers that the program has at every position."""
    network = builder.network
    lefts = [network.symbol(name) for name in network.alphabet[:kinds]]
    rights = [network.symbol(name) for name in network.alphabet[kinds:]]
    left = total(lefts)
    inverse = builder.inverse("#L")
    # 1/i at right brackets, without a sum 1 + 1/i, which would round it.
    share = network.rectify((inverse - left, 1.0))
    ratio = builder.ratio("#L", left - total(rights)) + 2.0 * share
    depth = _looked_up(builder, ratio, builder.index_value())
    unmatched = _at_most(builder, 1, ratio, depth, left)
    balanced = _at_most(builder, 2, ratio, depth, left)
    pairs = _same_depth(builder, ratio, depth)
    errors = [unmatched]
    for opened, closed in zip(lefts, rights, strict=True):
        found = network.attend("future", pairs, opened, "match", SINCE_ERROR, 2 * KAPPA)
        errors.append(network.shaped((ROUND, closed - unmatched - found)))
    wrong = total(errors)
    scale = builder.position("length") if builder.condition.name == "unbounded" else Affine(constant=1.0)
    any_wrong = network.attend("future", [(KAPPA * scale, wrong)], wrong, "exists", EXISTS_ERROR, KAPPA)
    return network.shaped((ROUND, balanced - any_wrong))


def _looked_up(builder: Builder, ratio: Affine, value: Affine) -> Affine:
    """A table's value in row i * ratio(i)."""
    pairs = builder.table(ratio, builder.inverse("#L"), DEPTH_SHARPNESS)
    return builder.look_up(pairs, value, DEPTH_ERROR, DEPTH_SHARPNESS)


def _at_most(builder: Builder, bound: int, ratio: Affine, depth: Affine, left: Affine) -> Affine:
    """1 at right brackets with E <= bound, else 0. From E itself, or by one more look-up if only E/n is bounded."""
    if builder.condition.name != "temperature-bounded":
        # Left brackets also have E >= 1; there the last term outweighs the others.
        return builder.network.shaped((AT_LEAST_ZERO, bound - depth - float(bound) * left))
    lower = ratio - (bound - 1.0) * builder.inverse("#L")
    return builder.network.shaped((ROUND, _looked_up(builder, lower, builder.first()) - left))


def _same_depth(builder: Builder, ratio: Affine, depth: Affine) -> list[Pair]:
    """The scores 2 KAPPA (2 (E_i - 1) E_j - E_j^2 + j/(2n)), times n if the temperature is 1.

    Autoregressive networks have -1/(2j) for j/(2n), as in Lemma 8(a). Bounded embeddings divide everything by n^2.
    """
    name, one = builder.condition.name, Affine(constant=1.0)
    squares = builder.parts("length-square" if name == "unbounded" else "square")
    pairs = [(-2.0 * KAPPA * one, _looked_up(builder, ratio, part)) for part in squares]
    if name == "unbounded":
        length = builder.position("length")
        asked = [_looked_up(builder, ratio, part) for part in builder.parts("length-index")]
        asked[0] = asked[0] - length
        pairs.append((KAPPA * length, builder.position("fraction")))
    elif name == "temperature-bounded":
        per_length = builder.inverse_length()
        asked = [depth - per_length]
        pairs.append((KAPPA * per_length, builder.position("fraction-over-length")))
    else:
        asked = [depth - 1.0]
        late = -builder.inverse("#L") if builder.condition.autoregressive else builder.position("fraction")
        pairs.append((KAPPA * one, late))
    return [*((4.0 * KAPPA * form, depth) for form in asked), *pairs]


def _theorem(condition: Condition) -> str:
    program = "Appendix E's program of DYCK-k"
    known = "Corollary 23" if condition.autoregressive else "Corollary 22(a)"
    like = f"{program}, with the embeddings and the temperature of {known}"
    return {
        "temperature": like,
        "unbounded": f"{program}, with the embeddings of Corollary 22(b)",
        "temperature-bounded": f"{program}, with bounded embeddings, which is beyond the paper",
        "average-hard": f"the hard attention that is simulated by {like}",
        "bounded-softmax": f"the control of {like}: nothing promises that it computes DYCK-k",
    }[condition.name]


PARITY_SHARPNESS = 8.0
"""K, of the Gaussian in layer 2 and of the look-up in layer 3."""

MEAN_ERROR = 1 / 16
"""How far the mean of the Gaussian may be from its centre; half of the error of the count."""

ODD_ERROR = 1 / 100
"""How far the value looked up may be from that at C, if C is known within 1/8."""


def length_independent_parity(
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
    output = _parity(network, "future" if autoregressive else "none", dtype).coordinates[0]
    promise = Promise(
        text="PARITY, with positions that do not depend on n",
        condition=condition,
        autoregressive=autoregressive,
        theorem="jaxsens' own construction, with the properties that Kozachinskiy et al. (2026) claim",
        table_row="none",
        exact=True,
    )
    return make(network, Softmax(), dtype, output, read, promise)


def _parity(network: ResidualNetwork, mask: Literal["none", "future"], dtype: str) -> Affine:
    index, inverse, odd = (network.component(Component(name)) for name in ("index", "reciprocal", "odd"))
    limbs = [Limb("square", place) for place in range(PLACES["square"])]
    squares = [network.component(term) for term in (limbs if dtype == "float32" else [Component("square")])]
    share = network.attend(mask, (), network.symbol("1"))
    # C/n - 1/2 at n = 1, where the Gaussian knows nothing, and 0 elsewhere.
    single = network.rectify((share + 2.0 * inverse - 2.0, 1.0), (2.0 * inverse - 1.0, -0.5))

    def scores(centre: Affine, scale: Affine) -> list[Pair]:
        """K (2 centre j - scale j^2)."""
        return [
            (2.0 * PARITY_SHARPNESS * centre, index),
            *((-PARITY_SHARPNESS * scale, square) for square in squares),
        ]

    gaussian = scores(0.5 * share + 0.5 * inverse + 0.25, inverse)
    mean = network.attend(mask, gaussian, index, "centre", MEAN_ERROR, PARITY_SHARPNESS)
    count = 2.0 * mean - 0.5 * index - 1.0 + single
    some = network.rectify((count, 1.0), (count - 1.0, -1.0))
    table = scores(count, Affine(constant=1.0))
    found = network.attend(mask, table, odd, "table", ODD_ERROR, PARITY_SHARPNESS)
    return network.shaped((ROUND, found + some - 1.0))
