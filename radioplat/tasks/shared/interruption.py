"""Interruption of trials: the sweep stops, or the trial's node is drained; trials that train save a checkpoint first.

The sweep's command requests a stop by a file in the sweep's folder, which every machine can read. A thread in each
trial's process checks this file, and whether Ray drains its node.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from radioplat.cluster.preemption.training_locks import training
from radioplat.common import ray_internals
from radioplat.common.sigterm import request_stop

CHECK_S = 1.0


def stop_file(home: Path, start: str) -> Path:
    """Return the path of the file that exists once this start of the sweep shall stop."""
    return home / f".stop.{start}"


class InterruptionWatch:
    """Stops this process's training, which saves a checkpoint, when the sweep stops or the node is drained.

    Attributes:
        node_draining: the node is drained and the sweep continues, so the trial continues elsewhere.
    """

    def __init__(self, home: Path, start: str) -> None:
        self._file = stop_file(home, start)
        self._finished = threading.Event()
        self.node_draining = False

    @property
    def stop_requested(self) -> bool:
        """Whether the sweep shall stop."""
        return self._file.exists()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs; `radioplat nodes drain --wait` counts this process as training meanwhile."""
        threading.Thread(target=self._watch, name="interruption-watch", daemon=True).start()
        try:
            with training():
                yield
        finally:
            self._finished.set()

    def _watch(self) -> None:
        while not self._finished.wait(CHECK_S):
            self.node_draining = not self.stop_requested and _node_draining()
            if self.stop_requested or self.node_draining:
                request_stop()
                return


def _node_draining() -> bool:
    import ray

    with contextlib.suppress(Exception):  # the cluster does not answer
        return ray.get_runtime_context().get_node_id() in (ray_internals.state.get_draining_nodes() or {})
    return False
