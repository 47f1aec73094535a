"""The models of an evaluation, in any process: students and teachers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from radioplat.evaluation.models.cached_teachers import teacher_encoders
from radioplat.evaluation.models.checkpoints import ListedModel, open_models
from radioplat.evaluation.models.evaluated_model import EvaluatedModel, StudentHeads, student_encoder
from radioplat.evaluation.models.view_sizes import student_size
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import load_student
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.root import Spec

TRAINED, UNTRAINED = "student", "untrained student"


@dataclass(frozen=True)
class OpenModels:
    """Evaluated models, without the teachers.

    Attributes:
        models: that run on this machine, by name: the trained student, the same at other resolutions, with fewer tokens
            and untrained; or those of ``evaluate.models``.
        architectures: of the students among them, by their field.
        listed: all of ``evaluate.models``, with those that cannot run here; empty for a single checkpoint.
    """

    models: Mapping[str, EvaluatedModel]
    architectures: Mapping[str, StudentArchitecture]
    listed: list[ListedModel] = field(default_factory=list)


def open_evaluated(spec: Spec, checkpoint: Path | None, device: str) -> OpenModels:
    """Open ``evaluate.models``, or the student of ``checkpoint``.

    Raises:
        SpecError, EngineError, WeightsError: one of them cannot be opened.
    """
    if spec.evaluate.models:
        listed = open_models(spec, device)
        running = {model.name: model.evaluated for model in listed if model.evaluated is not None}
        return OpenModels(running, {m.where: m.architecture for m in listed if m.architecture is not None}, listed)
    assert checkpoint is not None
    student = load_student(checkpoint, "evaluate.checkpoint", spec.evaluate.use_ema).to(device)
    heads = StudentHeads(student)
    size, encode = student_size(spec, student.architecture), student_encoder(student)
    models = {TRAINED: EvaluatedModel(encode, size, heads)}
    for other in sorted(set(spec.evaluate.resolutions) - {size}):
        models[f"{TRAINED} at {other}"] = EvaluatedModel(encode, other, heads, TRAINED)
    for count in sorted(set(spec.evaluate.num_tokens)):
        encode = student_encoder(student, count)
        models[f"{TRAINED}, {count} tokens"] = EvaluatedModel(encode, size, heads, TRAINED, num_tokens=count)
    if spec.evaluate.baseline:
        fresh = start_student(spec, student.architecture).to(device)
        models[UNTRAINED] = EvaluatedModel(student_encoder(fresh), size, StudentHeads(fresh))
    return OpenModels(models, {"evaluate.checkpoint": student.architecture})


@contextlib.contextmanager
def with_teachers(spec: Spec, opened: OpenModels, device: str) -> Iterator[dict[str, EvaluatedModel]]:
    """Yield all models by name, the teachers last; at the end new features of teachers are written to the cache.

    Raises:
        SpecError, WeightsError: the cache's folder cannot be used, or weights cannot be read.
    """
    teachers = teachers_of(spec, opened)
    with teacher_encoders(spec, teachers, device) as encoders:
        yield {**opened.models, **{t.name: EvaluatedModel(encoders[t.name], t.view_size, None) for t in teachers}}


def teachers_of(spec: Spec, opened: OpenModels) -> list[ResolvedTeacher]:
    """Return the teachers that one of the models has a head for."""
    names = {name for model in opened.models.values() if model.heads for name in model.heads.names}
    return [t for t in frozen_teachers(spec) if t.name in names]
