"""The order of nodes, what comes before and after one, circles, and nodes in the place of others."""

from __future__ import annotations

import pytest
from graph_needs import needs_of_nodes
from hypothesis import given

from radioplat.tasks.graph.node import Graph, Node, circles


@given(needs_of_nodes())
def test_each_node_comes_after_those_that_it_needs(needs):
    graph = Graph(Node(name, needed) for name, needed in needs.items())
    order = [node.name for node in graph]
    assert sorted(order) == sorted(needs) and len(graph) == len(needs)
    for name, needed in needs.items():
        assert all(order.index(other) < order.index(name) for other in needed)
        before = {node.name for node in graph.before(name)}
        assert before >= set(needed) and all(name in {n.name for n in graph.after(other)} for other in before)
    assert circles(needs) == []


def test_circles_are_named():
    needs = {"a": ("b",), "b": ("c", "absent"), "c": ("a",), "d": ("d",), "e": ("a",)}
    assert circles(needs) == [["a", "b", "c", "a"], ["d", "d"]]
    with pytest.raises(ValueError, match="these nodes can never start: a, b, c, d, e"):
        Graph(Node(name, needed) for name, needed in needs.items())


def test_what_needed_a_node_needs_the_one_in_its_place():
    nodes = [Node("a"), Node("b", ("a",), ("a",)), Node("c", ("b",), ("b", "")), Node("d", ("c",), ("a",))]
    graph = Graph(nodes)
    graph.put({"b": Node("b2", ("a",), ("a",)), "c": Node("c2", ("b",), ("b", ""))})
    assert [(node.name, node.needs, node.reads) for node in graph] == [
        ("a", (), ()),
        ("b2", ("a",), ("a",)),
        ("c2", ("b2",), ("b2", "")),
        ("d", ("c2",), ("a",)),
    ]
    assert "b" not in graph and graph["d"].needs == ("c2",)
