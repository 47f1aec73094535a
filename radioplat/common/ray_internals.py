"""Private names of Ray that radioplat uses because the public API has no equivalent.

A private name may change with any release of Ray. ``tests/common/test_ray_internals.py`` checks that all of them exist,
that no other file imports one, and that the installed Ray is one of :data:`TESTED_VERSIONS`.

Use them as attributes of this module, for example ``ray_internals.find_node_ids()``: each is looked up in Ray when it
is used, so importing this module does not import Ray.
"""

from __future__ import annotations

import importlib
from typing import Any

TESTED_VERSIONS = ("2.60",)  # of Ray: major.minor

_TRAIN = "ray.train.v2._internal.execution"
MODULES = {  # private name: the module of Ray that defines it
    # Joining a cluster: tokens, addresses, the head's gRPC service.
    "maybe_enable_token_auth_if_token_available": "ray._private.authentication.authentication_token_setup",
    "canonicalize_bootstrap_address": "ray._private.services",
    "find_gcs_addresses": "ray._private.services",
    "find_node_ids": "ray._private.services",
    "check_version_info": "ray._private.utils",
    "compute_version_info": "ray._private.utils",
    "read_ray_address": "ray._private.utils",
    "create_gcs_channel": "ray._private.gcs_utils",
    "CLUSTER_METADATA_KEY": "ray._common.usage.usage_constants",
    "KV_NAMESPACE_CLUSTER": "ray._private.ray_constants",
    "GcsNodeInfo": "ray.core.generated.gcs_pb2",
    "GetAllNodeInfoRequest": "ray.core.generated.gcs_service_pb2",
    "InternalKVGetRequest": "ray.core.generated.gcs_service_pb2",
    "InternalKVGcsServiceStub": "ray.core.generated.gcs_service_pb2_grpc",
    "NodeInfoGcsServiceStub": "ray.core.generated.gcs_service_pb2_grpc",
    # The state of a joined cluster: free resources by node, draining nodes, the autoscaler's limits.
    "available_resources_per_node": "ray._private.state",
    "state": "ray._private.state",
    # Ray Data: the base class of `DataContext.custom_execution_callback_classes`.
    "ExecutionCallback": "ray.data._internal.execution.execution_callback",
    # Ray Train's controller: its states and the two policies that launch/ray/elastic.py extends.
    "ErroredState": f"{_TRAIN}.controller.state",
    "ReschedulingState": f"{_TRAIN}.controller.state",
    "RestartingState": f"{_TRAIN}.controller.state",
    "ShuttingDownState": f"{_TRAIN}.controller.state",
    "TrainControllerState": f"{_TRAIN}.controller.state",
    "DefaultFailurePolicy": f"{_TRAIN}.failure_handling",
    "FailureDecision": f"{_TRAIN}.failure_handling",
    "ElasticScalingPolicy": f"{_TRAIN}.scaling_policy",
    "NoopDecision": f"{_TRAIN}.scaling_policy",
    "ScalingDecision": f"{_TRAIN}.scaling_policy",
    "WorkerGroupCallback": f"{_TRAIN}.callback",
    "WorkerGroupPollStatus": f"{_TRAIN}.worker_group",
    "WorkerGroupState": f"{_TRAIN}.worker_group",
}
MEMBERS = {  # class: its private methods and attributes that radioplat overrides or uses
    "ray.train.torch.TorchTrainer": ("_register_sigint_handler", "_initialize_and_run_controller"),
    "ray.train.ScalingConfig": ("_resources_per_worker_not_none",),
    f"{_TRAIN}.scaling_policy.ElasticScalingPolicy": (
        "_latest_monitor_time",
        "_latest_reserved_resources_query_time",
        "_maybe_send_resource_request",
        "_get_resize_decision",
    ),
    f"{_TRAIN}.failure_handling.DefaultFailurePolicy": ("_worker_group_failures",),
    "ray.data._internal.execution.streaming_executor.StreamingExecutor": ("_topology",),
    "ray.data.DataIterator": ("_to_ref_bundle_iterator", "_on_iteration_end"),
}


def __getattr__(name: str) -> Any:
    """Return the object of Ray called ``name``; Python calls this for ``from ... import name``."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)


def task_attempt_number() -> int:
    """Return how often Ray has started the current task before."""
    from ray._private.worker import global_worker

    return int(global_worker.core_worker.get_current_task_attempt_number())
