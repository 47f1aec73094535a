"""The task ``evaluate`` for a student, compared with its teachers and its untrained version, or for several models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radioplat.common.cpu_threads import limit_torch_threads, torch_callers
from radioplat.data.loading.sample_images import evaluation_images
from radioplat.data.loading.split_images import Images
from radioplat.errors import RadioplatError, SpecError
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.images import open_images
from radioplat.evaluation.measure.measure import measure
from radioplat.evaluation.measure.needs import missing, not_requested
from radioplat.evaluation.measure.neighbours import Neighbours, pixels_of, spread_over_classes
from radioplat.evaluation.measure.processes import Processes
from radioplat.evaluation.measure.registry import METRICS
from radioplat.evaluation.measure.sample_maps import SampleMaps, Shown
from radioplat.evaluation.metrics.accuracy import Accuracy
from radioplat.evaluation.metrics.fidelity import Fidelity, FidelityResult
from radioplat.evaluation.metrics.knn import Knn, KnnResult
from radioplat.evaluation.metrics.metric import Inputs, Setup
from radioplat.evaluation.metrics.shared_index import SharedIndex
from radioplat.evaluation.models.held_out_labels import held_out_labels
from radioplat.evaluation.models.open_models import TRAINED, OpenModels, open_evaluated, teachers_of, with_teachers
from radioplat.evaluation.pictures.neighbours_panel import neighbours_panel
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.weights.model_format import has_average
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluation import finite
from radioplat.tasks.evaluate.side_by_side import (
    ModelRow,
    model_notes,
    models_tables,
    narrow,
    record_evaluations,
    side_by_side,
)
from radioplat.tasks.evaluate.summary import write_summary
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.table import Table
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.task_record import log_task_to_wandb

_NEIGHBOURS = (
    "Held-out images, and the three training images that each model puts nearest to them (cosine of summaries). "
    "Green: of the same class; red and struck through: of another."
)


@dataclass(frozen=True)
class EvaluateResult:
    """Result of the evaluation of a student, or of several.

    Attributes:
        checkpoint: the student that was evaluated; the first of ``evaluate.models``.
        folder: the task's results folder.
        report: path of ``report.html``.
        findings: results of all metrics. Models are ``student``, ``student at 448`` (``evaluate.resolutions``),
            ``untrained student`` and each teacher's name; or the names of ``evaluate.models`` and the teachers'.
        models: a row for each of ``evaluate.models``, in its order.
    """

    checkpoint: Path
    folder: Path
    report: Path
    findings: Findings = field(default_factory=Findings)
    models: list[ModelRow] = field(default_factory=list)

    @property
    def knn(self) -> dict[str, KnnResult]:
        """Results of kNN by model; empty without labels."""
        return self.findings.of_metric(Knn)

    @property
    def fidelity(self) -> dict[str, dict[str, dict[str, FidelityResult]]]:
        """Fidelity by student, teacher and kind (``summary``, ``spatial``)."""
        return self.findings.of_metric(Fidelity)

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy of the student's own classifier; None without one, and for several models."""
        accuracy = self.findings.of_metric(Accuracy).get(TRAINED)
        return accuracy and accuracy.top1

    @property
    def metrics(self) -> dict[str, float]:
        """Finite values by the names that gates and sweeps compare: ``knn``, ``fidelity``, ``mAP``, ..."""
        return finite(self.objectives())

    def tables(self) -> list[Table]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        if not self.models:
            return self.findings.tables()
        in_rows = [metric for metric in METRICS if metric.row and metric is not SharedIndex]  # which has no column
        return [*map(narrow, models_tables(self.models)), *self.findings.tables(without=in_rows)]

    def notes(self) -> list[str]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return [*model_notes(self.models), *self.findings.absent]

    def figures(self) -> dict[str, float]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        rows = {f"models/{row.name}/{name}": value for row in self.models for name, value in row.figures().items()}
        return self.findings.figures() | rows

    def objectives(self) -> dict[str, float | None]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        students = [row.name for row in self.models if row.params is not None]
        return {**self.findings.objectives(students[-1] if students else TRAINED)}

    def facts(self) -> dict[str, Any]:
        """See :class:`radioplat.tasks.evaluate.evaluation.Evaluation`."""
        return {"models": [row.as_json() for row in self.models]}


def evaluate_students(
    spec: Spec,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    headline: Callable[[list[ModelRow]], str] | None = None,
    shown: Shown | None = None,
) -> EvaluateResult:
    """Evaluate the student of ``checkpoint``, or ``evaluate.models`` if it is None.

    Args:
        progress: called with (batches done, number of batches).
        headline: returns the sentence that opens the page of ``evaluate.models``; default: the kNN accuracy of each.
        shown: images and models of the picture of maps; default: ``evaluate.pictures`` held-out images, all models.

    Raises:
        SpecError: a metric cannot be measured, or a model cannot be opened.
        RadioplatError: a metric's result cannot be computed.
    """
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)
    action = partial(_evaluate, spec, checkpoint, folder, progress, headline, shown)
    return log_task(folder, "evaluate", to_yaml(spec), action, EvaluateResult.figures)


