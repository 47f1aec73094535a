"""The driver of a run of ``distill`` or ``train``: results folder, lease, preflight, workers, final status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radioplat.cluster.ray_cluster import check_cluster, uses_ray
from radioplat.common.sigterm import handling_sigterm
from radioplat.design.run import Run, keep_data
from radioplat.errors import RadioplatError, SpecError, Stopped
from radioplat.launch.preflight.advice import OWN_CODE
from radioplat.launch.preflight.feature_cache import FEATURE_CACHE
from radioplat.launch.preflight.preflight import AUTOMATIC, Preflight
from radioplat.launch.preflight.run_parts import names_no_folder
from radioplat.launch.preflight.steps import take_steps
from radioplat.launch.ray.scanning import scanner
from radioplat.launch.storage_watch import StorageWatch
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.driver_log import driver_log
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.tracking.follow import Callback, Follower
from radioplat.tracking.lease import Lease
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import Status, StatusLog
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.training.accounting.accounts import session, settled
from radioplat.training.accounting.folder_versions import prepare_run
from radioplat.training.accounting.prove import verdict
from radioplat.training.checkpoints.checkpoint import clear_left_behind, newest
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


@dataclass(frozen=True)
class RunResult:
    """Result of a finished run.

    Attributes:
        checkpoint: the newest checkpoint folder; ``radioplat.load_student`` opens it.
        folder: the task's results folder.
        global_step: optimizer steps of the whole run.
        resumed_from: the step at which it began, 0 for a new run.
        teacher_costs: summed over all starts of the run; None for a run without teachers.
        account: the use of time over all starts of the run.
    """

    checkpoint: Path
    folder: Path
    global_step: int
    resumed_from: int
    teacher_costs: TeacherCosts | None = None
    account: Goodput | None = None

    @property
    def student(self) -> Path:
        """The trained model: :attr:`checkpoint`."""
        return self.checkpoint


def run_task(
    spec: Spec,
    task: str,
    override: str | None,
    callbacks: Sequence[Callback],
    progress: bool,
    say: Callable[[str], None],
) -> RunResult:
    """Run ``task``, ``distill`` or ``train``, in the folder ``override``; default: the task's folder.

    Raises:
        NewerRecord: a newer version wrote a record in the folder; nothing is written there.
        RadioplatError: the run cannot start, or ended with an error.
        Stopped: on SIGTERM, after a checkpoint.
    """
    problems = check(spec, task)
    if names_no_folder(problems):
        raise SpecError(*problems)
    with handling_sigterm():
        check_cluster(spec)
        folder = TaskFolder(spec.results_dir, task, override)
        with Lease(folder.path, say) as lease:
            for line in prepare_run(folder.path):
                say(line)
            return _run_alone(spec, task, folder, lease, callbacks, progress, say)


def _run_alone(
    spec: Spec,
    task: str,
    folder: TaskFolder,
    lease: Lease,
    callbacks: Sequence[Callback],
    progress: bool,
    say: Callable[[str], None],
) -> RunResult:
    """Run, with the lease of ``folder`` held: no other process writes it."""
    attempts, status = Attempts(folder.path), StatusLog(folder.status_path)
    try:
        attempts.end("unknown", "its driver, or the whole cluster, was lost")
        status.write(f"{task} starts", Status.STARTED)
        with session(folder.path), driver_log(folder.path, say) as say, scanner(spec) as scan:
            clear_left_behind(folder.path)
            prepared = take_steps(Preflight(spec, task, folder.path, scan=scan))
            prepared.refuse()
            assert prepared.data is not None
            run = replace(prepared.run(), lease=lease.token)
            checkpoint = _starting_point(run, say)
            start, line = _first_step(run, folder, checkpoint)
            catch_up(run, checkpoint)
            lines = [line]
            ledger, mirror = RunLedger(run), mirror_of(run.spec, run.task)
            if checkpoint is not None and mirror is not None and ledger.recover(mirror, checkpoint[1]):
                lines.append(f"the ledger was copied from {spec.train.checkpoint_dir}")
            keep_data(run, prepared.data)
            for line in lines:
                say(line)
                status.write(line)
            if run.annotations:
                say(run.annotations)
                status.write(run.annotations)
            for note in (*((*run.start_notes, *prepared.warnings) if start == 0 else ()), *run.notes):
                say(note)
                status.write(note, verbosity="WARNING")
            for title in (OWN_CODE, AUTOMATIC, FEATURE_CACHE) if start == 0 else (OWN_CODE, AUTOMATIC):
                if fact := prepared.facts.get(title):
                    say(f"{title}: {fact}")
                    status.write(f"{title}: {fact}")
            # With what was decided for unset fields; of a run without teachers the user's spec, teaching included, with
            # what its later starts keep.
            ran = run.spec.train
            names = ("precision", "tf32", "reduction", "threads", "checkpoint_minutes", "keep_last", "max_failures")
            decided = {name: getattr(ran, name) for name in names}
            own = replace(spec, train=replace(spec.train, **decided))
            # That of a whole run stays: its weights were not trained by a spec that was changed since.
            if start < run.total_steps or not folder.experiment_path.exists():
                mirror_spec(run, folder.write_experiment(to_yaml(run.spec if run.teachers else own)))
            if start < run.total_steps:
                with (
                    Follower(folder.status_path, callbacks, run.total_steps, start, task, progress),
                    StorageWatch(run.folder, spec.dataset, status, say),
                ):
                    _train(run, say)
        attempts.end("done")
    except Stopped:
        attempts.end("stopped", "SIGTERM")
        kept = [path.name for path in folder.checkpoints()]
        saved = f"the last checkpoint is {kept[-1]}" if kept else "there is no checkpoint"
        line = f"{task} was stopped by SIGTERM; {saved}; the same command continues the run"
        status.write(line, verbosity="WARNING")
        say(line)
        raise
    except BaseException as error:
        attempts.end("error", str(error) or type(error).__name__)
        status.write(f"{task} failed: {str(error) or type(error).__name__}", Status.FAILURE, verbosity="ERROR")
        raise
    finally:
        status.close()
    last = newest(folder.path)
    if last is None:
        raise RadioplatError("the run ended without a checkpoint", where=str(folder.path))
    account = settled(run)
    with StatusLog(folder.status_path) as status:
        status.write(f"{task} is done: {last[0].name}", Status.SUCCESS, kpi=account.kpi() if account else {})
        # After SUCCESS: the training is done, however long the proof takes and whatever it shows.
        line, holds = verdict(run, last[0], account)
        verbosity = "INFO" if holds else "WARNING"
        status.write(line, Status.SUCCESS, kpi=account.kpi() if account else {}, verbosity=verbosity)
        say(line)
    costs = TeacherCosts.read(folder.path)
    return RunResult(last[0], folder.path, last[1].global_step, start, teacher_costs=costs, account=account)


def _train(run: Run, say: Callable[[str], None]) -> None:
    if uses_ray(run.spec):
        from radioplat.launch.ray.run_on_ray import run_on_ray

        run_on_ray(run, say)
    else:
        from radioplat.launch.local import run_local

        run_local(run, say)


def _starting_point(run: Run, say: Callable[[str], None]) -> tuple[Path, RunState] | None:
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
