"""Translate the flat ``model`` of TAO's detectors into sections ``backbone`` and ``detector``.

Which field is which option is a table for each kind of detector: ``tao_dino`` and ``tao_rtdetr``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radioplat.errors import Problem
from radioplat.spec.loading.plain_tree import note

UNREAD = "TAO's trainer does not read it either"
_UNTRAINED = "it changes nothing that a frozen teacher computes"
_OF_STUDENTS = ("distillation_loss_coef", "load_teacher_enc_dec", "use_dn")
Block = dict[str, Any]
Special = Callable[[Block, str, list[Problem]], dict[str, Any]]


def is_compat(tree: dict[str, Any]) -> bool:
    """Return True if the spec has ``compat: tao``."""
    return str(tree.get("compat")).lower() == "tao"


def levels_of(block: Block) -> int:
    """Return the number of maps of a flat model; TAO's default where it is no number, which is refused itself."""
    levels = block.get("num_feature_levels")
    return levels if type(levels) is int else 4


@dataclass(frozen=True)
class DetectorFields:
    """The fields of one kind of detector, and their meaning here.

    Attributes:
        kind: our name of the kind.
        options: arguments of the detector's configuration by TAO's field, for its structure.
        training: the same for losses, matching and noised boxes; of a teacher they have no effect.
        only: values with which TAO builds what we build; a function of the block where they depend on other fields.
        without_effect: fields that have no effect, with the reasons.
        defaults: TAO's defaults that differ from those of our detector.
        floats: arguments that must not be whole numbers.
        special: translates further fields of the block, which it removes; called with the block, its path and the list
            of problems, and returns arguments.
    """

    kind: str
    options: dict[str, tuple[str, ...]]
    training: dict[str, tuple[str, ...]]
    only: dict[str, Any]
    without_effect: dict[str, str]
    defaults: dict[str, Any] = field(default_factory=dict)
    floats: frozenset[str] = frozenset()
    special: Special = lambda block, where, problems: {}


def detector_model(
    fields: DetectorFields, tree: dict[str, Any], block: Block, where: str, problems: list[Problem]
) -> dict[str, Any]:
    """Return section ``model`` for a flat block; unknown fields stay in it, and are refused later.

    Args:
        tree: the whole spec, for notes of what has no effect.
        block: it is changed.
        where: its path, ``model`` or ``distill.teacher``.
    """
    is_teacher = where != "model"
    for section in [name for name, value in block.items() if isinstance(value, dict)]:
        block |= {f"{section}.{name}": value for name, value in block.pop(section).items()}
    backbone: dict[str, Any] = {"type": block.pop("backbone")}
    only = {name: value(block) if callable(value) else value for name, value in fields.only.items()}
    for name, here in only.items():
        if name in block and (given := block.pop(name)) != here:
            problems.append(Problem(f"only {here} is supported, not {given}", f"{where}.{name}", "Leave it out."))
    untrained = (*fields.training, *_OF_STUDENTS) if is_teacher else ()
    for name, reason in (fields.without_effect | dict.fromkeys(untrained, _UNTRAINED)).items():
        if name in block:
            del block[name]
            note(tree, f"{where}.{name}", reason)
    options = fields.special(block, where, problems)
    for name, ours in (fields.options | fields.training).items():
        if name in block:
            options |= dict.fromkeys(ours, block.pop(name))
    unneeded = {ours for names in fields.training.values() for ours in names} if is_teacher else set()
    options = {
        name: float(value) if name in fields.floats and type(value) is int else value
        for name, value in options.items()
        if name not in unneeded
    }
    trains, path = block.pop("train_backbone", None), block.pop("pretrained_backbone_path", None)
    if is_teacher:
        if trains:
            note(tree, f"{where}.train_backbone", "a teacher is frozen")
        if path:
            note(tree, f"{where}.pretrained_backbone_path", "the teacher's own file has its backbone")
    else:
        backbone |= {} if trains is None else {"freeze_backbone": not trains}
        backbone |= {"pretrained_backbone_path": path} if path else {}
    return {"backbone": backbone, "task": "detection", "detector": {"kind": fields.kind, "options": options}, **block}
