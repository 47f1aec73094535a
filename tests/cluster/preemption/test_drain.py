"""A notice for a cluster that does not answer; tests/end_to_end has drains of nodes that live."""

from __future__ import annotations

import socket
import time

import pytest
from ray._private.services import get_node_ip_address

from radioplat.cluster.preemption import drain
from radioplat.errors import PlacementError


def test_a_cluster_that_hangs_takes_no_more_of_the_notice(monkeypatch):
    monkeypatch.setattr(drain, "_ANSWER_S", 3.0, raising=False)
    with socket.create_server((get_node_ip_address(), 0)) as silent:
        host, port = silent.getsockname()
        monkeypatch.setenv("RAY_ADDRESS", f"{host}:{port}")
        start = time.monotonic()
        with pytest.raises(PlacementError, match="does not answer within 3 seconds"):
            drain.drain(60, "test")
    assert time.monotonic() - start < 15
