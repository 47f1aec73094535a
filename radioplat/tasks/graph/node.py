"""Nodes of a graph without circles, in the order in which they may run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        name: unique in its graph; also the name of its folder.
        needs: the nodes that must be finished before it starts.
        reads: the nodes on whose results its own depends, in the order in which they are hashed; "" for none.
    """

    name: str
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


NodeT = TypeVar("NodeT", bound=Node)


class Graph(Generic[NodeT]):
    """Nodes by name, each after those that it needs.

    Args:
        nodes: in any order; the result keeps it where the needs allow.

    Raises:
        ValueError: a node needs itself, by others too, or one that does not exist.
    """

    def __init__(self, nodes: Iterable[NodeT]) -> None:
        left = {node.name: node for node in nodes}
        self._nodes: dict[str, NodeT] = {}
        while left:
            ready = [node for node in left.values() if all(name in self._nodes for name in node.needs)]
            if not ready:
                raise ValueError(f"these nodes can never start: {', '.join(left)}")
            self._nodes[ready[0].name] = left.pop(ready[0].name)

    def __iter__(self) -> Iterator[NodeT]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> NodeT:
        return self._nodes[name]

    def before(self, name: str) -> list[NodeT]:
        """Return the nodes that a node needs, directly or not, in order."""
        needed: set[str] = set()
        names = list(self._nodes[name].needs)
        while names:
            needed.add(names[-1])
            names += self._nodes[names.pop()].needs
        return [node for node in self if node.name in needed]

    def after(self, name: str) -> list[NodeT]:
        """Return the nodes that need a node, directly or not, in order."""
        later = {name}
        for node in self:
            if later & set(node.needs):
                later.add(node.name)
        return [node for node in self if node.name in later and node.name != name]

    def put(self, others: Mapping[str, NodeT]) -> None:
        """Put other nodes in the place of some, by the names of these; what needs these needs the others then."""
        names = {old: node.name for old, node in others.items()}
        nodes = [others.get(node.name, node) for node in self]
        self._nodes = {
            node.name: dataclasses.replace(node, needs=_renamed(node.needs, names), reads=_renamed(node.reads, names))
            for node in nodes
        }


def _renamed(names: tuple[str, ...], others: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(others.get(name, name) for name in names)


def circles(needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the circles among nodes, each as the names on its way, the first one again at its end.

    Args:
        needs: the nodes that each needs; names of none are ignored.
    """
    result: list[list[str]] = []
    finished: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        """Follow the needs of a node that is reached on this way."""
        if name in way:
            result.append([*way[way.index(name) :], name])
        elif name not in finished:
            for needed in needs[name]:
                if needed in needs:
                    visit(needed, [*way, name])
            finished.add(name)

    for name in needs:
        visit(name, [])
    return result
