"""Which nodes start when: after what they need, side by side as far as there are resources, and not after a failure."""

from __future__ import annotations

from dataclasses import replace

from graph_needs import needs_of_nodes
from hypothesis import given
from hypothesis import strategies as st

from radioplat.tasks.graph.node import Graph, Node
from radioplat.tasks.graph.schedule import run_graph


class Events:
    """A client and a runner that end one node at a time, and write down all that happens.

    Args:
        most: nodes that run at once.
        finished: nodes that an earlier start finished.
        broken: nodes that fail.
    """

    def __init__(self, most: int = 1, finished: set[str] = frozenset(), broken: set[str] = frozenset()) -> None:
        self.most, self.finished, self.broken = most, finished, broken
        self.lines: list[tuple[str, str]] = []
        self.running: list[Node] = []
        self.at_once = 0

    def is_done(self, node):
        self.lines.append(("looked at", node.name))
        return node.name in self.finished

    def on_done(self, node):
        self.lines.append(("done", node.name))

    def on_failure(self, node, error):
        self.lines.append(("failed", node.name))

    def fits(self, node):
        return len(self.running) < self.most

    def start(self, node):
        self.lines.append(("started", node.name))
        self.running.append(node)
        self.at_once = max(self.at_once, len(self.running))

    def ended(self):
        node = self.running.pop(0)
        return [(node, ValueError() if node.name in self.broken else None)]

    def names(self, event: str) -> list[str]:
        return [name for what, name in self.lines if what == event]


@given(needs_of_nodes(), st.integers(1, 3), st.data())
def test_every_node_runs_once_after_its_needs(needs, most, data):
    graph = Graph(Node(name, needed) for name, needed in needs.items())
    finished = set(data.draw(st.lists(st.sampled_from(sorted(needs)))))
    finished |= {node.name for name in finished for node in graph.before(name)}
    broken = set(data.draw(st.lists(st.sampled_from(sorted(needs))))) - finished
    events = Events(most, finished, broken)
    run_graph(graph, events, events)
    never = {node.name for name in broken for node in graph.after(name)}
    assert sorted(events.names("started")) == sorted(needs.keys() - finished - never)
    assert sorted(events.names("failed")) == sorted(broken - never)
    assert sorted(events.names("done")) == sorted(needs.keys() - broken - never)
    assert len(events.names("looked at")) == len(set(events.names("looked at"))) and events.at_once <= most
    for name in events.names("started"):
        place = events.lines.index(("started", name))
        assert all(("done", needed) in events.lines[:place] for needed in needs[name])


def test_nodes_run_side_by_side_where_they_fit():
    graph = Graph([Node("a"), Node("b", ("a",)), Node("c", ("a",)), Node("d", ("b", "c"))])
    events = Events(most=2)
    run_graph(graph, events, events)
    assert events.names("started") == ["a", "b", "c", "d"] and events.at_once == 2


def test_a_node_may_be_put_in_the_place_of_another_when_that_is_done():
    graph = Graph([Node("a"), Node("b", ("a",)), Node("c", ("b",))])

    class Retries(Events):
        def on_done(self, node):
            super().on_done(node)
            if node.name == "b":
                graph.put({"b": replace(node, name="b2")})

    events = Retries()
    run_graph(graph, events, events)
    assert events.names("started") == ["a", "b", "b2", "c"]
