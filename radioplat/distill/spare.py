"""Spare training workers: idle processes of Ray that have imported everything, so that a restart need not.

Most of the time from a worker's death to the next step went into the imports of its successor. A worker that has taken
its first step asks the raylet of its node to start as many processes ahead as the node has workers
(``PrestartWorkers``, which Ray has and shows no Python caller), in its own runtime environment; the next group's
actors then begin in those. A spare costs its host's memory some 0.6 GB, and imports at the lowest priority.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
HOOK = "radioplat.distill.spare.when_started"
_TITLE = "ray::RadioplatSpare"
_IDLE_S = 3.0  # a process that was started for something has begun it by then
_KEEP_S = 30 * 86400  # how long the raylet keeps an idle one; it ends with its job anyway
_LATER_S = 2.0  # after the first step: its neighbours take theirs


def worker_environment(job: dict) -> dict:
    """The runtime environment of training workers.

    Args:
        job: that of the job; a setup hook of its own stays, and then there are no spares.
    """
    hooked = job.get("worker_process_setup_hook") or HOOK_VARIABLE in job.get("env_vars", {})
    return {} if hooked else {"env_vars": {HOOK_VARIABLE: HOOK}}


def when_started() -> None:
    """What Ray calls in each process with that environment: readers of the stream are such too, and soon at work."""
    threading.Thread(target=_warm_up, name="warm_up", daemon=True).start()


def keep_spares(count: int) -> None:
    """From a training worker: have ``count`` spares on this node. Comes back at once, and never raises."""
    if os.environ.get(HOOK_VARIABLE) == HOOK:
        threading.Thread(target=_ask, args=(count,), name="spares", daemon=True).start()


def _warm_up() -> None:
    """Import, where the process has nothing else to do."""
    import ray
    from ray._private.worker import global_worker

    time.sleep(_IDLE_S)
    if not global_worker.actor_id.is_nil() or "radioplat.data.reader" in sys.modules:
        return
    ray._raylet.setproctitle(f"{_TITLE} {_job()}")
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        import ray.train.torch  # noqa: F401

        import radioplat.distill.ray_worker  # noqa: F401

        os.environ.setdefault("DS_ACCELERATOR", "cuda" if Path("/dev/nvidiactl").exists() else "cpu")
        import deepspeed  # noqa: F401
    except Exception:  # it is no worse than a process that begins cold
        logging.getLogger(__name__).warning("a spare worker could not import", exc_info=True)


def _job() -> str:
    import ray

    return ray.get_runtime_context().get_job_id()


def _ask(count: int) -> None:
    time.sleep(_LATER_S)
    try:
        missing = count - _spares_here()
        if missing > 0:
            _prestart(missing)
    except Exception:
        logging.getLogger(__name__).warning("no spare worker was started", exc_info=True)


def _spares_here() -> int:
    """Spares of this job on this machine."""
    title, found = f"{_TITLE} {_job()}".encode(), 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().startswith(title)
        except OSError:  # it has ended
            continue
    return found


def _prestart(count: int) -> None:
    """Ask this node's raylet; the environment is compared as text, so it must be this worker's own."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc, runtime_environment_pb2

    context = ray.get_runtime_context()
    node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    environment = runtime_environment_pb2.RuntimeEnvInfo(serialized_runtime_env=context.get_runtime_env_string())
    request = node_manager_pb2.PrestartWorkersRequest(
        language=common_pb2.Language.PYTHON,
        job_id=bytes.fromhex(context.get_job_id()),
        runtime_env_info=environment,
        keep_alive_duration_secs=_KEEP_S,
        num_workers=count,
    )
    with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
        node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=10)
