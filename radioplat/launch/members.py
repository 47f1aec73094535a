"""The students of a run: their folders, leases and logs, and the run of all of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from radioplat.data.scan.scan import Scanner
from radioplat.data.views.render import ViewSpec
from radioplat.design.run import Run, keep_data
from radioplat.errors import Problem, SpecError
from radioplat.launch.preflight.feature_cache import FOLDER as FEATURES
from radioplat.launch.preflight.preflight import Preflight
from radioplat.launch.preflight.steps import take_steps
from radioplat.launch.student_start import Say, StudentStart
from radioplat.spec.checks.teaching.students import students_problems
from radioplat.spec.loading.students import STUDENTS, own_problem, student_specs
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import coarser_map
from radioplat.spec.schema.cluster import RECENT_BYTES, Transport
from radioplat.spec.schema.distill import StudentPlacement
from radioplat.spec.schema.root import Spec
from radioplat.tracking.lease import Lease
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import Status, StatusLog
from radioplat.training.accounting.folder_versions import prepare_run
from radioplat.training.checkpoints.checkpoint import clear_left_behind
from radioplat.training.loop.ended_student import FILE as ENDED


@dataclass(frozen=True)
class Member:
    """One student of a run, with the lease of its folder.

    Attributes:
        name: empty for the only one.
        known: lines for the user that a student before it had, too.
    """

    name: str
    spec: Spec
    folder: TaskFolder
    lease: Lease
    status: StatusLog
    known: set[str] = field(default_factory=set)

    @classmethod
    def alone(cls, spec: Spec, folder: TaskFolder, lease: Lease, status: StatusLog) -> Member:
        """Return the only student of a run, in the run's own folder."""
        return cls("", spec, folder, lease, status)

    def say(self, say: Say) -> Say:
        """Return the function that says a line of this student: with its name, unless an earlier one had the line."""

        def named(line: str) -> None:
            """Say the line."""
            if self.name and line not in self.known:
                say(f"{self.name}: {line}")
            elif not self.name:
                say(line)
            self.known.add(line)

        return named


def checked_specs(spec: Spec) -> dict[str, Spec]:
    """Return the spec of each student of ``distill.students``.

    Raises:
        SpecError: a student's fields are not valid.
    """
    if problems := list(students_problems(spec)):
        raise SpecError(*problems)
    return student_specs(spec)


def open_members(specs: Mapping[str, Spec], task: str, stack: contextlib.ExitStack, say: Say) -> list[Member]:
    """Open the folder of each student; ``stack`` holds their leases.

    Args:
        specs: of each student alone, by name.

    Raises:
        LeaseTaken: another run writes a student's folder.
    """
    known: set[str] = set()
    members = []
    for name, own in specs.items():
        folder = TaskFolder(own.results_dir, task)
        lease = stack.enter_context(Lease(folder.path, say))
        for line in prepare_run(folder.path):
            say(line)
        clear_left_behind(folder.path)
        (folder.path / ENDED).unlink(missing_ok=True)  # this start tries it again
        status = stack.enter_context(contextlib.closing(StatusLog(folder.status_path)))
        status.write(f"{task} starts", Status.STARTED)
        members.append(Member(name, own, folder, lease, status, known))
    return members


def begin_all(spec: Spec, task: str, members: Sequence[Member], scan: Scanner, say: Say) -> list[StudentStart]:
    """Take the steps before the start of each student, and determine where it begins.

    Raises:
        RadioplatError: with the problems of all of them.
    """
    prepared = [take_steps(Preflight(member.spec, task, member.folder.path, scan=scan)) for member in members]
    if len(members) == 1 and not members[0].name:
        prepared[0].refuse()
    students = spec.distill.students
    problems = [
        own_problem(students[place], place, problem) if students else problem
        for place, one in enumerate(prepared)
        for problem in one.problems
    ]
    if problems:
        raise SpecError(*dict.fromkeys(problems))
    starts = [
        StudentStart.of(member.name, member.spec, one, member.folder, member.lease.token, member.say(say))
        for member, one in zip(members, prepared, strict=True)
    ]
    if problems := list(unlike([start.run for start in starts], [member.name for member in members])):
        raise SpecError(*problems)
    return starts


