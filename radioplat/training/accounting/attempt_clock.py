"""Record a start of the workers in ``attempts.jsonl``, and the times from then to its first step."""

from __future__ import annotations

import time

from radioplat.common import collectives
from radioplat.design.run import Run
from radioplat.tracking.attempts.attempts import PLANNED, AttemptEvent, Attempts
from radioplat.tracking.lease import check_lease
from radioplat.tracking.status import StatusLog
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord


class AttemptClock(StepHook):
    """Measure start-up times of an attempt, from the moment this object is created.

    A worker creates it before anything else. Every rank has one; rank 0 writes.
    """

    name = "attempt_clock"

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._first = run, rank == 0
        self._times = {"entered": time.time()}
        self._before: AttemptEvent | None = None
        self._attempt = 0

    def begin(self, state: RunState) -> None:
        """Record the start of the attempt, once the checkpoint to resume from is known.

        Writes a status line with the cause of the previous attempt's end, if there was one.
        """
        if self._first:
            self._attempt = state.attempt
            before = Attempts(self._run.folder).start(state.attempt, state.world_size, state.global_step)
            self._before = before if before and before.event == "end" else None
            if self._before is not None:
                why, planned = self._before, self._before.cause in PLANNED
                with StatusLog(self._run.folder / "status.json") as status:
                    status.write(
                        f"attempt {state.attempt} with {state.world_size} worker(s) goes on from step "
                        f"{state.global_step}; the one before ended: {why.cause}"
                        f"{', ' + why.detail if why.detail else ''}",
                        verbosity="INFO" if planned else "WARNING",
                    )

    def ready(self) -> None:
        """Record the time at which the worker is ready for its first step; only the first call counts."""
        self._times.setdefault("ready", time.time())

    def after_step(self, record: StepRecord) -> None:
        """After the first step, write a status line whose ``recovery`` field has the Unix times of start-up."""
        if "stepped" in self._times:
            return
        self._times["stepped"] = time.time()
        if self._first:
            ended = {"ended": self._before.time} if self._before else {}
            with StatusLog(self._run.folder / "status.json") as status:
                status.write(
                    f"attempt {self._attempt} took its first step", verbosity="DEBUG", recovery=ended | self._times
                )

    def check_lease(self) -> None:
        """Check before a checkpoint that no other run has taken over the folder; every rank must call it.

        Raises:
            TrainingError: on every rank, if another run has taken it over.
        """
        problem = collectives.broadcast_object(check_lease(self._run.folder, self._run.lease) if self._first else None)
        if problem is not None:
            with collectives.mark_agreed():
                raise problem
