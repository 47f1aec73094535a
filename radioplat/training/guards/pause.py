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

from radioplat.common import collectives
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord

CAUSES = ("", "resized", "drained", "stopped")  # the last of those that are asked for takes effect
_SAVE = "save"
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


class Pauses(StepHook):
    """Find out if the ranks are asked to stop, or to save: their requests travel with the sums of each step.

    Attributes:
        checkpoint_s: rank 0 asks for a checkpoint when the last one is so many seconds old; None: never.
    """

    name = "pauses"

    def __init__(self) -> None:
        global _request, _stepping
        _request, _stepping = (0, ""), False
        self.checkpoint_s: float | None = None
        self._saved = time.monotonic()

    def saved(self) -> None:
        """Count the age of the last checkpoint from now on."""
        self._saved = time.monotonic()

    def begin_step(self, step: int) -> None:
        """Remember that training has reached its first step."""
        global _stepping
        _stepping = True

    def sums(self) -> dict[str, float]:
        """Return this rank's requests."""
        sums = {CAUSES[_request[0]]: 1.0} if _request[0] else {}
        if self.checkpoint_s is not None and time.monotonic() - self._saved >= self.checkpoint_s:
            sums |= {_SAVE: 1.0} if collectives.is_first() else {}
        return sums

    def must_save(self, record: StepRecord) -> bool:
        """Return, after a step, whether the last checkpoint is too old; the same on every rank."""
        return bool(record.sums.get(f"{self.name}/{_SAVE}"))

    def requested(self, record: StepRecord) -> Paused | None:
        """Return, after a step, the exception to raise, with the same cause on every rank; None to continue."""
        causes = [place for place, cause in enumerate(CAUSES) if record.sums.get(f"{self.name}/{cause}")]
        if collectives.alone():
            causes.append(_request[0])  # also of a request since then
        return Paused(CAUSES[max(causes)], _request[1]) if any(causes) else None


def is_asked_to_pause() -> bool:
    """Return True if the worker in this process was asked to stop."""
    return _request[0] > 0


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
