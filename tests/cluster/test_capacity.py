"""How many workers fit, from made-up nodes."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from radioplat.cluster.capacity import Node, worker_capacity


def node(name: str, cpu: float, free: float | None = None, held: int = 0, **more: float) -> Node:
    """A node of ``cpu`` CPUs."""
    total = {"CPU": cpu, **more}
    return Node(name, "", 0, total, total | {"CPU": cpu if free is None else free}, held)


def test_free_places_are_counted_node_by_node():
    nodes = [node("a", 3), node("b", 3)]
    assert worker_capacity(nodes, {"CPU": 2}, {}, 9) == 2  # not 6 // 2
    assert worker_capacity(nodes, {"CPU": 1}, {}, 9) == 6
    assert worker_capacity(nodes, {"CPU": 1}, {}, 4) == 4
    assert worker_capacity([], {"CPU": 1}, {}, 4) == 0
    assert worker_capacity([], {"CPU": 0}, {}, 4) == 4


def test_what_the_group_holds_counts_as_free():
    assert worker_capacity([node("a", 4, free=1, held=3)], {"CPU": 1}, {}, 9) == 4


def test_room_is_left_for_teachers_that_are_not_placed_yet():
    nodes = [node("a", 4), node("b", 4)]
    assert worker_capacity(nodes, {"CPU": 1}, {"CPU": 2.5}, 9) == 5
    assert worker_capacity(nodes, {"CPU": 1}, {"CPU": 20}, 9) == 0


def test_a_custom_resource_says_where_workers_may_go():
    nodes = [node("head", 8), node("a", 2, radioplat_worker=1), node("b", 2, radioplat_worker=1)]
    assert worker_capacity(nodes, {"CPU": 1, "radioplat_worker": 1}, {"CPU": 1}, 9) == 2


def test_tenths_are_not_lost_to_rounding():
    assert worker_capacity([node("a", 0.3)], {"CPU": 0.1}, {}, 9) == 3


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3)), max_size=5),
    st.integers(1, 4),
    st.integers(0, 9),
    st.integers(0, 8),
)
def test_what_is_counted_can_be_placed(sizes, need, most, others):
    nodes = [node(str(i), cpu, free=min(free, cpu), held=held) for i, (cpu, free, held) in enumerate(sizes)]
    count = worker_capacity(nodes, {"CPU": need}, {"CPU": others}, most)
    assert 0 <= count <= most
    assert count <= sum((n.free["CPU"] + n.held * need) // need for n in nodes)
    assert count * need <= max(0, sum(n.total["CPU"] for n in nodes) - others) or count == 0


def test_a_closed_port_does_not_answer():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert Node("a", "127.0.0.1", port).answers()
    assert not Node("a", "127.0.0.1", port).answers()
