"""Checks of the spec of a run (distill, train, train_upsampler) that need no files."""

from __future__ import annotations

import math
from collections.abc import Iterator

from radioplat.common.imports import missing_core, missing_extra
from radioplat.errors import Problem
from radioplat.spec.checks.tasks.evaluate import evaluation_problems
from radioplat.spec.checks.tasks.export import chained_export_problems
from radioplat.spec.checks.tasks.inference import inference_problems
from radioplat.spec.checks.tasks.training_task import Check, training_task
from radioplat.spec.checks.teaching.losses import loss_problems
from radioplat.spec.checks.teaching.scheme import scheme_problems
from radioplat.spec.checks.teaching.stages import held_out_view_problems, mosaic_problems, stage_problems
from radioplat.spec.checks.teaching.students import students_problems
from radioplat.spec.checks.teaching.target_norm import target_norm_problems
from radioplat.spec.checks.teaching.upsampling import upsampled_teachers, upsampler_training
from radioplat.spec.checks.training.checkpoints import checkpoint_problems
from radioplat.spec.checks.training.optimizer import optimizer_problems
from radioplat.spec.checks.training.student import student_structure
from radioplat.spec.checks.training.zero import zero_problems
from radioplat.spec.checks.unused_fields import unknown_teacher, unused_fields
from radioplat.spec.loading.job_paths import paths_in_copy
from radioplat.spec.loading.weights_fields import unfetched_weights
from radioplat.spec.resolved.image_sizes import scale_chances
from radioplat.spec.resolved.losses import Binds, definition_of
from radioplat.spec.resolved.normalisation import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    normalisation_problems,
    student_normalisation,
)
from radioplat.spec.resolved.partitions import partition_problems
from radioplat.spec.resolved.paths import storage_problems
from radioplat.spec.resolved.teacher import resolve_teachers, teacher_names
from radioplat.spec.schema.cluster import AUTO, Placement, TeacherServiceConfig
from radioplat.spec.schema.distill import Source
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, Tracker

_CHAIN = ("evaluate", "export", "gen_trt_engine")


def check(spec: Spec, task: str = "distill") -> list[Problem]:
    """Return the problems of ``spec`` for ``task`` (``distill``, ``train`` or ``train_upsampler``)."""
    return [
        *paths_in_copy(spec),
        *students_problems(spec),
        *unfetched_weights(spec),
        *_sizes(spec),
        *_augmentation(spec),
        *_draws(spec),
        *optimizer_problems(spec),
        *zero_problems(spec),
        *_feature_cache(spec),
        *checkpoint_problems(spec),
        *evaluation_problems(spec),
        *inference_problems(spec),
        *student_structure(spec),
        *_unavailable(spec),
        *_wandb(spec),
        *_packages(spec),
        *held_out_view_problems(spec),
        *_views_per_step(spec),
        *_keep_best(spec),
        *training_task(spec).check_fields(spec),
        *_OF_COMMAND[task](spec),
    ]


def _teaching(spec: Spec) -> Iterator[Problem]:
    for part in (
        _teachers,
        scheme_problems,
        loss_problems,
        _bindings,
        training_task(spec).check_teaching,
        upsampled_teachers,
        partition_problems,
        _chain,
        stage_problems,
        mosaic_problems,
        target_norm_problems,
    ):
        yield from part(spec)


def _upsampler(spec: Spec) -> Iterator[Problem]:
    yield from _teachers(spec)
    yield from upsampler_training(spec)


def _sizes(spec: Spec) -> Iterator[Problem]:
    dataset = spec.dataset
    if spec.global_batch_size % dataset.batch_size:
        yield Problem(
            f"{spec.global_batch_size} is not a multiple of dataset.batch_size {dataset.batch_size}",
            "train.global_batch_size",
            "The global batch is divided into whole micro-batches.",
        )
    fewest, most = spec.worker_bounds
    if fewest > most:
        hint = "The default of train.max_workers is train.num_gpus * train.num_nodes."
        yield Problem(f"{fewest} is more than the maximum of {most} workers", "train.min_workers", hint)
    pair, where = student_normalisation(spec)
    yield from normalisation_problems(*pair, where)
    augmentation = dataset.augmentation
    if where != "dataset.augmentation.":  # teachers may still use these
        yield from normalisation_problems(
            augmentation.mean or IMAGENET_MEAN, augmentation.std or IMAGENET_STD, "dataset.augmentation."
        )


