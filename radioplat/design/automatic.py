"""Decide settings that a spec leaves unset, from the student's pretrained weights.

A run writes its decisions into ``experiment.yaml``. Later starts of the same run take them from there, so that new
weights or a new version of radioplat change no run that has begun.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.design.student import build_on_meta, has_batchnorm
from radioplat.models.backbones.names import resolve
from radioplat.models.pretrained.initial_weights import MODEL_PATH, student_paths
from radioplat.models.pretrained.source import SourceCheckpoint, read_source
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import is_checkpoint
from radioplat.spec.resolved.default_losses import kept_losses, open_losses
from radioplat.spec.resolved.normalisation import Normalisation, sets_normalisation, student_normalisation
from radioplat.spec.resolved.teacher import has_hidden_layers, teacher_names
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import OptimizerName, Policy
from radioplat.teachers.adapters.timm_model import native_input_of, pretrained_cfg

SMALL_BATCH = 32  # images of a micro-batch, below which BatchNorm's statistics are too noisy for pretrained weights
# Adam's rates for students from random weights, with and without BatchNorm, at 32 images a step. The first is better
# than half and twice of it for mobilenetv3_small, and as good as half of it for resnet10t (see
# docs/measurements/quality.md). The second was tried with a tiny ViT alone. The third, for pruned students, is that of
# part `half` of benchmarks.teach; 6e-5, 3e-4 and 3e-3 taught its student less in one trial each.
SCRATCH_BATCHNORM_LR, SCRATCH_LR, PRUNED_LR = 6e-3, 1e-3, 1e-3
# Adam's noise stays the same if the rate follows the square root of the batch (Malladi et al. 2022, arXiv 2205.10287).
# Variants `batch_...` of `benchmarks.teach.ingredients` compare rates at both ends; nothing was measured beyond them.
SCALED_BATCH, SMALLEST_BATCH, LARGEST_BATCH = 32, 8, 128
_ADAM = (OptimizerName.adam, OptimizerName.adamw)


@dataclass(frozen=True)
class Decision:
    """A value for a field that the spec leaves unset, and the reason in a few words."""

    field: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.field}={_text(self.value)} ({self.reason})"


def decide(spec: Spec, student: StudentArchitecture, earlier: Spec | None) -> tuple[Spec, list[Decision]]:
    """Return a copy of ``spec`` with all decisions, and those that differ from what a student without weights gets.

    Args:
        student: its architecture, without heads.
        earlier: the spec of an earlier start of the run, whose decisions stay; None for a new run.

    Raises:
        WeightsError: pretrained weights cannot be read.
    """
    decisions = list(_kept(spec, earlier) if earlier is not None else _decisions(spec, student))
    spec = copy.deepcopy(spec)
    for decision in decisions:
        *sections, name = decision.field.split(".")
        section: Any = spec
        for part in sections:
            name_of, _, index = part.partition("[")
            section = getattr(section, name_of)
            section = section[int(index.rstrip("]"))] if index else section
        setattr(section, name, decision.value)
    return spec, [decision for decision in decisions if decision.reason]


def _decisions(spec: Spec, student: StudentArchitecture) -> Iterator[Decision]:
    paths = [(where, path) for where, path in student_paths(spec) if Path(path).exists()]
    # A checkpoint of radioplat may be of a pruned student, whose BatchNorm has to follow.
    begins = any(not is_checkpoint(path) for _, path in paths)
    for field, value in open_losses(spec):
        yield Decision(field, value, "and similarity: no loss is named" if field.endswith("loss_type") else "")
    if spec.distill.use_mlp is None:
        forms = _head_forms(spec, paths)
        if forms:
            yield Decision("distill.use_mlp", any(forms), "as the heads of the pretrained student")
        else:
            hidden = has_hidden_layers(spec.distill)
            fitted = "linear heads can be fitted whole to a pretrained student" if paths and not hidden else ""
            yield Decision("distill.use_mlp", hidden, fitted)
    if not sets_normalisation(spec) and (normal := _normalisation_of(spec, paths)) is not None:
        for name, values in zip(("mean", "std"), normal, strict=True):
            field = f"model.backbone.student_norm_{name}"
            yield Decision(field, [round(v, 6) for v in values], "as the pretrained weights were trained")
    if spec.model.backbone.freeze_norm is None:
        small = spec.dataset.batch_size < SMALL_BATCH
        frozen = begins and small and has_batchnorm(build_on_meta(student))
        reason = f"BatchNorm of pretrained weights, and fewer than {SMALL_BATCH} images in a micro-batch"
        yield Decision("model.backbone.freeze_norm", frozen, reason if frozen else "")
    if spec.train.optim.lr is None:
        yield _rate(spec, student, pretrained=bool(paths))
    if spec.train.optim.head_warmup_epochs is None:
        with_layers = any(teacher.use_head for teacher in spec.distill.teacher)
        random = begins and with_layers and spec.distill.head_fit.enabled is False
        epochs = min(1.0, spec.train.num_epochs / 2) if random else 0.0
        yield Decision("train.optim.head_warmup_epochs", epochs, "random heads on pretrained weights" if random else "")


def ema_decay(total_steps: int) -> float:
    """Return the decay of an average over about a tenth of the run, at least over 10 steps and at most over 10,000."""
    return 1 - 1 / min(10_000.0, max(10.0, total_steps / 10))


def warmup_epochs(spec: Spec, epochs: float) -> float:
    """Return the warm-up of a taught student: a twentieth of the run from random weights, else none.

    Args:
        epochs: of the run.
    """
    optim = spec.train.optim
    random = not any(Path(path).exists() for _, path in student_paths(spec))
    # Stages restart the schedule, and this policy has a warm-up of its own; a rate of whole epochs has no fractions.
    fits = not spec.distill.stages and optim.policy is not Policy.soft_start_annealing and optim.sched_on_updates
    return round(epochs / 20, 4) if random and fits and optim.optim in _ADAM else 0.0


def _rate(spec: Spec, student: StudentArchitecture, pretrained: bool) -> Decision:
    """Choose the learning rate: the default of :class:`OptimConfig` for pretrained weights, a higher one for others."""
    field, optim = "train.optim.lr", spec.train.optim
    pruned = pretrained and student.pruned is not None and student.quantized is None
    if (pretrained and not pruned) or optim.optim not in _ADAM:
        return Decision(field, optim.rate, "")
    if pruned:
        return Decision(field, PRUNED_LR, "a pruned student")
    normal = has_batchnorm(build_on_meta(student))
    batch = spec.global_batch_size
    scale = math.sqrt(min(max(batch, SMALLEST_BATCH), LARGEST_BATCH) / SCALED_BATCH)
    rate = float(f"{scale * (SCRATCH_BATCHNORM_LR if normal else SCRATCH_LR):.2g}")
    reason = f"random weights, {'with' if normal else 'without'} BatchNorm, {batch} images a step"
    return Decision(field, rate, reason)


def _kept(spec: Spec, earlier: Spec) -> Iterator[Decision]:
    """Yield the values of an earlier start of the run."""
    for field, value in kept_losses(spec, earlier):
        yield Decision(field, value, "")
    if spec.distill.use_mlp is None:
        yield Decision("distill.use_mlp", earlier.distill.use_mlp is not False, "")
    if not sets_normalisation(spec) and sets_normalisation(earlier):
        for name, values in zip(("mean", "std"), student_normalisation(earlier)[0], strict=True):
            yield Decision(f"model.backbone.student_norm_{name}", list(values), "")
    if spec.model.backbone.freeze_norm is None:
        yield Decision("model.backbone.freeze_norm", bool(earlier.model.backbone.freeze_norm), "")
    if spec.train.optim.lr is None:
        yield Decision("train.optim.lr", earlier.train.optim.rate, "")
    if spec.train.optim.head_warmup_epochs is None:
        yield Decision("train.optim.head_warmup_epochs", earlier.train.optim.head_warmup_epochs or 0.0, "")


def _head_forms(spec: Spec, paths: list[tuple[str, str]]) -> list[bool]:
    """Return for each head that pretrained weights have for one of the teachers whether it has a hidden layer."""
    names = set(teacher_names(spec.distill.teacher))
    return [
        any(".fc1." in tensor for tensor in tensors)
        for where, path in paths
        if where == MODEL_PATH  # heads of a file that is named for its backbone are not loaded
        for name, kinds in _source(spec, where, path).heads.items()
        if name in names
        for kind, tensors in kinds.items()
        if kind in ("summary", "spatial")
    ]


def _source(spec: Spec, where: str, path: str) -> SourceCheckpoint:
    return read_source(path, where, shapes_only=True, num_heads=spec.model.backbone.kwargs.get("num_heads"))


def _normalisation_of(spec: Spec, paths: list[tuple[str, str]]) -> Normalisation | None:
    """Return the normalisation that the weights were trained with: that of their file, else timm's of the model."""
    backbone = spec.model.backbone
    for where, path in paths:
        source = _source(spec, where, path)
        if source.normal is not None:
            return source.normal
        if backbone.type is None or source.is_radio:
            continue
        if (normal := timm_normalisation(backbone.type)) is not None:
            return normal
    return None


def timm_normalisation(kind: str) -> Normalisation | None:
    """Return the normalisation of timm's weights for a model; None if it is unknown or not always the same."""
    resolved = resolve(kind)
    if resolved.radio:
        return None
    native = native_input_of(pretrained_cfg(kind, resolved.name), resolved.name, "", tagged="." in kind)
    return (native.mean, native.std) if native.mean and native.std else None


def _text(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")
