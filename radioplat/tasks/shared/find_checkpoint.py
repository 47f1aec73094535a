"""Find the folder of a task, and the checkpoint that a task reads."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import EngineError
from radioplat.spec.checks.tasks.training_task import COMMANDS
from radioplat.spec.loading.students import FOLDER
from radioplat.spec.resolved.paths import no_such_checkpoint
from radioplat.spec.schema.root import Spec
from radioplat.tasks.shared.pretrained_student import are_pretrained_weights, pretrained_student

LATEST = "model_latest"


def task_folder(spec: Spec, task: str) -> Path:
    """Return ``<task>.results_dir`` if the spec has it, else ``<results_dir>/<task>``."""
    own = getattr(getattr(spec, task, None), "results_dir", None)  # `train` has none, as in TAO
    return Path(own or Path(spec.results_dir) / task)


def find_checkpoint(spec: Spec, path: str | None, field: str) -> Path:
    """Return the checkpoint folder ``path``; if it is None, the latest of ``distill`` or ``train``.

    Pretrained weights of ``model.backbone`` are written as a checkpoint first, and so need no training before the task.

    Args:
        path: value of the spec's ``field``.

    Raises:
        EngineError: it does not exist; the hint names the task to run first.
        SpecError, WeightsError: the weights at ``path`` cannot be read, or do not fit ``model.backbone``.
    """
    if path:
        if not Path(path).exists():
            raise EngineError(no_such_checkpoint(path, field))
        if are_pretrained_weights(Path(path)):
            return pretrained_student(spec, Path(path), field)
        return Path(path)
    links = [task_folder(spec, task) / LATEST for task in COMMANDS]
    existing = [link for link in links if link.exists()]
    if not existing and (names := [student.name for student in spec.distill.students]):
        raise EngineError(
            f"this spec has {len(names)} students, and the task takes one: {', '.join(names)}",
            where="distill.students",
            hint=f"Name its results: results_dir={Path(spec.results_dir) / FOLDER / names[0]}; or take its own spec, "
            "distill/experiment.yaml there.",
        )
    if not existing:
        raise EngineError(
            f"no trained student: neither {links[0]} nor {links[1]} exists",
            where=field,
            hint=f"Run `radioplat distill` (or `radioplat train`) first, or give {field}, a checkpoint or pretrained "
            "weights.",
        )
    return max(existing, key=lambda link: link.resolve().stat().st_mtime)
