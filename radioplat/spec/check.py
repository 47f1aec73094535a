"""Contradictions inside a spec that can be found by reading it alone: no file is opened, no model built."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.distill import DistillConfig, LossType, Mode, SummaryLoss, TeacherConfig
from radioplat.spec.paths import paths_in_copy
from radioplat.spec.resolve import resolve_teachers, teacher_names
from radioplat.spec.root import Spec
from radioplat.spec.train import TrainConfig

_LOGIT_LOSSES = {LossType.KL, LossType.CE}
_CHAIN = ("evaluate", "export", "gen_trt_engine")


def check(spec: Spec, task: str = "distill") -> list[Problem]:
    """Problems of ``spec`` for ``task`` (``distill`` or ``train``); empty when there are none."""
    problems = [*paths_in_copy(spec), *_sizes(spec), *_optimizer(spec), *_unavailable(spec)]
    if task == "distill":
        problems += [*_teachers(spec), *_chain(spec)]
    if task == "train" and spec.dataset.num_classes < 1:
        problems.append(Problem("fine-tuning needs the number of classes", "dataset.num_classes"))
    return problems


def _sizes(spec: Spec) -> Iterator[Problem]:
    train, dataset = spec.train, spec.dataset
    for where, value in {
        "dataset.batch_size": dataset.batch_size, "dataset.img_size": dataset.img_size, "train.num_gpus": train.num_gpus,
        "train.num_nodes": train.num_nodes, "train.num_epochs": train.num_epochs, "dataset.workers": dataset.workers,
        "dataset.prefetch_batches": dataset.prefetch_batches, "train.checkpoint_interval": train.checkpoint_interval,
    }.items():
        if value < 1:
            yield Problem(f"must be at least 1, not {value}", where)
            return
    if spec.global_batch_size % dataset.batch_size:
        yield Problem(
            f"{spec.global_batch_size} is not a multiple of dataset.batch_size {dataset.batch_size}",
            "train.global_batch_size", "The global batch is cut into whole micro-batches.",
        )
    if not 0 <= train.zero_stage <= 3:
        yield Problem(f"must be 0, 1, 2 or 3, not {train.zero_stage}", "train.zero_stage")
    for name, values in (("mean", dataset.augmentation.mean), ("std", dataset.augmentation.std)):
        if len(values) != 3:
            yield Problem(f"three numbers are needed (R, G, B), not {len(values)}", f"dataset.augmentation.{name}")


def _optimizer(spec: Spec) -> Iterator[Problem]:
    optim = spec.train.optim
    if optim.lr <= 0:
        yield Problem(f"must be positive, not {optim.lr}", "train.optim.lr")
    valid = {"linear": {"min_lr"}, "cosine": {"min_lr"}, "step": {"step_size", "gamma"}, "multistep": {"milestones", "gamma"}}
    for key in sorted(set(optim.policy_params) - valid[optim.policy.value]):
        yield Problem(
            f"unknown for policy {optim.policy.value}", f"train.optim.policy_params.{key}",
            f"Valid: {', '.join(sorted(valid[optim.policy.value]))}.",
        )


def _teachers(spec: Spec) -> Iterator[Problem]:
    if not spec.distill.teacher:
        yield Problem("at least one teacher is needed", "distill.teacher")
        return
    names = teacher_names(spec.distill.teacher)
    for key in spec.teachers:
        if key not in names:
            yield Problem("no teacher has this name", f"teachers.{key}", f"Teachers: {', '.join(names)}.")
    for teacher in resolve_teachers(spec):
        if not teacher.weights:
            yield Problem(
                "a teacher needs trained weights", f"{teacher.where}.pretrained_teacher_model_path",
                "Give the path of a local .safetensors, .pth or .pt file.",
            )
        for field, values in (("norm_mean", teacher.norm_mean), ("norm_std", teacher.norm_std)):
            if len(values) != 3:
                yield Problem(f"three numbers are needed (R, G, B), not {len(values)}", f"{teacher.where}.{field}")
        for term in teacher.terms:
            if term.kind == "logits" and term.loss not in _LOGIT_LOSSES:
                yield Problem(f"mode logits needs loss KL or CE, not {term.loss.value}", f"{teacher.where}.loss_type")
            if term.kind == "spatial" and term.loss in _LOGIT_LOSSES:
                yield Problem(
                    f"loss {term.loss.value} compares class scores, not feature maps", f"{teacher.where}.loss_type",
                    "For spatial features take BALANCED, MSE, L1, L2, FD or CS.",
                )


def _chain(spec: Spec) -> Iterator[Problem]:
    for i, task in enumerate(spec.distill.then):
        if task not in _CHAIN:
            yield Problem(f"{task!r} cannot follow a distillation", f"distill.then[{i}]", f"Tasks: {', '.join(_CHAIN)}.")


def _unavailable(spec: Spec) -> Iterator[Problem]:
    """Fields that TAO has and this version does not act on: refused, so that nothing is ignored in silence."""
    train, distill, augmentation = spec.train, spec.distill, spec.dataset.augmentation
    train_defaults, distill_defaults = TrainConfig(), DistillConfig()
    for name in ("enable_ema", "offload", "compile", "min_workers", "max_workers", "regularizer", "tensorboard"):
        if getattr(train, name) != getattr(train_defaults, name):
            yield _not_yet(f"train.{name}")
    if train.precision.value == "fp16":
        yield Problem("fp16 training is not available in this version", "train.precision", "Use bf16 or fp32.")
    if train.optim.optim.value in ("lamb", "fusedlamb"):
        yield _not_yet("train.optim.optim")
    for name in ("vitdet", "bindings"):
        if getattr(distill, name) != getattr(distill_defaults, name):
            yield _not_yet(f"distill.{name}")
    teacher_defaults = TeacherConfig()
    for i, teacher in enumerate(distill.teacher):
        for name in ("upsample_factor", "stochastic_resolutions", "summary_token_idx", "spatial_mlp_version", "adaptor",
                     "upsampler_checkpoint"):
            if getattr(teacher, name) != getattr(teacher_defaults, name):
                yield _not_yet(f"distill.teacher[{i}].{name}")
        mode = teacher.mode or distill.mode
        if mode is Mode.combo and teacher.summary_loss_type in (SummaryLoss.angle, SummaryLoss.tangent_sphere):
            yield _not_yet(f"distill.teacher[{i}].summary_loss_type")
    for name in ("random_rotate", "random_color", "random_erase", "random_aug", "with_scale_random_crop"):
        if getattr(augmentation, name).enable:
            yield _not_yet(f"dataset.augmentation.{name}.enable")
    for name in ("with_random_blur", "multi_scales"):
        if getattr(augmentation, name):
            yield _not_yet(f"dataset.augmentation.{name}")
    for split in ("train_dataset", "val_dataset"):
        for name in ("full_equivariance", "shift_equivariance"):
            if getattr(getattr(spec.dataset, split), name):
                yield _not_yet(f"dataset.{split}.{name}")


def _not_yet(where: str) -> Problem:
    return Problem("this version cannot act on this field", where, "Leave it at its default.")
