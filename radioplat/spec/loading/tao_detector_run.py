"""Translate data, training and evaluation of TAO's DINO and RT-DETR specs; their models are in ``tao_detectors``."""

from __future__ import annotations

from typing import Any

from radioplat.errors import Problem
from radioplat.spec.loading.plain_tree import get, has, move, note, put, take
from radioplat.spec.loading.tao_detector_model import UNREAD, is_compat

# Path of a field: why it has no effect here.
_WITHOUT_EFFECT = {
    "dataset.pin_memory": "batches are copied without it",
    "dataset.dataset_type": "both types have the same images",
    "dataset.augmentation.random_resize_max_size": "views are squares",
    "dataset.augmentation.fixed_padding": "views are squares without padding",
    "train.conf_threshold": UNREAD,
    "train.distributed_strategy": "DeepSpeed trains; train.zero_stage divides the optimizer's state",
    "train.activation_checkpoint": "nothing is computed twice, which changes no result",
    "train.ema.cpu_offload": "the average is beside the student, which changes no result",
    "train.optim.lr_linear_proj_mult": UNREAD,
    "train.optim.warmup_steps": UNREAD,
    "evaluate.input_width": "images have dataset.val_img_size",
    "evaluate.input_height": "images have dataset.val_img_size",
}
_OF_KIND: dict[str, dict[str, str]] = {
    "dino": {},
    "rtdetr": {
        "dataset.remap_mscoco_category": "classes are the categories of the annotation file, without gaps",
        "dataset.eval_class_ids": UNREAD,
    },
}
# Path of a field: values with which TAO does what we do or what nobody can tell apart, what others mean, and a hint.
_ONLY: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "dataset.train_sampler": (("default_sampler",), "another sampler", "Leave it out."),
    "dataset.eval_class_ids": ((None,), "an evaluation of some classes", "Leave it out: the report has each class."),
    "dataset.augmentation.preserve_aspect_ratio": ((False,), "padding to a square", "Leave it out."),
    "dataset.augmentation.train_random_resize": (([400, 500, 600],), "resizing before a crop", "Take random_crop."),
    "dataset.augmentation.train_random_crop_min": ((384,), "a crop of so many pixels", "Take random_crop."),
    "dataset.augmentation.train_random_crop_max": ((600,), "a crop of so many pixels", "Take random_crop."),
    "train.is_dry_run": ((False,), "a dry run", "`radioplat plan` checks a spec."),
    "train.freeze": (([], None), "freezing by name", "model.train_backbone: false freezes the backbone."),
    "train.ema.every_n_steps": ((1,), "an average of some steps", "Leave it out."),
    "train.ema.validate_original_weights": ((False,), "validation of weights without average", "Leave it out."),
    "evaluate.conf_threshold": ((0, None), "leaving out boxes of low score", "Leave it out."),
}
_SPLITS = {f"{split}_data_sources": f"{split}_dataset" for split in ("train", "val", "test", "quant_calibration")}
_SOURCE = {"image_dir": "images_dir", "json_file": "coco"}
_NAMES = {  # path in TAO's spec: in ours
    "dataset.augmentation.input_mean": "dataset.augmentation.mean",
    "dataset.augmentation.input_std": "dataset.augmentation.std",
    "dataset.augmentation.scales": "dataset.augmentation.multi_scales",
    "dataset.augmentation.horizontal_flip_prob": "dataset.augmentation.random_flip.hflip_probability",
    "dataset.augmentation.fixed_random_crop": "dataset.img_size",
    "dataset.augmentation.test_random_resize": "dataset.val_img_size",
    "train.ema.decay": "train.ema_decay",
}
_SQUARES = {"train_spatial_size": "img_size", "eval_spatial_size": "val_img_size"}
_SIDE = 640  # of TAO's RT-DETR
# Ranges of torchvision's RandomPhotometricDistort, in which TAO's RT-DETR changes colours.
_DISTORTION = {"brightness": 0.125, "contrast": 0.5, "saturation": 0.5, "hue": 0.05}
LEARNING_RATES = {"dino": 2e-4, "rtdetr": 1e-4}
BACKBONE_RATES = {"dino": 2e-5, "rtdetr": 1e-5}
SCHEDULES = {"dino": {"lr_steps": [11], "lr_step_size": 11}, "rtdetr": {"lr_steps": [1000], "lr_step_size": 1000}}