def unlike(runs: Sequence[Run], names: Sequence[str]) -> Iterator[Problem]:
    """Yield what students do not have in common with the first: samples, length, views, what teachers are asked."""
    first = runs[0]
    for place, run in enumerate(runs[1:], start=1):
        where, other = f"{STUDENTS}[{place}]", names[0]
        if differing := [k for k in first.order_fields if run.order_fields.get(k) != first.order_fields[k]]:
            yield Problem(f"its samples are not those of {other}: {', '.join(differing)}", where)
        elif run.total_steps != first.total_steps:
            yield Problem(f"it has {run.total_steps} steps, and {other} has {first.total_steps}", where)
        elif first.partitions.counts and run.spec.train.seed != first.spec.train.seed:
            hint = "Set one train.seed for all, or train this student alone."
            message = f"distill.partitions are drawn by train.seed, and that of {other} is another"
            yield Problem(message, f"{where}.train.seed", hint)
        elif list(map(_questions, run.teachers)) != list(map(_questions, first.teachers)):
            yield Problem(f"its teachers, or what they are shown, are not those of {other}", where)
        elif any(t.mosaic > 1 and run.grids[t.name] != first.grids[t.name] for t in run.teachers):
            hint = "Take students of one stride, or a teacher without mosaics."
            yield Problem(f"its maps have another grid than those of {other}, and a teacher sees mosaics", where, hint)
        elif any(view != known for view in run.views for known in first.views if view.name == known.name):
            hint = (
                "Take students of one size and stride, or sizes that are not drawn and views that do not depend on it."
            )
            yield Problem(f"its images are cut otherwise than those of {other}", where, hint)


def _questions(teacher: ResolvedTeacher) -> tuple[str, str, list[str]]:
    """Return what all students must ask a teacher alike."""
    return teacher.name, teacher.view, teacher.modules


def whole_run(folder: TaskFolder, lease: str, starts: Sequence[StudentStart], placement: StudentPlacement) -> Run:
    """Return the run of the students that have steps left; if none has, that of the first.

    Args:
        folder: of the run.
        lease: of that folder.
        placement: of several students.
    """
    if not any(start.is_open for start in starts) or starts[0].folder.path == folder.path:
        return starts[0].run
    home, spread = folder.path.absolute(), placement is StudentPlacement.spread
    runs = [dataclasses.replace(start.run, home=home, name=start.name) for start in starts if start.is_open]
    cache = runs[0].feature_cache
    if cache is not None and not runs[0].spec.feature_cache.dir:
        cache = str(home / FEATURES)
    teachers = [_asked_by_all(teacher, place, runs, spread) for place, teacher in enumerate(runs[0].teachers)]
    grids = {name: max(run.grids[name] for run in runs) for name in runs[0].grids}
    whole = dataclasses.replace(
        runs[0],
        folder=home,
        lease=lease,
        family=tuple(runs),
        spread=spread,
        feature_cache=cache,
        teachers=teachers,
        grids=grids,
        views=_all_views(runs),
    )
    assert starts[0].prepared.data is not None
    keep_data(whole, starts[0].prepared.data)
    return whole


def _asked_by_all(teacher: ResolvedTeacher, place: int, runs: Sequence[Run], spread: bool) -> ResolvedTeacher:
    """Return a teacher that is asked for what all students compare: the finest map, and further ones for some."""
    wanted = frozenset().union(*(run.teachers[place].wanted for run in runs))
    grids = {run.grids[teacher.name]: "spatial" in run.teachers[place].wanted for run in runs if run.grids}
    maps = {grid for grid, compared in grids.items() if compared} - {max(grids, default=None)}
    outputs = wanted | {coarser_map(grid) for grid in maps}
    service = teacher.service
    if spread:  # each group asks the same, and answers that NIXL sends are not kept
        recent = RECENT_BYTES if service.recent_bytes is None else service.recent_bytes
        transport = Transport.object_store if service.transport is Transport.auto else service.transport
        service = dataclasses.replace(service, recent_bytes=recent, transport=transport)
    return dataclasses.replace(teacher, also_wanted=outputs, service=service)


def _all_views(runs: Sequence[Run]) -> tuple[ViewSpec, ...]:
    """Return the views of all students, each name once, in the order of :func:`radioplat.design.views.run_views`."""
    by_name = {view.name: view for run in runs for view in run.views}
    return tuple(sorted(by_name.values(), key=lambda view: (bool(view.sizes), view.size, view.name)))
