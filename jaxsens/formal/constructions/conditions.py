"""The conditions under which a formula is compiled: what makes attention sharp, and which theorem says so; and how
near softmax comes to hard attention: the constants of Lemmas 6 and 7 of Yang et al. (arXiv 2412.09925).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.inputs import choice
from jaxsens.core.base.programs import DTYPES
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import AverageHard, LeftmostHard, RightmostHard, Softmax, Weighting
from jaxsens.formal import logic
from jaxsens.formal.logic.evaluator import operators_of
from jaxsens.formal.logic.formulas import shortened

KAPPA = math.log(16)
"""The fall-off per position with which a value in [0, 1] is retrieved within 1/8: half of Lemma 6's 4 e^-KAPPA."""


def lookup_value_error(sharpness: float) -> float:
    """Lemma 7: how far a value in [0, 1] that is looked up at row q of a table may be from the value there.

    The scores are sharpness (2 q j - j^2) for j = 1..n. The error is y / (1 + y), where y = 2 sum over k >= 1 of
    e^(-sharpness k^2). It is attained in the limit of long tables with q in the middle.
    """
    # Up to the last term above 1e-323.
    k = np.arange(1, math.isqrt(int(745 / sharpness)) + 2, dtype=np.float64)
    y = 2 * float(np.exp(-sharpness * k**2).sum())
    return y / (1 + y)


def lookup_sharpness(weight: int) -> float:
    """GAMMA_H = log(12 H), with which every count is retrieved within 1/(4 H), and H counts within 1/4 (Theorem 20).

    It solves 3 e^-sharpness = 1/(4 H), by Lemma 7.
    """
    return math.log(12 * weight)


ConditionName = Literal[
    "temperature",
    "unbounded",
    "temperature-bounded",
    "bounded-softmax",
    "average-hard",
    "leftmost-hard",
    "rightmost-hard",
]

Read = Literal["output", "before-rounding", "everything"]
"""Which coordinates of a constructed model `flip_sensitivity` measures by default."""

CONDITIONS: dict[str, str] = {
    "temperature": "softmax at the theorem's temperature; counting also has the embeddings i and i^2, which grow",
    "unbounded": "softmax at temperature 1, with the theorem's embeddings, which grow with n",
    "temperature-bounded": "softmax at a temperature that falls with n, every embedding bounded (beyond the paper)",
    "bounded-softmax": "the control: the parameters of `temperature` at temperature 1, i/n for i and (i/n)^2 for i^2",
    "average-hard": "average hard attention, the parameters of `temperature`; autoregressive Y and S of `unbounded`",
    "leftmost-hard": "like average-hard, with leftmost hard attention; no counting, which needs averages",
    "rightmost-hard": "like average-hard, with rightmost hard attention; no counting, which needs averages",
}
"""What each condition is, by name."""

_HARD: dict[str, Weighting] = {
    "average-hard": AverageHard(),
    "leftmost-hard": LeftmostHard(),
    "rightmost-hard": RightmostHard(),
}


@dataclass(frozen=True)
class Condition:
    """A condition, and whether the network is autoregressive: future-masked, with nothing that depends on n."""

    name: ConditionName
    autoregressive: bool = False

    @property
    def hard(self) -> bool:
        """Whether attention is hard."""
        return self.name in _HARD

    @property
    def promises(self) -> bool:
        """Whether the network must equal the formula: in every condition except the control."""
        return self.name != "bounded-softmax"

    def weighting(self, power: float) -> Weighting:
        """The weighting of every layer, at the temperature 1/n^power (1/i^power) where attention is soft.

        All heads share one temperature (trap T10 of the constructions).
        """
        if self.hard:
            return _HARD[self.name]
        return Softmax(Schedule(power=power), by="query" if self.autoregressive else "length")


def check_choices(
    condition: object, autoregressive: object, dtype: object, read: object, problems: Problems
) -> None:
    """Notes which of the arguments that all constructions share cannot be used."""
    choice("condition", condition, tuple(CONDITIONS), problems)
    choice("dtype", dtype, DTYPES, problems)
    choice("read", read, get_args(Read), problems)
    choice("autoregressive", autoregressive, (True, False), problems)


