"""The task ``evaluate``: kNN and fidelity of a trained student, beside its teachers and its untrained self."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from radioplat.cores import torch_beside, torch_callers
from radioplat.errors import SpecError
from radioplat.evaluate.encoder import student_encoder, teacher_encoder
from radioplat.evaluate.fidelity import FidelityResult
from radioplat.evaluate.images import open_images
from radioplat.evaluate.knn import KnnResult
from radioplat.evaluate.measure import Subject, measure
from radioplat.export.run import find_checkpoint
from radioplat.models.checkpoint import has_average, load_student
from radioplat.models.start import start_student
from radioplat.spec.load import load_spec, to_yaml
from radioplat.spec.resolve import resolve_teachers
from radioplat.spec.root import Spec
from radioplat.teachers.teacher import FrozenTeacher
from radioplat.track.diary import keep_diary
from radioplat.track.results import TaskFolder, write_atomic

TRAINED, UNTRAINED = "student", "untrained student"


@dataclass(frozen=True)
class EvaluateResult:
    """What an evaluation found.

    Attributes:
        checkpoint: the student that was evaluated.
        knn: by model: ``student``, ``untrained student`` and each teacher's name; empty without labels.
        fidelity: by student, teacher and kind (``summary``, ``spatial``).
        accuracy: top-1 of the student's own classifier, None without one.
        report: path of ``report.html``.
    """

    checkpoint: Path
    folder: Path
    knn: dict[str, KnnResult]
    fidelity: dict[str, dict[str, dict[str, FidelityResult]]]
    accuracy: float | None
    report: Path


def evaluate(
    spec: Spec | dict | str | Path, overrides: tuple[str, ...] = (), progress: Callable[[int, int], None] | None = None
) -> EvaluateResult:
    """Evaluate ``evaluate.checkpoint``, by default the latest student there is, on ``dataset.val_dataset``.

    Args:
        progress: called with (batches done, batches in all).

    Raises:
        RadioplatError: no checkpoint, no held-out images, or weights that cannot be read.
    """
    spec = load_spec(spec, overrides)
    if not (spec.dataset.val_dataset.tar_data_sources or spec.dataset.val_dataset.images_dir):
        raise SpecError("an evaluation needs held-out images", where="dataset.val_dataset.tar_data_sources")
    path = find_checkpoint(spec, spec.evaluate.checkpoint, "evaluate.checkpoint").resolve()
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)
    return keep_diary(folder, "evaluate", to_yaml(spec), lambda: _evaluate(spec, path, folder, progress), _kpi)


def _evaluate(
    spec: Spec, path: Path, folder: TaskFolder, progress: Callable[[int, int], None] | None
) -> EvaluateResult:
    from radioplat.evaluate.summary import write_summary

    device = "cuda" if torch.cuda.is_available() else "cpu"
    student = load_student(path, "evaluate.checkpoint", spec.evaluate.use_ema).to(device)
    size = spec.dataset.val_img_size or student.architecture.img_size
    subjects = {TRAINED: Subject(student_encoder(student), size, student)}
    if spec.evaluate.baseline:
        fresh = start_student(spec, student.architecture).to(device)
        subjects[UNTRAINED] = Subject(student_encoder(fresh), size, fresh)
    teachers = [t for t in resolve_teachers(spec) if t.name in student.head_names]
    for teacher in teachers:
        subjects[teacher.name] = Subject(teacher_encoder(FrozenTeacher(teacher, device)), teacher.view_size, None)
    bank, queries, classes = open_images(spec, {s.size for s in subjects.values()})
    kinds = {t.name: sorted(t.wanted & {"summary", "spatial"}) for t in teachers}
    at_once = torch_callers(len(subjects)) if device == "cpu" else 1
    with torch_beside(bank.threads, at_once):
        found = measure(subjects, kinds, bank, queries, spec.evaluate, progress, at_once)
    report = write_summary(spec, folder, path, found, classes)
    result = EvaluateResult(path, folder.path, found.knn, found.fidelity, found.accuracy, report)
    write_atomic(
        folder.path / "results.json",
        json.dumps(
            {
                "checkpoint": path.name,
                "ema": has_average(path) and spec.evaluate.use_ema is not False,
                "knn": {name: asdict(value) for name, value in result.knn.items()},
                "fidelity": {
                    s: {t: {k: asdict(v) for k, v in kinds.items()} for t, kinds in by_teacher.items()}
                    for s, by_teacher in result.fidelity.items()
                },
                "accuracy": result.accuracy,
            },
            indent=1,
        ),
    )
    return result


def _kpi(result: EvaluateResult) -> dict[str, float]:
    kpi = {f"knn/{name}": value.top1 for name, value in result.knn.items()}
    for student, by_teacher in result.fidelity.items():
        for teacher, kinds in by_teacher.items():
            kpi.update({f"fidelity/{student}/{teacher}/{kind}": value.centered for kind, value in kinds.items()})
    if result.accuracy is not None:
        kpi["accuracy"] = result.accuracy
    return kpi
