"""Fill in what TAO's trainer does for the fields that a spec with ``compat: tao`` leaves out.

Values that the spec has are kept. Facts are those of NVIDIA-TAO/tao-pytorch 7.0.1: ``multimodal/radio``,
``cv/classification_pyt``, ``cv/dino`` and ``cv/rtdetr``, whose specs have fields of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from radioplat.spec.loading.plain_tree import get, note, put
from radioplat.spec.loading.tao_detector_run import BACKBONE_RATES, LEARNING_RATES, SCHEDULES

TAO = "tao"
_MAPS = ("spatial", "combo")
_MODES = {"KL": "logits", "CE": "logits", "BALANCED": "spatial", "MSE": "spatial"}  # of mode auto; others: summary
# Path of a field: TAO's value. Where TAO has no such field: the value with which we do what TAO does.
_DEFAULTS: dict[str, Any] = {
    "distill.loss_type": "KL",
    "distill.use_mlp": True,
    "distill.mean_over_teachers": True,
    "distill.head_fit.enabled": False,
    "model.backbone.freeze_norm": False,
    "model.backbone.cpe_crop": "sides",
    "train.optim.lr": 6e-5,
    "train.optim.warmup_epochs": 0,
    "train.optim.head_warmup_epochs": 0,
    "train.ema_decay": 0.998,
    "train.precision": "fp32",
    "train.tf32": False,
    "train.cudnn.deterministic": True,
    "dataset.augmentation.views_per_image": 0,
    "dataset.augmentation.random_color.color_probability": 0.5,
}
_DETECTION = {
    "train.optim.weight_decay": 1e-4,
    "train.optim.warmup_epochs": 0,
    "train.clip_grad_norm": 0.1,
    "train.ema_decay": 0.999,
    "train.tf32": False,
    "train.cudnn.deterministic": True,
}
_CLASSIFICATION = {"distill.loss_scale": 100.0, "distill.target_norm.both_sides": False}
_OF_CLASSIFICATION = ("dataset.dataset", "model.head.")  # fields of classification_pyt, by their beginning
_SIGNS = ("train.gpu_ids", "train.tensorboard", "train.cudnn")
_OF_MAPS = {"type": "tao_phi_s", "fit": "with_step", "both_sides": True}  # of distill.target_norm


def accept_tao_objective(tree: dict[str, Any]) -> None:
    """Set unset fields of a plain spec with ``compat: tao``, in place."""
    if tree.get("compat") != TAO or not _is_whole(tree):
        return
    if tree["model"].get("task") == "detection":
        _accept_detector(tree)
        return
    classification = any(path.startswith(_OF_CLASSIFICATION) for path in tree.get("without_effect") or ())
    for path, value in {**_DEFAULTS, **(_CLASSIFICATION if classification else {})}.items():
        put(tree, path, value)
    if classification and tree["dataset"].get("num_classes"):
        put(tree, "distill.label_form", "tao")
    backbone = tree["model"].get("backbone")
    if isinstance(backbone, dict) and "radio" in str(backbone.get("type")):
        put(backbone, "position_dropout", 0.1)
    distill = tree["distill"]
    windows = distill.get("vitdet")
    if isinstance(windows, dict) and windows.get("prob") and not windows.get("window_sizes"):
        del windows["prob"]
        note(tree, "distill.vitdet.prob", "TAO has no windows without distill.vitdet.window_sizes")
    teachers = [teacher for teacher in distill.get("teacher") or () if isinstance(teacher, dict)]
    modes = [_mode(teacher, distill) for teacher in teachers]
    if any(mode in _MAPS for mode in modes):
        for name, value in _OF_MAPS.items():
            put(tree, f"distill.target_norm.{name}", value)
    for teacher, mode in zip(teachers, modes, strict=True):
        if mode == "combo":
            put(teacher, "summary_loss_type", "CE")
            put(teacher, "spatial_loss_type", "mse")
        if mode in ("summary", "combo"):
            put(teacher, "summary_norm_type", "layer_norm" if mode == "summary" else "none")


def _accept_detector(tree: dict[str, Any]) -> None:
    """Set unset fields of a detector's spec."""
    kind = "dino" if get(tree, "model.detector.kind") == "dino" else "rtdetr"
    optim = get(tree, "train.optim") or {}
    if isinstance(optim, dict) and not optim.keys() & {"policy", "policy_params"}:
        put(tree, "train.optim.policy", "multistep")
        put(tree, "train.optim.policy_params", {"milestones": SCHEDULES[kind]["lr_steps"], "gamma": 0.1})
    put(tree, "train.optim.lr", LEARNING_RATES[kind])
    whole = get(tree, "train.optim.lr")
    if type(whole) in (int, float) and whole and not str(get(tree, "model.backbone.type")).startswith("vit"):
        put(tree, "train.optim.lr_mults", {"backbone.": BACKBONE_RATES[kind] / whole})
    if tree["distill"].get("teacher"):
        put(tree, "distill.binding_form", "tao")
    for path, value in _DETECTION.items():
        put(tree, path, value)


def tao_signs(changed: dict[str, Any]) -> list[str]:
    """Return the fields among ``changed`` that TAO's specs have, and ours rarely."""
    return [*(changed.get("without_effect") or ()), *(path for path in _SIGNS if get(changed, path) is not None)]


def tao_differences(changed: dict[str, Any]) -> list[str]:
    """Return ``field=value`` of everything that ``compat: tao`` would add to the ``changed`` fields of a spec."""
    with_tao = copy.deepcopy({**changed, "compat": TAO})
    accept_tao_objective(with_tao)
    before, after = dict(_leaves(changed)), dict(_leaves(with_tao))
    added = {path: value for path, value in after.items() if path not in before and path != "compat"}
    return [f"{path}={str(value).lower() if isinstance(value, bool) else value}" for path, value in added.items()]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{i}]")
    else:
        yield path, value


def _is_whole(tree: dict[str, Any]) -> bool:
    """Return False if a section is no mapping, which is reported later."""
    sections = [tree.setdefault(name, {}) for name in ("distill", "model", "train", "dataset")]
    return all(isinstance(section, dict) for section in sections)


def _mode(teacher: dict[str, Any], distill: dict[str, Any]) -> str:
    """Return the mode of a teacher, which is not ``auto``."""
    mode = teacher.get("mode") or distill.get("mode") or "auto"
    loss = teacher.get("loss_type") or distill["loss_type"]
    return _MODES.get(loss, "summary") if mode == "auto" else str(mode)
