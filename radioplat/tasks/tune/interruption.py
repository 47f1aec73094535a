"""A sweep that is told to stop, and a trial whose node is to go: trials that train save first.

The sweep's command says it by a file in the sweep's folder, which every machine sees; each trial's process looks for
it, and for Ray's notice that its node is to go, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from radioplat.cluster.preemption.training_locks import training
from radioplat.common import ray_internals
from radioplat.common.sigterm import request_stop

LOOK_S = 1.0


def told_file(home: Path, start: str) -> Path:
    """There once this start of the sweep is to stop."""
    return home / f".stop.{start}"


class Lookout:
    """While the block runs, this process's training leaves with a checkpoint as soon as there is a reason.

    Attributes:
        going: the node is to go, and nobody has told the sweep to stop: the trial goes on elsewhere.
    """

    def __init__(self, home: Path, start: str) -> None:
        self._file = told_file(home, start)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lookout", daemon=True)
        self.going = False

    @property
    def told(self) -> bool:
        """Whether the sweep is to stop."""
        return self._file.exists()

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """The block; for `radioplat nodes drain --wait` this process trains while it runs."""
        self._thread.start()
        try:
            with training():
                yield
        finally:
            self._over.set()

    def lose_node(self) -> NoReturn:
        """Where the node is to go: fail as if it had gone. Ray Tune counts no failure and starts the trial elsewhere.

        A process that ended by itself while its node drains would be counted.
        """
        from ray.exceptions import RayActorError

        raise RayActorError(error_msg="its node is to go, and it has saved", preempted=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.going = not self.told and _node_goes()
            if self.told or self.going:
                request_stop()
                return


def _node_goes() -> bool:
    import ray

    with contextlib.suppress(Exception):  # the cluster does not answer now
        return ray.get_runtime_context().get_node_id() in (ray_internals.state.get_draining_nodes() or {})
    return False