def power(formula: logic.Formula, condition: Condition) -> float:
    """The power of the temperature, 1/n^power (1/i^power in an autoregressive network), that a formula needs."""
    used = logic.operators(formula)
    if condition.name in ("unbounded", "bounded-softmax") or not used:
        return 0.0
    if condition.autoregressive:
        return 1.0 if used <= {"#L"} else 2.0
    # The bounded construction looks a count up for a predicate of it, and to add counts of both directions. Every other
    # comparison is decided by the sign of an average.
    looked_up = any(
        isinstance(part, logic.CountPredicate) or len(operators_of(part)) > 1
        for part in logic.subformulas(formula)
    )
    return 3.0 if condition.name == "temperature-bounded" and looked_up else 1.0


def theorem(formula: logic.Formula, condition: Condition) -> str:
    """Which statement of Yang et al. (2026) gives the network of this formula in this condition."""
    used = logic.operators(formula)
    counts, temporal = used & {"#L", "#R"}, used - {"#L", "#R"}
    if not used:
        return "no attention: the formula looks at one position"
    if counts:
        known, masked = ("Corollary 22", "Corollary 23") if temporal else ("Theorem 20", "Theorem 21")
    elif temporal <= {"Y", "X"}:
        known, masked = "Theorem 12", "Theorem 13"
    elif temporal <= {"S", "U"}:
        known, masked = "Theorem 15", "Theorem 16"
    else:
        known, masked = "Corollary 17", "Corollary 18"
    name = masked if condition.autoregressive else known
    cold, grown = ("(c)", "(d)") if name == "Theorem 13" else ("(a)", "(b)")
    # These two have no version at temperature 1, and so no letters.
    warm = name if name in ("Theorem 21", "Corollary 23") else f"{name}{cold}"
    match condition.name:
        case "temperature":
            return warm
        case "unbounded":
            grows = " with the factor i in place of i^2" if condition.autoregressive else ""
            return f"{name}{grown}{grows}"
        case "temperature-bounded":
            return f"{warm} with bounded embeddings, which is beyond the paper" if counts else warm
        case "bounded-softmax":
            return f"the control of {name}: nothing promises that it computes the formula"
        case "average-hard" | "leftmost-hard" | "rightmost-hard":
            simulated = f"the hard attention that {name} simulates"
            if not (condition.autoregressive and temporal):
                return simulated
            signs = " and ".join(sorted(temporal, reverse=True))
            return f"{simulated}, with the scores {f'of Corollary 18(b) for {signs}' if counts else f'of {grown}'}"


def table_row(formula: logic.Formula) -> str:
    """The row of the paper's table of results (Fig. 1) that the formula belongs to."""
    used = logic.operators(formula)
    if used & {"#L", "#R"}:
        return "counting"
    if not used:
        return "Boolean"
    return f"LTL[{','.join(sign for sign in ('Y', 'X', 'S', 'U') if sign in used)}]"


def refuse(formula: logic.Formula, condition: Condition, problems: Problems) -> None:
    """Notes every reason why the formula has no network in this condition."""
    used = logic.operators(formula)
    counts = sorted(used & {"#L", "#R"})
    if condition.autoregressive:
        for part in logic.subformulas(formula):
            for sign in sorted(operators_of(part) & {"X", "U", "#R"}):
                remedy = f"{shortened(part)}: {sign} looks at later positions; give a formula of Y, S and #L"
                problems.note("autoregressive", remedy)
        for each in logic.predicates(formula):
            if each.needs_length:
                why = f"{each} depends on the word's length; give another predicate"
                problems.note("autoregressive", why)
    if condition.name in ("leftmost-hard", "rightmost-hard") and counts:
        problems.add(
            "condition",
            condition.name,
            f"counting ({', '.join(counts)}) needs uniform attention, which only average-hard and softmax have: "
            'condition="average-hard"',
        )
    if not (condition.autoregressive and counts):
        return
    remedies = {
        "unbounded": "Theorem 21 and Corollary 23 count without n only at a temperature, and no single look-up can do "
        'it at temperature 1: condition="temperature", or autoregressive=False',
        "bounded-softmax": "the control divides i by n, which an autoregressive network does not know: "
        "autoregressive=False",
    }
    if any(isinstance(part, logic.CountPredicate) for part in logic.subformulas(formula)):
        listed = ", ".join(map(str, logic.predicates(formula)))
        remedies["temperature-bounded"] = (
            f"predicates of a count ({listed}) are looked up in a table whose bounded keys depend on n: "
            'condition="temperature", or autoregressive=False'
        )
    if condition.name in remedies:
        problems.add("condition", condition.name, remedies[condition.name])
