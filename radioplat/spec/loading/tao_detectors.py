"""Translate TAO's specs of detectors, DINO and RT-DETR, into this spec's fields.

TAO writes a detector's ``model`` flat (``model.backbone: resnet_50``, ``model.num_queries: 300``), and a teacher in
``distill.teacher`` likewise; here backbone and detector are two sections. Facts are those of NVIDIA-TAO/tao-pytorch
7.0.1. Fields without a translation stay where they are and are refused as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from radioplat.errors import Problem
from radioplat.spec.loading.plain_tree import note, put
from radioplat.spec.loading.tao_detector_model import detector_model, is_compat, levels_of
from radioplat.spec.loading.tao_detector_run import detector_run
from radioplat.spec.loading.tao_dino import DINO
from radioplat.spec.loading.tao_rtdetr import OF_RTDETR, RTDETR

# TAO's names for the maps of all levels at once: ours of one level. TAO reads the encoder's input maps for the first.
_MAPS = {
    "dino": {"model.backbone.0.body": "detr.input_proj"},
    "rtdetr": {"srcs": "detr.model.encoder_input_proj", "dsrcs": "memory"},
}
_WEIGHTS = "pretrained_teacher_model_path"
# TAO's RT-DETR matches by other costs in a distillation than in a training: by the weights of the losses.
_DISTILLED_COSTS = {
    "class_cost": ("vfl_loss_coef", 1.0),
    "bbox_cost": ("bbox_loss_coef", 5.0),
    "giou_cost": ("giou_loss_coef", 2.0),
}


def accept_detectors(tree: dict[str, Any]) -> list[Problem]:
    """Translate TAO's fields of a detector's spec in a plain tree, in place; those of other specs are left alone.

    Returns:
        Problems: settings without a counterpart.
    """
    problems: list[Problem] = []
    distill = _section(tree, "distill")
    teacher, student = _flat(_only(distill.get("teacher"))), _flat(tree.get("model"))
    if student is None and teacher is None:
        return problems
    fields = RTDETR if _is_rtdetr(tree, [block for block in (student, teacher) if block]) else DINO
    levels = [levels_of(block) for block in (student, teacher) if block is not None]
    coefficient, architecture = 1.0, str((student or {}).get("backbone"))
    if student is not None:
        if fields is DINO:
            coefficient = _coefficient(student.pop("distillation_loss_coef", None), problems)
        elif student.pop("load_teacher_enc_dec", False):
            put(tree, "distill.decoder_from_teacher", True)
            put(tree, "distill.encoder_from_teacher", True)
        if fields is RTDETR and teacher is not None:
            _distilled_costs(tree, student)
        tree["model"] = detector_model(fields, tree, {**fields.defaults, **student}, "model", problems)
    if teacher is not None:
        path = teacher.pop(_WEIGHTS, None) or distill.pop(_WEIGHTS, None)
        model = detector_model(fields, tree, teacher, "distill.teacher", problems)
        unknown = {key: model.pop(key) for key in list(model) if key not in ("backbone", "task", "detector")}
        distill["teacher"] = [{"model": model, **({_WEIGHTS: path} if path else {}), **unknown}]
    if isinstance(distill.get("bindings"), list):
        most = 3 if fields is RTDETR else min(levels)
        names = {theirs: [f"{ours}.{i}" for i in range(most)] for theirs, ours in _MAPS[fields.kind].items()}
        distill["bindings"] = list(_bindings(distill["bindings"], names, coefficient, is_compat(tree), problems))
    detector_run(fields.kind, tree, architecture, problems)
    return problems


def _coefficient(given: Any, problems: list[Problem]) -> float:
    if given is not None and type(given) not in (int, float):
        problems.append(Problem(f"a number is expected here, not {given!r}", "model.distillation_loss_coef"))
    return given if type(given) in (int, float) else 1.0


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, dict) else {}


def _only(teacher: Any) -> Any:
    return teacher[0] if isinstance(teacher, list) and len(teacher) == 1 else teacher


def _flat(block: Any) -> dict[str, Any] | None:
    """Return a copy of ``block`` if it is a detector's flat model, else None."""
    return dict(block) if isinstance(block, dict) and isinstance(block.get("backbone"), str) else None


def _is_rtdetr(tree: dict[str, Any], blocks: list[dict[str, Any]]) -> bool:
    """Return True if the name of the spec, or a field, is RT-DETR's; else it is DINO's."""
    named = str(tree.get("model_name") or "").lower()
    if named.startswith(("rtdetr", "dino")):
        return named.startswith("rtdetr")
    dataset = _section(tree, "dataset")
    sections = [*blocks, dataset, _section(dataset, "augmentation")]
    return any(OF_RTDETR & section.keys() for section in sections) or any(
        block.get("return_interm_indices") == [1, 2, 3] and "num_feature_levels" not in block for block in blocks
    )


def _distilled_costs(tree: dict[str, Any], student: dict[str, Any]) -> None:
    for cost, (coefficient, default) in _DISTILLED_COSTS.items():
        if cost in student:
            note(tree, f"model.{cost}", f"TAO's distillation matches by model.{coefficient}")
        student[cost] = student.get(coefficient, default)


def _bindings(
    bindings: list[Any], maps: dict[str, list[str]], coefficient: float, squared: bool, problems: list[Problem]
) -> Iterator[Any]:
    """Yield bindings with this spec's module names; TAO's name of the maps of all levels becomes one binding a level.

    Args:
        maps: our names of the maps, by TAO's name.
        coefficient: factor of all weights.
        squared: square the weights, as TAO's code does: the criterion has the weight, and its result is multiplied by
            it. For IOU it counts once.
    """
    for i, binding in enumerate(bindings):
        if not isinstance(binding, dict):
            yield binding
            continue
        weight = binding.get("weight", 1.0)
        twice = squared and str(binding.get("criterion")).upper() != "IOU"
        if isinstance(weight, (int, float)) and (coefficient != 1.0 or twice):
            binding = {**binding, "weight": coefficient * weight * (weight if twice else 1)}
        teacher, student = (str(binding.get(f"{side}_module_name")) for side in ("teacher", "student"))
        if teacher != student and {teacher, student} & maps.keys():
            theirs = teacher if teacher in maps else student
            which = "student" if theirs == teacher else "teacher"
            message = f"{theirs} means the maps of all levels, and can only be bound to the same of the other model"
            hint = f"Name {maps[theirs][0]}, or {maps[theirs][1]}, ... on both sides for one level."
            problems.append(Problem(message, f"distill.bindings[{i}].{which}_module_name", hint))
        if teacher != student or teacher not in maps:
            yield binding
            continue
        for name in maps[teacher]:
            yield {**binding, "teacher_module_name": name, "student_module_name": name}
