"""Check that a Ray cluster can be joined: it answers, accepts the token, runs the same versions, has a node here.

``ray.init`` waits minutes for an address that never answers, and its errors do not say what to do. These checks use
gRPC directly, with Ray's channel options and token, and fail within :data:`ANSWER_S` seconds each.
"""

from __future__ import annotations

import json
import os
import sys
import time

from radioplat.common import ray_internals
from radioplat.errors import ClusterError

ANSWER_S = 6.0  # time limit of a request; a busy head needs seconds
NODE_S = 6.0  # time limit for this machine's node to appear in a cluster whose head is up
_SUBMIT = "submit a job: ray job submit --address http://HEAD:8265 -- python jobs/radio_distill.py -e SPEC"
_TOKEN = "Copy ~/.ray/auth_token from the head to this home, or give its path: export RAY_AUTH_TOKEN_PATH=FILE."


def check_can_join(address: str, where: str = "cluster.address") -> None:
    """Return if the cluster at ``address`` can be joined from this machine; does not join it.

    Args:
        address: ``HOST:PORT`` of its GCS (Ray's head service); ``auto``: the cluster that runs on this machine;
            ``local``: a new cluster, which needs no check.
        where: the spec field or environment variable that gave the address, for messages.

    Raises:
        ClusterError: it cannot be joined; raised within 15 seconds, with the reason and a remedy.
    """
    if "://" in address:
        raise ClusterError(
            f"a run cannot join a cluster at an address like {address}",
            where=where,
            hint=f"Give the address of its GCS (HOST:6379 by default), in a command on one of its nodes; or {_SUBMIT}.",
        )
    gcs = _resolved(address, where)
    if gcs is not None:
        _ask(gcs, gcs if address == "auto" else address, where)


def _resolved(address: str, where: str) -> str | None:
    """Return ``HOST:PORT``, or None if ``ray.init`` would start a new cluster."""
    try:
        gcs = ray_internals.canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        hint = "Write HOST:PORT, as `ray start --head` prints it; or start a cluster here: ray start --head."
        raise ClusterError(str(error).partition(". ")[0], where=where, hint=hint) from None
    if address == "auto" and gcs is not None:
        # ray.init does this for "auto" alone
        ray_internals.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return gcs


def _ask(gcs: str, name: str, where: str) -> None:
    """Run the checks on the cluster's GCS.

    Args:
        gcs: ``HOST:PORT`` to connect to; for ``localhost`` the network address of this machine.
        name: the address as the user wrote it, for messages.
    """
    import grpc
    from ray.exceptions import AuthenticationError

    channel = ray_internals.create_gcs_channel(gcs)
    try:
        _check_versions(channel, name, where)
        _check_node(channel, name, where)
    except AuthenticationError:
        message = f"RAY_AUTH_MODE is token, and there is no token for the cluster at {name}"
        raise ClusterError(message, where=where, hint=_TOKEN) from None
    except grpc.RpcError as error:
        raise _connection_error(error, name, where) from None
    finally:
        channel.close()


def _connection_error(error, name: str, where: str) -> ClusterError:
    """Translate a gRPC error into a message with a remedy."""
    import grpc

    port = name.rpartition(":")[2]
    code, details = error.code(), " ".join((error.details() or "").split()).rpartition("last error: ")[2]
    start = f"Start one there (ray start --head --port={port}), or give the address of one that runs"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
            message = f"the cluster at {name} does not accept the token of this command"
            return ClusterError(message, where=where, hint=_TOKEN)
        hint = f"export RAY_AUTH_MODE=token, and run the command again. On a machine other than the head: {_TOKEN}"
        message = f"the cluster at {name} requires a token, and this command sends none"
        return ClusterError(message, where=where, hint=hint)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"{name} does not answer within {ANSWER_S:g} seconds: no Ray cluster runs there, or its head hangs"
        return ClusterError(message, where=where, hint=f"{start}; a firewall may also drop the packets.")
    if code is grpc.StatusCode.UNAVAILABLE and "HTTP" not in details:
        return ClusterError(f"no Ray cluster can be reached at {name}: {details}", where=where, hint=f"{start}.")
    hint = "Give the port of `ray start --head --port`, 6379 by default, not the dashboard's, 8265."
    return ClusterError(f"the server at {name} is not the GCS of a Ray cluster: {details}", where=where, hint=hint)


def _check_versions(channel, name: str, where: str) -> None:
    request = ray_internals.InternalKVGetRequest(
        namespace=ray_internals.KV_NAMESPACE_CLUSTER, key=ray_internals.CLUSTER_METADATA_KEY
    )
    value = ray_internals.InternalKVGcsServiceStub(channel).InternalKVGet(request, timeout=ANSWER_S).value
    if not value:  # the head has just started
        return
    theirs = json.loads(value)
    try:
        ray_internals.check_version_info(theirs, name)
    except RuntimeError:
        mine = ray_internals.compute_version_info()
        raise ClusterError(
            f"the cluster at {name} runs Ray {theirs['ray_version']} on Python {theirs['python_version']}, and this "
            f"command Ray {mine[0]} on Python {mine[1]}",
            where=where,
            hint=f"Start the cluster with the ray of {sys.prefix}, or run the command in the cluster's environment.",
        ) from None


def _check_node(channel, name: str, where: str) -> None:
    """Check that a node of the cluster runs on this machine: a driver connects through it."""
    until = time.monotonic() + NODE_S
    nodes_service = ray_internals.NodeInfoGcsServiceStub(channel)
    request = ray_internals.GetAllNodeInfoRequest(state_filter=ray_internals.GcsNodeInfo.ALIVE)
    while time.monotonic() < until:
        reply = nodes_service.GetAllNodeInfo(request, timeout=max(0.5, until - time.monotonic()))
        nodes = {node.node_id.hex() for node in reply.node_info_list}
        # A head that has just started has no node yet; ray.init waits for that.
        if not nodes or nodes & set(ray_internals.find_node_ids()):
            return
        time.sleep(0.5)
    raise ClusterError(
        f"no node of the cluster at {name} runs on this machine",
        where=where,
        hint=f"Add it (ray start --address={name}), or run the command on a node of the cluster, or {_SUBMIT}.",
    )
