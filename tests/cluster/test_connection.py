"""What answers, or does not, where a cluster is said to be; tests/end_to_end/test_no_cluster.py has a real head."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest
import ray
from ray._private.services import get_node_ip_address
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from radioplat.cluster import connection
from radioplat.cluster.connection import check_can_join
from radioplat.errors import ClusterError


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server on the address by which Ray knows this machine, which does as told with each connection."""
    server, held = socket.create_server((get_node_ip_address(), 0)), []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(server.accept()[0])
                answer(held[-1])

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"localhost:{server.getsockname()[1]}"
    finally:
        for each in (server, *held):
            each.close()


def refusal(address: str) -> str:
    """The message, given within 15 seconds."""
    start = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        check_can_join(address, "RAY_ADDRESS")
    assert time.monotonic() - start < 15
    (problem,) = caught.value.problems
    assert problem.where == "RAY_ADDRESS" and problem.hint
    return str(problem)


def test_nobody_listens():
    with socket.create_server((get_node_ip_address(), 0)) as free:
        port = free.getsockname()[1]
    said = refusal(f"localhost:{port}")
    assert f"localhost:{port}" in said and "refused" in said and f"ray start --head --port={port}" in said


def test_what_listens_never_answers(monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    with listening(lambda connection: None) as address:
        assert "does not answer within 1 seconds" in refusal(address)


def test_what_listens_speaks_http():
    def http(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with listening(http) as address:
        said = refusal(address)
    assert "not the GCS of a Ray cluster" in said and "6379" in said and "8265" in said


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", ("nonsense", "HOST:PORT")),
        ("no-such-host.invalid:6379", ("no-such-host.invalid:6379",)),
        ("http://localhost:8265", ("http://localhost:8265", "HOST:6379", "ray job submit")),
        ("ray://localhost:10001", ("ray://localhost:10001", "HOST:6379")),
    ],
)
def test_what_is_no_address(address, words):
    said = refusal(address)
    assert all(word in said for word in words), said


class Gcs(gcs_service_pb2_grpc.InternalKVGcsServiceServicer, gcs_service_pb2_grpc.NodeInfoGcsServiceServicer):
    """The two calls of a GCS that the first contact makes; ``versions`` None: it lets nobody in."""

    def __init__(self, versions: tuple[str, str] | None, nodes: int) -> None:
        self.versions, self.nodes = versions, nodes

    def InternalKVGet(self, request, context):  # noqa: N802
        if self.versions is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: Authentication token is missing")
        names = dict(zip(("ray_version", "python_version"), self.versions, strict=True))
        return gcs_service_pb2.InternalKVGetReply(value=json.dumps(names).encode())

    def GetAllNodeInfo(self, request, context):  # noqa: N802
        alive = [GcsNodeInfo(node_id=bytes([i]) * 28) for i in range(self.nodes)]
        return gcs_service_pb2.GetAllNodeInfoReply(node_info_list=alive)


@pytest.fixture
def gcs() -> Iterator[Callable[..., str]]:
    """gcs(versions, nodes) -> the address of a server that answers as a GCS does."""
    started = []

    def start(versions: tuple[str, str] | None, nodes: int = 0) -> str:
        servicer, server = Gcs(versions, nodes), grpc.server(futures.ThreadPoolExecutor(2))
        gcs_service_pb2_grpc.add_InternalKVGcsServiceServicer_to_server(servicer, server)
        gcs_service_pb2_grpc.add_NodeInfoGcsServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port(f"{get_node_ip_address()}:0")
        server.start()
        started.append(server)
        return f"localhost:{port}"

    yield start
    for server in started:
        server.stop(None)


OURS = ray._private.utils.compute_version_info()[:2]


def test_other_versions(gcs):
    said = refusal(gcs(("2.9.0", OURS[1])))
    assert f"runs Ray 2.9.0 on Python {OURS[1]}" in said and f"this command Ray {OURS[0]}" in said


def test_another_token(gcs, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert "export RAY_AUTH_MODE=token" in refusal(gcs(None))


def test_no_node_here(gcs, monkeypatch):
    monkeypatch.setattr(connection, "NODE_S", 1.0)
    said = refusal(gcs(OURS, nodes=2))
    assert "no node of the cluster" in said and "ray start --address=localhost" in said


def test_a_head_that_has_just_started_is_left_to_ray(gcs):
    check_can_join(gcs(OURS, nodes=0))
    check_can_join("local")  # ray.init starts one
