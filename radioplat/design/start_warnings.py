"""Warnings about settings that would destroy the pretrained weights of the student."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.design.student import build_on_meta
from radioplat.models.backbones.names import resolve
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.pretrained.initial_weights import BACKBONE_PATH, MODEL_PATH, matches
from radioplat.models.pretrained.match import normalised_otherwise
from radioplat.models.student.checkpoint import is_checkpoint
from radioplat.models.student.student import StudentArchitecture
from radioplat.spec.schema.root import Spec
from radioplat.teachers.adapters.timm_model import native_input_of, pretrained_cfg


def start_warnings(spec: Spec, architecture: StudentArchitecture) -> list[str]:
    """Return a warning with a remedy for each setting with which training would destroy pretrained weights.

    None if ``train.resume_training_checkpoint_path`` resumes a run.

    Raises:
        WeightsError: the weights cannot be read, or do not fit.
    """
    if spec.train.resume_training_checkpoint_path:
        return []
    taken = {name for _, match in matches(spec, architecture) for name in match.tensors}
    if not any(name.startswith("backbone.") for name in taken):
        return []
    return [*_untrained_heads(spec, architecture, taken), *_normalisation(spec, architecture)]


def _untrained_heads(spec: Spec, architecture: StudentArchitecture, taken: set[str]) -> Iterator[str]:
    """Warn of random heads, whose first gradients are noise for a pretrained backbone."""
    optim, frozen = spec.train.optim, spec.model.backbone.freeze_backbone
    if optim.head_warmup_epochs > 0 or frozen:
        return
    heads = build_on_meta(architecture).heads
    fresh = [
        teacher
        for teacher, head in heads.items()
        if any(f"heads.{teacher}.{name}" not in taken for name, _ in head.named_parameters())
    ]
    if fresh:
        yield (
            f"train.optim.head_warmup_epochs is 0: the backbone starts from pretrained weights, and the heads of "
            f"{', '.join(fresh)} from random ones, whose gradients undo its weights before they are of use. "
            f"Set it to {min(1.0, spec.train.num_epochs / 2):g}: heads then learn first, while the backbone is frozen"
        )


def _normalisation(spec: Spec, architecture: StudentArchitecture) -> Iterator[str]:
    """Warn of another normalisation than that of timm's weights, which is in timm's configuration of the model."""
    backbone = build_on_meta(architecture).backbone
    paths = {BACKBONE_PATH: spec.model.backbone.pretrained_backbone_path, MODEL_PATH: spec.train.pretrained_model_path}
    for where, path in paths.items():
        if not path or is_checkpoint(path) or not isinstance(backbone, TimmBackbone):
            continue  # files that contain their normalisation are checked when weights are matched
        kind = architecture.type
        name = resolve(kind).name
        native = native_input_of(pretrained_cfg(kind, name), name, "", tagged="." in kind)
        if native.mean and native.std:
            yield from (f"{where}: {note}" for note in normalised_otherwise(architecture, native.mean, native.std))