def detector_run(kind: str, tree: dict[str, Any], backbone: str, problems: list[Problem]) -> None:
    """Translate everything but the model of a detector's spec, in place.

    Args:
        kind: ``dino`` or ``rtdetr``.
        backbone: TAO's name of the student's.
        problems: those found are added.
    """
    for path, reason in (_WITHOUT_EFFECT | _OF_KIND[kind]).items():
        if has(tree, path) and take(tree, path) is not None:
            note(tree, path, reason)
    for path, (values, feature, hint) in _ONLY.items():
        if has(tree, path) and (given := take(tree, path)) not in values:
            problems.append(Problem(f"{feature} ({given}) is not available here", path, hint))
    for theirs, ours in _NAMES.items():
        move(tree, theirs, ours)
    if get(tree, "train.ema") == {}:
        take(tree, "train.ema")
    if get(tree, "train.precision") not in (None, "fp32"):
        note(tree, "train.precision", "detectors are trained in fp32")
        take(tree, "train.precision")
    put(tree, "train.precision", "fp32")
    if get(tree, "dataset.batch_size") == -1:  # in TAO's specs for its export
        note(tree, "dataset.batch_size", "an exported file takes batches of any size")
        take(tree, "dataset.batch_size")
    if kind == "rtdetr":
        _views(tree, problems)
    dataset, optim = get(tree, "dataset"), get(tree, "train.optim")
    if isinstance(dataset, dict):
        _inferred(tree, problems)
        _sources(dataset, problems)
    if isinstance(optim, dict):
        _optimizer(tree, optim, kind, backbone, problems)


def _inferred(tree: dict[str, Any], problems: list[Problem]) -> None:
    """Move the folder of images of ``infer_data_sources`` to where ``inference`` looks for it."""
    path, ours = "dataset.infer_data_sources", "dataset.test_dataset.images_dir"
    if not isinstance(get(tree, path), dict):
        if get(tree, path) is None:
            take(tree, path)
        return
    folders, names = take(tree, f"{path}.image_dir"), take(tree, f"{path}.classmap")
    folders = folders if isinstance(folders, list) else [folders] if folders else []
    if not get(tree, path):
        take(tree, path)  # what is left is refused as unknown
    if names:
        note(tree, f"{path}.classmap", "names of classes are in a checkpoint, else dataset.classes")
    if folders and (get(tree, "dataset.test_data_sources") or get(tree, ours) not in (None, *folders)):
        note(tree, f"{path}.image_dir", f"inference reads {ours}, which the spec sets otherwise")
    elif len(folders) == 1:
        put(tree, ours, folders[0])
    elif folders:
        hint = "Call radioplat inference for each."
        problems.append(Problem(f"one folder is supported here, not {len(folders)}", f"{path}.image_dir", hint))


def _sources(dataset: dict[str, Any], problems: list[Problem]) -> None:
    for theirs, ours in _SPLITS.items():
        given = dataset.pop(theirs, None)
        if given is None:
            continue
        sources = given if isinstance(given, list) else [given]
        if len(sources) != 1 or not isinstance(sources[0], dict):
            hint = "Merge the annotation files into one."
            problems.append(Problem(f"one source is supported here, not {len(sources)}", f"dataset.{theirs}", hint))
            continue
        # Unknown names are refused there; TAO's empty ones are unset.
        source = {_SOURCE.get(name, name): value for name, value in sources[0].items() if value != ""}
        split = dataset.get(ours)
        if split is None or isinstance(split, dict):  # else it is refused itself
            dataset[ours] = {**(split or {}), **source}


