"""Spare training workers: idle processes of Ray that have imported everything, so that a restart need not.

Most of the time from a worker's death to the next step went into the imports of its successor. A worker that has taken
its first step asks the raylet of its node to start as many processes ahead as the node has workers
(``PrestartWorkers``, which Ray has and shows no Python caller), in its own runtime environment; the next group's
actors then begin in those. A spare costs its host's memory some 0.6 GB.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from pathlib import Path

import ray

HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
HOOK = "radioplat.distill.spare.when_started"
_TITLE = "ray::RadioplatSpare"
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
    """What Ray calls in each process with that environment, readers of the stream too, before it takes any work.

    One that finds a ticket is a spare, and imports. It does so in the main thread: work that comes meanwhile waits,
    where beside a second thread it would meet modules that are half imported.
    """
    try:
        if _take_ticket():
            _warm_up()
    except Exception:  # it is no worse than a process that begins cold
        logging.getLogger(__name__).warning("a spare worker could not import", exc_info=True)


def keep_spares(count: int) -> None:
    """From a training worker: have ``count`` spares on this node. Comes back at once, and never raises."""
    if os.environ.get(HOOK_VARIABLE) == HOOK:
        threading.Thread(target=_ask, args=(count,), name="spares", daemon=True).start()


def _warm_up() -> None:
    """Import what a training worker imports; as root, who may take that back, at the lowest priority."""
    ray._raylet.setproctitle(_title())
    before, lower = os.getpriority(os.PRIO_PROCESS, 0), os.geteuid() == 0
    if lower:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        for name in ("ray.train.torch", "radioplat.distill.ray_worker"):
            importlib.import_module(name)
    finally:
        if lower:
            os.setpriority(os.PRIO_PROCESS, 0, before)


def _tickets() -> Path:
    """A folder of this machine and session, with a file for each spare that was asked for and has not begun."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path()) / "radioplat_spares"


def _take_ticket() -> bool:
    context = ray.get_runtime_context()
    for ticket in _tickets().glob(f"{context.get_job_id()}-{context.get_node_id()}-*"):
        try:
            ticket.unlink()
        except FileNotFoundError:  # another was quicker
            continue
        return True
    return False


def _title() -> str:
    """What a spare of this job on this node is called among the processes."""
    context = ray.get_runtime_context()
    return f"{_TITLE} {context.get_job_id()} {context.get_node_id()}"


def _ask(count: int) -> None:
    time.sleep(_LATER_S)
    try:
        missing = count - _spares_here()
        if missing > 0:
            _write_tickets(missing)
            _prestart(missing)
    except Exception:
        logging.getLogger(__name__).warning("no spare worker was started", exc_info=True)


def _spares_here() -> int:
    """Spares of this job on this node."""
    title, found = _title().encode(), 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes().startswith(title)
        except OSError:  # it has ended
            continue
    return found


def _write_tickets(count: int) -> None:
    """As many as are asked for now; what an earlier start has left behind is void."""
    context, folder = ray.get_runtime_context(), _tickets()
    folder.mkdir(exist_ok=True)
    prefix = f"{context.get_job_id()}-{context.get_node_id()}-"
    for old in folder.glob(f"{prefix}*"):
        old.unlink(missing_ok=True)
    for number in range(count):
        (folder / f"{prefix}{number}").touch()


def _prestart(count: int) -> None:
    """Ask this node's raylet; the environment is compared as text, so it must be this worker's own."""
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
