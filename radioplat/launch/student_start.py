"""One student's start: its run, the checkpoint that it goes on from, and what is recorded of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from radioplat.design.run import Run, keep_data
from radioplat.errors import SpecError
from radioplat.launch.preflight.advice import OWN_CODE
from radioplat.launch.preflight.feature_cache import FEATURE_CACHE
from radioplat.launch.preflight.preflight import AUTOMATIC, Preflight
from radioplat.launch.run_sources import recover_sources
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import StatusLog
from radioplat.training.checkpoints.checkpoint import newest
from radioplat.training.checkpoints.resume import (
    catch_up,
    mirror_of,
    mirror_spec,
    order_problems,
    set_aside,
    starting_point,
)
from radioplat.training.checkpoints.run_ledger import RunLedger
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.checkpoints.unreadable import UnreadableCheckpoints

Say = Callable[[str], None]
_DECIDED = ("precision", "tf32", "reduction", "threads", "checkpoint_minutes", "keep_last", "max_failures")


@dataclass(frozen=True)
class StudentStart:
    """The start of one student; of a run of one, that of the run.

    Attributes:
        name: of the student; empty for the only one.
        spec: as the user gave it.
        folder: of the student's run.
        run: with what was decided for unset fields.
        prepared: the steps before the start.
        checkpoint: that it goes on from, and its state; None: it begins.
        step: at which it goes on.
        line: that says so.
    """

    name: str
    spec: Spec
    folder: TaskFolder
    run: Run
    prepared: Preflight
    checkpoint: tuple[Path, RunState] | None
    step: int
    line: str

    @classmethod
    def of(cls, name: str, spec: Spec, prepared: Preflight, folder: TaskFolder, lease: str, say: Say) -> StudentStart:
        """Determine where a student begins.

        Args:
            prepared: without problems.
            lease: of ``folder``.

        Raises:
            RadioplatError: its checkpoints cannot be read, or belong to another sample order.
        """
        run = replace(prepared.run(), lease=lease)
        checkpoint = _starting_point(run, say)
        step, line = _first_step(run, folder, checkpoint)
        return cls(name, spec, folder, run, prepared, checkpoint, step, line)

    @property
    def is_open(self) -> bool:
        """Whether steps are left."""
        return self.step < self.run.total_steps

    def is_whole(self) -> bool:
        """Return whether a checkpoint of all steps is there now."""
        last = newest(self.run.folder)
        return last is not None and last[1].global_step >= self.run.total_steps

    def record(self, status: StatusLog, say: Say) -> None:
        """Bring the folder up to date, and say and write what the user should know."""
        run, prepared, folder = self.run, self.prepared, self.folder
        catch_up(run, self.checkpoint)
        lines = [self.line]
        ledger, mirror = RunLedger(run), mirror_of(run.spec, run.task)
        if self.checkpoint is not None and mirror is not None:
            if recovered := ledger.recover(mirror, self.checkpoint[1]):
                lines.append(f"the ledger was copied from {self.spec.train.checkpoint_dir}")
            recover_sources(run.folder, mirror, recovered)
        assert prepared.data is not None
        keep_data(run, prepared.data)
        for line in lines:
            say(line)
            status.write(line)
        if run.annotations:
            say(run.annotations)
            status.write(run.annotations)
        for note in (*((*run.start_notes, *prepared.warnings) if self.step == 0 else ()), *run.notes):
            say(note)
            status.write(note, verbosity="WARNING")
        for title in (OWN_CODE, AUTOMATIC, FEATURE_CACHE) if self.step == 0 else (OWN_CODE, AUTOMATIC):
            if fact := prepared.facts.get(title):
                say(f"{title}: {fact}")
                status.write(f"{title}: {fact}")
        # With what was decided for unset fields; of a run without teachers the user's spec, teaching included, with
        # what its later starts keep.
        own = replace(self.spec, train=replace(self.spec.train, **{n: getattr(run.spec.train, n) for n in _DECIDED}))
        # That of a whole run stays: its weights were not trained by a spec that was changed since.
        if self.is_open or not folder.experiment_path.exists():
            mirror_spec(run, folder.write_experiment(to_yaml(run.spec if run.teachers else own)))


def _starting_point(run: Run, say: Say) -> tuple[Path, RunState] | None:
    """Return the checkpoint to resume from. With ``train.restart`` unreadable checkpoints are set aside, once: a later
    start resumes from what this one saves.

    Raises:
        RadioplatError: as :func:`starting_point`, or checkpoints cannot be set aside.
    """
    try:
        return starting_point(run)
    except UnreadableCheckpoints as blocked:
        if not run.spec.train.restart:
            raise
        say(set_aside(run, blocked))
    return starting_point(run)


def _first_step(run: Run, folder: TaskFolder, checkpoint: tuple[Path, RunState] | None) -> tuple[int, str]:
    """Return the first step of the run, and a line that explains it.

    Raises:
        SpecError: the checkpoint to resume from belongs to another sample order.
    """
    if checkpoint is None:
        return 0, f"{folder.path}: starts fresh, it holds no checkpoint"
    path, state = checkpoint
    name = path.name if path.parent == run.folder else str(path)
    if problems := list(order_problems(run.spec, name, state, run.order_fields, folder.path)):
        raise SpecError(*problems)
    changes = folder.spec_changes(to_yaml(run.spec), _with_defaults)
    changed = f"; changed in the spec since: {', '.join(changes)}" if changes else "; the spec is unchanged"
    done, total = state.global_step, run.total_steps
    if changes and done >= total:
        changed += "; to train with these, name another results_dir"
    if done >= total:
        return done, f"{folder.path}: {name} has all {total} steps, nothing is left to do{changed}"
    return done, f"{folder.path}: goes on from {name} at step {done} of {total}{changed}"


def _with_defaults(path: Path) -> str:
    """Return the text of a saved spec with the defaults of the fields that an earlier version did not have."""
    try:
        return to_yaml(load_spec(path))
    except SpecError:  # it names a field that this version does not have
        return path.read_text(encoding="utf-8")
