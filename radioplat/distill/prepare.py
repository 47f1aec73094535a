"""Everything a run decides before a worker starts: the student's structure, the views, the data, the length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from radioplat.data.grains import Grains
from radioplat.data.index import build_index
from radioplat.data.ledger import write_rejects
from radioplat.data.run_data import RunData, dataset_to_json, order_hash
from radioplat.data.scan import Scanner
from radioplat.data.views import ViewSpec
from radioplat.distill.bindings import with_projections
from radioplat.distill.labels import label_problems
from radioplat.distill.parameter_groups import pattern_problems
from radioplat.distill.partitions import Partitions
from radioplat.distill.run_views import mosaic_problems, run_views, where_sized
from radioplat.distill.stages import away_by_step, total_steps
from radioplat.distill.student_design import build_on_meta, equip, student_problems
from radioplat.distill.target_norm import FORMS
from radioplat.errors import Problem, SpecError
from radioplat.export.weights import format_problems
from radioplat.models.heads import HeadArchitecture
from radioplat.models.probe import probe
from radioplat.models.start import known_architecture, start_student
from radioplat.models.student import Student, StudentArchitecture
from radioplat.spec.check import check
from radioplat.spec.resolve import ResolvedTeacher, resolve_teachers, student_view
from radioplat.spec.root import Spec
from radioplat.spec.sizes import without_teaching
from radioplat.teachers.teacher import TeacherInfo, describe


@dataclass(frozen=True)
class Run:
    """A run, ready to start; picklable, and small enough to send to every worker.

    Attributes:
        task: ``distill`` or ``train``.
        folder: the task's results folder, absolute.
        grids: the loss grid of each teacher, rows and columns.
        student_view: name of the view the student sees.
        order_fields: what the order was made from.
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

    @property
    def micro_batches(self) -> int:
        """Real micro-batches of one optimizer step."""
        return self.spec.global_batch_size // self.spec.dataset.batch_size

    def grains(self, world_size: int) -> Grains:
        """How steps are cut for ``world_size`` ranks."""
        return Grains(self.micro_batches, world_size)

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
        """For :func:`radioplat.data.run_data.open_reader`."""
        return str(self.data_dir), dataset_to_json(self.spec.dataset), tuple(map(tuple, self.views))


@dataclass(frozen=True)
class Models:
    """The structure of the models of a spec; no weights, no data."""

    teachers: list[ResolvedTeacher]
    infos: dict[str, TeacherInfo]
    grids: dict[str, tuple[int, int]]
    architecture: StudentArchitecture
    student_stride: int
    student_parameters: int


def target_widths(infos: dict[str, TeacherInfo]) -> dict[tuple[str, str], int]:
    """See :attr:`Run.target_widths`."""
    kinds = ("summary", "spatial")
    return {(name, kind): getattr(info, f"{kind}_dim") for name, info in infos.items() for kind in kinds}


def design_models(spec: Spec, task: str) -> Models:
    """Work out widths, grids and heads.

    Raises:
        SpecError: one problem for each backbone that is unknown, refuses its arguments, or does not divide its input.
    """
    problems = []
    teachers = resolve_teachers(spec) if task == "distill" else []
    infos: dict[str, TeacherInfo] = {}
    for teacher in teachers:
        try:
            infos[teacher.name] = _describe(teacher, where_sized(spec))
        except SpecError as error:
            problems += error.problems
    try:
        architecture = _student_architecture(spec, task, [t for t in teachers if t.name in infos], infos)
        architecture = with_projections(architecture, [t for t in teachers if t.name in infos], infos)
        student = build_on_meta(architecture)
        problems += pattern_problems(student, spec.train.optim)
        stride = student.stride
        if task == "distill" and "export" in spec.distill.then:
            problems += format_problems(student, spec.export.format, spec.export.adaptors)
        sizes = {spec.dataset.img_size: "dataset.img_size", **where_sized(spec)}
        for size, where in sizes.items():
            problems += _divides(size, student, where)
        problems += [p for t in teachers if t.name in infos for p in mosaic_problems(spec, t, infos[t.name])]
        problems += student_problems(spec, task, student, sizes)
        if not problems:
            maps = [probe(student.backbone, s, frozenset({"summary", "spatial"}), w).spatial for s, w in sizes.items()]
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(*problems)
    own = max(tuple(found.shape[1:3]) for found in maps)
    # Of a picture of several images all is sent; what is said of each is cut out of it.
    whole = {teacher.name for teacher in teachers if teacher.mosaic > 1}
    finer = {head.name: head.upsample for head in architecture.heads}
    grids = {
        name: info.grid
        if name in whole
        else tuple(min(finer[name] * mine, its) for mine, its in zip(own, info.grid, strict=True))
        for name, info in infos.items()
    }
    parameters = sum(p.numel() for p in student.parameters())
    return Models(teachers, infos, grids, architecture, stride, parameters)


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
    data = RunData.create(index, split, spec.dataset.max_pixels)
    data.order  # noqa: B018  an empty source must be found now
    problems = list(label_problems(spec, models.teachers, models.infos, data))
    if problems:
        raise SpecError(*problems)
    steps = steps_per_epoch(spec, data)
    return Run(
        spec=spec,
        task=task,
        folder=folder.absolute(),
        teachers=models.teachers,
        infos=models.infos,
        grids=models.grids,
        architecture=models.architecture,
        views=run_views(spec, models.teachers, models.infos, models.student_stride),
        student_view=student_view(spec),
        steps_per_epoch=steps,
        total_steps=total_steps(spec, steps),
        order_fields=data.order_fields(spec.global_batch_size, spec.dataset.max_pixels),
    ), data


