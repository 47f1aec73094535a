"""Training tasks for students: distillation and training on labels, validated by kNN, accuracy and fidelity.

If there are held-out images, a classifier is measured by its accuracy, and a student with quantizers is compared with
the model that it is converted to; ``dataset.knn_validation`` adds kNN.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from radioplat.common.collectives import mark_agreed
from radioplat.common.cpu_threads import limit_torch_threads
from radioplat.common.out_of_memory import names_memory
from radioplat.common.ranks import Ranks
from radioplat.design.run import Run, has_held_out
from radioplat.design.student import prepare_student
from radioplat.design.tasks.task import Validation
from radioplat.errors import TrainingError, WeightsError
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.measure.images import open_images_together
from radioplat.evaluation.measure.measure import measure_together
from radioplat.evaluation.metrics.accuracy import Accuracy
from radioplat.evaluation.metrics.feature_similarity import FeatureSimilarity
from radioplat.evaluation.metrics.fidelity import Fidelity
from radioplat.evaluation.metrics.knn import Knn
from radioplat.evaluation.metrics.metric import Setup, SharedMetric
from radioplat.evaluation.metrics.shared_knn import SharedKnn
from radioplat.evaluation.models.cached_teachers import teacher_encoders
from radioplat.evaluation.models.converted import converted
from radioplat.evaluation.models.evaluated_model import (
    Encoder,
    EvaluatedModel,
    StudentHeads,
    in_precision,
    student_encoder,
    validation_dtype,
)
from radioplat.models.model_kind import ModelKind
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import STUDENT as STUDENT_FORMAT
from radioplat.models.student.fold_target_norm import fold_heads
from radioplat.models.student.student import Student
from radioplat.models.weights.load_together import load_together
from radioplat.objectives.distill import ClassifyObjective, DistillObjective
from radioplat.objectives.objective import Objective
from radioplat.objectives.peers import Peer
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec

STUDENT, CONVERTED = "student", "converted"
CONVERTED_SIMILARITY = f"{CONVERTED}/likeness"  # prefix of these metrics' names, as in logs of earlier releases
_METRICS: tuple[type[SharedMetric], ...] = (SharedKnn, Accuracy, Fidelity, FeatureSimilarity)
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
        return is_measured(run.spec, run.architecture)

    def validate(self, run: Run, checkpoint: Path, ranks: Ranks) -> Validation:
        """Measure ``checkpoint`` on the held-out images, with EMA weights if there are any; see :class:`Task`.

        A student with quantizers, whose scales are fp32, is measured in fp32. onnxruntime runs the converted model on
        each rank's CPU.
        """
        student = load_together(ranks, STUDENT_FORMAT, checkpoint, ema=run.spec.train.enable_ema)
        size = run.spec.dataset.val_img_size or student.architecture.img_size
        notes = list[str]()
        with contextlib.ExitStack() as stack:
            models, teachers = dict[str, EvaluatedModel](), list[ResolvedTeacher]()
            if run.architecture.quantized is None:
                in_precision(student, validation_dtype(run.spec.train, ranks.device))
            elif has_held_out(run.spec):
                fold_heads(student)
                models[CONVERTED], how = _converted(student, size, ranks, stack)
                notes.append(f"the converted model is {how}")
                teachers, missing = _teachers(run, student, ranks, models, stack)
                notes += missing
            # A rank whose device is full would leave the others waiting for it.
            ranks.alike(lambda: _moved(student, ranks))
            models = {STUDENT: EvaluatedModel(student_encoder(student), size, StudentHeads(student)), **models}
            findings = _measured(run, models, teachers, ranks)
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


def is_measured(spec: Spec, architecture: StudentArchitecture) -> bool:
    """Return True if a run that trains a student of ``architecture`` validates it."""
    measured = architecture.num_classes > 0 or architecture.quantized is not None
    return spec.dataset.knn_validation or (measured and has_held_out(spec))


def build_student(run: Run) -> Student:
    """Build the student with its initial weights; seeded, so equal on every rank."""
    return prepare_student(start_student(run.spec, run.architecture), run.spec, run.task)


def _moved(student: Student, ranks: Ranks) -> None:
    """Move ``student`` to this rank's device.

    Raises:
        TrainingError: there is no memory for it.
    """
    with names_memory("dataset.val_batch_size"):
        student.to(ranks.device)


def _converted(student: Student, size: int, ranks: Ranks, stack: contextlib.ExitStack) -> tuple[EvaluatedModel, str]:
    """Convert ``student`` on every rank; return the model and a description of the conversion.

    Raises:
        RadioplatError: on every rank, if one cannot convert it, or not as the others.
    """

    def convert() -> tuple[EvaluatedModel, str]:
        """Convert it here."""
        with names_memory("dataset.val_batch_size"):
            return stack.enter_context(converted(student, size, ranks.device))

    model, how = ranks.alike(convert)
    kinds = dict.fromkeys(ranks.objects(how))
    if len(kinds) > 1:
        with mark_agreed():
            raise TrainingError(f"the workers convert the student in different ways: {'; '.join(kinds)}")
    return model, how


def _teachers(
    run: Run, student: Student, ranks: Ranks, models: dict[str, EvaluatedModel], stack: contextlib.ExitStack
) -> tuple[list[ResolvedTeacher], list[str]]:
    """Add the teachers that ``student`` has a head for to ``models``; return them and notes.

    If one worker cannot read their weights, there are none: teachers may run elsewhere, without their files here.
    """
    teachers = [t for t in frozen_teachers(run.spec) if t.name in student.head_names] if run.teachers else []

    def open_teachers() -> tuple[dict[str, Encoder], str]:
        """Return the encoders, or the reason why there are none."""
        try:
            with names_memory("dataset.val_batch_size"):
                return stack.enter_context(teacher_encoders(_with_feature_cache(run), teachers, str(ranks.device))), ""
        except WeightsError as error:
            return {}, str(error.problems[0])

    encoders, reason = ranks.alike(open_teachers)
    if reasons := [each for each in ranks.objects(reason) if each]:
        return [], [f"no fidelity: {reasons[0]}"]
    models |= {t.name: EvaluatedModel(encoders[t.name], t.view_size, None) for t in teachers}
    return teachers, []


def _measured(run: Run, models: dict[str, EvaluatedModel], teachers: list[ResolvedTeacher], ranks: Ranks) -> Findings:
    spec = _lean(run.spec, CONVERTED in models)
    bank, queries = open_images_together(
        ranks, spec, {model.size for model in models.values()}, run.architecture.class_names
    )
    if not (spec.dataset.knn_validation or CONVERTED in models):
        bank = dataclasses.replace(bank, rows=bank.rows[:0])  # a classifier needs no neighbours
    kinds = {t.name: sorted(t.wanted & {"summary", "spatial"}) for t in teachers}
    reference = STUDENT if CONVERTED in models else None
    setup = Setup(spec, models, kinds, len(queries.rows), reference, device=str(ranks.device))
    metrics = [metric(setup) for metric in _METRICS]
    with limit_torch_threads(bank.threads):
        return measure_together(ranks, setup, metrics, bank, queries)


def _lean(spec: Spec, quantized: bool) -> Spec:
    """Return a spec without the optional metrics of task ``evaluate``, with a limited number of images."""
    config = spec.evaluate.without_options()
    if spec.dataset.knn_max_train_batches:
        config = dataclasses.replace(config, max_images=spec.dataset.knn_max_train_batches * spec.dataset.batch_size)
    elif quantized and config.max_images is None:
        config = dataclasses.replace(config, max_images=IMAGES)
    return dataclasses.replace(spec, evaluate=config)


def _with_feature_cache(run: Run) -> Spec:
    """Return the run's spec with a feature cache, since teachers' features of held-out images never change."""
    folder = run.feature_cache or str((run.home or run.folder) / "validation_features")
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