def _augmentation(spec: Spec) -> Iterator[Problem]:
    """Check pairs of bounds and lists of the augmentation."""
    augmentation, path = spec.dataset.augmentation, "dataset.augmentation"
    pairs = {
        "random_crop.scale_range": augmentation.random_crop.scale_range,
        "random_crop.ratio_range": augmentation.random_crop.ratio_range,
        "with_scale_random_crop.scale_range": augmentation.with_scale_random_crop.scale_range,
    }
    for name, pair in pairs.items():
        if len(pair) != 2 or pair[0] > pair[1]:
            yield Problem(f"two numbers with low <= high are needed, not {pair}", f"{path}.{name}")
    if augmentation.random_rotate.enable and not augmentation.random_rotate.angle_list:
        yield Problem("at least one angle is needed", f"{path}.random_rotate.angle_list")


def _views_per_step(spec: Spec) -> Iterator[Problem]:
    """Check that a micro-batch holds all views of its images, and that they differ."""
    views, path = spec.dataset.train_dataset.views_per_step, "dataset.train_dataset.views_per_step"
    if views == 1:
        return
    if spec.dataset.batch_size % views:
        hint = "Take a divisor of it: a micro-batch holds all views of an image."
        yield Problem(f"{views} does not divide dataset.batch_size {spec.dataset.batch_size}", path, hint)
    different = spec.dataset.augmentation.views_per_image
    split = spec.dataset.train_dataset
    shifted = split.full_equivariance or split.shift_equivariance
    if (different and different < views) or not (spec.dataset.augmentation.is_random or shifted):
        hint = "Raise dataset.augmentation.views_per_image, turn a random augmentation on, or take 1."
        yield Problem("the views of an image would be the same", path, hint)


def _keep_best(spec: Spec) -> Iterator[Problem]:
    """Check that a validation measures the score of ``train.keep_best``."""
    held_out = spec.dataset.val_dataset
    measured = training_task(spec).has_labels(spec) and (held_out.tar_data_sources or held_out.images_dir)
    if spec.train.keep_best and not (spec.dataset.knn_validation or measured):
        hint = "Name dataset.val_dataset; without dataset.num_classes set dataset.knn_validation=true too."
        message = "no validation measures the score: mAP of a detector, top-1 of a classifier or of kNN"
        yield Problem(message, "train.keep_best", hint)


def _draws(spec: Spec) -> Iterator[Problem]:
    """Check fields with image sizes and probabilities."""
    scales = scale_chances(spec.dataset.augmentation.multi_scales)
    where = "dataset.augmentation.multi_scales"
    yield from _chances(scales, where)
    for i, teacher in enumerate(spec.distill.teacher):
        draw, field = teacher.stochastic_resolutions, f"distill.teacher[{i}].stochastic_resolutions"
        if draw and scales:
            yield Problem("two fields set the student's image sizes", where, f"Leave this one or {field} empty.")
        yield from _chances(draw, field)
    for i, partition in enumerate(spec.distill.partitions):
        field = f"distill.partitions[{i}].sizes"
        if partition.img_size and partition.sizes:
            yield Problem("img_size sets the size of this partition already", field, "Leave out one of them.")
        yield from _chances(scale_chances(partition.sizes), field)


def _chances(draw: dict[int, float], where: str) -> Iterator[Problem]:
    if any(size < 1 or not 0 <= chance < math.inf for size, chance in draw.items()):
        yield Problem(f"sizes of at least 1 and probabilities of at least 0 are needed, not {draw}", where)
    elif draw and not any(draw.values()):
        yield Problem("no size has a probability above 0", where)


def _teachers(spec: Spec) -> Iterator[Problem]:
    if not spec.distill.teacher:
        yield Problem("at least one teacher is needed", "distill.teacher")
        return
    names = teacher_names(spec.distill.teacher)
    for key in spec.teachers:
        yield from unknown_teacher(key, names, f"teachers.{key}")
    for teacher in resolve_teachers(spec):
        if teacher.source in (Source.ema, Source.deeper):
            continue
        if not teacher.weights and not teacher.inside:
            yield Problem(
                "a teacher needs trained weights",
                f"{teacher.where}.pretrained_teacher_model_path",
                "Give the path of a local .safetensors, .pth or .pt file.",
            )
        yield from normalisation_problems(teacher.norm_mean, teacher.norm_std, f"{teacher.where}.norm_")
        yield from _service(spec.teachers.get(teacher.name, TeacherServiceConfig()), f"teachers.{teacher.name}")


