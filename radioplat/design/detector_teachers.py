"""Check a spec's description of a teacher detector against its file; TAO's specs describe teachers too."""

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
    """Yield fields of ``distill.teacher[i].model`` that contradict the teacher's file.

    Raises:
        WeightsError: a file cannot be read.
    """
    for i, teacher in enumerate(spec.distill.teacher):
        path = teacher.pretrained_teacher_model_path
        if path and model_kind(path) is ModelKind.detector:
            where = f"distill.teacher[{i}]"
            architecture = read_detector_architecture(path, f"{where}.pretrained_teacher_model_path")
            yield from _differences(teacher, architecture, f"{where}.model")


def _differences(teacher: TeacherConfig, architecture: DetectorArchitecture, where: str) -> Iterator[Problem]:
    hint = "Leave the field out, or name the file of another teacher."
    given, actual = teacher.model.backbone.type, architecture.student.type
    if given and resolve(given, where=f"{where}.backbone.type").name != resolve(actual).name:
        yield Problem(f"the teacher's file contains a {actual}, not {given}", f"{where}.backbone.type", hint)
    detector = teacher.model.detector
    if detector == DetectorConfig():
        return
    if detector.kind != architecture.kind:
        message = f"the teacher's file contains a {architecture.kind}, not {detector.kind}"
        yield Problem(message, f"{where}.detector.kind", hint)
        return
    own = Detector(architecture).detr.config
    for name, value in detector.options.items():
        if (used := getattr(own, name, None)) != value:
            message = f"the teacher's file was made with {used}, not {value}"
            yield Problem(message, f"{where}.detector.options.{name}", hint)
