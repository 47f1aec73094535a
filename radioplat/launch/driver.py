"""The driver of a run of ``distill`` or ``train``: results folder, lease, preflight, workers, final status."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from radioplat.cluster.ray_cluster import check_cluster, uses_ray
from radioplat.common.sigterm import handling_sigterm
from radioplat.design.run import Run
from radioplat.errors import RadioplatError, SpecError, Stopped, TrainingError
from radioplat.launch.members import Member, begin_all, checked_specs, open_members, whole_run
from radioplat.launch.preflight.run_parts import names_no_folder
from radioplat.launch.ray.scanning import scanner
from radioplat.launch.run_sources import RunSources
from radioplat.launch.storage_watch import StorageWatch
from radioplat.launch.student_start import StudentStart
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import is_taught
from radioplat.spec.schema.distill import StudentPlacement
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
        students: of a run of several students, the result of each by its name; ``checkpoint`` is then that of the
            first one.
    """

    checkpoint: Path
    folder: Path
    global_step: int
    resumed_from: int
    teacher_costs: TeacherCosts | None = None
    account: Goodput | None = None
    students: dict[str, RunResult] = field(default_factory=dict)

    @property
    def student(self) -> Path:
        """The trained model: :attr:`checkpoint`."""
        return self.checkpoint


class StudentsFailed(TrainingError):
    """Some of several students failed, while others have all their steps.

    Attributes:
        whole: the results of the others, by name.
    """

    whole: Mapping[str, RunResult] = MappingProxyType({})  # a copy by pickle has only the problems

    @classmethod
    def of(cls, error: TrainingError, whole: Mapping[str, RunResult]) -> StudentsFailed:
        """Return the error with the problems of ``error``."""
        failed = cls(*error.problems)
        failed.whole = whole
        return failed


def run_task(
    spec: Spec,
    task: str,
    override: str | None,
    callbacks: Sequence[Callback],
    progress: bool,
    say: Callable[[str], None],
    specs: Mapping[str, Spec] | None = None,
) -> RunResult:
    """Run ``task``, ``distill`` or ``train``, in the folder ``override``; default: the task's folder.

    Args:
        specs: of several students alone, by name, in place of those of ``distill.students``.

    Raises:
        NewerRecord: a newer version wrote a record in the folder; nothing is written there.
        StudentsFailed: the run ended with an error, and some of several students have all their steps.
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
            return _run_alone(spec, task, folder, lease, callbacks, progress, say, specs)


def _run_alone(
    spec: Spec,
    task: str,
    folder: TaskFolder,
    lease: Lease,
    callbacks: Sequence[Callback],
    progress: bool,
    say: Callable[[str], None],
    specs: Mapping[str, Spec] | None,
) -> RunResult:
    """Run, with the lease of ``folder`` held: no other process writes it."""
    attempts, status = Attempts(folder.path), StatusLog(folder.status_path)
    checked = False  # until then an error refuses this start, and nothing of the run has changed
    with contextlib.ExitStack() as stack:
        members, starts = [Member.alone(spec, folder, lease, status)], []
        try:
            attempts.end("unknown", "its driver, or the whole cluster, was lost")
            status.write(f"{task} starts", Status.STARTED)
            with session(folder.path), driver_log(folder.path, say) as say, scanner(spec) as scan:
                if specs is None and spec.distill.students and is_taught(task):
                    specs = checked_specs(spec)
                if specs is not None:
                    members = open_members(specs, task, stack, say)
                clear_left_behind(folder.path)
                starts = begin_all(spec, task, members, scan, say)
                checked = True
                for member, start in zip(members, starts, strict=True):
                    start.record(member.status, member.say(say))
                run = whole_run(folder, lease.token, starts, spec.distill.placement)
                if any(start.is_open for start in starts):
                    behind = min(starts, key=lambda start: start.step)
                    with (
                        Follower(behind.folder.status_path, callbacks, run.total_steps, behind.step, task, progress),
                        StorageWatch(run.folder, spec.dataset, status, say),
                        _sources(starts),
                    ):
                        _train(run, say)
            attempts.end("done")
        except Stopped:
            attempts.end("stopped", "SIGTERM")
            for member in members:
                kept = [path.name for path in member.folder.checkpoints()]
                saved = f"the last checkpoint is {kept[-1]}" if kept else "there is no checkpoint"
                line = f"{task} was stopped by SIGTERM; {saved}; the same command continues the run"
                member.status.write(line, verbosity="WARNING")
                member.say(say)(line)
            raise
        except BaseException as error:
            reason = str(error) or type(error).__name__
            attempts.end("error", reason)
            whole = {start.name for start in starts if start.name and start.is_whole()}
            for log in [status, *(member.status for member in members if member.name and member.name not in whole)]:
                if not checked and isinstance(error, RadioplatError):
                    log.write(f"{task} cannot start: {reason}", Status.FAILURE, verbosity="ERROR", refused=True)
                else:
                    log.write(f"{task} failed: {reason}", Status.FAILURE, verbosity="ERROR")
            started = zip(members, starts, strict=False)  # another student failed
            ended = {s.name: _ended(task, s, member.say(say)) for member, s in started if s.name in whole}
            if ended and isinstance(error, TrainingError):
                raise StudentsFailed.of(error, ended) from error
            raise
        finally:
            status.close()
        results = {m.name: _ended(task, start, m.say(say)) for m, start in zip(members, starts, strict=True)}
        first = next(iter(results.values()))
        if "" in results:
            return first
        account = None
        if spec.distill.placement is StudentPlacement.together:  # else each has its own
            account = settled(replace(run, folder=folder.path), [result.teacher_costs for result in results.values()])
        with StatusLog(folder.status_path) as status:
            status.write(f"{task} is done: {', '.join(results)}", Status.SUCCESS, kpi=account.kpi() if account else {})
        return replace(first, folder=folder.path, account=account, students=results)


def _ended(task: str, start: StudentStart, say: Callable[[str], None]) -> RunResult:
    """Return the result of a student's run that has ended, and record it."""
    run = start.run
    last = newest(run.folder)
    if last is None:
        raise RadioplatError("the run ended without a checkpoint", where=str(run.folder))
    account = settled(run)
    with StatusLog(start.folder.status_path) as status:
        status.write(f"{task} is done: {last[0].name}", Status.SUCCESS, kpi=account.kpi() if account else {})
        # After SUCCESS: the training is done, however long the proof takes and whatever it shows.
        line, holds = verdict(run, last[0], account)
        verbosity = "INFO" if holds else "WARNING"
        status.write(line, Status.SUCCESS, kpi=account.kpi() if account else {}, verbosity=verbosity)
        say(line)
    costs = TeacherCosts.read(run.folder)
    return RunResult(last[0], run.folder, last[1].global_step, start.step, teacher_costs=costs, account=account)


@contextlib.contextmanager
def _sources(starts: Sequence[StudentStart]) -> Iterator[None]:
    """Write the hashes of the weights that each student's run reads, while the block runs."""
    with contextlib.ExitStack() as stack:
        for start in starts:
            if start.is_open:
                checkpoint = start.checkpoint[0] if start.checkpoint else None
                stack.enter_context(RunSources(start.run, checkpoint, start.step))
        yield


def _train(run: Run, say: Callable[[str], None]) -> None:
    if uses_ray(run.spec):
        from radioplat.launch.ray.run_on_ray import run_on_ray

        run_on_ray(run, say)
    else:
        from radioplat.launch.local import run_local

        run_local(run, say)
