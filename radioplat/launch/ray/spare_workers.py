"""Spare processes of Ray that have imported everything, so that a restart need not.

Most of the time from a worker's death to the next step went into the imports of its successor and of its stream's
readers, which end with it. From its first step on a worker of each node sees to it that the node's raylet holds
processes ahead (``PrestartWorkers``, which Ray has and shows no Python caller) in two runtime environments: the
workers' own, for the next group's actors, and that of the stream's tasks (:func:`reader_environment`). Two, or the
stream's tasks would take the workers' spares first. Nothing public does: a process that has run a plain task never
becomes an actor's (the raylet compares). A worker's spare costs its host some 0.6 GB of memory, a reader's 0.1 GB.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ray

HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
HOOK = f"{__name__}.when_started"
READER_HOOK = f"{__name__}.when_reader_started"
TITLE, _READY = "ray::RadioplatSpare", "ready"
WORKER, READER = "worker", "reader"
_KEEP_S = 30 * 86400  # how long the raylet keeps an idle one; it ends with its keepers
_LATER_S = 2.0  # after the first step: its neighbours take theirs
_LOOK_S = 5.0  # between looks
_LATE_S = 60.0  # a ticket that no process has taken by then is void
_LOWER = 5  # how much nicer it is while it imports
_ALONE_S = 120.0  # a spare without a keeper ends; a restart is quicker
# What a worker has imported at its first step; the last of each are imported by functions.
_MODULES = ("ray.train.torch", "ray.data", "timm", "radioplat.launch.ray.worker", "torch._dynamo")
_OF_DEEPSPEED = (
    "deepspeed",
    "deepspeed.comm.torch",
    "deepspeed.comm.mori",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)
_OF_READERS = ("ray.data", "radioplat.data.loading.ray_stream", "radioplat.data.loading.run_data")

logger = logging.getLogger(__name__)


def worker_environment(job: dict) -> dict:
    """The runtime environment of training workers.

    Args:
        job: that of the job; a setup hook of its own stays, and then there are no spares.
    """
    hooked = job.get("worker_process_setup_hook") or HOOK_VARIABLE in job.get("env_vars", {})
    return {} if hooked or not Path("/proc/self/cmdline").exists() else {"env_vars": {HOOK_VARIABLE: HOOK}}


def reader_environment() -> dict | None:
    """The runtime environment of the stream's tasks, from a training worker: without spares None, which is its own."""
    return {"env_vars": {HOOK_VARIABLE: READER_HOOK}} if os.environ.get(HOOK_VARIABLE) == HOOK else None


class Keeper:
    """In one training worker of a node: a thread that sees to the spares there, and never raises.

    As a context manager: where the block ends without an error, or with one that all ranks have agreed on, the run is
    over, and the spares end soon. After any other they wait for the next group.

    Args:
        workers: spares to have for the group's actors; 0 for no spares at all.
        readers: and for the stream's tasks.
        device: type of the device that the workers compute on, ``cpu`` or ``cuda``.
    """

    def __init__(self, workers: int, readers: int, device: str) -> None:
        self._wanted = workers > 0 and os.environ.get(HOOK_VARIABLE) == HOOK
        self._counts, self._device, self._over = {WORKER: workers, READER: readers}, device, threading.Event()
        self._thread = threading.Thread(target=self._run, name="spares", daemon=True)

    def begin(self) -> None:
        """Come back at once; the spares begin a little later."""
        if self._wanted:
            self._thread.start()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if (error is None or getattr(error, "agreed", False)) and self._thread.is_alive():
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            sign = _folder() / f"{_place()}{os.getpid()}.keeper"
            sign.parent.mkdir(exist_ok=True)
            context = ray.get_runtime_context()
            environments = {WORKER: context.get_runtime_env_string(), READER: _environment_of_readers()}
            pause = _LATER_S
            while not self._over.wait(pause):
                sign.touch()  # before those of dead ones go: a spare without any ends
                for other in _signs():
                    if not _lives(other):
                        other.unlink(missing_ok=True)
                for role, environment in environments.items():
                    self._look(role, environment)
                pause = _LOOK_S
            sign.unlink(missing_ok=True)
        except Exception:
            logger.warning("spare workers are not looked after any longer", exc_info=True)

    def _look(self, role: str, environment: str) -> None:
        """Ask for as many as are missing; a process that starts finds a ticket, which says what it is to be."""
        now, waiting = time.time(), 0
        for ticket in _folder().glob(f"{_place()}*.{role}"):
            with contextlib.suppress(FileNotFoundError):
                if now - ticket.stat().st_mtime < _LATE_S:
                    waiting += 1
                else:
                    ticket.unlink()
        missing = self._counts[role] - len(list(spare_processes(_place(), role=role))) - waiting
        for number in range(missing):
            (_folder() / f"{_place()}{time.time_ns()}{number}.{role}").write_text(self._device)
        if missing > 0:
            _prestart(missing, environment)


def when_started() -> None:
    """What Ray calls in each process with the workers' environment before it takes any work."""
    _become(WORKER)


