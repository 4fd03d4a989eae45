"""Truth of a formula straight from the definitions of sections 4.1 to 4.4, with quantifiers over positions.

Independent of the evaluator: positions are numbers from 1 to n, S and U are their definitions and not their expansions,
counts are sizes of sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxsens import logic


def truth(formula: logic.Formula, word: Sequence[str]) -> list[bool]:  # noqa: C901  a case for each definition
    """Truth at positions 1 ... n."""
    n = len(word)
    inner = [dict(enumerate(truth(child, word), start=1)) for child in formula.children]

    def size(count: logic.Count, f: dict[int, bool], i: int) -> int:
        if isinstance(count, logic.CountLeft):
            return len({j for j in range(1, i + 1) if f[j]})
        return len({j for j in range(i, n + 1) if f[j]})

    def at(i: int) -> bool:
        match formula:
            case logic.Symbol(name):
                return word[i - 1] == name
            case logic.Constant(value):
                return value
            case logic.Not():
                return not inner[0][i]
            case logic.And():
                return inner[0][i] and inner[1][i]
            case logic.Or():
                return inner[0][i] or inner[1][i]
            case logic.Yesterday():
                return i > 1 and inner[0][i - 1]
            case logic.Next():
                return i < n and inner[0][i + 1]
            case logic.Since():
                f, g = inner
                return any(g[j] and all(f[k] for k in range(j + 1, i + 1)) for j in range(1, i + 1))
            case logic.Until():
                f, g = inner
                return any(g[j] and all(f[k] for k in range(i, j)) for j in range(i, n + 1))
            case logic.PositionPredicate(predicate):
                return predicate.holds(i, n)
            case logic.CountComparison(terms, constant, relation):
                total = sum(
                    weight * size(count, f, i) for (weight, count), f in zip(terms, inner, strict=True)
                )
                total += constant
                return total >= 0 if relation == ">=" else (total == 0) == (relation == "=")
            case logic.CountPredicate(predicate, count):
                return predicate.holds(size(count, inner[0], i), n)
        raise TypeError(type(formula))

    return [at(i) for i in range(1, n + 1)]
