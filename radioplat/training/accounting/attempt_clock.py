"""One start of the workers: its line in ``attempts.jsonl``, and the times up to its first step."""

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
    """Made first thing in a worker; every rank has one, and rank 0's writes."""

    name = "attempt_clock"

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._first = run, rank == 0
        self._times = {"entered": time.time()}
        self._before: AttemptEvent | None = None
        self._attempt = 0

    def begin(self, state: RunState) -> None:
        """Where the run stands is known: the attempt counts from here."""
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
        """Everything is loaded."""
        self._times.setdefault("ready", time.time())

    def after_step(self, record: StepRecord) -> None:
        """The first step's line has the Unix times of what came before it, in ``recovery``."""
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
        """Before a checkpoint: the folder must still be ours.

        Raises:
            TrainingError: on every rank; another run has taken it over.
        """
        problem = collectives.broadcast_object(check_lease(self._run.folder, self._run.lease) if self._first else None)
        if problem is not None:
            with collectives.mark_agreed():
                raise problem
