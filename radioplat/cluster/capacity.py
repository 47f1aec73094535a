"""How many training workers a cluster has room for: the sum over its nodes, and what the teachers need is left out.

Ray Train's elastic policy counts all of a node's resources, whoever holds them, and looks every 20 seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from radioplat.common import ray_internals

WORKER_RESOURCE = "radioplat_worker"  # a custom resource that marks nodes, and how many workers each may hold


@dataclass(frozen=True)
class Node:
    """A node that lives.

    Attributes:
        total, free: resources by name; ``free`` is what nobody holds at the moment.
        held: workers of the group that is to be replaced: what they hold counts as free.
    """

    id: str
    address: str
    port: int
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    held: int = 0

    def answers(self, timeout_s: float = 1.0) -> bool:
        """Whether its raylet can be reached: the cluster takes seconds to notice that one was killed."""
        try:
            socket.create_connection((self.address, self.port), timeout_s).close()
        except OSError:
            return False
        return True


def worker_capacity(nodes: list[Node], need: Mapping[str, float], others: Mapping[str, float], most: int) -> int:
    """Workers that could run.

    Args:
        nodes: those that may take workers.
        need: resources of one worker.
        others: resources that teachers and decoding need, wherever they run, if they do not have them already.
        most: no more than these.
    """
    need = {name: amount for name, amount in need.items() if amount > 0}
    if not need:
        return most
    places = 0
    for node in nodes:
        fits = [int((node.free.get(n, 0) + node.held * a + 1e-6) // a) for n, a in need.items()]
        places += max(0, min(fits))
    for name, amount in need.items():
        whole = sum(node.total.get(name, 0) for node in nodes) - others.get(name, 0)
        places = min(places, max(0, int((whole + 1e-6) // amount)))
    return min(places, most)


def live_nodes(held: Mapping[str, int]) -> list[Node]:
    """The nodes of the cluster that live and are not about to go.

    Args:
        held: training workers on each, by node id.
    """
    import ray

    free, going = ray_internals.available_resources_per_node(), ray_internals.state.get_draining_nodes() or {}
    return [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerPort"],
            node["Resources"],
            free.get(node["NodeID"], {}),
            held.get(node["NodeID"], 0),
        )
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in going
    ]
