"""The held-out split during a run, with the weights of a checkpoint: kNN, accuracy, and what a quantized one becomes.

``dataset.knn_validation`` asks for kNN. A student with a classifier is judged by it, and one with quantizers beside the
model that it is converted to, in any case where there are held-out images.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from radioplat.common.cpu_threads import limit_torch_threads
from radioplat.design.run import Run
from radioplat.errors import WeightsError
from radioplat.evaluation.detection.judge import judge_checkpoint
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
from radioplat.evaluation.models.encoder import student_encoder
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, StudentHeads
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.cluster import FeatureCacheConfig
from radioplat.spec.schema.root import Spec

STUDENT, CONVERTED = "student", "converted"
_METRICS = (Knn, Accuracy, Fidelity, FeatureSimilarity)
IMAGES = 512  # of each split that judge a quantized student, where nothing says how many


@dataclass(frozen=True)
class Validation:
    """What a validation found.

    Attributes:
        kpi: by name: ``knn/top1``, ``knn/top5``; of a classifier ``accuracy/top1``, ``accuracy/top5``; of a quantized
            student also ``fidelity/<teacher>/<kind>``, all of these with ``converted/`` before it, and
            ``converted/likeness/<kind>``: the mean cosine of the converted model's features to those of the
            fake-quantized one. Of a detector ``mAP``, ``mAP50``, ``mAP75``, ``voc/mAP``, and by class.
        said: sentences about how it was found.
    """

    kpi: dict[str, float]
    said: list[str] = field(default_factory=list)


def validation_due(run: Run, steps: int) -> bool:
    """Whether a validation follows ``steps`` steps."""
    every = run.spec.train.validation_interval * run.steps_per_epoch
    detects = run.detector is not None and _held_out(run)
    wanted = detects or run.spec.dataset.knn_validation or judges_classifier(run) or judges_converted(run)
    return wanted and (steps % every == 0 or steps == run.total_steps)


def judges_classifier(run: Run) -> bool:
    """Whether the student has a classifier, and there are held-out images."""
    return run.architecture.num_classes > 0 and _held_out(run)


def judges_converted(run: Run) -> bool:
    """Whether the student has quantizers, and there are held-out images."""
    return run.architecture.quantized is not None and _held_out(run)


def _held_out(run: Run) -> bool:
    split = run.spec.dataset.val_dataset
    return bool(split.tar_data_sources or split.images_dir)


def validate(run: Run, checkpoint: Path) -> Validation:
    """Judge ``checkpoint``; rank 0 only, on the CPU. Of the EMA weights in a run that keeps them."""
    if run.detector is not None:
        result, faults = judge_checkpoint(run.spec, checkpoint, run.spec.train.enable_ema)
        return Validation(result.kpi(), [f"annotations of held-out images: {faults}"])
    student = load_student(checkpoint, ema=run.spec.train.enable_ema)
    size = run.spec.dataset.val_img_size or student.architecture.img_size
    models, said = {STUDENT: EvaluatedModel(student_encoder(student), size, StudentHeads(student))}, list[str]()
    with contextlib.ExitStack() as stack:
        teachers: list[ResolvedTeacher] = []
        if judges_converted(run):
            models[CONVERTED], how = stack.enter_context(converted(student, size))
            said.append(f"the converted model is {how}")
            try:
                teachers = _teachers(run, student)
                encoders = stack.enter_context(teacher_encoders(_remembering(run), teachers, "cpu"))
                models |= {t.name: EvaluatedModel(encoders[t.name], t.view_size, None) for t in teachers}
            except WeightsError as error:  # they answer elsewhere, and their files need not be here
                teachers = []
                said.append(f"no fidelity: {error.problems[0]}")
        found = _measured(run, models, teachers)
    return Validation(_kpi(found), said)


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
    """Without the metrics that belong to the task ``evaluate``, on as many images as a validation may take."""
    config = spec.evaluate.without_options()
    if spec.dataset.knn_max_train_batches:
        config = dataclasses.replace(config, max_images=spec.dataset.knn_max_train_batches * spec.dataset.batch_size)
    elif quantized and config.max_images is None:
        config = dataclasses.replace(config, max_images=IMAGES)
    return dataclasses.replace(spec, evaluate=config)


def _teachers(run: Run, student: Student) -> list[ResolvedTeacher]:
    return [t for t in frozen_teachers(run.spec) if t.name in student.head_names] if run.teachers else []


def _remembering(run: Run) -> Spec:
    """The run's spec, with a folder that keeps what teachers say of held-out images, which is always the same."""
    cache = run.spec.feature_cache
    if cache.dir is None:
        cache = FeatureCacheConfig(dir=str(run.folder / "validation_features"))
    return dataclasses.replace(run.spec, feature_cache=cache)


def _kpi(findings: Findings) -> dict[str, float]:
    kpi: dict[str, float] = {}
    for name, before in ((STUDENT, ""), (CONVERTED, f"{CONVERTED}/")):
        for metric in (Knn, Accuracy):
            if (shares := findings.of_metric(metric).get(name)) is not None:
                kpi |= {f"{before}{metric.name}/top1": shares.top1, f"{before}{metric.name}/top5": shares.top5}
        kpi |= {f"{before}fidelity/{k}": v for k, v in Fidelity.of_model(findings.of_metric(Fidelity), name).items()}
    similarity = FeatureSimilarity.of_model(findings.of_metric(FeatureSimilarity), CONVERTED)
    return kpi | {f"{CONVERTED}/likeness/{kind}": value for kind, value in similarity.items()}
