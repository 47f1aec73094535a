"""Fields of TAO's ``radio`` and ``classification_pyt`` specs that we spell otherwise, ignore, or cannot honour.

Facts are those of NVIDIA-TAO/tao-pytorch 7.0.1. A field is translated, dropped with a reason that a start prints, or,
if it would change the result, refused unless it has the value with which TAO does what we do.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from radioplat.errors import Problem
from radioplat.spec.loading.plain_tree import get, move, note, take

# Path of a field, in which * stands for one name: why it has no effect here.
NO_EFFECT = {
    "encryption_key": "checkpoints are not encrypted",
    "model_name": "the name of a run is wandb.name",
    "dataset.root_dir": "classes come from the folders of dataset.train_dataset",
    "dataset.dataset": "the kind of a dataset follows from its files",
    "dataset.shuffle": "the order is always drawn by dataset.train_dataset.seed",
    "dataset.train_nolabel": "images without labels are a source of dataset.train_dataset",
    "dataset.knn_num_classes": "classes are counted in the images",
    "dataset.augmentation.patch_size": "a view is a multiple of each model's own patch",
    "dataset.augmentation.random_rotate.angle_range": "angles are those of angle_list",
    "train.optim.monitor_name": "no schedule watches a metric; train.keep_best has its own score",
    "train.tensorboard.infrequent_logging_frequency": "pictures are drawn at the end of a run",
    "evaluate.gpu_ids": "the cluster chooses devices",
    "evaluate.num_nodes": "an evaluation runs on one machine",
    "evaluate.vis_after_n_batches": "evaluate.pictures is the number of pictures",
    "evaluate.is_quantized": "a checkpoint says whether it is quantized",
    "evaluate.trt_engine": "name an engine in evaluate.models",
    "inference.num_gpus": "images are computed by one process",
    "inference.gpu_ids": "images are computed on the first GPU; CUDA_VISIBLE_DEVICES chooses it",
    "inference.num_nodes": "inference runs on one machine",
    "inference.vis_after_n_batches": "inference.pictures is the number of pictures",
    "inference.is_quantized": "a checkpoint says whether it is quantized",
    "inference.input_width": "dataset.val_img_size is the side of an image",
    "inference.input_height": "dataset.val_img_size is the side of an image",
    "inference.color_map": "boxes are drawn in one colour, with the names of their classes",
    "inference.outline_width": "boxes are drawn with lines of two pixels",
    "inference.is_internal": "results are named by the path of the image below its folder",
    "export.gpu_id": "an export runs on the CPU",
    "export.on_cpu": "an export runs on the CPU",
    "export.serialize_nvdsinfer": "no DeepStream configuration is written",
    "export.is_quantized": "a checkpoint says whether it is quantized",
    "dataset.augmentation.mixup_alpha": "images are not mixed",
    "model.head.in_channels": "a classifier has the width of the backbone",
    "model.head.topk": "an evaluation prints top-1",
    "model.head.custom_args": "a classifier has no further arguments",
    "model.head.loss.type": "labels are compared by cross-entropy",
}
# Path: the values that change nothing, and what TAO does with others.
ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "dataset.augmentation.use_continuous_rotation": ((False,), "continuous rotation"),
    "dataset.augmentation.perspective_distortion": (({}, None), "perspective distortion"),
    "dataset.augmentation.mixup_cutmix": ((False,), "a mixture of images"),
    "dataset.classes_file": (("", None), "a file of class names"),
    "model.head.type": (("TAOLinearClsHead",), "another head than a linear classifier"),
    "model.head.loss.label_smooth_val": ((0, 0.0), "label smoothing"),
    "model.head.binary": ((False,), "a head with one output"),
}
_MOVED = {"train.results_dir": "distill.results_dir", "wandb.run_id": "wandb.id"}
# Path: values with which TAO leaves a field to itself.
_UNSET = {
    **dict.fromkeys(("results_dir", "wandb.entity", "wandb.group", "dataset.*.images_dir"), ("",)),
    **dict.fromkeys(("quantize.model_path", "quantize.results_dir"), ("",)),
    "evaluate.batch_size": (-1,),
    "inference.batch_size": (-1,),
    **dict.fromkeys(("distill.vitdet", "distill.bindings"), (None,)),
    "dataset.*.native_resolution_filter": (None,),
    "dataset.*.data_weight_mode": ("none",),
}
_WEIGHTS = "pretrained_teacher_model_path"
_POLICY_PARAMS = {"step": ("step_size", "gamma"), "multistep": ("milestones", "gamma")}
_POLICY_DEFAULTS = {"step_size": 30, "gamma": 0.1, "milestones": [10, 20]}


def accept_tao_fields(tree: dict[str, Any]) -> list[Problem]:
    """Translate and drop TAO's fields of a plain spec, in place; note in ``without_effect`` what was dropped and why.

    Returns:
        Problems: fields that would change the result.
    """
    _move_teacher(tree)
    for old, new in _MOVED.items():
        move(tree, old, new)
    for path, values in _UNSET.items():
        _drop_if(tree, path, values)
    _policy(tree)
    problems = []
    for path, (allowed, feature) in ONLY.items():
        for at, value in list(_matching(tree, path)):
            take(tree, at)
            if value not in allowed:
                problems.append(Problem(f"{feature} ({value}) is not available here", at, "Leave it out."))
    noted = tree.get("without_effect")
    notes = dict(noted) if isinstance(noted, dict) else {}
    for pattern, reason in NO_EFFECT.items():
        for at, _ in list(_matching(tree, pattern)):
            take(tree, at)
            notes[at] = reason
    _drop_empty(tree, "model.head")
    if notes:
        tree["without_effect"] = notes
    return problems


def _move_teacher(tree: dict[str, Any]) -> None:
    """Move the weights and the flat backbone of TAO's single teacher to where ours has them."""
    distill = tree.get("distill")
    if not isinstance(distill, dict):
        return
    given = distill.get("teacher")
    teachers = given if isinstance(given, list) else []
    if len(teachers) == 1 and isinstance(teachers[0], dict):
        tree["_teacher"] = teachers[0]  # a path to it, for the move
        move(tree, f"distill.{_WEIGHTS}", f"_teacher.{_WEIGHTS}")
        del tree["_teacher"]
    elif distill.get(_WEIGHTS) == "":
        del distill[_WEIGHTS]
    for teacher in teachers:
        if isinstance(teacher, dict) and isinstance(teacher.get("backbone"), dict):
            teacher.setdefault("model", {}).setdefault("backbone", teacher.pop("backbone"))
        if isinstance(teacher, dict) and teacher.pop("head", None) is not None:
            note(tree, "distill.teacher.head", "the teacher's own file has its head")


