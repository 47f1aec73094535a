"""Preflight step on the memory of workers: what they hold on a GPU, and what checkpoints take."""

from __future__ import annotations

import torch

from radioplat.common import terminal
from radioplat.design.memory import (
    AHEAD,
    SPARE,
    checkpoint_bytes,
    micro_batch_bytes,
    parameter_bytes,
    validation_bytes,
)
from radioplat.design.student import build_on_meta
from radioplat.design.tasks.features import is_measured
from radioplat.design.views import run_views
from radioplat.design.workload.work import is_inline
from radioplat.launch.preflight.preflight import Preflight, WorkerMemory
from radioplat.models.activations import activation_bytes
from radioplat.spec.resolved.image_sizes import student_sizes
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.resolved.teacher import ResolvedTeacher, student_view
from radioplat.spec.schema.distill import Source, TargetNormFit
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.train import Precision
from radioplat.training.feed.feeder import prefetch_depth

MEMORY = "memory of a worker's GPU"  # title of the fact


def memory(preflight: Preflight) -> None:
    """Record the memory of all weights, gradients and optimizer state on a worker's GPU, and of checkpoints."""
    spec, models, resources = preflight.spec, preflight.models, preflight.resources
    if models is None or resources is None or not resources.gpus or spec.model.task is ModelTask.detection:
        return
    each = parameter_bytes(spec.train, spec.worker_bounds[0])
    peers = [t.name for t in models.teachers if t.source is Source.peer]
    count = models.student_parameters + sum(models.infos[name].parameters for name in peers)
    trained, saved = each.of(count), checkpoint_bytes(spec.train, spec.worker_bounds[0])
    inline = [t for t in models.teachers if not t.inside and is_inline(t, preflight.on_ray)]
    largest = max((size for size, _ in student_sizes(spec)), default=spec.dataset.img_size)
    kept = spec.dataset.batch_size * _activation_bytes(preflight, largest)
    held = sum(teacher_bytes(t, models.infos[t.name].parameters) for t in inline)
    teachers = f", {terminal.size(held)} for teachers" if held else ""
    waiting, copied = _waiting_bytes(preflight), ""
    if is_measured(spec, models.architecture):
        quantized = models.architecture.quantized is not None
        size = terminal.size(validation_bytes(spec.train, models.student_parameters, quantized))
        copied = f"; between steps, a validation adds {size} for the student's copy"
    preflight.facts[MEMORY] = (
        f"{terminal.size(trained)} for what is trained{teachers}, {terminal.size(waiting)} for micro-batches, "
        f"{terminal.size(kept)} for the activations of one of {spec.dataset.batch_size} images of {largest} px; what "
        f"losses keep and the CUDA context come on top{copied}"
    )
    smallest = min((kind for kind in resources.kinds if kind.memory), key=lambda kind: kind.memory or 0, default=None)
    has = 0 if smallest is None else smallest.memory or 0
    preflight.worker_memory = WorkerMemory(trained, held, waiting, kept, has)
    if smallest is not None and trained + held + waiting + kept > has:
        hint = "raise train.zero_stage, or set train.offload" if trained > kept else (
            "lower dataset.batch_size, which leaves train.global_batch_size as it is, or set train.grad_checkpointing"
        )  # fmt: skip
        preflight.warnings.append(
            f"a worker needs more than {terminal.size(trained + held + waiting + kept)} for a micro-batch of "
            f"{spec.dataset.batch_size} images of {largest} px, and {smallest.name} has at most "
            f"{terminal.size(has)}: {hint}"
        )
    where = f"{terminal.size(saved.device * count)} on the GPU, if {SPARE:.0%} of its memory then stay free, and "
    others = f", {terminal.size(saved.other_host * count)} of each other one's" if saved.other_host else ""
    preflight.facts["memory for checkpoints"] = (
        f"{where if saved.device else ''}{terminal.size(saved.first_host * count)} of the first worker's host memory"
        f"{others}"
    )


def _activation_bytes(preflight: Preflight, size: int) -> int:
    """Return the bytes that a forward pass of the student keeps of an image."""
    spec, models = preflight.spec, preflight.models
    assert models is not None
    student = build_on_meta(models.architecture).train()
    if spec.model.backbone.freeze_backbone:
        student.backbone.requires_grad_(False)
    elif spec.train.grad_checkpointing:
        student.backbone.set_grad_checkpointing()
    dtype = torch.float32 if precision_of(spec.train) is Precision.fp32 else torch.bfloat16
    return activation_bytes(student, student.run_all, size, dtype)


def _waiting_bytes(preflight: Preflight) -> int:
    """Return the bytes of the micro-batches on a worker's GPU: those that wait, and the student's own.

    Inline teachers also hold there what they have computed further ahead. A step of which micro-batches may have to be
    computed again, or which begins with statistics of all, holds all of its own.
    """
    spec, models = preflight.spec, preflight.models
    assert models is not None
    names = {student_view(spec), *(teacher.view for teacher in models.teachers if teacher.inside)}
    views = run_views(spec, models.teachers, models.infos, models.student_stride)
    outer = [teacher for teacher in models.teachers if not teacher.inside]
    inner = [view for view in views if view.name in names]
    inline = [teacher for teacher in outer if is_inline(teacher, preflight.on_ray)]
    size, of = spec.dataset.batch_size, (models.infos, models.grids)
    queued = prefetch_depth(spec) * micro_batch_bytes(size, [], inline, *of)
    fewest = spec.worker_bounds[0]
    of_a_step = -(-spec.global_batch_size // (size * fewest))
    whole = is_exact(spec.train) or spec.distill.target_norm.fit is TargetNormFit.with_step
    return (AHEAD + (of_a_step if whole else 1)) * micro_batch_bytes(size, inner, outer, *of) + queued


def teacher_bytes(teacher: ResolvedTeacher, parameters: int) -> int:
    """Return the bytes of a teacher's weights on a GPU."""
    return parameters * (4 if teacher.service.precision.value == "fp32" else 2)
