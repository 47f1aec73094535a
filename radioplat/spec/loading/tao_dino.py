"""Translate TAO's spec of DINO into this spec's fields.

TAO writes a detector's ``model`` flat (``model.backbone: resnet_50``, ``model.num_queries: 300``), and a teacher in
``distill.teacher`` likewise; here backbone and detector are two sections. Fields without a translation stay where they
are and are refused as unknown.
"""

from __future__ import annotations

import typing
from typing import Any

from radioplat.errors import Problem

# TAO's name: arguments of radioplat.models.detectors.dino.dino.DinoConfig.
_OPTIONS = {
    "num_queries": ("num_queries",),
    "num_select": ("num_select",),
    "num_feature_levels": ("num_feature_levels",),
    "hidden_dim": ("d_model",),
    "nheads": ("encoder_attention_heads", "decoder_attention_heads"),
    "enc_layers": ("encoder_layers",),
    "dec_layers": ("decoder_layers",),
    "dim_feedforward": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "enc_n_points": ("encoder_n_points",),
    "dec_n_points": ("decoder_n_points",),
    "dropout_ratio": ("dropout",),
    # TAO's matcher uses the losses' weights as its costs.
    "cls_loss_coef": ("class_loss_coefficient", "class_cost"),
    "bbox_loss_coef": ("bbox_loss_coefficient", "bbox_cost"),
    "giou_loss_coef": ("giou_loss_coefficient", "giou_cost"),
    "interm_loss_coef": ("encoder_loss_coefficient",),
    "focal_alpha": ("focal_alpha",),
    "dn_number": ("num_denoising",),
    "dn_box_noise_scale": ("box_noise_scale",),
    "dn_label_noise_ratio": ("label_noise_ratio",),
}
_COSTS = {"set_cost_class": "class_cost", "set_cost_bbox": "bbox_cost", "set_cost_giou": "giou_cost"}  # older releases
# Options of TAO that have a fixed value here.
_FIXED: dict[str, Any] = {
    "pre_norm": False,
    "two_stage_type": "standard",
    "decoder_sa_type": "sa",
    "embed_init_tgt": True,
    "fix_refpoints_hw": -1,
    "return_interm_indices": [2, 3, 4],
    "no_interm_box_loss": False,
    "aux_loss": True,
    "dilation": False,
    "focal_gamma": 2.0,
    "loss_types": ["labels", "boxes"],
}
_DEFAULTS = {"num_queries": 300, "cls_loss_coef": 2.0}  # TAO's, where they differ from the paper
_ONLY_RTDETR = ("feat_channels", "feat_strides", "hybrid_encoder", "num_decoder_layers", "use_encoder_idx", "expansion")
_BODY = "model.backbone.0.body"  # TAO's name for the encoder's input maps
_SPLITS = {f"{split}_data_sources": f"{split}_dataset" for split in ("train", "val", "test")}


def accept_dino(tree: dict[str, Any]) -> list[Problem]:
    """Translate TAO's DINO fields in a plain spec, in place.

    Returns:
        Problems: settings without a counterpart.
    """
    problems: list[Problem] = []
    distill = _section(tree, "distill")
    teacher = _flat(_only(distill.get("teacher")))
    named = str(tree.get("model_name") or "").lower()
    student = None if named.startswith("rtdetr") else _flat(tree.get("model"))
    if student is None and (teacher is None or named.startswith("rtdetr")):
        return problems
    levels = [block.get("num_feature_levels", 4) for block in (student, teacher) if block is not None]
    coefficient = 1.0
    if student is not None:
        coefficient = student.pop("distillation_loss_coef", 1.0)
        tree["model"] = _model({**_DEFAULTS, **student}, "model", problems, is_teacher=False)
    if teacher is not None:
        path = teacher.pop("pretrained_teacher_model_path", None) or distill.pop("pretrained_teacher_model_path", None)
        model = _model(teacher, "distill.teacher", problems, is_teacher=True)
        unknown = {key: model.pop(key) for key in list(model) if key not in ("backbone", "task", "detector")}
        distill["teacher"] = [{"model": model, **({"pretrained_teacher_model_path": path} if path else {}), **unknown}]
    if isinstance(distill.get("bindings"), list):
        distill["bindings"] = list(_bindings(distill["bindings"], min(levels, default=4), coefficient, problems))
    _dataset(_section(tree, "dataset"), problems)
    _optimizer(_section(_section(tree, "train"), "optim"), problems)
    return problems


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, dict) else {}


def _only(teacher: Any) -> Any:
    return teacher[0] if isinstance(teacher, list) and len(teacher) == 1 else teacher


def _flat(block: Any) -> dict[str, Any] | None:
    """Return a copy of ``block`` if it is a flat DINO model, else None."""
    if not isinstance(block, dict) or not isinstance(block.get("backbone"), str):
        return None
    return None if any(key in block for key in _ONLY_RTDETR) else dict(block)