def _policy(tree: dict[str, Any]) -> None:
    """Drop TAO's defaults of other policies' parameters: its specs give those of all."""
    optim = get(tree, "train.optim")
    params = get(optim, "policy_params")
    if isinstance(params, dict):
        own = _POLICY_PARAMS.get(str(optim.get("policy", "linear")), ())
        optim["policy_params"] = {
            name: value for name, value in params.items() if name in own or _POLICY_DEFAULTS.get(name) != value
        }


def _matching(tree: Any, pattern: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each field of ``tree`` that ``pattern`` names."""
    name, _, rest = pattern.partition(".")
    for key in [key for key in tree if fnmatch.fnmatchcase(str(key), name)] if isinstance(tree, dict) else ():
        at = f"{path}.{key}" if path else str(key)
        if rest:
            yield from _matching(tree[key], rest, at)
        else:
            yield at, tree[key]


def _drop_if(tree: dict[str, Any], path: str, values: tuple[Any, ...]) -> None:
    for at, value in list(_matching(tree, path)):
        if value in values:
            take(tree, at)


def _drop_empty(tree: dict[str, Any], path: str) -> None:
    """Remove the section ``path``, and sections in it, that hold nothing any more."""
    for at, section in list(_matching(tree, path)):
        for name, inner in list(section.items()) if isinstance(section, dict) else ():
            if inner == {}:
                section.pop(name)
        if section == {}:
            take(tree, at)