def when_reader_started() -> None:
    """What Ray calls in each process with the readers' environment before it takes any work."""
    _become(READER)


def _become(role: str) -> None:
    """Whoever finds a ticket is a spare, and imports.

    It does so in the main thread: work that comes meanwhile waits, where beside a second thread it would meet modules
    that are half imported.
    """
    try:
        device = _take_ticket(role)
        if device is not None:
            title = f"{TITLE} {role} {_place()}"
            ray._raylet.setproctitle(title)
            haste = _Haste()
            threading.Thread(target=_attend, args=(haste,), name="spare", daemon=True).start()
            try:
                _import(_OF_READERS if role == READER else _of_workers(device))
            finally:
                haste.hurry()
            ray._raylet.setproctitle(f"{title}{_READY}")
    except Exception:  # it is no worse than a process that begins cold
        logger.warning("a spare %s could not import", role, exc_info=True)


def _environment_of_readers() -> str:
    """As the raylet knows it: the text of the environment that a task of a training worker's runs in."""
    ask = ray.remote(num_cpus=0, scheduling_strategy="DEFAULT", runtime_env=reader_environment())
    asked = ask(lambda: ray.get_runtime_context().get_runtime_env_string()).remote()
    return ray.get(asked, timeout=_LATE_S)  # the end of a run waits for this thread


class _Haste:
    """The priority of this process: a little lower while it imports, where it may be raised again, which root may."""

    def __init__(self) -> None:
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        self._low = os.geteuid() == 0
        if self._low:  # this thread's, and that of those that it starts
            os.setpriority(os.PRIO_PROCESS, 0, min(self._before + _LOWER, 19))

    def hurry(self) -> None:
        """As before, every thread."""
        if self._low:
            self._low = False
            for task in Path("/proc/self/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, int(task.name), self._before)


def _take_ticket(role: str) -> str | None:
    for ticket in _folder().glob(f"{_place()}*.{role}"):
        taken = ticket.with_suffix(f".{os.getpid()}")
        try:
            ticket.rename(taken)
        except FileNotFoundError:  # another was quicker
            continue
        device = taken.read_text()
        taken.unlink()
        return device
    return None


def _of_workers(device: str) -> tuple[str, ...]:
    """What a training worker imports.

    Which GPUs will be its own a spare learns with its work, so nothing here may start CUDA: DeepSpeed, which asks for
    devices as it is imported, is left to the worker there.
    """
    names: tuple[str, ...] = _MODULES
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # as ds_compat.init_distributed does
        names += _OF_DEEPSPEED
    else:
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # whoever only asks for devices starts nothing
    return names


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # another version's
            importlib.import_module(name)


def _attend(haste: _Haste) -> None:
    """In a spare, until it is given work: hurry when a keeper is gone, for the group is about to be replaced; end the
    process where nobody has kept it for long."""
    while _is_spare():
        time.sleep(1.0)
        signs = _signs()
        if not all(map(_lives, signs)):
            haste.hurry()
        if all(time.time() - _touched(sign) > _ALONE_S for sign in signs) and _is_spare():
            os._exit(0)


def _is_spare() -> bool:
    return ray._raylet.getproctitle().startswith(TITLE)


def _signs() -> list[Path]:
    """One of each keeper here, of any run of this job."""
    return list(_folder().glob(f"{_place()}*.keeper"))


def _lives(sign: Path) -> bool:
    return Path("/proc", sign.stem.rpartition("-")[2]).exists()


def _touched(sign: Path) -> float:
    """When its keeper last looked, by Unix time; 0.0 where it is gone."""
    try:
        return sign.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _folder() -> Path:
    """A folder of this machine and session for tickets and keepers' signs."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path()) / "radioplat_spares"


def _place() -> str:
    """The job and the node whose spares these are."""
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}-{context.get_node_id()}-"


def spare_processes(place: str = "", ready: bool = False, role: str = WORKER) -> Iterator[int]:
    """Process numbers of this machine's spares, by what they are called among the processes.

    Args:
        place: job and node, as :func:`_place` names them; default: of all.
        ready: only those that have imported everything.
        role: ``worker`` or ``reader``.
    """
    title = f"{TITLE} {role} {place}".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found = path.read_bytes().rstrip(b"\0 ")
            if found.startswith(title) and (not ready or found.endswith(_READY.encode())):
                yield int(path.parent.name)


def _prestart(count: int, serialized: str) -> None:
    """Ask this node's raylet; it compares environments as text, so ``serialized`` must be what tasks or actors have."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc, runtime_environment_pb2

    context = ray.get_runtime_context()
    node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    environment = runtime_environment_pb2.RuntimeEnvInfo(serialized_runtime_env=serialized)
    request = node_manager_pb2.PrestartWorkersRequest(
        language=common_pb2.Language.PYTHON,
        job_id=bytes.fromhex(context.get_job_id()),
        runtime_env_info=environment,
        keep_alive_duration_secs=_KEEP_S,
        num_workers=count,
    )
    with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
        node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=10)