def _model(block: dict[str, Any], where: str, problems: list[Problem], is_teacher: bool) -> dict[str, Any]:
    """Return section ``model`` for a flat block; unknown fields stay in it."""
    options: dict[str, Any] = {}
    backbone: dict[str, Any] = {"type": block.pop("backbone")}
    for name, here in _FIXED.items():
        if name in block and (given := block.pop(name)) != here:
            problems.append(Problem(f"only {here} is supported, not {given}", f"{where}.{name}", "Leave it out."))
    for name, ours in _OPTIONS.items():
        if name in block:
            value = block.pop(name)
            options |= dict.fromkeys(ours, value)
    options |= {ours: block.pop(name) for name, ours in _COSTS.items() if name in block}
    if not block.pop("use_dn", True):
        options["num_denoising"] = 0
    high, wide = (block.pop(f"pe_temperature{side}", None) for side in "HW")
    if (high or wide) is not None:
        options["position_temperature"] = wide if high is None else high
        if None not in (high, wide) and high != wide:
            message = f"one temperature applies to both axes, not {high} and {wide}"
            problems.append(Problem(message, f"{where}.pe_temperatureW", f"Give {where}.pe_temperatureH alone."))
    trains = block.pop("train_backbone", None)
    if is_teacher and trains:
        problems.append(Problem("a teacher is frozen", f"{where}.train_backbone", "Set it to false, or leave it out."))
    if not is_teacher and trains is not None:
        backbone["freeze_backbone"] = not trains
    if path := block.pop("pretrained_backbone_path", None):
        backbone["pretrained_backbone_path"] = path
    return {"backbone": backbone, "task": "detection", "detector": {"kind": "dino", "options": options}, **block}


def _bindings(bindings: list[Any], levels: int, coefficient: float, problems: list[Problem]) -> typing.Iterator[Any]:
    """Yield bindings with this spec's module names; TAO's pair of bodies becomes one binding per level."""
    for i, binding in enumerate(bindings):
        names = [isinstance(binding, dict) and binding.get(f"{side}_module_name") for side in ("teacher", "student")]
        if not isinstance(binding, dict):
            yield binding
            continue
        weight = binding.get("weight", 1.0)
        if isinstance(weight, (int, float)) and coefficient != 1.0:
            binding = {**binding, "weight": coefficient * weight}
        if names.count(_BODY) == 1:
            which = "student" if names[0] == _BODY else "teacher"
            where = f"distill.bindings[{i}].{which}_module_name"
            message = f"{_BODY} means the maps of all levels, and can only be bound to the same of the other model"
            problems.append(Problem(message, where, "Name detr.input_proj.0, or .1, ... on both sides for one level."))
        if names.count(_BODY) < 2:
            yield binding
            continue
        for level in range(levels):
            ours = f"detr.input_proj.{level}"
            yield {**binding, "teacher_module_name": ours, "student_module_name": ours}


def _dataset(dataset: dict[str, Any], problems: list[Problem]) -> None:
    for theirs, ours in _SPLITS.items():
        if theirs not in dataset:
            continue
        given = dataset.pop(theirs)
        sources = given if isinstance(given, list) else [given]
        if len(sources) != 1 or not isinstance(sources[0], dict):
            hint = "Merge the annotation files into one."
            problems.append(Problem(f"one source is supported here, not {len(sources)}", f"dataset.{theirs}", hint))
            continue
        source, split = dict(sources[0]), dataset.setdefault(ours, {})
        for name, field in (("image_dir", "images_dir"), ("json_file", "coco")):
            if name in source:
                split[field] = source.pop(name)
        split.update(source)  # unknown fields are refused there
    augmentation = _section(dataset, "augmentation")
    for theirs, ours in (("input_mean", "mean"), ("input_std", "std"), ("scales", "multi_scales")):
        if theirs in augmentation:
            augmentation[ours] = augmentation.pop(theirs)
    if "horizontal_flip_prob" in augmentation:
        augmentation.setdefault("random_flip", {})["hflip_probability"] = augmentation.pop("horizontal_flip_prob")
    for theirs, ours in (("fixed_random_crop", "img_size"), ("test_random_resize", "val_img_size")):
        if augmentation.get(theirs) is not None:
            dataset[ours] = augmentation.pop(theirs)
    for name, here in (("dataset_type", "serialized"), ("train_sampler", "default_sampler")):
        if dataset.get(name) == here:
            dataset.pop(name)


def _optimizer(optim: dict[str, Any], problems: list[Problem]) -> None:
    if "optimizer" in optim:
        optim["optim"] = str(optim.pop("optimizer")).lower()
    backbone = optim.pop("lr_backbone", None)
    if isinstance(backbone, (int, float)):
        rate = optim.setdefault("lr", 2e-4)
        optim.setdefault("lr_mults", {})["backbone."] = backbone / rate
    policy = optim.pop("lr_scheduler", "MultiStep" if "lr_steps" in optim else None)
    steps, every, gamma = (optim.pop(name, default) for name, default in _SCHEDULE.items())
    if policy == "MultiStep":
        optim |= {"policy": "multistep", "policy_params": {"milestones": steps, "gamma": gamma}}
    elif policy == "StepLR":
        optim |= {"policy": "step", "policy_params": {"step_size": every, "gamma": gamma}}
    elif policy is not None:
        message = f"only MultiStep and StepLR are supported, not {policy}"
        problems.append(Problem(message, "train.optim.lr_scheduler", "Give train.optim.policy instead."))
    if "layer_decay_rate" in optim:
        optim["layer_decay"] = optim.pop("layer_decay_rate")


_SCHEDULE = {"lr_steps": [11], "lr_step_size": 11, "lr_decay": 0.1}
