"""Everything a run decides before a worker starts: models, views, data, length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from radioplat.data.detection.box_table import BoxTable
from radioplat.data.detection.images import DetectionSet
from radioplat.data.detection.split import read_split
from radioplat.data.index.build import build_index
from radioplat.data.ledger.ledger import write_rejects
from radioplat.data.loading.run_data import RunData, dataset_to_json, order_hash
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.data.scan.scan import Scanner
from radioplat.data.scan.sources import list_shards
from radioplat.data.views.render import ViewSpec
from radioplat.design.detector import detector_architecture, detector_widths, start_detector
from radioplat.design.detector_teachers import told_problems
from radioplat.design.labels import class_names, label_problems
from radioplat.design.models import design_models, target_widths
from radioplat.design.partitions import Partitions
from radioplat.design.stages import away_by_step, total_steps
from radioplat.design.student import equip
from radioplat.design.views import run_views
from radioplat.errors import SpecError
from radioplat.evaluation.models.held_out_labels import held_out_labels
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.pretrained.start import start_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.peers import Peer
from radioplat.spec.checks.tasks.run import check
from radioplat.spec.checks.training.detection import detects
from radioplat.spec.resolved.image_sizes import without_teaching
from radioplat.spec.resolved.teacher import ResolvedTeacher, average_view, student_view
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.info import TeacherInfo


@dataclass(frozen=True)
class Run:
    """A run, ready to start; picklable, and small enough to send to every worker.

    Attributes:
        task: ``distill`` or ``train``.
        folder: the task's results folder, absolute.
        grids: the loss grid of each teacher, rows and columns.
        student_view: name of the view the student sees.
        order_fields: what the order was made from.
        annotations: what there is to detect, and what is wrong with it, in words.
        detector: what stands on the student, where a detector is trained.
        binding_widths: of what its bindings compare, see :mod:`radioplat.objectives.detector_bindings`.
        notes: what is odd about the data, and runs.
        lease: which hold of the results folder the run writes under; see :mod:`radioplat.tracking.lease`.
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
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> list[ResolvedTeacher]:
        """The teachers that are asked, in actors or inline; the others answer inside the student's module."""
        return [teacher for teacher in self.teachers if not teacher.inside]

    @property
    def inner_views(self) -> tuple[str, ...]:
        """Names of the views that the student's module sees: its own, and those of teachers inside it."""
        names = [self.student_view, *(teacher.view for teacher in self.teachers if teacher.inside)]
        if self.spec.distill.mesa.weight:
            names.append(average_view(self.spec, self.spec.distill.mesa.view))
        return tuple(dict.fromkeys(names))

    @property
    def micro_batches(self) -> int:
        """Real micro-batches of one optimizer step."""
        return self.spec.global_batch_size // self.spec.dataset.batch_size

    def micro_batch_schedule(self, world_size: int) -> MicroBatchSchedule:
        """How steps are cut for ``world_size`` ranks."""
        return MicroBatchSchedule(self.micro_batches, world_size)

    @property
    def partitions(self) -> Partitions:
        """Which teachers see which micro-batches; training on labels has no teachers."""
        if not self.teachers:
            return Partitions.of([], self.spec.train.seed, self.micro_batches)
        away = away_by_step(self.spec, [teacher.name for teacher in self.teachers])
        return Partitions.of(self.spec.distill.partitions, self.spec.train.seed, self.micro_batches, away)

    @property
    def order_hash(self) -> str:
        """Identity of the order."""
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
        """For :func:`radioplat.data.loading.run_data.open_reader`."""
        return str(self.data_dir), dataset_to_json(self.spec.dataset), tuple(map(tuple, self.views))


