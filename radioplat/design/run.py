"""The design of a run before its workers start: models, views, data, length."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from radioplat.data.ledger.ledger import write_rejects
from radioplat.data.loading.run_data import RunData, dataset_to_json, order_hash
from radioplat.data.order.dealing import Costs
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.data.views.kinds import kinds
from radioplat.data.views.render import ViewSpec
from radioplat.design.models import target_widths
from radioplat.design.partitions import Partitions
from radioplat.design.stages import away_by_step
from radioplat.models.detectors.base import DetectorArchitecture
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.spec.resolved.teacher import ResolvedTeacher, average_view
from radioplat.spec.resolved.zero import waits
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Dealing
from radioplat.teachers.base.info import TeacherInfo


@dataclass(frozen=True)
class Run:
    """A run, ready to start; picklable, and small enough to send to every worker.

    Attributes:
        task: ``distill`` or ``train``.
        folder: the task's results folder, absolute.
        grids: the loss grid of each teacher, rows and columns.
        student_view: name of the view the student sees.
        order_fields: inputs of the sample order, by name.
        annotations: summary of the objects to detect, and of annotation faults.
        detector: the detector on the student, if one is trained.
        binding_widths: widths of compared outputs, see :mod:`radioplat.objectives.detector_bindings`.
        start_notes: sentences about the initial weights of the student.
        notes: sentences about held-out images that validations leave out.
        heads_to_fit: teacher's name and kind of the heads that are fitted before the first step.
        head_fit_steps: steps whose images they are fitted to.
        feature_cache: folder of the teachers' stored features; None for none.
        family: of a run of several students (``distill.students``): one run for each, with a folder of its own; they
            have the same samples, views and teachers. Attempts, logs and accounts are in the folder of the whole.
        spread: each student of the family has workers of its own.
        groups: groups of workers that ask the teachers, this one included.
        name: of a student in a family.
        home: likewise the folder of the whole.
        working_dir: that of the driver, to which relative paths of the spec are relative.
        lease: token of the run's lease of the results folder; see :mod:`radioplat.tracking.lease`.
    """

    spec: Spec
    task: str
    folder: Path
    teachers: list[ResolvedTeacher]
    infos: dict[str, TeacherInfo]
    grids: dict[str, tuple[int, int]]
    architecture: StudentArchitecture
    views: tuple[ViewSpec, ...]
    student_view: str
    steps_per_epoch: int
    total_steps: int
    order_fields: dict[str, str]
    lease: str = ""
    annotations: str = ""
    detector: DetectorArchitecture | None = None
    binding_widths: dict[str, tuple[int, int]] = field(default_factory=dict)
    start_notes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    heads_to_fit: tuple[tuple[str, str], ...] = ()
    head_fit_steps: int = 0
    feature_cache: str | None = None
    family: tuple[Run, ...] = ()
    spread: bool = False
    groups: int = 1
    name: str = ""
    home: Path | None = None
    working_dir: Path = field(default_factory=Path.cwd)

    @property
    def students(self) -> tuple[Run, ...]:
        """The run of each student: of the whole family, else this one alone."""
        return self.family or (self,)

    @property
    def frozen_teachers(self) -> list[ResolvedTeacher]:
        """The teachers with frozen weights, in actors or inline; the others are inside the objective."""
        return [teacher for teacher in self.teachers if not teacher.inside]

    @property
    def inner_views(self) -> tuple[str, ...]:
        """Names of the views that the objective needs: the student's, and those of teachers inside the objective."""
        names = [self.student_view, *(teacher.view for teacher in self.teachers if teacher.inside)]
        if self.spec.distill.mesa.weight:
            names.append(average_view(self.spec, self.spec.distill.mesa.view))
        return tuple(dict.fromkeys(names))

    @property
    def micro_batches(self) -> int:
        """Real micro-batches of one optimizer step."""
        return self.spec.global_batch_size // self.spec.dataset.batch_size

    def micro_batch_schedule(self, world_size: int, costs: Costs | None = None) -> MicroBatchSchedule:
        """Return the assignment of micro-batches to ``world_size`` ranks, as it is when the workers start.

        Args:
            costs: known from an earlier start.
        """
        train = self.spec.train
        views = sorted(self.views, key=lambda view: view.name != self.student_view)  # the student's first
        seed = self.spec.dataset.train_dataset.seed
        sizes = partial(kinds, views, seed)
        by_cost = train.dealing is Dealing.cost
        in_slots = any(waits(run.spec.train) for run in self.students)
        return MicroBatchSchedule(self.micro_batches, world_size, sizes, in_slots, costs, by_cost)

    @property
    def partitions(self) -> Partitions:
        """The assignment of micro-batches to teachers; empty without teachers."""
        if not self.teachers:
            return Partitions.of([], self.spec.train.seed, self.micro_batches)
        away = away_by_step(self.spec, [teacher.name for teacher in self.teachers])
        return Partitions.of(self.spec.distill.partitions, self.spec.train.seed, self.micro_batches, away)

    @property
    def order_hash(self) -> str:
        """Hash that identifies the sample order."""
        return order_hash(self.order_fields)

    @property
    def data_dir(self) -> Path:
        """The run's own copy of the index."""
        return self.folder / "data"

    @property
    def target_widths(self) -> dict[tuple[str, str], int]:
        """Dimensions of each teacher's summary and map, by name and kind."""
        return target_widths(self.infos)

    @property
    def reader_arguments(self) -> tuple[str, str, tuple[tuple, ...]]:
        """Arguments of :func:`radioplat.data.loading.run_data.open_reader`."""
        return str(self.data_dir), dataset_to_json(self.spec.dataset), tuple(map(tuple, self.views))


def keep_data(run: Run, data: RunData) -> None:
    """Save the run's copy of the index, and write rejected samples to its ledger.

    Called only after all checks, so that a refused start does not change the files that prove an earlier one.
    """
    data.save(run.data_dir)
    write_rejects(run.folder / "ledger", data.index, data.reasons)


def steps_per_epoch(spec: Spec, data: RunData) -> int:
    """Return the largest ``steps_per_epoch`` of the sources; for a folder of images, those of one pass."""
    split = spec.dataset.train_dataset
    steps = [source.steps_per_epoch for source in split.tar_data_sources]
    if split.images_dir:
        images = data.kept_of(len(steps)) * split.views_per_step
        steps.append(max(1, -(-images // spec.global_batch_size)))
    return max(steps)


def has_held_out(spec: Spec) -> bool:
    """Return True if ``spec`` names held-out images."""
    split = spec.dataset.val_dataset
    return bool(split.tar_data_sources or split.images_dir)
