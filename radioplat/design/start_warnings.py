"""Warnings about settings that destroy the student's pretrained weights, keep it from learning or slow it down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from radioplat.design.automatic import timm_normalisation
from radioplat.design.head_fit import pretrained_parts, untrained_heads
from radioplat.design.memory import parameter_bytes
from radioplat.design.student import build_on_meta, has_batchnorm
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.models.pretrained.initial_weights import BACKBONE_PATH, MODEL_PATH
from radioplat.models.pretrained.match import normalised_otherwise
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import is_checkpoint
from radioplat.spec.schema.root import Spec

SMALL = 20e9  # bytes of weights, gradients and optimizer; GPUs for training have 40 GB and more
FEW_IMAGES = 8  # of a micro-batch, below which BatchNorm's error rises steeply


def start_warnings(spec: Spec, architecture: StudentArchitecture) -> list[str]:
    """Return warnings with remedies: of stage 3 without need, of lost pretrained weights, of useless BatchNorm.

    Only the first one if ``train.resume_training_checkpoint_path`` resumes a run.

    Raises:
        WeightsError: the weights cannot be read, or do not fit.
    """
    warnings = list(_stage_3(spec, architecture))
    if spec.train.resume_training_checkpoint_path:
        return warnings
    warnings += _batchnorm(spec, architecture)
    taken = pretrained_parts(spec, architecture)
    if any(name.startswith("backbone.") for name in taken):
        warnings += [*_untrained_heads(spec, architecture, taken), *_normalisation(spec, architecture)]
    return warnings


def _stage_3(spec: Spec, architecture: StudentArchitecture) -> Iterator[str]:
    """Warn of ZeRO-3 where stage 2 fits: stage 3 gathers the weights of each layer in each micro-batch."""
    train, fewest = spec.train, spec.worker_bounds[0]
    if train.zero_stage < 3:
        return
    parameters = sum(p.numel() for p in build_on_meta(architecture).parameters())
    needed = parameter_bytes(dataclasses.replace(train, zero_stage=2), fewest).of(parameters)
    room, reason = _room()
    if needed <= room:
        yield (
            f"train.zero_stage is 3: at stage 2 weights, gradients and optimizer take {needed / 1e9:.2g} GB of each "
            f"of {fewest} worker(s), {reason}. Stage 3 exchanges the weights in each forward and backward pass, which "
            "costs several times as much CPU time. Take train.zero_stage 2"
        )


def _room() -> tuple[float, str]:
    """Return the bytes that weights and optimizer may take on a GPU, and how that was chosen."""
    if torch.cuda.is_available():
        memory = min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
        return memory / 2, f"less than half of a GPU's {memory / 1e9:.0f} GB"
    return SMALL, f"less than {SMALL / 1e9:.0f} GB, which usually fit on a GPU"


def _batchnorm(spec: Spec, architecture: StudentArchitecture) -> Iterator[str]:
    """Warn of BatchNorm that takes its statistics from a few images (Wu and He 2018, Group Normalization, figure 1)."""
    backbone, images = spec.model.backbone, spec.dataset.batch_size
    if images >= FEW_IMAGES or backbone.freeze_norm or backbone.freeze_backbone:
        return
    if has_batchnorm(build_on_meta(architecture)):
        yield (
            f"dataset.batch_size is {images}: the statistics of BatchNorm are those of a micro-batch, and of so few "
            f"images they are noise. Take {FEW_IMAGES} or more; for pretrained weights set model.backbone.freeze_norm; "
            "a ResNet from random weights can have GroupNorm, model.backbone.kwargs={norm_layer: groupnorm}"
        )


def _untrained_heads(spec: Spec, architecture: StudentArchitecture, taken: set[str]) -> Iterator[str]:
    """Warn of random heads, whose first gradients are noise for a pretrained backbone."""
    optim, frozen = spec.train.optim, spec.model.backbone.freeze_backbone
    if (optim.head_warmup_epochs or 0) > 0 or frozen or spec.distill.head_fit.enabled is not False:
        return
    fresh = list(dict.fromkeys(name for name, _ in untrained_heads(architecture, taken)))
    if fresh:
        yield (
            f"distill.head_fit.enabled is false: the backbone starts from pretrained weights, and the heads of "
            f"{', '.join(fresh)} from random ones, whose gradients undo its weights before they are of use. "
            f"Leave it unset, or set train.optim.head_warmup_epochs to {min(1.0, spec.train.num_epochs / 2):g}: heads "
            f"then learn first, while the backbone is frozen"
        )


def _normalisation(spec: Spec, architecture: StudentArchitecture) -> Iterator[str]:
    """Warn of another normalisation than that of timm's weights, which is in timm's configuration of the model."""
    backbone = build_on_meta(architecture).backbone
    paths = {BACKBONE_PATH: spec.model.backbone.pretrained_backbone_path, MODEL_PATH: spec.train.pretrained_model_path}
    for where, path in paths.items():
        if not path or is_checkpoint(path) or not isinstance(backbone, TimmBackbone):
            continue  # files that contain their normalisation are checked when weights are matched
        if (normal := timm_normalisation(architecture.type)) is not None:
            yield from (f"{where}: {note}" for note in normalised_otherwise(architecture, *normal))
