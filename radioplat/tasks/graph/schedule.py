"""Run the nodes of a graph: each as soon as those that it needs are finished and there are resources for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from radioplat.tasks.graph.node import Graph, NodeT

ContraT = TypeVar("ContraT", contravariant=True)


class Client(Protocol[ContraT]):
    """Decides about nodes, and records them."""

    def is_done(self, node: ContraT) -> bool:
        """Find or begin the record of a node whose needs are finished; return whether an earlier start finished it."""
        ...

    def on_done(self, node: ContraT) -> None:
        """Take the result of a finished node; it may put other nodes into the graph."""
        ...

    def on_failure(self, node: ContraT, error: BaseException) -> None:
        """Take the error of a node; nodes that need it do not start. It may raise, which ends the whole graph."""
        ...


class Runner(Protocol[NodeT]):
    """Runs nodes, in this process or elsewhere."""

    def fits(self, node: NodeT) -> bool:
        """Return whether a node can start now, beside those that run; True if none runs."""
        ...

    def start(self, node: NodeT) -> None:
        """Start a node."""
        ...

    def ended(self) -> Iterable[tuple[NodeT, BaseException | None]]:
        """Wait a while for nodes to end; return those that did, with the error of each that failed."""
        ...


def run_graph(graph: Graph[NodeT], client: Client[NodeT], runner: Runner[NodeT]) -> None:
    """Run all nodes; return when none runs any more and none can start.

    Raises:
        Exception: as ``client`` and ``runner`` do.
    """
    known: set[str] = set()  # those that the client has decided about
    done: set[str] = set()
    running: set[str] = set()
    failed: set[str] = set()
    while True:
        waiting = [n for n in graph if n.name not in done | running | failed and done.issuperset(n.needs)]
        progressed = False
        for node in waiting:
            if node.name not in known:
                known.add(node.name)
                if client.is_done(node):
                    done.add(node.name)
                    client.on_done(node)
                    progressed = True
                    break  # the graph may have changed
            if runner.fits(node):
                running.add(node.name)
                runner.start(node)
        if progressed:
            continue
        if not running:
            return
        for node, error in runner.ended():
            running.remove(node.name)
            if error is None:
                done.add(node.name)
                client.on_done(node)
            else:
                failed.add(node.name)
                client.on_failure(node, error)
