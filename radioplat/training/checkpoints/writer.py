"""Write checkpoints on rank 0 in a background thread, one at a time, while training continues."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from radioplat.common.terminal import note
from radioplat.spec.schema.train import TrainConfig
from radioplat.tracking.results import TaskFolder
from radioplat.training.checkpoints.background import Background
from radioplat.training.checkpoints.checkpoint import Snapshot, clear_left_behind, commit
from radioplat.training.checkpoints.mirror import Mirror, reason_of
from radioplat.training.checkpoints.retention import prune, write_scores
from radioplat.training.checkpoints.run_ledger import RunLedger


@dataclasses.dataclass
class Outcome:
    """Results of the saves so far.

    Attributes:
        newest: the newest committed checkpoint in the run's folder; None before the first.
        step: its global step.
        failures: number of consecutive failed saves up to the last one; 0 if the last one succeeded.
        reason: why the last save failed.
        fatal: an unexpected exception, other than the OSError of a disk or store.
    """

    newest: Path | None = None
    step: int = -1
    failures: int = 0
    reason: str = ""
    fatal: str = ""


class CheckpointWriter:
    """Write the checkpoints of one run to its folder and to the mirror, and remove old ones.

    A save fails if its checkpoint cannot be written to the run's folder or to the mirror. The previous checkpoint is
    then unchanged, and :attr:`warn` is called. Old checkpoints are removed only after a newer one is committed.

    Args:
        folder: folder of the task.
        train: contains the retention settings.
        mirror: location for copies of committed checkpoints.
        ledger: of the run; at each checkpoint it is compared with the order, and copied to the mirror.

    Attributes:
        warn: called with a message for the user, also in the thread.
    """

    def __init__(
        self, folder: Path, train: TrainConfig, mirror: Mirror | None = None, ledger: RunLedger | None = None
    ) -> None:
        self._folder, self._train, self._mirror, self._ledger = folder, train, mirror, ledger
        self._task = TaskFolder(folder.parent, folder.name)
        self._thread = Background()
        self._outcome = Outcome()
        self.warn: Callable[[str], None] = note
        clear_left_behind(folder)
        if mirror is not None:
            with self._tolerated(f"{mirror.folder} cannot be tidied"):
                mirror.claim()
                mirror.clear_left_behind()

    def put(self, make: Callable[[], Snapshot], on_commit: Callable[[Path], None]) -> None:
        """Start writing a checkpoint in the thread, after the previous write has ended.

        Args:
            make: called in the thread; returns the checkpoint.
            on_commit: called in the thread with the checkpoint's folder once it is committed.
        """
        self._thread.begin(lambda: self._save(make(), on_commit))

    def score(self, checkpoint: Path, kpi: dict[str, float]) -> None:
        """Start writing a checkpoint's score and removing checkpoints that retention does not keep, in the thread."""
        self._thread.begin(lambda: self._keep_score(checkpoint, kpi))

    def missed(self, step: int, reason: str) -> None:
        """Count a failed save that could not be started, and warn."""
        self.wait()
        self._failed(f"no checkpoint after step {step}: {reason}", reason)

    def wait(self) -> Outcome:
        """Wait until nothing is being written; return the results of the saves so far."""
        self._thread.wait()
        return dataclasses.replace(self._outcome, fatal=self._thread.error)

    def close(self) -> None:
        """Wait for the write in progress and end the thread."""
        self._thread.close()

    def _save(self, made: Snapshot, on_commit: Callable[[Path], None]) -> None:
        """Commit the snapshot, upload it to the mirror and remove old checkpoints; runs in the thread."""
        try:
            path = commit(self._folder, made)
            self._task.point_latest(made.name)
        except OSError as error:
            self._failed(f"checkpoint {made.name} could not be written", reason_of(error))
            return
        step = int(json.loads(made.state)["global_step"])
        self._outcome.newest, self._outcome.step = path, step
        with self._tolerated(f"checkpoint {made.name} is written, but that cannot be reported"):
            on_commit(path)
        if self._ledger is not None:
            try:
                self._ledger.roll_up(path)
            except Exception as error:  # whatever it is, training goes on; the next checkpoint or the end does it
                self.warn(f"the ledger was not compared with the order yet: {error}")
        if self._mirror is not None:
            try:
                if self._ledger is not None:  # first: a checkpoint there has its ledger
                    self._ledger.copy(self._mirror)
                self._mirror.upload(path)
            except OSError as error:
                here = f"checkpoint {made.name} stands in {self._folder} alone, {self._mirror.folder} failed"
                self._failed(here, reason_of(error))
                return
        self._outcome.failures, self._outcome.reason = 0, ""
        self._prune()

    def _keep_score(self, checkpoint: Path, kpi: dict[str, float]) -> None:
        """Write a checkpoint's score and remove old checkpoints; runs in the thread."""
        with self._tolerated(f"the score of {checkpoint.name} cannot be kept"):
            file = write_scores(checkpoint, kpi)
            if self._mirror is not None:
                self._mirror.add(file)
        self._prune()

    def _prune(self) -> None:
        with self._tolerated("old checkpoints cannot be removed"):
            step, newest = self._outcome.step, self._outcome.newest
            there = frozenset() if self._mirror is None else frozenset(self._mirror.prune(step, self._train))
            # A checkpoint with a copy in the mirror is removed here, except the newest, which is in use.
            prune(self._folder, step, self._train, there - ({newest.name} if newest is not None else set()))

    def _failed(self, message: str, reason: str) -> None:
        outcome = self._outcome
        outcome.failures, outcome.reason = outcome.failures + 1, reason
        last = "no checkpoint yet" if outcome.newest is None else f"the newest here is {outcome.newest.name}"
        limit = self._train.max_checkpoint_failures
        count = f"{outcome.failures} in a row, {limit} may fail (train.max_checkpoint_failures)"
        self.warn(f"{message}: {reason}; {last}; {count}")

    @contextlib.contextmanager
    def _tolerated(self, message: str) -> Iterator[None]:
        """Report an OSError in the block as a warning, without counting it as a failed save."""
        try:
            yield
        except OSError as error:
            self.warn(f"{message}: {reason_of(error)}")