def _evaluate(
    spec: Spec,
    checkpoint: Path | None,
    folder: TaskFolder,
    progress: Callable[[int, int], None] | None,
    headline: Callable[[list[ModelRow]], str] | None,
    shown: Shown | None,
) -> EvaluateResult:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = open_inputs(spec, checkpoint, device)
    opened, teachers, classes = inputs.opened, inputs.teachers, inputs.classes
    bank, queries, architectures = inputs.bank, inputs.queries, inputs.architectures
    kinds = {t.name: sorted(t.wanted & {"summary", "spatial"}) for t in teachers}
    reference = next(iter(opened.models)) if opened.listed else None
    with with_teachers(spec, opened, device) as models, _processes(spec, checkpoint) as processes:
        size, threads = bank.batch_size, bank.threads
        setup = Setup(spec, models, kinds, len(queries.rows), reference, classes, device, size, threads)
        setup.search = processes.search if processes else None
        metrics = [metric(setup) for metric in METRICS if metric.requested(spec.evaluate)]
        at_once = torch_callers(len(models)) if device == "cpu" else 1
        with limit_torch_threads(threads, at_once):
            measure(setup, metrics, bank, queries, progress, at_once, processes)
        with limit_torch_threads(threads):
            findings = Findings.of(metrics)
            if spec.evaluate.pictures:
                _encode_samples(findings, setup, queries, shown)
                _draw_neighbours(findings, setup, bank, queries, _shown(setup, opened))
    if num_classes := max((each.num_classes for each in architectures), default=0):
        problems, notes = held_out_labels(queries.reader.index, num_classes)
        findings.absent += [*map(str, problems), *notes]
    findings.absent += not_requested(spec)
    rows = side_by_side(opened.listed, findings)
    findings.absent += record_evaluations(opened.listed, rows)
    opening = headline(rows) if headline else ""
    report, pictures = write_summary(spec, folder, checkpoint, findings, classes, rows, opening, shown)
    result = EvaluateResult(checkpoint or opened.listed[0].path, folder.path, report, findings, rows)
    write_atomic(folder.path / "results.json", json.dumps(_as_json(result, spec.evaluate.use_ema), indent=1))
    named = [(f"pca/{i}" if i else "pca", png) for i, (_, png) in enumerate(pictures)]
    # The figures and pictures of a student belong to the run that trained it.
    figures = result.figures()
    log_task_to_wandb(spec, folder.path, "evaluate", figures=figures, pictures=named, joins=result.checkpoint.parent)
    return result


@dataclass(frozen=True)
class EvaluationInputs:
    """The models and images of an evaluation, opened and checked.

    Attributes:
        teachers: those that one of the models has a head for; their weights are not read yet.
        bank, queries: training and held-out images.
        classes: their names.
    """

    opened: OpenModels
    teachers: list[ResolvedTeacher]
    bank: Images
    queries: Images
    classes: list[str]

    @property
    def architectures(self) -> list[StudentArchitecture]:
        """Of the students among the models."""
        return list(self.opened.architectures.values())


def open_inputs(spec: Spec, checkpoint: Path | None, device: str) -> EvaluationInputs:
    """Open the models and the images, and check that every metric can be measured.

    Raises:
        RadioplatError: a model or a split cannot be opened, or a metric lacks something.
    """
    opened = open_evaluated(spec, checkpoint, device)
    teachers = teachers_of(spec, opened)
    sizes = {model.size for model in opened.models.values()} | {t.view_size for t in teachers}
    architectures = list(opened.architectures.values())
    named = next((each.class_names for each in architectures if each.class_names), ())
    bank, queries, classes = open_images(spec, sizes, named)
    models = opened.models if opened.listed else {}
    inputs = Inputs(next(iter(architectures), None), bank.reader.index, queries.reader.index, models)
    if problems := missing(spec, inputs):
        raise SpecError(*problems)
    return EvaluationInputs(opened, teachers, bank, queries, classes)


def _encode_samples(findings: Findings, setup: Setup, queries: Images, shown: Shown | None) -> None:
    """Add maps for pictures; or a line that they are not drawn, for the figures are measured by now."""
    chosen = spread_over_classes(setup.held_out.labels.numpy(), setup.spec.evaluate.pictures)
    ids = setup.held_out.ids.numpy()[chosen]

    def held_out(size: int) -> np.ndarray:
        dataset, index = setup.spec.dataset, queries.reader.index
        return pixels_of(evaluation_images(dataset, dataset.val_dataset, index, {size}, len(ids), None), ids, size)

    try:
        if shown is not None:
            findings.sample = SampleMaps.of(setup, [name for name in shown.models if name in setup.models], shown.views)
        elif len(ids):
            findings.sample = SampleMaps.of(setup, setup.models, held_out)
    except (RadioplatError, OSError) as error:
        findings.absent.append(f"maps of features: not drawn, {error}")


def _draw_neighbours(findings: Findings, setup: Setup, bank: Images, queries: Images, names: list[str]) -> None:
    """Add the picture of neighbours; or a line that it is not drawn, for the figures are measured by now."""
    try:
        near = Neighbours.find(setup, bank, queries, names)
    except (RadioplatError, OSError) as error:
        findings.absent.append(f"nearest training images: not drawn, {error}")
        return
    if near is not None:
        findings.pictures.insert(0, (_NEIGHBOURS, neighbours_panel(near.images, near.nearest, near.same)))


def _shown(setup: Setup, opened: OpenModels) -> list[str]:
    """Return the models of the pictures, from left to right: as listed, or teachers, untrained and trained student."""
    names = list(setup.at_usual_size)
    return [name for name in names if name in opened.models] if opened.listed else names[::-1]


def _processes(spec: Spec, checkpoint: Path | None) -> contextlib.AbstractContextManager[Processes | None]:
    """Start further processes that encode images; None for a single process."""
    count = spec.evaluate.num_gpus
    return contextlib.closing(Processes(spec, checkpoint, count)) if count > 1 else contextlib.nullcontext()


def _as_json(result: EvaluateResult, use_ema: bool | None) -> dict[str, Any]:
    """Return the content of ``results.json``."""
    evaluated = result.facts()
    if not result.models:
        averaged = has_average(result.checkpoint) and use_ema is not False
        evaluated = {"checkpoint": result.checkpoint.name, "ema": averaged}
    return evaluated | result.findings.as_json()
