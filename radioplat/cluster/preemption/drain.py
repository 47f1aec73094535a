"""Drain a Ray node that will be terminated, so that runs on it save and move away: ``ray drain-node``."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

from radioplat.cluster.preemption.training_locks import training_workers
from radioplat.errors import PlacementError

_LOOK_S = 0.5
_ANSWER_S = 30.0  # Ray's command takes some seconds to start on a busy machine


def drain(seconds: float, reason: str, node_id: str | None = None) -> None:
    """Drain a node of the cluster at ``RAY_ADDRESS``, else of the cluster on this machine.

    Args:
        seconds: time until the node is terminated.
        reason: text for the run's ``attempts.jsonl`` and Ray's logs.
        node_id: Ray node id, in hex; default: the node on this machine.

    Raises:
        PlacementError: no cluster runs here, it does not answer, or it refused.
    """
    command = [
        str(Path(sys.executable).parent / "ray"),
        "drain-node",
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        f"--reason-message={reason}",
        f"--deadline-remaining-seconds={max(0, math.floor(seconds))}",
        *([f"--node-id={node_id}"] if node_id else []),
    ]
    hint = "Run it on a node of the cluster, with the cluster's RAY_AUTH_MODE and token."
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired:  # Ray would wait minutes; the machine has two at most
        raise PlacementError(f"the cluster does not answer within {_ANSWER_S:g} seconds", hint=hint) from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise PlacementError(
            f"ray drain-node failed: {lines[-1].strip() if lines else f'exit status {done.returncode}'}",
            hint=hint,
        )


def await_workers(seconds: float) -> bool:
    """Wait until no worker on this machine trains; return False if one still does after ``seconds``."""
    until = time.monotonic() + seconds
    while training_workers():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_S)
    return True