def prepare(
    spec: Spec,
    task: str,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
    scan: Scanner | None = None,
) -> tuple[Run, RunData]:
    """Check the spec, index the shards, and fix the order and the length of the run; :func:`keep_data` comes next.

    Args:
        folder: the task's results folder.
        progress: called with (shards done, shards in all) while indexing.
        scan: where shards are scanned; default: this process.

    Raises:
        SpecError, DataError: everything that can be found before a worker starts.
    """
    problems = check(spec, task)
    if problems:
        raise SpecError(*problems)
    spec = spec if task == "distill" else without_teaching(spec)
    models = design_models(spec, task)
    split = spec.dataset.train_dataset
    index_dir = Path(spec.dataset.index_dir or Path(spec.results_dir) / "index") / "train"
    limit = spec.dataset.max_pixels
    index = build_index(split, "dataset.train_dataset", index_dir, max_pixels=limit, progress=progress, scan=scan)
    found = read_split(split, spec.dataset.classes, "dataset.train_dataset") if detects(spec) else None
    boxes = None if found is None else BoxTable.join(index, found.pictures)
    data = RunData.create(index, split, spec.dataset.max_pixels, boxes)
    data.order  # noqa: B018  an empty source must be found now
    classes = models.architecture.num_classes
    problems = list(label_problems(spec, models.teachers, models.infos, data, classes))
    if problems:
        raise SpecError(*problems)
    names = class_names(data, classes, models.teachers, models.infos)
    held_out, notes = spec.dataset.val_dataset, list[str]()
    if (classes or found) and (held_out.tar_data_sources or held_out.images_dir):
        # It will be validated: what is wrong with it is told now.
        list_shards(held_out, "dataset.val_dataset")
        if not found:
            numbered, place = index.classes or list(names), index_dir.parent / "val"
            val = build_index(held_out, "dataset.val_dataset", place, max_pixels=limit, classes=numbered, scan=scan)
            labels = held_out_labels(val, classes)
            if labels.problems:
                raise SpecError(*labels.problems)
            notes = labels.notes
    steps = steps_per_epoch(spec, data)
    detector, widths = None, {}
    if found is not None:
        _require_same_classes(spec, found)
        detector = detector_architecture(spec, models.architecture, found.classes)
        if problems := list(told_problems(spec)) if models.teachers else []:
            raise SpecError(*problems)
        widths = detector_widths(spec, detector, models.teachers, models.infos)
    return Run(
        spec=spec,
        task=task,
        folder=folder.absolute(),
        teachers=models.teachers,
        infos=models.infos,
        grids=models.grids,
        architecture=dataclasses.replace(models.architecture, class_names=names),
        views=run_views(spec, models.teachers, models.infos, models.student_stride),
        student_view=student_view(spec),
        steps_per_epoch=steps,
        total_steps=total_steps(spec, steps),
        order_fields=data.order_fields(spec.global_batch_size, spec.dataset.max_pixels),
        annotations=f"objects: {found.size}; faults: {found.faults.with_first()}" if found else "",
        detector=detector,
        binding_widths=widths,
        notes=tuple(notes),
    ), data


def _require_same_classes(spec: Spec, found: DetectionSet) -> None:
    """What will be validated has the classes of ``found``; told now, with whatever else cannot be read there."""
    split = spec.dataset.val_dataset
    if split.images_dir or split.tar_data_sources:
        read_split(split, found.classes, "dataset.val_dataset")


def keep_data(run: Run, data: RunData) -> None:
    """Give the run its own copy of the index, and its ledger what was rejected.

    Only once the run is sure to start: a start that is refused must leave what an earlier one is proven by.
    """
    data.save(run.data_dir)
    write_rejects(run.folder / "ledger", data.index, data.reasons)


def steps_per_epoch(spec: Spec, data: RunData) -> int:
    """The largest ``steps_per_epoch`` of the sources; a folder of images counts what one pass needs."""
    split = spec.dataset.train_dataset
    steps = [source.steps_per_epoch for source in split.tar_data_sources]
    if split.images_dir:
        images = data.kept_of(len(steps))
        steps.append(max(1, -(-images // spec.global_batch_size)))
    return max(steps)


def build_student(run: Run) -> Student | Detector:
    """The student, or the detector on it, as it enters training; equal on every rank, because seeded."""
    if run.detector is not None:
        detector = start_detector(run.spec, run.detector, run.task)
        equip(detector.student, run.spec, run.task)
        return detector
    return equip(start_student(run.spec, run.architecture), run.spec, run.task)


def build_peers(run: Run) -> dict[str, Peer]:
    """The networks that train with the student, by name, as they enter training; equal on every rank."""
    return {t.name: Peer(t, run.spec.train.seed) for t in run.teachers if t.source is Source.peer}
