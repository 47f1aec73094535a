"""What is done to a run on a Ray cluster of two raylets on this machine: each kind of its processes is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import psutil

from benchmarks.chaos.trial import STEPS, TRY_AGAIN, Quiet, Trial

# By kind: part of the title of its processes.
TITLES = {"worker": "RayTrainWorker", "teacher": "Replica", "reader": "_ReadSpan", "raylet": "raylet/raylet"}
KILLS = (*TITLES, "driver", "head")


def changes(quiet: bool) -> dict[str, Any]:
    """Return the spec's fields of a run on one or two workers, whose sums do not depend on their number.

    Args:
        quiet: without a cluster.
    """
    exact: dict[str, Any] = {"train.reduction": "exact", "train.max_failures": 20}
    return exact if quiet else exact | {"cluster.mode": "ray", "train.max_workers": 2}


def cluster(trial: Trial, quiet: Quiet) -> None:
    """Processes are killed at random steps, and nodes come back."""
    from clusters.local import LocalCluster

    variables = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
    os.environ.update(variables, RAY_TMPDIR="/tmp")
    kills = [trial.rng.choice(KILLS) for _ in range(trial.rng.randint(1, 3))]
    while True:
        with LocalCluster(nodes=2) as local:
            trial.environment = {**variables, "RAY_ADDRESS": local.address, "RAY_TMPDIR": "/tmp"}
            lost = _one_cluster(trial, local, kills)
        if not lost or len(trial.starts) > 6:
            return


def _one_cluster(trial: Trial, local: Any, kills: list[str]) -> bool:
    """Start the command until it is done; return True if the head was lost, so that another cluster is needed."""
    while len(trial.starts) <= 6:
        begun = trial.start()
        while kills:
            step = trial.steps() + trial.rng.randint(1, 6)
            if not begun.until(lambda: trial.steps() >= min(step, STEPS - 2), 240):  # noqa: B023 (called here alone)
                break
            kind = kills.pop(0)
            trial.done.append(f"{kind} killed after step {trial.steps()}")
            if kind == "driver":
                begun.kill()
                break
            if kind == "head":
                local.close()
                begun.until(lambda: False, 120)
                if begun.hung:
                    begun.hung = False
                    trial.problems.append("the command does not end without a head")
                return True
            _kill(kind, local, trial.rng)
        status = begun.wait(300)
        if status == 0:
            return False
        if status not in (TRY_AGAIN, -signal.SIGKILL):
            trial.problems.append(f"exit status {status}: {begun.text.strip()[-300:]}")
            return False
    trial.problems.append("not done after seven starts")
    return False


def _kill(kind: str, local: Any, rng: random.Random) -> None:
    if kind == "raylet":
        local.kill(rng.choice(sorted(local.nodes)))
        local.add()
        return
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        fitting = []
        for process in psutil.Process().children(recursive=True):
            try:
                title = " ".join(process.cmdline()[:2])
            except psutil.Error:
                continue
            if "ray::" in title and TITLES[kind] in title:
                fitting.append(process)
        if fitting:
            rng.choice(fitting).kill()
            return
        time.sleep(0.1)


KINDS = {"cluster": cluster}
