"""Stop a worker group between two steps, after saving a checkpoint.

Reasons are that a node will be removed, that more workers are available, or that the command received SIGTERM.

Ray Train resizes a worker group by killing its workers. They are therefore asked to stop first: every rank learns at
the same step that one of them was asked; all save a checkpoint and raise :class:`Paused`, which the failure policy does
not count as a failure. No further step is trained until the workers are started again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

import torch
import torch.distributed as dist

from radioplat.common import collectives

CAUSES = ("", "resized", "drained", "stopped")  # by the number in the all-reduce; the largest takes effect
_LOOK_S = 1.0  # between two checks for Ray's notices
_request: tuple[int, str] = (0, "")  # of this process; set in a thread other than the training thread
_stepping = False  # True once training in this process has reached its first step


class Paused(Exception):
    """Raised when the workers stop on request, after they saved a checkpoint.

    Args:
        cause: one of ``resized``, ``drained``, ``stopped``.
        detail: explanation for the user.
    """

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause, self.detail = cause, detail


def ask_to_pause(cause: str, detail: str = "") -> None:
    """Ask the worker in this process to stop after its current step.

    Of several requests, the one with the largest cause is kept, and of equal causes the first.
    """
    global _request
    if CAUSES.index(cause) > _request[0]:
        _request = CAUSES.index(cause), detail


def ask_to_stop(detail: str = "") -> None:
    """Ask the worker in this process to stop for good; before its first step there is nothing to save: exit at once."""
    if not _stepping:
        os._exit(os.EX_TEMPFAIL)
    ask_to_pause("stopped", detail)


class Pauses:
    """Find out if the ranks are asked to stop, by an asynchronous all-reduce of one number during each step.

    Every rank creates one in the training thread, and calls :meth:`begin_step` and :meth:`requested` at each step.
    """

    def __init__(self) -> None:
        global _request, _stepping
        _request, _stepping = (0, ""), False
        self._channel = collectives.open_channel()
        self._number = torch.zeros(1, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin_step(self) -> None:
        """Start the all-reduce of this rank's request."""
        global _stepping
        _stepping = True
        self._number[0] = _request[0]
        if self._channel is not None:
            self._work = dist.all_reduce(self._number, dist.ReduceOp.MAX, group=self._channel, async_op=True)

    def requested(self) -> Paused | None:
        """Return, after a step, the exception to raise, with the same cause on every rank; None to continue."""
        if self._work is not None:
            self._work.wait()
        cause = CAUSES[_request[0] if self._channel is None else int(self._number[0])]
        return Paused(cause, _request[1]) if cause else None


def is_stepping() -> bool:
    """Return True if training in this process has reached its first step."""
    return _stepping


def watch_notices() -> None:
    """Start a thread that waits for Ray's notices that a node will be removed, until the process ends.

    ``ray.train.get_preemption_info`` is a barrier of all ranks; in the training thread it would slow down every step.
    """
    if os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "1") != "0":
        threading.Thread(target=_watch, name="notices", daemon=True).start()


def _watch() -> None:
    import ray.train

    # At the end of a run other ranks may have ended; then notices no longer matter.
    with contextlib.suppress(Exception):
        while True:
            info = ray.train.get_preemption_info()
            if info is not None:
                left = f", {info.deadline_ms / 1000 - time.time():.0f} s ahead" if info.deadline_ms else ""
                nodes = ", ".join(node[:8] for node in info.preempted_node_ids)
                ask_to_pause("drained", f"notice for node {nodes}{left}")
                return
            time.sleep(_LOOK_S)
