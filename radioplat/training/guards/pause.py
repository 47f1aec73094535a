"""Stopping a worker group on purpose, between two steps and with a checkpoint: before a node goes, for more workers, or
because the command received SIGTERM.

A resize by Ray Train kills its workers where they are. Ours are asked first: every rank learns at the same step that
one of them was asked, all save, and all leave with :class:`Paused`, which the failure policy does not count. From then
on no step is taken until they are started again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

import torch
import torch.distributed as dist

from radioplat.common import collectives

CAUSES = ("", "resized", "drained", "stopped")  # by the number that travels; the larger counts
_LOOK_S = 1.0  # between two looks at Ray's notices
_request: tuple[int, str] = (0, "")  # of this process: the controller's calls come in another thread than the training
_stepping = False  # whether the training of this process has come to its first step


class Paused(Exception):
    """The workers left on purpose, with a checkpoint behind them.

    Args:
        cause: one of ``resized``, ``drained``, ``stopped``.
        detail: for people.
    """

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause, self.detail = cause, detail


def ask_to_pause(cause: str, detail: str = "") -> None:
    """Ask the worker in this process to pause after its step; the first reason of the larger kind stays."""
    global _request
    if CAUSES.index(cause) > _request[0]:
        _request = CAUSES.index(cause), detail


def ask_to_stop(detail: str = "") -> None:
    """Ask the worker in this process to leave for good; before its first step it has nothing to save, and ends here."""
    if not _stepping:
        os._exit(os.EX_TEMPFAIL)
    ask_to_pause("stopped", detail)


class Pauses:
    """Whether the ranks are to pause, found out together without waiting: one number a step, reduced beside it.

    Every rank makes one, in the training thread, and calls :meth:`begin_step` and :meth:`requested` at each step.
    """

    def __init__(self) -> None:
        global _request, _stepping
        _request, _stepping = (0, ""), False
        self._channel = collectives.open_channel()
        self._number = torch.zeros(1, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin_step(self) -> None:
        """Send what this rank was asked so far."""
        global _stepping
        _stepping = True
        self._number[0] = _request[0]
        if self._channel is not None:
            self._work = dist.all_reduce(self._number, dist.ReduceOp.MAX, group=self._channel, async_op=True)

    def requested(self) -> Paused | None:
        """After a step: what to leave with, the same on every rank; None to go on."""
        if self._work is not None:
            self._work.wait()
        cause = CAUSES[_request[0] if self._channel is None else int(self._number[0])]
        return Paused(cause, _request[1]) if cause else None


def is_stepping() -> bool:
    """Whether the training of this process has come to its first step."""
    return _stepping


def watch_notices() -> None:
    """Heed Ray's notices that a node is to go: looks for them in a thread of its own, until the process ends.

    ``ray.train.get_preemption_info`` is a barrier of all ranks: in the training thread it would cost every step.
    """
    if os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "1") != "0":
        threading.Thread(target=_watch, name="notices", daemon=True).start()


def _watch() -> None:
    import ray.train

    # At the end of a run other ranks may be gone: then there is nothing left to heed.
    with contextlib.suppress(Exception):
        while True:
            info = ray.train.get_preemption_info()
            if info is not None:
                left = f", {info.deadline_ms / 1000 - time.time():.0f} s ahead" if info.deadline_ms else ""
                nodes = ", ".join(node[:8] for node in info.preempted_node_ids)
                ask_to_pause("drained", f"notice for node {nodes}{left}")
                return
            time.sleep(_LOOK_S)