def _views(tree: dict[str, Any], problems: list[Problem]) -> None:
    """Translate sizes and augmentation of RT-DETR; sizes that the spec leaves out are TAO's."""
    where = "dataset.augmentation"
    for theirs, ours in _SQUARES.items():
        given = take(tree, f"{where}.{theirs}") or [_SIDE, _SIDE]
        if not isinstance(given, list) or not given or any(side != given[0] for side in given):
            hint = "Give the same height and width."
            problems.append(Problem(f"views are squares, not of {given}", f"{where}.{theirs}", hint))
        else:
            put(tree, f"dataset.{ours}", given[0])
    sizes = get(tree, f"{where}.multi_scales")
    if sizes and is_compat(tree) and get(tree, "distill.teacher"):
        take(tree, f"{where}.multi_scales")
        note(tree, f"{where}.multi_scales", "TAO's distillation has one size, train_spatial_size")
    elif isinstance(sizes, list) and any(isinstance(size, list) for size in sizes):
        problems.append(Problem("views are squares", f"{where}.multi_scales", "Give one number for each size."))
    share = get(tree, f"{where}.distortion_prob")
    if share is None or isinstance(share, (int, float)):  # else it stays, and is refused
        take(tree, f"{where}.distortion_prob")
    if isinstance(share, (int, float)):
        colours = {"enable": share > 0, **_DISTORTION, "color_probability": share}
        for name, value in colours.items():
            put(tree, f"{where}.random_color.{name}", value)
    share = take(tree, f"{where}.iou_crop_prob")
    if share == 0:
        put(tree, f"{where}.random_crop.enable", False)
    elif share is not None:
        note(tree, f"{where}.iou_crop_prob", "random_crop crops each image, whatever its objects")


def _optimizer(tree: dict[str, Any], optim: dict[str, Any], kind: str, backbone: str, problems: list[Problem]) -> None:
    steps, vit = SCHEDULES[kind], backbone.startswith("vit")
    if "optimizer" in optim:
        optim["optim"] = str(optim.pop("optimizer")).lower()
    rate, decay = _number(optim.pop("lr_backbone", None)), optim.pop("layer_decay_rate", None)
    if vit and rate is not None:
        note(tree, "train.optim.lr_backbone", "TAO's layers of a ViT learn at lr times powers of layer_decay_rate")
    elif isinstance(rate, (int, float)):
        if optim.get("lr") is None:
            optim["lr"] = LEARNING_RATES[kind]
        whole, mults = _number(optim["lr"]), optim.get("lr_mults") or {}
        if isinstance(mults, dict) and "backbone." in mults:
            hint = "Leave one of them out."
            problems.append(Problem("lr_mults sets the rate of the backbone, too", "train.optim.lr_backbone", hint))
        elif isinstance(mults, dict) and isinstance(whole, float) and whole:  # else they are refused themselves
            optim["lr_mults"] = {**mults, "backbone.": rate / whole}
    elif rate is not None:
        optim["lr_backbone"] = rate  # refused as unknown
    if vit and decay is not None:
        optim["layer_decay"] = decay
    elif decay is not None:
        note(tree, "train.optim.layer_decay_rate", "TAO applies it to a ViT alone")
    named = optim.keys() & {"lr_scheduler", *steps, "lr_decay"}
    policy = optim.pop("lr_scheduler", "MultiStep")
    milestones, every = (optim.pop(name, default) for name, default in steps.items())
    gamma = optim.pop("lr_decay", 0.1)
    if not named:
        return
    if optim.get("policy") is not None:
        where = f"train.optim.{min(named)}"
        problems.append(Problem("policy sets the schedule already", where, "Leave this out, or policy."))
        return
    if policy == "MultiStep":
        optim |= {"policy": "multistep", "policy_params": {"milestones": milestones, "gamma": gamma}}
    elif policy == "StepLR":
        optim |= {"policy": "step", "policy_params": {"step_size": every, "gamma": gamma}}
    else:
        message = f"only MultiStep and StepLR are supported, not {policy}"
        problems.append(Problem(message, "train.optim.lr_scheduler", "Give train.optim.policy instead."))


def _number(value: Any) -> Any:
    """Return a number as a float, also from YAML's text for 1e-05; anything else unchanged."""
    try:
        return value if value is None else float(value)
    except (TypeError, ValueError):
        return value
