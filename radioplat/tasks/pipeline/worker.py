"""The process of one node: run its task, and write the result beside it.

``python -m radioplat.tasks.pipeline.worker`` reads a :class:`Job` from standard input. When that input ends, because
the pipeline stops or was killed, a training saves a checkpoint and the process ends with status 75.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radioplat.common.sigterm import request_stop
from radioplat.common.terminal import note
from radioplat.errors import Problem, RadioplatError, Stopped
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tasks.graph.fingerprint import hashes_of
from radioplat.tasks.pipeline.kinds import TASKS, NodeTask, results_of
from radioplat.tasks.shared.held_lease import retry_lease
from radioplat.tracking.results import write_atomic

RESULT = "node.json"


@dataclass(frozen=True)
class Job:
    """One node for a process, which may be on another machine.

    Attributes:
        folder: of the node, absolute.
        spec: as plain values, with all paths.
        fingerprint: of the node, for its result.
        cwd: folder of the spec's relative paths.
    """

    name: str
    task: str
    folder: str
    spec: dict[str, Any]
    fingerprint: str
    cwd: str


@dataclass(frozen=True)
class NodeResult:
    """The content of ``node.json``: the result of a node, or the problems that ended it."""

    fingerprint: str
    outcome: Outcome | None = None
    files: dict[str, str] | None = None
    problems: tuple[Problem, ...] = ()

    def write(self, folder: Path) -> None:
        """Write it, atomically."""
        write_atomic(folder / RESULT, json.dumps(asdict(self), indent=1))


def read_result(folder: Path, fingerprint: str) -> NodeResult | None:
    """Read the result of a node; None if there is none with this fingerprint."""
    try:
        content = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        outcome = Outcome(**content["outcome"]) if content["outcome"] else None
        problems = tuple(Problem(**problem) for problem in content["problems"])
        result = NodeResult(content["fingerprint"], outcome, content["files"], problems)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return result if result.fingerprint == fingerprint else None


def run_job(job: Job, say: Callable[[str], None] = note) -> int:
    """Run a node's task, and write its result or its problems; return the exit status of its process."""
    folder = Path(job.folder)
    if Path(job.cwd).is_dir():
        os.chdir(job.cwd)
    try:
        known = read_result(folder, job.fingerprint)
        if known is None or known.outcome is None:  # else a process that outlived its pipeline has finished the node
            definition = TASKS[NodeTask(job.task)]
            outcome = retry_lease(lambda: definition.run(load_spec(job.spec), say))
            paths = results_of(job.name, outcome).values()
            files = {file: sha256 for path in paths for file, sha256 in hashes_of(path).items()}
            NodeResult(job.fingerprint, outcome, files).write(folder)
        return 0
    except Stopped as stopped:
        return int(stopped.code)
    except RadioplatError as error:
        NodeResult(job.fingerprint, problems=tuple(error.problems)).write(folder)
        return 1
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        hint = "output.log in the folder of the node has the traceback."
        NodeResult(job.fingerprint, problems=(Problem(message, hint=hint),)).write(folder)
        return 70


def main() -> None:
    """Run the job of standard input."""
    with open(0, "rb", buffering=0, closefd=False) as given:  # not sys.stdin: its lock would be held at the end
        job = Job(**json.loads(given.readline()))
    threading.Thread(target=_watch_input, name="pipeline-watch", daemon=True).start()
    sys.exit(run_job(job))


def _watch_input() -> None:
    """Stop this process when its input ends."""
    while os.read(0, 1):
        pass
    request_stop()


if __name__ == "__main__":
    main()
