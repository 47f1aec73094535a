"""Nodes as processes of this machine, one after the other unless the pipeline says otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import radioplat
from radioplat.errors import Problem, RadioplatError, Stopped
from radioplat.tasks.pipeline.dag import TaskNode
from radioplat.tasks.pipeline.worker import RESULT, Job, read_result

LOG = "output.log"
CHECK_S = 0.2
END_S = 120.0  # for a checkpoint, after a request to stop


class LocalRunner:
    """Runs each node in a process of its own.

    The process ends when its input does: when :meth:`stop` closes it, or when this process is killed.

    Args:
        concurrent: nodes at once.
        job_of: returns the job of a node that starts now.
        watch: called several times a second.
    """

    def __init__(self, concurrent: int, job_of: Callable[[TaskNode], Job], watch: Callable[[], None]) -> None:
        self._concurrent, self._job_of, self._watch = concurrent, job_of, watch
        self._running: dict[str, tuple[TaskNode, Job, subprocess.Popen[bytes]]] = {}
        self.stopping = False

    def fits(self, node: TaskNode) -> bool:
        """Return whether fewer processes run than may."""
        return not self.stopping and len(self._running) < self._concurrent

    def start(self, node: TaskNode) -> None:
        """Start the process of a node; its output goes to ``output.log`` in the node's folder."""
        job = self._job_of(node)
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        # The program that runs here, also where another one is installed.
        paths = [str(Path(radioplat.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "radioplat.tasks.pipeline.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for this process, which stops the others
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and its status says so
            process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            process.stdin.flush()
        self._running[node.name] = (node, job, process)

    def ended(self) -> list[tuple[TaskNode, BaseException | None]]:
        """Wait a moment; return the nodes whose processes have ended."""
        self._watch()
        done = [entry for entry in self._running.values() if entry[2].poll() is not None]
        if not done:
            time.sleep(CHECK_S)
        for node, _, process in done:
            del self._running[node.name]
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
        return [(node, error_of(job, process.returncode)) for node, job, process in done]

    def stop(self) -> None:
        """Let every process save a checkpoint and end; no further one starts."""
        self.stopping = True
        for _, _, process in self._running.values():
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()

    def close(self) -> None:
        """Stop what still runs after an error, and wait for it."""
        self.stop()
        until = time.monotonic() + END_S
        for _, _, process in self._running.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def error_of(job: Job, status: int) -> BaseException | None:
    """Return the error of a node whose process ended with ``status``; None if it is done."""
    result = read_result(Path(job.folder), job.fingerprint)
    if status == 0 and result is not None and result.outcome is not None:
        return None
    if status == Stopped().code:
        return Stopped()
    if result is not None and result.problems:
        return RadioplatError(*result.problems)
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    hint = f"See {Path(job.folder) / LOG}; the same command runs the node again."
    where = str(Path(job.folder) / RESULT)
    return RadioplatError(Problem(f"its process ended with {ended}", where if status == 0 else "", hint))
