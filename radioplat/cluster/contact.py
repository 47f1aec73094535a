"""First contact with a Ray cluster: does it answer, does it let us in, does it run our versions, is it here.

``ray.init`` waits for minutes for what never answers, and its errors do not say what to do. gRPC's own client, with the
channel options and the token of Ray's, answers in milliseconds or within :data:`ANSWER_S`.
"""

from __future__ import annotations

import json
import os
import sys
import time

from radioplat.errors import ClusterError

ANSWER_S = 6.0  # for a head that is busy
NODE_S = 6.0  # for this machine's node to join a cluster whose head is up
_SUBMIT = "submit a job: ray job submit --address http://HEAD:8265 -- python jobs/radio_distill.py -e SPEC"
_TOKEN = "Copy the head's ~/.ray/auth_token to this home, or name its file: export RAY_AUTH_TOKEN_PATH=FILE."


def check_contact(address: str, where: str = "cluster.address") -> None:
    """Return once the cluster at ``address`` can be joined from here; nothing is joined.

    Args:
        address: ``HOST:PORT`` of its GCS; ``auto`` for the cluster of this machine, ``local`` for one that is to start.
        where: the field or variable that named it, for messages.

    Raises:
        ClusterError: it cannot be joined. It says why, within 15 seconds, and what mends it.
    """
    if "://" in address:
        raise ClusterError(
            f"a run cannot join a cluster by the address {address}",
            where=where,
            hint=f"Name its GCS, HOST:6379 by default, in a command that runs on one of its nodes; or {_SUBMIT}.",
        )
    gcs = _resolved(address, where)
    if gcs is not None:
        _ask(gcs, gcs if address == "auto" else address, where)


def _resolved(address: str, where: str) -> str | None:
    """``HOST:PORT``; None where ``ray.init`` starts a cluster."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    from ray._private.services import canonicalize_bootstrap_address

    try:
        gcs = canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError) as error:
        hint = "Write HOST:PORT, as `ray start --head` prints it; or start a cluster here: ray start --head."
        raise ClusterError(str(error).partition(". ")[0], where=where, hint=hint) from None
    if address == "auto" and gcs is not None:
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)  # as ray.init does for this address alone
    return gcs


def _ask(gcs: str, name: str, where: str) -> None:
    """
    Args:
        gcs: ``HOST:PORT``, with the outward address of this machine for ``localhost``.
        name: what the user calls it.
    """
    import grpc
    from ray._private.gcs_utils import create_gcs_channel
    from ray.exceptions import AuthenticationError

    channel = create_gcs_channel(gcs)
    try:
        _check_versions(channel, name, where)
        _check_node(channel, name, where)
    except AuthenticationError:
        message = f"RAY_AUTH_MODE is token, and there is no token for the cluster at {name}"
        raise ClusterError(message, where=where, hint=_TOKEN) from None
    except grpc.RpcError as error:
        raise _refusal(error, name, where) from None
    finally:
        channel.close()


def _refusal(error, name: str, where: str) -> ClusterError:
    import grpc

    port = name.rpartition(":")[2]
    code, said = error.code(), " ".join((error.details() or "").split()).rpartition("last error: ")[2]
    start = f"Start one there (ray start --head --port={port}), or name one that runs"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
            return ClusterError(f"the cluster at {name} has another token than this command", where=where, hint=_TOKEN)
        hint = f"export RAY_AUTH_MODE=token, and run the command again. On another machine than the head's: {_TOKEN}"
        return ClusterError(f"the cluster at {name} wants a token, and this command sends none", where=where, hint=hint)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"{name} does not answer within {ANSWER_S:g} seconds: no Ray cluster, or its head hangs"
        return ClusterError(message, where=where, hint=f"{start}; a firewall may also drop what is sent.")
    if code is grpc.StatusCode.UNAVAILABLE and "HTTP" not in said:
        return ClusterError(f"no Ray cluster can be reached at {name}: {said}", where=where, hint=f"{start}.")
    hint = "Name the port of `ray start --head --port`, 6379 by default, not the dashboard's, 8265."
    return ClusterError(f"what answers at {name} is not the GCS of a Ray cluster: {said}", where=where, hint=hint)


def _check_versions(channel, name: str, where: str) -> None:
    from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray._private.utils import check_version_info, compute_version_info
    from ray.core.generated.gcs_service_pb2 import InternalKVGetRequest
    from ray.core.generated.gcs_service_pb2_grpc import InternalKVGcsServiceStub

    request = InternalKVGetRequest(namespace=KV_NAMESPACE_CLUSTER, key=CLUSTER_METADATA_KEY)
    value = InternalKVGcsServiceStub(channel).InternalKVGet(request, timeout=ANSWER_S).value
    if not value:  # a head that has just started
        return
    theirs = json.loads(value)
    try:
        check_version_info(theirs, name)
    except RuntimeError:
        mine = compute_version_info()
        raise ClusterError(
            f"the cluster at {name} runs Ray {theirs['ray_version']} on Python {theirs['python_version']}, and this "
            f"command Ray {mine[0]} on Python {mine[1]}",
            where=where,
            hint=f"Start the cluster with the ray of {sys.prefix}, or run the command in the cluster's environment.",
        ) from None


def _check_node(channel, name: str, where: str) -> None:
    """A driver works through a node of the cluster that runs on its machine."""
    from ray._private.services import find_node_ids
    from ray.core.generated.gcs_pb2 import GcsNodeInfo
    from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    until = time.monotonic() + NODE_S
    request = GetAllNodeInfoRequest(state_filter=GcsNodeInfo.ALIVE)
    while time.monotonic() < until:
        reply = NodeInfoGcsServiceStub(channel).GetAllNodeInfo(request, timeout=max(0.5, until - time.monotonic()))
        nodes = {node.node_id.hex() for node in reply.node_info_list}
        if not nodes or nodes & set(find_node_ids()):  # a head that has just started has no node: ray.init waits for it
            return
        time.sleep(0.5)
    raise ClusterError(
        f"no node of the cluster at {name} runs on this machine",
        where=where,
        hint=f"Add it (ray start --address={name}), or run the command on a node of the cluster, or {_SUBMIT}.",
    )
