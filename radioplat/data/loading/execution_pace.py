"""A pause between two looks of a Ray Data execution for work."""

from __future__ import annotations

import time
from typing import Any

from radioplat.common.ray_internals import ExecutionCallback

PAUSE_S = 0.02


class ExecutionPace(ExecutionCallback):
    """Pauses after each turn of the execution's loop.

    The loop waits for tasks only while none has a result. Readers are usually ahead of training: then each task has a
    result, which must wait for room in the object store, and the loop would run on without waiting.
    """

    def on_execution_step(self, executor: Any) -> None:
        """Pause; called by Ray Data in the thread of the execution."""
        time.sleep(PAUSE_S)
