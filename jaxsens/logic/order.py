"""Walks over a formula without recursion, so that depth is no limit and a shared part is visited once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar


class Node(Protocol):
    """What a walk needs to know of a formula: its parts, and everything else that tells it from others."""

    @property
    def children(self) -> Sequence[Any]:
        """The nodes that this one is built from, in the order of writing."""
        ...

    @property
    def label(self) -> Hashable:
        """What distinguishes this formula from others of the same class with the same children."""
        ...


NodeT = TypeVar("NodeT", bound=Node)


def children_first(root: NodeT) -> tuple[NodeT, ...]:
    """Every distinct subformula of `root`, children before parents, `root` last; equal subformulas appear once.

    Takes time proportional to the number of objects, however often they are shared.
    """
    number: dict[int, int] = {}  # of an object, by its id: which distinct subformula it is
    numbers: dict[Hashable, int] = {}  # of a structure
    found: list[NodeT] = []
    stack: list[tuple[NodeT, bool]] = [(root, False)]
    while stack:
        node, children_done = stack.pop()
        if id(node) in number:
            continue
        if not children_done:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))
            continue
        key = (type(node), node.label, tuple(number[id(child)] for child in node.children))
        if key not in numbers:
            numbers[key] = len(found)
            found.append(node)
        number[id(node)] = numbers[key]
    return tuple(found)


def same(left: Node, right: Node) -> bool:
    """Whether two formulas have the same structure. Compares each pair of objects once."""
    compared: set[tuple[int, int]] = set()
    stack: list[tuple[Node, Node]] = [(left, right)]
    while stack:
        a, b = stack.pop()
        if a is b or (id(a), id(b)) in compared:
            continue
        compared.add((id(a), id(b)))
        if type(a) is not type(b) or a.label != b.label or len(a.children) != len(b.children):
            return False
        stack.extend(zip(a.children, b.children, strict=True))
    return True
