"""One step of a run as its folder records it: figures, samples, workers, and the checkpoint before it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from radioplat.data.ledger.ledger_rows import LedgerRows
from radioplat.errors import DataError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.lease import held_by
from radioplat.tracking.results import EXPERIMENT
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import examine, newest, step_of
from radioplat.training.checkpoints.run_state import RunState

STEP = "--step"
_TRIES = 3  # of reading a ledger that a run rolls up meanwhile


@dataclass(frozen=True)
class RecordedStep:
    """One step of a run.

    Attributes:
        folder: the task's folder; its name is the task.
        spec: of the run, with what was decided at its start.
        step: counted from 1, as the run's messages have it.
        attempt, world_size: the start of the workers that ran it, and their number.
        figures: ``loss`` and its terms; empty if the run did not write those of this step, or skipped it.
        decision: the message of a step that changed no weight; empty if it did.
        positions, ids, checksums: of its samples, int64 ``[N]``, by position; a checksum is that of the pixels of the
            first view.
        checkpoint: the newest whole one before the step; None: the run begins anew.
        from_step: steps of that checkpoint.
        worlds: numbers of workers of the steps from that checkpoint to the step, in their order: an elastic run may
            have had others before the step.
    """

    folder: Path
    spec: Spec
    step: int
    attempt: int
    world_size: int
    figures: dict[str, float]
    decision: str
    positions: np.ndarray
    ids: np.ndarray
    checksums: np.ndarray
    checkpoint: Path | None
    from_step: int
    worlds: tuple[int, ...]


def recorded_step(folder: Path, step: int, where: str = STEP) -> RecordedStep:
    """Read what a task's folder records of a step; nothing in it is changed.

    Args:
        where: the option that names the step, for messages.

    Raises:
        DataError: the run did not reach the step, or its ledger lacks it.
        UnreadableCheckpoints: no checkpoint can be read.
    """
    spec = load_spec(folder / EXPERIMENT)
    last = newest(folder)
    if last is None:
        hint = "Wait for its first checkpoint."
        raise DataError("the run has no checkpoint, so no step is known to count", where=str(folder), hint=hint)
    done = last[1].global_step
    if not 1 <= step <= done:
        hint = f"Give a step from 1 to {done}, that of {last[0].name}."
        if step > done and (holder := held_by(folder)):
            hint = f"{hint[:-1]}, or wait for a later checkpoint: the run is going on ({holder})."
        raise DataError(f"the run has no step {step}", where=where, hint=hint)
    checkpoint, from_step = _checkpoint_before(folder, step) or _start_of(spec, last[1], step, where)
    attempts, rows = _samples(folder / "ledger", last[1], (from_step, step))
    started = {event.attempt: event.world_size for event in Attempts(folder).read()}
    worlds = [started.get(attempt, last[1].world_size) for attempt in attempts]
    figures, decision = _written(folder, step)
    return RecordedStep(
        folder=folder,
        spec=spec,
        step=step,
        attempt=attempts[-1],
        world_size=worlds[-1],
        figures=figures,
        decision=decision,
        positions=rows[0],
        ids=rows[1],
        checksums=rows[2],
        checkpoint=checkpoint,
        from_step=from_step,
        worlds=tuple(world for world, _ in itertools.groupby(worlds)),
    )


def _written(folder: Path, step: int) -> tuple[dict[str, float], str]:
    """Return the losses that a run wrote of a step, and the message if it moved no weight; the last if it ran twice."""
    figures, decision = dict[str, float](), ""
    for line in read_status(folder / "status.json"):
        message = line.get("message", "")
        if message.startswith((f"step {step} was skipped", f"step {step} moved no weight")):
            figures, decision = {}, message
        elif message.startswith(f"step {step} of ") and (kpi := line.get("kpi")):
            names = [name for name in kpi if name.split("/")[0] in ("loss", "accuracy")]
            figures = {name: kpi[name] for name in names}
            decision = decision if not figures else ""
    return figures, decision


def _samples(ledger: Path, state: RunState, steps: tuple[int, int]) -> tuple[list[int], list[np.ndarray]]:
    """Return the attempts that ran some steps, and the samples of the last of these; a running run may move rows."""
    for again in range(_TRIES, 0, -1):
        try:
            return _read_samples(ledger, state, steps)
        except FileNotFoundError:
            if again == 1:
                raise
    raise AssertionError


def _read_samples(ledger: Path, state: RunState, steps: tuple[int, int]) -> tuple[list[int], list[np.ndarray]]:
    reader, last = LedgerRows(ledger), steps[1] - 1
    parts = reader.parts(state.order_from, state.reached)
    attempts = [attempt for attempt, start, stop in parts if start < steps[1] and stop > steps[0]]
    for attempt, start, stop in parts:
        if start <= last < stop:
            if tables := list(reader.tables(attempt, (last, last + 1))):
                rows = pa.concat_tables(tables).sort_by("position")
                return attempts, [rows[name].to_numpy() for name in ("position", "id", "checksum")]
    damaged = "".join(f"; {path.name}: {why}" for path, why in reader.unreadable.items())
    hint = "`radioplat ledger` lists what it has."
    raise DataError(f"the ledger has no samples of step {last + 1}{damaged}", where=str(ledger), hint=hint)


def _checkpoint_before(folder: Path, step: int) -> tuple[Path, int] | None:
    """Return the newest whole checkpoint with fewer than ``step`` steps, and its steps; None if there is none."""
    steps = {path: step_of(path) for path in folder.glob("model_epoch_*") if path.is_dir()}
    before = [(count, path) for path, count in steps.items() if count is not None and count < step]
    for count, path in sorted(before, key=lambda pair: pair[0], reverse=True):
        if isinstance(examine(path), RunState):
            return path, count
    return None


def _start_of(spec: Spec, state: RunState, step: int, where: str) -> tuple[Path | None, int]:
    """Return the checkpoint that a run began from, and its steps; None and 0 if it began with the first step.

    Raises:
        DataError: the step is not later, or the checkpoint is not there.
    """
    first, path = state.order_from, Path(spec.train.resume_training_checkpoint_path or "")
    if not first:
        return None, 0
    if step <= first:
        hint = f"Give a later step here, or the run that it began from: {path}."
        raise DataError(f"the run began with step {first + 1}, from another run's checkpoint", where=where, hint=hint)
    if step_of(path) != first or not isinstance(examine(path), RunState):
        message = f"the run has no checkpoint before step {step}, and began from {path}, which is not there"
        raise DataError(message, where=where, hint="Put it back, or give a step after the first checkpoint.")
    return path, first
