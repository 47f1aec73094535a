"""A checkpoint of the student that pretrained weights give, for tasks that need no training before them."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from pathlib import Path

from radioplat.common.hashing import file_hash
from radioplat.design.automatic import decide
from radioplat.design.models import student_architecture
from radioplat.errors import WeightsError
from radioplat.models.pretrained.initial_weights import BACKBONE_PATH, start_student
from radioplat.models.source import WEIGHTS, source_of
from radioplat.models.vision_model import model_kind
from radioplat.spec.checks.tasks.training_task import command_with
from radioplat.spec.schema.root import Spec
from radioplat.tasks.shared.model_folder import write_model

FOLDER, REPORT = "pretrained", "pretrained.json"


def are_pretrained_weights(path: Path) -> bool:
    """Return whether ``path`` is a file or Hugging Face folder of weights, not a model of radioplat."""
    if path.is_dir():
        return (path / "config.json").is_file() and model_kind(path) is None
    return path.suffix in WEIGHTS and path.is_file() and model_kind(path) is None


def pretrained_student(spec: Spec, path: Path, field: str) -> Path:
    """Write the weights at ``path`` as a checkpoint of the student ``model.backbone``; return its folder.

    It is below ``results_dir``, named after the weights' content and the architecture, and written once. It has no
    heads, and the normalisation of a run that starts from these weights.

    Args:
        field: of the spec, that named the weights.

    Raises:
        SpecError, WeightsError: the weights cannot be read, or do not fit ``model.backbone``.
    """
    spec = copy.deepcopy(spec)
    spec.model.backbone.pretrained_backbone_path, spec.train.pretrained_model_path = str(path), None
    task, folder = command_with(teachers=True), Path(spec.results_dir) / FOLDER
    try:
        spec, _ = decide(spec, student_architecture(spec, task, [], {}), None)
        architecture = student_architecture(spec, task, [], {})
        target = folder / f"{path.stem}-{_digest(path, architecture.to_json())}"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            student = start_student(spec, architecture)
            facts = {"weights": str(path), "backbone": architecture.type}
            write_model(student, target, REPORT, facts, [source_of(path)])
    except WeightsError as error:
        named = (dataclasses.replace(p, where=field if p.where == BACKBONE_PATH else p.where) for p in error.problems)
        raise WeightsError(*named) from None
    return target


def _digest(path: Path, architecture: str) -> str:
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.suffix in WEIGHTS)
    digest = hashlib.sha256(architecture.encode())
    for file in files:
        digest.update(file_hash(file).encode())
    return digest.hexdigest()[:8]
