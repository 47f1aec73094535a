"""Results of the steps before a start: problems, warnings, facts, and the parts of the run."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from radioplat.cluster.resources import Resources
from radioplat.data.detection.detection_set import DetectionSet
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.run_data import RunData
from radioplat.data.scan.scan import Scanner
from radioplat.design.automatic import Decision
from radioplat.design.models import Models
from radioplat.design.run import Run
from radioplat.design.stages import total_steps
from radioplat.design.views import run_views
from radioplat.design.workload.work import Work
from radioplat.errors import Problem, RadioplatError, SpecError
from radioplat.launch.preflight.beginning import Beginning, beginning
from radioplat.models.detectors.base import DetectorArchitecture
from radioplat.spec.resolved.teacher import student_view
from radioplat.spec.schema.root import Spec
from radioplat.training.checkpoints.checkpoint import Survey

AUTOMATIC = "decided for this run"  # title of the fact that lists decisions


@dataclass(frozen=True)
class WorkerMemory:
    """Bytes on the GPU of a worker.

    Attributes:
        trained: weights, gradients and optimizer state.
        teachers: weights of inline teachers.
        waiting: micro-batches.
        activations: of one micro-batch.
        has: memory of the smallest GPU; 0 if it is unknown.
    """

    trained: int
    teachers: int
    waiting: int
    activations: int
    has: int = 0


class Level(enum.IntEnum):
    """Callers of the preflight; each runs the steps of the levels up to its own."""

    data = 1  # tasks that read the run's samples or models
    start = 2  # a start of the run
    plan = 3  # `plan`, which also prints facts and checks other tasks


@dataclass
class Preflight:
    """State of the steps from a spec to a :class:`~radioplat.design.run.Run`.

    Attributes:
        task: ``distill`` or ``train``.
        folder: the task's results folder.
        level: the steps to run.
        scan: function that scans shards; default: this process scans them.
        problems: reasons to refuse the run.
        warnings: valid settings that are probably mistakes.
        facts: sentences about the run, by title.
        start_notes: sentences about the initial weights of the student.
        held_out_notes: sentences about held-out images that validations leave out.
        ended: True if no further step is run.
        class_names: of the student's classifier.
        boxes: annotations of the training images of a detector.
        binding_widths: see :class:`~radioplat.design.run.Run`.
        heads_to_fit, head_fit_steps, feature_cache: see :class:`~radioplat.design.run.Run`.
        resources: CPUs and GPUs of this machine or of the cluster.
        on_ray: whether the run uses a cluster.
        checkpoints: in ``folder``.
        work: operations of an image, if they were counted.
        worker_memory: that of a worker's GPU, if there are GPUs.
    """

    spec: Spec
    task: str
    folder: Path
    level: Level = Level.start
    scan: Scanner | None = None
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    start_notes: list[str] = field(default_factory=list)
    held_out_notes: list[str] = field(default_factory=list)
    ended: bool = False
    models: Models | None = None
    boxes: DetectionSet | None = None
    data: RunData | None = None
    class_names: tuple[str, ...] = ()
    steps_per_epoch: int = 0
    held_out: ShardIndex | None = None
    detector: DetectorArchitecture | None = None
    binding_widths: dict[str, tuple[int, int]] = field(default_factory=dict)
    resources: Resources | None = None
    heads_to_fit: tuple[tuple[str, str], ...] = ()
    head_fit_steps: int = 0
    feature_cache: str | None = None
    on_ray: bool = False
    checkpoints: Survey | None = None
    work: Work | None = None
    worker_memory: WorkerMemory | None = None
    _errors: list[RadioplatError] = field(default_factory=list)

    @functools.cached_property
    def beginning(self) -> Beginning:
        """The traces of earlier starts of the run; looked for once."""
        return beginning(self.spec, self.task, self.folder)

    @property
    def index_dir(self) -> Path:
        """The folder of the indexes of all splits."""
        return Path(self.spec.dataset.index_dir or Path(self.spec.results_dir) / "index")

    def take(self, step: Callable[[Preflight], Iterable[Problem] | None]) -> None:
        """Run a step, and collect the problems that it yields or raises."""
        try:
            for problem in step(self) or ():
                self.problems.append(problem)
        except RadioplatError as error:
            self._errors.append(error)
            self.problems += error.problems

    def decide(self, *decisions: Decision) -> None:
        """Add settings that the spec leaves open to the fact :data:`AUTOMATIC`."""
        if decisions:
            before = [self.facts[AUTOMATIC]] if AUTOMATIC in self.facts else []
            self.facts[AUTOMATIC] = "; ".join([*before, *map(str, decisions)])

    def refuse(self) -> None:
        """Raise every problem at once.

        Raises:
            RadioplatError: the error of a step if it is the only one, else a SpecError with all problems.
        """
        problems = list(dict.fromkeys(self.problems))
        if len(self._errors) == 1 and set(problems) == set(self._errors[0].problems):
            raise self._errors[0]
        if problems:
            raise SpecError(*problems)

    def run(self) -> Run:
        """Return the run; requires that no step has found a problem."""
        assert self.models is not None and self.data is not None
        spec, models, data = self.spec, self.models, self.data
        return Run(
            spec=spec,
            task=self.task,
            folder=self.folder.absolute(),
            teachers=models.teachers,
            infos=models.infos,
            grids=models.grids,
            architecture=dataclasses.replace(models.architecture, class_names=self.class_names),
            views=run_views(spec, models.teachers, models.infos, models.student_stride),
            student_view=student_view(spec),
            steps_per_epoch=self.steps_per_epoch,
            total_steps=total_steps(spec, self.steps_per_epoch),
            order_fields=data.order_fields(spec.global_batch_size, spec.dataset.max_pixels),
            annotations=f"objects: {self.boxes.size}; faults: {self.boxes.faults.with_first()}" if self.boxes else "",
            detector=self.detector,
            binding_widths=self.binding_widths,
            start_notes=tuple(self.start_notes),
            notes=tuple(self.held_out_notes),
            heads_to_fit=self.heads_to_fit,
            head_fit_steps=self.head_fit_steps,
            feature_cache=self.feature_cache,
        )
