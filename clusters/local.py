"""A Ray cluster of several nodes on one machine, to test runs while nodes join and leave.

    python clusters/local.py --nodes 2          # then, in another terminal: radioplat distill ... cluster.mode=ray

A node is a raylet for one training worker (custom resource ``radioplat_worker``); the head has CPUs for teachers and
decoding and runs no training workers. Commands are read from stdin: ``list``, ``add``, ``kill N`` (its raylet, with
SIGKILL), ``drain N SECONDS`` (a notice, and a kill after so many seconds), ``worker N`` (kill one of its training
workers), ``quit``.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from clusters import worker_forks

WORKER_RESOURCE = "radioplat_worker"
# The head notices a lost raylet after five health checks, a second apart. The head of a real cluster reads the same
# settings from RAY_health_check_period_ms etc. in its environment, set before `ray start --head`.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 5,
}


class LocalCluster:
    """Context manager of a cluster; nodes are numbered in the order in which they were added.

    Args:
        nodes: raylets in addition to the head's.
        head_cpus, node_cpus: logical CPUs.
        places: training workers that a node may run.
        gpus: logical GPUs of a node, for runs that request GPUs without using them.
        dashboard: without one, Ray Train's clean-up actor warns every second.
        preload: modules that Ray's processes have imported when they start, being forks of one that has
            (`clusters/worker_forks.py`): those that do not import Ray, and those that do; without any, each process is
            started as usual.
    """

    def __init__(
        self,
        nodes: int = 2,
        head_cpus: float = 4,
        node_cpus: float = 1,
        places: int = 1,
        dashboard: bool = False,
        gpus: float = 0,
        preload: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> None:
        self._node_cpus, self._places, self._gpus = node_cpus, places, gpus
        self._before = dict(os.environ)
        self._cluster: Any = None  # until it has started
        self._forks: subprocess.Popen | None = None
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Ray's exit hooks install signal handlers, which would fail when another thread adds a node.
        atexit.register(self.close)
        self._forked: dict[str, str] = {}
        self.nodes: dict[int, ray._private.node.Node] = {}
        others = set(_descendants(os.getpid()))
        try:
            if preload:
                self._forks, self._forked = _serve_forks(*preload)
            self._cluster = Cluster(
                initialize_head=True,
                shutdown_at_exit=False,
                head_node_args={
                    "num_cpus": head_cpus,
                    "include_dashboard": dashboard,
                    "_system_config": HEALTH,
                    **self._forked,
                },
            )
            for _ in range(nodes):
                self.add()
        except BaseException:  # Ray knows nothing yet of a node that was interrupted while it started
            for process in set(_descendants(os.getpid())) - others:
                _kill(process)
            self.close()
            raise

    @property
    def address(self) -> str:
        """Address for ``RAY_ADDRESS`` or ``cluster.address``."""
        return self._cluster.address

    def add(self) -> int:
        """Start a node; return its number."""
        number = max(self.nodes, default=0) + 1
        self.nodes[number] = self._cluster.add_node(
            num_cpus=self._node_cpus,
            num_gpus=self._gpus,
            resources={WORKER_RESOURCE: float(self._places)},
            **self._forked,
        )
        return number

    def kill(self, number: int) -> int:
        """Kill a node's raylet and its child processes with SIGKILL; return the raylet's process id."""
        node = self.nodes.pop(number)
        raylet = node.all_processes["raylet"][0].process.pid
        for process in [raylet, *_descendants(raylet)]:
            _kill(process)
        self._cluster.remove_node(node, allow_graceful=False)
        return raylet

    def drain(self, number: int, seconds: float, then_kill: bool = True) -> None:
        """Drain a node with a notice of so many seconds, as for a spot instance, and then kill it."""
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline = int((time.time() + seconds) * 1000)
        gcs = ray._raylet.GcsClient(address=self.address)
        accepted, why = gcs.drain_node(self.nodes[number].node_id, reason, "clusters/local.py", deadline)
        if not accepted:
            raise RuntimeError(f"the notice for node {number} was refused: {why}")
        if then_kill:
            timer = threading.Timer(seconds, lambda: number in self.nodes and self.kill(number))
            timer.daemon = True
            timer.start()

    def workers(self, number: int) -> list[int]:
        """Return the process ids of the training workers on a node."""
        raylet = self.nodes[number].all_processes["raylet"][0].process.pid
        return [p for p in _descendants(raylet) if b"RayTrainWorker" in _command(p)]

    def kill_worker(self, number: int) -> int:
        """Kill one training worker of a node with SIGKILL; return its process id."""
        process = self.workers(number)[0]
        _kill(process)
        return process

    def close(self) -> None:
        """End all processes of the cluster."""
        atexit.unregister(self.close)
        if ray.is_initialized():
            ray.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()
        if self._forks is not None:
            self._forks.communicate()  # it ends with its input
            shutil.rmtree(Path(os.environ[worker_forks.SOCKET]).parent, ignore_errors=True)
        for name in set(os.environ) - set(self._before):
            del os.environ[name]
        os.environ.update(self._before)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def main() -> None:
    """Start a cluster and read commands."""
    parser = argparse.ArgumentParser(description="A Ray cluster of several nodes on this machine.")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--places", type=int, default=1, help="training workers a node")
    args = parser.parse_args()
    with LocalCluster(args.nodes, places=args.places, dashboard=True) as cluster:
        print(f"RAY_ADDRESS={cluster.address}; list, add, kill N, drain N SECONDS, worker N, quit", flush=True)
        for line in sys.stdin:
            try:
                if _execute(cluster, *line.split()):
                    break
            except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
                print(f"not done: {error!r}", flush=True)


def _execute(cluster: LocalCluster, command: str = "list", *arguments: str) -> bool:
    """Execute a command; return True for ``quit``."""
    numbers = [int(a) for a in arguments]
    if command == "add":
        print(f"node {cluster.add()}", flush=True)
    elif command == "kill":
        print(f"killed raylet {cluster.kill(*numbers)}", flush=True)
    elif command == "drain":
        cluster.drain(*numbers)
    elif command == "worker":
        print(f"killed worker {cluster.kill_worker(*numbers)}", flush=True)
    elif command == "list":
        for number, node in cluster.nodes.items():
            print(f"node {number}: {node.node_id}, training workers {cluster.workers(number)}", flush=True)
    else:
        return command == "quit"
    return False


def _serve_forks(modules: Sequence[str], late: Sequence[str]) -> tuple[subprocess.Popen, dict[str, str]]:
    """Start the process that Ray's processes are forked from; return it, and the arguments of nodes that use it."""
    program = Path(worker_forks.__file__).resolve()
    path = Path(tempfile.mkdtemp(prefix="forks_")) / "socket"
    roots = os.pathsep.join(filter(None, [str(program.parents[1]), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, str(program), "--serve", str(path), *modules, "--", *late],
        env={**os.environ, "PYTHONPATH": roots},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{program} did not start; its messages are above")
    os.environ[worker_forks.SOCKET] = str(path)
    return process, {"setup_worker_path": str(program)}


def _descendants(parent: int) -> list[int]:
    """Return the process ids of all descendants of ``parent``."""
    try:
        return [process.pid for process in psutil.Process(parent).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