def _bindings(spec: Spec) -> Iterator[Problem]:
    names = teacher_names(spec.distill.teacher)
    for i, binding in enumerate(spec.distill.bindings):
        where = f"distill.bindings[{i}]"
        if binding.teacher is None and len(names) > 1:
            yield Problem("there is more than one teacher", f"{where}.teacher", f"Name one of {', '.join(names)}.")
        elif binding.teacher is not None:
            yield from unknown_teacher(binding.teacher, names, f"{where}.teacher")
        hint = "Turn one of the two off."
        if spec.train.grad_checkpointing:
            message = "bindings cannot read outputs of blocks that are recomputed"
            yield Problem(message, "train.grad_checkpointing", hint)
        if spec.train.compile:
            yield Problem("bindings cannot read module outputs of a compiled backbone", "train.compile", hint)
        if spec.distill.vitdet.prob > 0:
            message = "bindings cannot compare module outputs inside attention windows"
            yield Problem(message, "distill.vitdet.prob", hint)
        chosen = names.index(binding.teacher) if binding.teacher in names else 0
        if names and spec.distill.teacher[chosen].mosaic > 1:
            message = "bindings cannot read module outputs for single images of a mosaic"
            yield Problem(message, f"distill.teacher[{chosen}].mosaic", "Take 1.")
        if definition_of(binding.criterion).binds is Binds.nothing:
            message = "this loss needs statistics of summaries, which bindings do not have"
            yield Problem(message, f"{where}.criterion", "Take another loss.")


def _service(service: TeacherServiceConfig, where: str) -> Iterator[Problem]:
    replicas = service.replicas
    pair = [replicas, replicas] if isinstance(replicas, int) else replicas
    whole = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
    if replicas != AUTO and (not whole or not 1 <= pair[0] <= pair[1]):
        yield Problem(f"must be at least 1, or [minimum, maximum], or auto, not {replicas}", f"{where}.replicas")
    if replicas == AUTO and service.pool:
        hint = "Give a number, or [minimum, maximum]."
        yield Problem("a pool that several runs share does not follow the pace of one", f"{where}.replicas", hint)
    if {"CPU", "GPU", "memory"} & service.resources.keys():
        hint = "For CPUs and GPUs set num_cpus and num_gpus."
        yield Problem("only custom resources are allowed here", f"{where}.resources", hint)
    if service.placement is Placement.inline:
        message = "it has no effect with placement: inline, inside the workers"
        yield from unused_fields(service, ("resources", "pool"), where, message, "Leave one of the two out.")


def _feature_cache(spec: Spec) -> Iterator[Problem]:
    cache = spec.feature_cache
    if cache.dir is None:
        return
    if not cache.dir.strip():
        yield Problem("the name is empty", "feature_cache.dir", "Remove the line to disable the cache.")
    else:
        yield from storage_problems(cache.dir, "feature_cache.dir")


def _chain(spec: Spec) -> Iterator[Problem]:
    for i, task in enumerate(spec.distill.then):
        if task not in _CHAIN:
            where, hint = f"distill.then[{i}]", f"Tasks: {', '.join(_CHAIN)}."
            yield Problem(f"{task!r} cannot follow a distillation", where, hint)
    yield from chained_export_problems(spec)


def _unavailable(spec: Spec) -> Iterator[Problem]:
    """Reject values of TAO's fields that this version does not support, so that none is ignored silently."""
    train, distill = spec.train, spec.distill
    for where, backbone in {
        "model.backbone": spec.model.backbone,
        **{f"distill.teacher[{i}].model.backbone": t.model.backbone for i, t in enumerate(distill.teacher)},
    }.items():
        hint = "Leave it at its default."
        yield from unused_fields(backbone, ("feature_dim",), where, "this version does not support this field", hint)
        if backbone.input_dim[:1] != [3]:
            yield Problem("images must have three channels", f"{where}.input_dim")
    if train.gpu_ids and len(train.gpu_ids) != train.num_gpus:
        yield Problem(
            f"{len(train.gpu_ids)} ids and train.num_gpus={train.num_gpus}",
            "train.gpu_ids",
            "Leave it empty: Ray assigns a GPU to each worker. CUDA_VISIBLE_DEVICES limits the choice.",
        )


def _wandb(spec: Spec) -> Iterator[Problem]:
    if spec.tracked_by(Tracker.wandb):
        where, off = ("wandb.enable", "false") if spec.train.trackers is None else ("train.trackers", "[]")
        yield from missing_extra("wandb", "Weights & Biases", where, instead=f"Or set {where}={off}.")
    config, modes = spec.wandb, ("online", "offline", "disabled")
    if config.sync_tensorboard and not spec.tracked_by(Tracker.tensorboard):
        hint = "Set train.trackers=[wandb,tensorboard]."
        yield Problem("the run writes no event files", "wandb.sync_tensorboard", hint)
    if config.mode is not None and config.mode not in modes:
        yield Problem(f"must be one of {', '.join(modes)}, not {config.mode!r}", "wandb.mode")


def _packages(spec: Spec) -> Iterator[Problem]:
    """Check that a package is installed which only workers import."""
    if spec.train.engine is EngineName.deepspeed:
        yield from missing_core("deepspeed", "engine deepspeed", "train.engine")


_OF_COMMAND: dict[str, Check] = {
    "distill": _teaching,
    "train": lambda spec: training_task(spec).check_labels(spec),
    "train_upsampler": _upsampler,
}