def keep_data(run: Run, data: RunData) -> None:
    """Give the run its own copy of the index, and its ledger what was rejected.

    Only once the run is sure to start: a start that is refused must leave what an earlier one is proven by.
    """
    data.save(run.data_dir)
    write_rejects(run.folder / "ledger", data.index, data.reasons)


def _describe(teacher: ResolvedTeacher, where: dict[int, str]) -> TeacherInfo:
    """Of a teacher whose sizes change, the grid is that of the largest; ``where`` names the field of each size."""
    info, grids = describe(teacher), []
    for size, _ in teacher.sizes:
        try:
            grids.append(describe(dataclasses.replace(teacher, input_size=size)).grid)
        except SpecError as error:
            problems = (dataclasses.replace(p, message=f"teacher {teacher.name}: {p.message}") for p in error.problems)
            raise SpecError(*(dataclasses.replace(p, where=where[size]) for p in problems)) from None
    return dataclasses.replace(info, grid=max([info.grid, *grids]))


def steps_per_epoch(spec: Spec, data: RunData) -> int:
    """The largest ``steps_per_epoch`` of the sources; a folder of images counts what one pass needs."""
    split = spec.dataset.train_dataset
    steps = [source.steps_per_epoch for source in split.tar_data_sources]
    if split.images_dir:
        images = data.kept_of(len(steps))
        steps.append(max(1, -(-images // spec.global_batch_size)))
    return max(steps)


def build_student(run: Run) -> Student:
    """The student as it enters training; equal on every rank, because seeded."""
    return equip(start_student(run.spec, run.architecture), run.spec, run.task)


def _student_architecture(
    spec: Spec, task: str, teachers: list[ResolvedTeacher], infos: dict[str, TeacherInfo]
) -> StudentArchitecture:
    backbone, augmentation = spec.model.backbone, spec.dataset.augmentation
    heads = tuple(_head(t, infos[t.name], slot) for slot, t in enumerate(teachers))
    normal = dict(
        mean=tuple(backbone.student_norm_mean or augmentation.mean),
        std=tuple(backbone.student_norm_std or augmentation.std),
        drop_path=backbone.drop_path,
        spectral_reparam=backbone.spectral_reparam,
    )
    num_classes = spec.dataset.num_classes if task == "train" else 0
    if backbone.type in (None, "radio"):
        known = known_architecture(spec)
        if known is None:
            raise SpecError(
                "a value is required here",
                where="model.backbone.type",
                hint="Any timm model name or TAO's; pretrained weights of radioplat or RADIO know their own.",
            )
        tokens = max(known.num_class_tokens, len(teachers))
        return dataclasses.replace(
            known,
            heads=heads,
            num_classes=num_classes,
            img_size=spec.dataset.img_size,
            num_class_tokens=tokens,
            kwargs={**known.kwargs, **backbone.kwargs},
            cpe_max_size=backbone.cpe_max_size or known.cpe_max_size,
            num_registers=known.num_registers if backbone.cpe_num_registers is None else backbone.cpe_num_registers,
            register_multiple=backbone.register_multiple or known.register_multiple,
            **normal,
        )
    return StudentArchitecture(
        type=backbone.type,
        kwargs=backbone.kwargs,
        num_class_tokens=max(1, len(teachers)),
        cpe_max_size=backbone.cpe_max_size,
        num_registers=backbone.cpe_num_registers,
        register_multiple=backbone.register_multiple,
        img_size=spec.dataset.img_size,
        num_classes=num_classes,
        heads=heads,
        **normal,
    )


def _head(teacher: ResolvedTeacher, info: TeacherInfo, slot: int) -> HeadArchitecture:
    wanted = teacher.wanted
    return HeadArchitecture(
        name=teacher.name,
        summary_dim=info.summary_dim if "summary" in wanted else None,
        spatial_dim=info.spatial_dim if "spatial" in wanted else None,
        logits_dim=info.logits_dim if "logits" in wanted else None,
        token_slot=slot if teacher.token_slot is None else teacher.token_slot,
        hidden=teacher.hidden,
        num_inner=teacher.num_inner,
        spatial_version=teacher.spatial_version,
        spatial_num_inner=teacher.spatial_num_inner,
        upsample=teacher.head_upsample,
        summary_norm=FORMS[teacher.summary_norm],
        spatial_norm=FORMS[teacher.spatial_norm],
    )


def _divides(size: int, student: Student, where: str) -> Iterator[Problem]:
    stride = student.stride
    if student.backbone.needs_multiple and size % stride:
        nearest = max(1, round(size / stride)) * stride
        yield Problem(f"{size} is not a multiple of the student's patch {stride}", where, f"Take {nearest}.")
