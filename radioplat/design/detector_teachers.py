"""What a spec says of a teacher that is a detector's file, against the file: TAO's specs describe it once more."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.models.backbones.names import resolve
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import read_detector_architecture
from radioplat.models.model_kind import ModelKind
from radioplat.models.vision_model import model_kind
from radioplat.spec.schema.distill import TeacherConfig
from radioplat.spec.schema.model import DetectorConfig
from radioplat.spec.schema.root import Spec


def teacher_file_problems(spec: Spec) -> Iterator[Problem]:
    """Where ``distill.teacher[i].model`` says something else than the teacher's file.

    Raises:
        WeightsError: a file cannot be read.
    """
    for i, teacher in enumerate(spec.distill.teacher):
        path = teacher.pretrained_teacher_model_path
        if path and model_kind(path) is ModelKind.detector:
            where = f"distill.teacher[{i}]"
            form = read_detector_architecture(path, f"{where}.pretrained_teacher_model_path")
            yield from _apart(teacher, form, f"{where}.model")


def _apart(teacher: TeacherConfig, form: DetectorArchitecture, where: str) -> Iterator[Problem]:
    hint = "Leave out what the file knows, or name the teacher's own file."
    told = teacher.model.backbone.type
    if told and resolve(told, where=f"{where}.backbone.type").name != resolve(form.student.type).name:
        yield Problem(f"the teacher's file holds a {form.student.type}, not {told}", f"{where}.backbone.type", hint)
    detector = teacher.model.detector
    if detector == DetectorConfig():
        return
    if detector.kind != form.kind:
        yield Problem(f"the teacher's file holds a {form.kind}, not {detector.kind}", f"{where}.detector.kind", hint)
        return
    own = Detector(form).detr.config
    for name, value in detector.options.items():
        there = getattr(own, name, None)
        if there != value:
            said = f"the teacher's file was made with {there}, not {value}"
            yield Problem(said, f"{where}.detector.options.{name}", hint)
