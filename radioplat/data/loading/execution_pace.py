"""A pause between two looks of a Ray Data execution for work."""

from __future__ import annotations

import os
import time
from typing import Any

from radioplat.common.ray_internals import ExecutionCallback

SHORTEST_S, LONGEST_S = 0.02, 0.25
SHARE = 0.25  # of the time in which nothing has happened


class ExecutionPace(ExecutionCallback):
    """Pauses after each turn of the execution's loop: a quarter as long as nothing has happened, within limits.

    The loop waits for tasks only while none has a result. Readers are usually ahead of training: then each task has a
    result, which must wait for space in the object store, and the loop would run on without waiting.
    """

    def __init__(self) -> None:
        self._counts: list[tuple[int, int, int]] = []
        self._changed = time.monotonic()

    def before_execution_starts(self, executor: Any) -> None:
        """Turn Ray Data's usage statistics off in this process, unless the environment says otherwise.

        Called by Ray Data. Every ten seconds a coordinator would ask Prometheus for them: where there is none, that
        took a quarter of its CPU time.
        """
        os.environ.setdefault("RAY_DATA_USAGE_DISABLED", "1")

    def on_execution_step(self, executor: Any) -> None:
        """Pause; called by Ray Data in the thread of the execution."""
        now = time.monotonic()
        each = (operator.metrics for operator in executor._topology)
        counts = [(m.num_tasks_submitted, m.num_task_outputs_generated, m.num_outputs_taken) for m in each]
        if counts != self._counts:
            self._counts, self._changed = counts, now
        time.sleep(min(LONGEST_S, max(SHORTEST_S, SHARE * (now - self._changed))))
