"""Formulas with a parameter: n-grams, induction heads and hops, balanced brackets. The library names some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from jaxsens.errors import InputError, collecting
from jaxsens.inputs import is_count
from jaxsens.logic.counting import CountLeft
from jaxsens.logic.formulas import TRUE, And, Formula, Next, Or, Since, Symbol, Yesterday


def once(formula: Formula) -> Formula:
    """The formula holds here or somewhere before: true S formula."""
    return Since(TRUE, formula)


def n_gram(gram: Sequence[str], ahead: bool = False) -> Formula:
    """An occurrence of the symbols `gram` ends here; with `ahead`, begins here. Nested Y, or X (section 4.1)."""
    if not len(gram):
        raise InputError("n_gram: gram is empty: give at least one symbol")
    step: Callable[[Formula], Formula] = Next if ahead else Yesterday
    inward = [Symbol(name) for name in (reversed(gram) if ahead else gram)]
    result: Formula = inward[0]
    for symbol in inward[1:]:
        result = symbol & step(result)
    return result


def hop_induction(hops: int, output: str, alphabet: Sequence[str]) -> Formula:
    """k-hop induction: at position i, the symbol found by `hops` hops is `output`; one hop is the induction head.

    A hop goes from i to the rightmost j <= i with w_(j-1) = w_i. For the value v read there,

        OR_a [ Q_a & (!Y Q_a S (Y Q_a & v)) ] ,

    and the value of hop h is this very formula for hop h - 1, of the first hop Q_output. False where a hop finds no j.
    Its size as a graph grows linearly with `hops`, its text by a factor of len(alphabet) a hop.
    """
    with collecting("hop_induction") as faults:
        if not is_count(hops, 1):
            faults.add("hops", hops, "give at least one hop, a whole number")
        if not isinstance(alphabet, Sequence) or not alphabet:
            faults.add("alphabet", alphabet, "a text or a list of symbols")
        elif not isinstance(output, str) or output not in tuple(alphabet):
            faults.add("output", output, f"a symbol of {list(alphabet)}")
    value: Formula = Symbol(output)
    for _ in range(hops):
        found = [Symbol(a) & Since(~Yesterday(Symbol(a)), Yesterday(Symbol(a)) & value) for a in alphabet]
        value = reduce(Or, found)
    return value


def dyck_1(largest_depth: int | None = None, left: str = "(", right: str = ")") -> Formula:
    """Balanced brackets of one kind: as many right as left ones, and never more right than left before.

    With `largest_depth`, also never more than that many open.
    """
    if largest_depth is not None and not is_count(largest_depth, 1):
        raise InputError(f"dyck_1: largest_depth = {largest_depth!r}: give at least 1, or None for any depth")
    opened, closed = CountLeft(Symbol(left)), CountLeft(Symbol(right))
    balanced = And(opened.equals(closed), ~once(closed > opened))
    if largest_depth is None:
        return balanced
    return balanced & ~once(opened > closed + largest_depth)


def flip_flop(write: str = "w", read: str = "r", zero: str = "0", one: str = "1") -> Formula:
    """Flip-flop: each bit after a `read` equals the bit after the last `write` (0 before the first)."""
    written, reading = Yesterday(Symbol(write)), Yesterday(Symbol(read))
    memory = Since(~written, written & Symbol(one))
    return ~once(reading & Symbol(one) & ~memory | reading & Symbol(zero) & memory)
