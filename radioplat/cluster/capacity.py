"""Count the training workers that a cluster has resources for, in addition to the teachers.

Ray Train's own elastic policy counts all resources of a node, used or free, every 20 seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from radioplat.common import ray_internals

WORKER_RESOURCE = "radioplat_worker"  # custom resource of nodes for workers: how many each may run


@dataclass(frozen=True)
class Node:
    """A running node of the cluster.

    Attributes:
        total, free: resources by name, all of them and the unused ones.
        held: workers on it of the group that will be replaced; their resources count as free.
    """

    id: str
    address: str
    port: int
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    held: int = 0

    def answers(self, timeout_s: float = 1.0) -> bool:
        """Return True if its raylet can be reached; the cluster itself notices a lost node seconds later."""
        try:
            socket.create_connection((self.address, self.port), timeout_s).close()
        except OSError:
            return False
        return True


def worker_capacity(nodes: list[Node], need: Mapping[str, float], others: Mapping[str, float], most: int) -> int:
    """Return the number of workers that could run.

    Args:
        nodes: nodes that may run workers.
        need: resources of one worker.
        others: resources that teachers and decoding need on any nodes.
        most: maximum number of workers.
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
    """Return the nodes of the cluster that run and are not draining.

    Args:
        held: training workers on each, by node id.
    """
    import ray

    free, draining = ray_internals.available_resources_per_node(), ray_internals.state.get_draining_nodes() or {}
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
        if node["Alive"] and node["NodeID"] not in draining
    ]
