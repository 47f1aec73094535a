"""Training tasks for students: distillation and training on labels, validated by kNN, accuracy and fidelity.

If there are held-out images, a classifier is measured by its accuracy, and a student with quantizers is compared with
the model that it is converted to; ``dataset.knn_validation`` adds kNN.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from radioplat.common.cpu_threads import limit_torch_threads
from radioplat.design.run import Run, has_held_out
from radioplat.design.student import prepare_student
from radioplat.design.tasks.task import Validation
from radioplat.errors import WeightsError
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.images import open_images
from radioplat.evaluation.measure.measure import measure
from radioplat.evaluation.metrics.accuracy import Accuracy
from radioplat.evaluation.metrics.feature_similarity import FeatureSimilarity
from radioplat.evaluation.metrics.fidelity import Fidelity
from radioplat.evaluation.metrics.knn import Knn
from radioplat.evaluation.metrics.metric import Setup
from radioplat.evaluation.models.cached_teachers import teacher_encoders
from radioplat.evaluation.models.converted import converted
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, StudentHeads, student_encoder
from radioplat.models.model_kind import ModelKind
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student
from radioplat.objectives.distill import ClassifyObjective, DistillObjective
from radioplat.objectives.objective import Objective
from radioplat.objectives.peers import Peer
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec

STUDENT, CONVERTED = "student", "converted"
CONVERTED_SIMILARITY = f"{CONVERTED}/likeness"  # prefix of these metrics' names, as in logs of earlier releases
_METRICS = (Knn, Accuracy, Fidelity, FeatureSimilarity)
IMAGES = 512  # images of each split to validate a quantized student, unless the spec sets a number


class Features:
    """Base class of tasks that train a student, by teachers (:class:`Distill`) or by labels (:class:`Classify`).

    Metrics: ``knn/top1``, ``knn/top5``; for a classifier ``accuracy/top1``, ``accuracy/top5``; for a quantized student
    also ``fidelity/<teacher>/<kind>``, all of these for the converted model, with prefix ``converted/``, and the mean
    cosine between its features and those of the fake-quantized model (``CONVERTED_SIMILARITY``).
    """

    model_kind = ModelKind.student

    def validates(self, run: Run) -> bool:
        """Return True if the run has metrics on held-out images."""
        measured = run.architecture.num_classes > 0 or run.architecture.quantized is not None
        return run.spec.dataset.knn_validation or (measured and has_held_out(run.spec))

    def validate(self, run: Run, checkpoint: Path) -> Validation:
        """Measure ``checkpoint`` on the held-out images, with EMA weights if there are any; rank 0 only, on the CPU."""
        student = load_student(checkpoint, ema=run.spec.train.enable_ema)
        size = run.spec.dataset.val_img_size or student.architecture.img_size
        models, notes = {STUDENT: EvaluatedModel(student_encoder(student), size, StudentHeads(student))}, list[str]()
        with contextlib.ExitStack() as stack:
            teachers: list[ResolvedTeacher] = []
            if run.architecture.quantized is not None and has_held_out(run.spec):
                models[CONVERTED], how = stack.enter_context(converted(student, size))
                notes.append(f"the converted model is {how}")
                try:
                    teachers = _teachers(run, student)
                    encoders = stack.enter_context(teacher_encoders(_with_feature_cache(run), teachers, "cpu"))
                    models |= {t.name: EvaluatedModel(encoders[t.name], t.view_size, None) for t in teachers}
                except WeightsError as error:  # teachers may run elsewhere, without their files on this machine
                    teachers = []
                    notes.append(f"no fidelity: {error.problems[0]}")
            findings = _measured(run, models, teachers)
        return Validation(_kpi(findings), notes)


class Distill(Features):
    """Train a student by teachers."""

    def objective(self, run: Run) -> Objective:
        """Build the student with its initial weights, the peers and the losses; equal on every rank."""
        peers = {t.name: Peer(t, run.spec.train.seed) for t in run.teachers if t.source is Source.peer}
        objective = DistillObjective(build_student(run), run.teachers, run.student_view, run.spec.distill, peers)
        return _compiled(objective, run)


class Classify(Features):
    """Train a student by labels alone."""

    def objective(self, run: Run) -> Objective:
        """Build the student with its initial weights and the loss; equal on every rank."""
        return _compiled(ClassifyObjective(build_student(run), run.student_view), run)


def _compiled(objective: Objective, run: Run) -> Objective:
    """Compile the losses as well, if the student's backbone is compiled."""
    if run.spec.train.compile:
        objective.compile_losses()
    return objective


def build_student(run: Run) -> Student:
    """Build the student with its initial weights; seeded, so equal on every rank."""
    return prepare_student(start_student(run.spec, run.architecture), run.spec, run.task)


def _measured(run: Run, models: dict[str, EvaluatedModel], teachers: list[ResolvedTeacher]) -> Findings:
    spec = _lean(run.spec, CONVERTED in models)
    bank, queries, _ = open_images(spec, {model.size for model in models.values()}, run.architecture.class_names)
    if not (spec.dataset.knn_validation or CONVERTED in models):
        bank = dataclasses.replace(bank, rows=bank.rows[:0])  # a classifier needs no neighbours
    kinds = {t.name: sorted(t.wanted & {"summary", "spatial"}) for t in teachers}
    setup = Setup(spec, models, kinds, len(queries.rows), STUDENT if CONVERTED in models else None)
    metrics = [metric(setup) for metric in _METRICS]
    with limit_torch_threads(bank.threads):
        measure(setup, metrics, bank, queries)
        return Findings.of(metrics)


def _lean(spec: Spec, quantized: bool) -> Spec:
    """Return a spec without the optional metrics of task ``evaluate``, with a limited number of images."""
    config = spec.evaluate.without_options()
    if spec.dataset.knn_max_train_batches:
        config = dataclasses.replace(config, max_images=spec.dataset.knn_max_train_batches * spec.dataset.batch_size)
    elif quantized and config.max_images is None:
        config = dataclasses.replace(config, max_images=IMAGES)
    return dataclasses.replace(spec, evaluate=config)


def _teachers(run: Run, student: Student) -> list[ResolvedTeacher]:
    return [t for t in frozen_teachers(run.spec) if t.name in student.head_names] if run.teachers else []


def _with_feature_cache(run: Run) -> Spec:
    """Return the run's spec with a feature cache, since teachers' features of held-out images never change."""
    folder = run.feature_cache or str(run.folder / "validation_features")
    cache = dataclasses.replace(run.spec.feature_cache, enabled=True, dir=folder)
    return dataclasses.replace(run.spec, feature_cache=cache)


def _kpi(findings: Findings) -> dict[str, float]:
    kpi: dict[str, float] = {}
    for name, before in ((STUDENT, ""), (CONVERTED, f"{CONVERTED}/")):
        for metric in (Knn, Accuracy):
            if (shares := findings.of_metric(metric).get(name)) is not None:
                kpi |= {f"{before}{metric.name}/top1": shares.top1, f"{before}{metric.name}/top5": shares.top5}
        kpi |= {f"{before}fidelity/{k}": v for k, v in Fidelity.of_model(findings.of_metric(Fidelity), name).items()}
    similarity = FeatureSimilarity.of_model(findings.of_metric(FeatureSimilarity), CONVERTED)
    return kpi | {f"{CONVERTED_SIMILARITY}/{kind}": value for kind, value in similarity.items()}
